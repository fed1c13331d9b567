//! Cases of appending: numbering, conflicts, atomicity, concurrency, tickets.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use fluffy_base::Timestamp;
use fluffy_ledger::{Aggregate, AppendError, Batch, Domain, DraftError, Ledger};
use fluffy_test_kit::wait_for;
use serde_json::json;

use super::{LIMIT, Place, append_many, draft, read_chain};

fn session(id: &str) -> Aggregate {
    Aggregate::new("session", id)
}

pub(crate) fn events_are_numbered_and_chained(place: &impl Place) {
    let ledger = place.open();
    assert!(read_chain(&ledger).is_empty());
    let one = ledger.append_blocking(draft("a", 0)).unwrap();
    assert_eq!((one.first_seq, one.last_seq), (1, 1));
    let three = (0..3).map(|number| draft("b", number)).collect();
    let three = ledger.append_blocking(Batch::new(three)).unwrap();
    assert_eq!((three.first_seq, three.last_seq), (2, 4));
    let events = read_chain(&ledger);
    let versions: Vec<u64> = events.iter().map(|event| event.aggregate_version).collect();
    assert_eq!(versions, [1, 1, 2, 3]);
    assert_eq!(three.hash, events[3].hash);
    let (id, head) = (ledger.id(), ledger.head().unwrap());
    drop(ledger);
    let ledger = place.open();
    assert_eq!((ledger.id(), ledger.head().unwrap()), (id, head));
    assert_eq!(read_chain(&ledger), events);
}

pub(crate) fn a_conflict_names_the_current_version(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 3);
    let stale = Batch::from(draft("a", 9)).expecting(Domain::Agent, session("a"), 1);
    match ledger.append_blocking(stale) {
        Err(AppendError::Conflict {
            aggregate,
            expected: 1,
            current: 3,
        }) => assert_eq!(aggregate, session("a")),
        other => panic!("{other:?}"),
    }
    let taken = Batch::from(draft("a", 9)).expecting(Domain::Agent, session("a"), 0);
    let error = ledger.append_blocking(taken).unwrap_err();
    assert!(
        matches!(error, AppendError::Conflict { current: 3, .. }),
        "{error:?}"
    );
    assert_eq!(read_chain(&ledger).len(), 3);
    let right = Batch::from(draft("a", 9)).expecting(Domain::Agent, session("a"), 3);
    assert_eq!(ledger.append_blocking(right).unwrap().last_seq, 4);
    let new = Batch::from(draft("b", 0)).expecting(Domain::Agent, session("b"), 0);
    assert_eq!(ledger.append_blocking(new).unwrap().last_seq, 5);
    // The same name in another domain is another aggregate.
    let other = Batch::from(draft("c", 0)).expecting(Domain::Plugin, session("a"), 0);
    assert_eq!(ledger.append_blocking(other).unwrap().last_seq, 6);
}

pub(crate) fn a_batch_is_all_or_nothing(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 2);
    let before = ledger.head().unwrap();
    let conflict = Batch::new(vec![draft("b", 0), draft("a", 0)])
        .expecting(Domain::Agent, session("b"), 0)
        .expecting(Domain::Agent, session("a"), 7);
    assert!(ledger.append_blocking(conflict).is_err());
    let invalid = Batch::new(vec![draft("b", 0), draft("", 0)]);
    let error = ledger.append_blocking(invalid).unwrap_err();
    assert!(
        matches!(error, AppendError::Draft(DraftError::Text { .. })),
        "{error:?}"
    );
    assert_eq!(ledger.head().unwrap(), before);
    assert_eq!(ledger.version(Domain::Agent, &session("b")).unwrap(), 0);
    append_many(&ledger, "b", 1);
    assert_eq!(read_chain(&ledger).len(), 3);
}

pub(crate) fn a_batch_follows_the_head_it_names(place: &impl Place) {
    let (ledger, other) = (place.open(), place.open());
    let genesis = ledger.genesis().hash();
    let after = |seq, hash| Batch::from(draft("a", seq)).expecting_head(seq, hash);
    let first = ledger.append_blocking(after(0, genesis)).unwrap();
    let moved = |result: Result<_, AppendError>, expected, current| match result {
        Err(AppendError::HeadMoved {
            expected: named,
            current: found,
            epoch: 1,
        }) => assert_eq!((named, found), (expected, current)),
        other => panic!("{other:?}"),
    };
    moved(ledger.append_blocking(after(0, genesis)), 0, 1);
    moved(other.append_blocking(after(1, genesis)), 1, 1);
    // Whoever appended last takes a shorter way, and the other has been there
    // meanwhile.
    let second = ledger.append_blocking(after(1, first.hash)).unwrap();
    let third = ledger.append_blocking(after(2, second.hash)).unwrap();
    other.append_blocking(draft("b", 0)).unwrap();
    moved(ledger.append_blocking(after(3, third.hash)), 3, 4);
    assert_eq!(read_chain(&ledger).len(), 4);
    // One that names no head is not held to any.
    ledger.append_blocking(draft("a", 9)).unwrap();
}

pub(crate) fn who_expects_the_head_decides_on_all_of_it(place: &impl Place) {
    const WRITERS: u64 = 4;
    const LAST: u64 = 60;
    // Everyone writes the number after the last one it has read.
    let handles: Vec<Ledger> = (0..WRITERS).map(|_| place.open()).collect();
    thread::scope(|scope| {
        for handle in &handles {
            scope.spawn(move || {
                let (mut seq, mut hash) = (0, handle.genesis().hash());
                while seq < LAST {
                    let batch = Batch::from(draft("a", seq + 1)).expecting_head(seq, hash);
                    match handle.append_blocking(batch) {
                        Ok(done) => (seq, hash) = (done.last_seq, done.hash),
                        Err(AppendError::HeadMoved { .. }) => {
                            let events = handle.read(seq + 1, 100).unwrap();
                            let last = events.last().unwrap();
                            (seq, hash) = (last.seq, last.hash);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    for event in read_chain(&handles[0]) {
        assert_eq!(event.payload.value().unwrap(), json!({"number": event.seq}));
    }
}

pub(crate) fn a_draft_foresees_its_event(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 2);
    let mut next = draft("a", 7).decided_by(1).caused_by(2);
    let mut foreseen = next.foresee(3, 3, Timestamp::from_micros(5)).unwrap();
    ledger.append_blocking(next).unwrap();
    let event = ledger.read(3, 1).unwrap().remove(0);
    (foreseen.prev_hash, foreseen.hash) = (event.prev_hash, event.hash);
    assert_eq!(foreseen, event);
    assert!(
        draft("", 0)
            .foresee(4, 1, Timestamp::from_micros(5))
            .is_err()
    );
}

pub(crate) fn concurrent_writers_leave_no_gap(place: &impl Place) {
    const WRITERS: u64 = 16;
    const BATCHES: u64 = 20;
    let ledger = place.open();
    let together = Barrier::new(WRITERS.try_into().unwrap());
    let acknowledged: Vec<u64> = thread::scope(|scope| {
        let write = |writer: u64| {
            let (ledger, together) = (ledger.clone(), &together);
            scope.spawn(move || {
                together.wait();
                let mut seqs = Vec::new();
                for number in 0..BATCHES {
                    let id = format!("w{writer}");
                    let pair = vec![draft(&id, number), draft("shared", number)];
                    let done = ledger.append_blocking(Batch::new(pair)).unwrap();
                    assert_eq!(done.last_seq, done.first_seq + 1);
                    seqs.extend([done.first_seq, done.last_seq]);
                }
                seqs
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        writers
            .into_iter()
            .flat_map(|writer| writer.join().unwrap())
            .collect()
    });
    let total = WRITERS * BATCHES * 2;
    let distinct: BTreeSet<u64> = acknowledged.into_iter().collect();
    assert_eq!(distinct, (1..=total).collect());
    let events = read_chain(&ledger);
    let shared = events.iter().filter(|event| event.aggregate.id == "shared");
    let versions: Vec<u64> = shared.map(|event| event.aggregate_version).collect();
    assert_eq!(versions, (1..=WRITERS * BATCHES).collect::<Vec<_>>());
}

pub(crate) fn contended_versions_never_repeat(place: &impl Place) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 10;
    let ledger = place.open();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            let ledger = ledger.clone();
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut version = ledger.version(Domain::Agent, &session("a")).unwrap();
                    loop {
                        let batch = Batch::from(draft("a", number));
                        let batch = batch.expecting(Domain::Agent, session("a"), version);
                        match ledger.append_blocking(batch) {
                            Ok(_) => break,
                            Err(AppendError::Conflict { current, .. }) => version = current,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(
        ledger.version(Domain::Agent, &session("a")).unwrap(),
        WRITERS * EACH
    );
    assert_eq!(read_chain(&ledger).len() as u64, WRITERS * EACH);
}

pub(crate) fn several_handles_share_one_chain(place: &impl Place) {
    let handles: Vec<Ledger> = (0..3).map(|_| place.open()).collect();
    assert!(handles.iter().all(|handle| handle.id() == handles[0].id()));
    for round in 0..3 {
        for (index, handle) in handles.iter().enumerate() {
            let done = handle.append_blocking(draft("turns", round)).unwrap();
            assert_eq!(done.last_seq, round * 3 + index as u64 + 1);
        }
    }
    thread::scope(|scope| {
        for handle in &handles {
            scope.spawn(move || append_many(handle, "together", 50));
        }
    });
    let chains: Vec<_> = handles.iter().map(read_chain).collect();
    assert_eq!(chains[0].len(), 9 + 150);
    assert!(chains.iter().all(|chain| *chain == chains[0]));
}

pub(crate) fn many_may_open_and_close_at_once(place: &impl Place) {
    const OPENERS: usize = 4;
    const ROUNDS: usize = 15;
    let together = Barrier::new(OPENERS);
    let ids: BTreeSet<_> = thread::scope(|scope| {
        let open = |_| {
            scope.spawn(|| {
                // The first to come creates it, the last to go tidies up.
                together.wait();
                let rounds = (0..ROUNDS).map(|_| {
                    let ledger = place.open();
                    append_many(&ledger, "a", 1);
                    ledger.id()
                });
                rounds.collect::<Vec<_>>()
            })
        };
        let openers: Vec<_> = (0..OPENERS).map(open).collect();
        let ids = openers
            .into_iter()
            .flat_map(|opener| opener.join().unwrap());
        ids.collect()
    });
    let ledger = place.open();
    assert_eq!(ids, BTreeSet::from([ledger.id()]));
    assert_eq!(read_chain(&ledger).len(), OPENERS * ROUNDS);
}

pub(crate) fn tickets_resolve_in_order(place: &impl Place) {
    let ledger = place.open();
    let tickets: Vec<_> = (0..250)
        .map(|number| ledger.record(draft("a", number)).unwrap())
        .collect();
    ledger.flush_blocking().unwrap();
    let seqs: Vec<u64> = tickets.iter().map(|ticket| ticket.seq().unwrap()).collect();
    assert_eq!(seqs, (1..=250).collect::<Vec<_>>());
    for (number, event) in read_chain(&ledger).iter().enumerate() {
        assert_eq!(event.payload.value().unwrap(), json!({"number": number}));
    }
}

pub(crate) fn a_draft_may_refer_to_a_pending_ticket(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "before", 4);
    let decision = ledger.record(draft("a", 0)).unwrap();
    let cause = ledger.record(draft("a", 1)).unwrap();
    let effect = draft("a", 2)
        .decided_by(decision.clone())
        .caused_by(cause.clone());
    let effect = ledger.append_blocking(effect).unwrap();
    let event = &ledger.read(effect.last_seq, 1).unwrap()[0];
    assert_eq!(
        (event.decision_seq, event.causation_seq),
        (Some(5), Some(6))
    );
    assert_eq!((decision.seq(), cause.seq()), (Some(5), Some(6)));
    // A ticket that has long been written is as good as its number.
    let late = ledger
        .append_blocking(draft("a", 3).decided_by(decision))
        .unwrap();
    assert_eq!(
        ledger.read(late.last_seq, 1).unwrap()[0].decision_seq,
        Some(5)
    );
}

pub(crate) fn a_ticket_of_another_ledger_is_refused(place: &impl Place) {
    let (ledger, other) = (place.open(), place.open());
    let ticket = other.record(draft("a", 0)).unwrap();
    let error = ledger
        .append_blocking(draft("a", 1).decided_by(ticket))
        .unwrap_err();
    assert!(matches!(error, AppendError::ForeignTicket), "{error:?}");
}

pub(crate) fn closing_writes_what_was_recorded(place: &impl Place) {
    let ledger = place.open();
    let tickets: Vec<_> = (0..30)
        .map(|number| ledger.record(draft("a", number)).unwrap())
        .collect();
    ledger.close().unwrap();
    assert_eq!(tickets[29].seq(), Some(30));
    assert_eq!(read_chain(&place.open()).len(), 30);
    // Dropping the last handle does the same.
    let ledger = place.open();
    for number in 0..30 {
        let _ticket = ledger.record(draft("b", number)).unwrap();
    }
    drop(ledger);
    assert_eq!(read_chain(&place.open()).len(), 60);
}

pub(crate) fn the_buffer_empties_by_itself(place: &impl Place) {
    let ledger = place.open();
    let ticket = ledger.record(draft("a", 0)).unwrap();
    let seq = wait_for("the buffer empties", LIMIT, || ticket.seq()).unwrap();
    assert_eq!(ledger.read(seq, 1).unwrap()[0].aggregate.id, "a");
}

pub(crate) fn a_closed_ledger_still_reads(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 5);
    let reader = ledger.clone();
    ledger.close().unwrap();
    assert_eq!(read_chain(&reader).len(), 5);
    let error = reader.append_blocking(draft("a", 0)).unwrap_err();
    assert!(matches!(error, AppendError::Closed), "{error:?}");
    assert!(matches!(
        reader.record(draft("a", 0)),
        Err(AppendError::Closed)
    ));
}
