//! The machine's side of enrolment.
//!
//! Keys are made in memory, and nothing is kept unless it worked.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use fluffy_api::node::dial::{Channel, Trust, dial};
use fluffy_api::node::{EnrolmentToken, PROTOCOL, REACH, Transcript, v1};
use fluffy_base::Digest;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use v1::enroll_request::Step as Asked;
use v1::enroll_response::Step as Told;
use v1::enrolment_client::EnrolmentClient;

use crate::home::Credentials;
use crate::node::{now_ms, streaming};

/// What a machine enrols with.
#[derive(Debug, Clone)]
pub struct Enrolling {
    /// Host and port of the server.
    pub server: (String, u16),
    /// The pin of the cluster's root.
    pub pin: Digest,
    /// The token.
    pub token: EnrolmentToken,
    /// What for.
    pub role: v1::Role,
    /// The address at which others would reach it; none behind NAT.
    pub underlay: Option<IpAddr>,
    /// What it can.
    pub facts: v1::Facts,
}

/// Enrols, and says what was given.
///
/// # Errors
/// The server says no; its status is among the causes.
pub async fn enrol(enrolling: &Enrolling) -> Result<Credentials> {
    let (host, port) = &enrolling.server;
    let trust = Trust::Pin(enrolling.pin);
    let channel = dial((host, *port), &trust, None).await?;
    let key = KeyPair::generate()?;
    let csr = signing_request(&key)?;
    let overlay = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
    let Ok(overlay) = overlay else {
        bail!("no randomness for a key");
    };
    let Ok(overlay_key) = overlay.compute_public_key() else {
        bail!("no public key");
    };
    let (underlay, _answering) = answering(enrolling.underlay).await?;
    let (asked, questions) = mpsc::channel(2);
    let begin = v1::EnrollBegin {
        protocol: PROTOCOL,
        token: enrolling.token.reveal().to_owned(),
        csr: csr.clone(),
        overlay_public_key: overlay_key.as_ref().to_vec(),
        role: enrolling.role.into(),
        underlay: Some(underlay),
        facts: Some(enrolling.facts.clone()),
        clock_ms: now_ms(),
        former_node_id: String::new(),
        machine_fingerprint: Vec::new(),
    };
    asked.send(step(Asked::Begin(begin))).await?;
    let mut client = EnrolmentClient::with_origin(channel, Channel::origin());
    let mut told = client.enroll(streaming(questions)).await?.into_inner();
    let Some(Told::Challenge(challenge)) = told.message().await?.and_then(|told| told.step) else {
        bail!("the server sent no challenge");
    };
    let transcript = Transcript {
        nonce: &challenge.nonce,
        token: enrolling.token.hash(),
        csr: &csr,
        overlay_key: overlay_key.as_ref(),
    };
    let theirs = UnparsedPublicKey::new(&X25519, &challenge.public_key);
    let Ok(proof) = agree_ephemeral(overlay, &theirs, |shared| transcript.prove(shared)) else {
        bail!("the server's key shares no secret");
    };
    let proof = v1::EnrollProof { proof };
    asked.send(step(Asked::Proof(proof))).await?;
    match told.message().await?.and_then(|told| told.step) {
        Some(Told::Credentials(issued)) => {
            let root = issued.root_certificate.as_slice().into();
            let pinned = fluffy_api::node::dial::pin(&root) == Some(enrolling.pin);
            if !pinned {
                bail!("the server gave another root than the pinned one");
            }
            Ok(Credentials::new(&issued, &key.serialize_der()))
        }
        _ => bail!("the server gave no credentials"),
    }
}

/// A request for a certificate: a key and no names.
///
/// # Errors
/// It cannot be signed.
pub fn signing_request(key: &KeyPair) -> Result<Vec<u8>> {
    let mut wanted = CertificateParams::default();
    wanted.distinguished_name = DistinguishedName::new();
    Ok(wanted.serialize_request(key)?.der().to_vec())
}

fn step(step: Asked) -> v1::EnrollRequest {
    v1::EnrollRequest { step: Some(step) }
}

/// Ends the task when it goes.
#[derive(Debug)]
pub(crate) struct Task(tokio::task::JoinHandle<()>);

impl Task {
    /// Runs something until this is dropped.
    pub(crate) fn of(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers the server's datagrams, if the machine says that it can be reached.
async fn answering(address: Option<IpAddr>) -> Result<(v1::Underlay, Option<Task>)> {
    let Some(address) = address else {
        let behind_nat = v1::Underlay {
            endpoint: String::new(),
            behind_nat: true,
        };
        return Ok((behind_nat, None));
    };
    let socket = UdpSocket::bind(SocketAddr::new(address, 0))
        .await
        .with_context(|| format!("cannot listen at {address}"))?;
    let underlay = v1::Underlay {
        endpoint: socket.local_addr()?.to_string(),
        behind_nat: false,
    };
    let task = Task::of(async move {
        let mut datagram = [0; 128];
        while let Ok((length, from)) = socket.recv_from(&mut datagram).await {
            let question = datagram.get(..length).unwrap_or_default();
            if question.starts_with(REACH) {
                let _ = socket.send_to(question, from).await;
            }
        }
    });
    Ok((underlay, Some(task)))
}
