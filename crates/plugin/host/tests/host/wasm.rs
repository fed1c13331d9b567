//! WASM plugins: a real worker in a real sandbox, with a real component.
//!
//! What the engine itself promises is tested beside it; here it is what
//! reaches the host, and what does not.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_contract::BoxFuture;
use fluffy_contract::tool::ToolOutcome;
use fluffy_egress::Network;
use fluffy_plugin_host::log::{self, Source};
use fluffy_plugin_host::room::Way;
use fluffy_plugin_host::services::Services;
use fluffy_plugin_host::wasm::{
    CompiledCache, WORKER_ARGUMENTS, WasmEntry, WasmOptions, WasmPlugin, start,
};
use fluffy_plugin_host::{CallPluginError, Connection as _, Gone, StartPluginError};
use fluffy_policy::Context;
use fluffy_test_kit::{component, permit, sample_plugin};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::{ALLOW_ALL, Kit};

const ALL: &[&str] = &["kv.*", "fs.*", "config.*", "log.write"];

fn worker() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_fluffy-plugin-worker"))
}

/// A start of this module by this program.
fn entry(kit: &Kit, program: PathBuf, module: Vec<u8>) -> WasmEntry {
    let words = std::iter::once(program.to_str().unwrap()).chain(WORKER_ARGUMENTS);
    WasmEntry {
        entry: kit.entry(words),
        module,
        cache: None,
    }
}

fn options(given: &Value) -> WasmOptions {
    WasmOptions::parse(given.as_object().unwrap()).unwrap()
}

fn services(kit: &Kit, grant: &[&str]) -> Arc<Services> {
    Arc::new(kit.services(kit.desk(grant)))
}

/// The sample plugin with these options and everything granted.
async fn sample(kit: &Kit, given: Value) -> WasmPlugin {
    let entry = entry(kit, worker(), sample_plugin().unwrap());
    start(entry, services(kit, ALL), options(&given))
        .await
        .unwrap()
}

async fn said(plugin: &WasmPlugin, tool: &str) -> String {
    plugin.call(tool, &json!({})).await.unwrap().content
}

async fn ask(plugin: &WasmPlugin, question: &str) -> (ToolOutcome, String) {
    let arguments = json!({ "ask": question });
    let output = plugin.call("ask", &arguments).await.unwrap();
    (output.outcome, output.content)
}

#[tokio::test]
async fn a_component_is_a_tool_plugin() {
    let kit = Kit::new(ALLOW_ALL).await;
    std::fs::write(kit.path("project/a.md"), "text").unwrap();
    let configured = json!({ "colour": "blue" });
    let services = kit
        .services(kit.desk(ALL))
        .configured(configured.as_object().unwrap().clone(), None);
    let entry = entry(&kit, worker(), sample_plugin().unwrap());
    let plugin = start(entry, Arc::new(services), WasmOptions::default());
    let plugin = plugin.await.unwrap();
    let tools = plugin.tools();
    assert_eq!(tools[0].name, "echo");
    assert_eq!(tools[0].parameters, json!({ "type": "object" }));
    let arguments = json!({ "a": [1, "é"] });
    let echoed = plugin.call("echo", &arguments).await.unwrap();
    assert_eq!(echoed.content, arguments.to_string());
    plugin.health().await.unwrap();
    let tool = "other".to_owned();
    let missing = plugin.call("other", &json!({})).await;
    assert_eq!(missing, Err(CallPluginError::NoSuchTool { tool }));
    for (question, answer) in [
        ("kv-get a", "nothing"),
        ("kv-set a one", "set"),
        ("kv-get a", "one"),
        ("kv-list a", "a"),
        ("kv-delete a", "deleted"),
        ("config", r#"{"colour":"blue"}"#),
        ("log hello", "written"),
        ("fs-read /a.md", "text"),
        ("fs-list /", "a.md"),
        ("fs-write @data/x mine", "written"),
        ("fs-read @data/x", "mine"),
    ] {
        let expected = (ToolOutcome::Done, answer.to_owned());
        assert_eq!(ask(&plugin, question).await, expected, "{question}");
    }
    assert_eq!(plugin.asked(), 11);
    let missing = ask(&plugin, "fs-read /b.md").await;
    assert!(missing.1.contains("NotFound"), "{missing:?}");
    // It has nothing of the sandbox it runs in.
    let look = said(&plugin, "look").await;
    assert!(look.starts_with("0 0 false false Err("), "{look}");
    let lines = log::read(&kit.log()).unwrap();
    let has = |source: Source, text: &str| {
        let is = |line: &log::Line| line.source == source && line.text == text;
        assert!(lines.iter().any(is), "{text}");
    };
    has(Source::Log, "hello");
    has(Source::Stdout, "began");
    plugin.stop(Duration::from_secs(30)).await;
    plugin.stop(Duration::ZERO).await;
    assert_eq!(plugin.gone().await, Gone::Stopped);
    let late = plugin.call("echo", &json!({})).await;
    assert!(
        matches!(late, Err(CallPluginError::Gone { .. })),
        "{late:?}"
    );
}

#[tokio::test]
async fn what_was_not_granted_is_refused_in_the_host() {
    let kit = Kit::new(ALLOW_ALL).await;
    let entry = entry(&kit, worker(), sample_plugin().unwrap());
    let services = services(&kit, &["kv.get.*"]);
    let plugin = start(entry, services, WasmOptions::default())
        .await
        .unwrap();
    for question in [
        "kv-set a b",
        "kv-delete a",
        "kv-list a",
        "config",
        "log hello",
        "fs-read /a",
        "fs-list /",
        "fs-write @data/a b",
        "fetch https://a.example/",
    ] {
        let (outcome, content) = ask(&plugin, question).await;
        assert_eq!(outcome, ToolOutcome::Failed, "{question}: {content}");
        assert!(content.contains("Denied"), "{question}: {content}");
    }
    assert_eq!(kit.decisions("kv.set", "deny"), 1);
    assert_eq!(kit.decisions("net.connect", "deny"), 1);
    // Control: what was granted is done.
    let granted = (ToolOutcome::Done, "nothing".to_owned());
    assert_eq!(ask(&plugin, "kv-get a").await, granted);
    assert_eq!(kit.decisions("kv.get", "allow"), 1);
}

#[tokio::test]
async fn every_option_is_applied() {
    let kit = Kit::new(ALLOW_ALL).await;
    let limited = json!({ "fuel": 30_000_000, "call_timeout": "60s", "concurrency": 2 });
    let plugin = sample(&kit, limited).await;
    let limit = "fuel";
    let spun = plugin.call("spin", &json!({})).await;
    assert_eq!(spun, Err(CallPluginError::Limit { limit }));
    let (_, used) = plugin.call_metered("echo", &json!({})).await.unwrap();
    let left = used.fuel_left.unwrap();
    assert!(left > 1_000_000 && left < 30_000_000, "{left}");
    assert!(used.memory > 0);
    let trapped = plugin.call("trap", &json!({})).await;
    assert!(
        matches!(trapped, Err(CallPluginError::Trapped { .. })),
        "{trapped:?}"
    );
    // An instance that ended so harms no other.
    assert_eq!(said(&plugin, "echo").await, "{}");
    plugin.stop(Duration::ZERO).await;

    let timed = json!({ "fuel": "off", "call_timeout": "400ms" });
    let plugin = sample(&kit, timed).await;
    let after = Duration::from_millis(400);
    for tool in ["spin", "sleep"] {
        let late = plugin.call(tool, &json!({})).await;
        assert_eq!(late, Err(CallPluginError::Late { after }), "{tool}");
    }
    let (_, used) = plugin.call_metered("echo", &json!({})).await.unwrap();
    assert_eq!(used.fuel_left, None);
    plugin.stop(Duration::ZERO).await;

    let small = entry(&kit, worker(), sample_plugin().unwrap());
    let options = options(&json!({ "memory": "64KiB" }));
    let refused = start(small, services(&kit, ALL), options).await;
    let Err(StartPluginError::Ended { how }) = refused else {
        panic!("{refused:?}");
    };
    assert!(how.contains("memory"), "{how}");
}

#[tokio::test]
async fn an_instance_outlives_its_call_only_where_that_is_declared() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = sample(&kit, json!({})).await;
    for _ in 0..3 {
        assert_eq!(said(&plugin, "count").await, "1");
    }
    plugin.stop(Duration::ZERO).await;
    let plugin = sample(&kit, json!({ "stateful": true })).await;
    for count in 1..4 {
        assert_eq!(said(&plugin, "count").await, count.to_string());
    }
    // After a trap it begins anew.
    plugin.call("trap", &json!({})).await.unwrap_err();
    assert_eq!(said(&plugin, "count").await, "1");
    // It is told when it ends.
    plugin.stop(Duration::from_secs(60)).await;
    let lines = log::read(&kit.log()).unwrap();
    assert!(lines.iter().any(|line| line.text == "ending"), "{lines:?}");
}

#[tokio::test]
async fn two_plugins_share_nothing() {
    let kit = Kit::new(ALLOW_ALL).await;
    let one = sample(&kit, json!({ "stateful": true })).await;
    let other = Kit::new(ALLOW_ALL).await;
    let two = sample(&other, json!({ "stateful": true })).await;
    assert_ne!(one.sandbox(), two.sandbox());
    assert_eq!(said(&one, "count").await, "1");
    assert_eq!(said(&one, "count").await, "2");
    assert_eq!(said(&two, "count").await, "1");
    ask(&one, "kv-set a one").await;
    assert_eq!(ask(&two, "kv-get a").await.1, "nothing");
    assert_eq!(ask(&one, "kv-get a").await.1, "one");
    one.stop(Duration::ZERO).await;
    assert_eq!(said(&two, "count").await, "2");
}

#[tokio::test]
async fn calls_run_beside_each_other_and_end_when_nobody_waits() {
    let kit = Kit::new(ALLOW_ALL).await;
    let given = json!({ "fuel": "off", "call_timeout": "10m", "concurrency": 2 });
    let plugin = Arc::new(sample(&kit, given).await);
    for tool in ["sleep", "spin"] {
        // Twice as many as there are slots: each has to give its slot back.
        for _ in 0..4 {
            let (caller, tool) = (Arc::clone(&plugin), tool.to_owned());
            let running = tokio::spawn(async move {
                let _ = caller.call(&tool, &json!({})).await;
            });
            assert_eq!(said(&plugin, "echo").await, "{}");
            running.abort();
            let _ = running.await;
        }
    }
    assert_eq!(said(&plugin, "echo").await, "{}");
}

#[tokio::test]
async fn a_killed_worker_fails_its_calls_and_the_next_start_works() {
    let kit = Kit::new(ALLOW_ALL).await;
    // A name of its own, so that nobody else's worker is hit.
    let program = kit.path("p/a/files/worker");
    std::fs::copy(worker(), &program).unwrap();
    let entry = entry(&kit, program.clone(), sample_plugin().unwrap());
    let given = options(&json!({ "fuel": "off", "call_timeout": "10m" }));
    let plugin = start(entry, services(&kit, ALL), given).await.unwrap();
    let plugin = Arc::new(plugin);
    let caller = Arc::clone(&plugin);
    let running = tokio::spawn(async move { caller.call("spin", &json!({})).await });
    assert_eq!(said(&plugin, "echo").await, "{}");
    assert!(!running.is_finished());
    let name = program.to_str().unwrap();
    let is_worker = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(format!("{name}\0worker\0wasm").as_bytes())
    };
    let pids = std::fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let pid = pids.filter(is_worker).max().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let gone = running.await.unwrap();
    assert!(
        matches!(gone, Err(CallPluginError::Gone { .. })),
        "{gone:?}"
    );
    let gone = plugin.gone().await;
    let Gone::Crashed { how } = &gone else {
        panic!("{gone:?}");
    };
    assert!(how.contains("signal 9"), "{how}");
    let again = sample(&kit, json!({})).await;
    assert_eq!(said(&again, "echo").await, "{}");
}

/// Knows one name, and leads every connection to one server of this machine.
struct Names {
    server: SocketAddr,
}

impl Network for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let known = name == "a.example" || name == "b.example";
        Box::pin(async move {
            match known {
                // A public address, as the proxy wants it.
                true => Ok(vec![IpAddr::from([93, 184, 216, 34])]),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    fn connect(&self, _address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(self.server))
    }
}

/// Answers every request with what its head was.
async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.write_all(&head).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_request_goes_out_by_the_proxy_where_its_host_was_granted() {
    let kit = Kit::new(ALLOW_ALL).await;
    let grant = ["net.connect.a.example:80"];
    let mut entry = entry(&kit, worker(), sample_plugin().unwrap());
    entry.entry.create = permit("sandbox.create", Some("plugin-net"));
    entry.entry.spec.template = "plugin-net".to_owned();
    entry.entry.way = Some(Way {
        desk: kit.desk(&grant),
        context: Context::default(),
        ledger: kit.ledger.clone(),
        network: Arc::new(Names {
            server: echo_server().await,
        }),
    });
    let plugin = start(entry, services(&kit, &grant), WasmOptions::default());
    let plugin = plugin.await.unwrap();
    let (outcome, content) = ask(&plugin, "fetch http://a.example/x?y").await;
    assert_eq!(outcome, ToolOutcome::Done, "{content}");
    assert!(content.starts_with("200 GET /x?y HTTP/1.1"), "{content}");
    assert!(content.contains("Host: a.example\r\n"), "{content}");
    assert!(content.contains("x-sample: yes"), "{content}");
    // The host is asked first, and the proxy asks again.
    assert_eq!(kit.decisions("net.connect", "allow"), 2);
    for url in [
        "http://b.example/",
        "http://a.example:8080/",
        "https://a.example/",
    ] {
        let (outcome, content) = ask(&plugin, &format!("fetch {url}")).await;
        assert_eq!(outcome, ToolOutcome::Failed, "{url}");
        assert!(content.contains("Denied"), "{url}: {content}");
    }
    assert_eq!(kit.decisions("net.connect", "deny"), 3);
}

/// Loading compiled code is running it; so what somebody else wrote is not.
#[tokio::test]
async fn compiled_code_is_kept_and_what_was_changed_is_compiled_again() {
    let kit = Kit::new(ALLOW_ALL).await;
    let folder = kit.path("cache");
    let cache = Arc::new(CompiledCache::open(&folder).unwrap());
    let module = |number: u8| {
        let text = format!(r#"(module (func (export "n") (result i32) (i32.const {number})))"#);
        wat::parse_str(text).unwrap()
    };
    let run = async |number: u8| {
        let mut entry = entry(&kit, worker(), module(number));
        entry.cache = Some(Arc::clone(&cache));
        let plugin = start(entry, services(&kit, ALL), WasmOptions::default());
        let plugin = plugin.await.unwrap();
        let output = plugin.call("n", &json!({ "arguments": [] })).await.unwrap();
        plugin.stop(Duration::ZERO).await;
        output.content
    };
    let file = |number: u8| {
        let digest = Digest::of(&module(number)).to_string();
        let files = std::fs::read_dir(&folder).unwrap();
        let mut files = files.map(|entry| entry.unwrap().path());
        let is = |path: &PathBuf| path.to_str().unwrap().contains(&digest);
        files.find(is).unwrap()
    };
    let state = |number: u8| {
        let found = std::fs::metadata(file(number)).unwrap();
        (found.ino(), found.mtime(), found.mtime_nsec())
    };
    assert_eq!(run(7).await, "7");
    assert_eq!(run(8).await, "8");
    // Used as it is: nothing new was written.
    let before = state(7);
    assert_eq!(run(7).await, "7");
    assert_eq!(state(7), before);
    // The code of another plugin, under the name of this one.
    std::fs::copy(file(8), file(7)).unwrap();
    assert_eq!(run(7).await, "7");
    let mut changed = std::fs::read(file(7)).unwrap();
    let middle = changed.len() / 2;
    changed[middle] ^= 0x40;
    std::fs::write(file(7), &changed).unwrap();
    assert_eq!(run(7).await, "7");
    assert_ne!(std::fs::read(file(7)).unwrap(), changed);
}

/// A worker may be all the plugin's one day.
#[tokio::test]
async fn a_worker_that_talks_nonsense_is_ended() {
    let kit = Kit::new(ALLOW_ALL).await;
    for (script, why) in [
        (r"printf '\377\377\377\377'; cat", "bytes"),
        (r"printf '\0\0\0\001\143'; cat", "no message"),
        (r"printf '\0\0\0\002\002\000'; cat", "before its hello"),
        (
            "echo loud >&2; echo >&2; exit 4",
            "exit code 4; it said: loud",
        ),
        ("kill -9 $$", "signal 9"),
    ] {
        let wasm = WasmEntry {
            entry: kit.entry(["sh", "-c", script]),
            module: Vec::new(),
            cache: None,
        };
        let started = start(wasm, services(&kit, ALL), WasmOptions::default()).await;
        let error = started.unwrap_err().to_string();
        assert!(error.contains(why), "{script}: {error}");
    }
    let lines = log::read(&kit.log()).unwrap();
    let loud = |line: &log::Line| line.source == Source::Stderr && line.text == "loud";
    assert!(lines.iter().any(loud), "{lines:?}");
}

/// A component whose `describe` is this.
fn describing(parts: &str, describe: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (memory (export "memory") 1) {parts}
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "fluffy:plugin/lifecycle@1.0.0#init") (result i32) (i32.const 0))
        (func (export "fluffy:plugin/lifecycle@1.0.0#health") (result i32) (i32.const 0))
        (func (export "fluffy:plugin/lifecycle@1.0.0#shutdown"))
        (func (export "fluffy:plugin/tool@1.0.0#describe") (result i32) {describe})
        (func (export "fluffy:plugin/tool@1.0.0#execute")
            (param i32 i32 i32 i32) (result i32) (i32.const 0)))"#
    );
    component(&text).unwrap()
}

#[tokio::test]
async fn what_does_not_load_says_why() {
    let kit = Kit::new(ALLOW_ALL).await;
    // One tool at 64 whose name is the bytes at 100.
    let tool = |name: &str, schema: &str| {
        let parts = format!(
            r#"(data (i32.const 8) "\40\00\00\00\01\00\00\00")
            (data (i32.const 64) "\64\00\00\00\{:02x}\00\00\00\00\00\00\00\00\00\00\00\c8\00\00\00\{:02x}\00\00\00")
            (data (i32.const 100) "{name}") (data (i32.const 200) "{}")"#,
            name.len(),
            schema.len(),
            schema.replace('"', "\\22"),
        );
        describing(&parts, "(i32.const 8)")
    };
    let spin = describing("(func $spin (loop (br 0))) (start $spin)", "(i32.const 0)");
    let functions = "(func)".repeat(60_000);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"#!/bin/sh\n".to_vec(), "no WebAssembly"),
        (wat::parse_str("(component)").unwrap(), "does not export"),
        (spin, "fuel"),
        (describing("", "(unreachable)"), "stopped"),
        (describing(&functions, "(i32.const 0)"), "functions"),
        (tool("a b", "{}"), "name"),
        (tool("ab", "[]"), "schema"),
    ];
    let load = async |module: Vec<u8>| {
        let entry = entry(&kit, worker(), module);
        let given = options(&json!({ "fuel": 1_000_000 }));
        start(entry, services(&kit, ALL), given).await
    };
    for (module, why) in cases {
        let error = load(module).await.unwrap_err();
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
    // Control.
    let plugin = load(tool("ab", "{}")).await.unwrap();
    assert_eq!(plugin.tools()[0].name, "ab");
}
