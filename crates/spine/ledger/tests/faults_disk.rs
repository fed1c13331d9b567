//! A full disk, a size limit, a read-only disk, a clock set back, two processes.
//!
//! A full disk is a small tmpfs where the system lets us mount one; the size
//! limit works everywhere. Both must end in the same typed error.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod faults;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use faults::{CHILD_ENV, Worker, check_after, check_chain, operational, security};
use fluffy_base::{Digest, ManualClock, Timestamp};
use fluffy_ledger::verify::{VerifyOptions, verify_path};
use fluffy_ledger::{AppendError, Appended, Ledger, LedgerOptions, SalvageError, StoreError};
use fluffy_test_kit::record_skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

/// A file system of its own, in memory.
struct SmallDisk {
    _home: tempfile::TempDir,
    path: PathBuf,
}

impl SmallDisk {
    /// None if the system does not let us mount.
    fn mount(size: &str) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("disk");
        fs::create_dir(&path).unwrap();
        let disk = Self { _home: home, path };
        disk.run(&["mount", "-t", "tmpfs", "-o", size, "tmpfs"])
            .then_some(disk)
    }

    fn run(&self, command: &[&str]) -> bool {
        let (program, arguments) = command.split_first().unwrap();
        let output = Command::new(program)
            .args(arguments)
            .arg(&self.path)
            .output();
        output.is_ok_and(|output| output.status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.run(&["umount", "-l"]);
    }
}

/// Appends until it fails; the last that was stored, and how it failed.
fn append_until_it_fails(ledger: &Ledger) -> (Appended, AppendError) {
    let mut last = ledger.append_blocking(security("s", json!({}))).unwrap();
    for n in 0..10_000 {
        match ledger.append_blocking(security("s", json!({"n": n, "text": "x".repeat(5_000)}))) {
            Ok(appended) => last = appended,
            Err(error) => return (last, error),
        }
    }
    panic!("the disk never got full");
}

/// What must hold when there is no space, and after there is again.
fn invariant_full_is_typed_and_passes(ledger: &Ledger, make_space: impl FnOnce()) {
    let (last, error) = append_until_it_fails(ledger);
    assert!(
        matches!(error, AppendError::Store(StoreError::Full(_))),
        "{error:?}"
    );
    let end = check_chain(ledger);
    assert_eq!(
        (end.seq, end.hash),
        (last.last_seq, last.hash),
        "nothing half-written"
    );
    let buffered = ledger
        .record(operational("s", json!({"buffered": true})))
        .unwrap();
    let again = ledger.append_blocking(security("s", json!({"text": "x".repeat(200_000)})));
    assert!(
        matches!(again, Err(AppendError::Store(StoreError::Full(_)))),
        "{again:?}"
    );
    assert_eq!(check_chain(ledger), end, "still nothing half-written");
    make_space();
    let appended = ledger
        .append_blocking(security("s", json!({"after": true})))
        .unwrap();
    assert_eq!(
        buffered.seq(),
        Some(end.seq + 1),
        "what was buffered came first"
    );
    assert_eq!(appended.last_seq, end.seq + 2);
    assert_eq!(check_chain(ledger).seq, appended.last_seq);
}

#[test]
fn a_full_disk_is_a_typed_error_and_passes() {
    let Some(disk) = SmallDisk::mount("size=6m") else {
        record_skip(
            "a_full_disk_is_a_typed_error_and_passes",
            "tmpfs can't be mounted",
        );
        return;
    };
    let ledger = Ledger::open(&disk.path.join("ledger"), LedgerOptions::default()).unwrap();
    check_chain(&ledger);
    let filler = disk.path.join("filler");
    fs::write(&filler, vec![0; 4 << 20]).unwrap();
    invariant_full_is_typed_and_passes(&ledger, || fs::remove_file(&filler).unwrap());
    drop(ledger);
    let options = VerifyOptions::default();
    assert_eq!(
        verify_path(&disk.path.join("ledger"), &options)
            .unwrap()
            .verdict,
        Ok(())
    );
}

#[test]
fn a_size_limit_is_a_typed_error_and_passes() {
    const NAME: &str = "a_size_limit_is_a_typed_error_and_passes";
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        let ledger =
            Ledger::open(&Path::new(&home).join("ledger"), LedgerOptions::default()).unwrap();
        check_chain(&ledger);
        let before = getrlimit(Resource::Fsize);
        let limit = Rlimit {
            current: Some(512 * 1024),
            ..before
        };
        setrlimit(Resource::Fsize, limit).unwrap();
        invariant_full_is_typed_and_passes(&ledger, || setrlimit(Resource::Fsize, before).unwrap());
        return;
    }
    let home = tempfile::tempdir().unwrap();
    // An ignored signal stays ignored in the program that the shell becomes;
    // otherwise the limit would end the process instead of failing the write.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" --exact \"$1\" --nocapture"]);
    shell.arg(std::env::current_exe().unwrap()).arg(NAME);
    let output = shell.env(CHILD_ENV, home.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let options = VerifyOptions::default();
    assert_eq!(
        verify_path(&home.path().join("ledger"), &options)
            .unwrap()
            .verdict,
        Ok(())
    );
}

#[test]
fn a_read_only_disk_is_refused_and_can_still_be_verified() {
    const NAME: &str = "a_read_only_disk_is_refused_and_can_still_be_verified";
    let Some(disk) = SmallDisk::mount("size=6m") else {
        record_skip(NAME, "tmpfs can't be mounted");
        return;
    };
    let directory = disk.path.join("ledger");
    let ledger = Ledger::open(&directory, LedgerOptions::default()).unwrap();
    ledger.append_blocking(security("s", json!({}))).unwrap();
    drop(ledger);
    assert!(disk.run(&["mount", "-o", "remount,ro"]));
    Ledger::open(&directory, LedgerOptions::default()).expect_err("it can't be written");
    let error = Ledger::open_or_salvage(&directory, LedgerOptions::default()).unwrap_err();
    assert!(
        !matches!(error, SalvageError::InUse { .. }),
        "it is not damaged: {error:?}"
    );
    let options = VerifyOptions::default();
    let verification = verify_path(&directory, &options).unwrap();
    assert_eq!((verification.verdict, verification.events), (Ok(()), 1));
}

#[test]
fn a_clock_set_back_is_harmless() {
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000_000)));
    let options = LedgerOptions {
        clock: clock.clone(),
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(home.path(), options.clone()).unwrap();
    ledger
        .append_blocking(security("s", json!({"n": 1})))
        .unwrap();
    clock.set(Timestamp::from_micros(-5));
    ledger
        .append_blocking(security("s", json!({"n": 2})))
        .unwrap();
    drop(ledger);
    clock.set(Timestamp::MIN);
    let recovered = Ledger::open_or_salvage(home.path(), options).unwrap();
    assert_eq!(recovered.salvage, None);
    recovered
        .ledger
        .append_blocking(security("s", json!({"n": 3})))
        .unwrap();
    let events = recovered.ledger.read(1, 10).unwrap();
    let told: Vec<(u64, i64)> = events
        .iter()
        .map(|e| (e.seq, e.occurred_at.as_micros()))
        .collect();
    assert_eq!(
        told,
        [(1, 1_000_000_000), (2, -5), (3, Timestamp::MIN.as_micros())]
    );
    assert_eq!(check_chain(&recovered.ledger).seq, 3);
}

#[test]
fn two_processes_append_to_one_chain() {
    const NAME: &str = "two_processes_append_to_one_chain";
    const EACH: u64 = 100;
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        append_from_four_threads(Path::new(&home), EACH);
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let workers = [
        Worker::start(NAME, home.path()),
        Worker::start(NAME, home.path()),
    ];
    let mut acknowledged = BTreeMap::new();
    for worker in workers {
        let (lines, passed) = worker.finish();
        assert!(passed, "{lines:?}");
        for line in lines.iter().filter_map(|line| line.strip_prefix("ack ")) {
            let (seq, hash) = line.split_once(' ').unwrap();
            let other =
                acknowledged.insert(seq.parse::<u64>().unwrap(), hash.parse::<Digest>().unwrap());
            assert_eq!(other, None, "event {seq} was acknowledged twice");
        }
    }
    assert_eq!(acknowledged.len() as u64, 2 * 4 * EACH);
    let ledger = faults::open(home.path());
    let genesis = faults::Checked {
        seq: 0,
        hash: ledger.genesis().hash(),
    };
    let end = check_after(&ledger, genesis, |event| {
        assert_eq!(acknowledged.get(&event.seq), Some(&event.hash));
    });
    assert_eq!(end.seq, 2 * 4 * EACH);
}

fn append_from_four_threads(home: &Path, each: u64) {
    let ledger = faults::open(home);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..each {
                    // One aggregate for all, so that versions meet as well.
                    let appended = ledger
                        .append_blocking(security("shared", json!({"n": n})))
                        .unwrap();
                    let line = format!("ack {} {}\n", appended.last_seq, appended.hash);
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}
