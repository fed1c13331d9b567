//! One JavaScript engine with one extension in it, good for one request.
//!
//! Every request gets an engine that nobody used before, so nothing a script
//! does can reach its next answer. The engine has no I/O, no clock, no
//! randomness and no way to make code from text; see `prelude.js`. Never used
//! outside the worker process. Next: `worker` keeps one engine ready.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::context::intrinsic;
use rquickjs::function::Function;
use rquickjs::promise::PromiseState;
use rquickjs::{Context, Ctx, Error, Module, Object, Persistent, Runtime, Value};

use crate::problem::Problem;
use crate::reading::{Failed, Spoken, read_result};
use crate::wire::{Ask, Failure};

const PRELUDE: &str = include_str!("prelude.js");

/// The most actions that one extension declares.
const MAX_ACTIONS: usize = 256;
/// The longest name of an action, in bytes.
const MAX_ACTION: usize = 256;

/// What an engine offers to scripts. Left out on purpose: `Proxy`, typed
/// arrays and shared memory (large surface, no use here), `WeakRef` (shows
/// when garbage is collected) and `performance` (a clock).
type Offered = (
    intrinsic::Date,
    // Needed to compile the module; the prelude removes it from scripts.
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::MapSet,
    // Needed to evaluate a module; no job is ever run.
    intrinsic::Promise,
);

/// An extension that is loaded and has not answered yet.
pub(crate) struct Engine {
    // These two point into the context and must be dropped before it.
    evaluate: Persistent<Function<'static>>,
    tools: Persistent<Object<'static>>,
    context: Context,
    stopwatch: Rc<Stopwatch>,
    limit: Duration,
}

/// What one engine may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    pub(crate) memory: usize,
    pub(crate) stack: usize,
    pub(crate) load: Duration,
    pub(crate) evaluation: Duration,
}

/// The answer of an engine, and what is left of it.
pub(crate) struct Judged {
    pub(crate) outcome: Result<Spoken, Failed>,
    /// To be dropped when there is time, or forgotten when the engine failed.
    pub(crate) remains: Context,
}

impl Engine {
    /// Builds an engine and runs the module's top level; also returns the
    /// actions that the extension declares (`None`: all).
    pub(crate) fn load(
        javascript: &str,
        allowance: Allowance,
    ) -> Result<(Self, Option<Vec<String>>), Problem> {
        let stopwatch = Rc::new(Stopwatch::default());
        let context = build_context(allowance, Rc::clone(&stopwatch)).map_err(|error| {
            problem(
                "no engine could be built",
                &error.to_string(),
                "raise the memory limit",
            )
        })?;
        stopwatch.start(allowance.load);
        let loaded = context.with(|ctx| {
            let tools: Object = ctx
                .eval(PRELUDE)
                .map_err(|error| load_failed(&ctx, &error, &stopwatch))?;
            let (evaluate, actions) = load_module(&ctx, javascript, &stopwatch)?;
            Ok::<_, Problem>((
                Persistent::save(&ctx, evaluate),
                Persistent::save(&ctx, tools),
                actions,
            ))
        });
        let (evaluate, tools, actions) = loaded?;
        let engine = Self {
            evaluate,
            tools,
            context,
            stopwatch,
            limit: allowance.evaluation,
        };
        Ok((engine, actions))
    }

    /// Asks the extension; an engine answers once.
    pub(crate) fn judge(self, ask: &Ask) -> Judged {
        let Self {
            evaluate,
            tools,
            context,
            stopwatch,
            limit,
        } = self;
        stopwatch.start(limit);
        let outcome = context.with(|ctx| {
            let evaluated = evaluate.restore(&ctx).and_then(|evaluate| {
                let tools = tools.restore(&ctx)?;
                let result = call(&ctx, &evaluate, &tools, ask)?;
                read_result(&tools, &result)
            });
            evaluated.unwrap_or_else(|error| Err(failed(&ctx, &error, &stopwatch)))
        });
        // Time may run out in native code, where nothing could be thrown.
        let outcome = if stopwatch.fired.get() {
            Err(interrupted())
        } else {
            outcome
        };
        Judged {
            outcome,
            remains: context,
        }
    }
}

/// Tells the engine's interrupt hook when to stop it. The host keeps the real
/// deadline; this one ends a worker whose host has stopped looking.
#[derive(Default)]
struct Stopwatch {
    /// `None` is too far away to be reached.
    deadline: Cell<Option<Instant>>,
    fired: Cell<bool>,
}

impl Stopwatch {
    fn start(&self, limit: Duration) {
        self.deadline.set(Instant::now().checked_add(limit));
    }

    fn must_stop(&self) -> bool {
        let late = self
            .deadline
            .get()
            .is_some_and(|deadline| Instant::now() >= deadline);
        if late {
            self.fired.set(true);
        }
        late
    }
}

/// Makes the C library settle on a time zone, for which it opens a file: once,
/// and when that fails it is UTC. After [`confine`](crate::confine) has taken
/// away opening, before it takes away trying to.
pub(crate) fn settle_time_zone() -> Result<(), Error> {
    let context = Context::custom::<(intrinsic::Date, intrinsic::Eval)>(&Runtime::new()?)?;
    context.with(|ctx| ctx.eval::<(), _>("new Date(0).getTimezoneOffset(); undefined"))
}

fn build_context(allowance: Allowance, stopwatch: Rc<Stopwatch>) -> Result<Context, Error> {
    let runtime = Runtime::new()?;
    runtime.set_memory_limit(allowance.memory);
    runtime.set_max_stack_size(allowance.stack);
    runtime.set_interrupt_handler(Some(Box::new(move || stopwatch.must_stop())));
    Context::custom::<Offered>(&runtime)
}

fn load_module<'js>(
    ctx: &Ctx<'js>,
    javascript: &str,
    stopwatch: &Stopwatch,
) -> Result<(Function<'js>, Option<Vec<String>>), Problem> {
    let refused = |error: Error| load_failed(ctx, &error, stopwatch);
    let declared = Module::declare(ctx.clone(), "extension", javascript).map_err(refused)?;
    let (module, promise) = declared.eval().map_err(refused)?;
    match promise.state() {
        PromiseState::Resolved => {}
        PromiseState::Rejected => {
            let error = match promise.result::<Value>() {
                Some(Err(error)) => error,
                Some(Ok(_)) | None => Error::Unknown,
            };
            return Err(refused(error));
        }
        PromiseState::Pending => {
            return Err(problem(
                "the top level waits for a promise",
                "an extension is synchronous and no promise ever settles",
                "remove the top-level `await`",
            ));
        }
    }
    let exports = module.namespace().map_err(refused)?;
    let evaluate: Value = exports.get("evaluate").map_err(refused)?;
    let Some(evaluate) = evaluate.into_function() else {
        return Err(problem(
            "there is no exported function `evaluate`",
            "it is what the policy engine calls",
            "add `export function evaluate(request) { return \"pass\" }`",
        ));
    };
    let actions: Value = exports.get("actions").map_err(refused)?;
    Ok((evaluate, read_actions(&actions)?))
}

fn read_actions(declared: &Value<'_>) -> Result<Option<Vec<String>>, Problem> {
    let wrong = |what: &str| {
        problem(
            what,
            "it says which actions this extension guards",
            "write `export const actions = [\"fs.write\"]`, or leave it out to guard all",
        )
    };
    if declared.is_undefined() {
        return Ok(None);
    }
    let Some(array) = declared.as_array() else {
        return Err(wrong("`actions` is not an array"));
    };
    if array.is_empty() || array.len() > MAX_ACTIONS {
        return Err(wrong("`actions` does not have between 1 and 256 entries"));
    }
    let mut actions = Vec::with_capacity(array.len());
    for entry in array.iter::<Value>() {
        let action = entry
            .ok()
            .and_then(|entry| entry.as_string().and_then(|text| text.to_string().ok()))
            .filter(|action| is_action(action))
            .ok_or_else(|| wrong("`actions` has an entry that is not the name of an action"))?;
        actions.push(action);
    }
    Ok(Some(actions))
}

/// Whether this is a dotted name, where the last piece may be `*`.
fn is_action(name: &str) -> bool {
    let stem = name.strip_suffix(".*").unwrap_or(name);
    name.len() <= MAX_ACTION
        && stem.split('.').all(|piece| {
            !piece.is_empty()
                && piece
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        })
}

fn call<'js>(
    ctx: &Ctx<'js>,
    evaluate: &Function<'js>,
    tools: &Object<'js>,
    ask: &Ask,
) -> Result<Value<'js>, Error> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds up to the year 9999 are below 2^53"
    )]
    let moment = ask.now_micros.div_euclid(1_000) as f64;
    let begin: Function = tools.get("begin")?;
    begin.call::<_, ()>((moment,))?;
    let freeze: Function = tools.get("freeze")?;
    let request: Value = freeze.call((ctx.json_parse(ask.request.as_str())?,))?;
    evaluate.call((request,))
}

fn failed(ctx: &Ctx<'_>, error: &Error, stopwatch: &Stopwatch) -> Failed {
    // Even the thrown value is left alone then: looking at it may run code.
    if stopwatch.fired.get() {
        return interrupted();
    }
    let detail = thrown(ctx, error);
    let failure = match detail.as_str() {
        "out of memory" => Failure::Memory,
        _ => Failure::Threw,
    };
    Failed { failure, detail }
}

fn interrupted() -> Failed {
    Failed {
        failure: Failure::Interrupted,
        detail: String::new(),
    }
}

fn load_failed(ctx: &Ctx<'_>, error: &Error, stopwatch: &Stopwatch) -> Problem {
    let failed = failed(ctx, error, stopwatch);
    match failed.failure {
        Failure::Interrupted => problem(
            "the top level takes too long",
            "it is run anew for every request",
            "move the work into `evaluate`, or do less of it",
        ),
        Failure::Memory => problem(
            "the top level needs too much memory",
            "an extension has a fixed memory limit",
            "build smaller tables",
        ),
        Failure::Threw | Failure::Nonsense => problem(
            "the extension cannot be run",
            &failed.detail,
            "correct the top level of the file",
        ),
    }
}

/// What was thrown, in words.
fn thrown(ctx: &Ctx<'_>, error: &Error) -> String {
    match error {
        Error::Exception => {
            let value = ctx.catch();
            if let Some(exception) = value.as_exception() {
                exception.message().unwrap_or_default()
            } else if let Some(text) = value.as_string() {
                text.to_string().unwrap_or_default()
            } else {
                format!("a value of type {}", value.type_name())
            }
        }
        Error::Allocation => "out of memory".to_owned(),
        other => other.to_string(),
    }
}

fn problem(what: &str, why: &str, fix: &str) -> Problem {
    Problem {
        at: None,
        what: what.to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::MAX_TEXT;

    const ROOMY: Allowance = Allowance {
        memory: 32 * 1024 * 1024,
        stack: 512 * 1024,
        load: Duration::from_secs(60),
        evaluation: Duration::from_secs(60),
    };

    fn judge(javascript: &str, request: &str) -> Result<Spoken, Failed> {
        let (engine, _) = Engine::load(javascript, ROOMY).unwrap();
        let ask = Ask {
            now_micros: 1_234_567,
            request: request.to_owned(),
        };
        engine.judge(&ask).outcome
    }

    fn reason_of(expression: &str, request: &str) -> String {
        let javascript = format!(
            "export function evaluate(request) {{
                return {{ verdict: 'pass', reason: String({expression}) }};
            }}"
        );
        judge(&javascript, request).unwrap().reason
    }

    #[test]
    fn a_request_cannot_carry_a_prototype() {
        let request =
            r#"{"__proto__":{"trusted":true},"constructor":{"prototype":{"trusted":true}}}"#;
        assert_eq!(reason_of("request.trusted", request), "undefined");
        assert_eq!(reason_of("({}).trusted", request), "undefined");
    }

    #[test]
    fn a_moment_is_rounded_down_to_what_dates_can_show() {
        assert_eq!(reason_of("Date.now()", "{}"), "1234");
        assert_eq!(
            reason_of("new Date().toISOString()", "{}"),
            "1970-01-01T00:00:01.234Z"
        );
    }

    #[test]
    fn nothing_that_reaches_outside_is_offered() {
        let names = "Object.getOwnPropertyNames(globalThis).join()";
        let offered = reason_of(names, "{}");
        for absent in [
            "console",
            "print",
            "require",
            "process",
            "std",
            "os",
            "performance",
            "setTimeout",
            "Proxy",
            "SharedArrayBuffer",
            "Atomics",
            "ArrayBuffer",
            "WeakRef",
            "eval",
            "fetch",
            "queueMicrotask",
            "gc",
            "load",
            "scriptArgs",
            "FinalizationRegistry",
            "navigator",
        ] {
            assert!(
                !offered.split(',').any(|name| name == absent),
                "{absent} in {offered}"
            );
        }
        assert!(offered.contains("JSON"), "{offered}");
    }

    #[test]
    fn the_names_of_actions_are_checked() {
        for good in ["fs.write", "plugin.my-tool.*", "exec"] {
            assert!(is_action(good), "{good}");
        }
        for bad in [
            "",
            "*",
            ".*",
            "fs.",
            ".fs",
            "fs..write",
            "fs.*.x",
            "fs write",
            "fs.w*",
            "fs.\0",
        ] {
            assert!(!is_action(bad), "{bad}");
        }
        assert!(!is_action(&"a".repeat(MAX_ACTION + 1)));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let javascript =
            "export const evaluate = () => ({ verdict: 'deny', reason: 'x' + '😀'.repeat(999) });";
        let spoken = judge(javascript, "{}").unwrap();
        assert!(spoken.reason.starts_with("x😀"));
        assert!(spoken.reason.chars().count() <= MAX_TEXT);
    }
}
