//! The secrets of an env: versions come, old ones go, values never pass here.

use fluffy_api::Operation;
use fluffy_api::types::ReplaceSecrets;
use fluffy_base::id::SecretBundleId;

use super::{Decided, Desk, gone, missing};
use crate::call::{Basis, Fact, Material, Subject};
use crate::event::{
    SecretBundleCreated, SecretBundleDeleted, SecretBundleVersionDestroyed, SecretBundleVersionSet,
};
use crate::refusal::Refusal;
use crate::runtime::record;

/// How many versions are kept.
const KEPT: usize = 10;

/// The most keys and bytes of a version.
const MOST_KEYS: usize = 256;
const MOST_BYTES: u64 = 256 << 10;

pub(super) fn set(desk: &Desk<'_>) -> Decided {
    let (_, env) = desk.env()?;
    let bundle = env
        .bundle
        .and_then(|id| Some((id, desk.runtime().bundles.get(&id)?)));
    if desk.request.operation == Operation::ReplaceSecrets {
        let body: ReplaceSecrets = desk.body()?;
        if let Some(version) = body.version_id {
            let (id, bundle) = bundle.ok_or_else(|| missing("version of the secrets"))?;
            let kept = bundle.versions.iter().find(|kept| kept.id == version);
            let kept = kept.ok_or_else(|| missing("version of the secrets"))?;
            let facts = match bundle.current == Some(version) {
                true => Vec::new(),
                false => vec![Fact::new(id, again(kept).into())],
            };
            return Ok((facts, Subject::of("secret_bundle", id)));
        }
    }
    let Material::Secret(sealed) = &desk.request.material else {
        let why = "the secrets could not be sealed";
        let fix = "tell an operator that the master key is missing";
        return Err(Refusal::new("secrets_key_unavailable", why, fix));
    };
    if sealed.keys.len() > MOST_KEYS || sealed.size_bytes > MOST_BYTES {
        let why = format!("there are at most {MOST_KEYS} keys and {MOST_BYTES} bytes");
        return Err(Refusal::new("secrets_invalid", why, "remove some"));
    }
    let keys = &desk.runtime().cluster.keys;
    let key = keys.get(&sealed.master_key_id);
    if key.is_some_and(|key| key.retired_at.is_some()) {
        let why = "this server seals with a master key that was retired";
        let fix = "tell an operator to copy the current one to this server";
        return Err(Refusal::new("secrets_key_unavailable", why, fix));
    }
    // What it was made from must still be what is there.
    let current = bundle.and_then(|(_, bundle)| bundle.current);
    if matches!(sealed.basis, Basis::Current(base) if base != current) {
        let why = "the secrets were changed meanwhile";
        let refusal = Refusal::new("conflict", why, "send the change again");
        return Err(refusal.with("overtaken", true));
    }
    let mut facts = Vec::new();
    let id = match bundle {
        Some((id, bundle)) => {
            let current = bundle
                .versions
                .iter()
                .find(|it| Some(it.id) == bundle.current);
            // The same values again change nothing and restart nobody.
            if current.is_some_and(|it| it.data_hash == sealed.data_hash) {
                return Ok((facts, Subject::of("secret_bundle", id)));
            }
            id
        }
        None => {
            let id = SecretBundleId::from_bits(desk.bits());
            let created = SecretBundleCreated {
                format: "FLUFFY_SECRETS_V1".to_owned(),
            };
            facts.push(Fact::new(id, created.into()));
            id
        }
    };
    let version = SecretBundleVersionSet {
        version_id: sealed.version_id,
        data_hash: sealed.data_hash,
        key_count: u64::try_from(sealed.keys.len()).unwrap_or(u64::MAX),
        size_bytes: sealed.size_bytes,
        master_key_id: sealed.master_key_id,
        keys: Some(sealed.keys.clone()),
    };
    facts.push(Fact::new(id, version.into()));
    if let Some((_, bundle)) = bundle {
        facts.extend(destroy(desk, id, bundle));
    }
    Ok((facts, Subject::of("secret_bundle", id)))
}

fn again(kept: &record::SecretVersion) -> SecretBundleVersionSet {
    SecretBundleVersionSet {
        version_id: kept.id,
        data_hash: kept.data_hash,
        key_count: kept.key_count,
        size_bytes: kept.size_bytes,
        master_key_id: kept.master_key,
        keys: Some(kept.keys.clone()),
    }
}

/// The oldest go once there are too many, but for those that still run.
fn destroy(desk: &Desk<'_>, id: SecretBundleId, bundle: &record::SecretBundle) -> Vec<Fact> {
    let excess = (bundle.versions.len() + 1).saturating_sub(KEPT);
    let oldest = bundle.versions.iter().take(excess);
    let unused = oldest.filter(|version| {
        let mut instances = desk.runtime().instances.values();
        let wanted = desk.runtime().envs.get(&bundle.env);
        let wanted = wanted.is_some_and(|env| {
            let mut wanted = env.desired.values();
            wanted.any(|wanted| wanted.secrets == Some(version.id))
        });
        bundle.current != Some(version.id)
            && !wanted
            && !instances.any(|instance| instance.secrets == Some(version.id))
    });
    let destroyed = unused.map(|version| {
        let destroyed = SecretBundleVersionDestroyed {
            version_id: version.id,
        };
        Fact::new(id, destroyed.into())
    });
    destroyed.collect()
}

pub(super) fn delete(desk: &Desk<'_>) -> Decided {
    let (id, env) = desk.env()?;
    let runtime = desk.runtime();
    let bundle = env.bundle.ok_or_else(|| missing("secrets"))?;
    for (name, wanted) in &env.desired {
        let process = runtime.process(id, wanted.release, name);
        if process.is_some_and(|process| process.secrets_required) {
            let why = format!("process type `{name}` requires them");
            let fix = "deploy a release that does not, then delete them";
            return Err(Refusal::new("secrets_in_use", why, fix));
        }
    }
    Ok((
        vec![Fact::new(bundle, SecretBundleDeleted {}.into())],
        gone(bundle),
    ))
}
