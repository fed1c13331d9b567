//! Reads what `evaluate` returned: a verdict, or nonsense.
//!
//! The value belongs to a script that may be hostile: nothing is taken from
//! prototypes, every text is cut inside the engine, and whatever is not exactly
//! a verdict is nonsense. Getters may run here, still within the time limit.

use rquickjs::function::Function;
use rquickjs::object::Filter;
use rquickjs::{Error, Object, Value};

use crate::problem::MAX_TEXT;
use crate::wire::{Failure, Verdict};

/// What the extension said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
}

/// How the extension failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) detail: String,
}

/// Reads what `evaluate` returned; only an engine's own failure is an `Error`.
pub(crate) fn read_result<'js>(
    tools: &Object<'js>,
    result: &Value<'js>,
) -> Result<Result<Spoken, Failed>, Error> {
    let nonsense = |detail: String| {
        Ok(Err(Failed {
            failure: Failure::Nonsense,
            detail,
        }))
    };
    if let Some(text) = result.as_string() {
        return Ok(spoken(&cut(tools, text)?, String::new()));
    }
    let Some(object) = result.as_object() else {
        return nonsense(format!("it returned {}", result.type_name()));
    };
    if result.is_promise() {
        return nonsense("it returned a promise, and `evaluate` must not be async".to_owned());
    }
    // Only what the object itself has: a prototype says nothing.
    let (mut verdict, mut reason) = (None, String::new());
    for key in object.own_keys::<String>(Filter::new().string().symbol()) {
        let key = key?;
        let value: Value = object.get(key.as_str())?;
        let Some(text) = value.as_string() else {
            return nonsense(format!("its `{key}` is of type {}", value.type_name()));
        };
        match key.as_str() {
            "verdict" => verdict = Some(cut(tools, text)?),
            "reason" => reason = cut(tools, text)?,
            _ => return nonsense(format!("it returned an object with the field `{key}`")),
        }
    }
    match verdict {
        Some(verdict) => Ok(spoken(&verdict, reason)),
        None => nonsense("it returned an object without a verdict".to_owned()),
    }
}

fn spoken(verdict: &str, reason: String) -> Result<Spoken, Failed> {
    match Verdict::named(verdict) {
        Some(verdict) => Ok(Spoken { verdict, reason }),
        None => Err(Failed {
            failure: Failure::Nonsense,
            detail: format!("it returned the verdict `{verdict}`"),
        }),
    }
}

/// The start of a script's text, cut before it is copied out of the engine.
fn cut<'js>(tools: &Object<'js>, text: &rquickjs::String<'js>) -> Result<String, Error> {
    let cut: Function = tools.get("cut")?;
    cut.call((text.clone(), MAX_TEXT))
}
