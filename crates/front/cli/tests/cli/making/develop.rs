//! `fluffy plugin dev`: what is edited runs, what is broken does not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::site::Site;

const DEADLINE: Duration = Duration::from_secs(120);

const MANIFEST: &str = "name: words
version: 1.0.0
type: tool
engine: \">=0.1\"
api: 1
execution: { tier: process, command: [ /usr/bin/python3, server.py, MARK ], protocol: mcp }
tools: [ { name: count, summary: Counts., effect: reads } ]
";

/// Answers every call with this word, after a line to its log.
fn server(word: &str) -> String {
    format!(
        r#"
import json, sys
def answer(method):
    if method == "server/discover": return {{"supportedVersions": ["2026-07-28"], "capabilities": {{}}}}
    if method == "tools/list": return {{"tools": [{{"name": "count", "description": "Counts.", "inputSchema": {{"type": "object"}}}}]}}
    print("called {word}", file=sys.stderr, flush=True)
    return {{"content": [{{"type": "text", "text": "{word}"}}]}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked["method"])}}), flush=True)
"#
    )
}

/// A `dev` that runs, and what it printed.
struct Dev {
    child: Child,
    typed: Option<ChildStdin>,
    events: Receiver<Value>,
}

impl Dev {
    fn start(site: &Site) -> Self {
        let mut command = site.context.command();
        command.args(["plugin", "dev", "words", "--json"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (printed, events) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let value = serde_json::from_str(&line.unwrap()).unwrap();
                if printed.send(value).is_err() {
                    return;
                }
            }
        });
        let typed = child.stdin.take();
        Self {
            child,
            typed,
            events,
        }
    }

    /// Waits for an event of this kind; those before it come along.
    fn wait_for(&self, kind: &str) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let event = self.events.recv_timeout(DEADLINE);
            let event = event.unwrap_or_else(|_| panic!("no `{kind}` after {before:?}"));
            if event["event"] == kind {
                return (event, before);
            }
            before.push(event);
        }
    }

    /// Calls its tool, which says a word, and says in its log that it did.
    fn says(&mut self, word: &str) {
        writeln!(self.typed.as_mut().unwrap(), "count {{}}").unwrap();
        let (called, before) = self.wait_for("called");
        assert_eq!(called["outcome"], "done", "{called}");
        assert_eq!(called["content"], word);
        let line = format!("called {word}");
        let is_logged = |event: &Value| event["event"] == "log" && event["text"] == *line;
        // It is there at once, or a little later.
        while !before.iter().any(is_logged) {
            if self.wait_for("log").0["text"] == *line {
                return;
            }
        }
    }

    /// Waits for its end, which must be a good one.
    fn ends(mut self) {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn site() -> Site {
    let site = Site::initialised();
    let manifest = MANIFEST.replace("MARK", &mark(&site));
    site.context.write("words/plugin.yaml", &manifest).unwrap();
    site.context
        .write("words/server.py", &server("one"))
        .unwrap();
    site
}

/// A word that only the plugin of this site was started with.
fn mark(site: &Site) -> String {
    site.context.home().to_str().unwrap().to_owned()
}

/// Whether its program runs anywhere.
fn runs(site: &Site) -> bool {
    let words = format!("server.py\0{}\0", mark(site));
    let lines = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    lines.into_iter().any(|line| line.ends_with(&words))
}

fn left(site: &Site) -> usize {
    std::fs::read_dir(site.state().join("bench"))
        .unwrap()
        .count()
}

#[test]
fn an_edit_is_live_and_a_broken_one_keeps_what_runs() {
    let site = site();
    let mut dev = Dev::start(&site);
    let (running, _) = dev.wait_for("running");
    assert_eq!(running["tools"], serde_json::json!(["count"]));
    let (decided, _) = dev.wait_for("decision");
    assert_eq!(decided["capability"], "exec.run.words");
    assert_eq!(decided["verdict"], "allow");
    assert_eq!(decided["rules"], serde_json::json!(["run-plugins"]));
    dev.says("one");

    site.context
        .write("words/server.py", &server("two"))
        .unwrap();
    dev.wait_for("running");
    dev.says("two");

    for (file, text, why) in [
        ("server.py", "raise SystemExit('no')", "before it was ready"),
        ("plugin.yaml", "name: words", "manifest is refused"),
    ] {
        let path = format!("words/{file}");
        let good = std::fs::read_to_string(site.project_file(&path)).unwrap();
        site.context.write(&path, text).unwrap();
        let (refused, _) = dev.wait_for("refused");
        assert!(refused["why"].as_str().unwrap().contains(why), "{refused}");
        assert_eq!(refused["then"], "the one before runs on");
        dev.says("two");
        site.context.write(&path, &good).unwrap();
    }

    assert_eq!(left(&site), 1);
    drop(dev.typed.take());
    dev.ends();
    assert_eq!(left(&site), 0);
}

#[test]
fn an_interrupt_ends_everything() {
    let site = site();
    let dev = Dev::start(&site);
    dev.wait_for("running");
    assert!(runs(&site), "the control");
    let pid = i32::try_from(dev.child.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    dev.ends();
    assert_eq!(left(&site), 0);
    assert!(!runs(&site));
}

#[test]
fn one_call_is_answered_or_refused() {
    let site = site();
    let done = site.succeeds(&["plugin", "dev", "words", "--call", "count", "{}"]);
    assert!(done.contains("allow    exec.run.words"), "{done}");
    assert!(done.contains("done     one"), "{done}");
    let missing = site.ends(1, &["plugin", "dev", "words", "--call", "count", "[]"]);
    assert!(
        missing.stdout.contains("no JSON object"),
        "{}",
        missing.stdout
    );
    site.context
        .write("words/server.py", "raise SystemExit('no')")
        .unwrap();
    let broken = site.ends(1, &["plugin", "dev", "words", "--call", "count", "{}"]);
    assert!(
        broken.stderr.contains("does not start"),
        "{}",
        broken.stderr
    );
}
