//! `fluffy sandbox run` as scripts and people meet it: streams, codes, layers.
//!
//! Nothing here looks inside the sandbox crate: what holds is what a command
//! inside can do, and what is on disk afterwards.

use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::site::Site;

const PATIENCE: Duration = Duration::from_secs(60);

/// `sandbox run` with these flags and a script for the shell.
fn run<'a>(flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["sandbox", "run"];
    arguments.extend(flags);
    arguments.extend(["--", "sh", "-c", script]);
    arguments
}

/// The object on the last line of standard error.
fn said(stderr: &str) -> Value {
    serde_json::from_str(stderr.lines().last().unwrap()).unwrap()
}

fn filtered(site: &Site) -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    for (pattern, replacement) in site.context.filters() {
        settings.add_filter(&pattern, replacement);
    }
    settings
}

#[test]
fn streams_and_code_are_the_commands_own() {
    let site = Site::empty();
    let finished = site.ends(3, &run(&[], "echo out; echo err >&2; exit 3"));
    assert_eq!(finished.stdout, "out\n");
    assert_eq!(finished.stderr, "err\n");
}

#[test]
fn the_project_is_unchanged_and_the_layer_is_named() {
    let site = Site::empty();
    site.context.write("old.txt", "one\n").unwrap();
    let finished = site.ends(
        0,
        &run(
            &[],
            "echo two >> old.txt; mkdir sub; echo new > sub/new.txt; cat old.txt",
        ),
    );
    assert_eq!(finished.stdout, "one\ntwo\n");
    filtered(&site).bind(|| {
        insta::assert_snapshot!(finished.stderr, @r"

        The project is unchanged. Layer lay_[ULID] holds 2 files (+2 −0):
          M old.txt
          A sub/new.txt
        look at it:  fluffy layer diff lay_[ULID]
        merge it:    fluffy layer merge lay_[ULID]
        drop it:     fluffy layer drop lay_[ULID]
        ");
    });
    let project = site.context.project();
    assert_eq!(
        std::fs::read_to_string(project.join("old.txt")).unwrap(),
        "one\n"
    );
    assert!(!project.join("sub").exists());
}

#[test]
fn megabytes_go_in_and_out_at_once() {
    let site = Site::empty();
    let mut child = site
        .context
        .command()
        .args(["sandbox", "run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes: Vec<u8> = (0..5_000_000u32).flat_map(|n| [(n % 251) as u8]).collect();
    let mut input = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let mut received = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut received)
        .unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(
        received == bytes,
        "{} of {} bytes",
        received.len(),
        bytes.len()
    );
}

#[test]
fn a_reader_that_leaves_ends_the_command() {
    let site = Site::empty();
    let mut child = site
        .context
        .command()
        .args(["sandbox", "run", "--", "yes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 2];
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut first).unwrap();
    drop(output);
    // 128 and SIGPIPE, as in a shell.
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn codes_are_those_that_a_shell_gives() {
    let site = Site::empty();
    site.context.write("plain.txt", "no program\n").unwrap();
    for (code, arguments) in [
        (127, vec!["sandbox", "run", "--", "no-such-program"]),
        (126, vec!["sandbox", "run", "--", "./plain.txt"]),
        (
            124,
            vec!["sandbox", "run", "--time", "300ms", "--", "sleep", "60"],
        ),
        (143, run(&[], "kill -TERM $$")),
        (137, run(&["--output", "1KiB"], "yes | head -c 100000")),
        (125, run(&["--template", "nothing"], "true")),
        (125, run(&["--write", "missing"], "true")),
        (
            125,
            run(
                &["--template", "code-executor", "--allow", "a.com:443"],
                "true",
            ),
        ),
        (125, run(&["--allow", "a.com"], "true")),
        (125, run(&["--tier", "microvm"], "true")),
        (125, run(&["--time", "1h"], "true")),
        (2, vec!["sandbox", "run"]),
    ] {
        site.ends(code, &arguments);
    }
}

#[test]
fn json_says_the_exact_reason_on_standard_error() {
    let site = Site::empty();
    let finished = site.ends(
        124,
        &run(&["--json", "--time", "300ms"], "echo out; sleep 60"),
    );
    assert_eq!(finished.stdout, "out\n");
    let mut value = said(&finished.stderr);
    assert!(value["took_ms"].as_u64().unwrap() >= 300);
    value["took_ms"] = 0.into();
    filtered(&site).bind(|| {
        insta::assert_snapshot!(value, @r#"{"code":124,"engine":"native","exit":{"limit":"time","type":"limit"},"layer":{"state":"empty"},"sandbox":"sbx_[ULID]","template":"code-executor","tier":"process","took_ms":0}"#);
    });
    let finished = site.ends(125, &run(&["--json", "--template", "nothing"], "true"));
    filtered(&site).bind(|| {
        insta::assert_snapshot!(said(&finished.stderr), @r#"{"error":{"at":[],"code":"not_found","exit":125,"fix":["use one of: kernel, ai-provider, code-executor, policy-sandbox, integration-test, plugin, plugin-net"],"what":"there is no template `nothing`","why":[]}}"#);
    });
    let finished = site.ends(0, &run(&["--json"], "echo x > new.txt"));
    let value = said(&finished.stderr);
    assert_eq!(value["layer"]["state"], "kept");
    assert_eq!(value["layer"]["files"], 1);
}

#[test]
fn nothing_of_the_host_is_inside() {
    let mut site = Site::empty();
    site.context.set("SECRET_TOKEN", "marked-secret");
    std::fs::write(site.context.home().join("private"), "marked-secret").unwrap();
    let home = site.context.home();
    let script = format!(
        "env; ls {} 2>&1; cat /etc/shadow 2>&1; ls /proc | grep -c '^[0-9]'; whoami; pwd",
        home.display()
    );
    let finished = site.ends(0, &run(&["--discard"], &script));
    assert!(
        !finished.stdout.contains("marked-secret"),
        "{}",
        finished.stdout
    );
    assert!(
        finished.stdout.contains("No such file"),
        "{}",
        finished.stdout
    );
    assert!(!finished.stdout.contains("root:"), "{}", finished.stdout);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert!(lines.contains(&"fluffy"));
    assert!(lines.contains(&site.context.project().to_str().unwrap()));
}

#[test]
fn the_folder_one_is_in_is_kept() {
    let site = Site::empty();
    site.context
        .write(".git/HEAD", "ref: refs/heads/main\n")
        .unwrap();
    site.context.write("deep/er/file", "x").unwrap();
    let folder = site.context.project().join("deep/er");
    let output = site
        .context
        .command()
        .current_dir(&folder)
        .args([
            "sandbox",
            "run",
            "--",
            "sh",
            "-c",
            "pwd; ls ../..; echo y > ../../top",
        ])
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout, format!("{}\ndeep\n", folder.display()));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("  A top\n"), "{stderr}");
}

#[test]
fn only_named_paths_can_be_written() {
    let site = Site::empty();
    site.context.write("src/a", "a").unwrap();
    site.context.write("docs/b", "b").unwrap();
    let finished = site.ends(
        0,
        &run(
            &["--write", "src"],
            "echo c > src/c && ! echo d 2>&- > docs/d",
        ),
    );
    assert!(
        finished.stderr.contains("  A src/c\n"),
        "{}",
        finished.stderr
    );
    assert!(!finished.stderr.contains("docs"), "{}", finished.stderr);
}

#[test]
fn what_is_merged_is_in_the_project() {
    let site = Site::empty();
    site.context.write("a.txt", "1\n").unwrap();
    let finished = site.ends(0, &run(&["--merge"], "echo 2 >> a.txt; echo n > b.txt"));
    assert_eq!(finished.stderr, "Merged 2 files (+2 −0).\n");
    let project = site.context.project();
    assert_eq!(
        std::fs::read_to_string(project.join("a.txt")).unwrap(),
        "1\n2\n"
    );
    assert_eq!(
        std::fs::read_to_string(project.join("b.txt")).unwrap(),
        "n\n"
    );
    // A command that fails is not merged, whatever it wrote.
    let finished = site.ends(9, &run(&["--merge"], "echo 3 >> a.txt; exit 9"));
    assert!(
        finished.stderr.contains("Not merged"),
        "{}",
        finished.stderr
    );
    assert_eq!(
        std::fs::read_to_string(project.join("a.txt")).unwrap(),
        "1\n2\n"
    );
    let events = site.succeeds(&["audit", "log", "--type", "merge.*"]);
    assert_eq!(events.matches("merge.approved").count(), 1, "{events}");
    assert_eq!(events.matches("merge.applied").count(), 1, "{events}");
}

#[test]
fn what_is_discarded_is_gone() {
    let site = Site::empty();
    let finished = site.ends(0, &run(&["--discard"], "echo n > b.txt; cat b.txt"));
    assert_eq!(finished.stdout, "n\n");
    assert_eq!(finished.stderr, "Discarded 1 file (+1 −0).\n");
    assert_eq!(site.layers(&["--all"]), Vec::<Value>::new());
    assert!(!site.context.project().join("b.txt").exists());
}

#[test]
fn a_hook_is_never_merged() {
    let site = Site::empty();
    site.context
        .write(".git/HEAD", "ref: refs/heads/main\n")
        .unwrap();
    let plant = "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo ok > ok.txt";
    let finished = site.ends(3, &run(&["--merge", "--yes"], plant));
    assert!(
        finished.stderr.contains("`.git/hooks/pre-commit`"),
        "{}",
        finished.stderr
    );
    let project = site.context.project();
    assert!(!project.join(".git/hooks").exists());
    assert!(!project.join("ok.txt").exists());
    // It is still in its layer, and the rest can be had.
    let id = site.layers(&[])[0]["id"].clone();
    let merge = [
        "layer",
        "merge",
        id.as_str().unwrap(),
        "--without",
        ".git/hooks",
    ];
    site.succeeds(&merge);
    assert!(project.join("ok.txt").exists());
    assert!(!project.join(".git/hooks").exists());
}

#[test]
fn sensitive_files_wait_for_a_person() {
    let site = Site::empty();
    site.context.write("Makefile", "all:\n").unwrap();
    let finished = site.ends(8, &run(&["--merge"], "echo '\trm -rf /' >> Makefile"));
    assert!(
        finished.stderr.contains("`/Makefile`"),
        "{}",
        finished.stderr
    );
    let makefile = site.context.project().join("Makefile");
    assert_eq!(std::fs::read_to_string(&makefile).unwrap(), "all:\n");
    site.ends(0, &run(&["--merge", "--yes"], "echo '# fine' >> Makefile"));
    assert_eq!(
        std::fs::read_to_string(&makefile).unwrap(),
        "all:\n# fine\n"
    );
}

#[test]
fn what_policy_denies_does_not_run() {
    let site = Site::empty();
    site.context
        .write(
            "deny.yaml",
            "version: 1\ncapabilities:\n- { name: make, match: { action: sandbox.create }, do: allow }\n\
             - { name: never, match: { action: shell.exec }, do: deny, reason: Nothing runs here }\n",
        )
        .unwrap();
    site.succeeds(&["init"]);
    site.succeeds(&["policy", "apply", "deny.yaml", "--yes"]);
    let finished = site.ends(125, &run(&[], "touch ran"));
    assert!(
        finished.stderr.contains("Nothing runs here"),
        "{}",
        finished.stderr
    );
    assert_eq!(site.layers(&[]), Vec::<Value>::new());
}

#[test]
fn every_engine_keeps_the_promise_and_reduced_says_so() {
    let site = Site::empty();
    for engine in ["native", "bwrap", "reduced"] {
        let words = ["sandbox", "run", "--json", "--engine", engine];
        let words = [
            &words[..],
            &["--", "sh", "-c", "echo out; echo x > new.txt; exit 4"],
        ]
        .concat();
        let finished = site.ends(4, &words);
        assert_eq!(finished.stdout, "out\n", "{engine}");
        let value = said(&finished.stderr);
        assert_eq!(value["engine"], engine);
        assert_eq!(value["layer"]["files"], 1, "{engine}");
        assert!(!site.context.project().join("new.txt").exists());
        let warned = finished.stderr.contains("reduced isolation");
        assert_eq!(warned, engine == "reduced", "{}", finished.stderr);
    }
    site.ends(
        125,
        &run(&["--engine", "reduced", "--allow", "a.com:443"], "true"),
    );
}

#[test]
fn a_policy_adds_templates() {
    let site = Site::empty();
    site.context
        .write(
            "added.yaml",
            "version: 1\ntemplates:\n  quick: { based_on: code-executor, time: 1s }\ncapabilities:\n\
             - { name: run, match: { action: [sandbox.create, shell.exec] }, do: allow }\n",
        )
        .unwrap();
    site.ends(125, &run(&["--template", "quick"], "true"));
    site.succeeds(&["init"]);
    site.succeeds(&["policy", "apply", "added.yaml", "--yes"]);
    site.ends(0, &run(&["--template", "quick"], "true"));
    site.ends(124, &run(&["--template", "quick"], "sleep 60"));
    let finished = site.ends(125, &run(&["--template", "quick", "--time", "1m"], "true"));
    assert!(finished.stderr.contains("gives 1s"), "{}", finished.stderr);
}

#[test]
fn every_step_is_in_the_ledger() {
    let site = Site::empty();
    site.ends(0, &run(&["--discard"], "touch x"));
    let log = site.succeeds(&["audit", "log", "--json"]);
    let types: Vec<String> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|event| event["type"].as_str().unwrap_or_default().to_owned())
        .filter(|event_type| event_type != "policy.decision")
        .collect();
    assert_eq!(
        types,
        [
            "sandbox.created",
            "sandbox.command",
            "sandbox.destroyed",
            "layer.written"
        ]
    );
    site.succeeds(&["audit", "verify"]);
}

/// A command that says when it is ready, with its output.
fn ready(site: &Site, script: &str) -> (Child, ChildStdout) {
    let mut child = site
        .context
        .command()
        .args(run(&[], script))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut word = [0; 6];
    output.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"ready\n");
    (child, output)
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn signals_go_to_the_command() {
    let site = Site::empty();
    for (sent, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
    ] {
        let script =
            format!("trap 'echo caught; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let (mut child, mut output) = ready(&site, &script);
        signal(&child, sent);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "caught\n");
        assert_eq!(child.wait().unwrap().code(), Some(7), "{name}");
    }
}

#[test]
fn who_ignores_ctrl_c_is_killed_by_the_third() {
    let site = Site::empty();
    let (mut child, mut output) = ready(
        &site,
        "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done",
    );
    for _ in 0..2 {
        signal(&child, Signal::INT);
        let mut word = [0; 3];
        output.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"no\n");
    }
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

/// Whether a process with this argument is alive anywhere on the host.
fn is_alive(mark: &str) -> bool {
    let mut alive = false;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        alive |= words.next() == Some(b"sleep") && words.next() == Some(mark.as_bytes());
    }
    alive
}

#[test]
fn nothing_survives_whoever_is_killed() {
    let site = Site::empty();
    let mark = format!("98765.{}", std::process::id());
    let script = format!("sleep {mark} & echo ready; wait");
    let (mut child, _output) = ready(&site, &script);
    let started = || is_alive(&mark).then_some(());
    wait_for("the command's child to start", PATIENCE, started).unwrap();
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let gone = || (!is_alive(&mark)).then_some(());
    wait_for("the sandbox's processes to end", PATIENCE, gone).unwrap();
    let launchers = site
        .context
        .home()
        .join(".local/state/fluffy/sandboxes/launchers");
    let is_empty = || {
        let mut entries = std::fs::read_dir(&launchers).unwrap();
        entries.next().is_none().then_some(())
    };
    wait_for("the launcher to be gone", PATIENCE, is_empty).unwrap();
}
