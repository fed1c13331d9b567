//! Whose certificate is believed, for how long, and how it is replaced.

use fluffy_api::node::dial::{Identity, Trust, over};
use fluffy_api::node::{code_of, v1};
use fluffy_base::id::{LedgerId, NodeId};
use fluffy_base::{Clock as _, SystemClock};
use fluffy_node_sim::signing_request;
use fluffy_server::node::{Authority, Role};
use rcgen::KeyPair;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tonic::Code;
use v1::node_message::Message as Said;
use v1::server_message::Message as Told;

use crate::kit::{Cluster, DAY, Member, Session, before, certificate, hello, nodes, until};

/// How a member's first call ends: a code, or that there is no connection.
async fn confirm(cluster: &Cluster, member: &Member) -> String {
    let channel = match cluster.dial(Some(&member.identity)).await {
        Ok(channel) => channel,
        Err(_) => return "refused".to_owned(),
    };
    let node_id = member.node.to_string();
    let confirmed = nodes(channel).confirm(v1::ConfirmRequest { node_id }).await;
    match confirmed {
        Ok(_) => "confirmed".to_owned(),
        // In TLS 1.3 a server's refusal comes after the client's handshake.
        Err(status) => code_of(&status).unwrap_or("refused").to_owned(),
    }
}

#[tokio::test]
async fn only_certificates_of_this_cluster_are_believed() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    assert_eq!(confirm(&cluster, &member).await, "confirmed");
    // Another authority, with the same names in it and the same node.
    let forged = Authority::found(LedgerId::from_bits(7), before(DAY)).unwrap();
    let now = SystemClock.now();
    let (identity, fingerprint) = certificate(&forged, (member.node, Role::Worker), now);
    let thief = Member {
        node: member.node,
        identity,
    };
    assert_eq!(confirm(&cluster, &thief).await, "refused");
    // Even if somebody got its certificate into the state.
    cluster.desk.add(member.node, fingerprint);
    assert_eq!(confirm(&cluster, &thief).await, "refused");
    // A certificate of the right authority that the state does not know.
    let (identity, _) = certificate(&cluster.authority, (member.node, Role::Worker), now);
    let unknown = Member {
        node: member.node,
        identity,
    };
    assert_eq!(confirm(&cluster, &unknown).await, "refused");
    // A certificate of the server, which is none of a node.
    let server = cluster
        .authority
        .server(&["localhost".into()], now)
        .unwrap();
    let server = Member {
        node: member.node,
        identity: server,
    };
    assert_eq!(confirm(&cluster, &server).await, "refused");
}

/// The certificate is public; only its key makes it somebody's.
#[tokio::test]
async fn a_certificate_without_its_key_is_refused() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let key = KeyPair::generate().unwrap().serialize_der();
    let thief = Member {
        node: member.node,
        identity: Identity {
            chain: member.identity.chain.clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key)),
        },
    };
    assert_eq!(confirm(&cluster, &thief).await, "refused");
    assert_eq!(confirm(&cluster, &member).await, "confirmed");
}

#[tokio::test]
async fn without_a_certificate_there_is_enrolment_and_nothing_else() {
    let cluster = Cluster::start().await;
    let mut client = nodes(cluster.dial(None).await.unwrap());
    let node_id = NodeId::generate().to_string();
    let refused = client.confirm(v1::ConfirmRequest { node_id }).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let member = cluster.member();
    let refused = Session::open(client, hello(&member)).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(cluster.desk.lock().nodes[&member.node].hellos.is_empty());
}

/// Ninety days, and fourteen more in which only a new one can be had.
#[tokio::test]
async fn a_certificate_that_ended_gets_its_successor_and_later_nothing() {
    let cluster = Cluster::start().await;
    let fresh = cluster.member_since(Role::Worker, before(DAY));
    assert_eq!(confirm(&cluster, &fresh).await, "confirmed");
    let old = cluster.member_since(Role::Worker, before(DAY * 105));
    assert_eq!(confirm(&cluster, &old).await, "refused");
    let late = cluster.member_since(Role::Worker, before(DAY * 95));
    // It can ask for nothing but a certificate.
    let mut client = cluster.client(&late).await;
    let secret = client.get_secret_material(v1::SecretMaterialRequest {
        node_id: late.node.to_string(),
        ..Default::default()
    });
    let refused = secret.await.unwrap_err();
    assert_eq!(code_of(&refused), Some("certificate_expired"));
    let mut session = cluster.session(&late).await;
    session.say(Said::Heartbeat(v1::Heartbeat::default())).await;
    assert_eq!(code_of(&session.end().await), Some("certificate_expired"));
    assert_eq!(cluster.desk.lock().nodes[&late.node].heartbeats, 0);
    // With a certificate it is a node like others.
    let renewed = renew(&cluster, &late).await;
    assert_eq!(confirm(&cluster, &renewed).await, "confirmed");
    let session = cluster.session(&renewed).await;
    session.say(Said::Heartbeat(v1::Heartbeat::default())).await;
    until("it is alive", || {
        cluster.desk.lock().nodes[&late.node].heartbeats == 1
    })
    .await;
}

/// Waits to be asked, and gets a new certificate.
async fn renew(cluster: &Cluster, member: &Member) -> Member {
    let mut session = cluster.session(member).await;
    let key = KeyPair::generate().unwrap();
    loop {
        match session.next().await.unwrap() {
            Told::RenewCertificate(_) => {
                let csr = signing_request(&key).unwrap();
                let request = v1::CertificateRequest { csr };
                session.say(Said::CertificateRequest(request)).await;
            }
            Told::Certificate(made) => {
                let chain = made.certificate_chain.into_iter();
                let key = PrivatePkcs8KeyDer::from(key.serialize_der());
                let identity = Identity {
                    chain: chain.map(Into::into).collect(),
                    key: PrivateKeyDer::Pkcs8(key),
                };
                let node = member.node;
                return Member { node, identity };
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn after_sixty_days_a_node_is_asked_for_a_new_key() {
    let cluster = Cluster::start().await;
    let due = cluster.member_since(Role::Worker, before(DAY * 61));
    let renewed = renew(&cluster, &due).await;
    assert_eq!(confirm(&cluster, &renewed).await, "confirmed");
    assert_eq!(confirm(&cluster, &due).await, "confirmed", "until it ends");
    // Who was not asked gets none, with a wrong request neither.
    let young = cluster.member_since(Role::Worker, before(DAY * 59));
    let mut session = cluster.session(&young).await;
    let csr = signing_request(&KeyPair::generate().unwrap()).unwrap();
    let request = v1::CertificateRequest { csr };
    session.say(Said::CertificateRequest(request)).await;
    assert_eq!(session.end().await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_revoked_node_is_cut_off_at_once_and_not_let_in_again() {
    let cluster = Cluster::start().await;
    let (bad, good) = (cluster.member(), cluster.member());
    let mut session = cluster.session(&bad).await;
    let mut other = cluster.session(&good).await;
    // A stream on which nothing happens goes too.
    let mut client = cluster.client(&bad).await;
    let (_batches, receiver) = tokio::sync::mpsc::channel::<v1::LogBatch>(1);
    let logs = client.push_logs(crate::kit::streaming(receiver)).await;
    let mut logs = logs.unwrap().into_inner();
    cluster.desk.revoke(bad.node);
    session.say(Said::Heartbeat(v1::Heartbeat::default())).await;
    let ended = session.end().await;
    assert_eq!(code_of(&ended), Some("node_revoked"));
    assert_eq!(cluster.desk.lock().nodes[&bad.node].heartbeats, 0);
    assert!(logs.message().await.is_err());
    assert_eq!(confirm(&cluster, &bad).await, "refused");
    other.report(&[1]).await;
    assert_eq!(other.acknowledged().await, 1, "others notice nothing");
}

/// A silent one is noticed without a word of its own.
#[tokio::test]
async fn a_revoked_node_that_says_nothing_is_cut_off_too() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let mut session = cluster.session(&member).await;
    cluster.desk.revoke(member.node);
    cluster.desk.plan(member.node, (1, 1), &["inst_a"]);
    let ended = session.next().await.expect_err("no plan, only the end");
    assert_eq!(code_of(&ended), Some("node_revoked"));
}

/// What `fluffy up` does: the same bytes, without a network between.
#[tokio::test]
async fn the_same_is_spoken_over_a_stream_in_memory() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let (near, far) = tokio::io::duplex(64 << 10);
    let server = cluster.server.clone();
    tokio::spawn(async move { server.speak(far, [127, 0, 0, 1].into()).await });
    let trust = Trust::Root(cluster.authority.root().clone());
    let channel = over(near, "localhost", &trust, Some(&member.identity)).await;
    let session = Session::open(nodes(channel.unwrap()), hello(&member)).await;
    let session = session.unwrap();
    session.say(Said::Heartbeat(v1::Heartbeat::default())).await;
    until("it is heard", || {
        cluster.desk.lock().nodes[&member.node].heartbeats == 1
    })
    .await;
}
