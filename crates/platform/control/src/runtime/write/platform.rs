//! What operators do with the ledger and moved disks.
//!
//! Work that takes a while is done by the server, which says here how it went.

use fluffy_api::types::{IMAGE_LIMITS, RehomeVolume, SetImageLimits};
use fluffy_base::id::VolumeId;
use fluffy_planner::lifecycle::{NodeState, VolumeState};

use super::{Decided, Desk, invalid, missing};
use crate::call::{Fact, Material, Subject};
use crate::event::{ClusterImageLimitSet, VolumeRehomed, VolumeStateChanged};
use crate::refusal::Refusal;
use crate::state::Owner;

/// Sets limits of images for the whole cluster, within their ceilings.
pub(super) fn set_image_limits(desk: &Desk<'_>) -> Decided {
    let body: SetImageLimits = desk.body()?;
    let mut facts = Vec::new();
    for (name, limit) in body.limits {
        let kind = IMAGE_LIMITS.iter().find(|kind| kind.name == name);
        let Some(kind) = kind else {
            let name: String = name.chars().take(64).collect();
            let why = format!("images have no limit `{name}`");
            let known: Vec<&str> = IMAGE_LIMITS.iter().map(|kind| kind.name).collect();
            let fix = format!("choose among {}", known.join(", "));
            return Err(Refusal::new("invalid_argument", why, fix));
        };
        let limit = limit.unwrap_or(kind.usual);
        if limit == 0 || limit > kind.ceiling {
            let why = format!("`{name}` can be from 1 to {}, and is {limit}", kind.ceiling);
            return Err(invalid("limits", &why));
        }
        let previous = desk.runtime().cluster.image_limit(kind);
        if limit != previous {
            let set = ClusterImageLimitSet {
                name,
                limit,
                previous,
            };
            facts.push(Fact::new("cluster", set.into()));
        }
    }
    Ok((facts, Subject::of("image_limits", "")))
}

/// A volume's disk is now in another node, and was found whole there.
pub(super) fn rehome(desk: &Desk<'_>) -> Decided {
    let id: VolumeId = desk.leaf("volume")?;
    let body: RehomeVolume = desk.body()?;
    let runtime = desk.runtime();
    let (volume, plan) = runtime
        .volumes
        .get(&id)
        .zip(runtime.plan.volumes.get(&id))
        .ok_or_else(|| missing("volume"))?;
    let node = runtime.plan.nodes.get(&body.node_id);
    let node = node.ok_or_else(|| missing("node"))?;
    // Before anybody is told to give up the node that has the disk now.
    let Material::Proof(checked) = &desk.request.material else {
        let why = "nobody looked at it: nodes do not look at disks of other nodes yet, and \
                   without that no volume changes its home";
        let fix = "bring back the node that has it";
        return Err(Refusal::new("fsck_failed", why, fix));
    };
    let held =
        runtime.plan.instances.values().any(|it| {
            it.volumes.contains(&id) && !it.has_ended() && !runtime.plan.is_fenced(it.node)
        });
    let away = runtime.plan.is_lost(plan.home);
    let gone = [
        VolumeState::Error,
        VolumeState::Deleting,
        VolumeState::Deleted,
    ];
    if held
        || !away
        || gone.contains(&plan.state)
        || node.state != NodeState::Active
        || body.node_id == plan.home
    {
        let why = "a volume moves from a node that is gone to one that is active, and only while no instance could write to it";
        let fix = "revoke the old node first";
        return Err(Refusal::new("invalid_transition", why, fix));
    }
    if checked != "clean" {
        let why = format!("the file system check said `{checked}`");
        let fix = "restore the last backup instead: `fluffy snapshots restore`";
        return Err(Refusal::new("fsck_failed", why, fix));
    }
    let scope = Owner {
        org: Some(volume.org),
        ..Owner::default()
    };
    let rehomed = VolumeRehomed {
        old_node_id: plan.home,
        new_node_id: body.node_id,
        fsck: checked.clone(),
    };
    let mut facts = vec![Fact::new(id, rehomed.into()).of(&scope.scope())];
    // Whoever had it is gone for good, wherever it stood.
    if !matches!(plan.state, VolumeState::Available | VolumeState::Creating) {
        let available = VolumeStateChanged {
            state: VolumeState::Available.to_string(),
            reason: None,
            instance_id: None,
        };
        facts.push(Fact::new(id, available.into()).of(&scope.scope()));
    }
    let subject = Subject::of("operation", id).with("kind", "rehome");
    Ok((facts, subject))
}

/// Something that the server does by itself; its id is that of the request.
pub(super) fn operation(desk: &Desk<'_>) -> (Vec<Fact>, Subject) {
    let subject = Subject::of("operation", desk.call.request_id)
        .with("kind", desk.request.operation.spec().id)
        .with("created_at", desk.now().to_string());
    (Vec::new(), subject)
}
