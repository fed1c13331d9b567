//! Tokens: short-lived proofs of an earlier decision.
//!
//! A token is an id, a hash of its claims and a MAC over both; the claims stay
//! in the vault, so a holder can neither read nor change them. The secret is
//! made anew at each start, which ends all tokens. A token never answers a
//! deny, never skips grants or built-in rules, and a policy change ends it.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::id::{SandboxId, TokenId};
use fluffy_base::{Digest, Timestamp};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::claims::{Bound, Claims, Coverage, Numbers, TreeError, check_tree};
use crate::decision::{Decision, TokenOutcome, Verdict};
use crate::engine::Engine;
use crate::extension::Extensions;
use crate::request::Request;
use crate::rule::{Effect, Label};
use crate::subject::{Facts, Subject};
use crate::window::Window;

/// The most tokens that are alive at once.
pub const MAX_LIVE: usize = 65_536;

/// The longest life of a token.
pub const MAX_LIFE: Duration = Duration::from_secs(3600);

/// What a holder has: proof without content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    id: TokenId,
    claims: Digest,
    mac: Digest,
}

impl Token {
    /// The token's id, which is no secret.
    #[must_use]
    pub const fn id(&self) -> TokenId {
        self.id
    }

    /// The text to hand to the holder; whoever has it can use it.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{}.{}.{}", self.id, self.claims, self.mac)
    }
}

/// A text is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token")]
pub struct ParseTokenError;

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let mut parts = text.splitn(4, '.');
        let mut next = || parts.next().ok_or(ParseTokenError);
        let (id, claims, mac) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(ParseTokenError);
        }
        Ok(Self {
            id: id.parse().map_err(|_| ParseTokenError)?,
            claims: claims.parse().map_err(|_| ParseTokenError)?,
            mac: mac.parse().map_err(|_| ParseTokenError)?,
        })
    }
}

/// A token as it comes with a request.
#[derive(Debug, Clone, Copy)]
pub struct Presented<'a> {
    /// The token.
    pub token: &'a Token,
    /// The holder's count of uses, from 1, never the same twice.
    pub counter: u64,
}

/// How far a token is to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// What it may be used on.
    pub resources: Resources,
    /// How many operations it is good for.
    pub max_ops: u32,
    /// How long it lives.
    pub life: Duration,
}

/// The resources that a token is wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resources {
    /// The request's own.
    Own,
    /// The request's own and these, each evaluated too.
    Also(Vec<String>),
    /// Everything a glob matches, if nothing there can object.
    Tree(String),
}

impl Default for Terms {
    /// The request's own resource, 64 operations, 30 seconds.
    fn default() -> Self {
        Self {
            resources: Resources::Own,
            max_ops: 64,
            life: Duration::from_secs(30),
        }
    }
}

impl Terms {
    /// One operation, as after a review.
    #[must_use]
    pub fn once() -> Self {
        Self {
            max_ops: 1,
            ..Self::default()
        }
    }
}

/// A full evaluation, which every token rests on.
#[derive(Clone, Copy)]
pub struct Evaluation<'a> {
    /// Who decides.
    pub engine: &'a Engine,
    /// What is asked.
    pub request: &'a Request,
    /// The one clock reading.
    pub now: Timestamp,
    /// The extensions to ask.
    pub extensions: &'a dyn Extensions,
}

impl fmt::Debug for Evaluation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Evaluation");
        shown.field("request", self.request).field("now", &self.now);
        shown.finish_non_exhaustive()
    }
}

/// A new token with what it rests on.
#[derive(Debug)]
pub struct Issued {
    /// The token.
    pub token: Token,
    /// Everything it is bound to, for the ledger.
    pub claims: Arc<Claims>,
    /// The decision on the request itself.
    pub decision: Decision,
}

/// Why no token was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueTokenError {
    /// The evaluation did not end as it must; the decision says why.
    #[error("the request was decided as `{}`", .0.verdict())]
    Decided(Box<Decision>),
    /// A review rule that the person did not answer.
    #[error("the review rule `{rule}` was not answered")]
    Unanswered {
        /// The rule, as `origin:name`.
        rule: String,
    },
    /// Without sandbox and process identity there is nothing to bind to.
    #[error("the principal has no sandbox or no process identity")]
    Unbound,
    /// A request with left-out fields is a recording, not a live call.
    #[error("the request has redacted fields")]
    Redacted,
    /// No operation, no time, or more time than [`MAX_LIFE`].
    #[error("the token's terms are out of bounds")]
    Terms,
    /// The whole tree cannot be covered.
    #[error("the token cannot cover the tree")]
    Tree(#[source] TreeError),
    /// An extension guards the action, and could object anywhere in a tree.
    #[error("an extension could object to something in the tree")]
    Extended,
    /// [`MAX_LIVE`] tokens are alive.
    #[error("too many tokens are alive")]
    TooMany,
}

/// The secret, the living tokens and their counters.
pub struct TokenVault {
    keyed: Hmac<Sha256>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: HashMap<TokenId, Live, foldhash::fast::RandomState>,
    issued: u64,
}

struct Live {
    claims: Arc<Claims>,
    digest: Digest,
    /// Made once, so that a use formats nothing.
    label: Arc<Label>,
    used: u32,
    window: Window,
}

/// What a presented token came to.
#[derive(Debug)]
pub(crate) enum Redeemed {
    Valid(Arc<Claims>, Arc<Label>),
    Not(TokenOutcome),
}

impl Redeemed {
    pub(crate) fn outcome(&self) -> TokenOutcome {
        match self {
            Self::Valid(..) => TokenOutcome::Used,
            Self::Not(outcome) => *outcome,
        }
    }
}

impl TokenVault {
    /// A vault under a fresh secret, which the caller draws at each start.
    #[must_use]
    pub fn new(secret: Zeroizing<[u8; 32]>) -> Self {
        // HMAC fills a short key up with zeros; doing so here needs no fallible call.
        let mut block = Zeroizing::new([0u8; 64]);
        for (filled, byte) in block.iter_mut().zip(secret.iter()) {
            *filled = *byte;
        }
        Self {
            keyed: Hmac::new((&*block).into()),
            state: Mutex::default(),
        }
    }

    /// Evaluates in full and, if allowed, issues a token.
    ///
    /// # Errors
    /// The decision if it is not allow, or why its terms cannot be met.
    pub fn issue(
        &self,
        evaluation: &Evaluation<'_>,
        terms: &Terms,
    ) -> Result<Issued, IssueTokenError> {
        self.issue_for(evaluation, terms, &[])
    }

    /// Evaluates in full and, if the person's answers cover every review,
    /// issues a token. `answers` names the rules as `origin:name`.
    ///
    /// # Errors
    /// A deny, which nobody can answer, or a review that was not answered.
    pub fn approve(
        &self,
        evaluation: &Evaluation<'_>,
        terms: &Terms,
        answers: &[String],
    ) -> Result<Issued, IssueTokenError> {
        self.issue_for(evaluation, terms, answers)
    }

    fn issue_for(
        &self,
        evaluation: &Evaluation<'_>,
        terms: &Terms,
        answers: &[String],
    ) -> Result<Issued, IssueTokenError> {
        let Evaluation {
            engine,
            request,
            now,
            ..
        } = *evaluation;
        if terms.max_ops == 0 || terms.life.is_zero() || terms.life > MAX_LIFE {
            return Err(IssueTokenError::Terms);
        }
        if !request.context.redacted.is_empty() {
            return Err(IssueTokenError::Redacted);
        }
        let decision = settled(evaluation, request, answers)?;
        let Ok(subject) = Subject::read(request) else {
            return Err(IssueTokenError::Decided(Box::new(decision)));
        };
        let facts = subject.facts();
        let resources = cover(evaluation, &facts, &decision, terms, answers)?;
        let numbers = match decision.extended {
            true => Numbers::Exactly,
            false => Numbers::ByRules,
        };
        let bound = Bound::of(engine, &facts, numbers).ok_or(IssueTokenError::Unbound)?;
        let mut state = self.lock();
        state.make_room(now)?;
        let claims = Claims {
            id: self.next_id(&mut state, now),
            decision: decision.id(),
            policy: engine.digest(),
            epoch: engine.epoch(),
            issued: now,
            expires: now.after(terms.life),
            max_ops: terms.max_ops,
            answers: answered(&decision),
            resources,
            bound,
        };
        let (token, claims) = self.seal(&mut state, claims);
        Ok(Issued {
            token,
            claims,
            decision,
        })
    }

    fn seal(&self, state: &mut State, claims: Claims) -> (Token, Arc<Claims>) {
        let claims = Arc::new(claims);
        let digest = digest_of(&claims);
        let live = Live {
            claims: Arc::clone(&claims),
            digest,
            label: Label::of_engine("token", claims.reason()),
            used: 0,
            window: Window::default(),
        };
        state.live.insert(claims.id, live);
        let token = Token {
            id: claims.id,
            claims: digest,
            mac: self.mac(digest),
        };
        (token, claims)
    }

    /// Ends a token; `false` if it was not alive.
    pub fn revoke(&self, id: TokenId) -> bool {
        self.lock().live.remove(&id).is_some()
    }

    /// Ends all tokens of a sandbox.
    pub fn revoke_sandbox(&self, sandbox: SandboxId) {
        let mut state = self.lock();
        state
            .live
            .retain(|_, live| live.claims.bound.sandbox() != Some(sandbox));
    }

    /// Ends all tokens.
    pub fn revoke_all(&self) {
        self.lock().live.clear();
    }

    /// Checks a token and counts its use, in one step.
    pub(crate) fn redeem(
        &self,
        engine: &Engine,
        facts: &Facts<'_>,
        subject: &Subject<'_>,
        presented: &Presented<'_>,
        now: Timestamp,
    ) -> Redeemed {
        let Presented { token, counter } = *presented;
        if !self.is_ours(token) {
            return Redeemed::Not(TokenOutcome::Forged);
        }
        let mut state = self.lock();
        let Some(live) = state.live.get_mut(&token.id) else {
            return Redeemed::Not(TokenOutcome::Revoked);
        };
        // Claims of ours under the id of another token.
        if live.digest != token.claims {
            return Redeemed::Not(TokenOutcome::Forged);
        }
        let claims = &live.claims;
        if claims.epoch != engine.epoch() || claims.policy != engine.digest() {
            return Redeemed::Not(TokenOutcome::OldPolicy);
        }
        // A clock that went back before the issue proves nothing about the end.
        if now >= claims.expires || now < claims.issued {
            return Redeemed::Not(TokenOutcome::Expired);
        }
        if !claims.fit(facts, subject) {
            return Redeemed::Not(TokenOutcome::NotForThis);
        }
        if live.used >= claims.max_ops {
            return Redeemed::Not(TokenOutcome::UsedUp);
        }
        if !live.window.accept(counter) {
            return Redeemed::Not(TokenOutcome::Replayed);
        }
        live.used += 1;
        Redeemed::Valid(Arc::clone(&live.claims), Arc::clone(&live.label))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is whole after every statement, so a panic elsewhere while
        // it was held leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id needs no place in it: it is among the claims.
    fn message(&self, claims: Digest) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(b"token");
        mac.update(claims.as_bytes());
        mac
    }

    fn mac(&self, claims: Digest) -> Digest {
        Digest(self.message(claims).finalize().into_bytes().into())
    }

    /// In constant time.
    fn is_ours(&self, token: &Token) -> bool {
        let mac = self.message(token.claims);
        mac.verify(token.mac.as_bytes().into()).is_ok()
    }

    /// The time and 80 bits that only the secret's owner can foresee.
    fn next_id(&self, state: &mut State, now: Timestamp) -> TokenId {
        state.issued += 1;
        let mut mac = self.keyed.clone();
        mac.update(b"id");
        mac.update(&state.issued.to_be_bytes());
        let random: [u8; 32] = mac.finalize().into_bytes().into();
        let low = random
            .iter()
            .take(10)
            .fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
        let millis = u128::from(u64::try_from(now.as_micros() / 1000).unwrap_or_default());
        TokenId::from_bits((millis & ((1 << 48) - 1)) << 80 | low)
    }
}

impl fmt::Debug for TokenVault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.lock().live.len();
        f.debug_struct("TokenVault")
            .field("live", &live)
            .finish_non_exhaustive()
    }
}

impl State {
    fn make_room(&mut self, now: Timestamp) -> Result<(), IssueTokenError> {
        if self.live.len() < MAX_LIVE {
            return Ok(());
        }
        self.live.retain(|_, live| now < live.claims.expires);
        match self.live.len() < MAX_LIVE {
            true => Ok(()),
            false => Err(IssueTokenError::TooMany),
        }
    }
}

fn digest_of(claims: &Claims) -> Digest {
    // Plain data of ours always serializes; an empty text would still be
    // unique to nothing, since the id is in the MAC as well.
    Digest::of(&serde_json::to_vec(claims).unwrap_or_default())
}

/// The decision on one request, if it is allow or every review is answered.
fn settled(
    evaluation: &Evaluation<'_>,
    request: &Request,
    answers: &[String],
) -> Result<Decision, IssueTokenError> {
    let Evaluation {
        engine,
        now,
        extensions,
        ..
    } = *evaluation;
    let decision = engine.evaluate(request, now, extensions);
    match decision.verdict() {
        Verdict::Allow => Ok(decision),
        Verdict::RequireReview if !answers.is_empty() => {
            let open = answered(&decision)
                .into_iter()
                .find(|rule| !answers.contains(rule));
            match open {
                Some(rule) => Err(IssueTokenError::Unanswered { rule }),
                None => Ok(decision),
            }
        }
        _ => Err(IssueTokenError::Decided(Box::new(decision))),
    }
}

/// The review rules that spoke.
fn answered(decision: &Decision) -> Vec<String> {
    let reviews = decision
        .spoke()
        .iter()
        .filter(|voice| voice.effect == Effect::RequireReview);
    reviews.map(|voice| voice.label.id()).collect()
}

/// What the token may cover, each part of it evaluated.
fn cover(
    evaluation: &Evaluation<'_>,
    facts: &Facts<'_>,
    decision: &Decision,
    terms: &Terms,
    answers: &[String],
) -> Result<Coverage, IssueTokenError> {
    let own = decision.resource().map(str::to_owned);
    match &terms.resources {
        Resources::Own => Ok(Coverage::Exactly(vec![own])),
        Resources::Also(others) => {
            let mut covered = vec![own];
            for other in others {
                let request = Request {
                    resource: Some(other.clone()),
                    ..evaluation.request.clone()
                };
                let decision = settled(evaluation, &request, answers)?;
                covered.push(decision.resource().map(str::to_owned));
            }
            Ok(Coverage::Exactly(covered))
        }
        Resources::Tree(_) if decision.extended => Err(IssueTokenError::Extended),
        Resources::Tree(glob) => {
            check_tree(evaluation.engine, facts, glob).map_err(IssueTokenError::Tree)?;
            Ok(Coverage::Tree(glob.clone()))
        }
    }
}
