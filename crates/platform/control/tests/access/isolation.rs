//! Existence does not leak: who has nothing in an org hears the same whatever
//! is there, and what is not there is told only to those who may see it.

use fluffy_api::Operation;
use fluffy_api::operation::{Auth, Kind};
use fluffy_control::{Caller, Outcome, Refusal, Request};
use serde_json::json;

use crate::ground::{HOUR, With, World};

/// Every operation of an org, on something that is there and on what is not.
fn pairs(operation: Operation, there: [&str; 3], not: [&str; 3]) -> Vec<Request> {
    let make = |names: [&str; 3]| {
        let path: Vec<&str> = operation
            .spec()
            .path_params()
            .map(|param| match param {
                "org" => names[0],
                "app" => names[1],
                "env" => names[2],
                _ => "inst_01J00000000000000000000001",
            })
            .collect();
        let mut request = Request::new(operation, &path);
        request.body = Some(json!({}));
        request
    };
    vec![make(there), make(not)]
}

fn refused(world: &World, caller: &Caller, request: &Request) -> Refusal {
    if request.operation.spec().kind == Kind::Write {
        let with = With {
            key: Some("some-key-here"),
            if_match: Some(1),
        };
        match world.decide(caller, request, with).outcome {
            Outcome::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    } else {
        world.read(caller, request).result.unwrap_err()
    }
}

#[test]
fn a_stranger_hears_the_same_of_what_is_and_is_not_there() {
    let mut world = World::new();
    let stranger = world.person();
    let other = world.member(Some("umbra"), "owner");
    let mut asked = 0;
    for operation in Operation::ALL {
        let spec = operation.spec();
        if !spec.path.contains("{org}") || spec.auth != Auth::Caller {
            continue;
        }
        for caller in [&stranger, &other] {
            let there = ["acme", "shop", "dev"];
            for not in [
                ["nothing", "shop", "dev"],
                ["acme", "nothing", "dev"],
                ["acme", "shop", "nothing"],
                ["../acme", "a/b", ""],
            ] {
                let [is, is_not] = pairs(*operation, there, not).try_into().unwrap();
                let (is, is_not) = (
                    refused(&world, caller, &is),
                    refused(&world, caller, &is_not),
                );
                assert_eq!(is.code, "org_access_denied", "{}", spec.id);
                assert_eq!(is, is_not, "{}", spec.id);
            }
        }
        asked += 1;
    }
    assert!(asked > 70, "{asked}");
}

#[test]
fn whoever_sees_an_app_hears_that_another_is_not_there() {
    let mut world = World::new();
    let viewer = world.member(Some("acme"), "viewer");
    let missing = Request::new(Operation::GetApp, &["acme", "nothing"]);
    assert_eq!(refused(&world, &viewer, &missing).code, "not_found");
    let there = Request::new(Operation::GetApp, &["acme", "shop"]);
    assert!(world.read(&viewer, &there).result.is_ok());
}

#[test]
fn who_may_act_but_not_see_is_not_told_what_is_missing() {
    let mut world = World::new();
    let org = world.named("acme").org.unwrap();
    let deployer = world.person();
    let below = [format!("{org}/*")];
    world.give(&deployer, "env.deploy.acme/*", &below, HOUR);
    let request = |env| Request::new(Operation::CreateDeploy, &["acme", "shop", env]);
    let with = With {
        key: Some("some-key-here"),
        if_match: None,
    };
    let written = world.decide(&deployer, &request("nothing"), with);
    let Outcome::Refused(refusal) = written.outcome else {
        panic!("not refused")
    };
    assert_eq!(refusal.code, "forbidden");
    // The record says that it was refused, too.
    let record = written.facts[0].body.payload();
    assert_eq!(record["outcome"], "deny");
    // The control: with the right to see, it is told.
    world.give(&deployer, "env.read.acme/*", &below, HOUR);
    let written = world.decide(&deployer, &request("nothing"), with);
    let Outcome::Refused(refusal) = written.outcome else {
        panic!("not refused")
    };
    assert_eq!(refusal.code, "not_found");
}

#[test]
fn an_object_of_another_org_is_not_there() {
    let mut world = World::new();
    let umbra = world.named("umbra");
    let app = world.app(umbra, "secret");
    let owner = world.member(Some("acme"), "owner");
    let foreign = app.app.unwrap().to_string();
    let request = Request::new(Operation::GetApp, &["acme", &foreign]);
    assert_eq!(refused(&world, &owner, &request).code, "not_found");
    // The control: its own org finds it by the same id.
    let other = world.member(Some("umbra"), "viewer");
    let request = Request::new(Operation::GetApp, &["umbra", &foreign]);
    assert!(world.read(&other, &request).result.is_ok());
}

#[test]
fn an_id_of_another_org_below_ones_own_is_not_there() {
    let mut world = World::new();
    let mine = world.member(Some("acme"), "owner");
    let theirs = world.person();
    let umbra = world.named("umbra");
    let foreign = world.join(&theirs, umbra, "viewer").to_string();
    let remove = Request::new(Operation::RemoveMember, &["acme", &foreign]);
    assert_eq!(world.refused(&mine, &remove), "not_found");
}

#[test]
fn a_later_object_of_the_same_name_is_another_one() {
    let mut world = World::new();
    let acme = world.named("acme");
    let old = world.app(acme, "blog");
    let person = world.person();
    let ids = [format!("{}/{}", old.org.unwrap(), old.app.unwrap())];
    world.give(&person, "app.read.acme/blog", &ids, HOUR * 24 * 60);
    let request = Request::new(Operation::GetApp, &["acme", "blog"]);
    assert!(world.read(&person, &request).result.is_ok());
    let deleted = fluffy_control::event::AppDeleted {};
    let id = old.app.unwrap();
    world.record(vec![
        fluffy_control::Fact::new(id, deleted.into()).of(&old.scope()),
    ]);
    world.app(acme, "blog");
    let refusal = world.read(&person, &request).result.unwrap_err();
    assert_eq!(refusal.code, "forbidden");
}
