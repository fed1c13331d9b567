//! Recordings as files: read before a replay, written after a session.
//!
//! A recording is made from the ledger once the session has ended, and put in
//! its place whole: after a crash there is none, and going on with the session
//! makes it. Only its owner can read it. Never holds a key that was used.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_base::id::SessionId;
use fluffy_gate::LoadedPolicy;
use fluffy_kernel::recording::recording;
use fluffy_kernel::session::Fact;
use fluffy_models::record::{MAX_BYTES, ReadRecordingError, Recording};
use fluffy_report::{ExitCode, Report};
use fluffy_secret::{Redactor, SecretString};
use tempfile::NamedTempFile;

use super::agent::wanted::providers;
use super::policy::{clock, places};
use super::session::facts_of;
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// Reads a recording.
pub(crate) fn read(path: &Path) -> Result<Recording, ReadRecordingError> {
    Recording::read(File::open(path).map_err(ReadRecordingError::Unreadable)?)
}

/// Puts a copy where the kernel can read it, which reads nothing else of the
/// person's; the same recording is kept once.
pub(crate) fn keep(here: &Here, path: &Path) -> Result<PathBuf, Failure> {
    let unreadable = |error: io::Error| wrong(path, &ReadRecordingError::Unreadable(error));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    // What is longer is refused when it is read as a recording.
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    let digest = Digest::of(&bytes).to_string();
    let short: String = digest.chars().take(16).collect();
    let name = path.file_name().unwrap_or_default();
    let place = here
        .paths
        .state_dir
        .join("recordings")
        .join(short)
        .join(name);
    let unwritable = |error: &io::Error| Failure::from(failure::unwritable(&place, error));
    if let Some(folder) = place.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| unwritable(&error))?;
    }
    let mut new = beside(&place)?;
    new.write_all(&bytes).map_err(|error| unwritable(&error))?;
    let put = new.persist(&place);
    put.map_err(|error| unwritable(&error.error))?;
    Ok(place)
}

/// What is wrong with a recording, for people.
pub(crate) fn wrong(path: &Path, error: &ReadRecordingError) -> Report {
    let exit = match error {
        ReadRecordingError::Unreadable(_) => ExitCode::NotFound,
        _ => ExitCode::Usage,
    };
    Report::new(exit, format!("cannot play `{}`", path.display()))
        .code("no_recording")
        .why(fluffy_kernel::agent::explain(error))
        .fix("make one with `fluffy run --record FILE \"task\"`")
}

/// Says before a session begins that its recording could not be written.
pub(crate) fn check_place(path: &Path) -> Result<(), Failure> {
    beside(path).map(drop)
}

/// Writes the recording of a session.
pub(crate) fn write(session: &Session, id: SessionId, path: &Path) -> Result<(), Failure> {
    let facts: Vec<Fact> = facts_of(session, id)?;
    let Some(recording) = recording(&facts) else {
        return Ok(());
    };
    let here = session.here()?;
    let root = here.paths.project_root.clone().unwrap_or_default();
    let root = root.canonicalize().unwrap_or(root);
    let models = facts.iter().filter_map(|fact| match fact {
        Fact::Started(started) => Some(started.model.clone()),
        _ => None,
    });
    let redactor = redactor(session, &models.collect::<Vec<_>>())?;
    let file = recording.to_file(&redactor, &root.to_string_lossy());
    let unwritable = |error: &io::Error| Failure::from(failure::unwritable(path, error));
    let mut new = beside(path)?;
    new.write_all(&file).map_err(|error| unwritable(&error))?;
    let synced = new.as_file().sync_all();
    synced.map_err(|error| unwritable(&error))?;
    let put = new.persist(path);
    put.map_err(|error| unwritable(&error.error))?;
    let turns = recording.turns.len();
    let words = format!("recorded {turns} turns in {}", path.display());
    session.printer.note(&words);
    Ok(())
}

/// A new file in the same folder, for its owner only.
fn beside(path: &Path) -> Result<NamedTempFile, Failure> {
    let folder = path.parent().filter(|folder| folder.is_dir());
    let made = match folder {
        Some(_) if path.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Some(folder) => NamedTempFile::new_in(folder),
        None => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    made.map_err(|error| failure::unwritable(path, &error).into())
}

/// Knows the shapes of secrets, the policy's own too, and the very keys that
/// are set here.
fn redactor(session: &Session, models: &[String]) -> Result<Redactor, Failure> {
    let here = session.here()?;
    let policy = LoadedPolicy::load(&places(here)?, 0, &clock())
        .map_err(|error| failure::load_policy(&error, None))?;
    let redactor = Redactor::new(policy.engine.sanitize_patterns());
    let mut redactor = redactor.map_err(|error| {
        let fix = "mend `sanitize.patterns` in the policy: `fluffy policy check`";
        Failure::of(ExitCode::Usage, &error, fix)
    })?;
    for key in providers(here, models).keys.into_values() {
        // What is too short to be told from a word is no key.
        let _ = redactor.register(SecretString::from(key));
    }
    Ok(redactor)
}
