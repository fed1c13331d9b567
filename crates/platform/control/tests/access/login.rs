//! Logging in, tokens, and what ends them.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::TokenId;
use fluffy_control::access::{Bootstrap, Notice, caller_of_token};
use fluffy_control::call::Shown;
use fluffy_control::{Caller, Outcome, Request, notice};
use serde_json::json;

use crate::ground::{
    With, World, anonymous, credential, issuing, ledger, local, refusal, request, service_id,
    system, token_id,
};

fn begin(world: &mut World, invite: Option<TokenId>) -> Outcome {
    let begin = Notice::Bootstrap(Bootstrap {
        ledger_id: ledger(),
        ipv6_prefix: "fd00::/48".to_owned(),
        invite,
    });
    said(world, begin)
}

fn invite_again(world: &mut World, id: u128) -> Outcome {
    said(world, Notice::InvitedAgain(TokenId::from_bits(id)))
}

fn said(world: &mut World, said: Notice) -> Outcome {
    let said = fluffy_control::Notice::Access(said);
    let system = system();
    let written = world.call(&system, With::default(), None, |call| {
        notice(&world.state, call, &said)
    });
    world.append(&system, With::default(), None, &written.facts);
    written.outcome
}

fn exchange(shown: Shown, ids: &[u128]) -> Request {
    let ids: Vec<String> = ids.iter().map(|id| token_id(*id)).collect();
    let request = Request::new(Operation::ExchangeToken, &[]);
    credential(request, &ids, Some(shown))
}

fn by_token(id: u128) -> Shown {
    Shown::Token(TokenId::from_bits(id))
}

fn caller(world: &World, id: u128) -> Caller {
    caller_of_token(&world.state, TokenId::from_bits(id)).unwrap()
}

fn code(world: &World, id: u128) -> &'static str {
    let whoami = Request::new(Operation::Whoami, &[]);
    let result = world.read(&caller(world, id), &whoami).result;
    result.map_or_else(|refusal| refusal.code, |_| "ok")
}

#[test]
fn the_first_invite_makes_an_operator_and_is_good_once() {
    let mut world = World::empty();
    begin(&mut world, Some(TokenId::from_bits(1)));
    let again = begin(&mut world, Some(TokenId::from_bits(2)));
    assert_eq!(refusal(again).code, "conflict");
    let pair = world.done(&anonymous(), &exchange(by_token(1), &[11, 12]));
    assert_eq!(pair["expires_in"], 900);
    let me = world.get(&caller(&world, 11), Operation::Whoami, &[]);
    assert_eq!(me["platform_operator"], true);
    assert_eq!(me["orgs"], json!([]));
    assert_eq!(
        world.refused(&anonymous(), &exchange(by_token(1), &[13, 14])),
        "invalid_grant"
    );
    assert_eq!(code(&world, 11), "ok");
    // A refresh token and an invite are no credentials by themselves.
    assert_eq!(code(&world, 12), "unauthenticated");
    assert_eq!(code(&world, 1), "unauthenticated");
}

#[test]
fn until_somebody_has_come_in_there_can_be_another_first_invite() {
    let mut world = World::empty();
    begin(&mut world, Some(TokenId::from_bits(1)));
    for id in [2, 3] {
        let invited = invite_again(&mut world, id);
        assert!(matches!(invited, Outcome::Done { .. }), "{invited:?}");
    }
    let pair = world.done(&anonymous(), &exchange(by_token(2), &[11, 12]));
    assert_eq!(pair["token_type"], "Bearer");
    // With the first that is used the others end: nobody else comes in.
    for id in [1, 2, 3] {
        let late = exchange(by_token(id), &[21, 22]);
        assert_eq!(world.refused(&anonymous(), &late), "invalid_grant", "{id}");
    }
    let refused = refusal(invite_again(&mut world, 4));
    assert_eq!(refused.code, "conflict");
    assert_eq!(code(&world, 11), "ok");
    // The owner of a machine is in from the beginning.
    let mut world = World::empty();
    begin(&mut world, None);
    assert_eq!(refusal(invite_again(&mut world, 1)).code, "conflict");
}

#[test]
fn a_refresh_token_shown_twice_ends_the_whole_login() {
    let mut world = World::empty();
    begin(&mut world, Some(TokenId::from_bits(1)));
    world.done(&anonymous(), &exchange(by_token(1), &[11, 12]));
    world.done(&anonymous(), &exchange(by_token(12), &[21, 22]));
    assert_eq!((code(&world, 11), code(&world, 21)), ("ok", "ok"));
    let reuse = exchange(by_token(12), &[31, 32]);
    assert_eq!(world.refused(&anonymous(), &reuse), "invalid_grant");
    assert_eq!(code(&world, 11), "token_revoked");
    assert_eq!(code(&world, 21), "token_revoked");
    let next = exchange(by_token(22), &[41, 42]);
    assert_eq!(world.refused(&anonymous(), &next), "invalid_grant");
}

#[test]
fn tokens_end_by_time_and_by_logging_out() {
    let mut world = World::empty();
    begin(&mut world, Some(TokenId::from_bits(1)));
    world.done(&anonymous(), &exchange(by_token(1), &[11, 12]));
    world.pass(Duration::from_secs(15 * 60));
    assert_eq!(code(&world, 11), "token_expired");
    world.done(&anonymous(), &exchange(by_token(12), &[21, 22]));
    let logout = request(Operation::RevokeOwnToken, &[], json!({}));
    let me = caller(&world, 21);
    assert_eq!(world.done(&me, &logout)["status"], "revoked");
    assert_eq!(code(&world, 21), "token_revoked");
    let next = exchange(by_token(22), &[31, 32]);
    assert_eq!(world.refused(&anonymous(), &next), "invalid_grant");
}

#[test]
fn an_invite_is_over_after_a_day() {
    let mut world = World::empty();
    begin(&mut world, Some(TokenId::from_bits(1)));
    world.pass(Duration::from_secs(24 * 3600));
    let late = exchange(by_token(1), &[11, 12]);
    assert_eq!(world.refused(&anonymous(), &late), "invalid_grant");
}

#[test]
fn the_owner_of_the_machine_owns_its_org() {
    let mut world = World::empty();
    begin(&mut world, None);
    let me = world.get(&local(), Operation::Whoami, &[]);
    assert_eq!(me["orgs"][0]["slug"], "local");
    assert_eq!(me["orgs"][0]["role"], "owner");
    assert_eq!(me["platform_operator"], true);
    let patterns = me["effective_patterns"].as_array().unwrap();
    assert!(patterns.contains(&json!("instance.exec.local/*")));
    // The control: by name alone one is nobody.
    let mut impostor = local();
    impostor.kind = fluffy_control::CallerKind::Anonymous;
    let whoami = Request::new(Operation::Whoami, &[]);
    let refused = world.read(&impostor, &whoami).result.unwrap_err();
    assert_eq!(refused.code, "unauthenticated");
}

#[test]
fn a_secret_is_good_until_its_rotation_has_passed() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let create = request(
        Operation::CreatePrincipal,
        &["acme"],
        json!({ "name": "ci", "grants": ["env.deploy.acme/shop/*"] }),
    );
    let id = service_id(5);
    let made = world.done(&owner, &issuing(create, std::slice::from_ref(&id)));
    assert_eq!(made["grants"], json!(["env.deploy.acme/shop/*"]));
    let secret = |rotation: Option<&str>| Shown::Secret {
        principal: id.parse().unwrap(),
        rotation: rotation.map(str::to_owned),
    };
    world.done(&anonymous(), &exchange(secret(None), &[11]));
    let wrong = exchange(secret(Some("made-up")), &[12]);
    assert_eq!(world.refused(&anonymous(), &wrong), "invalid_grant");
    let rotate = request(
        Operation::RotatePrincipal,
        &["acme", "ci"],
        json!({ "overlap_seconds": 60 }),
    );
    world.done(&owner, &issuing(rotate, &["second".to_owned()]));
    world.done(&anonymous(), &exchange(secret(None), &[13]));
    world.done(&anonymous(), &exchange(secret(Some("second")), &[14]));
    world.pass(Duration::from_secs(60));
    let old = exchange(secret(None), &[15]);
    assert_eq!(world.refused(&anonymous(), &old), "invalid_grant");
    let delete = Request::new(Operation::DeletePrincipal, &["acme", "ci"]);
    let owner = world.login(&owner.actor.id);
    world.done(&owner, &delete);
    assert_eq!(code(&world, 14), "token_revoked");
}

#[test]
fn tokens_are_forgotten_a_day_after_their_end() {
    let mut world = World::empty();
    begin(&mut world, Some(TokenId::from_bits(1)));
    world.done(&anonymous(), &exchange(by_token(1), &[11, 12]));
    assert!(world.state.meta("token", &token_id(11)).is_some());
    world.pass(Duration::from_secs(26 * 3600));
    world.done(&anonymous(), &exchange(by_token(12), &[21, 22]));
    assert!(world.state.meta("token", &token_id(11)).is_none());
    assert!(
        !world
            .state
            .access
            .tokens
            .contains_key(&TokenId::from_bits(11))
    );
    // The control: what is good for a month is still known.
    assert!(world.state.meta("token", &token_id(12)).is_some());
}

#[test]
fn a_token_of_one_caller_is_not_another_principal() {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let person = world.person();
    let forged = Caller {
        kind: person.kind,
        actor: owner.actor,
    };
    let whoami = Request::new(Operation::Whoami, &[]);
    let refused = world.read(&forged, &whoami).result.unwrap_err();
    assert_eq!(refused.code, "unauthenticated");
}
