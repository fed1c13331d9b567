//! What nodes, edges and loops say: facts only where something changed.
//!
//! A report can come twice, late or out of order, and from a node that lies
//! about others; none of that may bring a state that no table lists. Time comes
//! with the call. Next: `reports` for instances, `liveness` for nodes.

mod exec;
mod joining;
mod liveness;
mod logs;
mod material;
mod reports;
mod routes;
mod upkeep;

use std::collections::BTreeMap;

use fluffy_base::id::{
    BootId, EnrollmentTokenId, ExecSessionId, InstanceId, MasterKeyId, NodeId, OrgId, RestoreId,
    RouteId, SecretVersionId, VolumeId, VolumeSnapshotId,
};
use fluffy_base::{Digest, Timestamp};
use fluffy_planner::action::Step;
use fluffy_planner::lifecycle::InstanceStatus;

pub use exec::may_go_on;
pub(crate) use logs::date as log_date;
pub use logs::due as log_quotas_due;

use super::steps;
use crate::call::{Call, Fact, Outcome, Subject, Written};
use crate::event::{
    Body, LeaderAcquired, MasterKeyIntroduced, MasterKeyRewrapped, MasterKeyUnsealFailed,
    MasterKeyUnsealed, NodeDriver, ProjectionRebuilt,
};
use crate::refusal::Refusal;
use crate::state::State;

/// About the most that one pass of a loop says: an append holds 10,000 events
/// and no more, and what is left is said by the next pass.
const MOST: usize = 2_000;

/// The reason why an instance was not made that got no address, and the kind of
/// the subject of a step that led to that.
pub const NO_ADDRESS: &str = "ipam_exhausted";
/// The kind of subject of an enrolment that waits for a person.
pub const PENDING: &str = "enrollment_pending";

/// What happens to what runs without a request from outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// What the planner wants.
    Step(Step),
    /// What a node says of its instances.
    Reports {
        /// Which node, as its certificate says.
        node: NodeId,
        /// What it says, in order.
        reports: Vec<Report>,
    },
    /// What a node says of a volume.
    Volume {
        /// Which node.
        node: NodeId,
        /// Which volume.
        volume: VolumeId,
        /// What became of it.
        report: VolumeReport,
    },
    /// What a node says of a snapshot.
    Snapshot {
        /// Which node.
        node: NodeId,
        /// Which snapshot.
        snapshot: VolumeSnapshotId,
        /// How far it is.
        report: JobReport,
    },
    /// What a node says of a restore.
    Restore {
        /// Which node.
        node: NodeId,
        /// Which restore.
        restore: RestoreId,
        /// How far it is.
        report: JobReport,
    },
    /// How nodes are, as the loop that watches heartbeats sees it.
    Liveness(BTreeMap<NodeId, Vital>),
    /// What a node has.
    Capacity {
        /// Which node.
        node: NodeId,
        /// Processor cores.
        cpu_cores: u64,
        /// Bytes of memory.
        memory_bytes: u64,
        /// Bytes of disk.
        disk_bytes: u64,
    },
    /// What a node can, as it found when it connected.
    Facts {
        /// Which node.
        node: NodeId,
        /// What it can run instances with.
        drivers: Vec<NodeDriver>,
        /// What it runs.
        agent_version: String,
    },
    /// A node does not follow a part of its plan, or does again.
    PlanHeld {
        /// Which node.
        node: NodeId,
        /// What it holds back; nothing if it follows all of it.
        held: Option<String>,
    },
    /// A machine joins with a token whose hash matched.
    Enroll(Box<Enrolment>),
    /// The same machine before it has a certificate: whether a person has to
    /// approve it first, and whether one has.
    EnrollmentAsked(Box<Enrolment>),
    /// An enrolment failed in a way that spends its token.
    EnrollmentSpent {
        /// Which token.
        token: EnrollmentTokenId,
        /// Why.
        outcome: String,
    },
    /// A node was heard over its own certificate.
    Confirm {
        /// Which node.
        node: NodeId,
    },
    /// A node has a new certificate.
    CertificateRotated {
        /// Which node.
        node: NodeId,
        /// Of the certificate.
        fingerprint: String,
    },
    /// A node asks for the secrets of an instance.
    MaterialFetched {
        /// Which node.
        node: NodeId,
        /// For which instance.
        instance: InstanceId,
        /// As which of its bindings.
        generation: u64,
        /// Which version.
        version: SecretVersionId,
    },
    /// A node asks for the credentials of the registry of an instance's image.
    RegistryAccessed {
        /// Which node.
        node: NodeId,
        /// For which instance.
        instance: InstanceId,
        /// As which of its bindings.
        generation: u64,
        /// Whose credentials; nothing for an instance that it does not have.
        registry: String,
    },
    /// A client opened an exec session.
    ExecConnected {
        /// Which session.
        session: ExecSessionId,
        /// Where the client's address is kept.
        pii_ref: Option<String>,
    },
    /// The client of an exec session came back to it.
    ExecResumed {
        /// Which session.
        session: ExecSessionId,
        /// Where the client's address is kept.
        pii_ref: Option<String>,
    },
    /// An exec session is over.
    ExecEnded {
        /// Which session.
        session: ExecSessionId,
        /// By what.
        end_reason: String,
        /// How the command ended.
        exit_code: Option<i64>,
        /// Bytes from the client.
        bytes_in: u64,
        /// Bytes to the client.
        bytes_out: u64,
    },
    /// What every live edge has applied, to move routes on.
    Routes {
        /// The lowest routing that all have; none without an edge.
        applied: Option<u64>,
        /// What any of them cannot serve, and why.
        problems: BTreeMap<RouteId, String>,
        /// Whether one of them serves this machine: then every declared port
        /// gets a route there.
        loopback: bool,
    },
    /// The hostname of a route was found to be its org's.
    RouteProven {
        /// Which route.
        route: RouteId,
        /// By what.
        method: String,
    },
    /// A backend took or refused the PROXY header.
    RouteProbed {
        /// Which route.
        route: RouteId,
        /// Whether it refused.
        rejected: bool,
    },
    /// Time has passed: sessions end, ranges are freed, releases retire.
    Upkeep,
    /// A replica leads a loop from now on.
    LeaderAcquired {
        /// Which loop.
        lease: String,
        /// Which replica.
        replica_id: String,
    },
    /// What orgs printed on a day, as days are counted since 1970.
    LogBytes {
        /// Which day.
        day: u64,
        /// How many bytes.
        used: BTreeMap<OrgId, u64>,
    },
    /// The operator's public addresses.
    Ipv4Pool(Vec<String>),
    /// Every replica that lives knows what readers of this version do.
    Readers(u64),
    /// A master key is used from now on; said again, it changes nothing.
    KeyIntroduced(MasterKeyId),
    /// Custodians brought the shares of a master key to a server; if they are
    /// it, it is used from now on.
    KeyBrought(Brought),
    /// Data keys were sealed with another master key.
    KeyRewrapped {
        /// The key before.
        from: MasterKeyId,
        /// The key now.
        to: MasterKeyId,
        /// How many.
        count: u64,
    },
    /// Views were folded from the ledger again.
    Rebuilt {
        /// The last event in them.
        to_seq: u64,
        /// The digest of each.
        views: BTreeMap<String, Digest>,
    },
}

/// Shares that were brought together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brought {
    /// The key that they say they are of.
    pub key: MasterKeyId,
    /// Their set.
    pub set: String,
    /// Their numbers in it.
    pub shares: Vec<u64>,
    /// The users of the server's machine who brought them.
    pub by: Vec<String>,
    /// Why they were not taken, if they were not.
    pub failed: Option<String>,
}

/// What a node says of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which.
    pub instance: InstanceId,
    /// Where it stands.
    pub status: InstanceStatus,
    /// Its current start.
    pub boot: Option<BootId>,
    /// Why it failed.
    pub reason_code: Option<String>,
    /// More about that.
    pub reason_detail: Option<String>,
    /// How its command ended.
    pub exit_code: Option<i64>,
    /// How long the start took.
    pub boot_ms: Option<u64>,
    /// How many changes were left out before this one.
    pub flap_count: Option<u64>,
    /// When the node saw it.
    pub reported_at: Timestamp,
}

/// What a node says of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeReport {
    /// It is made.
    Provisioned,
    /// It could not be made, or is damaged.
    Failed(String),
    /// Nothing of it is left.
    Removed,
}

/// How far a snapshot or a restore is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReport {
    /// It has begun.
    Running,
    /// It is done.
    Succeeded {
        /// How large it is.
        size_bytes: Option<u64>,
        /// How consistent it is.
        consistency: Option<String>,
    },
    /// It came to nothing.
    Failed(String),
}

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vital {
    /// For how long nothing was heard of it.
    pub silent: std::time::Duration,
    /// How full its disk is, in hundredths.
    pub disk_percent: u8,
    /// Whether other nodes do not reach it.
    pub unreachable: bool,
    /// Whether it has said that it knows the current plan.
    pub acknowledged: bool,
    /// How far its clock is off.
    pub clock_off: std::time::Duration,
    /// What its machine lacks, by its own word.
    pub unfit: Option<String>,
}

/// A machine that joins.
#[derive(Debug, Clone, PartialEq)]
pub struct Enrolment {
    /// The id that it gets.
    pub node: NodeId,
    /// Of the key that its certificate is for: the same at every try.
    pub request_key: String,
    /// The token that it showed.
    pub token: EnrollmentTokenId,
    /// Its key in the overlay.
    pub wireguard_public_key: String,
    /// Where others reach it.
    pub endpoint: String,
    /// Of the certificate that it gets; empty while it has none.
    pub cert_fingerprint: String,
    /// Its processors.
    pub arch: String,
    /// What it can run instances with.
    pub drivers: Vec<NodeDriver>,
    /// What its operator calls it.
    pub labels: BTreeMap<String, String>,
    /// What it runs.
    pub agent_version: String,
    /// What makes its machine that machine, if it said so.
    pub machine: Option<String>,
    /// The node that it says it was.
    pub former: Option<NodeId>,
}

/// Decides what happens without a request from outside.
pub(crate) fn notice(state: &State, call: &Call<'_>, notice: &Notice) -> Written {
    let decided = match notice {
        Notice::Step(step) => steps::step(state, call, step).map(Said::of_step),
        Notice::Reports { node, reports } => reports::instances(state, call, *node, reports),
        Notice::Volume {
            node,
            volume,
            report,
        } => reports::volume(state, *node, *volume, report),
        Notice::Snapshot {
            node,
            snapshot,
            report,
        } => reports::snapshot(state, *node, *snapshot, report),
        Notice::Restore {
            node,
            restore,
            report,
        } => reports::restore(state, *node, *restore, report),
        Notice::Liveness(vitals) => Ok(liveness::watch(state, call, vitals)),
        Notice::Capacity { .. } => joining::capacity(state, notice),
        Notice::Facts {
            node,
            drivers,
            agent_version,
        } => joining::facts(state, *node, drivers, agent_version),
        Notice::PlanHeld { node, held } => joining::plan_held(state, *node, held.as_deref()),
        Notice::Enroll(enrolment) => joining::enroll(state, call, enrolment),
        Notice::EnrollmentAsked(enrolment) => joining::asked(state, call, enrolment),
        Notice::EnrollmentSpent { token, outcome } => joining::spent(state, *token, outcome),
        Notice::Confirm { node } => joining::confirm(state, *node),
        Notice::CertificateRotated { node, fingerprint } => {
            joining::certificate(state, *node, fingerprint)
        }
        // What is refused is recorded too.
        Notice::MaterialFetched { .. } => return material::fetched(state, notice),
        Notice::RegistryAccessed { .. } => return material::registry(state, notice),
        // The token is used up either way.
        Notice::ExecConnected { session, pii_ref } => {
            return exec::connected(state, call, *session, pii_ref.as_deref());
        }
        Notice::ExecResumed { session, pii_ref } => {
            return exec::resumed(state, call, *session, pii_ref.as_deref());
        }
        Notice::ExecEnded { .. } => exec::ended(state, notice),
        Notice::Routes {
            applied,
            problems,
            loopback,
        } => {
            let edges = routes::Edges {
                applied: *applied,
                problems,
                loopback: *loopback,
            };
            Ok(routes::settle(state, call, &edges))
        }
        Notice::RouteProven { route, method } => Ok(routes::proven(state, *route, method)),
        Notice::RouteProbed { route, rejected } => Ok(routes::probed(state, *route, *rejected)),
        Notice::Upkeep => Ok(upkeep::upkeep(state, call)),
        Notice::LeaderAcquired { lease, replica_id } => Ok(leader(state, lease, replica_id)),
        Notice::LogBytes { day, used } => Ok(logs::printed(state, *day, used)),
        Notice::Ipv4Pool(ranges) => upkeep::pool(state, ranges),
        Notice::Readers(version) => Ok(upkeep::readers(state, *version)),
        Notice::KeyIntroduced(key) => Ok(Said::facts(introduced(state, call, *key))),
        Notice::KeyBrought(it) => Ok(brought(state, call, it)),
        Notice::KeyRewrapped { from, to, count } => {
            let rewrapped = MasterKeyRewrapped {
                from: *from,
                to: *to,
                count: *count,
            };
            Ok(Said::facts(vec![Fact::new(from, rewrapped.into())]))
        }
        Notice::Rebuilt { to_seq, views } => {
            let rebuilt = views.iter().map(|(name, digest)| {
                let (name, to_seq, digest) = (name.clone(), *to_seq, *digest);
                let body = ProjectionRebuilt {
                    name: name.clone(),
                    to_seq,
                    digest,
                };
                Fact::new(name, body.into())
            });
            Ok(Said::facts(rebuilt.collect()))
        }
    };
    match decided {
        Err(refusal) => Written::refused(refusal),
        Ok(said) => Written {
            facts: said.facts,
            outcome: Outcome::Done {
                status: 200,
                subject: said.subject,
            },
        },
    }
}

/// What a notice leads to.
#[derive(Default)]
struct Said {
    facts: Vec<Fact>,
    subject: Subject,
}

impl Said {
    /// What a step leads to; whoever counts is told if it found no address.
    fn of_step(facts: Vec<Fact>) -> Self {
        let none = facts.iter().any(|fact| match &fact.body {
            Body::InstanceAllocationFailed(failed) => failed.reason == NO_ADDRESS,
            _ => false,
        });
        let subject = match none {
            true => Subject::of(NO_ADDRESS, ""),
            false => Subject::default(),
        };
        Self { facts, subject }
    }

    fn facts(facts: Vec<Fact>) -> Self {
        Self {
            facts,
            subject: Subject::default(),
        }
    }
}

type Noticed = Result<Said, Refusal>;

/// That a key is used from now on, unless it is known.
fn introduced(state: &State, call: &Call<'_>, key: MasterKeyId) -> Vec<Fact> {
    if state.runtime.cluster.keys.contains_key(&key) {
        return Vec::new();
    }
    let introduced = MasterKeyIntroduced {
        master_key_id: key,
        by: call.caller.actor.id.clone(),
    };
    vec![Fact::new(key, introduced.into())]
}

/// What was brought, and at once that it is used: no server has a key that is
/// not on record, and none is on record as newest that nobody could bring.
fn brought(state: &State, call: &Call<'_>, it: &Brought) -> Said {
    let (set, shares, by) = (it.set.clone(), it.shares.clone(), it.by.clone());
    let body: Body = match &it.failed {
        None => MasterKeyUnsealed {
            master_key_id: it.key,
            set,
            shares,
            by,
        }
        .into(),
        Some(reason) => MasterKeyUnsealFailed {
            master_key_id: it.key,
            set,
            shares,
            reason: reason.clone(),
            by,
        }
        .into(),
    };
    let mut facts = vec![Fact::new(it.key, body)];
    if it.failed.is_none() {
        facts.extend(introduced(state, call, it.key));
    }
    Said::facts(facts)
}

/// Whoever led before may append nothing from now on.
fn leader(state: &State, lease: &str, replica_id: &str) -> Said {
    let before = state.leases.get(lease).copied().unwrap_or_default();
    let acquired = LeaderAcquired {
        lease: lease.to_owned(),
        epoch: before + 1,
        replica_id: replica_id.to_owned(),
    };
    Said {
        facts: vec![Fact::new(lease, acquired.into())],
        subject: Subject::of("lease", lease).with("epoch", before + 1),
    }
}
