//! A person's yes: recorded first, good once, never for a deny.

use std::fs;
use std::time::Duration;

use fluffy_gate::ApproveError;
use fluffy_policy::decision::TokenOutcome;
use fluffy_policy::token::{IssueTokenError, MAX_LIVE, Presented};

use crate::support::{
    Stage, at, events, known, payload, refused, rules, three_ways, token_outcome, write,
};

fn answers() -> Vec<String> {
    vec!["project:pipelines".to_owned()]
}

#[test]
fn a_token_permits_once() {
    let stage = Stage::with_rules(&three_ways());
    let request = write("/ci/build.yaml");
    let token = stage
        .gate
        .approve(&request, &answers(), "maria")
        .unwrap()
        .token;
    // Control: without the token it is still reviewed.
    assert!(stage.refusal(&request).0.is_reviewable());
    let with = |counter| {
        let presented = Presented {
            token: &token,
            counter,
        };
        stage.gate.authorize_with_token(&request, &presented)
    };
    assert_eq!(with(1).unwrap().permit.resource(), Some("/ci/build.yaml"));
    for counter in [1, 2] {
        let (refusal, _) = refused(with(counter).map(drop));
        assert!(refusal.is_reviewable());
        assert_eq!(token_outcome(&refusal), TokenOutcome::UsedUp);
    }
}

#[test]
fn a_token_is_for_its_request_only() {
    let stage = Stage::with_rules(&three_ways());
    let token = stage
        .gate
        .approve(&write("/ci/build.yaml"), &answers(), "maria")
        .unwrap()
        .token;
    let presented = Presented {
        token: &token,
        counter: 1,
    };
    let other = stage
        .gate
        .authorize_with_token(&write("/ci/other.yaml"), &presented);
    assert_eq!(
        token_outcome(&refused(other.map(drop)).0),
        TokenOutcome::NotForThis
    );
}

#[test]
fn a_deny_cannot_be_answered() {
    let stage = Stage::with_rules(&three_ways());
    let answers = [
        "project:no-secrets".to_owned(),
        "project:pipelines".to_owned(),
    ];
    let error = stage
        .gate
        .approve(&write("/secret/key"), &answers, "maria")
        .unwrap_err();
    assert!(
        matches!(error, ApproveError::NotIssued(IssueTokenError::Decided(_))),
        "{error:?}"
    );
    assert_eq!(issued_for(&stage, "agent"), 0);
}

#[test]
fn a_review_that_nobody_answered_yields_no_token() {
    let stage = Stage::with_rules(&three_ways());
    let request = write("/ci/build.yaml");
    let error = stage.gate.approve(&request, &[], "maria").unwrap_err();
    assert!(
        matches!(error, ApproveError::NotIssued(IssueTokenError::Decided(_))),
        "{error:?}"
    );
    let of_another = ["user:pipelines".to_owned()];
    let error = stage
        .gate
        .approve(&request, &of_another, "maria")
        .unwrap_err();
    let ApproveError::NotIssued(IssueTokenError::Unanswered { rule }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(rule, "project:pipelines");
    assert_eq!(issued_for(&stage, "agent"), 0);
}

#[test]
fn an_approval_is_on_disk_before_its_token_exists() {
    let stage = Stage::with_rules(&three_ways());
    let approved = stage
        .gate
        .approve(&write("/ci/build.yaml"), &answers(), "maria")
        .unwrap();
    let events = stage.on_disk();
    let issued = at(&events, known(&approved.issued));
    assert_eq!(issued.event_type, "token.issued");
    let recorded = payload(issued);
    assert_eq!(recorded["approved_by"], "maria");
    assert_eq!(recorded["claims"]["id"], approved.token.id().to_string());
    assert_eq!(recorded["claims"]["max_ops"], 1);
    let text = issued.payload.as_str();
    let mac = approved.token.reveal();
    let mac = mac.rsplit('.').next().unwrap();
    assert!(
        !text.contains(mac),
        "the ledger holds what proves the token"
    );
}

#[test]
fn an_approval_that_cannot_be_recorded_leaves_no_live_token() {
    let stage = Stage::with_rules(&three_ways());
    stage.ledger.close().unwrap();
    let request = write("/ci/build.yaml");
    // A vault holds so many: were they not revoked, the last would be refused.
    for _ in 0..=MAX_LIVE {
        let error = stage
            .gate
            .approve(&request, &answers(), "maria")
            .unwrap_err();
        assert!(matches!(error, ApproveError::NotRecorded(_)), "{error:?}");
    }
}

#[test]
fn a_token_of_an_older_policy_is_evaluated_in_full() {
    let stage = Stage::with_rules(&three_ways());
    let request = write("/ci/build.yaml");
    let token = stage
        .gate
        .approve(&request, &answers(), "maria")
        .unwrap()
        .token;
    let unrelated = rules(&[["notes", "fs.write", "notes/**", "allow"]]);
    fs::write(stage.user(), unrelated).unwrap();
    assert!(stage.gate.reload().unwrap());
    let presented = Presented {
        token: &token,
        counter: 1,
    };
    let (refusal, _) = refused(
        stage
            .gate
            .authorize_with_token(&request, &presented)
            .map(drop),
    );
    assert!(refusal.is_reviewable());
    assert_eq!(token_outcome(&refusal), TokenOutcome::OldPolicy);
}

#[test]
fn what_ended_or_abused_a_token_is_recorded_beside_the_decision() {
    let stage = Stage::with_rules(&three_ways());
    let request = write("/ci/build.yaml");
    let token = stage
        .gate
        .approve(&request, &answers(), "maria")
        .unwrap()
        .token;
    // Another boot has another secret.
    let other = stage.reopen().unwrap();
    let presented = Presented {
        token: &token,
        counter: 1,
    };
    let (forged, forged_at) = refused(other.authorize_with_token(&request, &presented).map(drop));
    assert_eq!(token_outcome(&forged), TokenOutcome::Forged);
    assert!(!forged.is_reviewable(), "a forged token is denied");

    stage.clock.advance(Duration::from_secs(31));
    let late = stage.gate.authorize_with_token(&request, &presented);
    let (late, late_at) = refused(late.map(drop));
    assert_eq!(token_outcome(&late), TokenOutcome::Expired);
    assert!(late.is_reviewable(), "an expired one is evaluated in full");

    let events = stage.on_disk();
    for (decision, event_type) in [(forged_at, "token.replayed"), (late_at, "token.expired")] {
        let seq = known(&decision);
        assert_eq!(at(&events, seq).event_type, "policy.decision");
        assert_eq!(at(&events, seq + 1).event_type, event_type);
        assert_eq!(
            payload(at(&events, seq + 1))["token"],
            token.id().to_string()
        );
    }
}

fn issued_for(stage: &Stage, principal: &str) -> usize {
    let mine = |event: &&fluffy_ledger::Event| {
        event.event_type == "token.issued" && event.aggregate.id == principal
    };
    events(&stage.ledger).iter().filter(mine).count()
}
