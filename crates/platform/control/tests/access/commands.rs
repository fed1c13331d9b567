//! What people do with members, principals, tokens, grants and rules.

use std::collections::BTreeSet;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_control::access::{Audit, Reads, caller_of_token, is_of_platform, may_see};
use fluffy_control::call::Shown;
use fluffy_control::{Caller, Material, Outcome, Request};
use serde_json::{Value, json};

use crate::ground::{
    HOUR, World, anonymous, credential, issuing, local, refusal, request, service_id, token_id,
};

fn invite(role: &str, token: u128) -> Request {
    let body = json!({ "email": "a@example.com", "role": role });
    let add = request(Operation::AddMember, &["acme"], body);
    issuing(add, &[token_id(token)])
}

fn grant(to: &Caller, pattern: &str, more: Value) -> Request {
    let mut body = json!({ "principal_id": to.actor.id, "pattern": pattern });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    request(Operation::CreateGrant, &["acme"], body)
}

#[test]
fn nobody_gives_a_role_that_they_do_not_hold() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let owner = world.member(Some("acme"), "owner");
    assert_eq!(
        world.refused(&admin, &invite("owner", 1)),
        "grant_exceeds_own"
    );
    for (role, token) in [
        ("viewer", 2),
        ("developer", 3),
        ("operator", 4),
        ("admin", 5),
    ] {
        assert_eq!(world.done(&admin, &invite(role, token))["role"], role);
    }
    assert_eq!(world.done(&owner, &invite("owner", 6))["status"], "invited");
}

#[test]
fn an_admin_does_not_touch_an_owner() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    world.member(Some("acme"), "owner");
    let person = world.person();
    let acme = world.named("acme");
    let id = world.join(&person, acme, "owner").to_string();
    let remove = Request::new(Operation::RemoveMember, &["acme", &id]);
    assert_eq!(world.refused(&admin, &remove), "grant_exceeds_own");
    let body = json!({ "role": "viewer" });
    let demote = request(Operation::UpdateMember, &["acme", &id], body);
    assert_eq!(world.refused(&admin, &demote), "grant_exceeds_own");
    let owner = world.member(Some("acme"), "owner");
    assert_eq!(world.done(&owner, &demote)["role"], "viewer");
    assert_eq!(world.done(&admin, &remove)["deleted"], true);
}

#[test]
fn an_org_keeps_an_owner() {
    let mut world = World::new();
    let person = world.person();
    let acme = world.named("acme");
    let id = world.join(&person, acme, "owner").to_string();
    let remove = Request::new(Operation::RemoveMember, &["acme", &id]);
    assert_eq!(world.refused(&person, &remove), "last_owner");
    let body = json!({ "role": "admin" });
    let demote = request(Operation::UpdateMember, &["acme", &id], body);
    assert_eq!(world.refused(&person, &demote), "last_owner");
    world.member(Some("acme"), "owner");
    assert_eq!(world.done(&person, &demote)["role"], "admin");
}

/// Who was asked in and never came keeps no org alive.
#[test]
fn an_org_keeps_an_owner_who_has_come_in() {
    let mut world = World::new();
    let person = world.person();
    let acme = world.named("acme");
    let id = world.join(&person, acme, "owner").to_string();
    let asked = world.invited(Some("acme"), "owner");
    let remove = Request::new(Operation::RemoveMember, &["acme", &id]);
    let demote = json!({ "role": "admin" });
    let demote = request(Operation::UpdateMember, &["acme", &id], demote);
    for leaving in [&remove, &demote] {
        let refused = refusal(world.write(&person, leaving));
        assert_eq!(refused.code, "last_owner");
        assert!(refused.why.contains("come in"), "{}", refused.why);
    }
    // Who never came goes as anybody does.
    let away = Request::new(Operation::RemoveMember, &["acme", &asked.to_string()]);
    world.done(&person, &away);
    // The control: once another has come in, the first can go.
    let asked = world.invited(Some("acme"), "owner");
    let principal = world.state.access.members[&asked].principal.clone();
    assert_eq!(world.refused(&person, &remove), "last_owner");
    world.login(&principal);
    world.done(&person, &remove);
    // The owner of a machine is in from the beginning.
    let machine = world.org("local");
    world.invite("local", machine, "owner");
    let other = world.person();
    let id = world.join(&other, machine, "owner").to_string();
    let remove = Request::new(Operation::RemoveMember, &["local", &id]);
    world.done(&other, &remove);
}

#[test]
fn who_never_came_is_asked_again_and_the_lost_invite_ends() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let asks = |role: &str, token: u128| {
        let mut request = invite(role, token);
        let Material::Credential(credential) = &mut request.material else {
            panic!("{request:?}");
        };
        credential.email_hash = Some("h1".to_owned());
        request
    };
    let comes_in = |world: &mut World, token: u128| {
        let ids = [token * 10, token * 10 + 1].map(token_id);
        let shown = Shown::Token(token_id(token).parse().unwrap());
        let exchange = Request::new(Operation::ExchangeToken, &[]);
        world.write(&anonymous(), &credential(exchange, &ids, Some(shown)))
    };
    let member = world.done(&admin, &asks("viewer", 1));
    let again = world.done(&admin, &asks("viewer", 2));
    assert_eq!(again["id"], member["id"], "it is the same person");
    assert_eq!(again["principal_id"], member["principal_id"]);
    // With another role it is no invite but a change.
    assert_eq!(world.refused(&admin, &asks("developer", 3)), "conflict");
    let late = refusal(comes_in(&mut world, 1));
    assert_eq!(late.code, "invalid_grant");
    // What they were given meanwhile is more than the admin holds, who would
    // come in as them.
    let owner = world.member(Some("acme"), "owner");
    let exec = json!({
        "principal_id": member["principal_id"], "pattern": "instance.exec.acme/shop/*",
    });
    world.done(&owner, &request(Operation::CreateGrant, &["acme"], exec));
    assert_eq!(
        world.refused(&admin, &asks("viewer", 4)),
        "grant_exceeds_own"
    );
    // The control: the second invite is good, and then nobody is asked again.
    let come = comes_in(&mut world, 2);
    assert!(matches!(come, Outcome::Done { .. }), "{come:?}");
    assert_eq!(world.refused(&admin, &asks("viewer", 5)), "conflict");
}

#[test]
fn with_a_member_go_their_grants_and_tokens() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let person = world.person();
    let acme = world.named("acme");
    let id = world.join(&person, acme, "admin").to_string();
    let token = request(Operation::CreateToken, &["acme"], json!({}));
    world.done(&person, &issuing(token, &[token_id(8)]));
    let api = caller_of_token(&world.state, token_id(8).parse().unwrap()).unwrap();
    world.done(
        &owner,
        &grant(&person, "instance.exec.acme/shop/*", json!({})),
    );
    let remove = Request::new(Operation::RemoveMember, &["acme", &id]);
    world.done(&owner, &remove);
    let whoami = Request::new(Operation::Whoami, &[]);
    let refused = world.read(&api, &whoami).result.unwrap_err();
    assert_eq!(refused.code, "token_revoked");
    let me = world.get(&person, Operation::Whoami, &[]);
    assert_eq!(me["orgs"], json!([]));
}

#[test]
fn nobody_grants_what_they_do_not_hold() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let to = world.member(Some("acme"), "viewer");
    for pattern in [
        "org.admin.acme",
        "org.*.acme",
        "*.acme",
        "instance.exec.acme/*",
    ] {
        let refused = world.refused(&admin, &grant(&to, pattern, json!({})));
        assert_eq!(refused, "grant_exceeds_own", "{pattern}");
    }
    for pattern in [
        "env.deploy",
        "*",
        "env.deploy.umbra/*",
        "node.read.acme",
        "quota.set.acme",
        "model.generate.acme",
        "env.deploy.acme/nothing/*",
        "env.deploy.acme/sh*",
        "env.deploy.acme/shop/dev/x",
    ] {
        let refused = world.refused(&admin, &grant(&to, pattern, json!({})));
        assert_eq!(refused, "invalid_argument", "{pattern}");
    }
    let given = world.done(&admin, &grant(&to, "env.deploy.acme/*/prod", json!({})));
    let resolved = given["resolved_ids"].as_array().unwrap();
    assert_eq!(resolved.len(), 1);
    assert!(resolved[0].as_str().unwrap().contains("/env_"), "{given}");
    let me = world.get(&to, Operation::Whoami, &[]);
    let patterns = me["effective_patterns"].as_array().unwrap();
    assert!(patterns.contains(&json!("env.deploy.acme/shop/prod")));
}

#[test]
fn owners_give_exec_to_others_and_to_themselves_for_an_emergency() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let developer = world.member(Some("acme"), "developer");
    let exec = "instance.exec.acme/shop/*";
    world.done(&owner, &grant(&developer, exec, json!({})));
    assert_eq!(
        world.refused(&owner, &grant(&owner, exec, json!({}))),
        "grant_exceeds_own"
    );
    for bad in [
        json!({ "break_glass": true }),
        json!({ "break_glass": true, "reason": "down", "ttl_seconds": 14401 }),
    ] {
        assert_eq!(
            world.refused(&owner, &grant(&owner, exec, bad)),
            "invalid_argument"
        );
    }
    // The root of an instance is given in the same way, and by itself.
    let root = "instance.exec_root.acme/shop/*";
    world.done(&owner, &grant(&developer, root, json!({})));
    assert_eq!(
        world.refused(&owner, &grant(&owner, root, json!({}))),
        "grant_exceeds_own"
    );
    let emergency = json!({ "break_glass": true, "reason": "down" });
    let given = world.done(&owner, &grant(&owner, exec, emergency));
    assert_eq!(given["reason"], "down");
    let can = |world: &World, caller: &Caller| {
        let me = world.get(caller, Operation::Whoami, &[]);
        let patterns = me["effective_patterns"].as_array().unwrap();
        patterns.contains(&json!(exec))
    };
    assert!(can(&world, &owner));
    world.pass(Duration::from_secs(4 * 3600));
    let owner = world.login(&owner.actor.id);
    assert!(!can(&world, &owner));
}

#[test]
fn a_token_never_reaches_further_than_the_one_it_was_asked_for_with() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let create = |body: Value, id: u128| {
        issuing(
            request(Operation::CreateToken, &["acme"], body),
            &[token_id(id)],
        )
    };
    let caller = |world: &World, id: u128| {
        caller_of_token(&world.state, token_id(id).parse().unwrap()).unwrap()
    };
    let narrow = json!({ "ceiling": ["token.manage.acme", "app.read.acme/*"] });
    world.done(&admin, &create(narrow, 1));
    let narrow = caller(&world, 1);
    let more = create(json!({ "ceiling": ["app.*.acme/*"] }), 2);
    assert_eq!(world.refused(&narrow, &more), "grant_exceeds_own");
    let made = world.done(&narrow, &create(json!({}), 3));
    assert_eq!(
        made["ceiling"],
        json!(["token.manage.acme", "app.read.acme/*"])
    );
    let other = world.member(Some("acme"), "owner");
    let theirs = json!({ "principal_id": other.actor.id });
    assert_eq!(
        world.refused(&admin, &create(theirs, 4)),
        "invalid_argument"
    );
    // Of too many patterns none is left out in silence.
    let patterns = |count: usize| json!({ "ceiling": vec!["app.read.acme"; count] });
    for (asks, id) in [(&admin, 6), (&narrow, 7)] {
        let many = create(patterns(65), id);
        assert_eq!(world.refused(asks, &many), "invalid_argument");
    }
    let made = world.done(&admin, &create(patterns(64), 8));
    assert_eq!(made["ceiling"].as_array().unwrap().len(), 64);
    let long = json!({ "ttl_seconds": 90 * 24 * 3600 + 1 });
    assert_eq!(world.refused(&admin, &create(long, 5)), "invalid_argument");
}

#[test]
fn a_token_of_one_org_is_nothing_in_another() {
    let mut world = World::new();
    let person = world.member(Some("acme"), "admin");
    let umbra = world.named("umbra");
    world.join(&person, umbra, "owner");
    let create = request(Operation::CreateToken, &["acme"], json!({}));
    world.done(&person, &issuing(create, &[token_id(1)]));
    let api = caller_of_token(&world.state, token_id(1).parse().unwrap()).unwrap();
    let get = |slug| Request::new(Operation::GetOrg, &[slug]);
    assert!(world.read(&api, &get("acme")).result.is_ok());
    let refused = world.read(&api, &get("umbra")).result.unwrap_err();
    assert_eq!(refused.code, "org_access_denied");
    assert!(world.read(&person, &get("umbra")).result.is_ok());
}

/// There is one ledger: what one org has kept is kept of all, so no org says
/// how long.
#[test]
fn a_legal_hold_is_set_and_lifted_by_operators_alone() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let operator = world.member(None, "platform_operator");
    let change = |body: Value| request(Operation::UpdateOrg, &["acme"], body);
    let hold = |until: Value| change(json!({ "legal_hold_until": until }));
    let until = json!("2027-01-01T00:00:00Z");
    let refused = refusal(world.write(&owner, &hold(until.clone())));
    assert_eq!(refused.code, "forbidden");
    assert!(refused.why.contains("ledger.admin"), "{}", refused.why);
    assert!(refused.fix.contains("operator"), "{}", refused.fix);
    // Nor by rules that would keep the operators from it, or from limits.
    let rules = "version: 1\ncapabilities:\n\
        - { name: mine, match: { action: [ledger.admin, quota.set] }, do: deny }\n";
    let rules = json!({ "rules": rules, "expected_version": 0 });
    world.done(&owner, &request(Operation::SetPolicy, &["acme"], rules));
    let held = world.done(&operator, &hold(until));
    assert!(held["legal_hold_until"].is_string(), "{held}");
    let limit = json!({ "limits": { "apps": 5 }, "expected_version": held["version"] });
    world.done(&operator, &request(Operation::SetQuotas, &["acme"], limit));
    assert_eq!(world.refused(&owner, &hold(Value::Null)), "forbidden");
    // What else there is of an org stays its owners'.
    let both = change(json!({ "legal_hold_until": null, "display_name": "Mine" }));
    assert_eq!(world.refused(&operator, &both), "forbidden");
    let renamed = world.done(&owner, &change(json!({ "display_name": "Acme" })));
    assert!(renamed["legal_hold_until"].is_string(), "{renamed}");
    // The control: operators lift it as well.
    let lifted = world.done(&operator, &hold(Value::Null));
    assert!(lifted["legal_hold_until"].is_null(), "{lifted}");
}

/// Every event is in one history: that of the platform, which its operators
/// read, or that of one org.
#[test]
fn operators_read_what_no_org_sees_and_nothing_of_an_org() {
    let mut world = World::empty();
    world.record(crate::fixtures::made());
    let acme = world.named("acme");
    let owner = world.member(Some("acme"), "owner");
    let operator = world.member(None, "platform_operator");
    let mut kinds = BTreeSet::new();
    for event in &world.events {
        let of_org = may_see(acme.org.unwrap(), Audit::Included, event);
        let of_platform = is_of_platform(event);
        assert!(of_org ^ of_platform, "{event:?}");
        if of_platform {
            assert_eq!(event.scope.org_id, None, "{event:?}");
            kinds.insert(event.aggregate.kind.as_str());
        }
    }
    for kind in ["cluster", "enrollment_token", "master_key", "node"] {
        assert!(kinds.contains(kind), "{kind}: {kinds:?}");
    }
    // Each look is on record; others may not look.
    let look = Request::new(Operation::ListPlatformEvents, &[]);
    let read = world.read(&operator, &look);
    assert!(read.result.is_ok() && read.noted.is_none(), "{read:?}");
    assert_eq!(read.facts.len(), 1);
    let refused = world.read(&owner, &look).result.unwrap_err();
    assert_eq!(refused.code, "forbidden");
}

#[test]
fn who_sees_a_secret_holds_what_it_opens() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let admin = world.member(Some("acme"), "admin");
    let body = json!({ "name": "ci", "grants": ["org.admin.acme"] });
    let create = request(Operation::CreatePrincipal, &["acme"], body);
    let create = issuing(create, &[service_id(1)]);
    assert_eq!(world.refused(&admin, &create), "grant_exceeds_own");
    world.done(&owner, &create);
    let rotate = Request::new(Operation::RotatePrincipal, &["acme", "ci"]);
    let rotate = issuing(rotate, &["r".to_owned()]);
    assert_eq!(world.refused(&admin, &rotate), "grant_exceeds_own");
    let body = json!({ "principal_id": service_id(1) });
    let token = request(Operation::CreateToken, &["acme"], body);
    let token = issuing(token, &[token_id(1)]);
    assert_eq!(world.refused(&admin, &token), "grant_exceeds_own");
    world.done(&owner, &token);
}

#[test]
fn a_token_gives_no_higher_limit_than_its_own() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let asked = |number, body| {
        let create = request(Operation::CreateToken, &["acme"], body);
        issuing(create, &[token_id(number)])
    };
    world.done(&owner, &asked(1, json!({ "writes_per_minute": 5 })));
    let limited = |world: &World| {
        let id = token_id(1).parse().unwrap();
        caller_of_token(&world.state, id).unwrap()
    };
    let bearer = limited(&world);
    let more = json!({ "writes_per_minute": 50, "reads_per_minute": 7 });
    world.done(&bearer, &asked(2, more));
    world.done(&bearer, &asked(3, json!({ "writes_per_minute": 2 })));
    world.done(&bearer, &asked(4, json!({})));
    let limits = |number| {
        let token = &world.state.access.tokens[&token_id(number).parse().unwrap()];
        (token.reads, token.writes)
    };
    assert_eq!(limits(1), (None, Some(5)));
    assert_eq!(limits(2), (Some(7), Some(5)));
    assert_eq!(limits(3), (None, Some(2)));
    assert_eq!(limits(4), (None, Some(5)));
}

#[test]
fn rules_narrow_and_lock_nobody_out() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let set = |rules: &str, version: u64| {
        let body = json!({ "rules": rules, "expected_version": version });
        request(Operation::SetPolicy, &["acme"], body)
    };
    let rules = |text: &str| format!("version: 1\ncapabilities:\n- {text}\n");
    for bad in [
        rules("{ name: all, match: { action: app.read }, do: allow }"),
        rules("{ name: typo, match: { action: app.raed }, do: deny }"),
        rules("{ name: locked, match: { action: policy.manage }, do: deny }"),
        rules("{ name: looked, match: { action: policy.manage }, do: require_review }"),
        rules("{ name: everything, do: deny }"),
    ] {
        assert_eq!(
            world.refused(&admin, &set(&bad, 0)),
            "policy_invalid",
            "{bad}"
        );
    }
    let freeze =
        rules("{ name: freeze, match: { action: app.update, path_glob: [acme/shop] }, do: deny }");
    let update = Request::new(Operation::UpdateApp, &["acme", "shop"]);
    let body = json!({ "rules": freeze });
    assert_ne!(code_of(&mut world, &admin, &update), "policy_denied");
    let trial = world.read(&admin, &request(Operation::TestPolicy, &["acme"], body));
    let trial = trial.result.unwrap();
    assert_eq!(trial["changed"][0]["would_be"], "deny", "{trial}");
    assert_eq!(trial["changed"][0]["rule_id"], "organisation:freeze");
    world.done(&admin, &set(&freeze, 0));
    assert_eq!(code_of(&mut world, &admin, &update), "policy_denied");
    let event = world.events.last().unwrap();
    assert_eq!(event.event_type, "authz.decided");
    assert_eq!(event.scope.org_id, world.named("acme").scope().org_id);
}

fn code_of(world: &mut World, caller: &Caller, request: &Request) -> &'static str {
    let with = crate::ground::With {
        key: Some("some-key-here"),
        if_match: None,
    };
    match world.write_with(caller, request, with) {
        fluffy_control::Outcome::Refused(refusal) => refusal.code,
        _ => "ok",
    }
}

#[test]
fn protecting_an_env_is_for_administrators() {
    let mut world = World::new();
    let operator = world.member(Some("acme"), "operator");
    let admin = world.member(Some("acme"), "admin");
    let path = ["acme", "shop", "dev"];
    let protect = request(Operation::UpdateEnv, &path, json!({ "protected": true }));
    assert_eq!(code_of(&mut world, &operator, &protect), "forbidden");
    assert_ne!(code_of(&mut world, &admin, &protect), "forbidden");
    let other = request(
        Operation::UpdateEnv,
        &path,
        json!({ "display_name": "Dev" }),
    );
    assert_ne!(code_of(&mut world, &operator, &other), "forbidden");
    let body = json!({ "name": "live", "protected": true });
    let create = request(Operation::CreateEnv, &["acme", "shop"], body);
    assert_eq!(code_of(&mut world, &operator, &create), "forbidden");
    let mut force = Request::new(Operation::DisableIpv4, &path);
    force.query.insert("force".to_owned(), "true".to_owned());
    assert_eq!(code_of(&mut world, &admin, &force), "forbidden");
    let runs = world.member(None, "platform_operator");
    assert_ne!(code_of(&mut world, &runs, &force), "forbidden");
}

#[test]
fn a_new_org_belongs_to_whoever_made_it() {
    let mut world = World::new();
    let operator = world.member(None, "platform_operator");
    let create = request(Operation::CreateOrg, &[], json!({ "slug": "fresh" }));
    let made = world.done(&operator, &create);
    assert_eq!(made["display_name"], "fresh");
    let id = made["id"].as_str().unwrap();
    assert_eq!(
        world.get(&operator, Operation::GetOrg, &[id])["slug"],
        "fresh"
    );
    // Others are still none of the operator's business.
    let acme = Request::new(Operation::GetOrg, &["acme"]);
    assert_eq!(
        world.read(&operator, &acme).result.unwrap_err().code,
        "forbidden"
    );
    let orgs = world.get(&operator, Operation::ListOrgs, &[]);
    assert_eq!(orgs["items"].as_array().unwrap().len(), 3);
    for bad in ["A", "a", "-a", "a_b", "x/y", &"a".repeat(40)] {
        let create = request(Operation::CreateOrg, &[], json!({ "slug": bad }));
        assert_eq!(
            world.refused(&operator, &create),
            "invalid_argument",
            "{bad}"
        );
    }
}

#[test]
fn reads_are_summed_up_and_sensitive_ones_recorded_each() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let org = Request::new(Operation::GetOrg, &["acme"]);
    let mut reads = Reads::default();
    for _ in 0..3 {
        let read = world.read(&admin, &org);
        assert!(read.facts.is_empty());
        assert!(reads.note(world.now, read.noted.unwrap()).is_none());
    }
    world.pass(Reads::WINDOW);
    let ended = reads.note(world.now, world.read(&admin, &org).noted.unwrap());
    let system = crate::ground::system();
    let ended = fluffy_control::Notice::Access(ended.unwrap());
    let with = crate::ground::With::default();
    let written = world.call(&system, with, None, |call| {
        fluffy_control::notice(&world.state, call, &ended)
    });
    assert_eq!(written.facts.len(), 1);
    assert_eq!(written.facts[0].body.payload()["count"], 3);
    let logs = Request::new(Operation::GetLogs, &["acme", "shop", "dev"]);
    let read = world.read(&admin, &logs);
    let types: Vec<_> = read
        .facts
        .iter()
        .map(|fact| fact.body.event_type())
        .collect();
    assert_eq!(types, ["authz.decided", "logs.accessed"]);
    let viewer = world.member(Some("acme"), "viewer");
    let read = world.read(&viewer, &logs);
    assert_eq!(read.facts.len(), 1, "a denied read is recorded");
}

#[test]
fn a_tenant_looks_at_an_hour_of_logs_at_once() {
    let mut world = World::new();
    let admin = world.member(Some("acme"), "admin");
    let operator = local();
    let acme = world.named("acme").org.unwrap();
    let ids = [format!("{acme}/*")];
    world.give(&operator, "logs.read.acme/*", &ids, 2 * HOUR);
    let look = |by: &Caller, until: Option<&str>| {
        let mut logs = Request::new(Operation::GetLogs, &["acme", "shop", "dev"]);
        let query = [("since", Some("2026-11-16T06:00:00Z")), ("until", until)];
        for (name, value) in query {
            if let Some(value) = value {
                logs.query.insert(name.to_owned(), value.to_owned());
            }
        }
        let read = world.read(by, &logs);
        read.result.err().map(|refusal| refusal.code)
    };
    // It is eight.
    assert_eq!(look(&admin, None), Some("window_too_large"));
    let late = Some("2026-11-16T07:00:01Z");
    assert_eq!(look(&admin, late), Some("window_too_large"));
    assert_eq!(look(&admin, Some("2026-11-16T07:00:00Z")), None);
    assert_eq!(look(&operator, None), None);
}

#[test]
fn a_tenant_sees_its_own_events_and_no_decisions() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let rename = json!({ "display_name": "New" });
    world.done(&owner, &request(Operation::UpdateOrg, &["acme"], rename));
    let acme = world.named("acme").org.unwrap();
    let umbra = world.named("umbra").org.unwrap();
    let seen = |org, audit| {
        let events = world
            .events
            .iter()
            .filter(|event| may_see(org, audit, event));
        events
            .map(|event| event.event_type.as_str())
            .collect::<Vec<_>>()
    };
    let events = seen(acme, Audit::Left);
    assert!(events.contains(&"org.updated") && !events.contains(&"authz.decided"));
    assert!(seen(acme, Audit::Included).contains(&"authz.decided"));
    assert_eq!(seen(umbra, Audit::Included), ["org.created"]);
}
