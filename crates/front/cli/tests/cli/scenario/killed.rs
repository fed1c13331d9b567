//! kill -9 of each part of a session at random moments: the client, the
//! kernel, the launcher, the egress process or bootstrap, the model's worker,
//! a running tool. The session ends as if nothing had happened, at once or when
//! it is resumed.
//!
//! Seeded; a failure prints the seed, and `FLUFFY_SEED` replays it.

mod victim;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fluffy_model_server::{Format, Reply};
use fluffy_test_kit::{Seed, campaign, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use self::victim::Victim;
use super::family::{Process, alive, family};
use super::languages::JAVASCRIPT;
use super::script;
use super::stage::Stage;

/// Far beyond what anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at who runs.
const LOOK: Duration = Duration::from_millis(1);
/// How many rounds more there are while nobody was killed.
const MISSED: u64 = 8;
/// How often a session is resumed before that counts as in vain.
const RESUMED: usize = 3;

#[test]
fn a_session_whose_kernel_is_killed_ends_as_if_it_were_not() {
    Rounds::new(Victim::Kernel).play(campaign(2, 100));
}

#[test]
fn a_session_whose_launcher_is_killed_ends_as_if_it_were_not() {
    Rounds::new(Victim::Launcher).play(campaign(2, 100));
}

#[test]
fn a_session_whose_egress_process_or_bootstrap_is_killed_ends_as_if_it_were_not() {
    Rounds::new(Victim::Beside).play(campaign(2, 100));
}

#[test]
fn a_session_whose_client_is_killed_ends_when_it_is_resumed() {
    Rounds::new(Victim::Client).play(campaign(3, 100));
}

#[test]
fn a_session_whose_model_worker_is_killed_ends_when_it_is_resumed() {
    Rounds::new(Victim::Model).play(campaign(3, 100));
}

#[test]
fn a_session_whose_tool_is_killed_ends_as_if_it_were_not() {
    Rounds::new(Victim::Tool).play(campaign(3, 100));
}

/// Rounds with one kind of victim, each with a project of its own.
struct Rounds {
    victim: Victim,
    seed: Seed,
    /// The latest moment of a kill: how long a session takes.
    longest: Duration,
    killed: u64,
}

impl Rounds {
    fn new(victim: Victim) -> Self {
        let seed = Seed::from_environment();
        eprintln!("seed {}", seed.value());
        Self {
            victim,
            seed,
            longest: Duration::from_secs(3),
            killed: 0,
        }
    }

    /// So many rounds, and more while every session ended before its moment;
    /// each of these says how long one takes, so the next is likelier to meet it.
    fn play(mut self, rounds: u64) {
        let mut round = 0;
        while round < rounds || self.killed == 0 && round < rounds + MISSED {
            self.round(round);
            eprintln!("{:?}: round {round} is over", self.victim);
            round += 1;
        }
        eprintln!("{:?}: {} of {round} were killed", self.victim, self.killed);
        assert!(self.killed > 0, "nobody was ever killed");
    }

    fn round(&mut self, round: u64) {
        let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
        let words = match self.victim {
            // Whose tool died knows it, and tries again.
            Victim::Tool => stage.prepare_by_state(say),
            _ => stage.prepare(script(&JAVASCRIPT, JAVASCRIPT.solved)),
        };
        let mut running = Running::start(&stage, &words);
        let mut there = self.strike(&stage, &mut running, round);
        let session = running.session.clone();
        let mut ended = running.end();
        for _ in 0..RESUMED {
            // These two are not restarted by anybody else.
            if ended.is_verified() || !matches!(self.victim, Victim::Client | Victim::Model) {
                break;
            }
            let words = ["session", "resume", "--json", &session].map(str::to_owned);
            ended = Running::start(&stage, &words).end();
        }
        let Ended { printed, said, .. } = &ended;
        assert!(ended.is_verified(), "round {round}\n{printed}\n{said}");
        let (files, messages) = stage.commits();
        let mut both = vec![JAVASCRIPT.source, JAVASCRIPT.test];
        both.sort_unstable();
        assert_eq!(files, both, "round {round}");
        assert_eq!(messages.matches("Fluffy-Session").count(), 1, "{messages}");
        assert_eq!(stage.git(&["status", "--porcelain"]), "");
        let read = |path: &str| std::fs::read_to_string(stage.file(path)).unwrap();
        assert_eq!(read(JAVASCRIPT.source), JAVASCRIPT.solved);
        assert_eq!(read(JAVASCRIPT.test), JAVASCRIPT.test_text);
        stage.site.succeeds(&["audit", "verify"]);
        // Of the kernel that came after, if one did.
        there.extend(family(&stage));
        stage.ends();
        wait_for("nobody is left", PATIENCE, || {
            there.iter().all(|one| !alive(one)).then_some(())
        })
        .unwrap();
    }

    /// Kills at the round's moment, or when there is somebody to kill after
    /// it; all processes of the session then, so that none is forgotten.
    fn strike(&mut self, stage: &Stage, running: &mut Running, round: u64) -> Vec<Process> {
        let begun = Instant::now();
        let micros = u64::try_from(self.longest.as_micros()).unwrap().max(1);
        let moment = begun + Duration::from_micros(self.seed.choice(2 * round) % micros);
        loop {
            if running.child.try_wait().unwrap().is_some() {
                self.longest = begun.elapsed();
                return Vec::new();
            }
            if Instant::now() < moment {
                std::thread::sleep(LOOK);
                continue;
            }
            let there = family(stage);
            let choice = self.seed.choice(2 * round + 1);
            let client = Pid::from_child(&running.child);
            if let Some(victim) = self.victim.choose(&there, client, choice) {
                // It has spoken to its client, so it is there.
                assert!(self.victim == Victim::Kernel || !there.is_empty());
                // It may just have ended by itself.
                self.killed += u64::from(kill_process(victim, Signal::KILL).is_ok());
                return there;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// What a model says that knows only where the workflow stands.
fn say(state: &str) -> Reply {
    let write = |path: &str, content: &str| {
        Reply::call("fs.write", json!({"path": path, "content": content}))
    };
    match state {
        "planning" => Reply::call(
            "plan.complete",
            json!({"summary": "Lines without = are left out"}),
        ),
        "test_writing" => {
            write(JAVASCRIPT.test, JAVASCRIPT.test_text).and_call("test.run", json!({}))
        }
        "code_writing" => write(JAVASCRIPT.source, JAVASCRIPT.solved)
            .and_call("workflow.transition", json!({"to": "validating"})),
        _ => Reply::call("workflow.transition", json!({"to": "validating"})),
    }
}

/// A client that works on a session.
struct Running {
    child: Child,
    session: String,
    first: String,
    rest: std::thread::JoinHandle<String>,
}

impl Running {
    /// Starts it, and waits for its first event: before that there is no
    /// session that could be resumed.
    fn start(stage: &Stage, words: &[String]) -> Self {
        let mut child = stage
            .site
            .context
            .command()
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        let event: Option<Value> = serde_json::from_str(&first).ok();
        let session = event.as_ref().and_then(|event| event["session"].as_str());
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            // What a killed client began to print may end anywhere.
            let _ = stdout.read_to_string(&mut rest);
            rest
        });
        Self {
            session: session.unwrap_or_default().to_owned(),
            child,
            first,
            rest,
        }
    }

    fn end(self) -> Ended {
        let output = self.child.wait_with_output().unwrap();
        Ended {
            code: output.status.code(),
            printed: self.first + &self.rest.join().unwrap(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// How a client ended, and what it said.
struct Ended {
    code: Option<i32>,
    printed: String,
    said: String,
}

impl Ended {
    fn is_verified(&self) -> bool {
        let last = self.printed.lines().last();
        let last: Option<Value> = last.and_then(|line| serde_json::from_str(line).ok());
        self.code == Some(0) && last.is_some_and(|event| event["result"] == "verified")
    }
}
