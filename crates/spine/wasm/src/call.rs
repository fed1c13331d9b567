//! Calling one plain function of a module that imports nothing.
//!
//! Integers in, integers out, on the caller's thread. The module's start
//! function runs under the same limits, since the store is armed before.

use std::time::Instant;

use fluffy_base::Digest;
use wasmtime::{Engine, Instance, InstancePre, Store, Val, ValType};

use crate::command::{Call, Value};
use crate::guest::{self, Frame, Plain};
use crate::stop::Stop;
use crate::tier::Usage;

/// What a function returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    /// Its results.
    pub values: Vec<Value>,
    /// What it used.
    pub usage: Usage,
}

/// Why a function returned nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The permit is for something else.
    #[error("the permit is for `{action}`, and calling a function needs `sandbox.exec`")]
    Permit {
        /// What it is for.
        action: String,
    },
    /// The program is no module of plain functions.
    #[error("the program `{digest}` imports something, so its functions cannot be called alone")]
    NotPlain {
        /// Which program.
        digest: Digest,
    },
    /// There is no such function, or with other arguments or results.
    #[error("the program has no function `{function}` that takes these arguments")]
    Signature {
        /// Which was called.
        function: String,
    },
    /// It was stopped.
    #[error("the function `{function}` was stopped")]
    Stopped {
        /// Which was called.
        function: String,
        /// Why.
        #[source]
        stop: Stop,
        /// What it used.
        usage: Usage,
    },
    /// The engine failed; nothing the program does leads here.
    #[error("the WASM engine failed")]
    Engine {
        /// How.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Makes an instance, calls its function and drops the instance.
pub(crate) fn call(
    engine: &Engine,
    frame: &Frame,
    library: &InstancePre<Plain>,
    call: &Call,
) -> Result<Returned, CallError> {
    let at = Instant::now();
    let mut store = frame
        .store(engine, ())
        .map_err(|source| CallError::Engine {
            source: source.into_boxed_dyn_error(),
        })?;
    let result = library
        .instantiate(&mut store)
        .map_err(Missed::Stopped)
        .and_then(|instance| invoke(&mut store, &instance, call));
    let usage = Usage::of(&store, &call.limits, at);
    let function = call.function.clone();
    match result {
        Ok(values) => Ok(Returned { values, usage }),
        Err(Missed::Signature) => Err(CallError::Signature { function }),
        Err(Missed::Stopped(error)) => Err(CallError::Stopped {
            function,
            stop: guest::stop_of(&store, &error),
            usage,
        }),
    }
}

/// Why a plain function has no results.
enum Missed {
    Signature,
    Stopped(wasmtime::Error),
}

fn invoke(
    store: &mut Store<Plain>,
    instance: &Instance,
    call: &Call,
) -> Result<Vec<Value>, Missed> {
    let function = instance
        .get_func(&mut *store, &call.function)
        .ok_or(Missed::Signature)?;
    let arguments: Vec<Val> = call.arguments.iter().map(to_engine).collect();
    let signature = function.ty(&*store);
    let matches = signature.params().len() == arguments.len()
        && signature
            .params()
            .zip(&call.arguments)
            .all(|(wanted, given)| matches_type(&wanted, given));
    let plain = signature
        .results()
        .all(|result| result.is_i32() || result.is_i64());
    if !matches || !plain {
        return Err(Missed::Signature);
    }
    let mut results = vec![Val::I32(0); signature.results().len()];
    function
        .call(&mut *store, &arguments, &mut results)
        .map_err(Missed::Stopped)?;
    results
        .iter()
        .map(|result| from_engine(result).ok_or(Missed::Signature))
        .collect()
}

fn matches_type(wanted: &ValType, given: &Value) -> bool {
    match given {
        Value::I32(_) => wanted.is_i32(),
        Value::I64(_) => wanted.is_i64(),
    }
}

fn to_engine(value: &Value) -> Val {
    match value {
        Value::I32(number) => Val::I32(*number),
        Value::I64(number) => Val::I64(*number),
    }
}

fn from_engine(value: &Val) -> Option<Value> {
    match value {
        Val::I32(number) => Some(Value::I32(*number)),
        Val::I64(number) => Some(Value::I64(*number)),
        _ => None,
    }
}
