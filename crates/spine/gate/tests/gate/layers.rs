//! The layers of a policy, and changing them while the gate is in use.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use fluffy_gate::bundle::MAX_FILE;
use fluffy_gate::{LoadPolicyError, Watch};
use fluffy_policy::Verdict;
use fluffy_test_kit::wait_for;

use crate::support::{PATIENCE, Stage, put, rules, three_ways, write};

const LOOK: Duration = Duration::from_millis(5);

fn allow_notes() -> String {
    rules(&[["notes", "fs.write", "notes/**", "allow"]])
}

fn deny_source() -> String {
    rules(&[["frozen", "fs.write", "src/**", "deny"]])
}

#[test]
fn an_organisation_that_allows_is_refused_with_its_file() {
    let stage = Stage::with_rules(&three_ways());
    fs::write(stage.organisation(), allow_notes()).unwrap();
    let error = stage.reopen().unwrap_err();
    let LoadPolicyError::Refused {
        path,
        text,
        refused,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((path, text), (stage.organisation(), allow_notes()));
    assert_eq!(refused.first.place.line, 3);
}

#[test]
fn an_organisations_deny_beats_the_projects_allow() {
    let stage = Stage::with_rules(&three_ways());
    // Control: the project alone allows it.
    assert!(stage.gate.authorize(&write("/src/a.rs")).is_ok());
    fs::write(stage.organisation(), deny_source()).unwrap();
    assert!(stage.gate.reload().unwrap());
    let (refusal, _) = stage.refusal(&write("/src/a.rs"));
    assert!(!refusal.is_reviewable());
    let spoke: Vec<String> = refusal
        .decision()
        .spoke()
        .iter()
        .map(|s| s.label.id())
        .collect();
    assert!(
        spoke.contains(&"organisation:frozen".to_owned()),
        "{spoke:?}"
    );
}

#[test]
fn the_users_file_adds() {
    let stage = Stage::with_rules(&three_ways());
    stage.refusal(&write("/notes/today"));
    fs::write(stage.user(), allow_notes()).unwrap();
    assert!(stage.gate.reload().unwrap());
    assert!(stage.gate.authorize(&write("/notes/today")).is_ok());
    assert!(stage.gate.authorize(&write("/src/a.rs")).is_ok());
}

#[test]
fn no_gate_opens_with_a_layer_it_cannot_read() {
    let stage = Stage::with_rules(&three_ways());
    assert!(stage.reopen().is_ok());
    for path in [stage.organisation(), stage.user()] {
        fs::write(&path, "version: 1\ncapabilitys: []\n").unwrap();
        assert!(matches!(
            stage.reopen(),
            Err(LoadPolicyError::Refused { .. })
        ));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(stage.reopen(), Err(LoadPolicyError::Read(_))));
        File::create(&path).unwrap().set_len(MAX_FILE + 1).unwrap();
        assert!(matches!(stage.reopen(), Err(LoadPolicyError::Read(_))));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(stage.reopen(), Err(LoadPolicyError::Read(_))));
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(stage.reopen(), Err(LoadPolicyError::Read(_))));
        fs::remove_file(&path).unwrap();
    }
    assert!(stage.reopen().is_ok());
}

#[test]
fn a_broken_change_leaves_the_old_policy_and_a_corrected_one_counts() {
    let stage = Stage::with_rules(&three_ways());
    let before = stage.gate.policy();
    assert!(!stage.gate.reload().unwrap());

    fs::write(stage.organisation(), "version: 1\ncapabilities: {").unwrap();
    assert!(matches!(
        stage.gate.reload(),
        Err(LoadPolicyError::Refused { .. })
    ));
    assert!(Arc::ptr_eq(&before, &stage.gate.policy()));
    assert!(stage.gate.authorize(&write("/src/a.rs")).is_ok());

    fs::write(stage.organisation(), deny_source()).unwrap();
    assert!(stage.gate.reload().unwrap());
    stage.refusal(&write("/src/a.rs"));
    assert_eq!(
        stage.gate.policy().engine.epoch(),
        before.engine.epoch() + 1
    );
}

fn watched(stage: &Stage) -> (Watch, Receiver<Result<(), LoadPolicyError>>) {
    let (sender, notices) = mpsc::channel();
    let notice = move |result| drop(sender.send(result));
    (Watch::start(&stage.gate, LOOK, notice).unwrap(), notices)
}

#[test]
fn a_watch_tells_of_a_broken_file_once_and_takes_the_corrected_one() {
    let stage = Stage::with_rules(&three_ways());
    let (_watch, notices) = watched(&stage);
    put(&stage.organisation(), "version: 2\n");
    assert!(matches!(
        notices.recv_timeout(PATIENCE),
        Ok(Err(LoadPolicyError::Refused { .. }))
    ));
    assert!(stage.gate.authorize(&write("/src/a.rs")).is_ok());
    // Dozens of looks at the same broken file.
    assert!(matches!(
        notices.recv_timeout(LOOK * 60),
        Err(RecvTimeoutError::Timeout)
    ));

    put(&stage.organisation(), &deny_source());
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Ok(()))));
    stage.refusal(&write("/src/a.rs"));

    // The same fault once more is news again.
    put(&stage.organisation(), "version: 2\n");
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Err(_))));
    stage.refusal(&write("/src/a.rs"));
}

#[test]
fn an_unreadable_file_is_told_of_once_too() {
    let stage = Stage::with_rules(&three_ways());
    let (_watch, notices) = watched(&stage);
    fs::create_dir(stage.user()).unwrap();
    assert!(matches!(
        notices.recv_timeout(PATIENCE),
        Ok(Err(LoadPolicyError::Read(_)))
    ));
    assert!(matches!(
        notices.recv_timeout(LOOK * 60),
        Err(RecvTimeoutError::Timeout)
    ));
    fs::remove_dir(stage.user()).unwrap();
    put(&stage.user(), &allow_notes());
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Ok(()))));
}

#[test]
fn a_dropped_watch_has_no_thread_left() {
    let stage = Stage::new();
    let (watch, notices) = watched(&stage);
    put(&stage.user(), &allow_notes());
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Ok(()))));
    drop(watch);
    // The sender lived in the thread.
    assert!(matches!(
        notices.try_recv(),
        Err(TryRecvError::Disconnected)
    ));
}

#[test]
fn a_watch_ends_with_its_gate() {
    let stage = Stage::new();
    let (_watch, notices) = watched(&stage);
    let Stage {
        gate, home: _home, ..
    } = stage;
    drop(gate);
    wait_for("the watch ends", PATIENCE, || {
        matches!(notices.try_recv(), Err(TryRecvError::Disconnected)).then_some(())
    })
    .unwrap();
}

/// Tells threads to stop, also when the test fails in between.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_decision_during_reloads_is_by_one_policy() {
    const THREADS: usize = 4;
    const RELOADS: u64 = 24;
    let stage = Stage::with_rules(&three_ways());
    let first = stage.gate.policy().engine.epoch();
    let done = AtomicBool::new(false);
    let asked: [AtomicU64; THREADS] = Default::default();
    thread::scope(|scope| {
        let _end = AtTheEnd(&done);
        for counter in &asked {
            let (gate, done) = (&stage.gate, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let _ = gate.authorize(&write("/src/a.rs"));
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..RELOADS {
            let before: Vec<u64> = asked.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            wait_for("every thread decides under this policy", PATIENCE, || {
                let moved =
                    |(now, then): (&AtomicU64, &u64)| now.load(Ordering::Relaxed) > *then + 1;
                asked.iter().zip(&before).all(moved).then_some(())
            })
            .unwrap();
            let text = if round % 2 == 0 {
                deny_source()
            } else {
                allow_notes()
            };
            put(&stage.user(), &text);
            assert!(stage.gate.reload().unwrap());
        }
    });
    stage.ledger.flush_blocking().unwrap();

    let mut by_epoch = BTreeMap::new();
    for record in stage.gate.decisions(usize::MAX).unwrap() {
        if record.request.action != "fs.write" {
            continue;
        }
        let said = (record.policy, record.verdict);
        assert_eq!(
            *by_epoch.entry(record.epoch).or_insert(said),
            said,
            "a mixture"
        );
    }
    // Nobody need have asked under the very last one.
    for epoch in first..first + RELOADS {
        assert!(by_epoch.contains_key(&epoch), "nothing by epoch {epoch}");
    }
    for (epoch, (_, verdict)) in by_epoch {
        let denied = (epoch - first) % 2 == 1;
        assert_eq!(verdict == Verdict::Deny, denied, "epoch {epoch}");
    }
}

#[test]
fn no_two_policies_share_an_epoch_and_the_last_file_wins() {
    let stage = Stage::with_rules(&three_ways());
    let done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let end = AtTheEnd(&done);
        let reload = || {
            let mut seen = Vec::new();
            while !done.load(Ordering::Relaxed) {
                stage.gate.reload().unwrap();
                let policy = stage.gate.policy();
                seen.push((policy.engine.epoch(), policy.engine.digest()));
            }
            seen
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(reload)).collect();
        let start = stage.gate.policy().engine.epoch();
        for round in 0..200 {
            let text = rules(&[[&format!("r{round}"), "fs.write", "notes/**", "allow"]]);
            put(&stage.user(), &text);
            wait_for("the change is taken", PATIENCE, || {
                (stage.gate.policy().engine.epoch() > start + round).then_some(())
            })
            .unwrap();
        }
        drop(end);
        let seen = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        seen.collect::<Vec<_>>()
    });
    let mut by_epoch = BTreeMap::new();
    for (epoch, digest) in seen {
        assert_eq!(
            *by_epoch.entry(epoch).or_insert(digest),
            digest,
            "epoch {epoch}"
        );
    }
    assert!(
        !stage.gate.reload().unwrap(),
        "what is in force is not what the files say"
    );
}
