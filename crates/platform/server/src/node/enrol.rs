//! Makes a machine a node: token, request, proof of its key, and its address.
//!
//! Unknown, used and expired tokens are told apart by nobody: one answer, after
//! the same time. What uses a token up is the desk's to do. Next: `session`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_api::node::{
    EnrolmentToken, OLDEST_PROTOCOL, PENDING, PROTOCOL, Transcript, refusal, v1,
};
use fluffy_base::id::{EnrollmentTokenId, NodeId};
use fluffy_base::{Digest, Timestamp};
use rcgen::PublicKeyData as _;
use ring::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey, X25519};
use ring::rand::SystemRandom;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Streaming};
use v1::enroll_request::Step as Asked;
use v1::enroll_response::Step as Told;

use super::ca::Role;
use super::csr::SigningRequest;
use super::desk::{Approval, DeskError, Enrolment, Machine, Place, RefusedEnrolment, Token};
use super::reach::reaches;
use super::service::Shared;
use super::stream::Inlet;
use crate::source;

/// How long a machine may take for each of its two messages.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest time until a token is called wrong.
const FLOOR: Duration = Duration::from_millis(250);

/// How far a machine's clock may be off.
const SKEW: Duration = Duration::from_secs(300);

/// The most labels and drivers, and the longest of their texts.
const MAX_FACTS: (usize, usize) = (64, 256);

/// The code of what is the server's own, and passes.
const RETRY: &str = "enroll_retry";

/// The same of a cluster that has no room.
const FULL: &str = "overlay_full";

/// Why a machine does not become a node: the code, and words for people.
struct Refused {
    code: &'static str,
    why: String,
    token: Option<EnrollmentTokenId>,
    /// The key in the overlay that the machine named.
    key: Option<Digest>,
}

/// A first message whose form is right.
struct Begun {
    token: EnrolmentToken,
    csr: Vec<u8>,
    request: SigningRequest,
    overlay_key: [u8; 32],
    role: Role,
    endpoint: Option<SocketAddr>,
    facts: v1::Facts,
    /// What makes the machine this machine.
    mark: Vec<u8>,
    former: Option<NodeId>,
}

/// Enrols one machine, and tells it the outcome.
pub(super) async fn enrol(
    shared: Arc<Shared>,
    source: IpAddr,
    mut asked: Streaming<v1::EnrollRequest>,
    told: Inlet<v1::EnrollResponse>,
) {
    let since = Instant::now();
    if !shared.strangers.may_try(source, since) {
        let words = "too much from this address was wrong; try again in a minute";
        return told
            .end(refusal(Code::ResourceExhausted, "rate_limited", words))
            .await;
    }
    let Err(refused) = steps(&shared, source, &mut asked, &told).await else {
        return;
    };
    if ["enroll_bad_request", "enroll_denied"].contains(&refused.code) {
        shared.strangers.failed(source, since);
    }
    // Who waits is no stranger and was refused nothing.
    if refused.code == PENDING {
        return told
            .end(refusal(Code::Unavailable, PENDING, refused.why))
            .await;
    }
    if refused.code == "enroll_denied" {
        sleep_until(since + FLOOR).await;
    }
    let is_due = shared.passing.is_due(&refused, since);
    let code = match refused.code {
        "enroll_bad_request" => Code::InvalidArgument,
        RETRY => Code::Unavailable,
        "enroll_unreachable" => Code::FailedPrecondition,
        _ => Code::PermissionDenied,
    };
    let record = RefusedEnrolment {
        token: refused.token,
        code: refused.code,
        source,
        key: refused.key,
        at: shared.clock.now(),
    };
    if is_due {
        shared.desk.refused(record).await;
    }
    told.end(refusal(code, refused.code, refused.why)).await;
}

async fn steps(
    shared: &Shared,
    source: IpAddr,
    asked: &mut Streaming<v1::EnrollRequest>,
    told: &Inlet<v1::EnrollResponse>,
) -> Result<(), Refused> {
    let Some(Asked::Begin(begin)) = next(asked).await else {
        return Err(bad("the first message must begin an enrolment"));
    };
    let begun = read(begin, shared.clock.now())?;
    let key = Digest::of(&begun.overlay_key);
    let tried = attempt(shared, source, begun, (asked, told)).await;
    tried.map_err(|refused| Refused {
        key: Some(key),
        ..refused
    })
}

/// What follows a first message whose form is right.
async fn attempt(
    shared: &Shared,
    source: IpAddr,
    begun: Begun,
    (asked, told): (
        &mut Streaming<v1::EnrollRequest>,
        &Inlet<v1::EnrollResponse>,
    ),
) -> Result<(), Refused> {
    let token = match shared.desk.token(begun.token.hash()).await {
        Ok(Some(token)) => token,
        Ok(None) => return Err(no("enroll_denied", "this token cannot be used")),
        Err(error) => return Err(of_desk(error)),
    };
    let refused = |code, why: &str| Refused {
        token: Some(token.id),
        ..no(code, why)
    };
    if let Err(why) = allowed(&begun, &token) {
        return Err(refused("enroll_policy", why));
    }
    match prove(&begun, asked, told).await {
        Some(true) => {}
        Some(false) => {
            let why = "the machine does not have the overlay key that it named";
            return Err(refused("enroll_proof_failed", why));
        }
        None => return Err(refused(RETRY, "the enrolment was not finished")),
    }
    let of_token = |error| Refused {
        token: Some(token.id),
        ..error
    };
    let endpoint = begun.endpoint;
    let request = begun.request.clone();
    let machine = machine(begun, &token, source);
    // Who waits was reached before, and is looked at again once it may join:
    // what fails meanwhile costs it nothing.
    let waits = token.approval == Approval::Awaited;
    if !waits {
        reached(endpoint).await.map_err(of_token)?;
    }
    if token.approval != Approval::Settled {
        let said = shared.desk.ask(machine.clone()).await;
        said.map_err(of_desk).map_err(of_token)?;
    }
    if waits {
        reached(endpoint).await.map_err(of_token)?;
    }
    let credentials = admit(shared, machine, &request).await.map_err(of_token)?;
    // Whoever is gone by now has no credentials, and is revoked unconfirmed.
    let _ = told.say(step(Told::Credentials(credentials))).await;
    Ok(())
}

/// What the desk is told of a machine.
fn machine(begun: Begun, token: &Token, source: IpAddr) -> Machine {
    Machine {
        token: token.id,
        role: begun.role,
        key: Digest::of(begun.request.der_bytes()),
        overlay_key: begun.overlay_key,
        endpoint: begun.endpoint.map_or(String::new(), |at| at.to_string()),
        facts: begun.facts,
        mark: begun.mark,
        former: begun.former,
        source,
    }
}

/// Checks that a machine is where it says, if it says so.
async fn reached(endpoint: Option<SocketAddr>) -> Result<(), Refused> {
    match endpoint {
        Some(endpoint) if !reaches(endpoint).await => {
            let why = format!("nothing answers at {endpoint}; open that UDP port");
            Err(no("enroll_unreachable", why))
        }
        _ => Ok(()),
    }
}

/// Issues the certificate and has the desk record the node that it is for.
async fn admit(
    shared: &Shared,
    machine: Machine,
    request: &SigningRequest,
) -> Result<v1::Credentials, Refused> {
    let sealed = || no(RETRY, "the server's master keys are not at hand");
    let authority = shared.authority.load_full().ok_or_else(sealed)?;
    let node = NodeId::generate();
    let certified = authority
        .certify(request, (node, machine.role), shared.clock.now())
        .map_err(|_| no(RETRY, "no certificate can be made now"))?;
    let enrolment = Enrolment {
        machine,
        node,
        fingerprint: certified.fingerprint,
    };
    let overlay = shared.desk.enrol(enrolment).await.map_err(of_desk)?;
    Ok(v1::Credentials {
        node_id: node.to_string(),
        cluster_id: authority.cluster().to_string(),
        certificate_chain: certified.chain.iter().map(|der| der.to_vec()).collect(),
        root_certificate: authority.root().to_vec(),
        not_after_ms: millis(certified.not_after),
        overlay: Some(overlay),
    })
}

/// Whether the machine has the private half of the key that it named; nothing
/// if it went away.
async fn prove(
    begun: &Begun,
    asked: &mut Streaming<v1::EnrollRequest>,
    told: &Inlet<v1::EnrollResponse>,
) -> Option<bool> {
    let own = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).ok()?;
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).ok()?;
    let challenge = v1::EnrollChallenge {
        public_key: own.compute_public_key().ok()?.as_ref().to_vec(),
        nonce: nonce.to_vec(),
    };
    told.say(step(Told::Challenge(challenge))).await.ok()?;
    let Some(Asked::Proof(proof)) = next(asked).await else {
        return None;
    };
    let transcript = Transcript {
        nonce: &nonce,
        token: begun.token.hash(),
        csr: &begun.csr,
        overlay_key: &begun.overlay_key,
    };
    let theirs = UnparsedPublicKey::new(&X25519, begun.overlay_key);
    let proved = agreement::agree_ephemeral(own, &theirs, |shared| {
        transcript.is_proved(shared, &proof.proof)
    });
    // A key that shares no secret with anybody proves nothing.
    Some(proved.unwrap_or(false))
}

/// Checks the form of the first message.
fn read(begin: v1::EnrollBegin, now: Timestamp) -> Result<Begun, Refused> {
    if !(OLDEST_PROTOCOL..=PROTOCOL).contains(&begin.protocol) {
        let why = format!("this server speaks {OLDEST_PROTOCOL} to {PROTOCOL} of this protocol");
        return Err(bad(why));
    }
    let token = EnrolmentToken::parse(&begin.token).map_err(|error| bad(error.to_string()))?;
    let request = SigningRequest::parse(&begin.csr).map_err(|error| bad(error.to_string()))?;
    let overlay_key = begin.overlay_public_key.as_slice().try_into();
    let role = match begin.role() {
        v1::Role::Worker => Role::Worker,
        v1::Role::Edge => Role::Edge,
        v1::Role::Unspecified => return Err(bad("the role must be worker or edge")),
    };
    if millis(now).abs_diff(begin.clock_ms) > u64::try_from(SKEW.as_millis()).unwrap_or(0) {
        return Err(bad("the machine's clock is more than five minutes off"));
    }
    let facts = begin.facts.unwrap_or_default();
    if !is_bounded(&facts) || begin.machine_fingerprint.len() > 32 {
        return Err(bad("there is more in the facts than a machine has"));
    }
    Ok(Begun {
        token,
        request,
        overlay_key: overlay_key.map_err(|_| bad("an overlay key has 32 bytes"))?,
        role,
        endpoint: endpoint(&begin.underlay.unwrap_or_default())?,
        facts,
        mark: begin.machine_fingerprint,
        former: begin.former_node_id.parse().ok(),
        csr: begin.csr,
    })
}

/// Where the machine says that it is; nothing behind NAT.
fn endpoint(underlay: &v1::Underlay) -> Result<Option<SocketAddr>, Refused> {
    if underlay.behind_nat {
        return Ok(None);
    }
    let wrong = || bad("the endpoint must be the address and UDP port of one machine");
    let at: SocketAddr = underlay.endpoint.parse().map_err(|_| wrong())?;
    if at.port() == 0 || at.ip().is_unspecified() || at.ip().is_multicast() {
        return Err(wrong());
    }
    Ok(Some(at))
}

fn is_bounded(facts: &v1::Facts) -> bool {
    let (most, longest) = MAX_FACTS;
    let labels = facts.labels.iter().flat_map(|(key, value)| [key, value]);
    let drivers = facts.drivers.iter();
    let drivers = drivers.flat_map(|driver| [&driver.name, &driver.level]);
    facts.labels.len() <= most
        && facts.drivers.len() <= most
        && [&facts.arch, &facts.agent_version]
            .into_iter()
            .chain(labels)
            .chain(drivers)
            .all(|text| text.len() <= longest)
}

/// Whether the token is for such a machine.
fn allowed(begun: &Begun, token: &Token) -> Result<(), &'static str> {
    match (begun.role == token.role, begun.endpoint, token.place) {
        (false, _, _) => Err("this token is for another role"),
        (true, None, Place::Reachable) => {
            Err("this token is for machines that others reach, and this one says it is behind NAT")
        }
        (true, _, _) => Ok(()),
    }
}

async fn next(asked: &mut Streaming<v1::EnrollRequest>) -> Option<Asked> {
    timeout(PATIENCE, asked.message()).await.ok()?.ok()??.step
}

fn step(step: Told) -> v1::EnrollResponse {
    v1::EnrollResponse { step: Some(step) }
}

fn no(code: &'static str, why: impl Into<String>) -> Refused {
    Refused {
        code,
        why: why.into(),
        token: None,
        key: None,
    }
}

fn bad(why: impl Into<String>) -> Refused {
    no("enroll_bad_request", why)
}

fn of_desk(error: DeskError) -> Refused {
    match error {
        DeskError::Refused { code, why } => no(code, why),
        DeskError::Unavailable => no(RETRY, "the server cannot enrol now; try again"),
    }
}

/// A time as messages carry it.
pub(super) fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros() / 1000).unwrap_or(0)
}

/// How often sources came with something wrong, of the last minute; each is
/// recorded, so there must be an end to it.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Strangers {
    /// How much of one source is looked at in one window.
    const TRIES: u32 = 10;

    const WINDOW: Duration = Duration::from_secs(60);

    /// The most sources that are remembered.
    const MOST: usize = 10_000;

    fn may_try(&self, source: IpAddr, now: Instant) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&source::counted(source)) {
            Some((since, tries)) => {
                *tries < Self::TRIES || now.duration_since(*since) >= Self::WINDOW
            }
            None => {
                // Who is new here is not kept out by those of long ago.
                forget(&mut known, Self::MOST, |(since, _)| {
                    now.duration_since(*since) < Self::WINDOW
                });
                known.len() < Self::MOST
            }
        }
    }

    fn failed(&self, source: IpAddr, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, tries) = known.entry(source::counted(source)).or_insert((now, 0));
        if now.duration_since(*since) >= Self::WINDOW {
            (*since, *tries) = (now, 0);
        }
        *tries += 1;
    }
}

/// What passes by itself, and is asked about again until it has: recorded of a
/// token when it begins, and then once in a while.
#[derive(Debug, Default)]
pub(super) struct Passing(Mutex<HashMap<EnrollmentTokenId, Instant>>);

impl Passing {
    /// How often it is recorded.
    const WINDOW: Duration = Duration::from_secs(300);

    /// From how many tokens on those of long ago are forgotten.
    const MANY: usize = 1_000;

    fn is_due(&self, refused: &Refused, now: Instant) -> bool {
        if ![RETRY, FULL].contains(&refused.code) {
            return true;
        }
        // Without a token it could not be looked up: nothing was refused.
        let Some(token) = refused.token else {
            return false;
        };
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |since: &Instant| now.duration_since(*since) < Self::WINDOW;
        forget(&mut said, Self::MANY, is_new);
        if said.get(&token).is_some_and(is_new) {
            return false;
        }
        said.insert(token, now);
        true
    }
}

/// Keeps only what still counts, where there is a lot.
fn forget<K, V>(known: &mut HashMap<K, V>, many: usize, counts: impl Fn(&V) -> bool) {
    if known.len() >= many {
        known.retain(|_, entry| counts(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_of_one_source_are_counted_by_the_minute() {
        let strangers = Strangers::default();
        let [one, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let now = Instant::now();
        for _ in 0..Strangers::TRIES {
            assert!(strangers.may_try(one, now));
            strangers.failed(one, now);
        }
        assert!(!strangers.may_try(one, now));
        assert!(strangers.may_try(other, now));
        let later = now + Strangers::WINDOW;
        assert!(strangers.may_try(one, later));
        strangers.failed(one, later);
        assert!(strangers.may_try(one, later));
        // By whatever address of its network it comes.
        let hosts =
            |network: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        for host in 0..10 {
            strangers.failed(hosts(1, host), now);
        }
        assert!(!strangers.may_try(hosts(1, 99), now));
        assert!(strangers.may_try(hosts(2, 99), now));
    }

    #[test]
    fn a_crowd_of_strangers_keeps_nobody_out_for_longer_than_it_comes() {
        let strangers = Strangers::default();
        let now = Instant::now();
        for number in 0..10_000_u32 {
            strangers.failed(IpAddr::from(number.to_be_bytes()), now);
        }
        let late = IpAddr::from([192, 0, 2, 1]);
        assert!(!strangers.may_try(late, now), "there is an end to it");
        // Nobody fails meanwhile: nobody else clears what is over.
        assert!(strangers.may_try(late, now + Strangers::WINDOW));
    }

    #[test]
    fn what_passes_is_recorded_once_in_a_while_and_what_is_refused_each_time() {
        let passing = Passing::default();
        let now = Instant::now();
        let [one, other] = [1, 2].map(|bits| Some(EnrollmentTokenId::from_bits(bits)));
        let due = |code, token, at| {
            let refused = Refused {
                token,
                ..no(code, "")
            };
            passing.is_due(&refused, at)
        };
        assert!(due(RETRY, one, now));
        for code in [RETRY, FULL] {
            assert!(!due(code, one, now), "{code}");
            assert!(!due(code, None, now), "{code}");
        }
        assert!(due(FULL, other, now));
        for _ in 0..2 {
            assert!(due("enroll_unreachable", one, now));
            assert!(due("enroll_denied", None, now));
        }
        let later = now + Passing::WINDOW;
        assert!(due(RETRY, one, later));
        assert!(!due(RETRY, one, later));
    }
}
