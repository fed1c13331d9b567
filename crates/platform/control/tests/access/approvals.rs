//! Commands that wait for a person.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::ApprovalId;
use fluffy_control::access::{Notice, caller_of_token};
use fluffy_control::{Caller, Fact, Outcome, Request, notice};
use fluffy_planner::lifecycle::{ApprovalState, Cause};
use serde_json::{Value, json};

use crate::ground::{With, World, issuing, refusal, request, service_id, system, token_id};

const LOOK: &str = "version: 1\ncapabilities:\n\
    - { name: names, match: { action: org.admin }, do: require_review, reason: Names are public }\n";

/// An org whose owner must be looked at, an owner, and an admin.
fn world() -> (World, Caller, Caller) {
    let mut world = World::new();
    let owner = world.member(Some("acme"), "owner");
    let admin = world.member(Some("acme"), "admin");
    set_rules(&mut world, &admin, LOOK, 0);
    (world, owner, admin)
}

fn set_rules(world: &mut World, by: &Caller, rules: &str, version: u64) {
    let body = json!({ "rules": rules, "expected_version": version });
    world.done(by, &request(Operation::SetPolicy, &["acme"], body));
}

fn rename(name: &str) -> Request {
    let body = json!({ "display_name": name });
    request(Operation::UpdateOrg, &["acme"], body)
}

fn park(world: &mut World, by: &Caller, what: &Request) -> String {
    match world.write(by, what) {
        Outcome::Parked { approval, .. } => approval.to_string(),
        other => panic!("{other:?}"),
    }
}

fn decide(id: &str, outcome: &str) -> Request {
    let body = json!({ "outcome": outcome, "note": "seen" });
    request(Operation::DecideApproval, &["acme", id], body)
}

fn name(world: &World, by: &Caller) -> Value {
    world.get(by, Operation::GetOrg, &["acme"])["display_name"].clone()
}

#[test]
fn an_approved_command_is_done_as_whoever_asked() {
    let (mut world, owner, admin) = world();
    let id = park(&mut world, &owner, &rename("New"));
    assert_eq!(name(&world, &admin), "acme");
    let list = world.get(&admin, Operation::ListApprovals, &["acme"]);
    assert_eq!(list["items"][0]["status"], "pending");
    assert_eq!(list["items"][0]["operation"], "updateOrg");
    let first = world.events.len();
    let decided = world.done(&admin, &decide(&id, "approved"));
    assert_eq!(decided["status"], "approved");
    assert_eq!(decided["result"]["display_name"], "New");
    assert_eq!(name(&world, &admin), "New");
    let events: Vec<_> = world.events[first..]
        .iter()
        .map(|event| (event.event_type.as_str(), event.actor.id.as_str()))
        .collect();
    let (theirs, own) = (admin.actor.id.as_str(), owner.actor.id.as_str());
    assert_eq!(
        events,
        [
            ("authz.decided", theirs),
            ("approval.decided", theirs),
            ("authz.decided", own),
            ("org.updated", own),
        ]
    );
    // What was done points at the decision that allowed it, and at its cause.
    let done = world.events.last().unwrap();
    assert_eq!(done.decision_seq, Some(done.seq - 1));
    assert!(done.causation_seq.is_some());
    let again = world.refused(&admin, &decide(&id, "approved"));
    assert_eq!(again, "invalid_transition");
}

#[test]
fn nobody_approves_their_own_and_a_denied_command_is_not_done() {
    let (mut world, owner, admin) = world();
    let id = park(&mut world, &owner, &rename("New"));
    assert_eq!(
        world.refused(&owner, &decide(&id, "approved")),
        "self_approval"
    );
    let decided = world.done(&admin, &decide(&id, "denied"));
    assert_eq!(
        (decided["status"].clone(), name(&world, &owner)),
        (json!("denied"), json!("acme"))
    );
}

/// Every answer in every state, as the lifecycle's table has it.
#[test]
fn an_approval_is_answered_only_while_it_waits() {
    let (mut world, owner, admin) = world();
    let id = park(&mut world, &owner, &rename("New"));
    let approval: ApprovalId = id.parse().unwrap();
    let (mut done, mut refused) = (0, 0);
    for state in ApprovalState::ALL {
        let waiting = world.state.access.approvals.get_mut(&approval);
        waiting.unwrap().status = state.to_string();
        for to in [ApprovalState::Approved, ApprovalState::Denied] {
            let answer = decide(&id, to.as_str());
            let written = world.decide(&admin, &answer, With::default());
            let changes = |kind: &str| {
                let mut facts = written.facts.iter();
                facts.any(|fact| fact.body.aggregate_kind() == kind)
            };
            let can = ApprovalState::can(Some(*state), to, Cause::ApprovalDecide).is_ok();
            match (can, &written.outcome) {
                (true, Outcome::Done { .. }) => {
                    done += 1;
                    assert!(changes("approval"));
                    assert_eq!(changes("org"), to == ApprovalState::Approved);
                }
                (false, Outcome::Refused(refusal)) => {
                    refused += 1;
                    assert_eq!(refusal.code, "invalid_transition", "{state}: {refusal:?}");
                    assert!(!refusal.why.is_empty());
                    assert!(!changes("approval") && !changes("org"));
                }
                (can, outcome) => panic!("{state} to {to}, {can}: {outcome:?}"),
            }
        }
    }
    assert_eq!((done, refused), (2, 6));
}

#[test]
fn what_acts_for_the_requester_does_not_approve_either() {
    let (mut world, owner, _) = world();
    let id = park(&mut world, &owner, &rename("New"));
    let mut agent = world.member(Some("acme"), "admin");
    let token = fluffy_base::id::TokenId::from_bits(77);
    let mut issued =
        crate::ground::issued("api", &agent.actor.id, world.now.after(crate::ground::HOUR));
    issued.on_behalf_of = Some(owner.actor.id.clone());
    world.record(vec![Fact::new(token, issued.into())]);
    agent = fluffy_control::access::caller_of_token(&world.state, token).unwrap();
    assert_eq!(
        world.refused(&agent, &decide(&id, "approved")),
        "self_approval"
    );
}

/// A service principal of the caller's making, logged in.
fn service(world: &mut World, by: &Caller, number: u128, grants: &[&str]) -> Caller {
    let body = json!({ "name": format!("bot{number}"), "grants": grants });
    let create = request(Operation::CreatePrincipal, &["acme"], body);
    let id = service_id(number);
    world.done(by, &issuing(create, std::slice::from_ref(&id)));
    world.login(&id)
}

/// An API token of a service principal, asked for by the caller.
fn token_of(world: &mut World, by: &Caller, service: &Caller, number: u128) -> Caller {
    let body = json!({ "principal_id": service.actor.id });
    let create = request(Operation::CreateToken, &["acme"], body);
    world.done(by, &issuing(create, &[token_id(number)]));
    caller_of_token(&world.state, token_id(number).parse().unwrap()).unwrap()
}

const DECIDES: &[&str] = &["approval.decide.acme", "approval.decide.acme/*"];

/// The attack: whoever asked decides as a service principal that they made,
/// whose secret they renewed, or that they got a token for.
#[test]
fn nobody_approves_their_own_through_a_service_principal() {
    let (mut world, owner, admin) = world();
    let id = park(&mut world, &owner, &rename("New"));
    let yes = decide(&id, "approved");
    let made = service(&mut world, &owner, 1, DECIDES);
    let renewed = service(&mut world, &admin, 2, DECIDES);
    // The control: before its secret was shown to the owner it is another's.
    let no = decide(&park(&mut world, &owner, &rename("Old")), "denied");
    world.done(&renewed, &no);
    let rotate = Request::new(Operation::RotatePrincipal, &["acme", "bot2"]);
    world.done(&owner, &issuing(rotate, &["r".to_owned()]));
    let used = service(&mut world, &admin, 3, DECIDES);
    let used = token_of(&mut world, &owner, &used, 31);
    // One that one of theirs made in turn.
    let more = [DECIDES, &["principal.manage.acme"]].concat();
    let maker = service(&mut world, &owner, 4, &more);
    let grandchild = service(&mut world, &maker, 5, DECIDES);
    for (what, puppet) in [
        ("made", &made),
        ("renewed", &renewed),
        ("used", &used),
        ("made by one", &grandchild),
    ] {
        assert_eq!(world.refused(puppet, &yes), "self_approval", "{what}");
    }
    assert_eq!(name(&world, &admin), "acme");
    // The control: the same one, of somebody else's making.
    let other = service(&mut world, &admin, 6, DECIDES);
    world.done(&other, &yes);
    assert_eq!(name(&world, &admin), "New");
}

/// The attack the other way round: what acts for somebody asks, or a service
/// principal of theirs, and they approve it themselves.
#[test]
fn nobody_approves_what_was_asked_in_their_name_if_another_could() {
    let (mut world, owner, admin) = world();
    let bot = service(&mut world, &owner, 1, &["org.admin.acme"]);
    let body = json!({ "principal_id": bot.actor.id, "on_behalf_of": owner.actor.id });
    let create = request(Operation::CreateToken, &["acme"], body);
    world.done(&owner, &issuing(create, &[token_id(41)]));
    let agent = caller_of_token(&world.state, token_id(41).parse().unwrap()).unwrap();
    for asks in [&bot, &agent] {
        let id = park(&mut world, asks, &rename("New"));
        let shown = world.get(&admin, Operation::ListApprovals, &["acme"]);
        let mut all = shown["items"].as_array().unwrap().iter();
        let shown = all.find(|one| one["status"] == "pending").unwrap();
        assert_eq!(shown["on_behalf_of"], json!(asks.actor.on_behalf_of));
        let yes = decide(&id, "approved");
        assert_eq!(world.refused(&owner, &yes), "self_approval");
        // The control: another person decides.
        world.done(&admin, &yes);
    }
    // Where nobody else could, whoever looks after the bot looks at it.
    let id = park(&mut world, &bot, &rename("Alone"));
    let members = world.get(&owner, Operation::ListMembers, &["acme"]);
    let mut all = members["items"].as_array().unwrap().iter();
    let member = all.find(|one| one["principal_id"] == admin.actor.id);
    let member = member.unwrap()["id"].as_str().unwrap();
    let remove = Request::new(Operation::RemoveMember, &["acme", member]);
    world.done(&owner, &remove);
    // Who was asked in and never came could not either.
    world.invited(Some("acme"), "admin");
    world.done(&owner, &decide(&id, "approved"));
    // But nobody ever approves what they asked for as themselves.
    let own = park(&mut world, &owner, &rename("Own"));
    assert_eq!(
        world.refused(&owner, &decide(&own, "approved")),
        "self_approval"
    );
}

#[test]
fn a_command_waits_a_day() {
    let (mut world, owner, admin) = world();
    let id = park(&mut world, &owner, &rename("New"));
    world.pass(Duration::from_secs(24 * 3600));
    let admin = world.login(&admin.actor.id);
    assert_eq!(
        world.refused(&admin, &decide(&id, "approved")),
        "approval_expired"
    );
    let system = system();
    let expire = fluffy_control::Notice::Access(Notice::ApprovalsExpired);
    let written = world.call(&system, With::default(), None, |call| {
        notice(&world.state, call, &expire)
    });
    world.append(&system, With::default(), None, &written.facts);
    assert_eq!(
        world.refused(&admin, &decide(&id, "approved")),
        "invalid_transition"
    );
    let list = world.get(&admin, Operation::ListApprovals, &["acme"]);
    assert_eq!(list["items"][0]["status"], "expired");
}

#[test]
fn everything_is_asked_again_when_it_is_approved() {
    // The right is gone.
    let (mut world, owner, admin) = world();
    let second = world.member(Some("acme"), "owner");
    let id = park(&mut world, &owner, &rename("New"));
    let members = world.get(&admin, Operation::ListMembers, &["acme"]);
    let member = members["items"].as_array().unwrap().iter();
    let member = member
        .filter(|one| one["principal_id"] == owner.actor.id)
        .map(|one| one["id"].as_str().unwrap().to_owned())
        .next()
        .unwrap();
    let remove = Request::new(Operation::RemoveMember, &["acme", &member]);
    world.done(&second, &remove);
    assert_eq!(world.refused(&admin, &decide(&id, "approved")), "conflict");
    assert_eq!(name(&world, &admin), "acme");

    // The token was revoked.
    let (mut world, owner, admin) = self::world();
    let id = park(&mut world, &owner, &rename("New"));
    let logout = request(Operation::RevokeOwnToken, &[], json!({}));
    world.done(&owner, &logout);
    assert_eq!(world.refused(&admin, &decide(&id, "approved")), "conflict");

    // The object has another version.
    let (mut world, owner, admin) = self::world();
    let mut wanted = rename("New");
    wanted.body = Some(json!({ "display_name": "New", "expected_version": 1 }));
    let id = park(&mut world, &owner, &wanted);
    let other = park(&mut world, &owner, &rename("Between"));
    world.done(&admin, &decide(&other, "approved"));
    assert_eq!(world.refused(&admin, &decide(&id, "approved")), "conflict");

    // A rule forbids it by now.
    let (mut world, owner, admin) = self::world();
    let id = park(&mut world, &owner, &rename("New"));
    set_rules(
        &mut world,
        &admin,
        &LOOK.replace("require_review", "deny"),
        1,
    );
    assert_eq!(world.refused(&admin, &decide(&id, "approved")), "conflict");
}

#[test]
fn what_can_not_be_done_does_not_wait() {
    let (mut world, owner, _) = world();
    let long = rename(&"x".repeat(65));
    assert_eq!(world.refused(&owner, &long), "invalid_argument");
}

#[test]
fn no_secret_waits_in_the_open() {
    let (mut world, _, admin) = world();
    let rules = LOOK.replace("org.admin", "member.manage");
    set_rules(&mut world, &admin, &rules, 1);
    let body = json!({ "email": "someone@example.com", "role": "viewer" });
    let add = request(Operation::AddMember, &["acme"], body);
    let add = crate::ground::issuing(add, &[crate::ground::token_id(5)]);
    let first = world.events.len();
    let id = park(&mut world, &admin, &add);
    let text: String = world.events[first..]
        .iter()
        .map(|event| event.payload.as_str())
        .collect();
    assert!(!text.contains("someone@example.com"), "{text}");
    // The control: the command is there.
    assert!(text.contains("addMember"), "{text}");
    let owner = world.member(Some("acme"), "owner");
    let decided = world.done(&owner, &decide(&id, "approved"));
    assert_eq!(decided["result"]["role"], "viewer");
    let _ = refusal(world.write(&owner, &decide(&id, "denied")));
}

/// Who is in already is named by their principal, and by nothing else when the
/// command is done at last.
#[test]
fn a_further_role_that_waits_is_given_when_it_is_approved() {
    let (mut world, _, admin) = world();
    let known = world.member(Some("acme"), "viewer");
    let rules = LOOK.replace("org.admin", "member.manage");
    set_rules(&mut world, &admin, &rules, 1);
    let body = json!({ "principal_id": known.actor.id, "role": "operator", "app": "shop" });
    let add = request(Operation::AddMember, &["acme"], body);
    let id = park(&mut world, &admin, &add);
    let owner = world.member(Some("acme"), "owner");
    let decided = world.done(&owner, &decide(&id, "approved"));
    let given = &decided["result"];
    assert_eq!(given["principal_id"], known.actor.id.as_str());
    assert_eq!(given["path"], "acme/shop");
}
