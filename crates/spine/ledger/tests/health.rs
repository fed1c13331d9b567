//! The check at start-up: found once, recorded once, accepted by name.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod evidence;

use evidence::{Site, draft};
use fluffy_ledger::health::AcceptBreakError;
use fluffy_ledger::{
    Actor, ActorKind, AppendError, FindingKind, Health, Ledger, LedgerOptions, OnBreak, Opened,
};

fn open(site: &Site, on_break: OnBreak) -> Opened {
    let options = LedgerOptions {
        on_break,
        ..site.options()
    };
    Ledger::open_checked(&site.ledger(), options).unwrap()
}

fn breaks(ledger: &Ledger) -> Vec<serde_json::Value> {
    let newest = ledger
        .last_where(100, |event| event.event_type == "ledger.chain_break")
        .unwrap();
    newest
        .iter()
        .map(|event| event.payload.value().unwrap())
        .collect()
}

/// A ledger whose newest event, which no checkpoint covers, was changed.
fn broken() -> Site {
    let site = Site::empty();
    site.grow(1, 50, "honest");
    let options = LedgerOptions::default();
    let unsigned = Ledger::open(&site.ledger(), options).unwrap();
    unsigned.append_blocking(draft(51, "honest")).unwrap();
    drop(unsigned);
    site.attack("UPDATE events SET actor_id = 'mallory' WHERE seq = 51");
    site
}

#[test]
fn a_sound_ledger_opens_without_a_word() {
    let site = Site::empty();
    site.grow(1, 50, "honest");
    for _ in 0..2 {
        let opened = open(&site, OnBreak::RefuseWrites);
        assert_eq!(opened.health, Health::Sound);
        assert_eq!(opened.ledger.head().unwrap().seq, 50);
    }
    // What was verified is not looked at again at every start.
    site.attack("UPDATE events SET actor_id = 'mallory' WHERE seq = 7");
    assert_eq!(open(&site, OnBreak::Continue).health, Health::Sound);
    assert_eq!(
        evidence::found(&site.verify()),
        Some((7, FindingKind::HashMismatch))
    );
}

#[test]
fn a_break_is_recorded_once_and_does_not_stop_the_agent() {
    let site = broken();
    for round in 0..3 {
        let Opened { ledger, health } = open(&site, OnBreak::Continue);
        let Health::Broken(finding) = health else {
            panic!("round {round}: the break goes unseen")
        };
        assert_eq!((finding.seq, finding.kind), (51, FindingKind::HashMismatch));
        let recorded = breaks(&ledger);
        assert_eq!(recorded.len(), 1, "round {round}");
        assert_eq!(recorded[0]["seq"], 51);
        assert_eq!(recorded[0]["kind"], "hash_mismatch");
        ledger
            .append_blocking(draft(100 + round, "life goes on"))
            .unwrap();
        // The checkpoint that follows covers the break, but hides nothing: it
        // was never verified.
        ledger.close().unwrap();
    }
}

#[test]
fn writing_is_refused_until_the_break_is_accepted_by_name() {
    let site = broken();
    let Opened { ledger, .. } = open(&site, OnBreak::RefuseWrites);
    assert_eq!(ledger.refused_since(), Some(51));
    let refused = ledger.append_blocking(draft(52, "no"));
    assert!(matches!(refused, Err(AppendError::ChainBroken { seq: 51 })));
    let refused = ledger.record(draft(52, "no"));
    assert!(matches!(refused, Err(AppendError::ChainBroken { seq: 51 })));
    ledger.flush_blocking().unwrap();
    let operator = Actor::new(ActorKind::User, "operator");
    for other in [0, 50] {
        let refused = ledger.accept_break(other, operator.clone());
        assert!(
            matches!(refused, Err(AcceptBreakError::NoSuchBreak { .. })),
            "{other}"
        );
    }
    ledger.accept_break(51, operator.clone()).unwrap();
    ledger.append_blocking(draft(53, "yes")).unwrap();
    drop(ledger);
    // The acceptance is remembered, even though the break is still there.
    let Opened { ledger, health } = open(&site, OnBreak::RefuseWrites);
    assert!(matches!(health, Health::Broken(_)));
    assert_eq!(breaks(&ledger).len(), 1);
    ledger.append_blocking(draft(54, "yes")).unwrap();
    let accepted = ledger.last_where(1, |event| event.event_type == "ledger.break_accepted");
    assert_eq!(accepted.unwrap()[0].actor, operator);
}

/// The look at every start: bounded, and writing is refused until somebody
/// accepts by name what it found.
#[test]
fn the_newest_events_are_looked_at_at_every_start() {
    let site = Site::empty();
    site.grow(1, 700, "honest");
    let look = |events| {
        let ledger = Ledger::open(&site.ledger(), site.options()).unwrap();
        let signing = site.options().signing;
        let found = ledger.check_newest(events, signing.as_ref(), OnBreak::RefuseWrites);
        (found.unwrap(), ledger)
    };
    for events in [1, 10, 256, 300, 699, 700, 10_000] {
        assert_eq!(look(events).0, Health::Sound, "{events}");
    }
    // What is older is not looked at; `verify` does that.
    site.attack("UPDATE events SET actor_id = 'mallory' WHERE seq = 7");
    assert_eq!(look(300).0, Health::Sound);
    site.attack("UPDATE events SET actor_id = 'mallory' WHERE seq = 650");
    let (health, ledger) = look(300);
    let Health::Broken(finding) = health else {
        panic!("the break goes unseen")
    };
    assert_eq!(
        (finding.seq, finding.kind),
        (650, FindingKind::HashMismatch)
    );
    let refused = ledger.append_blocking(draft(701, "no"));
    assert!(matches!(
        refused,
        Err(AppendError::ChainBroken { seq: 650 })
    ));
    let operator = Actor::new(ActorKind::User, "operator");
    ledger.accept_break(650, operator).unwrap();
    ledger.append_blocking(draft(702, "yes")).unwrap();
    drop(ledger);
    let (_, ledger) = look(300);
    assert_eq!(breaks(&ledger).len(), 1);
    ledger.append_blocking(draft(703, "yes")).unwrap();
}

/// Events that were signed and are gone are missed, also after others came.
#[test]
fn a_tail_that_was_cut_off_is_missed() {
    let (site, whole) = (Site::empty(), Site::empty());
    site.grow(1, 50, "honest");
    let kept = whole.ledger();
    copy(&site.ledger(), &kept);
    site.grow(51, 80, "honest");
    // The ledger of before with the checkpoints of after: it was put back.
    std::fs::remove_dir_all(site.ledger()).unwrap();
    copy(&kept, &site.ledger());
    let look = || {
        let ledger = Ledger::open(&site.ledger(), site.options()).unwrap();
        let signing = site.options().signing;
        let found = ledger.check_newest(100, signing.as_ref(), OnBreak::RefuseWrites);
        (found.unwrap(), ledger)
    };
    let (health, ledger) = look();
    let Health::Broken(finding) = health else {
        panic!("the cut goes unseen")
    };
    assert_eq!((finding.seq, finding.kind), (80, FindingKind::Truncated));
    let operator = Actor::new(ActorKind::User, "operator");
    ledger.accept_break(80, operator).unwrap();
    ledger.append_blocking(draft(100, "yes")).unwrap();
    // The process is killed: nothing new is signed, and the break has a name.
    std::mem::forget(ledger);
    let (_, ledger) = look();
    assert_eq!(ledger.refused_since(), None);
    ledger.append_blocking(draft(101, "yes")).unwrap();
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}
