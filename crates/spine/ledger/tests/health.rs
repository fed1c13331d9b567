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
