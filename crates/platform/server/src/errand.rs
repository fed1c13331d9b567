//! Signals to workloads, and what nodes know of instances.
//!
//! A node does it that is connected to one replica: here, or at another that
//! is asked with a ticket only a holder of the master keys can make. Whether
//! somebody may have it was decided and recorded before. Next: `node/errand`.

use fluffy_api::node::v1;
use fluffy_api::types::{
    InstanceDiagnosis, InstanceFailure, InstanceTransition, InstanceUse, LogLine, NodeDiagnosis,
};
use fluffy_base::Timestamp;
use fluffy_base::id::NodeId;
use fluffy_control::{Body, Refusal};
use fluffy_ledger::{Aggregate, Domain, Event, Ledger, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::node::{ErrandError, NodeServer};
use crate::peers::Peers;
use crate::platform::Platform;

/// How many changes of an instance are shown.
pub(crate) const TRANSITIONS: u64 = 100;
/// How many lines of its first process.
pub(crate) const INIT_LINES: &str = "200";
/// How long its texts may be, and how many lines of a console there may be.
const MAX_TEXT: usize = 1024;
const MAX_CONSOLE: usize = 200;

/// What is to be done to an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// Its workload gets a signal.
    Signal(String),
    /// Its node tells what it knows.
    Diagnose,
}

/// To which instance, and on which node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// The node that runs it.
    pub(crate) node: NodeId,
    /// The instance.
    pub(crate) instance: String,
    /// What is to be done.
    pub(crate) errand: Errand,
}

/// What came of an errand; between replicas, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Done {
    /// It was done.
    Delivered,
    /// What the node knows.
    Told(Box<NodeDiagnosis>),
    /// The node does not run it.
    Refused(String),
    /// The node is too old.
    Unsupported,
    /// The node did not answer, or is not connected.
    Unreached,
}

/// Has nodes do things to instances; to be cloned freely.
#[derive(Debug, Clone)]
pub(crate) struct Errands {
    platform: Platform,
    nodes: NodeServer,
    peers: Option<Peers>,
}

impl Errands {
    pub(crate) const fn new(platform: Platform, nodes: NodeServer, peers: Option<Peers>) -> Self {
        Self {
            platform,
            nodes,
            peers,
        }
    }

    /// Has it done, by whichever replica the node is connected to.
    pub(crate) async fn run(&self, sent: &Sent) -> Done {
        if self.nodes.connected().contains(&sent.node) {
            return self.run_here(sent).await;
        }
        let Some(peers) = &self.peers else {
            return Done::Unreached;
        };
        let now = self.platform.clock().now();
        match peers.of(sent.node).await {
            Ok(Some(peer)) => {
                let done = peers.errand(&peer, sent, now).await;
                done.unwrap_or_else(|error| {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "another replica did not do an errand");
                    Done::Unreached
                })
            }
            _ => Done::Unreached,
        }
    }

    /// Has it done by a node that is connected here.
    pub(crate) async fn run_here(&self, sent: &Sent) -> Done {
        let of = match &sent.errand {
            Errand::Signal(signal) => v1::errand::Of::Signal(signal.clone()),
            Errand::Diagnose => v1::errand::Of::Diagnose(v1::Diagnose {}),
        };
        match self
            .nodes
            .errand(sent.node, (sent.instance.clone(), of))
            .await
        {
            Ok(None) => Done::Delivered,
            Ok(Some(diagnosis)) => Done::Told(Box::new(told(diagnosis))),
            Err(ErrandError::Refused(code)) => Done::Refused(code),
            Err(ErrandError::Unsupported) => Done::Unsupported,
            Err(ErrandError::Disconnected | ErrandError::TimedOut) => Done::Unreached,
        }
    }

    /// The errand that another replica asks for with this ticket.
    pub(crate) fn admit(&self, ticket: &str) -> Option<Sent> {
        let now = self.platform.clock().now();
        self.peers.as_ref()?.admit_errand(ticket, now)
    }
}

impl Done {
    /// What whoever wanted a signal sent is told.
    pub(crate) fn of_signal(self) -> Result<(), Refusal> {
        match self {
            Self::Delivered | Self::Told(_) => Ok(()),
            Self::Refused(code) => Err(Refusal::new(
                "instance_not_running",
                format!("the node did not send it: {code}"),
                "look at `fluffy instances list`, and choose one that is ready",
            )),
            Self::Unsupported => Err(Refusal::new(
                "not_supported",
                "the instance's node runs an older fluffy, which can't do that",
                "bring the node up to date",
            )),
            Self::Unreached => Err(Refusal::new(
                "unavailable",
                "the instance's node does not answer; whether the signal was sent is not known",
                "try again in a moment",
            )),
        }
    }
}

/// Puts together what is known of an instance.
pub(crate) fn diagnosis(
    instance: Value,
    transitions: Vec<InstanceTransition>,
    init_log: Vec<LogLine>,
    done: Done,
) -> Option<InstanceDiagnosis> {
    let problem = match &done {
        Done::Delivered | Done::Told(_) => None,
        Done::Refused(code) => Some(format!("the node does not run it: {code}")),
        Done::Unsupported => Some("the node runs an older fluffy, which can't tell".to_owned()),
        Done::Unreached => Some("the node does not answer".to_owned()),
    };
    Some(InstanceDiagnosis {
        instance: serde_json::from_value(instance).ok()?,
        transitions,
        init_log,
        node: match done {
            Done::Told(node) => Some(*node),
            _ => None,
        },
        node_problem: problem,
    })
}

/// The last changes of an instance, oldest first; blocks while the ledger is
/// read.
pub(crate) fn transitions(
    ledger: &Ledger,
    instance: &str,
) -> Result<Vec<InstanceTransition>, StoreError> {
    let aggregate = Aggregate::new("instance", instance);
    let version = ledger.version(Domain::Platform, &aggregate)?;
    let after = version.saturating_sub(TRANSITIONS);
    let limit = usize::try_from(TRANSITIONS).unwrap_or(usize::MAX);
    let events = ledger.read_aggregate(Domain::Platform, &aggregate, after, limit)?;
    Ok(events.iter().map(transition).collect())
}

fn transition(event: &Event) -> InstanceTransition {
    let mut shown = InstanceTransition {
        seq: event.seq,
        at: event.occurred_at,
        event: event.event_type.to_string(),
        status: None,
        boot_id: None,
        reason: None,
        detail: None,
        exit_code: None,
    };
    match Body::read(event) {
        Ok(Body::InstanceStatusChanged(it)) => {
            shown.status = Some(it.status);
            shown.boot_id = it.boot_id.map(|boot| boot.to_string());
            shown.reason = it.reason_code;
            shown.detail = it.reason_detail;
            shown.exit_code = it.exit_code;
        }
        Ok(Body::InstanceDesiredStateChanged(it)) => {
            shown.status = Some(it.desired_state);
            shown.reason = Some(it.reason);
        }
        Ok(Body::InstanceSignalRequested(it)) => {
            shown.boot_id = it.boot_id.map(|boot| boot.to_string());
            shown.detail = Some(it.signal);
        }
        _ => {}
    }
    shown
}

/// What a node told, as it is shown; a node's texts are bounded and without
/// anything that a terminal would obey.
fn told(it: v1::Diagnosis) -> NodeDiagnosis {
    NodeDiagnosis {
        driver: clean(&it.driver),
        boot_id: clean(&it.boot_id),
        run: clean(&it.run),
        phase: (!it.phase.is_empty()).then(|| clean(&it.phase)),
        workload_pid: (it.workload_pid > 0).then_some(it.workload_pid),
        workload_since: at(it.workload_since_ms),
        healthy: it.healthy,
        exec_sessions: it.exec_sessions,
        uses: it.uses.map(|uses| InstanceUse {
            memory_bytes: uses.memory_bytes,
            memory_peak_bytes: uses.memory_peak_bytes,
            cpu_usec: uses.cpu_usec,
            processes: uses.processes,
            oom_kills: uses.oom_kills,
            memory_limit_bytes: uses.memory_limit_bytes,
            process_limit: uses.process_limit,
        }),
        last_failure: it.last_failure.map(|failure| InstanceFailure {
            at: at(failure.at_ms),
            reason: clean(&failure.reason),
            detail: clean(&failure.detail),
            exit_code: failure.exit_code,
        }),
        failures: it.failures,
        crash_loop: it.crash_loop,
        console: {
            let lines = it.console.iter().take(MAX_CONSOLE);
            lines.map(|line| clean(line)).collect()
        },
    }
}

fn at(ms: u64) -> Option<Timestamp> {
    let micros = i64::try_from(ms.checked_mul(1_000)?).ok()?;
    (micros > 0).then(|| Timestamp::from_micros(micros))
}

fn clean(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control() || *c == '\t');
    shown.take(MAX_TEXT).collect()
}
