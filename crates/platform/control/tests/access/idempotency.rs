//! A request with a key is done once.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_control::{Outcome, Owner, Request};
use serde_json::json;

use crate::ground::{HOUR, With, World, refusal, request};
use crate::{fixtures, matrix};

fn key(key: &str) -> With<'_> {
    With {
        key: Some(key),
        if_match: None,
    }
}

fn create(slug: &str) -> Request {
    request(Operation::CreateOrg, &[], json!({ "slug": slug }))
}

#[test]
fn a_repeated_key_replays_and_another_body_is_refused() {
    let mut world = World::new();
    let operator = world.member(None, "platform_operator");
    let first = world.write_with(&operator, &create("one"), key("key-number-1"));
    assert!(matches!(first, Outcome::Done { status: 201, .. }));
    let events = world.events.len();
    let again = world.write_with(&operator, &create("one"), key("key-number-1"));
    let Outcome::Replayed { seq } = again else {
        panic!("{again:?}")
    };
    let decided = &world.events[usize::try_from(seq).unwrap() - 1];
    assert_eq!(decided.event_type, "authz.decided");
    assert_eq!(world.events.len(), events, "a replay appends nothing");
    let other = world.write_with(&operator, &create("two"), key("key-number-1"));
    assert_eq!(refusal(other).code, "idempotency_key_reuse");
    // The control: without a key it is simply asked again.
    let plain = world.write(&operator, &create("one"));
    assert_eq!(refusal(plain).code, "name_taken");
}

#[test]
fn every_write_replays_and_refuses_another_body_under_its_key() {
    let mut tried = 0;
    for operation in Operation::ALL {
        let spec = operation.spec();
        let Some(capability) = spec.capability.filter(|_| spec.is_write()) else {
            continue;
        };
        // Each in a platform of its own: some of them take things away.
        let mut world = World::empty();
        world.record(fixtures::made());
        let owner = world.member(Some("acme"), "owner");
        let operator = world.member(None, "platform_operator");
        let exec = world.person();
        let org = world.named("acme").org.unwrap();
        let below = [format!("{org}/*")];
        world.give(&exec, "instance.exec.acme/*", &below, HOUR);
        let caller = match (spec.path.contains("{org}"), capability) {
            (_, "instance.exec") => &exec,
            (true, "quota.set") | (false, _) => &operator,
            (true, _) => &owner,
        };
        let path = matrix::path_of(*operation, "dev");
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        // Whatever comes of it: what is decided is its being done twice.
        let mut made_up = request(*operation, &path, json!({ "made": "up" }));
        let first = world.write_with(caller, &made_up, key(spec.id));
        assert!(!matches!(first, Outcome::Replayed { .. }), "{}", spec.id);
        // What fails for now takes no key; a platform without keys seals nothing.
        if matches!(&first, Outcome::Refused(it) if it.code == "secrets_key_unavailable") {
            let again = world.write_with(caller, &made_up, key(spec.id));
            assert_eq!(again, first, "{}", spec.id);
            continue;
        }
        let events = world.events.len();
        let again = world.write_with(caller, &made_up, key(spec.id));
        assert!(
            matches!(again, Outcome::Replayed { .. }),
            "{}: {again:?}",
            spec.id
        );
        assert_eq!(world.events.len(), events, "{}", spec.id);
        made_up.body = Some(json!({ "another": "body" }));
        let other = world.write_with(caller, &made_up, key(spec.id));
        assert_eq!(refusal(other).code, "idempotency_key_reuse", "{}", spec.id);
        tried += 1;
    }
    assert!(tried > 55, "{tried}");
}

#[test]
fn a_key_is_ones_own_and_lasts_a_day() {
    let mut world = World::new();
    let operator = world.member(None, "platform_operator");
    let other = world.member(None, "platform_operator");
    world.write_with(&operator, &create("one"), key("key-number-1"));
    let theirs = world.write_with(&other, &create("two"), key("key-number-1"));
    assert!(matches!(theirs, Outcome::Done { .. }), "{theirs:?}");
    world.pass(Duration::from_secs(24 * 3600));
    let operator = world.login(&operator.actor.id);
    let late = world.write_with(&operator, &create("one"), key("key-number-1"));
    assert_eq!(refusal(late).code, "name_taken");
}

#[test]
fn a_refusal_takes_the_key_and_a_denial_does_not() {
    let mut world = World::new();
    let operator = world.member(None, "platform_operator");
    let taken = world.write_with(&operator, &create("acme"), key("key-number-1"));
    assert_eq!(refusal(taken).code, "name_taken");
    let again = world.write_with(&operator, &create("acme"), key("key-number-1"));
    assert!(matches!(again, Outcome::Replayed { .. }), "{again:?}");
    let person = world.person();
    for _ in 0..2 {
        let denied = world.write_with(&person, &create("mine"), key("key-number-2"));
        assert_eq!(refusal(denied).code, "forbidden");
    }
}

#[test]
fn who_lost_the_right_gets_no_replay() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let admin = world.person();
    let acme = world.named("acme");
    let member = world.join(&admin, acme, "admin").to_string();
    let change = request(
        Operation::SetPolicy,
        &["acme"],
        json!({ "rules": "", "expected_version": 0 }),
    );
    let first = world.write_with(&admin, &change, key("key-number-1"));
    assert!(matches!(first, Outcome::Done { .. }), "{first:?}");
    let remove = Request::new(Operation::RemoveMember, &["acme", &member]);
    world.done(&owner, &remove);
    let again = world.write_with(&admin, &change, key("key-number-1"));
    assert_eq!(refusal(again).code, "org_access_denied");
}

/// What somebody deletes takes away where they were allowed to.
#[test]
fn who_deleted_what_they_held_is_told_so_again() {
    let mut world = World::new();
    let acme = world.named("acme");
    let shop = Owner {
        app: world.state.access.names.app(acme.org.unwrap(), "shop"),
        ..acme
    };
    let blog = world.app(acme, "blog");
    let test = world.env(shop, "test", false);
    let viewer = world.person();
    let row = world.join(&viewer, test, "viewer").to_string();
    for (operation, path, held) in [
        (Operation::RemoveMember, vec!["acme", row.as_str()], shop),
        (Operation::DeleteEnv, vec!["acme", "shop", "test"], test),
        (Operation::DeleteApp, vec!["acme", "blog"], blog),
    ] {
        let id = operation.spec().id;
        let admin = world.person();
        world.join(&admin, held, "admin");
        let delete = Request::new(operation, &path);
        let first = world.write_with(&admin, &delete, key("key-number-1"));
        assert!(matches!(first, Outcome::Done { .. }), "{id}: {first:?}");
        let events = world.events.len();
        let again = world.write_with(&admin, &delete, key("key-number-1"));
        assert!(matches!(again, Outcome::Replayed { .. }), "{id}: {again:?}");
        assert_eq!(world.events.len(), events, "{id}");
        // The controls: another body, another key and another caller.
        let other = request(operation, &path, json!({ "made": "up" }));
        for refused in [
            world.write_with(&admin, &other, key("key-number-1")),
            world.write_with(&admin, &delete, key("key-number-2")),
            world.write_with(&viewer, &delete, key("key-number-1")),
        ] {
            let code = refusal(refused).code;
            assert!(["forbidden", "org_access_denied"].contains(&code), "{code}");
        }
    }
}

#[test]
fn what_must_carry_a_key_or_a_version_says_so() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let deploy = Request::new(Operation::CreateDeploy, &["acme", "shop", "dev"]);
    assert_eq!(world.refused(&owner, &deploy), "idempotency_key_required");
    let rules = |version| {
        let mut body = json!({ "rules": "" });
        if let Some(version) = version {
            body["expected_version"] = json!(version);
        }
        request(Operation::SetPolicy, &["acme"], body)
    };
    assert_eq!(
        world.refused(&owner, &rules(None::<u64>)),
        "precondition_required"
    );
    assert_eq!(world.refused(&owner, &rules(Some(3))), "version_conflict");
    let stale = With {
        key: None,
        if_match: Some(9),
    };
    let refused = world.write_with(&owner, &rules(Some(0)), stale);
    assert_eq!(refusal(refused).code, "precondition_failed");
    assert_eq!(world.done(&owner, &rules(Some(0)))["version"], 1);
    assert_eq!(world.done(&owner, &rules(Some(1)))["version"], 2);
}

#[test]
fn a_version_counts_for_what_is_named_by_name_too() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let body = json!({ "name": "web" });
    world.done(&owner, &request(Operation::CreateProject, &["acme"], body));
    let change = |version| {
        let body = json!({ "display_name": "Web", "expected_version": version });
        request(Operation::UpdateProject, &["acme", "web"], body)
    };
    assert_eq!(world.refused(&owner, &change(7)), "version_conflict");
    assert_eq!(world.done(&owner, &change(1))["version"], 2);
    let env = ["acme", "shop", "dev"];
    let secrets = Request::new(Operation::DeleteSecrets, &env);
    let stale = With {
        key: None,
        if_match: Some(3),
    };
    let refused = world.write_with(&owner, &secrets, stale);
    assert_eq!(refusal(refused).code, "precondition_failed");
}
