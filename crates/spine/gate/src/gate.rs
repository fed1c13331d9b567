//! Decide and record: the only way to a permit.
//!
//! A deny or a review is on disk before the caller hears of it; an ordinary
//! allow is handed to the ledger first and waits for the disk only while that
//! fails. Either way a decision that the ledger does not take is a refusal.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use fluffy_base::{Clock, Digest};
use fluffy_ledger::{
    Actor, ActorKind, Aggregate, AppendError, Batch, Domain, Draft, Durability, Ledger, SeqRef,
};
use fluffy_policy::decision::{TokenOutcome, Verdict};
use fluffy_policy::record::DecisionRecord;
use fluffy_policy::rule::Effect;
use fluffy_policy::token::{Evaluation, Issued, Presented, Terms, Token, TokenVault};
use fluffy_policy::{
    Decision, Permit, Principal, PrincipalKind, Refusal, Request, token::IssueTokenError,
};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::load::{LoadPolicyError, LoadedPolicy, PolicyPlaces, Texts};

/// A decided, recorded right to do one thing.
#[derive(Debug)]
pub struct Granted {
    /// What the effect takes.
    pub permit: Permit,
    /// The recorded decision, for the events that the effect causes.
    pub decision: SeqRef,
}

/// Why there is no permit.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizeError {
    /// Policy denies it, or wants a person to look.
    #[error("{refusal}")]
    Refused {
        /// The decision.
        refusal: Box<Refusal>,
        /// Where it is recorded.
        decision: SeqRef,
    },
    /// The decision could not be recorded, so it does not count.
    #[error("the decision could not be recorded, so nothing is permitted")]
    NotRecorded(#[source] AppendError),
}

/// Why a person's approval led to no token.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    /// The engine issues none.
    #[error("no token can be issued for this approval")]
    NotIssued(#[from] IssueTokenError),
    /// The approval could not be recorded, so it does not count.
    #[error("the approval could not be recorded, so it does not count")]
    NotRecorded(#[source] AppendError),
    /// The request is refused all the same.
    #[error("the request is refused even with the approval")]
    Refused(#[from] AuthorizeError),
}

/// A person's yes, as a token.
#[derive(Debug)]
pub struct Approved {
    /// What the caller presents.
    pub token: Token,
    /// The recorded issue of the token.
    pub issued: SeqRef,
}

/// What looking at the files again came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reload {
    /// They say what they said.
    Unchanged,
    /// They are as broken as they were.
    Known,
    /// Another policy is in force.
    Changed,
}

/// Policies, extensions, tokens and the ledger behind one door.
pub struct Gate {
    pub(crate) ledger: Ledger,
    pub(crate) places: PolicyPlaces,
    pub(crate) clock: Arc<dyn Clock>,
    policy: ArcSwap<LoadedPolicy>,
    /// Held from reading the files to the swap, so that of two reloads the one
    /// that read last also stores last, and no two policies share an epoch.
    reloading: Mutex<()>,
    vault: TokenVault,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("policy", &self.policy.load())
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// Opens the gate with the policy in force.
    ///
    /// # Errors
    /// A layer of the policy is unreadable or invalid; then nothing is allowed.
    pub fn open(
        places: PolicyPlaces,
        ledger: Ledger,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, LoadPolicyError> {
        let policy = LoadedPolicy::load(&places, 1, &clock)?;
        Ok(Self::with_policy(policy, places, ledger, clock))
    }

    /// As [`Gate::open`], to put another policy in force: a pinned copy that
    /// was damaged does not stand in the way of replacing it. Until then
    /// nothing is allowed.
    ///
    /// # Errors
    /// Another layer of the policy is unreadable or invalid.
    pub fn open_for_update(
        places: PolicyPlaces,
        ledger: Ledger,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, LoadPolicyError> {
        let policy = match LoadedPolicy::load(&places, 1, &clock) {
            Err(LoadPolicyError::Pin(_)) => LoadedPolicy::closed(&places, &clock)?,
            loaded => loaded?,
        };
        Ok(Self::with_policy(policy, places, ledger, clock))
    }

    fn with_policy(
        policy: LoadedPolicy,
        places: PolicyPlaces,
        ledger: Ledger,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut secret = Zeroizing::new([0u8; 32]);
        // The system's randomness cannot fail after boot, and without it no
        // token is safe.
        if getrandom::fill(secret.as_mut()).is_err() {
            std::process::abort();
        }
        Self {
            ledger,
            places,
            clock,
            policy: ArcSwap::from_pointee(policy),
            vault: TokenVault::new(secret),
            reloading: Mutex::new(()),
        }
    }

    /// The policy in force at this moment.
    #[must_use]
    pub fn policy(&self) -> Arc<LoadedPolicy> {
        self.policy.load_full()
    }

    /// Decides a request and records the decision.
    ///
    /// # Errors
    /// It is not allowed, or the decision could not be recorded.
    pub fn authorize(&self, request: &Request) -> Result<Granted, AuthorizeError> {
        let policy = self.policy.load();
        let decision = policy.engine.evaluate(request, self.clock.now(), &**policy);
        self.conclude(request, decision)
    }

    /// Decides a request that comes with a token.
    ///
    /// # Errors
    /// As [`Gate::authorize`].
    pub fn authorize_with_token(
        &self,
        request: &Request,
        presented: &Presented<'_>,
    ) -> Result<Granted, AuthorizeError> {
        let policy = self.policy.load();
        let now = self.clock.now();
        let decision =
            policy
                .engine
                .evaluate_with_token(request, presented, &self.vault, now, &**policy);
        self.conclude(request, decision)
    }

    /// Whether a request would be allowed now. Recorded nowhere and permits
    /// nothing: for leaving out what somebody could not read anyway.
    #[must_use]
    pub fn would_allow(&self, request: &Request) -> bool {
        let policy = self.policy.load();
        let now = self.clock.now();
        let decision = policy.engine.evaluate(request, now, &**policy);
        decision.verdict() == Verdict::Allow
    }

    /// Turns a person's answer to named review rules into a token for this
    /// one request. A deny cannot be answered.
    ///
    /// # Errors
    /// The request is denied, a review is unanswered, or the approval could
    /// not be recorded.
    pub fn approve(
        &self,
        request: &Request,
        answers: &[String],
        by: &str,
    ) -> Result<Approved, ApproveError> {
        let policy = self.policy.load();
        let evaluation = Evaluation {
            engine: &policy.engine,
            request,
            now: self.clock.now(),
            extensions: &**policy,
        };
        let Issued { token, claims, .. } =
            self.vault.approve(&evaluation, &Terms::once(), answers)?;
        let payload = json!({"approved_by": by, "claims": claims.as_ref()});
        let draft = draft_for(&request.principal, "token.issued", payload);
        let appended = self.ledger.append_blocking(Batch::from(draft));
        let appended = appended.map_err(|error| {
            // A yes that nobody can find again must not be usable.
            self.vault.revoke(token.id());
            ApproveError::NotRecorded(error)
        })?;
        Ok(Approved {
            token,
            issued: SeqRef::Known(appended.last_seq),
        })
    }

    /// The permit for a request after a person's yes to all of its reviews.
    ///
    /// # Errors
    /// As [`Gate::approve`], or the request is refused all the same.
    pub fn authorize_approved(
        &self,
        request: &Request,
        review: &Refusal,
        by: &str,
    ) -> Result<Granted, ApproveError> {
        let voices = review.decision().spoke().iter();
        let answers: Vec<String> = voices
            .filter(|voice| voice.effect == Effect::RequireReview)
            .map(|voice| voice.label.id())
            .collect();
        let approved = self.approve(request, &answers, by)?;
        let presented = Presented {
            token: &approved.token,
            counter: 1,
        };
        Ok(self.authorize_with_token(request, &presented)?)
    }

    /// Reads the policy again if anything changed or an extension is disabled;
    /// says whether it did. This is the reload that a person asks for.
    ///
    /// # Errors
    /// A layer is unreadable or invalid; then the old policy still holds.
    pub fn reload(&self) -> Result<bool, LoadPolicyError> {
        let wanted = |seen: Digest, current: &LoadedPolicy| match seen == current.fingerprint
            && !current.has_disabled()
        {
            true => Reload::Unchanged,
            false => Reload::Changed,
        };
        let reload = self.reload_if(wanted).map_err(|(_, error)| *error)?;
        Ok(reload == Reload::Changed)
    }

    /// Puts what the files say now in force, as the watch would a moment later.
    ///
    /// # Errors
    /// A layer is unreadable or invalid; then the old policy still holds.
    pub fn refresh(&self) -> Result<(), LoadPolicyError> {
        let refreshed = self.reload_unless(None);
        refreshed.map(drop).map_err(|(_, error)| *error)
    }

    /// As [`Gate::reload`], without trying a state that is known to be broken
    /// and without reviving an extension, which only a person may do.
    /// An error comes with what identifies the state it is about.
    pub(crate) fn reload_unless(
        &self,
        broken: Option<&Digest>,
    ) -> Result<Reload, (Digest, Box<LoadPolicyError>)> {
        self.reload_if(|seen, current| match broken {
            _ if seen == current.fingerprint => Reload::Unchanged,
            Some(broken) if *broken == seen => Reload::Known,
            _ => Reload::Changed,
        })
    }

    fn reload_if(
        &self,
        wanted: impl FnOnce(Digest, &LoadedPolicy) -> Reload,
    ) -> Result<Reload, (Digest, Box<LoadPolicyError>)> {
        // The lock guards no data, so a panic under it leaves nothing half-done.
        let _reloading = self
            .reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let texts = Texts::read(&self.places)
            .map_err(|error| (Digest::of(format!("{error:?}").as_bytes()), Box::new(error)))?;
        let fingerprint = texts.fingerprint();
        let current = self.policy.load();
        let reload = wanted(fingerprint, &current);
        if reload != Reload::Changed {
            return Ok(reload);
        }
        let epoch = current.engine.epoch() + 1;
        let fresh = LoadedPolicy::compile(texts, &self.places, epoch, &self.clock)
            .map_err(|error| (fingerprint, Box::new(error)))?;
        self.policy.store(Arc::new(fresh));
        Ok(Reload::Changed)
    }

    fn conclude(&self, request: &Request, decision: Decision) -> Result<Granted, AuthorizeError> {
        let recorded = self
            .record(request, &decision)
            .map_err(AuthorizeError::NotRecorded)?;
        match decision.into_permit() {
            Ok(permit) => Ok(Granted {
                permit,
                decision: recorded,
            }),
            Err(refusal) => Err(AuthorizeError::Refused {
                refusal: Box::new(refusal),
                decision: recorded,
            }),
        }
    }

    fn record(&self, request: &Request, decision: &Decision) -> Result<SeqRef, AppendError> {
        let payload = decision_payload(request, decision);
        let draft =
            draft_for(&request.principal, "policy.decision", payload).occurred_at(decision.at());
        let mut drafts = vec![draft];
        drafts.extend(token_event(request, decision));
        // Only what the ledger itself calls operational may wait in its buffer,
        // and nothing while the storage fails: a permit must not rest on a
        // buffer that may be lost.
        let may_wait = !self.ledger.is_failing()
            && drafts
                .iter()
                .all(|draft| draft.durability() == Durability::Operational);
        if let (true, [draft]) = (may_wait, &*drafts) {
            return Ok(SeqRef::Pending(self.ledger.record(draft.clone())?));
        }
        let appended = self.ledger.append_blocking(Batch::new(drafts))?;
        Ok(SeqRef::Known(appended.first_seq))
    }
}

/// What a token's end or misuse leaves behind besides the decision.
fn token_event(request: &Request, decision: &Decision) -> Option<Draft> {
    let token = decision.token()?;
    let event_type = match token.outcome {
        TokenOutcome::Replayed | TokenOutcome::Forged => "token.replayed",
        TokenOutcome::Expired => "token.expired",
        TokenOutcome::Used
        | TokenOutcome::UsedUp
        | TokenOutcome::Revoked
        | TokenOutcome::OldPolicy
        | TokenOutcome::NotForThis => return None,
    };
    let payload = json!({"token": token.id, "outcome": token.outcome});
    Some(draft_for(&request.principal, event_type, payload))
}

/// The payload of `policy.decision`: a summary for readers, and the record
/// that a trial run replays.
fn decision_payload(request: &Request, decision: &Decision) -> Value {
    let record = DecisionRecord::of(decision, request);
    let rules: Vec<&str> = decision
        .spoke()
        .iter()
        .map(|voice| voice.label.name.as_str())
        .collect();
    let context = &request.context;
    let mut payload = json!({
        "caller": request.principal.name,
        "decision": decision.verdict(),
        "rules": rules,
        "record": record,
    });
    let optional = [
        ("mode", json!(context.mode)),
        ("state", json!(context.state)),
        ("sandbox", json!(request.principal.sandbox)),
    ];
    for (name, value) in optional {
        if let (Value::Object(fields), false) = (&mut payload, value.is_null()) {
            fields.insert(name.to_owned(), value);
        }
    }
    payload
}

pub(crate) fn draft_for(principal: &Principal, event_type: &str, payload: Value) -> Draft {
    let (domain, kind) = match principal.kind {
        PrincipalKind::User => (Domain::Agent, ActorKind::User),
        PrincipalKind::Agent => (Domain::Agent, ActorKind::Agent),
        PrincipalKind::Plugin => (Domain::Plugin, ActorKind::ServicePrincipal),
        PrincipalKind::Service => (Domain::Platform, ActorKind::ServicePrincipal),
        PrincipalKind::Node => (Domain::Platform, ActorKind::Node),
    };
    let mut actor = Actor::new(kind, principal.name.clone());
    if let Some(other) = &principal.on_behalf_of {
        actor = actor.on_behalf_of(other.clone());
    }
    let aggregate = Aggregate::new("principal", principal.name.clone());
    Draft::new(domain, aggregate, event_type, actor).payload(payload)
}
