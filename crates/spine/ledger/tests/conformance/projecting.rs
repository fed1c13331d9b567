//! Cases of projections: exactly once, rebuilding, waiting, halting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use fluffy_ledger::{
    Actor, Aggregate, ApplyError, Domain, Draft, HaltReason, Ledger, Projection, ProjectionState,
    Projector, StartProjectorError, UnfitPayload, Upcasters, ViewError, WaitError,
};
use fluffy_test_kit::{Seed, campaign, wait_for};
use serde_json::json;

use super::tally::{NAME, Tally, counted, counts, start};
use super::{LIMIT, Place, append_many, child, draft};

fn level(ledger: &Ledger, projector: &Projector) -> u64 {
    let head = ledger.head().unwrap().seq;
    projector.wait_for_blocking(NAME, head, LIMIT).unwrap();
    head
}

fn halted(projector: &Projector) -> (u64, Arc<HaltReason>) {
    wait_for("the projection halts", LIMIT, || {
        match projector.progress(NAME).unwrap().state {
            ProjectionState::Halted { seq, reason } => Some((seq, reason)),
            _ => None,
        }
    })
    .unwrap()
}

fn typed(event_type: &str, number: u64) -> Draft {
    let aggregate = Aggregate::new("session", "a");
    Draft::new(Domain::Agent, aggregate, event_type, Actor::system("test"))
        .payload(json!({"number": number}))
}

pub(crate) fn events_are_applied_once_through_restarts(place: &impl Place) {
    let ledger = place.open();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            append_many(&ledger, "a", 1_500);
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            // Stops in the middle of whatever it is doing.
            start(&ledger, Tally::new()).stop();
        }
    });
    let projector = start(&ledger, Tally::new());
    level(&ledger, &projector);
    assert_eq!(counted(&projector), 1_500);
    assert_eq!(projector.lag(NAME).unwrap(), 0);
}

pub(crate) fn two_projectors_apply_once_between_them(place: &impl Place) {
    let (one, other) = (place.open(), place.open());
    let projectors = [start(&one, Tally::new()), start(&other, Tally::new())];
    thread::scope(|scope| {
        scope.spawn(|| append_many(&one, "a", 400));
        scope.spawn(|| append_many(&other, "b", 400));
    });
    for projector in &projectors {
        assert_eq!(level(&one, projector), 800);
        assert_eq!(counted(projector), 800);
    }
}

pub(crate) fn projectors_may_start_at_the_same_moment(place: &impl Place) {
    const STARTERS: usize = 4;
    let ledger = place.open();
    append_many(&ledger, "a", 700);
    let together = Barrier::new(STARTERS);
    thread::scope(|scope| {
        for _ in 0..STARTERS {
            scope.spawn(|| {
                together.wait();
                let projector = start(&ledger, Tally::new());
                level(&ledger, &projector);
                assert_eq!(counted(&projector), 700);
            });
        }
    });
}

pub(crate) fn a_killed_projector_applied_once(place: &impl Place) {
    let seed = Seed::from_environment();
    let ledger = place.open();
    for round in 0..campaign(3, 30) {
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Ordering::Acquire) {
                    append_many(&ledger, "a", 20);
                }
            });
            let mut child = child::project(place);
            // Kills it somewhere in the middle of its work.
            let enough = ledger.head().unwrap().seq + seed.choice(round) % 400;
            let grown = wait_for("the ledger grows", LIMIT, || {
                (ledger.head().unwrap().seq >= enough).then_some(())
            });
            child.kill().unwrap();
            child.wait().unwrap();
            end.store(true, Ordering::Release);
            grown.unwrap();
        });
    }
    let projector = start(&ledger, Tally::new());
    let head = level(&ledger, &projector);
    assert_eq!(counted(&projector), i64::try_from(head).unwrap());
    assert!(projector.rebuild(NAME).unwrap().is_equal());
}

pub(crate) fn a_rebuild_under_load_is_equal(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 1_200);
    let projector = start(&ledger, Tally::new());
    level(&ledger, &projector);
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Bounded, or a slow machine would have ever more to rebuild.
            for _ in (0..300).take_while(|_| !end.load(Ordering::Acquire)) {
                append_many(&ledger, "b", 10);
            }
        });
        let rebuilt = [projector.rebuild(NAME), projector.rebuild(NAME)];
        end.store(true, Ordering::Release);
        for rebuilt in rebuilt {
            let rebuilt = rebuilt.unwrap();
            assert!(rebuilt.is_equal(), "{rebuilt:?}");
            assert!(rebuilt.seq >= 1_200);
        }
    });
    let head = level(&ledger, &projector);
    assert_eq!(counted(&projector), i64::try_from(head).unwrap());
    let before = projector.digest(NAME).unwrap();
    assert_eq!(before.seq, head);
    assert_eq!(projector.rebuild(NAME).unwrap().after, before.digest);
    append_many(&ledger, "c", 1);
    level(&ledger, &projector);
    assert_ne!(projector.digest(NAME).unwrap().digest, before.digest);
}

pub(crate) fn waiting_ends_with_the_event_or_the_time(place: &impl Place) {
    let ledger = place.open();
    let projector = start(&ledger, Tally::new());
    for number in 1..=20 {
        let seq = ledger.append_blocking(draft("a", number)).unwrap().last_seq;
        projector.wait_for_blocking(NAME, seq, LIMIT).unwrap();
        assert_eq!(counts(&projector)["a"], i64::try_from(number).unwrap());
    }
    let error = projector
        .wait_for_blocking(NAME, 21, Duration::from_millis(1))
        .unwrap_err();
    assert!(
        matches!(error, WaitError::Timeout { applied: 20, .. }),
        "{error:?}"
    );
    let error = projector.wait_for_blocking("other", 1, LIMIT).unwrap_err();
    assert!(matches!(error, WaitError::Unknown { .. }), "{error:?}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        projector.wait_for(NAME, 20, LIMIT).await.unwrap();
        let late = projector.wait_for(NAME, 21, Duration::from_millis(1)).await;
        assert!(
            matches!(late, Err(WaitError::Timeout { applied: 20, .. })),
            "{late:?}"
        );
        let seq = ledger.append(draft("a", 0)).await.unwrap().last_seq;
        projector.wait_for(NAME, seq, LIMIT).await.unwrap();
    });
}

pub(crate) fn an_unknown_event_halts_and_is_not_skipped(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 3);
    ledger.append_blocking(typed("tool.new", 5)).unwrap();
    append_many(&ledger, "a", 3);
    let projector = start(&ledger, Tally::new());
    let (seq, reason) = halted(&projector);
    assert_eq!(seq, 4);
    let HaltReason::Apply(ApplyError::UnknownEvent {
        event_type,
        version: 1,
    }) = &*reason
    else {
        panic!("{reason:?}");
    };
    assert_eq!(event_type, "tool.new");
    projector.wait_for_blocking(NAME, 3, LIMIT).unwrap();
    let error = projector.wait_for_blocking(NAME, 7, LIMIT).unwrap_err();
    assert!(
        matches!(error, WaitError::Halted { seq: 4, .. }),
        "{error:?}"
    );
    assert_eq!((counted(&projector), projector.lag(NAME).unwrap()), (3, 4));
    // Neither time nor a rebuild gets it past; only a newer program does.
    assert_eq!(projector.rebuild(NAME).unwrap().seq, 3);
    assert_eq!(halted(&projector).0, 4);
    projector.stop();
    let projector = start(&ledger, Tally::knowing(&["tool.new"]));
    assert_eq!(level(&ledger, &projector), 7);
    assert_eq!(counted(&projector), 7);
    // A version it does not know is no better than a type.
    ledger
        .append_blocking(draft("a", 0).event_version(2))
        .unwrap();
    assert_eq!(halted(&projector).0, 8);
    assert_eq!(counted(&projector), 7);
}

pub(crate) fn a_panicking_projection_halts(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 2);
    ledger.append_blocking(typed("test.panic", 0)).unwrap();
    let projector = start(&ledger, Tally::new());
    let (seq, reason) = halted(&projector);
    assert_eq!(seq, 3);
    assert!(matches!(*reason, HaltReason::Panicked), "{reason:?}");
    assert_eq!(counted(&projector), 2);
}

pub(crate) fn old_payloads_are_lifted(place: &impl Place) {
    let ledger = place.open();
    let upcasters = Upcasters::default().with(Domain::Agent, "tool.execute", 1, |mut payload| {
        let number = payload.remove("count").ok_or(UnfitPayload)?;
        payload.insert("number".to_owned(), number);
        Ok(payload)
    });
    let old = |payload| typed("tool.execute", 0).payload(payload);
    ledger.append_blocking(old(json!({"count": 5}))).unwrap();
    ledger
        .append_blocking(draft("a", 7).event_version(2))
        .unwrap();
    let tally = Arc::new(Tally::payloads(2));
    let projector = Projector::start(&ledger, vec![tally], upcasters).unwrap();
    level(&ledger, &projector);
    let total = projector
        .query(NAME, "SELECT total FROM tally", &[])
        .unwrap();
    assert_eq!(total.rows, [[12i64.into()]]);
    // Stored bytes stay as they are.
    assert_eq!(
        ledger.read(1, 1).unwrap()[0].payload.as_str(),
        r#"{"count":5}"#
    );
    ledger.append_blocking(old(json!({}))).unwrap();
    let (seq, reason) = halted(&projector);
    assert!(matches!(*reason, HaltReason::Upcast(_)), "{reason:?}");
    assert_eq!(seq, 3);
}

pub(crate) fn a_new_schema_starts_again(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 600);
    let projector = start(&ledger, Tally::version(1));
    level(&ledger, &projector);
    let digest = projector.digest(NAME).unwrap();
    projector.stop();
    let projector = start(&ledger, Tally::version(2));
    level(&ledger, &projector);
    assert_eq!(counted(&projector), 600);
    assert_eq!(projector.digest(NAME).unwrap(), digest);
}

pub(crate) fn unusable_sets_are_refused(place: &impl Place) {
    let ledger = place.open();
    let start = |projections: Vec<Arc<dyn Projection>>| {
        Projector::start(&ledger, projections, Upcasters::default())
    };
    let twice = start(vec![Arc::new(Tally::new()), Arc::new(Tally::new())]);
    assert!(
        matches!(twice, Err(StartProjectorError::Duplicate { .. })),
        "{twice:?}"
    );
    let none = start(Vec::new()).unwrap();
    let error = none.query(NAME, "SELECT 1", &[]).unwrap_err();
    assert!(matches!(error, ViewError::Unknown { .. }), "{error:?}");
    assert!(none.rebuild(NAME).is_err() && none.digest(NAME).is_err());
}

pub(crate) fn queries_cannot_write(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 5);
    let projector = start(&ledger, Tally::new());
    level(&ledger, &projector);
    for sql in [
        "DELETE FROM tally",
        "DROP TABLE tally",
        "SELECT nonsense",
        "SELECT 1; SELECT 2",
    ] {
        assert!(projector.query(NAME, sql, &[]).is_err(), "{sql}");
    }
    let sql = "SELECT events FROM tally WHERE last_seq > $2 AND id = $1";
    let rows = projector
        .query(NAME, sql, &["a".into(), 2u64.into()])
        .unwrap();
    assert_eq!((rows.rows, rows.applied_seq), (vec![vec![5i64.into()]], 5));
}
