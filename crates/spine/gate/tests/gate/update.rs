//! Proposing a policy, trying it on history, and putting it in force.

use std::fs;
use std::sync::Arc;

use fluffy_base::{Clock, Digest};
use fluffy_gate::{Bundle, Gate, LoadPolicyError, PolicyPlaces, ProposeError, UpdateError};
use fluffy_ledger::Event;
use fluffy_policy::Field;
use fluffy_policy::trial::Class;

use crate::support::{Stage, events, payload, places, rules, three_ways, update_request, write};

#[test]
fn a_trial_counts_what_would_change() {
    let stage = Stage::with_rules(&three_ways());
    let mut hidden = write("/src/hidden.rs");
    hidden.context.redacted = [(Field::Size, Digest::of(b"keyed"))].into();
    for request in [
        write("/src/a.rs"),
        write("/src/b.rs"),
        write("/src/kept.rs"),
        write("/src/core/a.rs"),
        write("/secret/key"),
        write("/ci/build.yaml"),
        hidden,
    ] {
        let _ = stage.gate.authorize(&request);
    }
    stage.ledger.flush_blocking().unwrap();
    let proposed = "version: 1\ncapabilities:\n\
        \x20 - { name: kept, match: { action: fs.write, path_glob: [\"src/kept.rs\", \"src/core/**\", \"secret/**\"] }, do: allow }\n\
        \x20 - { name: core, match: { action: fs.write, path_glob: [\"src/core/**\"] }, do: require_review }\n\
        \x20 - { name: huge, match: { action: fs.write, path_glob: [\"src/hidden.rs\"], size: \"> 1MiB\" }, do: deny }\n";
    let proposal = stage.gate.propose(Bundle::of_rules(proposed), 7).unwrap();

    let trial = &proposal.trial;
    let found: Vec<(&str, Class)> = trial
        .changes
        .iter()
        .map(|change| (change.resource.as_deref().unwrap(), change.class))
        .collect();
    assert_eq!(
        found,
        [
            ("/src/a.rs", Class::Breaking),
            ("/src/b.rs", Class::Breaking),
            ("/src/core/a.rs", Class::NewlyReviewed),
            ("/secret/key", Class::NewlyAllowed),
            ("/ci/build.yaml", Class::NewlyDenied),
            ("/src/hidden.rs", Class::CannotReplay),
        ]
    );
    assert_eq!((trial.changed, trial.breaking), (5, 2));
    assert_eq!((trial.unchanged, trial.not_replayed), (1, 1));

    // What was found is recorded with the update.
    stage.gate.update(&proposal, &update_request()).unwrap();
    let last = events(&stage.ledger).pop().unwrap();
    let recorded = payload(&last);
    assert_eq!(
        (&recorded["changed"], &recorded["breaking"]),
        (&5.into(), &2.into())
    );
    assert_eq!(recorded["tried"], 6);
}

#[test]
fn an_update_is_reviewed_approved_decided_and_recorded_in_this_order() {
    let stage = Stage::with_rules(&three_ways());
    let from = stage.gate.policy().pinned.unwrap();
    let before = events(&stage.ledger).len();
    let epoch = stage.gate.policy().engine.epoch();
    let to = stage.apply(Bundle::of_rules(rules(&[[
        "all", "fs.write", "**", "allow",
    ]])));

    let new: Vec<Event> = stage.on_disk().split_off(before);
    let said: Vec<String> = new
        .iter()
        .map(|event| match payload(event)["decision"].as_str() {
            Some(verdict) => format!("{} {verdict}", event.event_type),
            None => event.event_type.clone(),
        })
        .collect();
    assert_eq!(
        said,
        [
            "policy.decision require_review",
            "token.issued",
            "policy.decision allow",
            "policy.update"
        ]
    );
    assert_eq!(new[3].decision_seq, Some(new[2].seq));
    assert_eq!(new[3].actor.id, "maria");
    let recorded = payload(&new[3]);
    assert_eq!(recorded["from"], from.to_string());
    assert_eq!(recorded["to"], to.to_string());
    assert_eq!(recorded["outcome"], "approved");
    assert_eq!(
        payload(&new[1])["claims"]["answers"][0],
        "builtin:policy-update"
    );
    assert_eq!(stage.gate.policy().engine.epoch(), epoch + 1);
}

#[test]
fn an_update_that_is_denied_changes_nothing() {
    let stage = Stage::with_rules(&three_ways());
    let frozen = "version: 1\ncapabilities:\n  - { name: frozen, match: { action: policy.update }, do: deny }\n";
    fs::write(stage.organisation(), frozen).unwrap();
    stage.gate.reload().unwrap();
    let before = stage.gate.policy().pinned;
    let open = Bundle::of_rules(rules(&[["all", "fs.write", "**", "allow"]]));
    let proposal = stage.gate.propose(open, 0).unwrap();
    let error = stage.gate.update(&proposal, &update_request()).unwrap_err();
    assert!(matches!(error, UpdateError::NotPermitted(_)), "{error:?}");
    assert_eq!(stage.gate.policy().pinned, before);
    assert_eq!(
        stage
            .pins()
            .current()
            .unwrap()
            .map(|bundle| bundle.digest()),
        before
    );
}

#[test]
fn an_update_that_cannot_be_recorded_changes_nothing() {
    let stage = Stage::with_rules(&three_ways());
    let before = stage.pins().current().unwrap();
    let open = Bundle::of_rules(rules(&[["all", "fs.write", "**", "allow"]]));
    let proposal = stage.gate.propose(open, 0).unwrap();
    stage.ledger.close().unwrap();
    assert!(stage.gate.update(&proposal, &update_request()).is_err());
    assert_eq!(stage.pins().current().unwrap(), before);
}

#[test]
fn outside_a_project_there_is_nothing_to_update() {
    let stage = Stage::new();
    let places = PolicyPlaces {
        pins: None,
        ..places(stage.home.path())
    };
    let clock = Arc::clone(&stage.clock) as Arc<dyn Clock>;
    let gate = Gate::open(places, stage.ledger.clone(), clock).unwrap();
    let proposal = gate.propose(Bundle::of_rules(three_ways()), 0).unwrap();
    let error = gate.update(&proposal, &update_request()).unwrap_err();
    assert!(matches!(error, UpdateError::NoProject), "{error:?}");
}

#[test]
fn an_invalid_proposal_is_refused_with_its_place() {
    let stage = Stage::with_rules(&three_ways());
    let before = events(&stage.ledger).len();
    let bundle = Bundle::of_rules(
        "version: 1\ncapabilities:\n  - { name: a, match: { action: fs.wirte }, do: allow }\n",
    );
    let error = stage.gate.propose(bundle, 0).unwrap_err();
    let ProposeError::Invalid(LoadPolicyError::Refused { refused, text, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(refused.first.place.line, 3);
    assert!(text.contains("fs.wirte"));
    assert_eq!(events(&stage.ledger).len(), before);
}
