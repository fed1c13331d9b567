//! Random histories against a model in memory.

use std::collections::BTreeMap;

use fluffy_ledger::{Batch, Filter};
use fluffy_test_kit::{Seed, campaign};

use super::tally::{NAME, Tally, counts, start};
use super::{LIMIT, Place, draft, read_chain};

/// Whatever is appended, however it is cut into batches and restarts: chain,
/// subscription and view agree with the model, and a rebuild is equal.
pub(crate) fn random_histories_rebuild_to_equal_views(place: &impl Place) {
    let seed = Seed::from_environment();
    let mut steps = 0;
    let mut choose = |below: u64| {
        steps += 1;
        seed.choice(steps) % below
    };
    let mut model: BTreeMap<String, i64> = BTreeMap::new();
    let mut seen = 0;
    for _ in 0..campaign(4, 40) {
        let ledger = place.open();
        let projector = start(&ledger, Tally::new());
        for _ in 0..choose(30) {
            let size = 1 + choose(12);
            let ids: Vec<String> = (0..size).map(|_| format!("s{}", choose(6))).collect();
            let drafts: Vec<_> = ids.iter().map(|id| draft(id, choose(1_000))).collect();
            ids.into_iter()
                .for_each(|id| *model.entry(id).or_default() += 1);
            match choose(3) {
                0 => drop(ledger.append_blocking(Batch::new(drafts)).unwrap()),
                1 => drop(
                    ledger
                        .append_blocking(Batch::new(drafts).durable())
                        .unwrap(),
                ),
                _ => drafts
                    .into_iter()
                    .for_each(|draft| drop(ledger.record(draft).unwrap())),
            }
        }
        ledger.flush_blocking().unwrap();
        let total: i64 = model.values().sum();
        let head = ledger.head().unwrap().seq;
        assert_eq!(i64::try_from(head).unwrap(), total);
        let mut subscription = ledger.subscribe(seen + 1, Filter::all());
        while seen < head {
            seen += 1;
            let delivery = subscription.next_blocking(LIMIT).unwrap().unwrap();
            assert_eq!(delivery.seq(), seen);
        }
        if choose(2) == 0 {
            projector.wait_for_blocking(NAME, head, LIMIT).unwrap();
            assert_eq!(counts(&projector), model);
        }
    }
    let ledger = place.open();
    let events = read_chain(&ledger);
    let projector = start(&ledger, Tally::new());
    projector
        .wait_for_blocking(NAME, events.len() as u64, LIMIT)
        .unwrap();
    assert_eq!(counts(&projector), model);
    let rebuilt = projector.rebuild(NAME).unwrap();
    assert!(rebuilt.is_equal(), "{rebuilt:?}");
    assert_eq!(counts(&projector), model);
}
