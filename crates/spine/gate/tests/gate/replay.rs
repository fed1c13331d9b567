//! What was recorded can be judged again, and what cannot is counted.

use fluffy_gate::Bundle;
use fluffy_ledger::{Actor, Aggregate, Domain, Draft};
use fluffy_policy::Verdict;
use fluffy_policy::token::Presented;
use serde_json::json;

use crate::support::{Stage, rules, three_ways, write};

#[test]
fn recorded_decisions_are_decided_the_same_again() {
    let stage = Stage::with_rules(&three_ways());
    let paths = ["/src/a.rs", "/secret/key", "/ci/build.yaml", "/elsewhere"];
    for path in paths {
        let _ = stage.gate.authorize(&write(path));
    }
    stage.ledger.flush_blocking().unwrap();
    let records = stage.gate.decisions(paths.len()).unwrap();
    let verdicts: Vec<Verdict> = records.iter().map(|record| record.verdict).collect();
    use Verdict::{Allow, Deny, RequireReview};
    assert_eq!(verdicts, [Allow, Deny, RequireReview, Deny]);

    let policy = stage.gate.policy();
    for (record, path) in records.iter().zip(paths) {
        assert_eq!(record.request, write(path));
        let again = policy.engine.evaluate(&record.request, record.at, &*policy);
        assert_eq!(again.verdict(), record.verdict, "{path}");
        assert_eq!(
            (again.policy(), again.epoch()),
            (record.policy, record.epoch)
        );
    }
}

#[test]
fn a_decision_by_token_is_recorded_with_its_token() {
    let stage = Stage::with_rules(&three_ways());
    let request = write("/ci/build.yaml");
    let approved = stage
        .gate
        .approve(&request, &["project:pipelines".to_owned()], "maria")
        .unwrap();
    let presented = Presented {
        token: &approved.token,
        counter: 1,
    };
    let granted = stage
        .gate
        .authorize_with_token(&request, &presented)
        .unwrap();
    stage.ledger.flush_blocking().unwrap();
    let record = stage.gate.decisions(1).unwrap().remove(0);
    assert_eq!(record.id, granted.permit.decision_id());
    assert_eq!(record.token.unwrap().id, approved.token.id());
}

#[test]
fn an_event_of_an_unknown_shape_is_no_record_and_is_counted() {
    let stage = Stage::with_rules(&three_ways());
    stage.refusal(&write("/secret/key"));
    let aggregate = Aggregate::new("principal", "agent");
    let odd = Draft::new(
        Domain::Agent,
        aggregate,
        "policy.decision",
        Actor::system("later"),
    )
    .payload(json!({"decision": "deny", "record": {"v": 99}}));
    stage.ledger.append_blocking(odd).unwrap();

    assert_eq!(stage.gate.decisions(2).unwrap().len(), 1);
    let same = Bundle::of_rules(rules(&[["no-secrets", "fs.write", "secret/**", "deny"]]));
    let trial = stage.gate.propose(same, 2).unwrap().trial;
    assert_eq!(
        (trial.unchanged, trial.changed, trial.not_replayed),
        (1, 0, 1)
    );
}
