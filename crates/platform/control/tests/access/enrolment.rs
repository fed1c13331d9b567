//! Machines that wait to be let in: who may approve them, when, and once.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{EnrollmentTokenId, NodeId};
use fluffy_control::event::{ClusterInitialized, NodeDriver};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::{Enrolment, PENDING};
use fluffy_control::{Caller, Fact, Notice, Outcome, Request, Written, notice};
use serde_json::{Value, json};

use crate::ground::{HOUR, With, World, ledger, local, refusal, request, system};

const APPROVE: Operation = Operation::ApproveEnrollment;
const REFUSE: Operation = Operation::RefuseEnrollment;

/// A platform with addresses to give, and nobody in it.
fn begun() -> World {
    let mut world = World::empty();
    let begun = ClusterInitialized {
        ledger_id: ledger(),
        ipv6_prefix: "fd00::/48".to_owned(),
    };
    world.record(vec![Fact::new("cluster", begun.into())]);
    world
}

/// A token that takes an approval, made by this caller.
fn token(world: &mut World, caller: &Caller) -> String {
    let body = json!({"require_approval": true, "labels": {"zone": "eu-1"}});
    let made = world.done(
        caller,
        &request(Operation::CreateEnrollmentToken, &[], body),
    );
    assert_eq!(made["require_approval"], true, "{made}");
    made["id"].as_str().unwrap().to_owned()
}

fn decide(operation: Operation, token: &str) -> Request {
    Request::new(operation, &[token])
}

/// What comes of a machine with this key that asks with a token.
fn ask(world: &mut World, token: &str, key: u128) -> Outcome {
    let machine = machine(world, token, key);
    say(world, RuntimeNotice::Enroll(Box::new(machine)))
}

/// A machine with this key and a token.
fn machine(world: &mut World, token: &str, key: u128) -> Enrolment {
    let token: EnrollmentTokenId = token.parse().unwrap();
    let node = NodeId::from_bits(world.id());
    Enrolment {
        node,
        request_key: format!("key{key}"),
        token,
        // Of another pair at each try, as real machines have.
        wireguard_public_key: format!("overlay of {node}"),
        endpoint: "192.0.2.1:51820".to_owned(),
        cert_fingerprint: "00".to_owned(),
        arch: "amd64".to_owned(),
        drivers: vec![NodeDriver {
            driver: "microvm-firecracker".to_owned(),
            max_vcpus: 32,
            max_memory_bytes: 64 << 30,
        }],
        labels: BTreeMap::from([
            ("zone".to_owned(), "mine".to_owned()),
            ("rack".to_owned(), "7".to_owned()),
        ]),
        agent_version: "0.1.0".to_owned(),
        machine: None,
        former: None,
    }
}

fn say(world: &mut World, said: RuntimeNotice) -> Outcome {
    let said = Notice::Runtime(said);
    let Written { facts, outcome } = world.call(&system(), With::default(), None, |call| {
        notice(&world.state, call, &said)
    });
    world.append(&system(), With::default(), None, &facts);
    outcome
}

fn waits(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Done { subject, .. } if subject.kind == PENDING)
}

fn joins(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Done { subject, .. } if subject.kind == "node")
}

fn status(world: &World, id: &str) -> Value {
    let list = world.get(&local(), Operation::ListEnrollmentTokens, &[]);
    let mut all = list["items"].as_array().unwrap().iter();
    all.find(|it| it["id"] == id).unwrap().clone()
}

#[test]
fn a_machine_waits_until_another_operator_approves_it() {
    let mut world = begun();
    let [maker, other] = [1, 2].map(|_| world.member(None, "platform_operator"));
    let id = token(&mut world, &maker);
    // Nobody has asked yet.
    assert_eq!(
        world.refused(&other, &decide(APPROVE, &id)),
        "invalid_transition"
    );
    assert_eq!(status(&world, &id)["status"], "pending");
    assert!(waits(&ask(&mut world, &id, 1)));
    let shown = status(&world, &id);
    assert_eq!(shown["status"], "waiting");
    assert_eq!(shown["request"]["key_fingerprint"], "key1", "{shown}");
    // Asked again it is the same request, and nothing more is on record.
    let seq = world.state.seq;
    assert!(waits(&ask(&mut world, &id, 1)));
    assert_eq!(world.state.seq, seq);
    // Whoever made the token does not approve what came of it.
    assert_eq!(
        world.refused(&maker, &decide(APPROVE, &id)),
        "self_approval"
    );
    assert!(waits(&ask(&mut world, &id, 1)));
    world.done(&other, &decide(APPROVE, &id));
    let shown = status(&world, &id);
    assert_eq!(shown["status"], "approved");
    assert_eq!(shown["request"]["decided_by"], other.actor.id, "{shown}");
    // Once is enough, and it is not taken back by another word.
    for operation in [APPROVE, REFUSE] {
        let again = world.refused(&other, &decide(operation, &id));
        assert_eq!(again, "invalid_transition");
    }
    // What was looked at comes in, and no other machine with the same token.
    let stranger = ask(&mut world, &id, 2);
    assert_eq!(refusal(stranger).code, "forbidden");
    assert!(joins(&ask(&mut world, &id, 1)));
    let shown = status(&world, &id);
    assert_eq!(shown["status"], "consumed");
    let nodes = world.get(&local(), Operation::ListNodes, &[]);
    let labels = json!({"rack": "7", "zone": "eu-1"});
    assert_eq!(
        nodes["items"][0]["labels"], labels,
        "the operator's word counts"
    );
    assert_eq!(nodes["items"][0]["id"], shown["node_id"]);
}

/// Whatever an operator was shown of the machine is compared when it joins.
#[test]
fn a_machine_that_is_not_what_was_shown_does_not_join() {
    let mut world = begun();
    let id = token(&mut world, &local());
    assert!(waits(&ask(&mut world, &id, 1)));
    world.done(&local(), &decide(APPROVE, &id));
    let changes: [fn(&mut Enrolment); 4] = [
        |it| it.request_key = "key2".to_owned(),
        |it| it.endpoint = "192.0.2.2:51820".to_owned(),
        |it| it.arch = "arm64".to_owned(),
        |it| it.agent_version = "0.0.9".to_owned(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for is_asking in [true, false] {
            let mut other = machine(&mut world, &id, 1);
            change(&mut other);
            let other = Box::new(other);
            let said = match is_asking {
                true => RuntimeNotice::EnrollmentAsked(other),
                false => RuntimeNotice::Enroll(other),
            };
            let refused = refusal(say(&mut world, said));
            assert_eq!(refused.code, "forbidden", "{number}");
        }
    }
    assert!(world.state.runtime.nodes.is_empty());
    // The control.
    assert!(joins(&ask(&mut world, &id, 1)));
}

/// A server that has no certificate to give can say all the same whether a
/// machine waits, and puts it on record.
#[test]
fn whether_a_machine_may_join_is_known_before_it_does() {
    let mut world = begun();
    let id = token(&mut world, &local());
    let asks = |world: &mut World, key| {
        let mut machine = machine(world, &id, key);
        machine.cert_fingerprint.clear();
        say(world, RuntimeNotice::EnrollmentAsked(Box::new(machine)))
    };
    assert!(waits(&asks(&mut world, 1)));
    let seq = world.state.seq;
    assert!(waits(&asks(&mut world, 1)));
    assert_eq!(world.state.seq, seq, "once");
    assert_eq!(refusal(asks(&mut world, 2)).code, "forbidden");
    assert_eq!(status(&world, &id)["request"]["key_fingerprint"], "key1");
    world.done(&local(), &decide(APPROVE, &id));
    let seq = world.state.seq;
    let may_join = asks(&mut world, 1);
    assert!(matches!(may_join, Outcome::Done { .. }) && !waits(&may_join));
    assert_eq!(world.state.seq, seq, "asking uses nothing up");
    assert!(joins(&ask(&mut world, &id, 1)));
    // Refused, it hears so before it has anything.
    let id = token(&mut world, &local());
    assert!(waits(&ask(&mut world, &id, 3)));
    world.done(&local(), &decide(REFUSE, &id));
    let asks = RuntimeNotice::EnrollmentAsked(Box::new(machine(&mut world, &id, 3)));
    assert_eq!(refusal(say(&mut world, asks)).code, "policy_denied");
}

#[test]
fn where_nobody_else_could_approve_the_maker_does() {
    // The owner of the machine that is the platform, whoever else there is.
    let mut world = begun();
    world.member(None, "platform_operator");
    let id = token(&mut world, &local());
    assert!(waits(&ask(&mut world, &id, 1)));
    world.done(&local(), &decide(APPROVE, &id));
    assert!(joins(&ask(&mut world, &id, 1)));
    // The only operator.
    let mut world = begun();
    let only = world.member(None, "platform_operator");
    let id = token(&mut world, &only);
    assert!(waits(&ask(&mut world, &id, 1)));
    world.done(&only, &decide(APPROVE, &id));
    assert!(joins(&ask(&mut world, &id, 1)));
    // Another was asked to run the platform, and never came.
    world.invited(None, "platform_operator");
    let id = token(&mut world, &only);
    assert!(waits(&ask(&mut world, &id, 3)));
    world.done(&only, &decide(APPROVE, &id));
    assert!(joins(&ask(&mut world, &id, 3)));
    // The control: with another one it takes that one.
    world.member(None, "platform_operator");
    let id = token(&mut world, &only);
    assert!(waits(&ask(&mut world, &id, 2)));
    assert_eq!(world.refused(&only, &decide(APPROVE, &id)), "self_approval");
}

#[test]
fn who_acts_for_the_maker_of_a_token_is_no_other_person() {
    let mut world = begun();
    let [maker, _] = [1, 2].map(|_| world.member(None, "platform_operator"));
    let id = token(&mut world, &maker);
    assert!(waits(&ask(&mut world, &id, 1)));
    let mut helper = maker.clone();
    helper.actor.on_behalf_of = Some(maker.actor.id.clone());
    assert_eq!(
        world.refused(&helper, &decide(APPROVE, &id)),
        "self_approval"
    );
}

#[test]
fn a_machine_that_is_refused_does_not_come_in() {
    let mut world = begun();
    let [maker, other] = [1, 2].map(|_| world.member(None, "platform_operator"));
    let id = token(&mut world, &maker);
    assert!(waits(&ask(&mut world, &id, 1)));
    world.done(&other, &decide(REFUSE, &id));
    assert_eq!(status(&world, &id)["status"], "refused");
    assert_eq!(
        world.refused(&other, &decide(APPROVE, &id)),
        "invalid_transition"
    );
    assert_eq!(refusal(ask(&mut world, &id, 1)).code, "policy_denied");
    assert_eq!(refusal(ask(&mut world, &id, 2)).code, "forbidden");
    assert!(world.state.runtime.nodes.is_empty());
    // Nobody else takes its place when the machine has heard of it.
    let id: EnrollmentTokenId = id.parse().unwrap();
    let token = &world.state.runtime.enrollment_tokens[&id];
    assert_eq!(token.ended, None, "the machine has to hear of it first");
}

#[test]
fn a_token_that_ends_while_a_machine_waits_lets_nobody_in() {
    let mut world = begun();
    let [maker, other] = [1, 2].map(|_| world.member(None, "platform_operator"));
    // Its time is over: before it was approved, and before the machine came.
    let late = token(&mut world, &maker);
    let approved = token(&mut world, &maker);
    for (id, key) in [(&late, 1), (&approved, 2)] {
        assert!(waits(&ask(&mut world, id, key)));
    }
    world.done(&other, &decide(APPROVE, &approved));
    world.pass(HOUR);
    // Their own sessions are over as well.
    let [maker, other] = [maker, other].map(|who| world.login(&who.actor.id));
    assert_eq!(
        world.refused(&other, &decide(APPROVE, &late)),
        "approval_expired"
    );
    for (id, key) in [(&late, 1), (&approved, 2)] {
        assert_eq!(refusal(ask(&mut world, id, key)).code, "forbidden");
        assert_eq!(status(&world, id)["status"], "expired");
    }
    // It was revoked.
    let revoked = token(&mut world, &maker);
    assert!(waits(&ask(&mut world, &revoked, 3)));
    world.done(
        &other,
        &Request::new(Operation::RevokeEnrollmentToken, &[&revoked]),
    );
    assert_eq!(
        world.refused(&other, &decide(APPROVE, &revoked)),
        "invalid_transition"
    );
    assert_eq!(refusal(ask(&mut world, &revoked, 3)).code, "forbidden");
    assert!(world.state.runtime.nodes.is_empty());
    // The control: a little earlier both came in.
    let id = token(&mut world, &maker);
    assert!(waits(&ask(&mut world, &id, 4)));
    world.pass(HOUR - Duration::from_secs(1));
    let other = world.login(&other.actor.id);
    world.done(&other, &decide(APPROVE, &id));
    assert!(joins(&ask(&mut world, &id, 4)));
}

#[test]
fn a_token_that_takes_no_approval_lets_a_machine_in_at_once() {
    let mut world = begun();
    let maker = world.member(None, "platform_operator");
    let body = json!({"labels": {"disk": "nvme"}});
    let made = world.done(
        &maker,
        &request(Operation::CreateEnrollmentToken, &[], body),
    );
    let id = made["id"].as_str().unwrap();
    assert!(joins(&ask(&mut world, id, 1)));
    let nodes = world.get(&local(), Operation::ListNodes, &[]);
    let labels = json!({"disk": "nvme", "rack": "7", "zone": "mine"});
    assert_eq!(nodes["items"][0]["labels"], labels);
    assert_eq!(
        world.refused(&local(), &decide(APPROVE, id)),
        "invalid_transition"
    );
}

#[test]
fn labels_that_are_none_are_refused_with_what_is_wrong() {
    let mut world = begun();
    let many: BTreeMap<String, String> =
        (0..17).map(|n| (format!("n{n}"), String::new())).collect();
    let long = "a".repeat(64);
    for (labels, wrong) in [
        (json!({"Zone": "a"}), "`Zone`"),
        (json!({"": "a"}), "``"),
        (json!({"-zone": "a"}), "`-zone`"),
        (json!({"zo ne": "a"}), "`zo ne`"),
        (json!({long.clone(): "a"}), "63"),
        (json!({"zone": "a b"}), "value of `zone`"),
        (json!({"zone": "a\n"}), "value of `zone`"),
        (json!({"zone": long}), "value of `zone`"),
        (json!(many), "16 at most"),
    ] {
        let body = json!({"labels": labels});
        let asked = request(Operation::CreateEnrollmentToken, &[], body);
        let refused = refusal(world.write(&local(), &asked));
        assert_eq!(refused.code, "invalid_argument", "{labels}");
        assert!(refused.why.contains(wrong), "{labels}: {}", refused.why);
        assert!(refused.fix.contains("zone=eu-1"), "{}", refused.fix);
    }
    // The control.
    let labels = json!({"zone": "eu-1", "fluffy.dev/disk_kind": "NVMe.2", "spare": ""});
    let body = json!({"labels": labels});
    let made = world.done(
        &local(),
        &request(Operation::CreateEnrollmentToken, &[], body),
    );
    assert_eq!(made["labels"], labels);
}
