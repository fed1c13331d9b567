//! Master keys come and go.
//!
//! The keys themselves never pass here: the server makes them, looks at what
//! they seal, and puts them away once this is on record.

use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::MasterKeyId;

use super::{Decided, Desk, missing};
use crate::call::{CallerKind, Fact, Material, NOTHING_SEALED, Subject};
use crate::event::{MasterKeyIntroduced, MasterKeyRetireAsked, MasterKeyRetired};
use crate::refusal::Refusal;
use crate::runtime::record::MasterKey;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long a key stays after another took its place: what was copied or put
/// back meanwhile may need it.
const STAYS: Duration = Duration::from_secs(30 * 24 * 3600);

/// Takes note of a new master key, which the server has made.
pub(super) fn rotate(desk: &Desk<'_>) -> Decided {
    let Material::Proof(key) = &desk.request.material else {
        let why = "no key could be made";
        return Err(Refusal::new(
            "secrets_key_unavailable",
            why,
            "look at the key file",
        ));
    };
    let key: MasterKeyId = key.parse().map_err(|_| missing("key"))?;
    let introduced = MasterKeyIntroduced {
        master_key_id: key,
        by: desk.call.caller.actor.id.clone(),
    };
    Ok((
        vec![Fact::new(key, introduced.into())],
        Subject::of("master_keys", ""),
    ))
}

/// When a key may be retired that was replaced then.
pub(crate) fn retires_from(replaced: Timestamp) -> Timestamp {
    replaced.after(STAYS)
}

/// Who asked to retire a key, while that counts.
pub(crate) fn still_asked(key: &MasterKey, now: Timestamp) -> Option<&str> {
    let (by, at) = key.asked.as_ref()?;
    (at.after(DAY) > now).then_some(by)
}

/// Takes a key out of use: the first operator asks, another one agrees.
pub(super) fn retire(desk: &Desk<'_>) -> Decided {
    let id: MasterKeyId = desk.leaf("master key")?;
    let cluster = &desk.runtime().cluster;
    let key = cluster.keys.get(&id).ok_or_else(|| missing("master key"))?;
    let shown = Subject::of("master_keys", "");
    if key.retired_at.is_some() {
        return Ok((Vec::new(), shown));
    }
    let refused = |why: String, fix: &str| Refusal::new("invalid_transition", why, fix);
    let Some(replaced) = cluster.replaced_at(id) else {
        let why = format!("`{id}` is the current master key");
        return Err(refused(why, "make another one first: `fluffy keys rotate`"));
    };
    let from = retires_from(replaced);
    if desk.now() < from {
        let why = format!("`{id}` was replaced at {replaced}, and stays for 30 days");
        return Err(refused(why, "wait until then").with("from", from.to_string()));
    }
    nothing_needs(desk, id)?;
    let actor = &desk.call.caller.actor;
    let me = actor.on_behalf_of.as_ref().unwrap_or(&actor.id);
    let local = desk.call.caller.kind == CallerKind::Local;
    let single = desk.is_set("single");
    // Where nobody else could agree, nobody has to.
    let mut operators = desk.state.access.operators();
    if single && !local && operators.any(|other| other != me) {
        let why = "there is another operator, who has to agree";
        let fix = "leave `--single` out, and have another operator do the same";
        return Err(Refusal::new("forbidden", why, fix));
    }
    let asked_by = match still_asked(key, desk.now()) {
        Some(first) if first != me && first != actor.id => Some(first.to_owned()),
        _ if single => None,
        Some(_) => {
            let why = "you asked for this yourself; a second operator has to do the same";
            let fix = "have another operator run the same command; `--single` is for \
                       installations that have only one";
            return Err(Refusal::new("self_approval", why, fix));
        }
        None => {
            let asked = MasterKeyRetireAsked {
                master_key_id: id,
                by: me.clone(),
            };
            return Ok((vec![Fact::new(id, asked.into())], shown));
        }
    };
    let retired = MasterKeyRetired {
        master_key_id: id,
        by: me.clone(),
        asked_by,
    };
    Ok((vec![Fact::new(id, retired.into())], shown))
}

/// Refuses while something is sealed with a key, by what is on record and by
/// what the server found in its store.
fn nothing_needs(desk: &Desk<'_>, id: MasterKeyId) -> Result<(), Refusal> {
    let bundles = desk.runtime().bundles.values();
    let versions = bundles.flat_map(|bundle| &bundle.versions);
    let versions = versions.filter(|version| version.master_key == id).count();
    let found = match &desk.request.material {
        Material::Proof(found) => found.as_str(),
        _ => "nobody has looked at what it seals",
    };
    let left = match (versions, found) {
        (0, NOTHING_SEALED) => return Ok(()),
        (0, found) => found.to_owned(),
        (versions, _) => format!("{versions} versions of secrets"),
    };
    let why = format!("`{id}` still seals something: {left}");
    let fix = "seal everything with the current one: `fluffy keys rewrap`; commands of exec \
               sessions are gone after a day";
    Err(Refusal::new("key_in_use", why, fix))
}
