//! kill -9 of `fluffy` or its launcher at random moments of a whole run:
//! create, command, merge, clean-up. Afterwards nothing is left, and the
//! project is before, after, or on its way with a merge that can be resumed.
//!
//! Seeded; a failure prints the seed, and `FLUFFY_SEED` replays it.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fluffy_test_kit::{Seed, campaign, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::site::Site;

const PATIENCE: Duration = Duration::from_secs(60);
const FILES: usize = 12;
/// Marks every process of this campaign on the host.
const MARK: &str = "86420.25";

#[test]
fn a_kill_at_any_moment_leaves_nothing_and_loses_nothing() {
    let seed = Seed::from_environment();
    eprintln!("seed {}", seed.value());
    let site = Site::empty();
    let mut longest = Duration::from_millis(400);
    for round in 0..campaign(20, 200) {
        lay(&site, round);
        let mut child = start(&site, round);
        let micros = u64::try_from(longest.as_micros()).unwrap().max(1);
        let moment = Duration::from_micros(seed.choice(2 * round) % micros);
        let begun = Instant::now();
        let ended = wait_until(&mut child, begun + moment);
        if ended {
            // It was over before the kill: the moments were spread too wide.
            longest = begun.elapsed();
        } else {
            kill(&child, seed.choice(2 * round + 1));
            child.wait().unwrap();
        }
        settle(&site, round);
        assert_clean(&site, round);
    }
}

fn name(file: usize) -> String {
    format!("file-{file}.txt")
}

/// What a file says before and after a round.
fn texts(round: u64, file: usize) -> (String, String) {
    (
        format!("before {round} {file}\n"),
        format!("after {round} {file}\n"),
    )
}

fn lay(site: &Site, round: u64) {
    for file in 0..FILES {
        site.context
            .write(&name(file), &texts(round, file).0)
            .unwrap();
    }
}

fn start(site: &Site, round: u64) -> Child {
    let script = format!(
        "(setsid sleep {MARK} &); for i in $(seq 0 {}); do echo after {round} $i > file-$i.txt; done",
        FILES - 1
    );
    site.context
        .command()
        .args([
            "sandbox", "run", "--merge", "--yes", "--", "sh", "-c", &script,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_until(child: &mut Child, moment: Instant) -> bool {
    while Instant::now() < moment {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Kills the command or, every other time, the launcher it started. Without
/// its launcher the command must end by itself.
fn kill(child: &Child, choice: u64) {
    let own = Pid::from_child(child);
    let launcher = children(own)
        .into_iter()
        .find(|pid| command_line(*pid).contains("launcher"));
    let target = match launcher {
        Some(launcher) if choice.is_multiple_of(2) => launcher,
        _ => own,
    };
    // It may just have ended by itself.
    let _ = kill_process(target, Signal::KILL);
}

fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().get();
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task"));
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|line| {
            line.split_whitespace()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn command_line(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default()
}

/// What a person does next: looks, and resumes what was interrupted.
fn settle(site: &Site, round: u64) {
    let listed = site.context.run(&["layer", "list", "--json"]).unwrap();
    assert_eq!(listed.code, Some(0), "round {round}: {}", listed.stderr);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let layers = listed["layers"].as_array().unwrap();
    let now = states(site, round);
    let interrupted: Vec<&Value> = layers
        .iter()
        .filter(|layer| layer["state"] == "merging")
        .collect();
    let mixed = now.contains(&State::Before) && now.contains(&State::After);
    assert!(
        !mixed || !interrupted.is_empty(),
        "round {round}: half merged and nothing to resume: {now:?}"
    );
    for layer in layers {
        let id = layer["id"].as_str().unwrap();
        let verb = if interrupted.contains(&layer) {
            "merge"
        } else {
            "drop"
        };
        let ended = site.context.run(&["layer", verb, id, "--yes"]).unwrap();
        assert_eq!(
            ended.code,
            Some(0),
            "round {round}: {verb}: {}",
            ended.stderr
        );
    }
    if !interrupted.is_empty() {
        let now = states(site, round);
        assert!(
            now.iter().all(|state| *state == State::After),
            "round {round}: resumed, and yet {now:?}"
        );
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    After,
    Neither,
}

fn states(site: &Site, round: u64) -> Vec<State> {
    let states: Vec<State> = (0..FILES)
        .map(|file| {
            let text = std::fs::read_to_string(site.context.project().join(name(file)));
            let (before, after) = texts(round, file);
            match text.unwrap_or_default() {
                text if text == before => State::Before,
                text if text == after => State::After,
                _ => State::Neither,
            }
        })
        .collect();
    assert!(
        !states.contains(&State::Neither),
        "round {round}: {states:?}"
    );
    states
}

/// After the next start no process, mount, group or record is left.
fn assert_clean(site: &Site, round: u64) {
    let next = site.context.run(&["sandbox", "run", "--", "true"]).unwrap();
    assert_eq!(next.code, Some(0), "round {round}: {}", next.stderr);
    wait_for("no process of the round to be left", PATIENCE, || {
        running(MARK).is_empty().then_some(())
    })
    .unwrap();
    let home = site.context.home();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(home.to_str().unwrap()),
        "round {round}: {mounts}"
    );
    let left = files_below(&home, "launchers");
    assert!(left.is_empty(), "round {round}: {left:?}");
    let strange: Vec<_> = std::fs::read_dir(site.context.project())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("file-") && name != ".fluffy")
        .collect();
    assert!(strange.is_empty(), "round {round}: {strange:?}");
}

/// Processes of the host with this word in their command line.
fn running(word: &str) -> Vec<String> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok())
        .filter(|line| line.starts_with("sleep") && line.contains(word))
        .collect()
}

/// What lies in directories of this name.
fn files_below(root: &Path, directory: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
            if at.ends_with(directory) {
                found.push(entry.path());
            }
        }
    }
    found
}
