//! Work on everything that master keys seal: sealing it anew, opening it all.
//!
//! Never shows what it opened. Next: `crate::safe`.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::id::{MasterKeyId, SecretVersionId};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Notice, State};
use serde_json::json;

use super::Worked;
use crate::exec;
use crate::node::door;
use crate::platform::Platform;
use crate::safe::{self, Safe, SafeError, SecretOwner, live_keys};

/// How many objects that do not open are named.
const NAMED: usize = 20;

/// Wraps every version and the cluster's authority with the active key, and
/// records it once all versions are.
pub(super) async fn rewrap(platform: &Platform, safe: &Safe) -> Worked {
    let unavailable = |why: String| ("secrets_key_unavailable", why);
    let newest = platform.sequencer().read(live_keys).first().copied();
    // What is sealed anew must be sealed with the newest: with any other,
    // it would have to be done again, and the old one could not go.
    if let Some(newest) = newest
        && let Err(error) = safe.activate(newest)
    {
        return Err(unavailable(match error {
            SafeError::Sealed => "the master keys are not at hand".to_owned(),
            _ => format!(
                "the newest master key, `{newest}`, is not among the keys of this server; {}, or \
                 ask a server that has it",
                safe.how_to_get(newest)
            ),
        }));
    }
    let Some(to) = safe.key_ids().first().copied() else {
        return Err(unavailable("the master keys are not at hand".to_owned()));
    };
    let versions = platform.sequencer().read(|state| {
        let bundles = state.runtime.bundles.values();
        let versions = bundles.flat_map(|bundle| {
            let (org, env) = (bundle.org, bundle.env);
            bundle.versions.iter().map(move |it| {
                let version = it.id;
                (it.master_key, SecretOwner { org, env, version })
            })
        });
        versions.collect::<Vec<_>>()
    });
    let mut moved: BTreeMap<MasterKeyId, u64> = BTreeMap::new();
    // All of them: what is on record may be ahead of a version that another
    // server sealed meanwhile.
    for (recorded, owner) in &versions {
        match safe.rewrap(owner).await {
            Ok(_) if *recorded != to => *moved.entry(*recorded).or_default() += 1,
            Ok(Some(from)) => *moved.entry(from).or_default() += 1,
            Ok(None) => {}
            // It was destroyed meanwhile.
            Err(SafeError::Missing) if !is_kept(platform, owner) => {}
            Err(error) => return Err(unavailable(error.to_string())),
        }
        // What was destroyed while it was sealed anew is not brought back.
        if !is_kept(platform, owner) {
            let destroyed = safe::destroy(platform.aside(), owner.version).await;
            destroyed.map_err(|error| ("unavailable", error.to_string()))?;
        }
    }
    for (from, count) in &moved {
        let (from, count) = (*from, *count);
        let notice = RuntimeNotice::KeyRewrapped { from, to, count };
        let said = platform.notice("keys", None, Notice::Runtime(notice)).await;
        said.map_err(|error| ("unavailable", error.to_string()))?;
    }
    let authority = door::rewrap(platform, safe).await;
    authority.map_err(|error| ("secrets_key_unavailable", error.to_string()))?;
    let count: u64 = moved.values().sum();
    Ok(json!({"master_key_id": to.to_string(), "rewrapped": count}))
}

fn is_kept(platform: &Platform, owner: &SecretOwner) -> bool {
    let states = platform.sequencer();
    states.read(|state| safe::versions_in(state, owner.env).contains(&owner.version))
}

/// What opened, by key, and what did not.
#[derive(Default)]
struct Census {
    opened: BTreeMap<MasterKeyId, u64>,
    unreferred: u64,
    failed: u64,
    /// Whether something was altered, and not only a key missing.
    altered: bool,
    named: Vec<String>,
}

impl Census {
    fn count(&mut self, what: &str, name: &str, opened: Result<MasterKeyId, SafeError>) {
        let error = match opened {
            Ok(key) => return *self.opened.entry(key).or_default() += 1,
            Err(error) => error,
        };
        self.failed += 1;
        self.altered |= !matches!(error, SafeError::Key(_) | SafeError::Sealed);
        if self.named.len() < NAMED {
            // Which key is missing is said by what the error comes from.
            let source = std::error::Error::source(&error);
            let why = source.map_or_else(|| error.to_string(), ToString::to_string);
            self.named.push(format!("{what} {name} ({why})"));
        }
    }

    fn concluded(self) -> Worked {
        let total: u64 = self.opened.values().sum();
        if self.failed == 0 {
            let keys = self.opened.iter();
            let keys: BTreeMap<String, u64> =
                keys.map(|(id, count)| (id.to_string(), *count)).collect();
            return Ok(json!({
                "opened": total, "keys": keys, "unreferred": self.unreferred,
            }));
        }
        let code = match self.altered {
            true => "internal",
            false => "secrets_key_unavailable",
        };
        let more = self.failed.saturating_sub(self.named.len() as u64);
        let more = match more {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let why = format!(
            "{} of {} sealed objects do not open: {}{more}",
            self.failed,
            self.failed + total,
            self.named.join(", ")
        );
        Err((code, why))
    }
}

/// Opens everything that any master key seals.
pub(super) async fn verify(platform: &Platform, safe: &Safe) -> Worked {
    let unread = |error: crate::aside::AsideError| ("unavailable", error.to_string());
    let owners = platform.sequencer().read(owners);
    let (mut census, mut seen) = (Census::default(), BTreeSet::new());
    let secrets = safe::each(safe.aside(), safe::SECRETS, |name, sealed| {
        let version = name.parse::<SecretVersionId>().ok();
        let owner = version.and_then(|version| {
            let made_since = || {
                platform
                    .sequencer()
                    .read(|state| safe::owner_of(state, version))
            };
            owners.get(&version).copied().or_else(made_since)
        });
        let Some(owner) = owner else {
            // What is not in the ledger yet, or not any more; it is swept.
            census.unreferred += 1;
            return;
        };
        seen.insert(owner.version);
        census.count("secrets", name, safe.opens(&owner, sealed));
    });
    secrets.await.map_err(unread)?;
    for owner in owners.values().filter(|it| !seen.contains(&it.version)) {
        if is_kept(platform, owner) {
            let name = owner.version.to_string();
            census.count("secrets", &name, Err(SafeError::Missing));
        }
    }
    let authority = safe::each(safe.aside(), door::AUTHORITY, |name, sealed| {
        census.count("authority", name, safe.opens_for(door::PURPOSE, sealed));
    });
    authority.await.map_err(unread)?;
    let orders = safe::each(safe.aside(), exec::ORDERS, |name, sealed| {
        let opened = safe.opens_for(&exec::purpose(name), sealed);
        census.count("command", name, opened);
    });
    orders.await.map_err(unread)?;
    census.concluded()
}

/// Whose every kept version is.
fn owners(state: &State) -> BTreeMap<SecretVersionId, SecretOwner> {
    let bundles = state.runtime.bundles.values();
    let owners = bundles.flat_map(|bundle| {
        let (org, env) = (bundle.org, bundle.env);
        bundle.versions.iter().map(move |it| {
            let version = it.id;
            (version, SecretOwner { org, env, version })
        })
    });
    owners.collect()
}
