//! `fluffy version`: touches no file, so that it answers at once.

use fluffy_report::ExitCode;
use serde_json::json;

use crate::command::Outcome;
use crate::session::Session;

/// Prints the version and the formats this build reads and writes.
pub(crate) fn run(session: &Session) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    if session.json() {
        session
            .printer
            .json(&json!({"version": version, "target": target}))?;
    } else {
        session
            .printer
            .data(&format!("fluffy {version} ({target})"))?;
    }
    Ok(ExitCode::Success)
}
