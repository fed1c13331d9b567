//! `fluffy demo`: policy and ledger at work, for real, in a folder of its own.
//!
//! Nothing is simulated: the engine decides, the extension runs in its worker
//! process, the ledger is on disk and gets verified, proven and tampered with.
//! Everything lives in a temporary folder that is removed at the end.

mod acts;
mod stage;

use fluffy_report::ExitCode;
use serde_json::json;

use crate::command::Outcome;
use crate::session::Session;
use stage::Stage;

/// Plays the demo.
pub(crate) fn run(session: &Session) -> Outcome {
    let mut stage = Stage::set(session)?;
    acts::decide(&stage)?;
    acts::answer_a_review(&stage)?;
    acts::change_the_policy(&stage)?;
    acts::read_the_ledger(&mut stage)?;
    acts::prove_one_event(&stage)?;
    acts::tamper(&stage)?;
    stage.end()?;
    if session.json() {
        session.printer.json(&json!({"demo": "done", "acts": 6}))?;
    }
    Ok(ExitCode::Success)
}
