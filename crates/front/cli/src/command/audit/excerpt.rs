//! `fluffy audit verify --export`: the export of an org, from its file alone.

use std::path::Path;

use fluffy_ledger::excerpt::{ExcerptOptions, verify_excerpt};
use fluffy_ledger::{ExcerptVerification, Trust};
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::verify;
use crate::command::Outcome;
use crate::failure;
use crate::session::Session;

/// Kinds of aggregates whose events are not all of one org: what a principal
/// was allowed or refused is counted across all orgs in which it asked.
pub(crate) const SHARED: &[&str] = &["principal"];

/// What no file can show, in words.
const INCOMPLETE: &str = "no file can show that nothing was left out; \
     what was left out shows only where an aggregate's numbers jump";

/// Verifies an export of an org.
pub(crate) fn run(session: &Session, path: &Path, keys: &[String]) -> Outcome {
    let keys = keys.iter().map(|key| verify::parse_key(key));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let options = ExcerptOptions {
        keys: &keys,
        shared: SHARED,
    };
    let seen = verify_excerpt(path, &options).map_err(|error| failure::verify(&error))?;
    let code = match seen.is_sound() {
        true => ExitCode::Success,
        false => ExitCode::Internal,
    };
    if session.json() {
        let value = json!({
            "sound": seen.is_sound(),
            "org": seen.of.org_id,
            "ledger": seen.of.ledger_id,
            "after": seen.of.after,
            "events": seen.events,
            "last_seq": seen.last_seq,
            "size": seen.of.checkpoint.checkpoint.size,
            "root": seen.root(),
            "key": seen.of.key.to_string(),
            "key_pinned": seen.trust == Trust::Pinned,
            "gaps": seen.gaps,
            "gaps_left_out": seen.gaps_left_out,
            "completeness": "not_provable",
            "finding": seen.verdict.as_ref().err(),
        });
        session.printer.json(&value)?;
        return Ok(code);
    }
    if let Err(finding) = &seen.verdict {
        let what = format!(
            "the export is broken: the first bad event is {}",
            finding.seq
        );
        return Err(Report::new(ExitCode::Internal, what)
            .code("broken_export")
            .why(format!("{} ({})", finding.detail, finding.kind))
            .fix(format!(
                "keep `{}` as it is, and export the org anew to compare",
                path.display()
            ))
            .into());
    }
    show(session, &seen)?;
    Ok(code)
}

fn show(session: &Session, seen: &ExcerptVerification) -> Outcome {
    let printer = &session.printer;
    let size = seen.of.checkpoint.checkpoint.size;
    let behind = match seen.of.after {
        0 => String::new(),
        after => format!(", only those after event {after}"),
    };
    let signer = match seen.trust {
        Trust::Pinned => "a pinned key",
        Trust::Unpinned => "a key that nobody vouches for (pin it with --key)",
    };
    printer.data(&format!("The export is sound: {}", seen.of.org_id))?;
    printer.data(&format!("  ledger       {}", seen.of.ledger_id))?;
    printer.data(&format!("  events       {} proven{behind}", seen.events))?;
    printer.data(&format!("  last event   {} of {size}", seen.last_seq))?;
    printer.data(&format!(
        "  tree root    {}, signed by {signer}",
        seen.root()
    ))?;
    printer.data(&format!("  key          {}", seen.of.key))?;
    let jumps = seen.gaps.len() as u64 + seen.gaps_left_out;
    if jumps > 0 {
        printer.data(&format!(
            "  jumps        {jumps}, all where events may be of other orgs"
        ))?;
    }
    printer.data(&format!("  complete?    {INCOMPLETE}"))?;
    Ok(ExitCode::Success)
}
