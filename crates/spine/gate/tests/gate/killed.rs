//! Kill -9 at random moments while policies are applied one after another.
//!
//! The test starts itself again as a child, kills it and looks at what is
//! left: one whole bundle, and an event that accounts for it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use fluffy_base::{ManualClock, Timestamp};
use fluffy_gate::{Bundle, Gate};
use fluffy_ledger::Event;
use fluffy_test_kit::{Seed, campaign};

use crate::support::{
    PATIENCE, events, open_gate, open_ledger, payload, pins, three_ways, update_request,
};

const CHILD_ENV: &str = "FLUFFY_GATE_CHILD";
const TEST: &str = "killed::a_killed_update_leaves_one_whole_policy_and_its_event";

/// Each generation differs in its rules and in its extension; every third goes
/// back to the first, whose copy is there already.
fn generation(number: usize) -> Bundle {
    let number = if number.is_multiple_of(3) { 0 } else { number };
    let script = format!(
        "// {number}\nexport const actions = [\"net.connect\"];\nexport function evaluate(r) {{ return \"pass\"; }}\n"
    );
    Bundle {
        policy: format!("# {number}\n{}", three_ways()),
        extensions: BTreeMap::from([("guard".to_owned(), script)]),
    }
}

fn gate_in(home: &Path) -> Gate {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(0)));
    open_gate(home, &open_ledger(home), &clock).unwrap()
}

#[test]
fn a_killed_update_leaves_one_whole_policy_and_its_event() {
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        apply_for_ever(Path::new(&home));
    }
    let seed = Seed::from_environment();
    let home = tempfile::tempdir().unwrap();
    let gate = gate_in(home.path());
    let first = gate.propose(generation(0), 0).unwrap();
    gate.update(&first, &update_request()).unwrap();
    drop(gate);
    let mut applied = 0;
    for round in 0..campaign(20, 200) {
        applied += kill_at_some_moment(home.path(), &seed, round);
        invariant_one_whole_policy_that_an_event_accounts_for(home.path());
    }
    assert!(applied > 0, "nothing was ever applied");
}

/// Applies one generation after another; prints each.
fn apply_for_ever(home: &Path) -> ! {
    let gate = gate_in(home);
    let mut out = std::io::stdout();
    let of_update = |event: &&Event| event.event_type == "policy.update";
    let start = events(&open_ledger(home)).iter().filter(of_update).count();
    for number in start.. {
        let proposal = gate.propose(generation(number), 0).unwrap();
        writeln!(out, "begin {number}").unwrap();
        gate.update(&proposal, &update_request()).unwrap();
        writeln!(out, "applied {number}").unwrap();
    }
    unreachable!("it only ends with the process")
}

/// Waits for some lines and a random while longer; how many were applied.
fn kill_at_some_moment(home: &Path, seed: &Seed, round: u64) -> usize {
    let choice = |step| seed.choice(round * 3 + step);
    let mut child = Killable::start(home);
    let wanted = match choice(0) % 6 {
        0 => 0,
        _ => 1 + choice(1) % 5,
    };
    let mut lines = Vec::new();
    while (lines.len() as u64) < wanted {
        let line = child
            .line_until(Instant::now() + PATIENCE)
            .expect("the child works");
        // The test harness prints lines of its own.
        lines.extend(Some(line).filter(|line| is_ours(line)));
    }
    let moment = Instant::now() + Duration::from_micros(choice(2) % 40_000);
    while let Some(line) = child.line_until(moment) {
        lines.push(line);
    }
    lines.extend(child.kill());
    lines
        .iter()
        .filter(|line| line.starts_with("applied "))
        .count()
}

fn is_ours(line: &str) -> bool {
    line.starts_with("begin ") || line.starts_with("applied ")
}

fn invariant_one_whole_policy_that_an_event_accounts_for(home: &Path) {
    let current = pins(home)
        .current()
        .expect("one whole policy")
        .expect("some policy");
    let digest = current.digest().to_string();
    let events = events(&open_ledger(home));
    let updates: Vec<_> = events
        .iter()
        .filter(|event| event.event_type == "policy.update")
        .map(payload)
        .collect();
    let last = updates.last().expect("the first was recorded");
    assert!(
        last["to"] == *digest || last["from"] == *digest,
        "in force is {digest}, the last event is {last}"
    );
    // Whole means byte for byte what was applied.
    let number = current
        .policy
        .lines()
        .next()
        .unwrap()
        .trim_start_matches("# ");
    assert_eq!(current, generation(number.parse().unwrap()));
    // And the gate opens with it.
    assert_eq!(gate_in(home).policy().pinned, Some(current.digest()));
}

/// This binary, running the test above as a child.
struct Killable {
    child: Child,
    lines: Receiver<String>,
}

impl Killable {
    fn start(home: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(CHILD_ENV, home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    fn line_until(&self, deadline: Instant) -> Option<String> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).ok()
    }

    /// Kills it without warning; what it still printed before that.
    fn kill(&mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.lines.iter().collect()
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        // An error only says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
