//! Every transition that the specification lists, written once more by hand;
//! every other one, by every cause, is refused and named.

use std::collections::BTreeSet;

use super::*;

/// The specification's table, as lines of `from > to : cause, cause`.
fn listed(text: &str) -> BTreeSet<(String, String, String)> {
    let mut rows = BTreeSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (arrow, causes) = line.split_once(':').unwrap();
        let (from, to) = arrow.split_once('>').unwrap();
        for from in from.split(',') {
            for cause in causes.split(',') {
                let row = [from, to, cause].map(|part| part.trim().to_owned());
                let [from, to, cause] = row;
                assert!(rows.insert((from, to, cause)), "twice: {line}");
            }
        }
    }
    rows
}

macro_rules! exactly {
    ($($state:ty, final [$($last:literal),*], $table:literal;)*) => {$(
        {
            let mut listed = listed($table);
            for to in <$state>::ALL {
                let froms = <$state>::ALL.iter().copied().map(Some).chain([None]);
                for (from, cause) in froms.flat_map(|from| Cause::ALL.map(|cause| (from, cause))) {
                    let name = from.map_or("new", <$state>::as_str);
                    let row = (name.to_owned(), to.to_string(), cause.to_string());
                    match <$state>::can(from, *to, cause) {
                        Ok(()) => assert!(listed.remove(&row), "legal, but not listed: {row:?}"),
                        Err(error) => {
                            assert!(!listed.contains(&row), "listed, but refused: {error}");
                            let text = error.to_string();
                            let end = format!("cannot go from {name} to {to} by {cause}");
                            assert!(text.ends_with(&end), "{text}");
                        }
                    }
                }
            }
            assert!(listed.is_empty(), "no such states or causes: {listed:?}");
            let last: Vec<&str> = <$state>::ALL
                .iter()
                .filter(|state| state.is_final())
                .map(|state| state.as_str())
                .collect();
            assert_eq!(last, [$($last),*] as [&str; _]);
        }
    )*};
}

#[test]
fn every_listed_transition_is_legal_and_no_other() {
    exactly! {
        ReleaseState, final ["retired"], "
            new > available: release.create
            available > blocked: release.block
            blocked > available: release.block
            available, blocked > retired: retention";
        DeployState,
            final ["succeeded", "failed", "canceled", "superseded"], "
            new > queued: env.deploy, env.rollback, instance.restart, system
            queued > rolling: deploys
            rolling > succeeded: deploys
            rolling > paused: env.deploy, deploys
            paused > rolling: env.deploy, deploys
            rolling, paused > failed: deploys
            queued, rolling, paused > canceled: env.deploy
            queued, rolling, paused > superseded: env.deploy, env.rollback, instance.restart, system";
        DesiredState, final ["stopped"], "
            new > running: scheduler
            running > draining: scheduler
            draining, running > stopped: scheduler";
        InstanceStatus, final ["collected"], "
            new > allocated: scheduler
            allocated > preparing: node
            preparing > booting: node
            booting > ready: node
            ready > unhealthy: node
            unhealthy > ready: node
            preparing, booting, ready, unhealthy > failed: node
            failed > booting: node
            allocated, preparing, booting, ready, unhealthy, failed, draining > lost: liveness
            lost > preparing: node
            lost > booting: node
            lost > ready: node
            lost > unhealthy: node
            lost > failed: node
            allocated, preparing, booting, ready, unhealthy, failed, lost > draining: node
            draining > stopped: node
            stopped > collected: node";
        NodeState, final ["removed", "revoked"], "
            new > enrolled: enrolment
            enrolled > active: node
            enrolled > revoked: liveness
            active > degraded: liveness
            degraded > active: liveness
            active, degraded, draining > offline: liveness
            offline > active: liveness
            offline > degraded: liveness
            offline > draining: liveness
            active, degraded > draining: node.manage
            draining > drained: scheduler
            draining, drained, disabled > active: node.manage
            enrolled, active, degraded, draining, drained, offline > disabled: node.manage
            drained, disabled > removed: node.manage
            enrolled, active, degraded, draining, drained, offline, disabled > revoked: node.manage";
        RouteState, final ["deleted"], "
            new > pending: route.write
            pending > active: edge
            active > degraded: system
            degraded > active: system
            pending, active, degraded > blocked: system
            blocked > pending: system
            pending, active, degraded, blocked > deleting: route.write
            deleting > deleted: route.write";
        VolumeState, final ["deleted"], "
            new > creating: volume.write, env.deploy
            creating > available: node
            available > attaching: node
            attaching > in_use: node
            in_use > detaching: node
            detaching > available: node
            available, in_use > unavailable: liveness
            unavailable > available: liveness
            unavailable > in_use: liveness
            creating, available, attaching, in_use, detaching, unavailable, deleting > error: node
            available, error > deleting: volume.delete
            deleting > deleted: volume.delete";
        AttachmentState, final ["deleted"], "
            new > active: volume.write, env.deploy
            active > deleted: volume.write";
        JobState, final ["succeeded", "failed"], "
            new > queued: volume.write, volume.restore
            queued > running: node
            running > succeeded: node
            running > failed: node";
        SecretBundleState, final ["deleted"], "
            new > active: secret.write
            active, rotation_failed > rotating: secret.write
            rotating > active: deploys
            rotating > rotation_failed: deploys
            active, rotating, rotation_failed > deleted: secret.write";
        SecretVersionState, final ["destroyed"], "
            new, previous > current: secret.write
            current > previous: secret.write
            previous > destroyed: secret.write, retention";
        ExecState, final ["denied", "ended"], "
            new > requested: instance.exec
            requested > granted: instance.exec
            requested > denied: instance.exec
            granted > connected: client
            granted, connected > ended: client, instance.exec, node, system";
        ApprovalState, final ["approved", "denied", "expired"], "
            new > pending: system
            pending > approved: approval.decide
            pending > denied: approval.decide
            pending > expired: approvals";
    }
}
