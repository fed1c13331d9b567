//! Permissions to join as a node: made, taken back, and what machines ask by
//! them decided.
//!
//! Whether a machine that was approved comes in is not decided here but when it
//! asks again: `notice/joining`.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::types::CreateEnrollmentToken;
use fluffy_base::id::{EnrollmentTokenId, NodeId};

use super::{Decided, Desk, gone, invalid, missing};
use crate::call::{CallerKind, Fact, Material, Subject};
use crate::event::{
    EnrollmentTokenCreated, EnrollmentTokenDecided, EnrollmentTokenRevoked, EnrollmentTokenTermsSet,
};
use crate::refusal::Refusal;
use crate::runtime::record::EnrollmentToken;

/// The most labels of a token, and the longest name or value.
const LABELS: (usize, usize) = (16, 63);

/// What a person says to a machine that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may come in.
    Approved,
    /// It may not.
    Refused,
}

pub(super) fn create(desk: &Desk<'_>) -> Decided {
    let body: CreateEnrollmentToken = desk.body()?;
    let seconds = body.ttl_seconds.unwrap_or(3600);
    if !(300..=86_400).contains(&seconds) {
        return Err(invalid("ttl_seconds", "it is from 300 to 86400"));
    }
    check_labels(&body.labels)?;
    let known = |id: &NodeId| desk.runtime().nodes.contains_key(id);
    if body.replaces.as_ref().is_some_and(|id| !known(id)) {
        return Err(invalid("replaces", "there is no such node"));
    }
    let prepared = match &desk.request.material {
        Material::Credential(credential) => credential.issued.first(),
        _ => None,
    };
    let prepared = prepared.and_then(|id| id.parse().ok());
    let id = prepared.unwrap_or_else(|| EnrollmentTokenId::from_bits(desk.bits()));
    let created = EnrollmentTokenCreated {
        expires_at: desk.now().after(Duration::from_secs(u64::from(seconds))),
        allow_nat: body.allow_nat.then_some(true),
        replaces: body.replaces,
    };
    let mut facts = vec![Fact::new(id, created.into())];
    // An event of its own, which no earlier server can overlook: one that let a
    // machine in without asking would be worse than none.
    if body.require_approval || !body.labels.is_empty() {
        let terms = EnrollmentTokenTermsSet {
            labels: body.labels,
            require_approval: body.require_approval,
        };
        facts.push(Fact::new(id, terms.into()));
    }
    Ok((facts, Subject::of("enrollment_token", id)))
}

/// Names are lower case, as those of Kubernetes are; a value may be empty.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let (most, longest) = LABELS;
    let wrong = |why: String| {
        let mut refusal = invalid("labels", &why);
        refusal.fix = "write for example `zone=eu-1`".to_owned();
        Err(refusal)
    };
    if labels.len() > most {
        return wrong(format!("there are {}, and {most} at most", labels.len()));
    }
    for (name, value) in labels {
        let shown: String = name.chars().take(longest).collect();
        let is_small = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        if name.is_empty() || !is_small || !is_plain(name) {
            return wrong(format!(
                "the name `{shown}` is not 1 to {longest} of a-z, 0-9, `.`, `_`, `-` and `/`, \
                 with a letter or digit at both ends"
            ));
        }
        if !is_plain(value) {
            return wrong(format!(
                "the value of `{shown}` is not up to {longest} of A-Z, a-z, 0-9, `.`, `_`, `-` \
                 and `/`, with a letter or digit at both ends"
            ));
        }
    }
    Ok(())
}

fn is_plain(text: &str) -> bool {
    let is_end = |end: Option<u8>| end.is_none_or(|byte| byte.is_ascii_alphanumeric());
    let bytes = text.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-/".contains(byte);
    bytes.len() <= LABELS.1
        && bytes.iter().all(fits)
        && is_end(bytes.first().copied())
        && is_end(bytes.last().copied())
}

fn token<'a>(desk: &Desk<'a>) -> Result<(EnrollmentTokenId, &'a EnrollmentToken), Refusal> {
    let id: EnrollmentTokenId = desk.leaf("enrolment token")?;
    let token = desk.runtime().enrollment_tokens.get(&id);
    let token = token.ok_or_else(|| missing("enrolment token"))?;
    match &token.ended {
        None => Ok((id, token)),
        Some(ended) => {
            let why = format!("the token is {ended} already");
            Err(Refusal::new("invalid_transition", why, ""))
        }
    }
}

pub(super) fn revoke(desk: &Desk<'_>) -> Decided {
    let (id, _) = token(desk)?;
    Ok((
        vec![Fact::new(id, EnrollmentTokenRevoked {}.into())],
        gone(id),
    ))
}

/// Says whether the machine that waits comes in, once.
pub(super) fn decide(desk: &Desk<'_>, verdict: Verdict) -> Decided {
    let (id, token) = token(desk)?;
    if token.expires_at <= desk.now() {
        let why = "the token expired while the machine waited";
        let fix = "make a new token, and enrol the machine with it";
        return Err(Refusal::new("approval_expired", why, fix));
    }
    let Some(request) = &token.request else {
        let why = "no machine waits with this token";
        let fix = "see `fluffy nodes enroll-token list` for those that do";
        return Err(Refusal::new("invalid_transition", why, fix));
    };
    if let Some((decided, by)) = &request.decided {
        let why = format!("the request was {decided} already, by {by}");
        let fix = "to take an approval back, revoke the token or the node";
        return Err(Refusal::new("invalid_transition", why, fix));
    }
    let actor = &desk.call.caller.actor;
    let me = actor.on_behalf_of.as_ref().unwrap_or(&actor.id);
    let outcome = match verdict {
        Verdict::Approved => {
            check_is_another(desk, token, me)?;
            "approved"
        }
        // Whoever made a token may take it back as well.
        Verdict::Refused => "refused",
    };
    let decided = EnrollmentTokenDecided {
        outcome: outcome.to_owned(),
        by: me.clone(),
        key_fingerprint: request.key.clone(),
    };
    let fact = Fact::new(id, decided.into());
    Ok((vec![fact], Subject::of("enrollment_token", id)))
}

/// Nobody approves what came of their own token, if somebody else could; the
/// owner of a machine that is the platform may.
fn check_is_another(desk: &Desk<'_>, token: &EnrollmentToken, me: &str) -> Result<(), Refusal> {
    let actor = &desk.call.caller.actor;
    let own = token.made_for == me || token.created_by == actor.id;
    let local = desk.call.caller.kind == CallerKind::Local;
    let mut operators = desk.state.access.operators();
    if own && !local && operators.any(|other| other != me && other != token.created_by) {
        let why = "you made this token, and there is another operator";
        let fix = "have another operator run `fluffy nodes enroll-token approve`";
        return Err(Refusal::new("self_approval", why, fix));
    }
    Ok(())
}
