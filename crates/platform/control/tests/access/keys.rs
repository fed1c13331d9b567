//! Retiring a master key: when it may go, and who has to agree.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::{MasterKeyId, SecretBundleId, SecretVersionId};
use fluffy_control::call::NOTHING_SEALED;
use fluffy_control::event::{
    MasterKeyIntroduced, MasterKeyRewrapped, SecretBundleCreated, SecretBundleVersionSet,
};
use fluffy_control::{Caller, Fact, Material, Outcome, Request};
use serde_json::Value;

use crate::ground::{HOUR, World, local};

const DAY: Duration = Duration::from_secs(24 * 3600);
const OLD: &str = "mk_00000001";
const NEW: &str = "mk_00000002";

fn introduced(key: &str) -> Fact {
    let master_key_id: MasterKeyId = key.parse().unwrap();
    let by = "local".to_owned();
    Fact::new(
        master_key_id,
        MasterKeyIntroduced { master_key_id, by }.into(),
    )
}

/// Two keys, of which the second took the place of the first so long ago.
fn world(since: Duration) -> World {
    let mut world = World::empty();
    world.record(vec![introduced(OLD)]);
    world.pass(HOUR);
    world.record(vec![introduced(NEW)]);
    world.pass(since);
    world
}

fn retire(key: &str) -> Request {
    let mut request = Request::new(Operation::RetireKey, &[key]);
    request.material = Material::Proof(NOTHING_SEALED.to_owned());
    request
}

fn alone(key: &str) -> Request {
    let mut request = retire(key);
    request.query.insert("single".to_owned(), "true".to_owned());
    request
}

fn status(keys: &Value, id: &str) -> String {
    let mut all = keys["keys"].as_array().unwrap().iter();
    let key = all.find(|key| key["id"] == id).unwrap();
    key["status"].as_str().unwrap().to_owned()
}

fn why(world: &mut World, caller: &Caller, request: &Request) -> (String, String) {
    match world.write(caller, request) {
        Outcome::Refused(refusal) => (refusal.code.to_owned(), refusal.why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_stays_for_thirty_days_after_another_took_its_place() {
    let mut world = world(DAY * 30 - HOUR);
    let (code, text) = why(&mut world, &local(), &alone(OLD));
    assert_eq!(code, "invalid_transition");
    assert!(text.contains("30 days"), "{text}");
    world.pass(HOUR);
    let keys = world.done(&local(), &alone(OLD));
    assert_eq!(status(&keys, OLD), "retired", "{keys}");
    assert_eq!(status(&keys, NEW), "current", "{keys}");
    // Said again it changes nothing, and the current one stays.
    let seq = world.state.seq;
    world.done(&local(), &alone(OLD));
    let (code, text) = why(&mut world, &local(), &alone(NEW));
    assert_eq!(code, "invalid_transition");
    assert!(text.contains("current"), "{text}");
    assert_eq!(world.refused(&local(), &alone("mk_00000009")), "not_found");
    assert_eq!(world.refused(&local(), &alone("nonsense")), "not_found");
    let key: MasterKeyId = OLD.parse().unwrap();
    let retired = &world.state.runtime.cluster.keys[&key];
    assert!(retired.retired_at.is_some());
    assert!(world.state.seq >= seq);
}

#[test]
fn a_key_that_something_is_sealed_with_is_not_retired() {
    let mut world = world(DAY * 31);
    let acme = world.org("acme");
    let shop = world.app(acme, "shop");
    let dev = world.env(shop, "dev", false);
    let bundle = SecretBundleId::from_bits(7);
    let set = SecretBundleVersionSet {
        version_id: SecretVersionId::from_bits(7),
        data_hash: Digest::of(b""),
        key_count: 1,
        size_bytes: 1,
        master_key_id: OLD.parse().unwrap(),
        keys: None,
    };
    let format = "FLUFFY_SECRETS_V1".to_owned();
    let created = SecretBundleCreated { format };
    world.record(vec![
        Fact::new(bundle, created.into()).of(&dev.scope()),
        Fact::new(bundle, set.into()).of(&dev.scope()),
    ]);
    let (code, text) = why(&mut world, &local(), &alone(OLD));
    assert_eq!(code, "key_in_use");
    assert!(text.contains("1 versions of secrets"), "{text}");

    // On record it is sealed anew; what the server found counts all the same.
    let from: MasterKeyId = OLD.parse().unwrap();
    let to = NEW.parse().unwrap();
    let rewrapped = MasterKeyRewrapped { from, to, count: 1 };
    world.record(vec![Fact::new(from, rewrapped.into())]);
    let mut found = alone(OLD);
    found.material = Material::Proof("1 authorities".to_owned());
    let (code, text) = why(&mut world, &local(), &found);
    assert_eq!(code, "key_in_use");
    assert!(text.contains("1 authorities"), "{text}");
    let mut unseen = alone(OLD);
    unseen.material = Material::None;
    assert_eq!(world.refused(&local(), &unseen), "key_in_use");
    // The control.
    let keys = world.done(&local(), &alone(OLD));
    assert_eq!(status(&keys, OLD), "retired");
}

#[test]
fn two_operators_agree_where_there_are_two() {
    let mut world = world(DAY * 31);
    let one = world.member(None, "platform_operator");
    // Nobody else could agree.
    let (code, _) = why(&mut world, &one, &retire(NEW));
    assert_eq!(code, "invalid_transition");
    let two = world.member(None, "platform_operator");
    assert_eq!(world.refused(&one, &alone(OLD)), "forbidden");
    let keys = world.done(&one, &retire(OLD));
    assert_eq!(status(&keys, OLD), "previous", "{keys}");
    assert_eq!(keys["keys"][0]["retire_asked_by"], one.actor.id.as_str());
    assert_eq!(world.refused(&one, &retire(OLD)), "self_approval");
    let again = world.login(&one.actor.id);
    assert_eq!(world.refused(&again, &retire(OLD)), "self_approval");

    // After a day it has to be asked for anew.
    world.pass(DAY);
    let two_later = world.login(&two.actor.id);
    let keys = world.done(&two_later, &retire(OLD));
    assert_eq!(status(&keys, OLD), "previous", "{keys}");
    let one_later = world.login(&one.actor.id);
    let keys = world.done(&one_later, &retire(OLD));
    assert_eq!(status(&keys, OLD), "retired", "{keys}");
    assert!(keys["keys"][0]["retire_asked_by"].is_null(), "{keys}");
}

#[test]
fn the_only_operator_retires_alone_and_has_to_say_so() {
    let mut world = world(DAY * 31);
    let one = world.member(None, "platform_operator");
    // Who was asked to run the platform and never came can't agree.
    world.invited(None, "platform_operator");
    let keys = world.done(&one, &retire(OLD));
    assert_eq!(status(&keys, OLD), "previous", "{keys}");
    let keys = world.done(&one, &alone(OLD));
    assert_eq!(status(&keys, OLD), "retired", "{keys}");
    // Whoever runs nothing does not.
    let nobody = world.person();
    assert_eq!(world.refused(&nobody, &alone(OLD)), "forbidden");
}
