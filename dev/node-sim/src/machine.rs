//! The simulated machine: takes plans, walks instances along, reports it.
//!
//! Knows no clock and no network: time comes in as milliseconds, reports and
//! log lines are taken out. Goes by its last plan whether anybody is connected
//! or not. Next: `node`, which drives it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fluffy_api::node::v1;
use fluffy_base::id::BootId;
use serde::{Deserialize, Serialize};
use v1::{DesiredState, InstanceStatus, JobStatus, VolumeStatus};

use crate::behaviour::Behaviour;

/// The most log lines that wait to be sent.
const MAX_LINES: usize = 10_000;

/// What a simulated node does and knows.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    plan: Option<v1::NodePlan>,
    instances: BTreeMap<String, Instance>,
    volumes: BTreeSet<String>,
    jobs: BTreeSet<String>,
    /// Reports that were not acknowledged, by number.
    reports: VecDeque<v1::Report>,
    last_report: u64,
    lines: VecDeque<v1::LogEntry>,
    /// Why parts of a plan are not followed.
    held: String,
    /// How often each instance was started.
    started: BTreeMap<String, u64>,
}

/// One instance on this machine.
#[derive(Debug, Clone)]
struct Instance {
    assignment: v1::Assignment,
    /// Whether the last plan had it.
    planned: bool,
    status: InstanceStatus,
    since_ms: u64,
    boot: BootId,
    boots: u64,
    lines: u64,
    secret: Secret,
}

/// Whether an instance has the secrets that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secret {
    Wanted,
    Asked,
    Here,
    Refused,
}

/// What is kept of an instance when the process ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// As a number of the protocol.
    pub status: i32,
    /// Its boot.
    pub boot: BootId,
}

impl Machine {
    /// A machine that goes on with what was kept.
    #[must_use]
    pub fn resume(plan: Option<v1::NodePlan>, kept: &BTreeMap<String, Kept>, now: u64) -> Self {
        let mut machine = Self::default();
        let Some(plan) = plan else {
            return machine;
        };
        machine.volumes = plan.volumes.iter().map(|v| v.volume_id.clone()).collect();
        for assignment in &plan.instances {
            if let Some(kept) = kept.get(&assignment.instance_id) {
                let status = InstanceStatus::try_from(kept.status);
                let mut instance = Instance::new(assignment.clone(), now);
                instance.status = status.unwrap_or(InstanceStatus::Preparing);
                instance.boot = kept.boot;
                instance.secret = Secret::Here;
                let id = assignment.instance_id.clone();
                machine.instances.insert(id, instance);
            }
        }
        machine.take_plan(plan, now);
        // A server may not know any of it any more.
        machine.count_anew(now);
        machine
    }

    /// What is to be kept of the instances.
    #[must_use]
    pub fn kept(&self) -> BTreeMap<String, Kept> {
        let kept = |instance: &Instance| Kept {
            status: instance.status.into(),
            boot: instance.boot,
        };
        let of = |(id, instance): (&String, &Instance)| (id.clone(), kept(instance));
        self.instances.iter().map(of).collect()
    }

    /// The plan that it goes by.
    #[must_use]
    pub fn plan(&self) -> Option<&v1::NodePlan> {
        self.plan.as_ref()
    }

    /// Takes a plan, unless it is not above the one that is here.
    pub fn take_plan(&mut self, plan: v1::NodePlan, now: u64) -> bool {
        let current = self.plan.as_ref().map(v1::NodePlan::position);
        if current.is_some_and(|current| !plan.position().is_above(current)) {
            return false;
        }
        let planned: BTreeMap<&String, &v1::Assignment> = plan
            .instances
            .iter()
            .map(|assignment| (&assignment.instance_id, assignment))
            .collect();
        let live = self.instances.len();
        let gone = self.instances.keys().filter(|id| !planned.contains_key(id));
        let gone = gone.count();
        let brake = gone > 3 && gone * 2 > live && !plan.confirm_shrink;
        self.held = match brake {
            true => format!("the plan leaves out {gone} of {live} instances"),
            false => String::new(),
        };
        for (id, instance) in &mut self.instances {
            match planned.get(id) {
                Some(assignment) => instance.assignment = (*assignment).clone(),
                None => instance.planned = brake,
            }
        }
        let mut new = Vec::new();
        for (id, assignment) in planned {
            let stopped = assignment.desired_state() == DesiredState::Stopped;
            if !self.instances.contains_key(id) && !stopped {
                new.push((id.clone(), assignment.clone()));
            }
        }
        for (id, assignment) in new {
            self.instances
                .insert(id.clone(), Instance::new(assignment, now));
            self.mounts(&id, VolumeStatus::Attaching, now);
            self.report_instance(&id, "", now);
        }
        for volume in &plan.volumes {
            if self.volumes.insert(volume.volume_id.clone()) {
                self.report_volume(&volume.volume_id, VolumeStatus::Available, "", now);
            }
        }
        self.plan = Some(plan);
        true
    }

    /// What a server is told of the plan.
    #[must_use]
    pub fn plan_ack(&self) -> v1::PlanAck {
        v1::PlanAck {
            plan: self.plan.as_ref().map(v1::NodePlan::position),
            held: self.held.clone(),
        }
    }

    /// Does a job at once, once.
    pub fn take_job(&mut self, job: &v1::Job, now: u64) {
        if !self.jobs.insert(job.job_id.clone()) {
            return;
        }
        for status in [JobStatus::Running, JobStatus::Succeeded] {
            let done = status == JobStatus::Succeeded;
            let report = v1::JobReport {
                job_id: job.job_id.clone(),
                status: status.into(),
                failed_reason: String::new(),
                size_bytes: if done { 4096 } else { 0 },
                consistency: if done { "application" } else { "" }.to_owned(),
            };
            self.report(v1::report::Of::Job(report), now);
        }
    }

    /// Walks every instance as far as the time allows.
    pub fn advance(&mut self, behaviour: &Behaviour, now: u64) {
        let ids: Vec<String> = self.instances.keys().cloned().collect();
        for id in ids {
            while self.step(&id, behaviour, now) {}
        }
        self.instances
            .retain(|_, instance| instance.status != InstanceStatus::Collected);
    }

    /// When something happens next, if nothing comes in between.
    #[must_use]
    pub fn next_due(&self, behaviour: &Behaviour) -> Option<u64> {
        let due = |instance: &Instance| instance.due(behaviour);
        self.instances.values().filter_map(due).min()
    }

    /// One step of one instance; whether there was one.
    fn step(&mut self, id: &str, behaviour: &Behaviour, now: u64) -> bool {
        let Some(instance) = self.instances.get(id) else {
            return false;
        };
        let due = instance.due(behaviour).is_some_and(|due| due <= now);
        let Some((next, reason)) = instance.next(behaviour).filter(|_| due) else {
            return false;
        };
        let before = instance.status;
        if let Some(instance) = self.instances.get_mut(id) {
            instance.since_ms = now;
            instance.status = next;
            if next == InstanceStatus::Booting {
                instance.boots += 1;
                *self.started.entry(id.to_owned()).or_default() += 1;
                if before == InstanceStatus::Failed {
                    instance.boot = BootId::generate();
                }
            }
        }
        match next {
            InstanceStatus::Booting if before == InstanceStatus::Preparing => {
                self.mounts(id, VolumeStatus::InUse, now);
            }
            InstanceStatus::Stopped => {
                self.mounts(id, VolumeStatus::Detaching, now);
                self.mounts(id, VolumeStatus::Available, now);
            }
            InstanceStatus::Ready => self.print(id, "ready", now),
            _ => {}
        }
        self.report_instance(id, &reason, now);
        true
    }

    /// Ends the workload of a running instance.
    pub fn crash(&mut self, id: &str, now: u64) -> bool {
        match self.instances.get_mut(id) {
            Some(instance) if instance.is_up() => {
                instance.status = InstanceStatus::Failed;
                instance.since_ms = now;
                self.print(id, "crashed", now);
                self.report_instance(id, "workload_exited", now);
                true
            }
            _ => false,
        }
    }

    /// Whether commands can be run in an instance.
    #[must_use]
    pub fn is_up(&self, id: &str) -> bool {
        self.instances.get(id).is_some_and(Instance::is_up)
    }

    /// Every instance, and where it stands.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<String, String> {
        let word = |status: InstanceStatus| {
            let name = status.as_str_name().trim_start_matches("INSTANCE_STATUS_");
            name.to_lowercase()
        };
        let of = |(id, instance): (&String, &Instance)| (id.clone(), word(instance.status));
        self.instances.iter().map(of).collect()
    }

    /// How often each instance was started, also those that are gone.
    #[must_use]
    pub fn started(&self) -> &BTreeMap<String, u64> {
        &self.started
    }

    /// The secrets that have to be fetched, each named once.
    pub fn wanted_secrets(&mut self) -> Vec<v1::SecretMaterialRequest> {
        let mut wanted = Vec::new();
        for (id, instance) in &mut self.instances {
            if instance.secret == Secret::Wanted {
                instance.secret = Secret::Asked;
                wanted.push(v1::SecretMaterialRequest {
                    node_id: String::new(),
                    instance_id: id.clone(),
                    generation: instance.assignment.generation,
                    secret_version_id: instance.secret_version().unwrap_or_default(),
                });
            }
        }
        wanted
    }

    /// A secret came, was refused, or could not be asked for.
    pub fn secret(&mut self, id: &str, came: Result<(), SecretError>) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.secret = match came {
                Ok(()) => Secret::Here,
                Err(SecretError::Refused) => Secret::Refused,
                Err(SecretError::Unreachable) => Secret::Wanted,
            };
        }
    }

    /// Reports above this number that were not acknowledged, some of them.
    #[must_use]
    pub fn reports_above(&self, number: u64, most: usize) -> Vec<v1::Report> {
        let above = self.reports.iter().filter(|report| report.number > number);
        above.take(most).cloned().collect()
    }

    /// All reports up to this number arrived.
    pub fn acknowledged(&mut self, through: u64) {
        self.reports.retain(|report| report.number > through);
    }

    /// The number of the last report that there ever was in this boot.
    #[must_use]
    pub fn last_report(&self) -> u64 {
        self.last_report
    }

    /// Starts numbering anew, with where everything stands.
    pub fn count_anew(&mut self, now: u64) {
        self.reports.clear();
        self.last_report = 0;
        let ids: Vec<String> = self.instances.keys().cloned().collect();
        for id in ids {
            self.report_instance(&id, "", now);
        }
    }

    /// Log lines that were not sent.
    pub fn take_lines(&mut self, most: usize) -> Vec<v1::LogEntry> {
        let most = most.min(self.lines.len());
        self.lines.drain(..most).collect()
    }

    /// Prints a line as an instance's workload.
    pub fn print(&mut self, id: &str, text: &str, now: u64) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.lines += 1;
            if self.lines.len() >= MAX_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(v1::LogEntry {
                instance_id: id.to_owned(),
                boot_id: instance.boot.to_string(),
                stream: "stdout".to_owned(),
                seq: instance.lines,
                at_ms: now,
                line: text.to_owned(),
                truncated: false,
                dropped: 0,
            });
        }
    }

    fn mounts(&mut self, id: &str, status: VolumeStatus, now: u64) {
        let Some(instance) = self.instances.get(id) else {
            return;
        };
        let spec = instance.assignment.workload.as_ref();
        let mounts = spec.map_or(Vec::new(), |spec| spec.mounts.clone());
        for mount in mounts {
            self.report_volume(&mount.volume_id, status, id, now);
        }
    }

    fn report_volume(&mut self, id: &str, status: VolumeStatus, instance: &str, now: u64) {
        let report = v1::VolumeReport {
            volume_id: id.to_owned(),
            status: status.into(),
            reason: String::new(),
            instance_id: instance.to_owned(),
        };
        self.report(v1::report::Of::Volume(report), now);
    }

    fn report_instance(&mut self, id: &str, reason: &str, now: u64) {
        let Some(instance) = self.instances.get(id) else {
            return;
        };
        let exited = reason == "workload_exited";
        let report = v1::InstanceReport {
            instance_id: id.to_owned(),
            assignment_id: instance.assignment.assignment_id.clone(),
            generation: instance.assignment.generation,
            status: instance.status.into(),
            boot_id: instance.boot.to_string(),
            exit_code: exited.then_some(1),
            reason_code: reason.to_owned(),
            reason_detail: String::new(),
            boot_ms: None,
        };
        self.report(v1::report::Of::Instance(report), now);
    }

    fn report(&mut self, of: v1::report::Of, now: u64) {
        self.last_report += 1;
        self.reports.push_back(v1::Report {
            number: self.last_report,
            at_ms: now,
            of: Some(of),
        });
    }
}

/// Why a secret did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretError {
    /// The server says no.
    Refused,
    /// The server could not be asked.
    Unreachable,
}

impl Instance {
    fn new(assignment: v1::Assignment, now: u64) -> Self {
        let mut instance = Self {
            assignment,
            planned: true,
            status: InstanceStatus::Preparing,
            since_ms: now,
            boot: BootId::generate(),
            boots: 0,
            lines: 0,
            secret: Secret::Here,
        };
        if instance.secret_version().is_some() {
            instance.secret = Secret::Wanted;
        }
        instance
    }

    fn secret_version(&self) -> Option<String> {
        let secrets = self.assignment.workload.as_ref()?.secrets.as_ref()?;
        (secrets.required || !secrets.secret_version_id.is_empty())
            .then(|| secrets.secret_version_id.clone())
    }

    fn process(&self) -> &str {
        let spec = self.assignment.workload.as_ref();
        let identity = spec.and_then(|spec| spec.identity.as_ref());
        identity.map_or("", |identity| &identity.process)
    }

    fn is_up(&self) -> bool {
        matches!(
            self.status,
            InstanceStatus::Ready | InstanceStatus::Unhealthy
        )
    }

    fn is_wanted(&self) -> bool {
        self.planned && self.assignment.desired_state() == DesiredState::Running
    }

    fn may_stop(&self) -> bool {
        !self.planned
            || self.assignment.stop_allowed
            || self.assignment.desired_state() == DesiredState::Stopped
    }

    /// When its next step is, as far as it depends on time alone.
    fn due(&self, behaviour: &Behaviour) -> Option<u64> {
        let (next, _) = self.next(behaviour)?;
        let takes = match (self.status, next) {
            (InstanceStatus::Preparing, InstanceStatus::Draining) => 0,
            (InstanceStatus::Preparing, _) => behaviour.prepare_ms,
            (InstanceStatus::Booting, InstanceStatus::Ready | InstanceStatus::Failed) => {
                behaviour.boot_ms
            }
            (InstanceStatus::Failed, InstanceStatus::Booting) => behaviour.restart_ms,
            (InstanceStatus::Draining, _) => behaviour.stop_ms,
            (InstanceStatus::Stopped, _) => behaviour.collect_ms,
            _ => 0,
        };
        Some(self.since_ms.saturating_add(takes))
    }

    /// Where it goes next, and why, if anywhere.
    fn next(&self, behaviour: &Behaviour) -> Option<(InstanceStatus, String)> {
        use InstanceStatus as Status;
        let plain = |status| Some((status, String::new()));
        let failure = behaviour.failure_of(self.process());
        let image = failure.filter(|reason| reason.starts_with("image"));
        match self.status {
            Status::Collected | Status::Unspecified => None,
            Status::Stopped => plain(Status::Collected),
            Status::Draining => self.may_stop().then(|| (Status::Stopped, String::new())),
            _ if !self.is_wanted() => plain(Status::Draining),
            Status::Preparing => match (image, self.secret) {
                (Some(reason), _) => Some((Status::Failed, reason.to_owned())),
                (None, Secret::Here) => plain(Status::Booting),
                (None, Secret::Refused) => Some((Status::Failed, "secrets_missing".to_owned())),
                (None, Secret::Wanted | Secret::Asked) => None,
            },
            Status::Booting => match failure {
                Some(reason) => Some((Status::Failed, reason.to_owned())),
                None => plain(Status::Ready),
            },
            Status::Ready if behaviour.unhealthy => {
                Some((Status::Unhealthy, "healthcheck_failed".to_owned()))
            }
            Status::Unhealthy if !behaviour.unhealthy => plain(Status::Ready),
            Status::Ready | Status::Unhealthy => None,
            // What has no secrets waits for a new plan.
            Status::Failed if self.secret == Secret::Refused => None,
            Status::Failed => match self.restarts() {
                true => plain(Status::Booting),
                false => None,
            },
        }
    }

    fn restarts(&self) -> bool {
        let spec = self.assignment.workload.as_ref();
        let restart = spec.and_then(|spec| spec.run.as_ref()?.restart.as_ref());
        restart.is_none_or(|restart| match restart.policy.as_str() {
            "never" => false,
            "on-failure" => self.boots <= u64::from(restart.max_retries),
            _ => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seq: u64, ids: &[&str]) -> v1::NodePlan {
        v1::NodePlan {
            epoch: 1,
            cursor_seq: seq,
            instances: ids
                .iter()
                .map(|id| v1::Assignment {
                    instance_id: (*id).to_owned(),
                    desired_state: DesiredState::Running.into(),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }
    }

    fn walked(machine: &Machine, id: &str) -> Vec<String> {
        let of = |report: v1::Report| match report.of {
            Some(v1::report::Of::Instance(of)) if of.instance_id == id => {
                let name = of.status().as_str_name();
                let name = name.trim_start_matches("INSTANCE_STATUS_");
                Some(format!("{name} {}", of.reason_code).trim().to_owned())
            }
            _ => None,
        };
        let all = machine.reports_above(0, usize::MAX);
        all.into_iter().filter_map(of).collect()
    }

    /// Runs until nothing happens by itself any more, or for long enough.
    fn settle(machine: &mut Machine, behaviour: &Behaviour, from: u64) -> u64 {
        let mut now = from;
        for _ in 0..20 {
            machine.advance(behaviour, now);
            match machine.next_due(behaviour) {
                Some(due) => now = now.max(due),
                None => break,
            }
        }
        now
    }

    #[test]
    fn an_instance_walks_to_ready_and_away() {
        let quick = Behaviour::default();
        let mut machine = Machine::default();
        assert!(machine.take_plan(plan(1, &["a"]), 0));
        let now = settle(&mut machine, &quick, 0);
        assert_eq!(walked(&machine, "a"), ["PREPARING", "BOOTING", "READY"]);
        let mut draining = plan(2, &["a"]);
        draining.instances[0].desired_state = DesiredState::Draining.into();
        assert!(machine.take_plan(draining.clone(), now));
        settle(&mut machine, &quick, now);
        assert_eq!(
            walked(&machine, "a")[3..],
            ["DRAINING"],
            "it may not stop yet"
        );
        draining.cursor_seq = 3;
        draining.instances[0].stop_allowed = true;
        assert!(machine.take_plan(draining, now));
        settle(&mut machine, &quick, now + 1000);
        assert_eq!(walked(&machine, "a")[4..], ["STOPPED", "COLLECTED"]);
        assert!(machine.statuses().is_empty());
    }

    #[test]
    fn an_old_plan_is_ignored_and_a_small_one_held() {
        let quick = Behaviour::default();
        let mut machine = Machine::default();
        machine.take_plan(plan(5, &["a", "b", "c", "d"]), 0);
        settle(&mut machine, &quick, 0);
        assert!(!machine.take_plan(plan(5, &[]), 0));
        assert!(!machine.take_plan(plan(4, &[]), 0));
        assert!(machine.take_plan(plan(6, &[]), 0));
        settle(&mut machine, &quick, 1000);
        assert_eq!(machine.statuses().len(), 4, "too many at once");
        assert!(!machine.plan_ack().held.is_empty());
        let mut confirmed = plan(7, &[]);
        confirmed.confirm_shrink = true;
        assert!(machine.take_plan(confirmed, 1000));
        settle(&mut machine, &quick, 2000);
        assert!(machine.statuses().is_empty());
        let later = v1::NodePlan {
            epoch: 2,
            ..plan(1, &["e"])
        };
        assert!(machine.take_plan(later, 3000), "a new epoch wins");
    }

    #[test]
    fn failures_are_reported_with_their_reason() {
        let mut faulty = Behaviour {
            fail: Some("image_pull_failed".to_owned()),
            ..Behaviour::default()
        };
        let mut machine = Machine::default();
        machine.take_plan(plan(1, &["a"]), 0);
        machine.advance(&faulty, 100);
        assert_eq!(
            walked(&machine, "a"),
            ["PREPARING", "FAILED image_pull_failed"]
        );
        faulty.fail = None;
        let now = settle(&mut machine, &faulty, 1000);
        assert_eq!(walked(&machine, "a")[2..], ["BOOTING", "READY"]);
        assert!(machine.crash("a", now));
        assert_eq!(walked(&machine, "a")[4..], ["FAILED workload_exited"]);
        assert!(!machine.crash("a", now) && !machine.crash("b", now));
    }

    #[test]
    fn what_was_acknowledged_is_not_said_again() {
        let mut machine = Machine::default();
        machine.take_plan(plan(1, &["a", "b"]), 0);
        let numbers = |machine: &Machine, above| -> Vec<u64> {
            let reports = machine.reports_above(above, 10);
            reports.iter().map(|report| report.number).collect()
        };
        assert_eq!(numbers(&machine, 0), [1, 2]);
        assert_eq!(numbers(&machine, 1), [2]);
        machine.acknowledged(1);
        assert_eq!(numbers(&machine, 0), [2]);
    }
}
