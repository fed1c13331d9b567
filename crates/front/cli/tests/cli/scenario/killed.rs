//! kill -9 of the kernel or its launcher at random moments of a session: the
//! client finds another kernel, and the session ends as if nothing happened.
//!
//! Seeded; a failure prints the seed, and `FLUFFY_SEED` replays it.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fluffy_model_server::Format;
use fluffy_test_kit::{Seed, campaign};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::languages::JAVASCRIPT;
use super::script;
use super::stage::Stage;
use crate::agent::socket;

#[test]
fn a_session_whose_kernel_is_killed_ends_as_if_it_were_not() {
    let seed = Seed::from_environment();
    eprintln!("seed {}", seed.value());
    let mut longest = Duration::from_secs(3);
    for round in 0..campaign(4, 100) {
        let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
        let words = stage.prepare(script(&JAVASCRIPT, JAVASCRIPT.solved));
        let mut child = stage
            .site
            .context
            .command()
            .args(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        // Before its first event there is no session that could be resumed.
        stdout.read_line(&mut printed).unwrap();
        let begun = Instant::now();
        let micros = u64::try_from(longest.as_micros()).unwrap().max(1);
        let moment = begun + Duration::from_micros(seed.choice(2 * round) % micros);
        let mut is_over = false;
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            rest
        });
        while Instant::now() < moment && !is_over {
            is_over = child.try_wait().unwrap().is_some();
            std::thread::yield_now();
        }
        if is_over {
            longest = begun.elapsed();
        } else {
            kill(&stage, seed.choice(2 * round + 1));
        }
        let output = child.wait_with_output().unwrap();
        printed.push_str(&rest.join().unwrap());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Option<Value> = printed
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok());
        let result = last.as_ref().map(|event| event["result"].clone());
        assert_eq!(
            (output.status.code(), result),
            (Some(0), Some(Value::from("verified"))),
            "round {round}\n{printed}\n{said}"
        );
        let (files, messages) = stage.commits();
        let mut both = vec![JAVASCRIPT.source, JAVASCRIPT.test];
        both.sort_unstable();
        assert_eq!(files, both, "round {round}");
        assert_eq!(messages.matches("Fluffy-Session").count(), 1, "{messages}");
        assert_eq!(stage.git(&["status", "--porcelain"]), "");
        stage.site.succeeds(&["audit", "verify"]);
        stage.ends();
    }
}

/// Kills the kernel of this project, or every other time its launcher.
fn kill(stage: &Stage, choice: u64) {
    let socket = socket(&stage.site).to_string_lossy().into_owned();
    let kernel =
        processes().find(|(_, line)| line.contains("worker\0kernel") && line.contains(&socket));
    let Some((kernel, _)) = kernel else { return };
    // Both are children of the bootstrap.
    let bootstrap = parent(kernel);
    let launcher = processes()
        .find(|(pid, line)| line.contains("worker\0launcher") && parent(*pid) == bootstrap);
    let target = match launcher {
        Some((launcher, _)) if choice.is_multiple_of(2) => launcher,
        _ => kernel,
    };
    // It may just have ended by itself.
    let _ = kill_process(target, Signal::KILL);
}

pub(crate) fn processes() -> impl Iterator<Item = (Pid, String)> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid = entry
            .file_name()
            .to_str()?
            .parse()
            .ok()
            .and_then(Pid::from_raw)?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        Some((pid, line))
    })
}

pub(crate) fn parent(pid: Pid) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok()
}
