//! Plugins in the engine: the contract, the limits, and that nothing survives.
//!
//! A real component built from Rust shows that the contract works; hostile
//! ones are written as text. Every limit has its control: the same plugin with
//! that one limit out of reach.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_base::ByteSize;
use fluffy_test_kit::{component, sample_plugin};
use fluffy_wasm::plugin::{
    ASKS_MAX, Ask, CallFault, Compiled, Fault, Host, INSTANCES_MAX, Instance, Language, Outcome,
    Plugin, Reply,
};
use fluffy_wasm::{Bounds, Limits, PluginTier, PrepareError, Stop, TrapKind};

/// Answers `kv-get` and nothing else, and counts.
#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<Ask>>,
}

impl Host for Fake {
    fn ask(&self, ask: Ask) -> Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + '_>> {
        self.asked.lock().unwrap().push(ask.clone());
        Box::pin(async move {
            match ask {
                Ask::KvGet { key } => Ok(Reply::Bytes(Some(key.into_bytes()))),
                Ask::FsRead { .. } => std::future::pending().await,
                Ask::Config => Ok(Reply::Done),
                _ => Err(Fault::Denied("no".to_owned())),
            }
        })
    }
}

fn limits() -> Limits {
    Limits {
        fuel: None,
        time: Duration::from_secs(120),
        ..Limits::default()
    }
}

fn fake() -> Arc<Fake> {
    Arc::new(Fake::default())
}

fn tier() -> PluginTier {
    PluginTier::start(Bounds::default()).unwrap()
}

fn prepare(tier: &PluginTier, bytes: &[u8]) -> Plugin {
    tier.prepare(bytes, None).unwrap().plugin
}

async fn instance(plugin: &Plugin) -> Instance {
    plugin.instantiate(fake(), limits()).await.unwrap()
}

/// What a call of a tool said, with these arguments.
async fn said(instance: &mut Instance, tool: &str, arguments: &str) -> String {
    let called = instance.execute(tool, arguments, limits()).await;
    called.result.unwrap().content
}

/// Why a call of the tool was stopped.
async fn stopped(plugin: &Plugin, tool: &str, limits: Limits) -> Stop {
    let mut instance = match plugin.instantiate(fake(), limits).await {
        Ok(instance) => instance,
        Err(stop) => return stop,
    };
    let called = instance.execute(tool, "{}", limits).await;
    match called.result {
        Err(CallFault::Stopped(stop)) => {
            assert!(instance.is_spent());
            stop
        }
        other => panic!("it should have been stopped: {other:?}"),
    }
}

/// A component whose `execute` is this; everything in its memory is zero, which
/// reads as an empty answer.
fn hostile(parts: &str, execute: &str) -> Vec<u8> {
    let text = format!(
        r#"(module {parts}
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "fluffy:plugin/lifecycle@1.0.0#init") (result i32) (i32.const 0))
        (func (export "fluffy:plugin/lifecycle@1.0.0#health") (result i32) (i32.const 0))
        (func (export "fluffy:plugin/lifecycle@1.0.0#shutdown"))
        (func (export "fluffy:plugin/tool@1.0.0#describe") (result i32) (i32.const 0))
        (func $execute (export "fluffy:plugin/tool@1.0.0#execute")
            (param i32 i32 i32 i32) (result i32) {execute} (i32.const 0)))"#
    );
    component(&text).unwrap()
}

const MEMORY: &str = r#"(memory (export "memory") 1)"#;

#[tokio::test]
async fn a_real_plugin_keeps_the_contract() {
    let tier = tier();
    let plugin = prepare(&tier, &sample_plugin().unwrap());
    assert_eq!(plugin.language(), Language::Compiled);
    let host = fake();
    let mut instance = plugin.instantiate(host.clone(), limits()).await.unwrap();
    let began = instance.init(limits()).await;
    assert_eq!(began.result, Ok(()));
    assert_eq!(began.stdout, b"began\n");
    assert_eq!(instance.health(limits()).await.result, Ok(()));
    let tools = instance.describe(limits()).await.result.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names[..3], ["echo", "count", "ask"]);
    assert_eq!(
        said(&mut instance, "echo", r#"{"a":1}"#).await,
        r#"{"a":1}"#
    );
    // Its own refusal is not the end of it.
    let refused = instance.execute("other", "{}", limits()).await.result;
    let words = "there is no tool `other`".to_owned();
    assert_eq!(refused, Err(CallFault::Refused(words)));
    assert!(!instance.is_spent());
    // The host answers, refuses, and answers nonsense.
    let asked = said(&mut instance, "ask", r#"{"ask":"kv-get key"}"#).await;
    assert_eq!(asked, "key");
    let asked = instance.execute("ask", r#"{"ask":"kv-set key v"}"#, limits());
    let output = asked.await.result.unwrap();
    assert_eq!(output.outcome, Outcome::Failed);
    assert!(output.content.contains("Denied"), "{}", output.content);
    let nonsense = said(&mut instance, "ask", r#"{"ask":"config"}"#).await;
    assert!(nonsense.contains("something else"), "{nonsense}");
    assert_eq!(host.asked.lock().unwrap().len(), 3);
    // Nothing of the machine is there.
    let look = said(&mut instance, "look", "{}").await;
    assert!(look.starts_with("0 0 false false Err("), "{look}");
    assert_eq!(instance.shutdown(limits()).await.result, Ok(()));
}

#[tokio::test]
async fn an_instance_knows_only_its_own_calls() {
    let tier = tier();
    let plugin = prepare(&tier, &sample_plugin().unwrap());
    let (mut one, mut two) = (instance(&plugin).await, instance(&plugin).await);
    assert_eq!(said(&mut one, "count", "{}").await, "1");
    assert_eq!(said(&mut one, "count", "{}").await, "2");
    assert_eq!(said(&mut two, "count", "{}").await, "1");
    drop(one);
    for _ in 0..3 {
        assert_eq!(said(&mut instance(&plugin).await, "count", "{}").await, "1");
    }
}

#[tokio::test]
async fn a_trap_fuel_and_a_deadline_are_three_ends() {
    let tier = tier();
    let plugin = prepare(&tier, &sample_plugin().unwrap());
    let fuel = Limits {
        fuel: Some(50_000_000),
        ..limits()
    };
    let short = Limits {
        time: Duration::from_millis(300),
        ..limits()
    };
    assert_eq!(stopped(&plugin, "spin", fuel).await, Stop::Fuel);
    assert_eq!(stopped(&plugin, "spin", short).await, Stop::Deadline);
    let trap = Stop::Trapped(TrapKind::Unreachable);
    assert_eq!(stopped(&plugin, "trap", limits()).await, trap);
    // Waiting takes no fuel; the time ends it, also when the host is slow.
    assert_eq!(stopped(&plugin, "sleep", short).await, Stop::Deadline);
    let mut waiting = instance(&plugin).await;
    let asked = waiting.execute("ask", r#"{"ask":"fs-read /a"}"#, short);
    let late = asked.await.result;
    assert_eq!(late, Err(CallFault::Stopped(Stop::Deadline)));
    assert!(waiting.is_spent());
    let again = waiting.execute("echo", "{}", limits()).await.result;
    assert!(matches!(again, Err(CallFault::Stopped(Stop::Host { .. }))));
    // Control: within its limits the same plugin does its work.
    let mut fine = plugin.instantiate(fake(), fuel).await.unwrap();
    assert!(fine.execute("echo", "{}", fuel).await.result.is_ok());
}

#[tokio::test]
async fn each_call_has_its_own_fuel_and_says_what_is_left() {
    let tier = tier();
    let plugin = prepare(&tier, &sample_plugin().unwrap());
    let fuel = Limits {
        fuel: Some(1_000_000),
        ..limits()
    };
    let mut one = plugin.instantiate(fake(), fuel).await.unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        let called = one.execute("echo", "{}", fuel).await;
        assert!(called.result.is_ok());
        left.push(called.usage.fuel_left.unwrap());
    }
    assert!(left.iter().all(|left| *left > 500_000 && *left < 1_000_000));
    assert_eq!(left[1], left[2]);
    let off = one.execute("echo", "{}", limits()).await;
    assert_eq!(off.usage.fuel_left, None);
    let little = Limits {
        fuel: Some(10),
        ..limits()
    };
    let out = one.execute("echo", "{}", little).await;
    assert_eq!(out.result, Err(CallFault::Stopped(Stop::Fuel)));
    assert_eq!(out.usage.fuel_left, Some(0));
}

#[tokio::test]
async fn questions_are_counted_in_each_call() {
    let tier = tier();
    let plugin = prepare(&tier, &sample_plugin().unwrap());
    let host = fake();
    let mut instance = plugin.instantiate(host.clone(), limits()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(
            said(&mut instance, "ask", r#"{"ask":"kv-get a"}"#).await,
            "a"
        );
    }
    let flood = instance.execute("flood", "{}", limits()).await.result;
    let limit = ASKS_MAX;
    assert_eq!(flood, Err(CallFault::Stopped(Stop::Asks { limit })));
    let asked = host.asked.lock().unwrap().len();
    assert_eq!(asked, usize::try_from(ASKS_MAX).unwrap() + 2);
}

#[tokio::test]
async fn a_start_function_is_under_the_same_limits() {
    let tier = tier();
    let spin = format!("{MEMORY} (func $spin (loop (br 0))) (start $spin)");
    let plugin = prepare(&tier, &hostile(&spin, ""));
    let fuel = Limits {
        fuel: Some(1_000_000),
        ..limits()
    };
    let short = Limits {
        time: Duration::from_millis(300),
        ..limits()
    };
    assert_eq!(stopped(&plugin, "run", fuel).await, Stop::Fuel);
    assert_eq!(stopped(&plugin, "run", short).await, Stop::Deadline);
    let control = prepare(&tier, &hostile(MEMORY, ""));
    let mut instance = instance(&control).await;
    assert_eq!(said(&mut instance, "run", "{}").await, "");
}

#[tokio::test]
async fn memory_tables_and_the_stack_end() {
    let tier = tier();
    let small = Limits {
        memory: ByteSize(1 << 20),
        table_elements: 100,
        ..limits()
    };
    let grow = "(drop (memory.grow (i32.const 100)))";
    let grow = prepare(&tier, &hostile(MEMORY, grow));
    let limit = small.memory;
    assert_eq!(stopped(&grow, "run", small).await, Stop::Memory { limit });
    assert_eq!(said(&mut instance(&grow).await, "run", "{}").await, "");
    // A memory that is too large from the beginning is not even made.
    let large = r#"(memory (export "memory") 100)"#;
    let large = prepare(&tier, &hostile(large, ""));
    assert_eq!(stopped(&large, "run", small).await, Stop::Memory { limit });
    assert_eq!(said(&mut instance(&large).await, "run", "{}").await, "");

    let table = format!("{MEMORY} (table $t 1 funcref)");
    let grow = "(drop (table.grow $t (ref.null func) (i32.const 1000)))";
    let grow = prepare(&tier, &hostile(&table, grow));
    let limit = small.table_elements;
    assert_eq!(stopped(&grow, "run", small).await, Stop::Table { limit });
    assert_eq!(said(&mut instance(&grow).await, "run", "{}").await, "");

    let deep = "(drop (call $execute (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))";
    let deep = prepare(&tier, &hostile(MEMORY, deep));
    let overflow = Stop::Trapped(TrapKind::StackOverflow);
    assert_eq!(stopped(&deep, "run", limits()).await, overflow);
    // Control: nesting of a depth that fits.
    let some = "(if (local.get 0) (then (drop (call $execute \
        (i32.sub (local.get 0) (i32.const 1)) (i32.const 0) (i32.const 0) (i32.const 0)))))";
    let some = some.replace(
        "(local.get 0) (then",
        "(i32.and (local.get 0) (i32.const 255)) (then",
    );
    let some = prepare(&tier, &hostile(MEMORY, &some));
    assert_eq!(said(&mut instance(&some).await, "run", "{}").await, "");
}

#[test]
fn what_would_take_the_compiler_long_is_not_given_to_it() {
    let tier = tier();
    let functions = "(func)".repeat(60_000);
    let bomb = hostile(&format!("{MEMORY} {functions}"), "");
    let refused = tier.prepare(&bomb, None).unwrap_err();
    assert!(matches!(refused, PrepareError::Examine { .. }), "{refused}");
    // A data segment far outside its memory: compiled, but it cannot start.
    let outside = format!(
        "{MEMORY} (data (i32.const 65530) \"{}\")",
        "x".repeat(1 << 20)
    );
    let plugin = prepare(&tier, &hostile(&outside, ""));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let stop = runtime.block_on(stopped(&plugin, "run", limits()));
    assert_eq!(stop, Stop::Trapped(TrapKind::MemoryOutOfBounds));
    let whole = wat::parse_str(format!(
        "(module (memory 600) (data (i32.const 0) \"{}\"))",
        "x".repeat(33 << 20)
    ));
    let refused = tier.prepare(&whole.unwrap(), None).unwrap_err();
    assert!(matches!(refused, PrepareError::Examine { .. }), "{refused}");
}

/// Attack 78 (RUSTSEC-2026-0088): what is left in a slot of the pool.
#[tokio::test]
async fn nothing_of_an_instance_is_left_in_its_slot() {
    let tier = tier();
    let text = r#"(module (memory 1) (table $t 8 funcref) (global $g (mut i64) (i64.const 0))
        (elem declare func $fill)
        (func $fill (export "fill") (result i32)
            (drop (memory.grow (i32.const 15)))
            (memory.fill (i32.const 0) (i32.const 0x5a) (i32.const 1048576))
            (drop (table.grow $t (ref.null func) (i32.const 100)))
            (table.fill $t (i32.const 0) (ref.func $fill) (i32.const 108))
            (global.set $g (i64.const 77))
            (call $found))
        (func $found (export "found") (result i32) (local $at i32) (local $sum i32)
            (loop $next
                (if (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536))) (then
                    (local.set $sum (i32.add (local.get $sum)
                        (i32.ne (i32.load8_u (local.get $at)) (i32.const 0))))
                    (local.set $at (i32.add (local.get $at) (i32.const 1)))
                    (br $next))))
            (local.set $at (i32.const 0))
            (loop $next
                (if (i32.lt_u (local.get $at) (table.size $t)) (then
                    (local.set $sum (i32.add (local.get $sum)
                        (i32.eqz (ref.is_null (table.get $t (local.get $at))))))
                    (local.set $at (i32.add (local.get $at) (i32.const 1)))
                    (br $next))))
            (i32.add (local.get $sum) (i32.wrap_i64 (global.get $g))))
        (func (export "grown") (result i32)
            (drop (memory.grow (i32.const 15)))
            (drop (table.grow $t (ref.null func) (i32.const 100)))
            (call $found)))"#;
    let plugin = prepare(&tier, &wat::parse_str(text).unwrap());
    let none = r#"{"arguments":[]}"#;
    // More rounds than there are slots, so that each is used again.
    for _ in 0..(INSTANCES_MAX * 2) {
        let mut instance = instance(&plugin).await;
        assert_eq!(said(&mut instance, "found", none).await, "0");
        assert_eq!(said(&mut instance, "grown", none).await, "0");
        // Control: it finds what it left itself.
        let left = (1048576 + 108 + 77).to_string();
        assert_eq!(said(&mut instance, "fill", none).await, left);
    }
}

#[tokio::test]
async fn the_pool_has_a_last_slot_and_gives_it_back() {
    let tier = tier();
    let plugin = prepare(&tier, &hostile(MEMORY, ""));
    let mut held = Vec::new();
    for _ in 0..INSTANCES_MAX {
        held.push(instance(&plugin).await);
    }
    let full = plugin.instantiate(fake(), limits()).await.unwrap_err();
    assert!(matches!(full, Stop::Host { .. }), "{full}");
    held.clear();
    instance(&plugin).await;
}

#[tokio::test]
async fn integer_functions_are_tools() {
    let tier = tier();
    let text = r#"(module
        (func (export "add") (param i64 i32) (result i64)
            (i64.add (local.get 0) (i64.extend_i32_s (local.get 1))))
        (func (export "half") (param f64) (result f64) (local.get 0))
        (func (export "trap") (unreachable))
        (memory (export "memory") 1))"#;
    let plugin = prepare(&tier, &wat::parse_str(text).unwrap());
    let mut instance = instance(&plugin).await;
    let tools = instance.describe(limits()).await.result.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["add", "trap"]);
    let sum = said(&mut instance, "add", r#"{"arguments":[9000000000,-1]}"#).await;
    assert_eq!(sum, "8999999999");
    for (tool, arguments) in [
        ("add", "{}"),
        ("add", r#"{"arguments":[1]}"#),
        ("add", r#"{"arguments":[1,9000000000]}"#),
        ("add", r#"{"arguments":[1,2],"more":1}"#),
        ("half", r#"{"arguments":[1]}"#),
        ("none", r#"{"arguments":[]}"#),
    ] {
        let refused = instance.execute(tool, arguments, limits()).await.result;
        assert!(matches!(refused, Err(CallFault::Refused(_))), "{refused:?}");
    }
    let trap = instance
        .execute("trap", r#"{"arguments":[]}"#, limits())
        .await;
    let unreachable = Stop::Trapped(TrapKind::Unreachable);
    assert_eq!(trap.result, Err(CallFault::Stopped(unreachable)));
}

#[test]
fn what_is_no_plugin_is_refused_by_name() {
    let tier = tier();
    let prepare = |text: &str| tier.prepare(&wat::parse_str(text).unwrap(), None);
    let empty = prepare("(component)").unwrap_err();
    assert!(matches!(empty, PrepareError::NotAPlugin { .. }), "{empty}");
    let imports = "(component (import \"wasi:http/outgoing-handler@0.2.0\" (instance \
        (export \"handle\" (func)))))";
    let imports = prepare(imports).unwrap_err();
    assert!(matches!(imports, PrepareError::Import { .. }), "{imports}");
    let module = prepare("(module (import \"env\" \"read\" (func)))").unwrap_err();
    assert!(matches!(module, PrepareError::Import { .. }), "{module}");
    assert!(matches!(
        tier.prepare(b"#!/bin/sh", None),
        Err(PrepareError::Examine { .. })
    ));
}

#[tokio::test]
#[expect(unsafe_code, reason = "the bytes are what the engine gave out above")]
async fn what_was_compiled_is_used_again_by_the_same_engine_only() {
    let bytes = hostile(MEMORY, "");
    let first = tier();
    let compiled = first.prepare(&bytes, None).unwrap().compiled.unwrap();
    // SAFETY: unchanged.
    let kept = unsafe { Compiled::kept(compiled.as_bytes().to_vec()) };
    // Another process with the same engine.
    let second = tier();
    assert_eq!(first.identity(), second.identity());
    let prepared = second.prepare(&bytes, Some(&kept)).unwrap();
    assert!(prepared.compiled.is_none(), "it was compiled again");
    let mut live = instance(&prepared.plugin).await;
    assert_eq!(said(&mut live, "run", "{}").await, "");
    // Other bounds are another identity.
    let bounds = Bounds {
        memories: 3,
        ..Bounds::default()
    };
    let other = PluginTier::start(bounds).unwrap();
    assert_ne!(other.identity(), first.identity());
    // What is no compiled code, or of another kind, is compiled again.
    let module = wat::parse_str("(module)").unwrap();
    let prepared = second.prepare(&module, Some(&kept)).unwrap();
    assert!(prepared.compiled.is_some());
    for length in [0, 4, 100] {
        // SAFETY: too short to hold any code, which the engine notices.
        let cut = unsafe { Compiled::kept(kept.as_bytes()[..length].to_vec()) };
        let prepared = second.prepare(&bytes, Some(&cut)).unwrap();
        assert!(prepared.compiled.is_some());
    }
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_ends_and_spends_its_instance() {
    let tier = tier();
    let plugin = prepare(&tier, &sample_plugin().unwrap());
    let mut instance = instance(&plugin).await;
    {
        let call = instance.execute("spin", "{}", limits());
        let gone = tokio::time::timeout(Duration::from_millis(50), call).await;
        assert!(gone.is_err());
    }
    assert!(instance.is_spent());
}
