//! Who becomes a node, and what uses a token up.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fluffy_api::node::dial::{Channel, Trust, dial};
use fluffy_api::node::join::{EnrolError, enrol_patiently};
use fluffy_api::node::{EnrolmentToken, PENDING, PROTOCOL, Transcript, code_of, v1};
use fluffy_base::id::{LedgerId, NodeId};
use fluffy_base::{Clock as _, Digest, SystemClock};
use fluffy_node_sim::{Enrolling, enrol, now_ms, signing_request};
use fluffy_server::node::{Approval, Authority, NodeServer, Place, Role};
use rcgen::KeyPair;
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tonic::Status;
use v1::enroll_request::Step as Asked;
use v1::enroll_response::Step as Told;
use v1::enrolment_client::EnrolmentClient;

use crate::kit::{Cluster, LONG, before, streaming, until};

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn enrolling(cluster: &Cluster, token: &EnrolmentToken) -> Enrolling {
    Enrolling {
        server: ("localhost".to_owned(), cluster.port),
        pin: cluster.authority.pin(),
        token: token.clone(),
        role: v1::Role::Worker,
        underlay: Some(HOME),
        facts: v1::Facts::default(),
        former_node_id: String::new(),
        fingerprint: Vec::new(),
    }
}

/// What enrolment by the book says, as a code.
async fn outcome(enrolling: &Enrolling) -> String {
    match enrol(enrolling).await {
        Ok(_) => "enrolled".to_owned(),
        Err(error) => match error.downcast_ref::<Status>() {
            Some(status) => code_of(status).unwrap_or("no code").to_owned(),
            None => format!("{error:#}"),
        },
    }
}

/// An enrolment of which a test changes single parts.
struct Crafted {
    begin: v1::EnrollBegin,
    overlay: EphemeralPrivateKey,
    /// Changes the proof.
    spoil: fn(&mut Vec<u8>),
}

impl Crafted {
    fn new(token: &EnrolmentToken) -> Self {
        let overlay = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).unwrap();
        let key = KeyPair::generate().unwrap();
        Self {
            begin: v1::EnrollBegin {
                protocol: PROTOCOL,
                token: token.reveal().to_owned(),
                csr: signing_request(&key).unwrap(),
                overlay_public_key: overlay.compute_public_key().unwrap().as_ref().to_vec(),
                role: v1::Role::Worker.into(),
                underlay: Some(v1::Underlay {
                    endpoint: String::new(),
                    behind_nat: true,
                }),
                clock_ms: now_ms(),
                ..Default::default()
            },
            overlay,
            spoil: |_| {},
        }
    }

    async fn outcome(self, cluster: &Cluster) -> String {
        match self.run(cluster).await {
            Ok(()) => "enrolled".to_owned(),
            Err(status) => code_of(&status).unwrap_or("no code").to_owned(),
        }
    }

    async fn run(self, cluster: &Cluster) -> Result<(), Status> {
        let trust = Trust::Pin(cluster.authority.pin());
        let channel = dial(("localhost", cluster.port), &trust, None)
            .await
            .unwrap();
        let mut client = EnrolmentClient::with_origin(channel, Channel::origin());
        let (asked, questions) = mpsc::channel(2);
        let step = |step| v1::EnrollRequest { step: Some(step) };
        let begin = self.begin.clone();
        asked.send(step(Asked::Begin(begin))).await.unwrap();
        let mut told = client.enroll(streaming(questions)).await?.into_inner();
        let Some(Told::Challenge(challenge)) = told.message().await?.unwrap().step else {
            panic!("a challenge comes first");
        };
        let token = EnrolmentToken::parse(&self.begin.token).unwrap();
        let transcript = Transcript {
            nonce: &challenge.nonce,
            token: token.hash(),
            csr: &self.begin.csr,
            overlay_key: &self.begin.overlay_public_key,
        };
        let theirs = UnparsedPublicKey::new(&X25519, &challenge.public_key);
        let proof = agree_ephemeral(self.overlay, &theirs, |shared| transcript.prove(shared));
        let mut proof = proof.unwrap();
        (self.spoil)(&mut proof);
        let proof = v1::EnrollProof { proof };
        asked.send(step(Asked::Proof(proof))).await.unwrap();
        told.message().await?.map(drop).ok_or(Status::cancelled(""))
    }
}

#[tokio::test]
async fn a_token_makes_one_node() {
    let cluster = Cluster::start().await;
    let token = cluster.desk.new_token(1, Role::Worker, Place::Reachable);
    let first = enrol(&enrolling(&cluster, &token)).await.unwrap();
    let node: NodeId = first.node_id.parse().unwrap();
    assert!(cluster.desk.lock().nodes.contains_key(&node));
    assert!(cluster.desk.is_used(&token));
    let again = outcome(&enrolling(&cluster, &token)).await;
    assert_eq!(again, "enroll_denied");
    assert_eq!(cluster.desk.lock().nodes.len(), 1);
    // Its credentials are a member's.
    let trust = first.trust().unwrap();
    let identity = first.identity().unwrap();
    let channel = dial(("localhost", cluster.port), &trust, Some(&identity)).await;
    let mut client = crate::kit::nodes(channel.unwrap());
    let confirm = v1::ConfirmRequest {
        node_id: first.node_id,
    };
    let state = client.confirm(confirm).await.unwrap().into_inner().state;
    assert_eq!(state, "active");
}

/// Two machines with one token, at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_race_with_one_token_one_wins() {
    let cluster = Cluster::start().await;
    let token = cluster.desk.new_token(1, Role::Worker, Place::Reachable);
    let tries = (0..6).map(|_| {
        let enrolling = enrolling(&cluster, &token);
        tokio::spawn(async move { outcome(&enrolling).await })
    });
    let mut outcomes = Vec::new();
    for run in tries.collect::<Vec<_>>() {
        outcomes.push(run.await.unwrap());
    }
    outcomes.sort();
    assert_eq!(outcomes[..5], ["enroll_denied"; 5]);
    assert_eq!(outcomes[5], "enrolled");
    assert_eq!(cluster.desk.lock().nodes.len(), 1);
}

#[tokio::test]
async fn what_is_malformed_uses_no_token_up() {
    let faults: [fn(&mut v1::EnrollBegin); 11] = [
        |begin| begin.protocol = 0,
        |begin| begin.protocol = PROTOCOL + 1,
        |begin| begin.token = "enroll_short".to_owned(),
        |begin| begin.csr.clear(),
        |begin| *begin.csr.last_mut().unwrap() ^= 1,
        |begin| begin.overlay_public_key = vec![1; 31],
        |begin| begin.role = 0,
        |begin| begin.clock_ms -= 301_000,
        |begin| begin.clock_ms += 302_000,
        |begin| begin.underlay = Some(v1::Underlay::default()),
        |begin| {
            let facts = begin.facts.get_or_insert_default();
            facts.arch = "x".repeat(1000);
        },
    ];
    // Few enough that the address is not ignored.
    for faults in faults.chunks(6) {
        let cluster = Cluster::start().await;
        let token = cluster.desk.new_token(1, Role::Worker, Place::Anywhere);
        for (number, fault) in faults.iter().enumerate() {
            let mut crafted = Crafted::new(&token);
            fault(&mut crafted.begin);
            let outcome = crafted.outcome(&cluster).await;
            assert_eq!(outcome, "enroll_bad_request", "fault {number}");
        }
        assert!(!cluster.desk.is_used(&token));
        assert_eq!(Crafted::new(&token).outcome(&cluster).await, "enrolled");
        let refused = cluster.desk.lock().refused.len();
        assert_eq!(refused, faults.len(), "each refusal is recorded");
    }
}

/// A key named by who does not have it, and one that a node already has.
#[tokio::test]
async fn a_wrong_proof_and_a_taken_key_use_the_token_up() {
    let cluster = Cluster::start().await;
    let token = |seed| cluster.desk.new_token(seed, Role::Worker, Place::Anywhere);
    let spoiled = token(1);
    let crafted = Crafted {
        spoil: |proof| proof[0] ^= 1,
        ..Crafted::new(&spoiled)
    };
    assert_eq!(crafted.outcome(&cluster).await, "enroll_proof_failed");
    assert!(cluster.desk.is_used(&spoiled));
    // Somebody else's key with one's own proof.
    let borrowed = token(2);
    let mut crafted = Crafted::new(&borrowed);
    let other = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).unwrap();
    crafted.begin.overlay_public_key = other.compute_public_key().unwrap().as_ref().to_vec();
    assert_eq!(crafted.outcome(&cluster).await, "enroll_proof_failed");
    // A key that shares the same secret with everybody.
    let low = token(3);
    let mut crafted = Crafted::new(&low);
    crafted.begin.overlay_public_key = vec![0; 32];
    assert_eq!(crafted.outcome(&cluster).await, "enroll_proof_failed");
    assert!(cluster.desk.is_used(&low));
    // The control: an honest one.
    assert_eq!(Crafted::new(&token(4)).outcome(&cluster).await, "enrolled");
    assert_eq!(cluster.desk.lock().nodes.len(), 1);
}

#[tokio::test]
async fn a_machine_that_nobody_reaches_keeps_its_token() {
    let cluster = Cluster::start().await;
    let token = cluster.desk.new_token(1, Role::Worker, Place::Reachable);
    // It listens, and answers nothing.
    let mute = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut crafted = Crafted::new(&token);
    crafted.begin.underlay = Some(v1::Underlay {
        endpoint: mute.local_addr().unwrap().to_string(),
        behind_nat: false,
    });
    assert_eq!(crafted.outcome(&cluster).await, "enroll_unreachable");
    assert!(!cluster.desk.is_used(&token));
    assert_eq!(outcome(&enrolling(&cluster, &token)).await, "enrolled");
}

/// The server's and the network's hiccups cost a machine that waits nothing.
#[tokio::test]
async fn a_machine_that_waits_outlasts_what_passes() {
    let cluster = Cluster::start().await;
    let careful = |seed| {
        let token = cluster.desk.new_token(seed, Role::Worker, Place::Reachable);
        cluster.desk.approve(&token, Approval::Needed);
        token
    };
    let code = |error: EnrolError| match error {
        EnrolError::Refused(status) => code_of(&status).unwrap().to_owned(),
        error => panic!("{error:?}"),
    };
    // The control: nobody waits who was never told to.
    let token = careful(1);
    cluster.desk.lock().hiccups.push("overlay_full");
    let outcome = enrol_patiently(&enrolling(&cluster, &token), LONG, |_| {}).await;
    assert_eq!(code(outcome.unwrap_err()), "overlay_full");
    cluster.desk.lock().asked.clear();

    let told = Arc::new(Mutex::new(0));
    let waits = {
        let (enrolling, told) = (enrolling(&cluster, &token), Arc::clone(&told));
        tokio::spawn(async move {
            enrol_patiently(&enrolling, LONG, |_| *told.lock().unwrap() += 1).await
        })
    };
    let has_asked = |times| move |cluster: &Cluster| cluster.desk.lock().asked.len() >= times;
    until("it waits", || has_asked(1)(&cluster)).await;
    cluster.desk.lock().hiccups.push("overlay_full");
    until("it heard that there is no room", || has_asked(2)(&cluster)).await;
    assert!(!waits.is_finished());
    cluster.desk.approve(&token, Approval::Settled);
    waits.await.unwrap().unwrap();
    assert_eq!(*told.lock().unwrap(), 1, "it is told once");
    // With the same key each time: it is what was approved.
    let asked = cluster.desk.lock().asked.clone();
    assert!(asked.iter().all(|key| *key == asked[0]), "{asked:?}");
    // What is no hiccup ends it.
    let token = careful(2);
    let waits = {
        let enrolling = enrolling(&cluster, &token);
        tokio::spawn(async move { enrol_patiently(&enrolling, LONG, |_| {}).await })
    };
    until("the other waits", || has_asked(asked.len() + 1)(&cluster)).await;
    cluster.desk.lock().hiccups.push("enroll_policy");
    let outcome = waits.await.unwrap();
    assert_eq!(code(outcome.unwrap_err()), "enroll_policy");
}

#[tokio::test]
async fn a_machine_is_reached_when_it_asks_and_when_it_joins_and_not_while_it_waits() {
    let cluster = Cluster::start().await;
    let token = cluster.desk.new_token(1, Role::Worker, Place::Reachable);
    // It listens, and answers nothing.
    let mute = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let ask = async || {
        let mut crafted = Crafted::new(&token);
        crafted.begin.underlay = Some(v1::Underlay {
            endpoint: mute.local_addr().unwrap().to_string(),
            behind_nat: false,
        });
        crafted.outcome(&cluster).await
    };
    for (approval, outcome) in [
        (Approval::Needed, "enroll_unreachable"),
        (Approval::Awaited, PENDING),
        (Approval::Settled, "enroll_unreachable"),
    ] {
        cluster.desk.approve(&token, approval);
        assert_eq!(ask().await, outcome, "{approval:?}");
    }
    let inner = cluster.desk.lock();
    assert_eq!(inner.asked.len(), 1, "an operator sees who is reached");
    assert_eq!(inner.refused.len(), 2, "who waits was refused nothing");
}

/// A server without its master keys lets nobody in, and who waits for a person
/// goes on waiting; none of it fills the ledger, however often they ask.
#[tokio::test]
async fn who_waits_at_a_sealed_server_is_not_put_on_record_again_and_again() {
    let names = ["localhost".to_owned()];
    let cluster = Cluster::start_as(|desk, authority| {
        let own = authority.server(&names, SystemClock.now()).unwrap();
        let cluster = authority.cluster();
        NodeServer::sealed(desk, Arc::new(SystemClock), cluster, own, &names).unwrap()
    })
    .await;
    let token = cluster.desk.new_token(1, Role::Worker, Place::Anywhere);
    let refused = || cluster.desk.lock().refused.len();
    for (approval, outcome, recorded) in [
        (Approval::Needed, PENDING, 0),
        (Approval::Awaited, PENDING, 0),
        (Approval::Settled, "enroll_retry", 1),
    ] {
        for _ in 0..3 {
            cluster.desk.approve(&token, approval);
            assert_eq!(Crafted::new(&token).outcome(&cluster).await, outcome);
        }
        assert_eq!(refused(), recorded, "{approval:?}");
    }
    // The control: what is wrong is on record each time.
    let unknown = EnrolmentToken::of(&[9; 32]);
    for recorded in 2..5 {
        let outcome = Crafted::new(&unknown).outcome(&cluster).await;
        assert_eq!((outcome.as_str(), refused()), ("enroll_denied", recorded));
    }
    assert!(!cluster.desk.is_used(&token));
}

#[tokio::test]
async fn a_token_is_for_one_role_and_place() {
    let cluster = Cluster::start().await;
    let edge = cluster.desk.new_token(1, Role::Edge, Place::Anywhere);
    assert_eq!(outcome(&enrolling(&cluster, &edge)).await, "enroll_policy");
    assert!(cluster.desk.is_used(&edge));
    let reachable = cluster.desk.new_token(2, Role::Worker, Place::Reachable);
    assert_eq!(
        Crafted::new(&reachable).outcome(&cluster).await,
        "enroll_policy"
    );
    assert!(cluster.desk.is_used(&reachable));
    let edge = cluster.desk.new_token(3, Role::Edge, Place::Anywhere);
    let as_edge = Enrolling {
        role: v1::Role::Edge,
        underlay: None,
        ..enrolling(&cluster, &edge)
    };
    assert_eq!(outcome(&as_edge).await, "enrolled");
}

/// Unknown and used tokens look the same, and guessing is slow.
#[tokio::test]
async fn wrong_tokens_are_not_told_apart_and_soon_not_looked_at() {
    let cluster = Cluster::start().await;
    let used = cluster.desk.new_token(1, Role::Worker, Place::Anywhere);
    assert_eq!(Crafted::new(&used).outcome(&cluster).await, "enrolled");
    let unknown = EnrolmentToken::of(&[9; 32]);
    let mut words = Vec::new();
    for token in [&used, &unknown] {
        let since = Instant::now();
        let status = Crafted::new(token).run(&cluster).await.unwrap_err();
        assert!(since.elapsed() >= Duration::from_millis(250));
        assert_eq!(code_of(&status), Some("enroll_denied"));
        words.push((status.code(), status.message().to_owned()));
    }
    assert_eq!(words[0], words[1]);
    for _ in 0..8 {
        let outcome = Crafted::new(&unknown).outcome(&cluster).await;
        assert_eq!(outcome, "enroll_denied");
    }
    let good = cluster.desk.new_token(2, Role::Worker, Place::Anywhere);
    let outcome = Crafted::new(&good).outcome(&cluster).await;
    assert_eq!(outcome, "rate_limited", "this address has guessed enough");
    assert!(!cluster.desk.is_used(&good));
}

/// A server that is not the pinned one never sees the token.
#[tokio::test]
async fn a_machine_tells_its_token_to_the_pinned_cluster_only() {
    let cluster = Cluster::start().await;
    let token = cluster.desk.new_token(1, Role::Worker, Place::Reachable);
    let other = Authority::found(LedgerId::from_bits(7), before(Duration::ZERO)).unwrap();
    for pin in [other.pin(), Digest::of(b"nothing")] {
        let wrong = Enrolling {
            pin,
            ..enrolling(&cluster, &token)
        };
        let outcome = outcome(&wrong).await;
        assert!(
            outcome.contains("no connection with `localhost`"),
            "{outcome}"
        );
    }
    let other_name = Enrolling {
        server: ("127.0.0.1".to_owned(), cluster.port),
        ..enrolling(&cluster, &token)
    };
    let refused = outcome(&other_name).await;
    assert!(refused.contains("no connection with"), "{refused}");
    assert_eq!(outcome(&enrolling(&cluster, &token)).await, "enrolled");
}
