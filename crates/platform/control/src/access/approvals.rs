//! Commands that wait for a person, and what a person says to them.
//!
//! A command waits as it was asked for, without what is secret. Approving it
//! asks everything again at that moment, as whoever asked first, and does it
//! in the same append. Nobody approves what they asked for themselves, nor
//! through a service principal whose secret they know.

use std::collections::BTreeSet;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::types::{ApprovalOutcome, DecideApproval};
use fluffy_base::Timestamp;
use fluffy_base::id::{ApprovalId, TokenId};
use fluffy_ledger::{Actor, ActorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::authorize::{self, Answer, Authorized, Decided, Who};
use super::place::{self, Place};
use super::{Approval, Desk};
use crate::call::{Call, Change, Fact, Material, Request, Subject};
use crate::event::{ApprovalDecided, ApprovalExpired, ApprovalRequested, Body};
use crate::operations::{self, command_hash, dispatch, not_found};
use crate::refusal::Refusal;
use crate::state::State;

/// How long a command waits.
const WAITS: Duration = Duration::from_secs(24 * 3600);

/// What is written for what is left out of a command that waits.
const LEFT_OUT: &str = "left-out@localhost";

/// A command that waits now.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) fact: Fact,
    pub(crate) approval: ApprovalId,
    pub(crate) expires_at: Timestamp,
}

/// A command as it waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    operation: String,
    path: Vec<String>,
    query: std::collections::BTreeMap<String, String>,
    body: Option<Value>,
    #[serde(default)]
    material: Material,
    /// With which token it was asked for.
    token: Option<TokenId>,
    kind: ActorKind,
    if_match: Option<u64>,
}

/// Lets a command wait that could be done now if nobody had to look.
pub(crate) fn park(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    who: &Who,
    place: &Place,
) -> Result<Parked, Refusal> {
    let why = "a rule wants a person to look first, and this can't wait for one";
    let denied = |fix| Err(Refusal::new("policy_denied", why, fix));
    match request.operation {
        // Nobody sits at a terminal for as long as that may take, and a signal
        // is sent by whom it was asked of, at once.
        Operation::CreateExec | Operation::SignalInstance => {
            return denied("ask for a grant that lasts for a while, which a person can look at");
        }
        Operation::DecideApproval => return denied("change the rule"),
        _ if place.owner.org.is_none() => return denied("change the rule"),
        _ => {}
    }
    let authorized = Authorized::new(who.clone(), place.clone());
    dispatch(state, call, request, &authorized)?;
    let approval = ApprovalId::from_bits(call.mint.bits(call.now));
    let expires_at = call.now.after(WAITS);
    let waiting = Waiting {
        operation: request.operation.spec().id.to_owned(),
        path: request.path.clone(),
        query: request.query.clone(),
        body: without_secrets(request),
        material: request.material.clone(),
        token: who.token,
        kind: who.kind,
        if_match: call.if_match,
    };
    let command = super::answer::json(&waiting);
    let capability = request.operation.spec().capability.unwrap_or_default();
    let object = place.object.as_deref().unwrap_or_default();
    let asked = ApprovalRequested {
        command_hash: command_hash(&command),
        command,
        capability: format!("{capability}.{object}"),
        expires_at,
    };
    Ok(Parked {
        fact: Fact::new(approval, asked.into()).of(&place.scope()),
        approval,
        expires_at,
    })
}

/// The body without what must not get into an event. What is needed of it is
/// in the material.
fn without_secrets(request: &Request) -> Option<Value> {
    let mut body = request.body.clone()?;
    match request.operation {
        Operation::ReplaceSecrets | Operation::UpdateSecrets => return None,
        Operation::AddMember => {
            // Who is in already is named without an address, and then there
            // must be none.
            let email = body.get_mut("email").filter(|email| !email.is_null());
            if let Some(email) = email {
                *email = Value::from(LEFT_OUT);
            }
        }
        _ => {}
    }
    Some(body)
}

pub(super) fn decide(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: DecideApproval = desk.body()?;
    let id: ApprovalId = desk.leaf()?;
    let approvals = &desk.state.access.approvals;
    let approval = approvals.get(&id).ok_or_else(not_found)?;
    if let Some(note) = &body.note {
        super::check_length("note", note, 0..=256)?;
    }
    check_may_decide(desk, approval)?;
    let outcome = match body.outcome {
        ApprovalOutcome::Approved => "approved",
        ApprovalOutcome::Denied => "denied",
    };
    let decided = ApprovalDecided {
        outcome: outcome.to_owned(),
        by: desk.authorized.who.principal.clone(),
        note: body.note,
    };
    let scope = approval.owner.scope();
    let mut facts = vec![Fact::new(id, decided.into()).of(&scope)];
    let mut subject = Subject::of("approval", id);
    if body.outcome == ApprovalOutcome::Approved {
        let change = run(desk, id, approval)?;
        facts.extend(change.facts);
        subject.result = Some(Box::new(change.subject));
    }
    Ok(Change {
        facts,
        subject,
        status: 200,
    })
}

fn check_may_decide(desk: &Desk<'_>, approval: &Approval) -> Result<(), Refusal> {
    check_is_another(desk, approval)?;
    if approval.status == "pending" && approval.expires_at <= desk.call.now {
        let why = "the command waited too long";
        return Err(Refusal::new("approval_expired", why, "ask for it again"));
    }
    if approval.status != "pending" {
        let why = format!("it is {} already", approval.status);
        return Err(Refusal::new("invalid_transition", why, ""));
    }
    Ok(())
}

/// Whoever asked decides by no principal that is theirs. Where somebody acted
/// for the one who decides, or could have been them, that takes another person,
/// if there is one who could.
fn check_is_another(desk: &Desk<'_>, approval: &Approval) -> Result<(), Refusal> {
    let who = &desk.authorized.who;
    let access = &desk.state.access;
    let hands = access.hands(&who.principal, who.on_behalf_of.as_deref());
    let refused = |why| {
        let fix = "ask somebody else who holds `approval.decide`";
        Err(Refusal::new("self_approval", why, fix))
    };
    if hands.contains(&approval.requester) {
        return refused("whoever asks can't be the one who approves");
    }
    if hands.is_disjoint(&approval.asked_by) || !another_could(desk, approval, &hands) {
        return Ok(());
    }
    refused("it may have been asked in your name, and somebody else could decide")
}

/// Whether a person who is neither behind the command nor behind whoever
/// decides now could decide as well.
fn another_could(desk: &Desk<'_>, approval: &Approval, hands: &BTreeSet<String>) -> bool {
    let (state, now) = (desk.state, desk.call.now);
    let place = &desk.authorized.place;
    let members = state.access.members.values();
    let mut others = members.filter(|one| {
        let is_other = |of: &BTreeSet<String>| !of.contains(&one.principal);
        one.owner.org == Some(approval.org)
            && one.has_come_in()
            && is_other(hands)
            && is_other(&approval.asked_by)
    });
    others.any(|one| {
        let who = Who::principal(&one.principal, ActorKind::User);
        authorize::holds(state, now, &who, "approval.decide", place)
    })
}

/// Asks everything again as whoever asked first, and does it.
fn run(desk: &Desk<'_>, id: ApprovalId, approval: &Approval) -> Result<Change, Refusal> {
    let broken = || Refusal::new("internal", "the command can't be read", "ask for it again");
    let waiting: Waiting = serde_json::from_str(&approval.command).map_err(|_| broken())?;
    let operation = Operation::by_id(&waiting.operation).ok_or_else(broken)?;
    let request = Request {
        operation,
        path: waiting.path,
        query: waiting.query,
        body: waiting.body,
        material: waiting.material,
    };
    let state = desk.state;
    let requester = approval.requester.as_str();
    let who =
        authorize::requester(state, requester, waiting.kind, waiting.token).map_err(outdated)?;
    let mut actor = Actor::new(waiting.kind, requester);
    actor.on_behalf_of.clone_from(&who.on_behalf_of);
    let place = place::resolve(state, &request);
    if !place.found {
        return Err(outdated(not_found()));
    }
    let mut facts = Vec::new();
    let (first, more) = operations::required(&request, operation.spec());
    for capability in std::iter::once(first).chain(more) {
        let asked = authorize::decide(state, desk.call, &who, capability, &place);
        facts.push(approved(asked, desk, id)?);
    }
    let call = Call {
        if_match: waiting.if_match,
        idempotency: None,
        ..*desk.call
    };
    operations::check_current(state, &call, &request, &place).map_err(outdated)?;
    let authorized = Authorized::new(who, place);
    let change = dispatch(state, &call, &request, &authorized).map_err(outdated)?;
    let written = operations::finish(facts, change.clone(), &authorized.place);
    let facts = written.facts.into_iter().map(|fact| Fact {
        // One fact, the approval's own, comes before these.
        decided_by: fact.decided_by.map(|place| place + 1),
        cause: fact.cause.or(Some(approval.seq)),
        actor: fact.actor.or_else(|| Some(actor.clone())),
        ..fact
    });
    Ok(Change {
        facts: facts.collect(),
        ..change
    })
}

/// A review is answered by the approval; a denial is not.
fn approved(asked: Decided, desk: &Desk<'_>, id: ApprovalId) -> Result<Fact, Refusal> {
    let Decided { mut fact, answer } = asked;
    match answer {
        Answer::Deny(refusal) => return Err(outdated(refusal)),
        Answer::Allow | Answer::Review => {}
    }
    if let Body::AuthzDecided(record) = &mut fact.body {
        "allow".clone_into(&mut record.outcome);
        record.reason = format!("approved by {} in {id}", desk.authorized.who.principal);
    }
    Ok(fact)
}

/// What was possible when it was asked for, and is no longer. Whoever decides
/// is told why; the code is not theirs.
fn outdated(refusal: Refusal) -> Refusal {
    let why = format!("the command can't be done any more: {}", refusal.why);
    let mut outdated = Refusal::new("conflict", why, "deny it, or let it be asked for again");
    outdated.details = refusal.details;
    outdated.fields = refusal.fields;
    outdated.with("cause", refusal.code)
}

/// Ends what has waited too long.
pub(super) fn expire(state: &State, now: Timestamp) -> Vec<Fact> {
    let late = state
        .access
        .approvals
        .iter()
        .filter(|(_, one)| one.status == "pending" && one.expires_at <= now);
    late.map(|(id, one)| Fact::new(id, ApprovalExpired {}.into()).of(&one.owner.scope()))
        .take(256)
        .collect()
}
