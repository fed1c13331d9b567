//! Cases of subscriptions: order, completeness, restarts, filters.

use std::thread;
use std::time::Duration;

use fluffy_ledger::{Aggregate, Batch, Delivery, Filter, Ledger, Subscription, SubscriptionError};
use fluffy_test_kit::Seed;

use super::{LIMIT, Place, append_many, draft};

/// The positions of the next `count` deliveries.
fn take(subscription: &mut Subscription, count: usize) -> Vec<u64> {
    let next = |_| {
        subscription
            .next_blocking(LIMIT)
            .unwrap()
            .expect("a delivery")
            .seq()
    };
    (0..count).map(next).collect()
}

fn is_quiet(subscription: &mut Subscription) -> bool {
    subscription
        .next_blocking(Duration::ZERO)
        .unwrap()
        .is_none()
}

fn seqs(range: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    range.collect()
}

pub(crate) fn a_subscription_starts_anywhere(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 600);
    for (from, count) in [(0, 600), (1, 600), (2, 599), (300, 301), (600, 1), (601, 0)] {
        let mut subscription = ledger.subscribe(from, Filter::all());
        assert_eq!(
            take(&mut subscription, count),
            seqs(from.max(1)..=600),
            "from {from}"
        );
        assert!(is_quiet(&mut subscription), "from {from}");
    }
}

pub(crate) fn a_subscription_waits_for_more(place: &impl Place) {
    let ledger = place.open();
    let mut subscription = ledger.subscribe(1, Filter::all());
    assert!(is_quiet(&mut subscription));
    thread::scope(|scope| {
        scope.spawn(|| append_many(&ledger, "a", 30));
        assert_eq!(take(&mut subscription, 30), seqs(1..=30));
    });
    // A subscription does not keep the ledger open, nor does it need it to be.
    ledger.close().unwrap();
    drop(ledger);
    assert!(is_quiet(&mut subscription));
    append_many(&place.open(), "a", 5);
    assert_eq!(take(&mut subscription, 5), seqs(31..=35));
}

pub(crate) fn a_subscription_goes_on_after_a_restart(place: &impl Place) {
    const TOTAL: u64 = 300;
    let seed = Seed::from_environment();
    let mut seen = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| append_many(&place.open(), "a", TOTAL));
        for step in 0.. {
            let left = TOTAL - seen.len() as u64;
            if left == 0 {
                break;
            }
            let count = 1 + seed.choice(step) % left.min(60);
            let ledger = place.open();
            let mut subscription = ledger.subscribe(seen.len() as u64 + 1, Filter::all());
            seen.extend(take(&mut subscription, usize::try_from(count).unwrap()));
        }
    });
    assert_eq!(seen, seqs(1..=TOTAL));
}

pub(crate) fn a_filter_leaves_watermarks(place: &impl Place) {
    let ledger = place.open();
    for number in 0..700 {
        let id = if number % 100 == 50 {
            "wanted"
        } else {
            "other"
        };
        let _ticket = ledger.record(draft(id, number)).unwrap();
    }
    ledger.flush_blocking().unwrap();
    let filter = || Filter::all().aggregate(Aggregate::new("session", "wanted"));
    let mut subscription = ledger.subscribe(1, filter());
    let (mut events, mut positions) = (Vec::new(), Vec::new());
    while let Some(delivery) = subscription.next_blocking(Duration::ZERO).unwrap() {
        positions.push(delivery.seq());
        if let Delivery::Event(event) = delivery {
            assert_eq!(event.aggregate.id, "wanted");
            events.push(event.seq);
        }
    }
    assert_eq!(events, [51, 151, 251, 351, 451, 551, 651]);
    assert!(positions.is_sorted());
    assert_eq!(positions.last(), Some(&700));
    // Whoever goes on after any of the positions misses nothing.
    for position in positions {
        let mut again = ledger.subscribe(position + 1, filter());
        let mut rest = Vec::new();
        while let Some(delivery) = again.next_blocking(Duration::ZERO).unwrap() {
            if let Delivery::Event(event) = delivery {
                rest.push(event.seq);
            }
        }
        let wanted: Vec<u64> = events
            .iter()
            .copied()
            .filter(|seq| *seq > position)
            .collect();
        assert_eq!(rest, wanted, "after {position}");
    }
    // An event that nobody wants still moves the position.
    ledger.append_blocking(draft("other", 0)).unwrap();
    let delivery = subscription.next_blocking(LIMIT).unwrap();
    assert_eq!(delivery, Some(Delivery::Watermark(701)));
}

pub(crate) fn every_subscriber_sees_the_same_order(place: &impl Place) {
    const WRITERS: u64 = 4;
    const EACH: u64 = 100;
    let ledger = place.open();
    let follow = |ledger: &Ledger, from: u64| {
        let mut subscription = ledger.subscribe(from, Filter::all());
        let count = usize::try_from(WRITERS * EACH + 1 - from).unwrap();
        let seen = take(&mut subscription, count);
        assert_eq!(seen, seqs(from..=WRITERS * EACH));
    };
    thread::scope(|scope| {
        for from in [1, 1, 1] {
            let (ledger, follow) = (&ledger, &follow);
            scope.spawn(move || follow(ledger, from));
        }
        for writer in 0..WRITERS {
            let ledger = &ledger;
            scope.spawn(move || append_many(ledger, &format!("w{writer}"), EACH));
        }
    });
    follow(&ledger, 200);
}

pub(crate) fn commits_of_another_handle_arrive(place: &impl Place) {
    let (reader, writer) = (place.open(), place.open());
    let mut subscription = reader.subscribe(1, Filter::all());
    for seq in 1..=5 {
        assert!(is_quiet(&mut subscription));
        writer.append_blocking(draft("a", seq)).unwrap();
        assert_eq!(take(&mut subscription, 1), [seq]);
    }
}

pub(crate) fn a_position_past_the_end_is_refused(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 3);
    let mut subscription = ledger.subscribe(5, Filter::all());
    let error = subscription.next_blocking(LIMIT).unwrap_err();
    assert!(
        matches!(error, SubscriptionError::Ahead { seq: 5, last: 3 }),
        "{error:?}"
    );
    let mut subscription = ledger.subscribe(u64::MAX, Filter::all());
    assert!(subscription.next_blocking(LIMIT).is_err());
}

pub(crate) fn tasks_can_subscribe_too(place: &impl Place) {
    let ledger = place.open();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut subscription = ledger.subscribe(1, Filter::all());
        let follower = tokio::spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < 60 {
                seen.push(subscription.next().await.unwrap().seq());
            }
            seen
        });
        for round in 0..20 {
            let drafts = (0..3)
                .map(|number| draft("a", round * 3 + number))
                .collect();
            ledger.append(Batch::new(drafts)).await.unwrap();
        }
        let seen = tokio::time::timeout(LIMIT, follower)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(seen, seqs(1..=60));
        // Giving up on a wait loses nothing.
        let mut subscription = ledger.subscribe(61, Filter::all());
        let waited = tokio::time::timeout(Duration::from_millis(1), subscription.next()).await;
        assert!(waited.is_err());
        ledger.append(draft("a", 0)).await.unwrap();
        let next = tokio::time::timeout(LIMIT, subscription.next())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(next.seq(), 61);
    });
}
