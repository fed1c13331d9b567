//! A decision and its record: no permit without one.

use fluffy_gate::AuthorizeError;
use fluffy_ledger::class::{Durability, durability_of};
use fluffy_ledger::{
    Actor, Aggregate, AppendError, Domain, Draft, Ledger, LedgerOptions, SeqRef, StoreError,
};
use fluffy_policy::{PrincipalKind, Request};
use fluffy_test_kit::record_skip;
use serde_json::{Value, json};

use crate::support::{SmallDisk, Stage, at, events, known, open_gate, payload, three_ways, write};

#[test]
fn an_allow_yields_a_permit_that_later_events_can_name() {
    let stage = Stage::with_rules(&three_ways());
    let granted = stage.gate.authorize(&write("/src/a.rs")).unwrap();
    assert_eq!(granted.permit.action(), "fs.write");
    assert_eq!(granted.permit.resource(), Some("/src/a.rs"));
    let SeqRef::Pending(ticket) = granted.decision.clone() else {
        panic!("an allow waited for the disk: {granted:?}");
    };

    let effect = Draft::new(
        Domain::Agent,
        Aggregate::new("session", "s"),
        "tool.execute",
        Actor::system("test"),
    );
    let effect = stage
        .ledger
        .append_blocking(effect.decided_by(granted.decision))
        .unwrap();
    let decided = ticket.seq().expect("resolved with what refers to it");

    let events = stage.on_disk();
    let effect = at(&events, effect.last_seq);
    assert_eq!(effect.decision_seq, Some(decided));
    let decision = at(&events, decided);
    assert_eq!(decision.event_type, "policy.decision");
    assert_eq!(
        (decision.domain, decision.actor.id.as_str()),
        (Domain::Agent, "agent")
    );
    let recorded = payload(decision);
    assert_eq!(recorded["decision"], "allow");
    assert_eq!(recorded["caller"], "agent");
    assert_eq!(recorded["rules"], json!(["source"]));
    assert_eq!(
        recorded["record"]["id"],
        granted.permit.decision_id().to_string()
    );
    let class = durability_of(
        decision.domain,
        "policy.decision",
        recorded.as_object().unwrap(),
    );
    assert_eq!(class, Durability::Operational);
}

#[test]
fn an_allow_of_the_platform_is_on_disk_before_the_caller_hears_of_it() {
    let stage = Stage::with_rules(&three_ways());
    let mut request = write("/src/a.rs");
    request.principal.kind = PrincipalKind::Service;
    let granted = stage.gate.authorize(&request).unwrap();
    let SeqRef::Known(seq) = granted.decision else {
        panic!("it sits in the buffer");
    };
    assert_eq!(at(&stage.on_disk(), seq).domain, Domain::Platform);
}

#[test]
fn a_refusal_is_on_disk_before_the_caller_hears_of_it() {
    let stage = Stage::with_rules(&three_ways());
    for (path, verdict, rule) in [
        ("/secret/key", "deny", "no-secrets"),
        ("/ci/build.yaml", "require_review", "pipelines"),
    ] {
        let (refusal, decision) = stage.refusal(&write(path));
        let events = stage.on_disk();
        let event = at(&events, known(&decision));
        let recorded = payload(event);
        assert_eq!(recorded["decision"], verdict);
        assert!(
            recorded["rules"]
                .as_array()
                .unwrap()
                .contains(&Value::from(rule)),
            "{recorded}"
        );
        assert_eq!(
            recorded["record"]["id"],
            refusal.decision().id().to_string()
        );
        assert_eq!(refusal.is_reviewable(), verdict == "require_review");
    }
}

#[test]
fn a_closed_ledger_permits_nothing() {
    let stage = Stage::with_rules(&three_ways());
    // Control: the first is allowed while the ledger is open.
    assert!(stage.gate.authorize(&write("/src/a.rs")).is_ok());
    stage.ledger.close().unwrap();
    for path in ["/src/a.rs", "/secret/key", "/ci/build.yaml"] {
        let error = stage.gate.authorize(&write(path)).map(drop).unwrap_err();
        assert!(
            matches!(error, AuthorizeError::NotRecorded(AppendError::Closed)),
            "{path}: {error:?}"
        );
    }
}

#[test]
fn what_the_ledger_cannot_write_down_is_not_permitted() {
    let stage = Stage::with_rules(&three_ways());
    let odd = |change: &dyn Fn(&mut Request)| {
        let mut request = write("/src/a.rs");
        change(&mut request);
        request
    };
    let before = events(&stage.ledger).len();
    for request in [
        odd(&|request| request.principal.name = "agent\u{1b}[2J".to_owned()),
        odd(&|request| request.principal.name = "a".repeat(300)),
        odd(&|request| request.context.size = Some(u64::MAX)),
        odd(&|request| request.context.template = Some("t".repeat(300 * 1024))),
    ] {
        let error = stage.gate.authorize(&request).map(drop).unwrap_err();
        assert!(
            matches!(error, AuthorizeError::NotRecorded(AppendError::Draft(_))),
            "{error:?}"
        );
    }
    stage.ledger.flush_blocking().unwrap();
    assert_eq!(events(&stage.ledger).len(), before);
}

#[test]
fn a_full_disk_refuses() {
    let disk = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(disk.path(), "size=1m") else {
        record_skip("a_full_disk_refuses", "no file system may be mounted here");
        return;
    };
    let stage = Stage::with_rules(&three_ways());
    let ledger = Ledger::open(&disk.path.join("ledger"), LedgerOptions::default()).unwrap();
    let gate = open_gate(stage.home.path(), &ledger, &stage.clock).unwrap();
    let (mut stored, mut last) = (0, None);
    while last.is_none() && stored < 10_000 {
        match gate.authorize(&write("/secret/key")) {
            Err(AuthorizeError::Refused { .. }) => stored += 1,
            other => last = Some(other.map(drop)),
        }
    }
    let full = last.expect("the disk never got full");
    assert!(
        matches!(
            full,
            Err(AuthorizeError::NotRecorded(AppendError::Store(
                StoreError::Full(_)
            )))
        ),
        "{full:?}"
    );
    assert_eq!(ledger.head().unwrap().seq, stored);

    // An allow is refused as well: a buffer that may be lost permits nothing.
    let refused = gate.authorize(&write("/src/a.rs")).map(drop);
    assert!(
        matches!(
            refused,
            Err(AuthorizeError::NotRecorded(AppendError::Store(
                StoreError::Full(_)
            )))
        ),
        "{refused:?}"
    );
}
