//! The worker process: one extension, one request at a time, over stdin/stdout.
//!
//! Gives up its privileges before it reads anything, and ends after the first
//! failure of its extension: a damaged engine never answers again. Never writes
//! anything but frames to stdout. Next: `process` is the other end.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use crate::confine::{ConfineError, Confined, confine};
use crate::engine::{Allowance, Engine};
use crate::problem::{Problem, tame};
use crate::strip::strip;
use crate::wire::{
    Ask, ExchangeFrameError, Failure, FromWorker, Load, MAX_FROM_WORKER, MAX_TO_WORKER, ToWorker,
    VERSION, read_frame, write_frame,
};

/// How often the host's deadline fits into the engine's own, which only ends a
/// worker whose host has stopped looking.
const BACKSTOP: u32 = 2;

/// Runs this process as a worker until its host hangs up.
///
/// `fluffy` calls it for its hidden subcommand before doing anything else: no
/// thread may run and nothing may have been read yet.
#[must_use]
pub fn worker_main() -> ExitCode {
    let served = confine()
        .map_err(ServeError::Confine)
        .and_then(|confined| serve(&mut io::stdin().lock(), &mut io::stdout().lock(), confined));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host discards stderr; this is for whoever starts it by hand.
            let _ = writeln!(io::stderr(), "policy worker: {error}");
            ExitCode::from(7)
        }
    }
}

/// Why a worker ends early.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// It runs with more privileges than it can give up.
    #[error("cannot be confined")]
    Confine(#[source] ConfineError),
    /// The host sent nonsense or went away in the middle.
    #[error("the host cannot be understood")]
    Exchange(#[from] ExchangeFrameError),
    /// The host sent a known message at the wrong time.
    #[error("the host sent a message out of order")]
    OutOfOrder,
}

fn serve(
    input: &mut impl Read,
    output: &mut impl Write,
    mut confined: Confined,
) -> Result<(), ServeError> {
    let load = match read_frame(input, MAX_TO_WORKER)? {
        Some(ToWorker::Load(load)) => load,
        Some(ToWorker::Ask(_)) => return Err(ServeError::OutOfOrder),
        None => return Ok(()),
    };
    let mut say = |message: &FromWorker| write_frame(output, message, MAX_FROM_WORKER);
    let allowance = allowance_of(&load);
    let loaded = check_version(&load)
        .and_then(|()| strip(&load.source))
        .and_then(|javascript| {
            let (engine, actions) = Engine::load(&javascript, allowance)?;
            Ok((javascript, engine, actions))
        });
    let (javascript, mut engine, actions) = match loaded {
        Ok(loaded) => loaded,
        Err(problem) => return Ok(say(&FromWorker::Refused(problem.tamed()))?),
    };
    say(&FromWorker::Loaded { actions })?;
    while let Some(ask) = next_ask(input)? {
        confined.renew_cpu().map_err(ServeError::Confine)?;
        let judged = engine.judge(&ask);
        match judged.outcome {
            Ok(spoken) => say(&FromWorker::Spoke {
                verdict: spoken.verdict,
                reason: tame(&spoken.reason),
            })?,
            Err(failed) => {
                // Taking a damaged engine apart could go wrong; the process ends anyway.
                std::mem::forget(judged.remains);
                return Ok(say(&failure(failed.failure, &failed.detail))?);
            }
        }
        drop(judged.remains);
        engine = match Engine::load(&javascript, allowance) {
            Ok((engine, _)) => engine,
            Err(problem) => return Ok(say(&failure(Failure::Threw, &problem.to_string()))?),
        };
        say(&FromWorker::Ready)?;
    }
    // The process ends; taking the unused engine apart would be wasted time.
    std::mem::forget(engine);
    Ok(())
}

fn next_ask(input: &mut impl Read) -> Result<Option<Ask>, ServeError> {
    match read_frame(input, MAX_TO_WORKER)? {
        Some(ToWorker::Ask(ask)) => Ok(Some(ask)),
        Some(ToWorker::Load(_)) => Err(ServeError::OutOfOrder),
        None => Ok(None),
    }
}

fn failure(failure: Failure, detail: &str) -> FromWorker {
    FromWorker::Failed {
        failure,
        detail: tame(detail),
    }
}

fn allowance_of(load: &Load) -> Allowance {
    let bytes = |wanted: u64| usize::try_from(wanted).unwrap_or(usize::MAX);
    Allowance {
        memory: bytes(load.memory),
        stack: bytes(load.stack),
        load: Duration::from_millis(load.load_ms),
        evaluation: Duration::from_millis(load.evaluation_ms).saturating_mul(BACKSTOP),
    }
}

fn check_version(load: &Load) -> Result<(), Problem> {
    if load.version == VERSION {
        return Ok(());
    }
    Err(Problem {
        at: None,
        what: format!("the host speaks version {}", load.version),
        why: format!("this program speaks version {VERSION}; it was replaced while running"),
        fix: "restart fluffy".to_owned(),
    })
}
