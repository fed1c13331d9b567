//! `fluffy orgs export`: the history of an org, with proofs, as one file.
//!
//! Every page is of the tree that the first one signed. Nothing is written
//! that does not lead to it; the file is read back and verified, and only then
//! gets its name. Checking it later needs no server: `audit verify --export`.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ArgMatches;
use fluffy_api::Operation;
use fluffy_api::types::OrgExport;
use fluffy_ledger::excerpt::{ExcerptOptions, ExcerptWriter, WriteExcerptError, verify_excerpt};
use fluffy_ledger::{Excerpt, ExcerptVerification, ProvenEvent, SignedCheckpoint};
use fluffy_report::{ExitCode, Report};
use serde_json::json;
use tempfile::NamedTempFile;

use super::ask::{Asker, Call};
use super::export::{SAY, patiently};
use super::{call, refusal, view};
use crate::command::Outcome;
use crate::command::audit::excerpt::SHARED;
use crate::failure::{self, Failure};

/// The words of the command.
const WORDS: &str = "orgs export";

/// Writes every event of an org that the caller may see.
pub(super) async fn run(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let operation = Operation::ExportOrg;
    let path = call::path(asker, operation.spec(), matches)?;
    let after = matches.get_one::<u64>("after").copied().unwrap_or(0);
    let output = matches.get_one::<String>("output");
    let output = PathBuf::from(output.map_or("", String::as_str));
    let file = beside(&output)?;
    let unwritable = |error: &io::Error| Failure::from(failure::unwritable(&output, error));

    let mut page = ask(asker, &path, (after, None)).await?;
    let size = page.size;
    let of = excerpt(&page, after)?;
    let out = BufWriter::new(file.as_file());
    let mut writer = ExcerptWriter::start(out, of.clone());
    let mut said = Instant::now();
    let mut at = after;
    loop {
        let writing = writer.as_mut().map_err(|error| unwritten(error, &output))?;
        for item in std::mem::take(&mut page.items) {
            let proven = ProvenEvent::from_json(&item.event, item.path);
            let proven = proven.map_err(|error| wrong(&error))?;
            let wrote = writing.event(&proven);
            wrote.map_err(|error| unwritten(&error, &output))?;
        }
        let Some(next) = page.next_after else {
            break;
        };
        // One that does not go on would go on for ever.
        if next <= at || next >= size {
            return Err(strange("its pages do not lead on").into());
        }
        at = next;
        if said.elapsed() >= SAY {
            said = Instant::now();
            let events = writing.events();
            let note = format!("{events} events so far, at {at} of {size}");
            asker.session.printer.note(&note);
        }
        page = ask(asker, &path, (at, Some(size))).await?;
        if page.size != size || page.org_id != of.org_id {
            return Err(strange("its pages are not of one tree and org").into());
        }
    }
    let ended = writer.and_then(ExcerptWriter::end);
    ended.map_err(|error| unwritten(&error, &output))?;
    let synced = file.as_file().sync_all();
    synced.map_err(|error| unwritable(&error))?;
    let seen = read_back(&file, &of)?;
    file.persist_noclobber(&output)
        .map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => exists(&output).into(),
            _ => unwritable(&error.error),
        })?;
    show(asker, &output, &seen)
}

/// A page, asked for until it comes.
async fn ask(
    asker: &mut Asker<'_>,
    path: &[String],
    (after, size): (u64, Option<u64>),
) -> Result<OrgExport, Failure> {
    let mut query = vec![("after".to_owned(), after.to_string())];
    query.extend(size.map(|size| ("size".to_owned(), size.to_string())));
    let call = Call {
        path: path.to_vec(),
        query,
        ..Call::default()
    };
    let answer = patiently(asker, Operation::ExportOrg, &call).await;
    let answer = answer.map_err(|error| refusal::failed(&error, WORDS))?;
    Ok(serde_json::from_value(answer.value).map_err(|error| wrong(&error))?)
}

/// What the first page says that the export is of.
fn excerpt(page: &OrgExport, after: u64) -> Result<Excerpt, Failure> {
    let signed = page.checkpoint.as_ref();
    let signed = signed.ok_or_else(|| strange("its first page has no checkpoint"))?;
    let checkpoint = SignedCheckpoint::parse(&signed.note).map_err(|error| wrong(&error))?;
    if checkpoint.checkpoint.size != page.size {
        return Err(strange("its checkpoint is of another tree").into());
    }
    let excerpt = Excerpt {
        ledger_id: page.ledger_id.parse().map_err(|error| wrong(&error))?,
        org_id: page.org_id.clone(),
        after,
        checkpoint,
        key: signed.key.parse().map_err(|error| wrong(&error))?,
    };
    if after > page.size {
        let what = format!("there is no event {after}");
        let report = Report::new(ExitCode::Usage, what);
        let fix = format!("give an `--after` of at most {}", page.size);
        return Err(report.fix(fix).into());
    }
    Ok(excerpt)
}

/// Verifies what was written, as anybody will.
fn read_back(file: &NamedTempFile, of: &Excerpt) -> Result<ExcerptVerification, Failure> {
    let options = ExcerptOptions {
        keys: &[of.key],
        shared: SHARED,
    };
    let seen = verify_excerpt(file.path(), &options);
    let seen = seen.map_err(|error| failure::verify(&error))?;
    if let Err(finding) = &seen.verdict {
        let what = "what the server gave does not verify, and nothing was kept of it";
        return Err(Report::new(ExitCode::Internal, what)
            .code("broken_export")
            .why(format!("{finding} ({})", finding.kind))
            .fix("tell the operators: `fluffy events verify` checks the whole ledger")
            .into());
    }
    Ok(seen)
}

fn show(asker: &Asker<'_>, output: &Path, seen: &ExcerptVerification) -> Outcome {
    let printer = &asker.session.printer;
    let (events, size) = (seen.events, seen.of.checkpoint.checkpoint.size);
    if asker.session.json() {
        let value = json!({
            "export": output,
            "org": seen.of.org_id,
            "ledger": seen.of.ledger_id,
            "after": seen.of.after,
            "events": events,
            "last_seq": seen.last_seq,
            "size": size,
            "root": seen.root(),
            "key": seen.of.key.to_string(),
        });
        printer.json(&view::document("OrgExportFile", &value))?;
        return Ok(ExitCode::Success);
    }
    let (file, key) = (output.display(), seen.of.key);
    printer.data(&format!(
        "wrote {file}: {events} events of {}, proven to be among {size}",
        seen.of.org_id
    ))?;
    printer.note(&format!(
        "check it anywhere: fluffy audit verify --export {file} --key {key}"
    ));
    Ok(ExitCode::Success)
}

/// A new file in the same folder, for its owner only.
fn beside(output: &Path) -> Result<NamedTempFile, Failure> {
    if output.exists() {
        return Err(exists(output).into());
    }
    let folder = output.parent().filter(|it| !it.as_os_str().is_empty());
    let made = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")));
    Ok(made.map_err(|error| failure::unwritable(output, &error))?)
}

fn exists(output: &Path) -> Report {
    let what = format!("`{}` exists already", output.display());
    Report::new(ExitCode::Conflict, what).fix("name another file, or remove this one")
}

fn unwritten(error: &WriteExcerptError, output: &Path) -> Report {
    match error {
        WriteExcerptError::Write(error) => failure::unwritable(output, error),
        WriteExcerptError::Unfit { .. } | WriteExcerptError::Excerpt(_) => {
            let what = "the server gave what proves nothing, and nothing was kept of it";
            let report = Report::from_error(ExitCode::Internal, error).code("broken_export");
            report
                .why(what)
                .fix("tell the operators: `fluffy events verify` checks the whole ledger")
        }
    }
}

/// What the server sent can't be understood.
fn wrong(error: &dyn std::error::Error) -> Report {
    strange(&error.to_string())
}

fn strange(why: &str) -> Report {
    let what = "the answer of the server is no export";
    Report::new(ExitCode::Failure, what)
        .why(why.to_owned())
        .fix("check that server and `fluffy` are of one version: `fluffy version`")
}
