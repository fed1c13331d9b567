//! Figures of the platform: which addresses are scarce, what keys have to do,
//! how deploys go and why instances fail.
//!
//! What is there now follows from the state, and what became of deploys and
//! instances from the events that readers see, so every replica says the same,
//! if it ran for as long; who could not be given an address, each counts of
//! what it did itself. Labels are of fixed sets: nothing of a tenant is in
//! them. Next: `backend`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::DeployId;
use fluffy_control::event::{DeployStatusChanged, InstanceStatusChanged};
use fluffy_control::runtime::notice::NO_ADDRESS;
use fluffy_control::{Body, Outcome, State};
use fluffy_ledger::Event;
use fluffy_planner::lifecycle::{DeployState, InstanceStatus};
use fluffy_planner::reason::FailureReason;

use crate::histogram::Histogram;
use crate::machine::Reply;
use crate::safe::live_keys;

/// The longest of each bucket of deploys, in seconds; the target is among them.
const DEPLOYS: [u64; 8] = [15, 30, 60, 120, 300, 600, 1_800, 3_600];
/// A reason that is none of a failure: its node was given up.
const NODE_LOST: &str = "node_lost";
/// A reason that this version does not know.
const OTHER: &str = "other";

/// What is counted here.
#[derive(Debug)]
pub(crate) struct Figures {
    nodes: AtomicU64,
    instances: AtomicU64,
    ipv4: AtomicU64,
    /// How long deploys took that succeeded.
    deploys: Histogram<8>,
    /// How often instances failed, by why.
    failures: Mutex<BTreeMap<&'static str, u64>>,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            nodes: AtomicU64::new(0),
            instances: AtomicU64::new(0),
            ipv4: AtomicU64::new(0),
            deploys: Histogram::new(DEPLOYS.map(Duration::from_secs)),
            failures: Mutex::default(),
        }
    }
}

impl Figures {
    /// Counts what became of deploys and instances, by an event that readers
    /// see now.
    pub(crate) fn see(&self, event: &Event) {
        if !matches!(
            event.event_type.as_str(),
            "deploy.status_changed" | "instance.status_changed"
        ) {
            return;
        }
        match Body::read(event) {
            Ok(Body::DeployStatusChanged(it)) => self.deploy(event, &it),
            Ok(Body::InstanceStatusChanged(it)) => self.instance(&it),
            _ => {}
        }
    }

    fn deploy(&self, event: &Event, it: &DeployStatusChanged) {
        let has_succeeded = DeployState::parse(&it.status) == Some(DeployState::Succeeded);
        let Some(id) = event.aggregate.id.parse().ok().filter(|_| has_succeeded) else {
            return;
        };
        self.deploys.count(event.occurred_at.since(made_at(id)));
    }

    fn instance(&self, it: &InstanceStatusChanged) {
        let has_failed = matches!(
            InstanceStatus::parse(&it.status),
            Some(InstanceStatus::Failed | InstanceStatus::Unhealthy | InstanceStatus::Lost)
        );
        let Some(reason) = it.reason_code.as_deref().filter(|_| has_failed) else {
            return;
        };
        let reason = match FailureReason::parse(reason) {
            Some(reason) => reason.as_str(),
            None if reason == NODE_LOST => NODE_LOST,
            None => OTHER,
        };
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(reason).or_default() += 1;
    }

    /// Counts what could not be given.
    pub(crate) fn note(&self, reply: &Reply) {
        let count = match reply {
            Reply::Wrote(Outcome::Refused(refusal)) => match refusal.code {
                "ipam_unavailable" => &self.nodes,
                "ipv4_pool_exhausted" => &self.ipv4,
                _ => return,
            },
            Reply::Wrote(Outcome::Done { subject, .. }) if subject.kind == NO_ADDRESS => {
                &self.instances
            }
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// All figures in the form of Prometheus, with how often a key was missed.
    pub(crate) fn text(&self, state: &State, now: Timestamp, missed: u64) -> String {
        let uses = state.runtime.ipam.uses(now);
        let mut text = String::from("# TYPE fluffy_ipam_used_ratio gauge\n");
        for it in &uses {
            // Whole millionths need no floating point.
            let ratio = u128::from(it.taken) * 1_000_000 / u128::from(it.size.max(1));
            let (whole, rest) = (ratio / 1_000_000, ratio % 1_000_000);
            let category = it.category;
            let _ = writeln!(
                text,
                "fluffy_ipam_used_ratio{{category=\"{category}\"}} {whole}.{rest:06}"
            );
        }
        text.push_str("# TYPE fluffy_ipam_quarantined gauge\n");
        for it in &uses {
            let (category, resting) = (it.category, it.resting);
            let _ = writeln!(
                text,
                "fluffy_ipam_quarantined{{category=\"{category}\"}} {resting}"
            );
        }
        text.push_str("# TYPE fluffy_ipam_allocation_failures_total counter\n");
        let failures = [
            ("node", &self.nodes),
            ("instance", &self.instances),
            ("ipv4", &self.ipv4),
        ];
        for (category, count) in failures {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "fluffy_ipam_allocation_failures_total{{category=\"{category}\"}} {count}"
            );
        }
        text.push_str("# TYPE fluffy_deploy_seconds histogram\n");
        self.deploys.write(&mut text, "fluffy_deploy_seconds", "");
        text.push_str("# TYPE fluffy_instance_failures_total counter\n");
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        for (reason, count) in &*failures {
            let _ = writeln!(
                text,
                "fluffy_instance_failures_total{{reason=\"{reason}\"}} {count}"
            );
        }
        drop(failures);
        let _ = write!(
            text,
            "# TYPE fluffy_key_rewrap_remaining gauge\nfluffy_key_rewrap_remaining {}\n\
             # TYPE fluffy_key_unavailable_total counter\nfluffy_key_unavailable_total {missed}\n",
            to_rewrap(state)
        );
        text
    }
}

/// When a deploy was made: its id says so.
fn made_at(id: DeployId) -> Timestamp {
    let millis = i64::try_from(id.to_bits() >> 80).unwrap_or(0);
    Timestamp::from_micros(millis.saturating_mul(1_000))
}

/// How many versions of secrets are sealed with another key than the newest.
fn to_rewrap(state: &State) -> usize {
    let Some(newest) = live_keys(state).first().copied() else {
        return 0;
    };
    let versions = state.runtime.bundles.values().flat_map(|it| &it.versions);
    versions.filter(|it| it.master_key != newest).count()
}

#[cfg(test)]
mod tests {
    use fluffy_base::id::{InstanceId, NodeId};
    use fluffy_control::{Mint, Refusal, Subject};
    use fluffy_ledger::{Actor, Aggregate, Domain, Draft};

    use super::*;

    /// An event as a reader gets it.
    fn event(id: &str, body: Body, at: Timestamp) -> Event {
        let own = Aggregate::new(body.aggregate_kind(), id);
        let draft = Draft::new(
            Domain::Platform,
            own,
            body.event_type(),
            Actor::system("test"),
        );
        draft.payload(body.payload()).foresee(1, 1, at).unwrap()
    }

    #[test]
    fn deploys_are_counted_by_how_long_they_took_and_failures_by_why() {
        let figures = Figures::default();
        let mint = Mint::new([7; 32]);
        let made = Timestamp::from_micros(1_700_000_000_000_000);
        for (status, seconds) in [
            ("rolling", 1),
            ("succeeded", 40),
            ("succeeded", 121),
            ("failed", 5),
        ] {
            let id = DeployId::from_bits(mint.bits(made)).to_string();
            let changed = DeployStatusChanged {
                status: status.to_owned(),
                message: None,
                failed_reason: None,
                process: None,
            };
            let at = made.after(Duration::from_secs(seconds));
            figures.see(&event(&id, changed.into(), at));
        }
        for (status, reason) in [
            ("failed", Some("oom_killed")),
            ("failed", Some("oom_killed")),
            ("unhealthy", Some("healthcheck_failed")),
            ("lost", Some("node_lost")),
            ("failed", Some("of_a_later_version")),
            // What it says of those that end well is no failure.
            ("stopped", Some("workload_exited")),
            ("ready", None),
        ] {
            let changed = InstanceStatusChanged {
                status: status.to_owned(),
                node_id: NodeId::from_bits(1),
                boot_id: None,
                exit_code: None,
                reason_code: reason.map(str::to_owned),
                reason_detail: None,
                boot_ms: None,
                flap_count: None,
                reported_at: made,
            };
            let id = InstanceId::from_bits(1).to_string();
            figures.see(&event(&id, changed.into(), made));
        }
        let text = figures.text(&State::default(), made, 0);
        for line in [
            "fluffy_deploy_seconds_bucket{le=\"30\"} 0",
            "fluffy_deploy_seconds_bucket{le=\"60\"} 1",
            "fluffy_deploy_seconds_bucket{le=\"120\"} 1",
            "fluffy_deploy_seconds_bucket{le=\"300\"} 2",
            "fluffy_deploy_seconds_count 2",
            "fluffy_instance_failures_total{reason=\"oom_killed\"} 2",
            "fluffy_instance_failures_total{reason=\"healthcheck_failed\"} 1",
            "fluffy_instance_failures_total{reason=\"node_lost\"} 1",
            "fluffy_instance_failures_total{reason=\"other\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert_eq!(text.matches("fluffy_instance_failures_total{").count(), 4);
    }

    #[test]
    fn addresses_that_nobody_got_are_counted_by_kind() {
        let figures = Figures::default();
        let refused = |code| Reply::Wrote(Outcome::Refused(Refusal::new(code, "", "")));
        let stepped = |kind| {
            Reply::Wrote(Outcome::Done {
                status: 200,
                subject: Subject::of(kind, ""),
            })
        };
        figures.note(&refused("ipam_unavailable"));
        for _ in 0..2 {
            figures.note(&stepped(NO_ADDRESS));
            figures.note(&refused("ipv4_pool_exhausted"));
        }
        figures.note(&stepped("ipv4"));
        figures.note(&refused("conflict"));
        let text = figures.text(&State::default(), Timestamp::from_micros(0), 7);
        for (category, count) in [("node", 1), ("instance", 2), ("ipv4", 2)] {
            let name = "fluffy_ipam_allocation_failures_total";
            let line = format!("{name}{{category=\"{category}\"}} {count}\n");
            assert!(text.contains(&line), "{text}");
            // Of nothing nothing is used.
            let line = format!("fluffy_ipam_used_ratio{{category=\"{category}\"}} 0.000000\n");
            assert!(text.contains(&line), "{text}");
        }
        assert!(
            text.ends_with("\nfluffy_key_unavailable_total 7\n"),
            "{text}"
        );
    }
}
