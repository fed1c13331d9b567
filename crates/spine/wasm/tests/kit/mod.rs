//! What the tests of the tier share: permits, programs from text, short calls.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod probe;

use std::time::Duration;

use fluffy_policy::Permit;
use fluffy_wasm::{
    Bounds, Call, CallError, Command, Finished, Limits, Program, Returned, Stop, Usage, Value,
    WasmTier,
};

/// A tier with the usual bounds.
pub(crate) fn tier() -> WasmTier {
    WasmTier::start(Bounds::default()).unwrap()
}

/// A permit for running a program.
pub(crate) fn permit() -> Permit {
    fluffy_test_kit::permit("sandbox.exec", Some("wasm"))
}

/// Compiles a program from text.
pub(crate) fn program(tier: &WasmTier, text: &str) -> Program {
    tier.prepare(&wat::parse_str(text).unwrap()).unwrap()
}

/// Calls `run` with these limits.
pub(crate) fn call(tier: &WasmTier, text: &str, limits: Limits) -> Result<Returned, CallError> {
    let call = Call {
        function: "run".into(),
        arguments: vec![],
        limits,
    };
    tier.call(permit(), &program(tier, text), &call)
}

/// Why `run` was stopped.
pub(crate) fn stopped(tier: &WasmTier, text: &str, limits: Limits) -> (Stop, Usage) {
    match call(tier, text, limits) {
        Err(CallError::Stopped { stop, usage, .. }) => (stop, usage),
        other => panic!("it should have been stopped: {other:?}"),
    }
}

/// What `run` returned as its one number.
pub(crate) fn number(tier: &WasmTier, text: &str, limits: Limits) -> i64 {
    match call(tier, text, limits).unwrap().values.as_slice() {
        [Value::I32(number)] => i64::from(*number),
        [Value::I64(number)] => *number,
        other => panic!("one number was expected: {other:?}"),
    }
}

/// Runs a command to its end on a runtime of its own.
pub(crate) fn run(tier: &WasmTier, program: &Program, command: Command) -> Finished {
    wait(tier.run(permit(), program, command)).unwrap()
}

/// Waits for a future.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// Limits that end what does not end by itself, a little later.
pub(crate) fn patient() -> Limits {
    Limits {
        fuel: None,
        time: Duration::from_secs(60),
        ..Limits::default()
    }
}
