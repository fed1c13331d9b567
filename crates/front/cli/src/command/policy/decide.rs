//! `fluffy policy decide`: a real decision, recorded; the exit code is it.

use fluffy_gate::{AuthorizeError, Gate};
use fluffy_ledger::SeqRef;
use fluffy_policy::Verdict;
use fluffy_report::ExitCode;
use serde_json::json;

use super::{clock, places, request};
use crate::args::RequestArgs;
use crate::command::{Outcome, ledger};
use crate::failure;
use crate::session::Session;

/// Decides and records.
pub(crate) fn run(session: &Session, args: &RequestArgs) -> Outcome {
    if args.policy.is_some() {
        return Err(failure::decide_needs_policy_in_force().into());
    }
    let here = session.here()?;
    let request = request::build(args)?;
    let opened = ledger::open(session, here)?;
    let gate = Gate::open(places(here)?, opened.ledger.clone(), clock())
        .map_err(|error| failure::load_policy(&error, None))?;
    let (verdict, recorded, reasons) = match gate.authorize(&request) {
        Ok(granted) => (Verdict::Allow, granted.decision, Vec::new()),
        Err(AuthorizeError::Refused { refusal, decision }) => {
            let reasons = refusal.decision().reasons().map(str::to_owned).collect();
            (refusal.decision().verdict(), decision, reasons)
        }
        Err(error @ AuthorizeError::NotRecorded(_)) => {
            return Err(failure::not_recorded(&error).into());
        }
    };
    // An allow may still be in the buffer; the exit code must not outrun it.
    ledger::close(session, opened)?;
    let seq = match &recorded {
        SeqRef::Known(seq) => Some(*seq),
        SeqRef::Pending(ticket) => ticket.seq(),
    };
    if session.json() {
        session
            .printer
            .json(&json!({"decision": verdict, "seq": seq, "reasons": reasons}))?;
    } else {
        let shown = seq.map(|seq| format!(" (event {seq})")).unwrap_or_default();
        session.printer.data(&format!("{verdict}{shown}"))?;
        for reason in &reasons {
            session.printer.data(&format!("  {reason}"))?;
        }
    }
    Ok(match verdict {
        Verdict::Allow => ExitCode::Success,
        Verdict::Deny => ExitCode::Denied,
        Verdict::RequireReview => ExitCode::AwaitingApproval,
    })
}
