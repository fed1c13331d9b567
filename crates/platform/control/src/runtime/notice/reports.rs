//! What nodes say of instances, volumes and jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_base::id::{InstanceId, NodeId, RestoreId, VolumeId, VolumeSnapshotId};
use fluffy_planner::lifecycle::{Cause, ExecState, InstanceStatus, JobState, VolumeState};
use fluffy_planner::model::Instance;
use fluffy_planner::reason::FailureReason;

use super::{JobReport, Noticed, Report, Said, VolumeReport};
use crate::call::{Call, Fact, Subject};
use crate::event::{
    ExecSessionEnded, InstanceCollected, InstanceStatusChanged, RestoreJobStatusChanged,
    SnapshotStatusChanged, VolumeDeleted, VolumeStateChanged,
};
use crate::refusal::Refusal;
use crate::runtime::record::{Restore, Snapshot};
use crate::runtime::steps::scope;
use crate::runtime::write::{missing, transition};
use crate::state::{Owner, State};

/// How many changes of an instance a minute are recorded one by one.
const CHANGES: usize = 6;
const FLAP_WINDOW: Duration = Duration::from_secs(60);

/// A node that counts may say something.
pub(super) fn counts(state: &State, node: NodeId) -> Result<(), Refusal> {
    let plan = &state.runtime.plan;
    match plan.nodes.contains_key(&node) && !plan.is_fenced(node) {
        true => Ok(()),
        false => {
            let why = "the node was revoked or removed, or never joined";
            Err(Refusal::new("forbidden", why, "enrol it anew"))
        }
    }
}

/// What a node says of its instances; `held` names those that change too often
/// to be recorded now, which are to be said again, counted, a minute later.
pub(super) fn instances(
    state: &State,
    call: &Call<'_>,
    node: NodeId,
    reports: &[Report],
) -> Noticed {
    counts(state, node)?;
    let mut desk = Desk {
        state,
        facts: Vec::new(),
        seen: BTreeMap::new(),
        volumes: BTreeMap::new(),
    };
    let mut held = Vec::new();
    for report in reports {
        let instance = state.runtime.plan.instances.get(&report.instance);
        let Some(instance) = instance.filter(|instance| instance.node == node) else {
            continue;
        };
        if desk.is_flapping(call, report) {
            held.push(report.instance.to_string());
        } else {
            desk.report(instance, report);
        }
    }
    let mut said = Said::facts(desk.facts);
    if !held.is_empty() {
        said.subject = Subject::of("reports", node).with("held", held);
    }
    Ok(said)
}

/// What is known of an instance in the middle of a batch.
#[derive(Clone)]
struct Seen {
    status: InstanceStatus,
    reason: Option<String>,
    boot: Option<fluffy_base::id::BootId>,
    changes: usize,
}

struct Desk<'a> {
    state: &'a State,
    facts: Vec<Fact>,
    seen: BTreeMap<InstanceId, Seen>,
    volumes: BTreeMap<VolumeId, VolumeState>,
}

impl Desk<'_> {
    fn seen(&self, id: InstanceId, instance: &Instance) -> Seen {
        self.seen.get(&id).cloned().unwrap_or_else(|| {
            let record = self.state.runtime.instances.get(&id);
            let reason = instance.observed.reason.map(|reason| reason.to_string());
            Seen {
                status: instance.observed.status,
                reason,
                boot: record.and_then(|record| record.boot),
                changes: 0,
            }
        })
    }

    fn is_flapping(&self, call: &Call<'_>, report: &Report) -> bool {
        let ends = matches!(
            report.status,
            InstanceStatus::Draining | InstanceStatus::Stopped | InstanceStatus::Collected
        );
        let record = self.state.runtime.instances.get(&report.instance);
        let recent = record.map_or(0, |record| {
            let changes = record.changes.iter();
            changes
                .filter(|then| call.now.since(**then) < FLAP_WINDOW)
                .count()
        });
        let here = self
            .seen
            .get(&report.instance)
            .map_or(0, |seen| seen.changes);
        // Says itself that it failed often, and is said once in five minutes.
        let loops = FailureReason::CrashLoopBackoff.to_string();
        let ends = ends || report.reason_code.as_deref() == Some(&loops);
        !ends && report.flap_count.is_none() && recent + here >= CHANGES
    }

    fn report(&mut self, instance: &Instance, report: &Report) {
        let before = self.seen(report.instance, instance);
        let reason = report.reason_code.clone();
        let same = before.status == report.status
            && before.reason == reason
            && (report.boot.is_none() || before.boot == report.boot);
        // What was given up comes back only if it is still wanted.
        let given_up = before.status == InstanceStatus::Lost
            && !instance.is_wanted()
            && !matches!(
                report.status,
                InstanceStatus::Draining | InstanceStatus::Stopped | InstanceStatus::Collected
            );
        if same || given_up {
            return;
        }
        let Some(path) = way(before.status, report.status) else {
            return;
        };
        let (mut after, many) = (before, path.len());
        for (step, status) in path.into_iter().enumerate() {
            let last = step + 1 == many;
            self.change(instance, report, status, last);
            after.changes += 1;
        }
        after.status = report.status;
        after.reason = reason;
        after.boot = report.boot.or(after.boot);
        self.seen.insert(report.instance, after);
    }

    fn change(&mut self, instance: &Instance, report: &Report, status: InstanceStatus, last: bool) {
        let scope = scope(&self.state.runtime, instance.group.env);
        let record = self.state.runtime.instances.get(&report.instance);
        // On its way out it is of the deploy that ended it.
        let deploy = record.and_then(|record| record.ended_by.or(record.deploy));
        let correlation = deploy.map(|id| id.to_string());
        self.volumes(instance, report.instance, status);
        let body = match status {
            InstanceStatus::Collected => InstanceCollected {}.into(),
            _ => {
                let failed = status == InstanceStatus::Failed;
                let reason_code = match (last, failed) {
                    (true, false) => report.reason_code.clone(),
                    (_, true) => Some(
                        report
                            .reason_code
                            .clone()
                            .filter(|_| last)
                            .unwrap_or_else(|| "workload_exited".to_owned()),
                    ),
                    (false, false) => None,
                };
                InstanceStatusChanged {
                    status: status.to_string(),
                    node_id: instance.node,
                    boot_id: report.boot,
                    exit_code: report.exit_code.filter(|_| last),
                    reason_code,
                    reason_detail: report.reason_detail.clone().filter(|_| last),
                    boot_ms: report.boot_ms.filter(|_| last),
                    flap_count: report.flap_count.filter(|_| last),
                    reported_at: report.reported_at,
                }
                .into()
            }
        };
        let mut fact = Fact::new(report.instance, body).of(&scope);
        fact.correlation = correlation;
        self.facts.push(fact);
        if matches!(status, InstanceStatus::Failed | InstanceStatus::Stopped) {
            self.end_sessions(report.instance);
        }
    }

    /// Volumes follow the instance that mounts them.
    fn volumes(&mut self, instance: &Instance, id: InstanceId, status: InstanceStatus) {
        let to = match status {
            InstanceStatus::Preparing => VolumeState::Attaching,
            InstanceStatus::Booting => VolumeState::InUse,
            InstanceStatus::Stopped => VolumeState::Available,
            _ => return,
        };
        for volume in &instance.volumes {
            let now = self.volumes.get(volume).copied();
            let plan = self.state.runtime.plan.volumes.get(volume);
            let Some(now) = now.or_else(|| plan.map(|plan| plan.state)) else {
                continue;
            };
            for state in volume_way(now, to) {
                let changed = VolumeStateChanged {
                    state: state.to_string(),
                    reason: None,
                    instance_id: Some(id),
                };
                let scope = volume_scope(self.state, *volume);
                self.facts
                    .push(Fact::new(volume, changed.into()).of(&scope));
                self.volumes.insert(*volume, state);
            }
        }
    }

    fn end_sessions(&mut self, instance: InstanceId) {
        for (id, session) in &self.state.runtime.execs {
            let ended = ExecState::can(Some(session.state), ExecState::Ended, Cause::Node);
            let id_text = id.to_string();
            let twice = self.facts.iter().any(|fact| fact.aggregate_id == id_text);
            if session.instance == instance && ended.is_ok() && !twice {
                let gone = ExecSessionEnded {
                    exit_code: None,
                    end_reason: "instance_gone".to_owned(),
                    bytes_in: 0,
                    bytes_out: 0,
                };
                let scope = scope(&self.state.runtime, session.env);
                self.facts.push(Fact::new(id, gone.into()).of(&scope));
            }
        }
    }
}

/// The states that lead from one to another, the last included; a report in
/// between may have been lost.
fn way(from: InstanceStatus, to: InstanceStatus) -> Option<Vec<InstanceStatus>> {
    use InstanceStatus as S;
    if from == to {
        return Some(vec![to]);
    }
    if S::can(Some(from), to, Cause::Node).is_ok() {
        return Some(vec![to]);
    }
    let through: &[S] = match (from, to) {
        (S::Allocated, S::Booting | S::Failed) | (S::Lost, S::Stopped) => match to {
            S::Stopped => &[S::Draining],
            _ => &[S::Preparing],
        },
        (S::Allocated, S::Ready) => &[S::Preparing, S::Booting],
        (S::Allocated | S::Lost, S::Unhealthy) if from == S::Allocated => {
            &[S::Preparing, S::Booting, S::Ready]
        }
        (S::Preparing | S::Failed, S::Ready) => &[S::Booting],
        (S::Preparing | S::Failed, S::Unhealthy) => &[S::Booting, S::Ready],
        (S::Booting, S::Unhealthy) => &[S::Ready],
        // It began anew and nobody heard it fail.
        (S::Ready | S::Unhealthy, S::Booting) => &[S::Failed],
        (
            S::Allocated | S::Preparing | S::Booting | S::Ready | S::Unhealthy | S::Failed,
            S::Stopped,
        ) => &[S::Draining],
        (S::Draining, S::Collected) => &[S::Stopped],
        (
            S::Allocated
            | S::Preparing
            | S::Booting
            | S::Ready
            | S::Unhealthy
            | S::Failed
            | S::Lost,
            S::Collected,
        ) => &[S::Draining, S::Stopped],
        _ => return None,
    };
    let mut path = through.to_vec();
    path.push(to);
    Some(path)
}

/// The states that lead a volume from one to another; none if none do.
fn volume_way(from: VolumeState, to: VolumeState) -> Vec<VolumeState> {
    use VolumeState as V;
    let circle = [V::Available, V::Attaching, V::InUse, V::Detaching];
    let place = |state| circle.iter().position(|it| *it == state);
    let (Some(from), Some(to)) = (place(from), place(to)) else {
        return Vec::new();
    };
    let steps = (to + circle.len() - from) % circle.len();
    // Preparing again takes nothing back.
    if to == 1 && from == 2 {
        return Vec::new();
    }
    let path = (1..=steps).filter_map(|step| circle.get((from + step) % circle.len()));
    path.copied().collect()
}

fn volume_scope(state: &State, volume: VolumeId) -> fluffy_ledger::Scope {
    let org = state.runtime.volumes.get(&volume).map(|volume| volume.org);
    Owner {
        org,
        ..Owner::default()
    }
    .scope()
}

pub(super) fn volume(state: &State, node: NodeId, id: VolumeId, report: &VolumeReport) -> Noticed {
    counts(state, node)?;
    let plan = state.runtime.plan.volumes.get(&id);
    let plan = plan.filter(|plan| plan.home == node);
    let plan = plan.ok_or_else(|| missing("volume"))?;
    let scope = volume_scope(state, id);
    let changed = |to: VolumeState, reason: Option<String>| {
        let changed = VolumeStateChanged {
            state: to.to_string(),
            reason,
            instance_id: None,
        };
        vec![Fact::new(id, changed.into()).of(&scope)]
    };
    let facts = match report {
        VolumeReport::Provisioned if plan.state != VolumeState::Creating => Vec::new(),
        VolumeReport::Provisioned => changed(VolumeState::Available, None),
        VolumeReport::Failed(_) if plan.state == VolumeState::Error => Vec::new(),
        VolumeReport::Failed(reason) => {
            VolumeState::can(Some(plan.state), VolumeState::Error, Cause::Node)
                .map_err(transition)?;
            changed(VolumeState::Error, Some(reason.clone()))
        }
        VolumeReport::Removed => {
            VolumeState::can(Some(plan.state), VolumeState::Deleted, Cause::VolumeDelete)
                .map_err(transition)?;
            vec![Fact::new(id, VolumeDeleted {}.into()).of(&scope)]
        }
    };
    Ok(Said::facts(facts))
}

/// Where a job goes by a report; nothing if it is there already.
fn job(state: JobState, report: &JobReport) -> Result<Vec<JobState>, Refusal> {
    let to = match report {
        JobReport::Running => JobState::Running,
        JobReport::Succeeded { .. } => JobState::Succeeded,
        JobReport::Failed(_) => JobState::Failed,
    };
    if state == to || (state.is_final() && to == JobState::Running) {
        return Ok(Vec::new());
    }
    if state == JobState::Queued && to != JobState::Running {
        return Ok(vec![JobState::Running, to]);
    }
    JobState::can(Some(state), to, Cause::Node).map_err(transition)?;
    Ok(vec![to])
}

fn failure(report: &JobReport) -> Option<String> {
    match report {
        JobReport::Failed(reason) => Some(reason.clone()),
        JobReport::Running | JobReport::Succeeded { .. } => None,
    }
}

pub(super) fn snapshot(
    state: &State,
    node: NodeId,
    id: VolumeSnapshotId,
    report: &JobReport,
) -> Noticed {
    counts(state, node)?;
    let snapshot = state.runtime.snapshots.get(&id);
    let snapshot = snapshot.filter(|snapshot| snapshot.node == node);
    let snapshot = snapshot.ok_or_else(|| missing("snapshot"))?;
    Ok(Said::facts(of_snapshot((id, snapshot), report)?))
}

/// What follows for a snapshot that is so far.
pub(super) fn of_snapshot(
    (id, snapshot): (VolumeSnapshotId, &Snapshot),
    report: &JobReport,
) -> Result<Vec<Fact>, Refusal> {
    let scope = Owner {
        org: Some(snapshot.org),
        ..Owner::default()
    };
    let facts = job(snapshot.state, report)?.into_iter().map(|to| {
        let (size_bytes, consistency) = match report {
            JobReport::Succeeded {
                size_bytes,
                consistency,
            } if to == JobState::Succeeded => (*size_bytes, consistency.clone()),
            _ => (None, None),
        };
        let changed = SnapshotStatusChanged {
            status: to.to_string(),
            consistency,
            size_bytes,
            failed_reason: failure(report).filter(|_| to == JobState::Failed),
        };
        Fact::new(id, changed.into()).of(&scope.scope())
    });
    Ok(facts.collect())
}

pub(super) fn restore(state: &State, node: NodeId, id: RestoreId, report: &JobReport) -> Noticed {
    counts(state, node)?;
    let restore = state.runtime.restores.get(&id);
    let restore = restore.filter(|restore| restore.node == node);
    let restore = restore.ok_or_else(|| missing("restore"))?;
    Ok(Said::facts(of_restore(state, (id, restore), report)?))
}

/// What follows for a restore that is so far; one that is done has made its
/// volume.
pub(super) fn of_restore(
    state: &State,
    (id, restore): (RestoreId, &Restore),
    report: &JobReport,
) -> Result<Vec<Fact>, Refusal> {
    let scope = Owner {
        org: Some(restore.org),
        ..Owner::default()
    }
    .scope();
    let mut facts = Vec::new();
    for to in job(restore.state, report)? {
        let changed = RestoreJobStatusChanged {
            status: to.to_string(),
            failed_reason: failure(report).filter(|_| to == JobState::Failed),
        };
        facts.push(Fact::new(id, changed.into()).of(&scope));
        let volume = state.runtime.plan.volumes.get(&restore.volume);
        let creating = volume.is_some_and(|it| it.state == VolumeState::Creating);
        let made = match to {
            JobState::Succeeded => VolumeState::Available,
            JobState::Failed => VolumeState::Error,
            JobState::Queued | JobState::Running => continue,
        };
        if creating {
            let changed = VolumeStateChanged {
                state: made.to_string(),
                reason: failure(report),
                instance_id: None,
            };
            facts.push(Fact::new(restore.volume, changed.into()).of(&scope));
        }
    }
    Ok(facts)
}
