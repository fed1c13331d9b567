//! Logging in: an invite, a refresh token or a secret becomes tokens.
//!
//! An invite and a refresh token are good once, and of several invites of one
//! person only the first that is used. Whoever shows a refresh token
//! a second time may be a thief or the robbed; neither can be told from the
//! other, so everything that came from that login ends.

use std::time::Duration;

use fluffy_base::id::{PrincipalId, TokenId};
use fluffy_ledger::{Actor, Scope};

use super::tokens::{kind_of, revoked, scope_of};
use super::{Access, Token};
use crate::call::{Call, Fact, NewCredential, Outcome, Request, Shown, Subject, Written};
use crate::event::TokenIssued;
use crate::refusal::Refusal;
use crate::state::State;

const ACCESS: Duration = Duration::from_secs(15 * 60);
const REFRESH: Duration = Duration::from_secs(30 * 24 * 3600);

/// Exchanges what was shown for tokens.
pub(crate) fn exchange(state: &State, call: &Call<'_>, request: &Request) -> Written {
    let credential = match request.credential() {
        Ok(credential) => credential,
        Err(_) => return Written::refused(invalid_grant()),
    };
    let access = &state.access;
    match &credential.shown {
        None => Written::refused(invalid_grant()),
        Some(Shown::Token(id)) => match access.tokens.get(id) {
            Some(token) => by_token(access, call, credential, (*id, token)),
            None => Written::refused(invalid_grant()),
        },
        Some(Shown::Secret {
            principal,
            rotation,
        }) => by_secret(access, call, credential, (*principal, rotation.as_deref()))
            .unwrap_or_else(Written::refused),
    }
}

fn by_token(
    access: &Access,
    call: &Call<'_>,
    credential: &NewCredential,
    (id, token): (TokenId, &Token),
) -> Written {
    let actor = Actor::new(kind_of(&token.principal), token.principal.clone());
    let used = token.revoked.is_some();
    if token.kind == "refresh" && used && token.family.is_some() {
        let good = access
            .tokens
            .iter()
            .filter(|(_, one)| one.family == token.family && one.revoked.is_none());
        let facts = good.map(|(id, one)| {
            let fact = revoked(*id, "refresh_reused").of(&scope_of(one));
            Fact {
                actor: Some(actor.clone()),
                ..fact
            }
        });
        return Written {
            facts: facts.collect(),
            outcome: Outcome::Refused(invalid_grant()),
        };
    }
    let exchangeable = ["invite", "refresh"].contains(&token.kind.as_str());
    if used || token.expires_at <= call.now || !exchangeable {
        return Written::refused(invalid_grant());
    }
    let (Ok(access_id), Ok(refresh_id)) =
        (credential.id::<TokenId>(0), credential.id::<TokenId>(1))
    else {
        return Written::refused(invalid_grant());
    };
    let family = token
        .family
        .clone()
        .unwrap_or_else(|| refresh_id.to_string());
    let issued = |kind: &str, life| TokenIssued {
        kind: kind.to_owned(),
        principal_id: token.principal.clone(),
        expires_at: call.now.after(life),
        ceiling: None,
        family: Some(family.clone()),
        on_behalf_of: None,
        reads_per_minute: None,
        writes_per_minute: None,
    };
    let ended = revoked(id, "used").of(&scope_of(token));
    let mut facts = vec![
        ended,
        Fact::new(access_id, issued("access", ACCESS).into()),
        Fact::new(refresh_id, issued("refresh", REFRESH).into()),
    ];
    facts.extend(other_invites(access, (id, token)));
    logged_in(facts, access_id, &actor)
}

/// The end of every other invite of whoever comes in by one: nobody else comes
/// in as them.
fn other_invites(access: &Access, (id, token): (TokenId, &Token)) -> Vec<Fact> {
    let is_other = |other: &Token| {
        other.kind == "invite" && other.principal == token.principal && other.revoked.is_none()
    };
    if token.kind != "invite" {
        return Vec::new();
    }
    let all = access.tokens.iter();
    let others = all.filter(|(other, one)| **other != id && is_other(one));
    let ended = others.map(|(other, one)| revoked(*other, "replaced").of(&scope_of(one)));
    ended.collect()
}

fn by_secret(
    access: &Access,
    call: &Call<'_>,
    credential: &NewCredential,
    (principal, rotation): (PrincipalId, Option<&str>),
) -> Result<Written, Refusal> {
    let service = access.services.get(&principal).ok_or_else(invalid_grant)?;
    let current = service.rotation.as_deref() == rotation;
    let old = service.old.as_ref();
    let old = old.is_some_and(|(before, until)| before.as_deref() == rotation && *until > call.now);
    if !current && !old {
        return Err(invalid_grant());
    }
    let id: TokenId = credential.id(0)?;
    let issued = TokenIssued {
        kind: "access".to_owned(),
        principal_id: principal.to_string(),
        expires_at: call.now.after(ACCESS),
        ceiling: None,
        family: None,
        on_behalf_of: None,
        reads_per_minute: None,
        writes_per_minute: None,
    };
    let scope = Scope {
        org_id: Some(service.org.to_string()),
        ..Scope::default()
    };
    let principal = principal.to_string();
    let actor = Actor::new(kind_of(&principal), principal);
    Ok(logged_in(
        vec![Fact::new(id, issued.into()).of(&scope)],
        id,
        &actor,
    ))
}

fn logged_in(facts: Vec<Fact>, id: TokenId, actor: &Actor) -> Written {
    let by = |fact| Fact {
        actor: Some(actor.clone()),
        ..fact
    };
    let subject = Subject::of("token_pair", id)
        .with("token_type", "Bearer")
        .with("expires_in", ACCESS.as_secs())
        .with("principal_id", actor.id.as_str());
    Written {
        facts: facts.into_iter().map(by).collect(),
        outcome: Outcome::Done {
            status: 200,
            subject,
        },
    }
}

fn invalid_grant() -> Refusal {
    Refusal::new(
        "invalid_grant",
        "what was shown is not known, was used before, or its time is over",
        "log in again, or ask for a new invite",
    )
}
