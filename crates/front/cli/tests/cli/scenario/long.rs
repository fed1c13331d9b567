//! Long sessions: a worker that serves many turns, and a kernel that does not
//! grow with them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use fluffy_model_server::{Format, Options, Reply};
use fluffy_test_kit::{campaign, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::family::{Process, Role, family, the};
use super::languages::JAVASCRIPT;
use super::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);

/// What a session may keep in memory beyond what it had after a third.
const ROOM: u64 = 32 << 20;

#[test]
fn a_long_session_grows_no_further_and_keeps_its_worker() {
    let turns = campaign(200, 2_000);
    let options = Options {
        forgets: true,
        ..Options::default()
    };
    let mut stage = Stage::with(options, Format::Chat, JAVASCRIPT.files);
    for (name, value) in [
        ("FLUFFY_BUDGET_TURNS", turns.to_string()),
        ("FLUFFY_BUDGET_TOKENS", "1000000000".to_owned()),
        ("FLUFFY_BUDGET_WALL_TIME", "10h".to_owned()),
    ] {
        stage.site.context.set(name, &value);
    }
    let lines: String = (0..300)
        .map(|line| format!("value {line} of the large file\n"))
        .collect();
    stage.site.context.write("src/large.txt", &lines).unwrap();
    stage.then(Reply::call("fs.read", json!({"path": "src/large.txt"})));
    let words = stage.prepare(Vec::new());
    let mut command = stage.site.context.command();
    command.args(&words).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut sizes = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if event["type"] == "turn.started" {
            sizes.extend(resident(the(Role::Kernel, &stage)));
        }
    }
    // All turns were taken, and nothing else ended it.
    assert_eq!(child.wait().unwrap().code(), Some(10));
    assert_eq!(sizes.len() as u64, turns);
    let early = sizes[sizes.len() / 3];
    let late = sizes[sizes.len() - 1];
    assert!(late < early + ROOM, "{early} bytes became {late}");

    let ledger = stage.ledger();
    let count = |kind: &str, word: &str| {
        let fits = |event: &&Value| event["event_type"] == kind && event.to_string().contains(word);
        ledger.iter().filter(fits).count() as u64
    };
    let shortened = count("session.shortened", "");
    assert!(shortened >= turns / 100, "{shortened}");
    // More than one where a slow machine makes a turn take too long.
    let workers = count("sandbox.created", "ai-provider");
    assert!(workers < turns / 10, "{workers} workers for {turns} turns");
    assert!(count("policy.decision", "model.generate") >= turns);
    stage.ends();
}

#[test]
fn a_worker_that_is_killed_between_two_turns_is_replaced() {
    const PAUSE: &str = "sleep 4.2171";
    let stage = Stage::new(Format::Anthropic, JAVASCRIPT.files);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            // While a command runs, the worker has answered and waits.
            let words = PAUSE.replace(' ', "\0");
            wait_for("the command runs", PATIENCE, || {
                let family = family(&stage);
                let mut lines = family.iter().map(|one| one.line.trim_end_matches('\0'));
                lines.any(|line| line == words).then_some(())
            })
            .unwrap();
            let is_worker =
                |one: &Process| one.line.trim_end_matches('\0').ends_with("worker\0model");
            let workers = family(&stage).into_iter().filter(is_worker);
            let workers: Vec<Pid> = workers.map(|one| one.pid).collect();
            assert_eq!(workers.len(), 1);
            kill_process(workers[0], Signal::KILL).unwrap();
        });
        let played = stage.play(vec![
            Reply::call("shell.exec", json!({"command": PAUSE})),
            Reply::call("fs.read", json!({"path": JAVASCRIPT.source})),
        ]);
        killer.join().unwrap();
        let calls: Vec<String> = played
            .calls()
            .into_iter()
            .map(|call| format!("{} {}", call.tool, call.outcome))
            .collect();
        assert_eq!(calls, ["shell.exec done", "fs.read done"]);
        assert_eq!(played.ended()["result"], "unfinished");
    });
    stage.ends();
}

/// Resident bytes of a process.
fn resident(id: Option<Pid>) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", id?.as_raw_nonzero())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}
