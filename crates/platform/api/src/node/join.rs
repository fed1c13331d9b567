//! The machine's side of joining a cluster: keys, a token, a proof.
//!
//! Keys are made in memory, and nothing is kept: what comes of it is the
//! caller's to keep, whole or not at all. The server's side is `node/enrol.rs`
//! of the server.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fluffy_base::Digest;
use futures_util::Stream;
use futures_util::stream::unfold;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::dial::{Channel, DialError, Trust, dial, pin};
use super::v1::enroll_request::Step as Asked;
use super::v1::enroll_response::Step as Told;
use super::v1::enrolment_client::EnrolmentClient;
use super::v1::nodes_client::NodesClient;
use super::{EnrolmentToken, MAX_TO_NODE, PENDING, PROTOCOL, REACH, Transcript, code_of, v1};

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
    /// The id that this machine had before, or nothing.
    pub former_node_id: String,
    /// A keyed hash of what makes this machine this machine, or nothing.
    pub fingerprint: Vec<u8>,
}

/// What a machine got.
pub struct Enrolled {
    /// What the server issued.
    pub issued: v1::Credentials,
    /// The key that it was for, PKCS#8.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Enrolled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Enrolled({})", self.issued.node_id)
    }
}

/// Why a machine did not join.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// There is no connection.
    #[error("the server cannot be reached")]
    Dial(#[from] DialError),
    /// The server says no; its code says why.
    #[error("the server refused: {}", .0.message())]
    Refused(#[from] Status),
    /// The keys cannot be made.
    #[error("the machine's keys cannot be made")]
    Keys,
    /// The address that was given is not one of this machine's.
    #[error("nothing can listen at {address}")]
    Listen {
        /// The address.
        address: IpAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The server does not keep to the protocol.
    #[error("the server {0}")]
    Protocol(&'static str),
}

/// How long a machine that waits to be approved pauses before it asks again: at
/// first, and in the end.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

/// What it is told while it waits, and what passes: a server that is busy or
/// sealed, a cluster that is full, a network that lost three datagrams. Its key
/// is what was approved, so it gives up only what it can't get any more.
const PASSING: [&str; 5] = [
    PENDING,
    "enroll_retry",
    "enroll_unreachable",
    "overlay_full",
    "rate_limited",
];

/// A machine that waits until an operator approves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What the server says of it.
    pub said: String,
    /// SHA-256 of the machine's key, as operators see it.
    pub key: Digest,
}

/// Enrols, and says what was given.
///
/// # Errors
/// See [`EnrolError`]. Who has to be approved first is refused with
/// `enroll_pending`: see [`enrol_patiently`].
pub async fn enrol(enrolling: &Enrolling) -> Result<Enrolled, EnrolError> {
    Machine::new(enrolling).await?.ask(enrolling).await
}

/// Enrols, and waits so long while an operator has to approve the machine,
/// which is told once. A server that goes away meanwhile is asked again, and
/// so is one that can't let it in for now.
///
/// # Errors
/// See [`EnrolError`]; `enroll_pending` if nobody decided in time.
pub async fn enrol_patiently(
    enrolling: &Enrolling,
    patience: Duration,
    mut waits: impl FnMut(Waiting),
) -> Result<Enrolled, EnrolError> {
    let machine = Machine::new(enrolling).await?;
    let deadline = Instant::now() + patience;
    let mut is_known = false;
    let mut pause = AGAIN.0;
    loop {
        let error = match machine.ask(enrolling).await {
            Ok(enrolled) => return Ok(enrolled),
            Err(error) => error,
        };
        if let EnrolError::Refused(status) = &error
            && code_of(status) == Some(PENDING)
            && !is_known
        {
            is_known = true;
            waits(Waiting {
                said: status.message().to_owned(),
                key: Digest::of(machine.key.public_key_raw()),
            });
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !is_known || !error.may_pass() || left.is_zero() {
            return Err(error);
        }
        sleep(pause.min(left)).await;
        pause = longer(pause);
    }
}

/// The pause after this one.
fn longer(pause: Duration) -> Duration {
    pause.saturating_mul(2).min(AGAIN.1)
}

impl EnrolError {
    /// Whether the same machine may be let in a little later.
    fn may_pass(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Refused(status) => match code_of(status) {
                Some(code) => PASSING.contains(&code),
                // No word of the server, but of the connection.
                None => true,
            },
            Self::Keys | Self::Listen { .. } | Self::Protocol(_) => false,
        }
    }
}

/// What a machine is while it asks: the key of its certificate, and where it
/// answers, stay the same however often it does.
struct Machine {
    key: KeyPair,
    csr: Vec<u8>,
    underlay: v1::Underlay,
    _answering: Option<Answering>,
}

impl Machine {
    async fn new(enrolling: &Enrolling) -> Result<Self, EnrolError> {
        let key = KeyPair::generate().map_err(|_| EnrolError::Keys)?;
        let csr = signing_request(&key)?;
        let (underlay, answering) = answering(enrolling.underlay).await?;
        Ok(Self {
            key,
            csr,
            underlay,
            _answering: answering,
        })
    }

    async fn ask(&self, enrolling: &Enrolling) -> Result<Enrolled, EnrolError> {
        let (host, port) = &enrolling.server;
        let trust = Trust::Pin(enrolling.pin);
        let channel = dial((host, *port), &trust, None).await?;
        // A proof uses it up, so each try has its own.
        let overlay = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
        let overlay = overlay.map_err(|_| EnrolError::Keys)?;
        let overlay_key = overlay.compute_public_key();
        let overlay_key = overlay_key.map_err(|_| EnrolError::Keys)?;
        let (asked, questions) = mpsc::channel(2);
        let begin = v1::EnrollBegin {
            protocol: PROTOCOL,
            token: enrolling.token.reveal().to_owned(),
            csr: self.csr.clone(),
            overlay_public_key: overlay_key.as_ref().to_vec(),
            role: enrolling.role.into(),
            underlay: Some(self.underlay.clone()),
            facts: Some(enrolling.facts.clone()),
            clock_ms: now_ms(),
            former_node_id: enrolling.former_node_id.clone(),
            machine_fingerprint: enrolling.fingerprint.clone(),
        };
        // The stream holds both messages, so neither is ever waited for.
        let _ = asked.send(step(Asked::Begin(begin))).await;
        let mut client = EnrolmentClient::with_origin(channel, Channel::origin());
        let mut told = client.enroll(streaming(questions)).await?.into_inner();
        let Some(Told::Challenge(challenge)) = told.message().await?.and_then(|told| told.step)
        else {
            return Err(EnrolError::Protocol("sent no challenge"));
        };
        let transcript = Transcript {
            nonce: &challenge.nonce,
            token: enrolling.token.hash(),
            csr: &self.csr,
            overlay_key: overlay_key.as_ref(),
        };
        let theirs = UnparsedPublicKey::new(&X25519, &challenge.public_key);
        let proof = agree_ephemeral(overlay, &theirs, |shared| transcript.prove(shared));
        let proof = proof.map_err(|_| EnrolError::Protocol("has a key that shares no secret"))?;
        let _ = asked
            .send(step(Asked::Proof(v1::EnrollProof { proof })))
            .await;
        let Some(Told::Credentials(issued)) = told.message().await?.and_then(|told| told.step)
        else {
            return Err(EnrolError::Protocol("gave no credentials"));
        };
        if pin(&issued.root_certificate.as_slice().into()) != Some(enrolling.pin) {
            return Err(EnrolError::Protocol(
                "gave another root than the pinned one",
            ));
        }
        let key = self.key.serialize_der();
        Ok(Enrolled { issued, key })
    }
}

/// The address of this machine from which the server is reached, and at which
/// others most likely reach it; nothing is sent.
///
/// # Errors
/// The server has no address, or there is no way to it.
pub async fn own_address((host, port): (&str, u16)) -> std::io::Result<IpAddr> {
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for server in tokio::net::lookup_host((host, port)).await? {
        let any: IpAddr = match server.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let asked = async {
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(server).await?;
            socket.local_addr()
        };
        match asked.await {
            Ok(local) => return Ok(local.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A request for a certificate: a key and no names.
///
/// # Errors
/// It cannot be signed.
pub fn signing_request(key: &KeyPair) -> Result<Vec<u8>, EnrolError> {
    let mut wanted = CertificateParams::default();
    wanted.distinguished_name = DistinguishedName::new();
    let made = wanted.serialize_request(key);
    Ok(made.map_err(|_| EnrolError::Keys)?.der().to_vec())
}

/// What a member of the cluster asks on its connection.
#[must_use]
pub fn nodes(channel: &Channel) -> NodesClient<Channel> {
    NodesClient::with_origin(channel.clone(), Channel::origin())
        .max_decoding_message_size(MAX_TO_NODE)
}

/// What comes out of a channel, as a stream of messages.
pub fn streaming<T: Send + 'static>(
    messages: mpsc::Receiver<T>,
) -> impl Stream<Item = T> + Send + 'static {
    unfold(messages, async |mut messages| {
        messages.recv().await.map(|message| (message, messages))
    })
}

fn step(step: Asked) -> v1::EnrollRequest {
    v1::EnrollRequest { step: Some(step) }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// Ends the task when it goes.
#[derive(Debug)]
struct Answering(JoinHandle<()>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers the server's datagrams, if the machine says that it can be reached.
async fn answering(
    address: Option<IpAddr>,
) -> Result<(v1::Underlay, Option<Answering>), EnrolError> {
    let Some(address) = address else {
        let behind_nat = v1::Underlay {
            endpoint: String::new(),
            behind_nat: true,
        };
        return Ok((behind_nat, None));
    };
    let closed = |source| EnrolError::Listen { address, source };
    let socket = UdpSocket::bind(SocketAddr::new(address, 0)).await;
    let socket = socket.map_err(closed)?;
    let underlay = v1::Underlay {
        endpoint: socket.local_addr().map_err(closed)?.to_string(),
        behind_nat: false,
    };
    let task = tokio::spawn(async move {
        let mut datagram = [0; 128];
        while let Ok((length, from)) = socket.recv_from(&mut datagram).await {
            let question = datagram.get(..length).unwrap_or_default();
            if question.starts_with(REACH) {
                let _ = socket.send_to(question, from).await;
            }
        }
    });
    Ok((underlay, Some(Answering(task))))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::refusal;
    use super::*;

    #[test]
    fn a_machine_that_waits_goes_on_until_it_is_refused() {
        let passes = |code| EnrolError::Refused(refusal(Code::Unavailable, code, "")).may_pass();
        for code in PASSING {
            assert!(passes(code), "{code}");
        }
        for code in [
            "enroll_bad_request",
            "enroll_denied",
            "enroll_duplicate",
            "enroll_policy",
            "enroll_proof_failed",
        ] {
            assert!(!passes(code), "{code}");
        }
        assert!(EnrolError::Refused(Status::cancelled("a cable")).may_pass());
        assert!(!EnrolError::Keys.may_pass());
    }

    #[test]
    fn it_asks_less_and_less_often() {
        let pauses = std::iter::successors(Some(AGAIN.0), |pause| Some(longer(*pause)));
        let seconds: Vec<u64> = pauses.take(6).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 15, 15, 15]);
    }
}
