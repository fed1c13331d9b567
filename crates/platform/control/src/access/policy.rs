//! The rules of an org: set, and tried before that.
//!
//! Rules can only narrow. Rules that would keep whoever sets them from ever
//! changing them again are refused.

use fluffy_api::types::{ChangedDecision, PolicyTrial, SetPolicy, TestPolicy};
use fluffy_base::Digest;
use fluffy_policy::Engine;
use fluffy_policy::diagnostic::RefusedText;
use serde_json::Value;

use super::authorize::{Who, attempt, engine_of};
use super::compiled::compile;
use super::place::Place;
use super::{Desk, Recent, pattern, tokens};
use crate::call::{Change, Fact, Subject};
use crate::event::PolicyVersionSet;
use crate::refusal::{FieldProblem, Refusal};
use crate::state::{Owner, State};

/// The most that fits an event with room to spare.
const MAX_BYTES: usize = 128 * 1024;

pub(super) fn set(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: SetPolicy = desk.body()?;
    let org = desk.org()?;
    let engine = checked(&body.rules)?;
    let who = &desk.authorized.who;
    let place = &desk.authorized.place;
    let (state, now) = (desk.state, desk.call.now);
    let (outcome, rule) = attempt(state, now, &engine, (who, "policy.manage", place));
    if outcome != "allow" {
        let rule = rule.unwrap_or_default();
        let why = format!("under these rules `{rule}` would keep you from changing them again");
        return Err(Refusal::new(
            "policy_invalid",
            why,
            "leave `policy.manage` out of that rule, or except yourself",
        ));
    }
    let set = PolicyVersionSet {
        policy_hash: Digest::of(body.rules.as_bytes()),
        rules: body.rules,
    };
    Ok(Change {
        facts: vec![Fact::new(org, set.into())],
        subject: Subject::of("policy", org),
        status: 200,
    })
}

/// What would have come out of the last decisions under other rules.
pub(super) fn test(desk: &Desk<'_>) -> Result<Value, Refusal> {
    let body: TestPolicy = desk.body()?;
    let org = desk.org()?;
    let engine = checked(&body.rules)?;
    let (current, _) = engine_of(desk.state, Some(org));
    let recent = desk.state.access.orgs.get(&org).map(|org| &org.recent);
    let mut trial = PolicyTrial {
        tried: 0,
        changed: Vec::new(),
    };
    for one in recent.into_iter().flatten() {
        let Some((who, action, place)) = again(desk.state, one) else {
            continue;
        };
        let asked = (&who, action, &place);
        let (was, _) = attempt(desk.state, desk.call.now, current, asked);
        let (would_be, rule_id) = attempt(desk.state, desk.call.now, &engine, asked);
        trial.tried += 1;
        if was != would_be {
            trial.changed.push(ChangedDecision {
                seq: one.seq,
                principal_id: one.principal.clone(),
                capability: one.capability.clone(),
                resource_id: one.resource.clone(),
                was: was.to_owned(),
                would_be: would_be.to_owned(),
                rule_id,
            });
        }
    }
    Ok(super::answer::json(&trial))
}

/// What was asked then, if it can still be asked.
fn again<'a>(state: &State, one: &'a Recent) -> Option<(Who, &'a str, Place)> {
    let head = one.capability.split('/').next()?;
    let dot = head.rfind('.')?;
    let action = one.capability.get(..dot)?;
    // The rules of an org have no say in what is the platform's.
    if !pattern::is_tenant_action(action) {
        return None;
    }
    let path = one.capability.get(dot + 1..)?;
    let names = &state.access.names;
    let mut parts = path.split('/');
    let org = names.org(parts.next()?)?;
    let app = match parts.next() {
        Some(app) => Some(names.app(org, app)?),
        None => None,
    };
    let env = match (app, parts.next()) {
        (Some(app), Some(env)) => Some(names.env(app, env)?),
        _ => None,
    };
    let owner = Owner {
        org: Some(org),
        app,
        env,
    };
    let place = Place::of(names, owner)?;
    let who = Who::principal(&one.principal, tokens::kind_of(&one.principal));
    Some((who, action, place))
}

fn checked(rules: &str) -> Result<Engine, Refusal> {
    if rules.len() > MAX_BYTES {
        let why = format!("the rules have {} bytes, and {MAX_BYTES} fit", rules.len());
        return Err(Refusal::new("policy_invalid", why, "make fewer rules"));
    }
    compile(Some(rules), 0).map_err(|refused| invalid(&refused))
}

fn invalid(refused: &RefusedText) -> Refusal {
    let mut refusal = Refusal::new(
        "policy_invalid",
        "the rules are not valid; nothing was changed",
        "mend what `errors` lists; `fluffy policy check` finds the same",
    );
    for problem in refused.errors() {
        let place = problem.place;
        refusal.fields.push(FieldProblem {
            code: "policy_invalid".to_owned(),
            field: "rules".to_owned(),
            message: format!("{}: {}", problem.what, problem.why),
            place: Some((place.line.into(), place.column.into())),
        });
    }
    refusal
}
