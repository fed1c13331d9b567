//! `fluffy audit verify`: everything recomputed, the first bad event named.

use std::fs;
use std::path::{Path, PathBuf};

use fluffy_ledger::verify::{Extent, Start, Verification, VerifyOptions, verify_path};
use fluffy_ledger::{PublicKey, SigningKeyFile};
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::links::{self, AtHand, Links};
use crate::args::LedgerArg;
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// What to hold the ledger against.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// How much of it.
    pub(crate) extent: Extent,
    /// Checkpoint files kept elsewhere.
    pub(crate) against: Vec<PathBuf>,
    /// The pinned key.
    pub(crate) key: Option<String>,
    /// Ledgers that it may rest on.
    pub(crate) follow: Vec<PathBuf>,
}

/// Where the key comes from that the checkpoints must be signed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyOrigin {
    /// The person pinned it.
    Pinned,
    /// It lies beside the ledger.
    Own,
    /// There is none.
    None,
}

/// Verifies a ledger, a database file or an export.
pub(crate) fn run(session: &Session, asked: &LedgerArg, wanted: &Wanted) -> Outcome {
    let here = session.here()?;
    let own = ledger::folder(here)?;
    let path = asked.ledger.clone().unwrap_or_else(|| own.clone());
    let is_own = path == own;
    if is_own && !ledger::exists(&own) {
        return Err(ledger::none_in(&own).into());
    }
    let (key, origin) = key(here, wanted, is_own)?;
    let mut against = read_all(&wanted.against)?;
    if is_own {
        against.extend(own_checkpoints(here));
    }
    let archives = if is_own {
        ledger::archives(&own)
    } else {
        Vec::new()
    };
    let options = VerifyOptions {
        extent: wanted.extent,
        against,
        key,
        archives,
    };
    let seen = verify_path(&path, &options).map_err(|error| failure::verify(&error))?;
    let mut at_hand: Vec<AtHand> = wanted.follow.iter().cloned().map(AtHand::named).collect();
    if !is_own && ledger::exists(&own) {
        at_hand.push(own_ledger(here, own)?);
    }
    // What a broken ledger says it rests on is worth nothing.
    let links = match seen.is_sound() {
        true => links::follow(&seen.sources, &at_hand)?,
        false => Links::default(),
    };
    show(session, &path, (&seen, &links), (key, origin))
}

/// The user's own ledger, for others that rest on it.
fn own_ledger(here: &Here, path: PathBuf) -> Result<AtHand, Failure> {
    let (key, _) = own_key(here)?;
    let options = VerifyOptions {
        extent: Extent::Full,
        against: own_checkpoints(here),
        key,
        archives: ledger::archives(&path),
    };
    Ok(AtHand { path, options })
}

fn key(
    here: &Here,
    wanted: &Wanted,
    is_own: bool,
) -> Result<(Option<PublicKey>, KeyOrigin), Failure> {
    if let Some(text) = &wanted.key {
        let key = parse_key(text)?;
        return Ok((Some(key), KeyOrigin::Pinned));
    }
    match is_own {
        true => own_key(here),
        false => Ok((None, KeyOrigin::None)),
    }
}

fn own_key(here: &Here) -> Result<(Option<PublicKey>, KeyOrigin), Failure> {
    let file = ledger::key_file(here);
    if !file.exists() {
        return Ok((None, KeyOrigin::None));
    }
    let key = SigningKeyFile::open(&file).map_err(|error| failure::key_file(&error))?;
    Ok((Some(key.public_key()), KeyOrigin::Own))
}

/// A public key as a person typed it.
pub(crate) fn parse_key(text: &str) -> Result<PublicKey, Failure> {
    text.parse().map_err(|error| {
        let fix = "copy the whole key that `fluffy init` printed, `ed25519:` included";
        Failure::of(ExitCode::Usage, &error, fix)
    })
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|error| failure::unreadable(path, &error).into())
    };
    paths.iter().map(read).collect()
}

/// This ledger's own checkpoints and those of its witnesses, as far as they
/// are at hand.
fn own_checkpoints(here: &Here) -> Vec<String> {
    let witnesses = here.settings.values().ledger.witness.iter().cloned();
    // What others hold comes first: whoever rewrote the ledger has written the
    // file beside it too, and of two that differ the first names the event.
    let files = witnesses.chain([ledger::checkpoints_file(here)]);
    files
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect()
}

fn show(
    session: &Session,
    path: &Path,
    (seen, links): (&Verification, &Links),
    (key, origin): (Option<PublicKey>, KeyOrigin),
) -> Outcome {
    let sound = seen.is_sound() && links.broken.is_none();
    let code = match sound {
        true => ExitCode::Success,
        false => ExitCode::Internal,
    };
    if session.json() {
        let value = json!({
            "sound": sound,
            "ledger": seen.ledger_id,
            "events": seen.events,
            "last_seq": seen.last_seq,
            "hash": seen.last_hash,
            "root": seen.root,
            "checkpoints_checked": seen.checkpoints_checked,
            "key": key.map(|key| key.to_string()),
            "key_pinned": origin == KeyOrigin::Pinned,
            "finding": seen.verdict.as_ref().err(),
            "links": links.json(),
        });
        session.printer.json(&value)?;
        return Ok(code);
    }
    if let Err(finding) = &seen.verdict {
        let what = format!(
            "the ledger is broken: the first bad event is {}",
            finding.seq
        );
        return Err(Report::new(ExitCode::Internal, what)
            .code("broken_chain")
            .why(format!("{} ({})", finding.detail, finding.kind))
            .fix(format!(
                "keep `{}` as it is, and compare it with a witness",
                path.display()
            ))
            .fix("see the audit guide: what somebody did, and what finds it")
            .into());
    }
    if let Some(broken) = &links.broken {
        return Err(broken.report().into());
    }
    let printer = &session.printer;
    let ledger = seen.ledger_id.map(|id| id.to_string()).unwrap_or_default();
    printer.data(&format!("The ledger is sound: {ledger}"))?;
    printer.data(&format!(
        "  events       {} checked{}",
        seen.events,
        start(seen)
    ))?;
    printer.data(&format!(
        "  last event   {} {}",
        seen.last_seq, seen.last_hash
    ))?;
    printer.data(&format!("  tree root    {}", seen.root))?;
    printer.data(&format!(
        "  checkpoints  {} agree{}",
        seen.checkpoints_checked,
        signer(origin)
    ))?;
    if let (Some(key), true) = (key, seen.checkpoints_checked > 0) {
        printer.data(&format!("  key          {key}"))?;
    }
    if let Some(words) = links.words() {
        printer.data(&format!("  links        {words}"))?;
    }
    Ok(code)
}

fn start(seen: &Verification) -> String {
    match seen.start {
        Start::Genesis => ", from the very first".to_owned(),
        Start::Archived { seq, .. } => format!(", after event {seq}; earlier ones are archived"),
        Start::Checkpoint { size } => format!(", after the checkpoint of {size} events"),
    }
}

fn signer(origin: KeyOrigin) -> &'static str {
    match origin {
        KeyOrigin::Pinned => ", signed by the pinned key",
        KeyOrigin::Own => ", signed by the key on this machine (pin it with --key)",
        KeyOrigin::None => ", nobody vouches for their signatures (pin the key with --key)",
    }
}
