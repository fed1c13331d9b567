//! The desk of the platform: what nodes say becomes notices to the state.
//!
//! Nothing is decided here but by `fluffy-control`, on exact state, in the
//! append; what nodes are told follows from the state and is made anew when it
//! changes. Any number of replicas have such a desk: what one hears the others
//! find in the ledger or beside it. Next: `plan` for what nodes are told.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_api::node::{PENDING, v1};
use fluffy_base::id::{EnrollmentTokenId, ExecSessionId, InstanceId, NodeId};
use fluffy_base::{Digest, Timestamp};
use fluffy_contract::BoxFuture;
use fluffy_control::access::Notice as AccessNotice;
use fluffy_control::call::Subject;
use fluffy_control::event::NodeDriver;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::{
    self, Enrolment as NewNode, JobReport, Report, VolumeReport,
};
use fluffy_control::runtime::quota::Dimension;
use fluffy_control::runtime::record::EnrollmentToken;
use fluffy_control::{Caller, CallerKind, Notice, Outcome, State};
use fluffy_ledger::{Actor, ActorKind};
use fluffy_planner::lifecycle::{ExecState, InstanceStatus, NodeState};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use zeroize::Zeroizing;

use super::ca::Role;
use super::desk::{
    Approval, Desk, DeskError, Enrolment, Machine, Opened, Orders, Place, RefusedEnrolment,
    Standing, Token,
};
use super::enrol::millis;
use super::plan::{self, Index};
use crate::aside::Kind;
use crate::credential::CredentialKind;
use crate::hashes::Hashes;
use crate::logs::{Printer, Source};
use crate::machine::Reply;
use crate::personal::Personal;
use crate::platform::Platform;
use crate::safe::{Safe, SafeError, SecretOwner};
use crate::vitals::{Beat, Vitals};

/// Who says what nodes say, in the ledger.
const PART: &str = "nodes";

/// The last report of each node that is durable, with its boot.
const REPORTED: Kind = Kind::new("node-reports");

/// How often a token was tried by who could not be reached.
const UNREACHED: Kind = Kind::new("enroll-attempts");

/// After so many it is used up.
const ATTEMPTS: u8 = 5;

/// How long what is kept beside the ledger is kept.
const KEPT: Duration = Duration::from_secs(2 * 24 * 3600);

/// How long nothing may happen before plans are looked at again.
const TICK: Duration = Duration::from_secs(1);

/// Plans are made no more often: a burst of events is one reason.
const SPACING: Duration = Duration::from_millis(20);

/// A node's signs of life are kept no more often.
const BEATS: Duration = Duration::from_secs(1);

/// Who the edge of this process is, beside the ledger; no node has this id.
const LOCAL_EDGE: NodeId = NodeId::from_bits(0);

/// How many routes an edge may have problems with.
const PROBLEMS: usize = 1_000;

/// How far a node's clock may be off before that is said.
const CLOCK_MS: u64 = 2_000;

/// When a report that came too often is said again.
const FLAPPING: Duration = Duration::from_secs(61);

/// The desk of one replica.
#[derive(Debug)]
pub struct ControlDesk {
    platform: Platform,
    safe: Safe,
    vitals: Vitals,
    hashes: Hashes,
    personal: Personal,
    here: Mutex<BTreeMap<NodeId, Here>>,
    held: Mutex<BTreeMap<(NodeId, InstanceId), Held>>,
    table: watch::Sender<Arc<v1::RoutingTable>>,
}

/// A node that has been connected here.
#[derive(Debug, Default)]
struct Here {
    orders: watch::Sender<Arc<Orders>>,
    /// The plan or table that it goes by.
    goes_by: Option<v1::Position>,
    /// What an edge cannot serve of it.
    problems: Vec<(String, String)>,
    /// Whether it is the edge of this process.
    loopback: bool,
    beaten: Option<Instant>,
    /// What it holds back of its plan, since it said so or not.
    held: Option<String>,
    /// What its machine lacks.
    unfit: String,
    /// Whether its clock was said to be off.
    clock_named: bool,
}

/// The edge of this process; of several the last is heard.
#[derive(Debug)]
pub struct LocalEdge {
    desk: Arc<ControlDesk>,
    tables: watch::Receiver<Arc<v1::RoutingTable>>,
}

impl LocalEdge {
    /// The next table; none when the server has ended.
    pub async fn table(&mut self) -> Option<Arc<v1::RoutingTable>> {
        loop {
            self.tables.changed().await.ok()?;
            let table = Arc::clone(&self.tables.borrow_and_update());
            // Before the first there is nothing to go by.
            if table.config.is_some() {
                return Some(table);
            }
        }
    }

    /// Says which table is in force.
    pub fn acknowledge(&self, ack: v1::EdgeAck) {
        self.desk.edge_ack(LOCAL_EDGE, ack);
    }

    /// Where instances have their addresses.
    #[must_use]
    pub fn prefix(&self) -> Option<(Ipv6Addr, u8)> {
        let read = |state: &State| state.runtime.ipam.prefix;
        let (address, length) = self.desk.platform.sequencer().read(read)?.whole();
        Some((address, u8::try_from(length).ok()?))
    }
}

/// A report that came too often to be recorded.
#[derive(Debug)]
struct Held {
    report: Report,
    count: u64,
    since: Instant,
}

impl ControlDesk {
    /// The desk of a platform whose secrets are in this safe.
    #[must_use]
    pub fn new(platform: Platform, safe: Safe) -> Arc<Self> {
        let aside = platform.aside().clone();
        Arc::new(Self {
            platform,
            safe,
            vitals: Vitals::new(aside.clone()),
            personal: Personal::new(aside.clone()),
            hashes: Hashes::new(aside),
            here: Mutex::default(),
            held: Mutex::default(),
            table: watch::Sender::new(Arc::default()),
        })
    }

    /// Keeps plans and tables as the state is, until it is dropped.
    pub async fn run(&self) {
        let mut positions = self.platform.sequencer().positions();
        loop {
            positions.mark_unchanged();
            self.refresh();
            self.say_held().await;
            self.say_plans_held().await;
            // The channel lives as long as the platform.
            let _ = timeout(TICK, positions.changed()).await;
            sleep(SPACING).await;
        }
    }

    /// Makes anew what nodes are told, and tells what is another.
    fn refresh(&self) {
        let here = self.here();
        self.platform.sequencer().read(|state| {
            let (index, at) = (Index::of(state), position(state));
            // Who is not connected is told when it is.
            let listening = |here: &&Here| here.orders.receiver_count() > 0;
            for (node, here) in here.iter().filter(|(_, here)| listening(here)) {
                here.orders
                    .send_if_modified(|told| index.update(told, *node, at));
            }
            self.table
                .send_if_modified(|told| index.update_table(told, at));
        });
    }

    /// A place for the edge of this process: the same messages, by no wire.
    #[must_use]
    pub fn seat(self: &Arc<Self>) -> LocalEdge {
        self.here().entry(LOCAL_EDGE).or_default().loopback = true;
        let mut tables = self.table.subscribe();
        tables.mark_changed();
        LocalEdge {
            desk: Arc::clone(self),
            tables,
        }
    }

    fn here(&self) -> MutexGuard<'_, BTreeMap<NodeId, Here>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<(NodeId, InstanceId), Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits what a node said; what came of it.
    async fn say(&self, node: NodeId, notice: RuntimeNotice) -> Result<Subject, DeskError> {
        let caller = Caller {
            kind: CallerKind::Node(node),
            actor: Actor::new(ActorKind::Node, node.to_string()),
        };
        self.submit(caller, Notice::Runtime(notice)).await
    }

    async fn submit(&self, caller: Caller, notice: Notice) -> Result<Subject, DeskError> {
        match self.platform.notice_of(caller, notice).await {
            Ok(answer) => match answer.reply {
                Reply::Wrote(Outcome::Done { subject, .. }) => Ok(subject),
                Reply::Wrote(Outcome::Refused(refusal)) => Err(DeskError::Refused {
                    code: refusal.code,
                    why: refusal.why,
                }),
                _ => Err(DeskError::Unavailable),
            },
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what a node said was not recorded"
                );
                Err(DeskError::Unavailable)
            }
        }
    }
}

fn position(state: &State) -> v1::Position {
    v1::Position {
        epoch: state.epoch,
        seq: state.seq,
    }
}

/// The platform itself, where no node speaks yet.
fn system() -> Caller {
    Caller {
        kind: CallerKind::System(None),
        actor: Actor::system(PART),
    }
}

impl ControlDesk {
    /// Takes reports of one batch in order; says how far they are durable.
    async fn take(&self, node: NodeId, batch: v1::StatusBatch) -> Result<u64, DeskError> {
        let mut through = batch
            .reports
            .first()
            .map_or(0, |report| report.number.saturating_sub(1));
        let before = through;
        for part in parts(node, batch.reports) {
            let said = match part.notice {
                Some(RuntimeNotice::Reports { node, reports }) => {
                    self.take_statuses(node, reports).await
                }
                Some(notice) => match self.say(node, notice).await {
                    // Of a volume or a job that is not there any more.
                    Err(DeskError::Refused { code, .. }) if code != "forbidden" => Ok(()),
                    said => said.map(drop),
                },
                None => Ok(()),
            };
            match said {
                Ok(()) => through = part.through,
                Err(DeskError::Unavailable) if through > before => break,
                Err(error) => return Err(error),
            }
        }
        // If this is lost, some are said again, which the state notices.
        let (key, text) = (node.to_string(), format!("{} {through}", batch.boot_id));
        let aside = self.platform.aside();
        let _ = aside
            .put(REPORTED, &key, text.into_bytes(), Some(KEPT))
            .await;
        Ok(through)
    }

    async fn take_statuses(&self, node: NodeId, reports: Vec<Report>) -> Result<(), DeskError> {
        let said = RuntimeNotice::Reports {
            node,
            reports: reports.clone(),
        };
        let subject = self.say(node, said).await?;
        let too_often = subject.details.get("held");
        let too_often = too_often.and_then(|held| held.as_array());
        let is_held = |instance: InstanceId| {
            let text = instance.to_string();
            too_often.is_some_and(|held| held.iter().any(|id| id.as_str() == Some(&text)))
        };
        let mut held = self.held();
        for report in reports {
            let key = (node, report.instance);
            if is_held(report.instance) {
                let now = Instant::now();
                let entry = held.entry(key).or_insert_with(|| Held {
                    report: report.clone(),
                    count: 0,
                    since: now,
                });
                entry.report = report;
                entry.count += 1;
            } else {
                held.remove(&key);
            }
        }
        Ok(())
    }

    /// Says what came too often, a minute later and counted.
    async fn say_held(&self) {
        let due: Vec<((NodeId, InstanceId), Report)> = {
            let held = self.held();
            let due = held
                .iter()
                .filter(|(_, held)| held.since.elapsed() >= FLAPPING);
            due.map(|(key, held)| {
                let flap_count = Some(held.count);
                let report = held.report.clone();
                (
                    *key,
                    Report {
                        flap_count,
                        ..report
                    },
                )
            })
            .collect()
        };
        for ((node, instance), report) in due {
            let reports = vec![report];
            let said = self.say(node, RuntimeNotice::Reports { node, reports });
            if !matches!(said.await, Err(DeskError::Unavailable)) {
                self.held().remove(&(node, instance));
            }
        }
    }

    /// Records which nodes hold a part of their plans back, where that is new.
    async fn say_plans_held(&self) {
        let said: Vec<(NodeId, Option<String>)> = {
            let here = self.here();
            // Only who is connected here is spoken for.
            let connected = here.iter().filter(|(_, it)| it.orders.receiver_count() > 0);
            let said = connected.filter_map(|(node, it)| Some((*node, it.held.clone()?)));
            said.map(|(node, held)| (node, Some(held).filter(|it| !it.is_empty())))
                .collect()
        };
        for (node, held) in said {
            let known = self.platform.sequencer().read(|state| {
                let record = state.runtime.nodes.get(&node);
                record.map(|it| it.held.as_ref().map(|(held, _)| held.clone()))
            });
            if known.is_some_and(|known| known != held) {
                // What is not recorded now is said again a second later.
                let _ = self.say(node, RuntimeNotice::PlanHeld { node, held }).await;
            }
        }
    }

    /// Has it decided whether a machine joins, in the words of machines.
    async fn decided(
        &self,
        token: EnrollmentTokenId,
        said: RuntimeNotice,
    ) -> Result<(), DeskError> {
        let said = self.submit(system(), Notice::Runtime(said)).await;
        let subject = said.map_err(|error| match error {
            DeskError::Refused { code, why } => match code {
                "forbidden" => refused("enroll_denied", "this token cannot be used"),
                "policy_denied" => refused("enroll_policy", &why),
                "ipam_unavailable" => refused("overlay_full", &why),
                _ => refused("enroll_bad_request", &why),
            },
            DeskError::Unavailable => DeskError::Unavailable,
        })?;
        if subject.kind == "refused" {
            let why = "this key or machine belongs to a node already";
            return Err(refused("enroll_duplicate", why));
        }
        if subject.kind == notice::PENDING {
            let why = format!(
                "an operator has to approve this machine: `fluffy nodes enroll-token approve \
                 {token}`"
            );
            return Err(refused(PENDING, &why));
        }
        Ok(())
    }

    /// Counts a try of a token by who could not be reached; whether it is the
    /// last.
    async fn is_last_attempt(&self, token: EnrollmentTokenId) -> bool {
        let (aside, key) = (self.platform.aside(), token.to_string());
        let before = match aside.get(UNREACHED, &key).await {
            Ok(entry) => entry.and_then(|entry| entry.value.first().copied()),
            Err(_) => return false,
        };
        let tries = before.unwrap_or(0).saturating_add(1);
        let _ = aside.put(UNREACHED, &key, vec![tries], Some(KEPT)).await;
        tries >= ATTEMPTS
    }

    /// The last report of a node's boot that is durable.
    ///
    /// After a restore that may be fewer than the node was told, and it can't
    /// say the others again. It is told of more than it ever said, and so
    /// counts anew with a new boot.
    async fn reports_through(&self, node: NodeId, hello: &v1::Hello) -> Result<u64, DeskError> {
        let (aside, key) = (self.platform.aside(), node.to_string());
        let kept = aside.get(REPORTED, &key).await;
        let kept = kept.map_err(|_| DeskError::Unavailable)?;
        let kept = kept.and_then(|entry| String::from_utf8(entry.value).ok());
        let kept = kept.as_deref().and_then(|text| {
            let (boot, through) = text.split_once(' ')?;
            Some((boot, through.parse::<u64>().ok()?))
        });
        let known = kept.filter(|(boot, _)| *boot == hello.boot_id);
        let epoch = self.platform.sequencer().read(|state| state.epoch);
        let is_of_before = hello.plan.is_some_and(|plan| plan.epoch < epoch);
        let was_told = known.is_none() && kept.is_some_and(|(_, through)| through == u64::MAX);
        if !is_of_before || was_told {
            return Ok(known.map_or(0, |(_, through)| through));
        }
        let text = format!("{} {}", hello.boot_id, u64::MAX);
        let told = aside.put(REPORTED, &key, text.into_bytes(), Some(KEPT));
        told.await.map_err(|_| DeskError::Unavailable)?;
        Ok(u64::MAX)
    }

    /// How far a node's clock is off; one that says none has none. What is
    /// more than a moment is said once for each connection.
    fn clock_off_ms(&self, node: NodeId, clock_ms: u64) -> u64 {
        if clock_ms == 0 {
            return 0;
        }
        let off = millis(self.platform.clock().now()).abs_diff(clock_ms);
        if off > CLOCK_MS
            && let Some(here) = self.here().get_mut(&node)
            && !std::mem::replace(&mut here.clock_named, true)
        {
            tracing::warn!(%node, off, "the clock of a node is off, in milliseconds");
        }
        off
    }

    /// Says at once where the node is, for those who ask another replica.
    async fn moved_here(&self, node: NodeId) -> Result<(), DeskError> {
        let last = self.vitals.of(node).await;
        let last = last.map_err(|_| DeskError::Unavailable)?;
        let beat = Beat {
            acknowledged: false,
            replica: self.platform.replica().to_owned(),
            ..last.unwrap_or_default()
        };
        let said = self.vitals.beat(node, beat).await;
        said.map_err(|_| DeskError::Unavailable)
    }

    /// Keeps a sign of life, unless one was kept just now.
    fn beat(&self, node: NodeId, beat: impl FnOnce(&Here) -> Beat) {
        let mut here = self.here();
        let Some(known) = here.get_mut(&node) else {
            return;
        };
        if known.beaten.is_some_and(|at| at.elapsed() < BEATS) {
            return;
        }
        known.beaten = Some(Instant::now());
        let (mut beat, vitals) = (beat(known), self.vitals.clone());
        self.platform.replica().clone_into(&mut beat.replica);
        // If it is lost the next one comes soon.
        tokio::spawn(async move { vitals.beat(node, beat).await });
    }
}

/// A part of a batch that is one notice, and where it ends.
struct Part {
    notice: Option<RuntimeNotice>,
    through: u64,
}

/// The notices of a batch, in order; what is said of instances in a row is one.
fn parts(node: NodeId, reports: Vec<v1::Report>) -> Vec<Part> {
    use v1::report::Of;
    let mut parts: Vec<Part> = Vec::new();
    for report in reports {
        let at = Timestamp::from_micros(
            i64::try_from(report.at_ms.saturating_mul(1000)).unwrap_or(i64::MAX),
        );
        let through = report.number;
        let notice = match report.of {
            Some(Of::Instance(of)) => {
                let status = status_of(&of, at);
                let last = parts.last_mut();
                if let (Some(status), Some(part)) = (&status, last)
                    && let Some(RuntimeNotice::Reports { reports, .. }) = &mut part.notice
                {
                    reports.push(status.clone());
                    part.through = through;
                    continue;
                }
                status.map(|status| RuntimeNotice::Reports {
                    node,
                    reports: vec![status],
                })
            }
            Some(Of::Volume(of)) => volume_of(node, &of),
            Some(Of::Job(of)) => job_of(node, of),
            None => None,
        };
        parts.push(Part { notice, through });
    }
    parts
}

fn status_of(of: &v1::InstanceReport, reported_at: Timestamp) -> Option<Report> {
    use v1::InstanceStatus as Said;
    let status = match of.status() {
        Said::Unspecified => return None,
        Said::Preparing => InstanceStatus::Preparing,
        Said::Booting => InstanceStatus::Booting,
        Said::Ready => InstanceStatus::Ready,
        Said::Unhealthy => InstanceStatus::Unhealthy,
        Said::Failed => InstanceStatus::Failed,
        Said::Draining => InstanceStatus::Draining,
        Said::Stopped => InstanceStatus::Stopped,
        Said::Collected => InstanceStatus::Collected,
    };
    Some(Report {
        instance: of.instance_id.parse().ok()?,
        status,
        boot: of.boot_id.parse().ok(),
        reason_code: text(&of.reason_code, 64),
        reason_detail: text(&of.reason_detail, 4096),
        exit_code: of.exit_code.map(i64::from),
        boot_ms: of.boot_ms,
        flap_count: None,
        reported_at,
    })
}

/// How a volume is made or ended; what mounts it follows from instances.
fn volume_of(node: NodeId, of: &v1::VolumeReport) -> Option<RuntimeNotice> {
    use v1::VolumeStatus as Said;
    let report = match of.status() {
        Said::Available if of.instance_id.is_empty() => VolumeReport::Provisioned,
        Said::Error => VolumeReport::Failed(text(&of.reason, 64).unwrap_or_default()),
        Said::Deleted => VolumeReport::Removed,
        _ => return None,
    };
    Some(RuntimeNotice::Volume {
        node,
        volume: of.volume_id.parse().ok()?,
        report,
    })
}

fn job_of(node: NodeId, of: v1::JobReport) -> Option<RuntimeNotice> {
    let report = match of.status() {
        v1::JobStatus::Unspecified => return None,
        v1::JobStatus::Running => JobReport::Running,
        v1::JobStatus::Succeeded => JobReport::Succeeded {
            size_bytes: Some(of.size_bytes),
            consistency: text(&of.consistency, 64),
        },
        v1::JobStatus::Failed => {
            JobReport::Failed(text(&of.failed_reason, 256).unwrap_or_default())
        }
    };
    if let Ok(snapshot) = of.job_id.parse() {
        return Some(RuntimeNotice::Snapshot {
            node,
            snapshot,
            report,
        });
    }
    Some(RuntimeNotice::Restore {
        node,
        restore: of.job_id.parse().ok()?,
        report,
    })
}

/// A text of a node, cut; nothing if it said nothing.
fn text(text: &str, most: usize) -> Option<String> {
    let cut = text.floor_char_boundary(most);
    text.get(..cut)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// The drivers of a machine as the state knows them.
fn drivers(facts: &v1::Facts) -> Vec<NodeDriver> {
    let driver = |it: &v1::Driver| NodeDriver {
        driver: match it.level.as_str() {
            "microvm-emulated" => format!("{}-emulated", it.name),
            _ => it.name.clone(),
        },
        max_vcpus: it.max_vcpus,
        max_memory_bytes: it.max_memory_bytes,
    };
    facts.drivers.iter().map(driver).collect()
}

/// A machine as the state hears of it.
fn new_node(it: Machine, node: NodeId, cert_fingerprint: String) -> NewNode {
    NewNode {
        node,
        request_key: it.key.to_string(),
        token: it.token,
        wireguard_public_key: STANDARD.encode(it.overlay_key),
        endpoint: it.endpoint,
        cert_fingerprint,
        arch: it.facts.arch.clone(),
        drivers: drivers(&it.facts),
        labels: it.facts.labels,
        agent_version: it.facts.agent_version,
        machine: (!it.mark.is_empty()).then(|| STANDARD.encode(&it.mark)),
        former: it.former,
    }
}

fn approval_of(token: &EnrollmentToken) -> Approval {
    let decided = token.request.as_ref().map(|it| it.decided.as_ref());
    match (token.require_approval, decided) {
        (false, _) => Approval::Settled,
        (true, Some(Some((outcome, _)))) if outcome == "approved" => Approval::Settled,
        (true, Some(_)) => Approval::Awaited,
        (true, None) => Approval::Needed,
    }
}

fn refused(code: &'static str, why: &str) -> DeskError {
    DeskError::Refused {
        code,
        why: why.to_owned(),
    }
}

impl Desk for ControlDesk {
    fn standing(&self, node: NodeId, fingerprint: &Digest) -> Standing {
        let shown = fingerprint.to_string();
        let known = self.platform.sequencer().read(|state| {
            let record = state.runtime.nodes.get(&node);
            let fits = record.is_some_and(|it| {
                it.cert_fingerprint == shown || it.former_fingerprint.as_ref() == Some(&shown)
            });
            fits && !state.runtime.plan.is_fenced(node)
        });
        match known {
            true => Standing::Member,
            false => Standing::Stranger,
        }
    }

    fn token(&self, hash: Digest) -> BoxFuture<'_, Result<Option<Token>, DeskError>> {
        Box::pin(async move {
            let found = self.hashes.find(CredentialKind::Enrolment, hash).await;
            let found = found.map_err(|_| DeskError::Unavailable)?;
            let Some(id) = found.and_then(|id| id.parse::<EnrollmentTokenId>().ok()) else {
                return Ok(None);
            };
            let now = self.platform.clock().now();
            let usable = self.platform.sequencer().read(|state| {
                let token = state.runtime.enrollment_tokens.get(&id);
                let token = token.filter(|it| it.ended.is_none() && it.expires_at > now)?;
                Some((token.allow_nat, approval_of(token)))
            });
            Ok(usable.map(|(allow_nat, approval)| Token {
                id,
                role: Role::Worker,
                place: match allow_nat {
                    true => Place::Anywhere,
                    false => Place::Reachable,
                },
                approval,
            }))
        })
    }

    fn ask(&self, machine: Machine) -> BoxFuture<'_, Result<(), DeskError>> {
        Box::pin(async move {
            let token = machine.token;
            // An id that nothing has, because nothing is kept under it.
            let asks = new_node(machine, NodeId::generate(), String::new());
            let asks = RuntimeNotice::EnrollmentAsked(Box::new(asks));
            self.decided(token, asks).await
        })
    }

    fn enrol(&self, it: Enrolment) -> BoxFuture<'_, Result<v1::Overlay, DeskError>> {
        Box::pin(async move {
            let token = it.machine.token;
            let new = new_node(it.machine, it.node, it.fingerprint.to_string());
            let new = RuntimeNotice::Enroll(Box::new(new));
            self.decided(token, new).await?;
            let place = self.platform.sequencer().read(|state| {
                let address = state.runtime.nodes.get(&it.node)?.address;
                let length = state.runtime.ipam.prefix?.node_length();
                Some((address, length))
            });
            let (address, length) = place.ok_or(DeskError::Unavailable)?;
            Ok(v1::Overlay {
                address: address.to_string(),
                instance_prefix: format!("{address}/{length}"),
                mtu: plan::MTU,
            })
        })
    }

    fn refused(&self, it: RefusedEnrolment) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(token) = it.token {
                let spent = match it.code {
                    "enroll_proof_failed" | "enroll_policy" => true,
                    "enroll_unreachable" => self.is_last_attempt(token).await,
                    _ => false,
                };
                if spent {
                    let outcome = it.code.to_owned();
                    let spent = RuntimeNotice::EnrollmentSpent { token, outcome };
                    // A token that stays good for lack of a ledger is refused
                    // for the same reason the next time.
                    let _ = self.submit(system(), Notice::Runtime(spent)).await;
                }
            }
            let source = it.source.to_string();
            let failed = AccessNotice::EnrolmentRefused {
                code: it.code.to_owned(),
                pii_ref: self.personal.keep_source(&source).await,
                token: it.token,
                key_fingerprint: it.key.map(|key| key.to_string()),
            };
            let _ = self.submit(system(), Notice::Access(failed)).await;
        })
    }

    fn confirm(&self, node: NodeId) -> BoxFuture<'_, Result<String, DeskError>> {
        Box::pin(async move {
            let state = || {
                self.platform.sequencer().read(|state| {
                    let node = state.runtime.plan.nodes.get(&node);
                    node.map(|node| node.state)
                })
            };
            // Only the first time says anything.
            if state() == Some(NodeState::Enrolled) {
                self.say(node, RuntimeNotice::Confirm { node }).await?;
            }
            Ok(state().map_or_else(String::new, |state| state.to_string()))
        })
    }

    fn open(&self, node: NodeId, mut hello: v1::Hello) -> BoxFuture<'_, Result<Opened, DeskError>> {
        Box::pin(async move {
            if let Some(capacity) = hello.capacity.take() {
                self.capacity(node, capacity).await?;
            }
            let facts = hello.facts.take();
            if let Some(facts) = &facts {
                let said = RuntimeNotice::Facts {
                    node,
                    drivers: drivers(facts),
                    agent_version: facts.agent_version.chars().take(64).collect(),
                };
                self.say(node, said).await?;
            }
            let failed = facts.map(|facts| facts.failed_checks).unwrap_or_default();
            let unfit = text(&failed.join(", "), 200).unwrap_or_default();
            self.moved_here(node).await?;
            let reports_through = self.reports_through(node, &hello).await?;
            let ahead = hello.plan.filter(|held| {
                let at = self.platform.sequencer().read(position);
                held.epoch == at.epoch && held.is_above(at)
            });
            if ahead.is_some() {
                tracing::warn!(
                    %node,
                    "a node goes by a later state than this server has: if the \
                     database was restored, start a server with --restored"
                );
            }
            let mut here = self.here();
            let known = here.entry(node).or_default();
            known.goes_by = hello.plan;
            (known.held, known.unfit, known.clock_named) = (None, unfit, false);
            self.platform.sequencer().read(|state| {
                let (index, at) = (Index::of(state), position(state));
                known
                    .orders
                    .send_if_modified(|told| index.update(told, node, at));
            });
            Ok(Opened {
                reports_through,
                orders: known.orders.subscribe(),
            })
        })
    }

    fn execs(&self, node: NodeId) -> Vec<ExecSessionId> {
        self.platform.sequencer().read(|state| {
            let of_node = |instance: &InstanceId| {
                let instance = state.runtime.plan.instances.get(instance);
                instance.is_some_and(|it| it.node == node)
            };
            let all = state.runtime.execs.iter();
            let open =
                all.filter(|(_, it)| it.state == ExecState::Connected && of_node(&it.instance));
            open.map(|(id, _)| *id).collect()
        })
    }

    fn lost(&self, sessions: Vec<ExecSessionId>) -> BoxFuture<'_, Result<(), DeskError>> {
        Box::pin(async move {
            for session in sessions {
                let ended = RuntimeNotice::ExecEnded {
                    session,
                    end_reason: "client_disconnect".to_owned(),
                    exit_code: None,
                    bytes_in: 0,
                    bytes_out: 0,
                };
                let said = self.platform.notice("exec", None, Notice::Runtime(ended));
                said.await.map_err(|_| DeskError::Unavailable)?;
            }
            Ok(())
        })
    }

    fn heartbeat(&self, node: NodeId, heartbeat: v1::Heartbeat) {
        if let (Some(here), Some(_)) = (self.here().get_mut(&node), heartbeat.plan) {
            here.goes_by = heartbeat.plan;
        }
        let clock_off_ms = self.clock_off_ms(node, heartbeat.clock_ms);
        self.beat(node, |here| Beat {
            disk_percent: u8::try_from(heartbeat.disk_used_permille / 10).unwrap_or(100),
            unreachable: heartbeat.unreachable_peers.saturating_mul(2) > heartbeat.peers,
            acknowledged: here.is_up_to_date(),
            clock_off_ms,
            unfit: here.unfit.clone(),
            ..Beat::default()
        });
    }

    fn capacity(
        &self,
        node: NodeId,
        capacity: v1::Capacity,
    ) -> BoxFuture<'_, Result<(), DeskError>> {
        Box::pin(async move {
            // It only tips a balance: who is not heard places without it.
            let _ = self.vitals.keep_images(node, &capacity.cached_images).await;
            let said = RuntimeNotice::Capacity {
                node,
                cpu_cores: capacity.cpu_cores,
                memory_bytes: capacity.memory_bytes,
                disk_bytes: capacity.disk_bytes,
            };
            self.say(node, said).await.map(drop)
        })
    }

    fn report(
        &self,
        node: NodeId,
        batch: v1::StatusBatch,
    ) -> BoxFuture<'_, Result<u64, DeskError>> {
        Box::pin(self.take(node, batch))
    }

    fn plan_ack(&self, node: NodeId, ack: v1::PlanAck) {
        if !ack.held.is_empty() {
            tracing::warn!(%node, "a node keeps instances that its plan leaves out");
        }
        if let Some(here) = self.here().get_mut(&node) {
            here.goes_by = ack.plan;
            here.held = Some(text(&ack.held, 256).unwrap_or_default());
        }
    }

    fn rotate(&self, node: NodeId, fingerprint: Digest) -> BoxFuture<'_, Result<(), DeskError>> {
        Box::pin(async move {
            let fingerprint = fingerprint.to_string();
            let said = RuntimeNotice::CertificateRotated { node, fingerprint };
            self.say(node, said).await.map(drop)
        })
    }

    fn secret(
        &self,
        node: NodeId,
        request: v1::SecretMaterialRequest,
    ) -> BoxFuture<'_, Result<Zeroizing<Vec<u8>>, DeskError>> {
        Box::pin(async move {
            let missing = || refused("secrets_missing", "no such secrets are for this instance");
            let sealed = || {
                let why = "the server's master keys are not at hand";
                refused("secrets_key_unavailable", why)
            };
            // Nothing was asked of a safe that nobody can open: whoever waits
            // for its keys asks again and again, and none of it is history.
            if self.safe.is_sealed() {
                let none = self.safe.counted(Err(SafeError::Sealed));
                return none.map_err(|_| sealed());
            }
            let instance = request.instance_id.parse().map_err(|_| missing())?;
            let version = request.secret_version_id.parse().map_err(|_| missing())?;
            let fetched = RuntimeNotice::MaterialFetched {
                node,
                instance,
                generation: request.generation,
                version,
            };
            // Recorded either way, and before anything is opened.
            self.say(node, fetched).await?;
            let owner = self.platform.sequencer().read(|state| {
                let org = state.runtime.instances.get(&instance)?.org;
                let env = state.runtime.plan.instances.get(&instance)?.group.env;
                Some(SecretOwner { org, env, version })
            });
            let file = self.safe.expose(&owner.ok_or_else(missing)?).await;
            file.map_err(|error| {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "secrets could not be opened"
                );
                match error {
                    SafeError::Sealed | SafeError::Key(_) => sealed(),
                    SafeError::Open(_) => {
                        refused("integrity_failed", "the secrets are not what was sealed")
                    }
                    SafeError::Missing | SafeError::Aside(_) => DeskError::Unavailable,
                }
            })
        })
    }

    fn image_of(&self, node: NodeId, request: &v1::RegistryAccessRequest) -> Option<String> {
        let id: InstanceId = request.instance_id.parse().ok()?;
        self.platform.sequencer().read(|state| {
            let runtime = &state.runtime;
            let instance = runtime.plan.instances.get(&id)?;
            let record = runtime.instances.get(&id)?;
            let own = instance.node == node && record.generation == request.generation;
            let live = !instance.has_ended() && !runtime.plan.is_fenced(node);
            let release = runtime.releases.get(&record.release)?;
            (own && live).then(|| release.image_ref.clone())
        })
    }

    fn registry(
        &self,
        node: NodeId,
        request: v1::RegistryAccessRequest,
        registry: String,
    ) -> BoxFuture<'_, Result<(), DeskError>> {
        Box::pin(async move {
            let unknown = |_| refused("forbidden", "there is no such instance");
            let said = RuntimeNotice::RegistryAccessed {
                node,
                instance: request.instance_id.parse().map_err(unknown)?,
                generation: request.generation,
                registry,
            };
            self.say(node, said).await.map(drop)
        })
    }

    fn printer(&self, node: NodeId, instance: &str) -> Option<Printer> {
        let instance = instance.parse().ok()?;
        self.platform.sequencer().read(|state| {
            let runtime = &state.runtime;
            let instance = runtime.plan.instances.get(&instance);
            let group = &instance.filter(|it| it.node == node)?.group;
            let org = runtime.plan.envs.get(&group.env)?.org;
            Some(Printer {
                source: Arc::new(Source {
                    org,
                    env: group.env,
                    process: group.process.to_string(),
                }),
                daily: runtime.limit(org, Dimension::LogBytesPerDay),
            })
        })
    }

    fn table(&self) -> watch::Receiver<Arc<v1::RoutingTable>> {
        self.table.subscribe()
    }

    fn edge_ack(&self, edge: NodeId, ack: v1::EdgeAck) {
        if let Some(here) = self.here().get_mut(&edge) {
            here.acknowledge(ack);
        }
        self.edge_beat(edge, None);
    }

    fn edge_beat(&self, edge: NodeId, config: Option<v1::Position>) {
        if let (Some(here), Some(config)) = (self.here().get_mut(&edge), config) {
            here.goes_by = Some(config);
        }
        self.beat(edge, |here| Beat {
            acknowledged: true,
            routing: here.goes_by.map(|position| position.seq),
            problems: here.problems.clone(),
            loopback: here.loopback,
            ..Beat::default()
        });
    }
}

impl Here {
    /// Takes note of what an edge goes by.
    fn acknowledge(&mut self, ack: v1::EdgeAck) {
        if !ack.refused.is_empty() {
            return;
        }
        self.goes_by = ack.config;
        // An edge that lies makes itself heard no louder.
        let problems = ack.problems.into_iter().take(PROBLEMS);
        let short = |text: String| text.chars().take(64).collect();
        self.problems = problems
            .map(|it| (short(it.route_id), short(it.reason)))
            .collect();
        // Others wait for it: it is kept at once.
        self.beaten = None;
    }

    /// Whether the node goes by the newest plan that it was sent.
    fn is_up_to_date(&self) -> bool {
        let orders = self.orders.borrow();
        let newest = orders.plan.as_ref().map(v1::NodePlan::position);
        newest.is_none_or(|newest| self.goes_by.is_some_and(|held| !newest.is_above(held)))
    }
}
