//! `fluffy exec` against the real server and a simulated node, whose instances
//! have a toy shell.

use std::io::{Read as _, Write as _};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::stage::{Stage, Typist};
use crate::terminal::at_terminal;

/// One instance to run something in.
struct Shell {
    stage: Stage,
    instance: String,
}

impl Shell {
    fn start() -> Self {
        let stage = Stage::set();
        let site = &stage.site;
        let manifest = format!(
            "schema_version = \"v1\"\n[app]\nname = \"shop\"\n[image]\nref = \"{}\"\n\
             [deploy]\nmin_ready_seconds = 0\n\
             [processes.web]\nresources = {{ memory = \"64MiB\" }}\n",
            stage.image
        );
        site.context.write("fluffy.toml", &manifest).unwrap();
        site.succeeds(&["apps", "create", "shop"]);
        site.succeeds(&["envs", "create", "dev"]);
        site.succeeds(&["context", "set", "here", "--env", "dev"]);
        site.succeeds(&["deploy"]);
        let list = site.json(0, &["instances", "list"]);
        let instance = list["items"][0]["id"].as_str().unwrap().to_owned();
        Self { stage, instance }
    }

    /// The command line that runs something there.
    fn line(&self, flags: &[&str], words: &[&str]) -> Command {
        let mut command = self.stage.site.context.command();
        command.arg("exec").args(flags).arg(&self.instance);
        command.arg("--").args(words);
        command
    }

    /// Runs something with this input.
    fn ends(&self, code: i32, flags: &[&str], words: &[&str], input: &[u8]) -> Output {
        let mut command = self.line(flags, words);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // A command that reads nothing may be gone before all is written.
        let typing = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        typing.join().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        output
    }
}

#[test]
fn a_command_in_an_instance_has_our_streams_and_gives_its_code() {
    let shell = Shell::start();
    let output = shell.ends(0, &[], &["echo", "hello", "there"], b"");
    assert_eq!(output.stdout, b"hello there\n");
    assert_eq!(output.stderr, b"");
    let output = shell.ends(0, &[], &["fail", "oops"], b"");
    assert_eq!(
        (&*output.stdout, &*output.stderr),
        (&b""[..], &b"oops\n"[..])
    );
    shell.ends(42, &[], &["exit", "42"], b"");
    shell.ends(127, &["--no-stdin"], &["nonsense"], b"");
    // More than fits in any buffer on the way, there and back.
    let text: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let output = shell.ends(0, &[], &["cat"], &text);
    assert!(output.stdout == text, "{} bytes", output.stdout.len());
    let flags = ["--variable", "LEVEL=debug", "--reason", "a look"];
    let output = shell.ends(0, &flags, &["env"], b"");
    assert_eq!(output.stdout, b"LEVEL=debug\n");
    let output = shell.ends(0, &["--tty"], &["size"], b"");
    assert_eq!(output.stdout, b"80x24\n");
    // The longer words mean the same.
    let words = ["instances", "exec", &shell.instance, "--", "echo", "long"];
    assert_eq!(shell.stage.site.ends(0, &words).stdout, "long\n");
    // What never started.
    let missing = ["exec", "inst_01ARZ3NDEKTSV4RRFFQ69G5FAV", "--", "echo"];
    let finished = shell.stage.site.ends(125, &missing);
    assert!(finished.stderr.contains("not_found"), "{}", finished.stderr);
    shell.stage.site.ends(2, &["exec", &shell.instance]);
    // What was run is on record, what was said is not.
    let events = shell.stage.site.json(
        0,
        &[
            "events",
            "list",
            "--types",
            "exec_session.*",
            "--limit",
            "200",
        ],
    );
    let kinds = |kind: &str| {
        let items = events["items"].as_array().unwrap().iter();
        items.filter(|event| event["event_type"] == kind).count()
    };
    assert_eq!(kinds("exec_session.granted"), 8);
    assert_eq!(kinds("exec_session.connected"), 8);
    assert!(!events.to_string().contains("debug"), "{events}");
    shell.stage.running.end();
}

/// The simulated node names no feature, as one from before there were any.
#[test]
fn an_older_node_is_not_asked_for_what_it_does_not_know() {
    let shell = Shell::start();
    let output = shell.ends(125, &["--root", "--no-stdin"], &["echo", "root"], b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not_supported"), "{said}");
    assert_eq!(output.stdout, b"");
    let site = &shell.stage.site;
    let line = ["instances", "signal", &shell.instance, "HUP"];
    assert_eq!(site.json_error(1, &line)["code"], "not_supported");
    let shown = site.json(0, &["instances", "diagnose", &shell.instance]);
    let shown = &shown["data"];
    assert_eq!(shown["node"], serde_json::Value::Null);
    let why = shown["node_problem"].as_str().unwrap();
    assert!(why.contains("older"), "{why}");
    assert!(
        shown["transitions"].as_array().unwrap().len() > 1,
        "{shown}"
    );
    // What it knows goes on as before.
    let output = shell.ends(0, &["--tty"], &["echo", "plain"], b"");
    assert!(output.stdout.starts_with(b"plain"), "{output:?}");
    shell.stage.running.end();
}

#[test]
fn signals_reach_the_command_and_its_end_comes_back() {
    let shell = Shell::start();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut command = shell.line(&[], &["sh"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"echo ready\n").unwrap();
        let mut ready = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal:?}");
    }
    // Whoever reads no further ends it, as a pipe does.
    let mut command = shell.line(&[], &["flood", "50000000"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn a_command_at_a_terminal_has_its_size_and_gives_it_back() {
    let shell = Shell::start();
    let screen = at_terminal(
        &shell.stage.site,
        &format!(
            "stty rows 33 cols 99\n@fluffy exec {} -- size\necho code $?\nstty -a\n",
            shell.instance
        ),
    );
    assert!(screen.contains("99x33"), "{screen}");
    let after = screen.rsplit("code 0").next().unwrap();
    assert!(
        after.contains(" icanon ") && after.contains(" echo "),
        "{screen}"
    );
    // A window that changes is told of, and what is typed arrives.
    let mut typed = Typist::start(
        &shell.stage.site,
        &format!(
            "stty rows 20 cols 70\nterminal=$(tty)\n\
             (until grep -q 'o pen' \"$HOME/typed\"; do sleep 0.05; done; stty rows 41 cols 121 < \"$terminal\") &\n\
             @fluffy exec {} -- sh\necho code $?\n",
            shell.instance
        ),
    );
    // Two spaces, so that what is typed is not mistaken for what is said.
    typed.until("echo o  pen\n", "o pen");
    typed.until("size\n", "121x41");
    typed.until("exit 7\n", "code 7");
}
