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
use super::desk::{DeskError, Enrolment, Place, RefusedEnrolment, Token};
use super::reach::reaches;
use super::service::Shared;
use super::stream::Inlet;

/// How long a machine may take for each of its two messages.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest time until a token is called wrong.
const FLOOR: Duration = Duration::from_millis(250);

/// How far a machine's clock may be off.
const SKEW: Duration = Duration::from_secs(300);

/// The most labels and drivers, and the longest of their texts.
const MAX_FACTS: (usize, usize) = (64, 256);

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
    machine: Vec<u8>,
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
    let code = match refused.code {
        "enroll_bad_request" => Code::InvalidArgument,
        "enroll_retry" => Code::Unavailable,
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
    shared.desk.refused(record).await;
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
        None => return Err(refused("enroll_retry", "the enrolment was not finished")),
    }
    if let Some(endpoint) = begun.endpoint
        && !reaches(endpoint).await
    {
        let why = format!("nothing answers at {endpoint}; open that UDP port");
        return Err(refused("enroll_unreachable", &why));
    }
    let credentials = admit(shared, source, begun, &token)
        .await
        .map_err(|error| Refused {
            token: Some(token.id),
            ..error
        })?;
    // Whoever is gone by now has no credentials, and is revoked unconfirmed.
    let _ = told.say(step(Told::Credentials(credentials))).await;
    Ok(())
}

/// Issues the certificate and has the desk record the node that it is for.
async fn admit(
    shared: &Shared,
    source: IpAddr,
    begun: Begun,
    token: &Token,
) -> Result<v1::Credentials, Refused> {
    let sealed = || no("enroll_retry", "the server's master keys are not at hand");
    let authority = shared.authority.load_full().ok_or_else(sealed)?;
    let node = NodeId::generate();
    let certified = authority
        .certify(&begun.request, (node, begun.role), shared.clock.now())
        .map_err(|_| no("enroll_retry", "no certificate can be made now"))?;
    let enrolment = Enrolment {
        token: token.id,
        node,
        role: begun.role,
        fingerprint: certified.fingerprint,
        key: Digest::of(begun.request.der_bytes()),
        overlay_key: begun.overlay_key,
        endpoint: begun.endpoint.map_or(String::new(), |at| at.to_string()),
        facts: begun.facts,
        machine: begun.machine,
        former: begun.former,
        source,
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
        machine: begin.machine_fingerprint,
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
        DeskError::Unavailable => no("enroll_retry", "the server cannot enrol now; try again"),
    }
}

/// A time as messages carry it.
pub(super) fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros() / 1000).unwrap_or(0)
}

/// How often addresses came with something wrong, of the last minute; each is
/// recorded, so there must be an end to it.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Strangers {
    /// How much of one address is looked at in one window.
    const TRIES: u32 = 10;

    const WINDOW: Duration = Duration::from_secs(60);

    /// The most addresses that are remembered.
    const MOST: usize = 10_000;

    fn may_try(&self, source: IpAddr, now: Instant) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&source) {
            Some((since, tries)) => {
                *tries < Self::TRIES || now.duration_since(*since) >= Self::WINDOW
            }
            None => known.len() < Self::MOST,
        }
    }

    fn failed(&self, source: IpAddr, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::MOST {
            known.retain(|_, (since, _)| now.duration_since(*since) < Self::WINDOW);
        }
        let (since, tries) = known.entry(source).or_insert((now, 0));
        if now.duration_since(*since) >= Self::WINDOW {
            (*since, *tries) = (now, 0);
        }
        *tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_of_one_address_are_counted_by_the_minute() {
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
    }
}
