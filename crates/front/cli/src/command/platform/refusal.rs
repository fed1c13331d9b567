//! What a server refused, and what kept us from it, as reports.

use fluffy_api::Problem;
use fluffy_api::client::CallError;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::watch;

/// Why a command had no good answer; `words` are the command.
pub(crate) fn failed(error: &CallError, words: &str) -> Report {
    let report = |exit: ExitCode, fix: &str| {
        let report = Report::from_error(exit, error).fix(fix);
        report
            .with("category", exit.name().into())
            .with("retryable", watch::may_pass(error).into())
            .with("errors", json!([]))
    };
    match error {
        CallError::Refused(problem) => refused(problem, words),
        CallError::Unreachable { server, .. } if server.starts_with('/') => report(
            ExitCode::Transient,
            "start it with `fluffy up`, or name a server: --server, FLUFFY_SERVER or a context",
        )
        .code("unreachable"),
        CallError::Unreachable { .. } => report(
            ExitCode::Transient,
            "check the address and the network; `fluffy context show` says where it comes from",
        )
        .code("unreachable"),
        CallError::Broken { .. } => report(
            ExitCode::Transient,
            "look whether it happened, then try again",
        ),
        CallError::Malformed { .. } => report(
            ExitCode::Failure,
            "check that the address is that of a fluffy server",
        ),
        CallError::Unsendable { .. } => report(ExitCode::Usage, "check what was typed"),
        CallError::Target { .. } => report(
            ExitCode::Usage,
            "write `https://HOST:PORT`, and name its certificates with `context set --ca`",
        ),
    }
}

fn refused(problem: &Problem, words: &str) -> Report {
    let exit = exit(problem);
    let what = format!("`fluffy {words}` was refused: {}", problem.title);
    let mut report = Report::new(exit, what)
        .code(problem.code.clone())
        .why(format!("{} [{}]", problem.detail, problem.code))
        .with("category", exit.name().into())
        .with("retryable", problem.retryable.into())
        .with("errors", json!(problem.errors))
        .with("details", json!(problem.details));
    for each in &problem.errors {
        let place = match (each.line, each.column) {
            (Some(line), Some(column)) => format!("{line}:{column}: "),
            _ if each.field.is_empty() => String::new(),
            _ => format!("{}: ", each.field),
        };
        report = report.why(format!("{place}{} [{}]", each.message, each.code));
    }
    if !problem.fix.is_empty() {
        report = report.fix(problem.fix.clone());
    }
    if let Some(seconds) = problem.retry_after {
        report = report.with("retry_after", seconds.into());
    }
    match problem.request_id.as_str() {
        "" => report,
        id => report.request(id),
    }
}

/// How a command ends that was refused.
fn exit(problem: &Problem) -> ExitCode {
    match (problem.status, problem.code.as_str()) {
        (_, "invalid_grant") | (401 | 403, _) => ExitCode::Denied,
        // Trying again mends nothing: what is stored is not what was signed.
        (_, "ledger_broken") => ExitCode::Internal,
        (400 | 413 | 414 | 415 | 422 | 431, _) => ExitCode::Usage,
        (404 | 410, _) => ExitCode::NotFound,
        (409 | 412 | 428, _) => ExitCode::Conflict,
        (429 | 503, _) => ExitCode::Transient,
        (500, _) => ExitCode::Internal,
        _ => ExitCode::Failure,
    }
}

#[cfg(test)]
mod tests {
    use fluffy_api::problem::CODES;

    use super::*;

    #[test]
    fn every_code_ends_as_it_is_written_down() {
        for code in CODES {
            let ends = exit(&Problem::new(code.code, "", ""));
            let expected = match code.status {
                _ if code.code == "invalid_grant" => 3,
                _ if code.code == "ledger_broken" => 7,
                401 | 403 => 3,
                404 | 410 => 4,
                409 | 412 | 428 => 5,
                429 | 503 => 6,
                500 => 7,
                405 | 406 | 501 => 1,
                _ => 2,
            };
            assert_eq!(ends.number(), expected, "{}", code.code);
        }
    }
}
