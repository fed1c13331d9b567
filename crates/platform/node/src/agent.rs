//! The agent of one node: its plan, its session, its instances.
//!
//! One task holds the connection and what is said on it; each instance is a
//! task of its own. Losing the server changes nothing that runs: the plan that
//! was kept rules until a newer one comes. What was reported is repeated until
//! it is acknowledged; after a restart everything is said anew.

mod handle;
mod pending;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::join::signing_request;
use fluffy_api::node::{PROTOCOL, feature, v1};
use fluffy_planner::reason::FailureReason;
use rcgen::KeyPair;
use rustix::fs::{FlockOperation, flock};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use v1::node_message::Message as Said;
use v1::server_message::Message as Told;

use handle::Order;
pub use handle::{Handle, RunError, Settings, Status};
use pending::{Reports, Unwritten};

use crate::audit::UID_BASE;
use crate::driver::InstanceDriver;
use crate::guard::{self, When};
use crate::home::{Credentials, private};
use crate::images::Images;
use crate::instance::{self, Ask, Context, MAILBOX, Orders, Says};
use crate::metrics::{self, Metrics, OtherFigures};
use crate::otlp;
use crate::session::{self, Backoff, Heard, SessionError, Task};
use crate::store::{Kept, Store, StoreError};
use crate::supervise::keep_up;
use crate::{facts, now_ms, ship, upkeep};

/// How long until reports are sent again that were not acknowledged.
const AGAIN: Duration = Duration::from_secs(5);

/// The most reports that wait; more, and only where things stand is said.
const MAX_WAITING: usize = 10_000;

/// How long what nobody owns is left alone.
const SWEEP: Duration = Duration::from_secs(30);

/// How long an instance may take to end when the node does: the longest grace
/// there is, and a little.
const HALT: Duration = Duration::from_secs(330);

/// More instances than a node ever has at once.
const UNKNOWN_SLOTS: u32 = 4_096;

/// The agent of a node.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    context: Arc<Context>,
    credentials: Credentials,
    plan: Option<v1::NodePlan>,
    /// Why parts of the plan are not followed.
    held: String,
    instances: BTreeMap<String, Actor>,
    /// Those of the plan of which nothing is left, as this agent reported.
    collected: BTreeSet<String>,
    unwritten: Unwritten,
    reports: Reports,
    link: Link,
    dials: u64,
    backoff: Backoff,
    ended: String,
    /// The key of a certificate that was asked for.
    next_key: Option<KeyPair>,
    channel: watch::Sender<Option<Channel>>,
    plans: watch::Sender<Option<v1::NodePlan>>,
    heard: (mpsc::Sender<FromDial>, mpsc::Receiver<FromDial>),
    says: mpsc::Receiver<Says>,
    orders: mpsc::Receiver<Order>,
    metrics_at: Option<SocketAddr>,
    /// The images that need not be fetched.
    images_here: watch::Receiver<Vec<String>>,
    sweep: Option<Instant>,
    _tasks: Vec<Task>,
    /// Held as long as the agent is there.
    _lock: File,
}

/// What was heard, and on which connection.
type FromDial = (u64, Heard);

#[derive(Debug)]
struct Actor {
    orders: watch::Sender<Orders>,
    asks: mpsc::Sender<Ask>,
    task: JoinHandle<()>,
    latest: Option<v1::InstanceReport>,
    /// Nobody knows it of one whose row is damaged.
    slot: Option<u32>,
    /// Why its task keeps failing, if it does.
    degraded: Option<String>,
}

/// Where the connection stands.
#[derive(Debug)]
enum Link {
    Down { until: Instant },
    Dialling { _task: Task },
    Up(Up),
}

#[derive(Debug)]
struct Up {
    _task: Task,
    said: mpsc::Sender<v1::NodeMessage>,
    /// The last report that was sent, and when.
    sent: (u64, Instant),
    next_heartbeat: Instant,
    heartbeat: Duration,
}

impl Agent {
    /// Opens a node's folder; nothing runs before [`Agent::run`].
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn open(
        settings: Settings,
        credentials: Credentials,
        drivers: Vec<Arc<dyn InstanceDriver>>,
        images: Images,
    ) -> Result<(Self, Handle), RunError> {
        let folder = |path: &Path| {
            private(path).map_err(|source| RunError::Folder {
                path: path.to_owned(),
                source,
            })
        };
        folder(&settings.folder)?;
        folder(&settings.folder.join("instances"))?;
        folder(&settings.run)?;
        let lock = claim(&settings.folder)?;
        let store = Store::open(&settings.folder.join("state.db"))?;
        let spool = settings.folder.join("spool");
        let (says, said) = mpsc::channel(256);
        let (channel, channels) = watch::channel(None);
        let figures = Arc::new(Metrics::default());
        let shipping = ship::start(
            credentials.node_id.clone(),
            spool.clone(),
            channels.clone(),
            Arc::clone(&figures),
        );
        let (lines, shipping) = shipping.map_err(|source| RunError::Folder {
            path: spool,
            source,
        })?;
        let mut tasks = vec![shipping];
        let mut metrics_at = None;
        if let Some(address) = settings.metrics {
            let listener = metrics::listen(address).await;
            let listener = listener.map_err(|source| RunError::Metrics { address, source })?;
            metrics_at = listener.local_addr().ok();
            let served = (Arc::clone(&figures), settings.other_figures.clone());
            tasks.push(serving(served, address, listener));
        }
        if let Some(collector) = settings.collector.clone() {
            let (node, metrics) = (credentials.node_id.clone(), Arc::clone(&figures));
            tasks.push(keep_up("otlp", Arc::clone(&figures), move || {
                otlp::push(Arc::clone(&metrics), collector.clone(), node.clone())
            }));
        }
        // Before anything starts or is found again.
        guard::look(&drivers, &figures, When::First).await;
        let (stock, images_here) = watch::channel(Vec::new());
        let (house, tidy) = (settings.folder.clone(), Arc::clone(&images.tidy));
        let kept = upkeep::keep(house, tidy, Arc::clone(&figures), stock);
        tasks.push(Task::of(kept));
        let watched = (drivers.clone(), Arc::clone(&figures));
        tasks.push(Task::of(guard::watch(watched.0, watched.1)));
        let context = Arc::new(Context {
            node_id: credentials.node_id.clone(),
            folder: settings.folder.clone(),
            run: settings.run.clone(),
            region: settings.region.clone(),
            uid_base: UID_BASE,
            host_boot: host_boot(),
            store,
            drivers,
            images,
            says,
            channel: channels,
            lines,
            metrics: figures,
        });
        let (sender, orders) = mpsc::channel(MAILBOX);
        let mut agent = Self {
            plan: context.store.plan()?,
            settings,
            context,
            credentials,
            held: String::new(),
            instances: BTreeMap::new(),
            collected: BTreeSet::new(),
            unwritten: Unwritten::default(),
            reports: Reports::new(),
            link: Link::Down {
                until: Instant::now(),
            },
            dials: 0,
            backoff: Backoff::default(),
            ended: String::new(),
            next_key: None,
            channel,
            plans: watch::Sender::new(None),
            heard: mpsc::channel(64),
            says: said,
            orders,
            metrics_at,
            images_here,
            sweep: Some(Instant::now() + SWEEP),
            _tasks: tasks,
            _lock: lock,
        };
        for (id, kept) in agent.context.store.instances()? {
            match kept {
                Ok(kept) => agent.resume(id, &kept),
                Err(error) => agent.resume_unread(id, &error),
            }
        }
        if let Some(plan) = agent.plan.clone() {
            agent.follow(&plan);
        }
        Ok((agent, Handle(sender)))
    }

    /// Runs until it is told to end. What the disk does not take is tried
    /// again; nothing that runs ends for it.
    pub async fn run(mut self) {
        let mut plans = self.plans.subscribe();
        let mut here = self.images_here.clone();
        loop {
            self.speak();
            let due = self.next_due();
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(Order::Status(answer)) => {
                        let _ = answer.send(self.status());
                    }
                    Some(Order::End { instances }) => {
                        return self.end(instances).await;
                    }
                    None => return self.end(false).await,
                },
                Some((number, heard)) = self.heard.1.recv() => {
                    if number == self.dials {
                        self.hear(heard).await;
                    }
                }
                Ok(()) = plans.changed() => {
                    let plan = plans.borrow_and_update().clone();
                    if let Some(plan) = plan {
                        self.take_plan(plan);
                    }
                }
                Ok(()) = here.changed() => {
                    here.mark_unchanged();
                    let capacity = self.capacity();
                    self.say(Said::Capacity(capacity));
                }
                Some(says) = self.says.recv() => self.heard_of(says),
                () = sleep_until(due) => {
                    self.write_again();
                    self.sweep_due().await;
                }
            }
        }
    }

    fn next_due(&self) -> Instant {
        let link = match &self.link {
            Link::Down { until } => Some(*until),
            Link::Up(up) => Some(up.next_heartbeat.min(up.sent.1 + AGAIN)),
            Link::Dialling { .. } => None,
        };
        let others = self.sweep.into_iter().chain(self.unwritten.again);
        let earliest = link.into_iter().chain(others).min();
        earliest.unwrap_or_else(|| Instant::now() + Duration::from_secs(60))
    }

    fn status(&self) -> Status {
        let plan = self.plan.as_ref().map(v1::NodePlan::position);
        let word = |report: &v1::InstanceReport| {
            let name = report.status().as_str_name();
            name.trim_start_matches("INSTANCE_STATUS_").to_lowercase()
        };
        let instances = self.instances.iter().map(|(id, actor)| {
            let word = match &actor.degraded {
                Some(_) => "degraded".to_owned(),
                None => actor.latest.as_ref().map_or_else(String::new, word),
            };
            (id.clone(), word)
        });
        Status {
            node_id: self.credentials.node_id.clone(),
            connected: matches!(self.link, Link::Up(_)),
            ended: self.ended.clone(),
            plan: plan.map(|plan| (plan.epoch, plan.seq)),
            unacknowledged: self.reports.waiting.len(),
            instances: instances.collect(),
            metrics: self.metrics_at,
            unwritten: self.unwritten.why.clone(),
        }
    }

    /// Goes on with an instance that there is something of.
    fn resume(&mut self, id: String, kept: &Kept) {
        let latest = instance::report(&id, kept);
        if let Some(report) = latest.clone() {
            self.reports.add(report, instance::reported_at(kept));
        }
        let orders = Orders {
            assignment: kept.assignment.clone(),
            planned: kept.planned,
        };
        self.begin(id, orders, Some(kept.slot), latest);
    }

    /// Goes on with one whose row is damaged: what runs of it is left alone
    /// until the plan does not want it any more.
    fn resume_unread(&mut self, id: String, error: &StoreError) {
        let why = error as &dyn std::error::Error;
        tracing::error!(instance = id, why, "its state cannot be read");
        let mut planned = self.plan.iter().flat_map(|plan| &plan.instances);
        let assignment = planned.find(|it| it.instance_id == id).cloned();
        let orders = Orders {
            planned: assignment.is_some(),
            assignment: assignment.unwrap_or_default(),
        };
        self.begin(id, orders, None, None);
    }

    fn begin(
        &mut self,
        id: String,
        orders: Orders,
        slot: Option<u32>,
        latest: Option<v1::InstanceReport>,
    ) {
        let orders = watch::Sender::new(orders);
        let (asks, questions) = mpsc::channel(MAILBOX);
        let context = Arc::clone(&self.context);
        let task = instance::spawn(context, id.clone(), orders.subscribe(), questions);
        let actor = Actor {
            orders,
            asks,
            task,
            latest,
            slot,
            degraded: None,
        };
        self.instances.insert(id, actor);
    }

    /// Takes a plan, unless it is not above the one that is here.
    fn take_plan(&mut self, plan: v1::NodePlan) {
        let current = self.plan.as_ref().map(v1::NodePlan::position);
        let newer = current.is_none_or(|current| plan.position().is_above(current));
        if newer && plan.node_id == self.credentials.node_id {
            // Kept before it is used.
            match self.context.store.keep_plan(&plan) {
                Ok(()) => {
                    self.follow(&plan);
                    let metrics = &self.context.metrics;
                    metrics.set("agent_plan_seq", "", plan.cursor_seq);
                    self.plan = Some(plan);
                    self.unwritten.plan = None;
                    self.unwritten.settle();
                }
                Err(error) => {
                    self.unwritten.failed(&error);
                    self.unwritten.plan = Some(plan);
                }
            }
        }
        self.acknowledge();
    }

    /// Says which plan it goes by, and what of it it holds back.
    fn acknowledge(&mut self) {
        let ack = v1::PlanAck {
            plan: self.plan.as_ref().map(v1::NodePlan::position),
            held: self.held.clone(),
        };
        self.say(Said::PlanAck(ack));
    }

    /// Tries again what the disk did not take, if it is time.
    fn write_again(&mut self) {
        let due = self.unwritten.again.take_if(|at| *at <= Instant::now());
        if due.is_none() {
            return;
        }
        if self.unwritten.credentials {
            self.keep_credentials();
        }
        if let Some(plan) = self.unwritten.plan.take() {
            self.take_plan(plan);
        } else if self.unwritten.instances
            && let Some(plan) = self.plan.clone()
        {
            self.follow(&plan);
        }
        self.unwritten.settle();
    }

    /// Until they are on the disk, a start of the agent uses those of before,
    /// which the server takes as well.
    fn keep_credentials(&mut self) {
        match self.credentials.keep(&self.settings.folder) {
            Ok(()) => self.unwritten.credentials = false,
            Err(error) => {
                self.unwritten.credentials = true;
                self.unwritten.failed(&error);
            }
        }
    }

    /// Gives every instance what the plan says of it.
    fn follow(&mut self, plan: &v1::NodePlan) {
        let planned: BTreeMap<&str, &v1::Assignment> = plan
            .instances
            .iter()
            .map(|assignment| (assignment.instance_id.as_str(), assignment))
            .collect();
        // One that an earlier plan left out is on its way already.
        let counts = |actor: &Actor| actor.orders.borrow().planned;
        let live = self.instances.values().filter(|it| counts(it)).count();
        let out =
            |(id, actor): &(&String, &Actor)| !planned.contains_key(id.as_str()) && counts(actor);
        let gone = self.instances.iter().filter(out).count();
        let brake = gone > 3 && gone * 2 > live && !plan.confirm_shrink;
        self.held = match brake {
            true => format!("the plan leaves out {gone} of {live} instances"),
            false => String::new(),
        };
        if brake {
            tracing::warn!(
                gone,
                live,
                "a plan is held: it leaves out too many instances"
            );
        }
        for (id, actor) in &self.instances {
            let found = planned.get(id.as_str());
            actor.orders.send_if_modified(|orders| {
                let mut new = orders.clone();
                match found {
                    Some(assignment) => {
                        new.assignment = (*assignment).clone();
                        new.planned = true;
                    }
                    None => new.planned &= brake,
                }
                let changed = new != *orders;
                *orders = new;
                changed
            });
        }
        self.collected
            .retain(|id| planned.contains_key(id.as_str()));
        self.unwritten.instances = false;
        for (id, assignment) in planned {
            // One that shall be stopped and is not known was collected by an
            // agent whose last report may be lost: it walks there once more.
            let stopped = assignment.desired_state() == v1::DesiredState::Stopped;
            let reported = stopped && self.collected.contains(id);
            if reported || self.instances.contains_key(id) || !is_id(id) {
                continue;
            }
            let slot = self.free_slot();
            let kept = Kept {
                assignment: assignment.clone(),
                planned: true,
                slot,
                ..Kept::default()
            };
            if let Err(error) = self.context.store.keep_instance(id, &kept) {
                self.unwritten.instances = true;
                self.unwritten.failed(&error);
                continue;
            }
            let orders = Orders {
                assignment: kept.assignment,
                planned: true,
            };
            self.begin(id.to_owned(), orders, Some(slot), None);
        }
    }

    /// The first range of user ids that no instance has.
    fn free_slot(&self) -> u32 {
        let slots = self.instances.values().filter_map(|actor| actor.slot);
        let used: BTreeSet<u32> = slots.collect();
        // Slots are given from below: one that nobody knows any more is not
        // this far above those that are known.
        let unknown = self.instances.values().any(|actor| actor.slot.is_none());
        let first = match unknown {
            true => used.last().map_or(0, |last| last + 1).max(UNKNOWN_SLOTS),
            false => 0,
        };
        (first..).find(|slot| !used.contains(slot)).unwrap_or(0)
    }

    fn heard_of(&mut self, says: Says) {
        match says {
            Says::Report(report, at_ms) => {
                if let Some(actor) = self.instances.get_mut(&report.instance_id) {
                    actor.latest = Some((*report).clone());
                    actor.degraded = None;
                }
                self.reported(*report, at_ms);
            }
            Says::Degraded(id, why) => self.degraded(&id, why),
            Says::Refused(refused) => self.say(Said::ExecRefused(refused)),
            Says::Done(done) => self.say(Said::ErrandDone(*done)),
            Says::Gone(id) => {
                self.instances.remove(&id);
                self.collected.insert(id.clone());
                // The same id may be wanted again, as a new one.
                if let Some(plan) = self.plan.clone() {
                    let wanted = plan.instances.iter().any(|it| {
                        it.instance_id == id && it.desired_state() == v1::DesiredState::Running
                    });
                    // And with one less, what was held may be so no more.
                    let held = !self.held.is_empty();
                    if wanted || held {
                        self.follow(&plan);
                    }
                    if held {
                        self.acknowledge();
                    }
                }
            }
        }
        self.count_instances();
    }

    fn reported(&mut self, report: v1::InstanceReport, at_ms: u64) {
        self.reports.add(report, at_ms);
        if self.reports.waiting.len() > MAX_WAITING {
            self.count_anew();
            self.disconnect("too many reports wait", Duration::ZERO);
        }
    }

    /// An instance's task failed too often: what runs of it goes on, and
    /// nobody looks after it until the plan says something new.
    fn degraded(&mut self, id: &str, why: String) {
        let Some(actor) = self.instances.get_mut(id) else {
            return;
        };
        let assignment = actor.orders.borrow().assignment.clone();
        let report = v1::InstanceReport {
            reason_code: FailureReason::Degraded.to_string(),
            reason_detail: why.clone(),
            ..actor.latest.clone().unwrap_or_else(|| v1::InstanceReport {
                instance_id: id.to_owned(),
                assignment_id: assignment.assignment_id,
                generation: assignment.generation,
                // How it is nobody can say; it is not looked after.
                status: v1::InstanceStatus::Failed.into(),
                ..Default::default()
            })
        };
        actor.degraded = Some(why);
        self.reported(report, now_ms());
    }

    fn count_instances(&self) {
        let all = [
            ("preparing", v1::InstanceStatus::Preparing),
            ("booting", v1::InstanceStatus::Booting),
            ("ready", v1::InstanceStatus::Ready),
            ("unhealthy", v1::InstanceStatus::Unhealthy),
            ("failed", v1::InstanceStatus::Failed),
            ("draining", v1::InstanceStatus::Draining),
        ];
        for (word, status) in all {
            let latest = self.instances.values().filter_map(|it| it.latest.as_ref());
            let count = latest.filter(|report| report.status() == status).count();
            let metrics = &self.context.metrics;
            metrics.set("agent_instances", word, count as u64);
        }
    }

    /// Starts numbering anew, with where everything stands.
    fn count_anew(&mut self) {
        self.reports = Reports::new();
        let latest: Vec<v1::InstanceReport> = self
            .instances
            .values()
            .filter_map(|actor| actor.latest.clone())
            .collect();
        for report in latest {
            self.reports.add(report, now_ms());
        }
        // What was collected is said anew as well.
        self.collected.clear();
        if let Some(plan) = self.plan.clone() {
            self.follow(&plan);
        }
    }

    async fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Up(up) => self.connected(*up),
            Heard::Told(told) => self.told(*told).await,
            Heard::Ended(why) => self.cut_off(&why),
        }
    }

    fn cut_off(&mut self, why: &SessionError) {
        let pause = self.backoff.next();
        let code = why.code().unwrap_or_default();
        let text = match std::error::Error::source(why) {
            Some(source) => format!("{why}: {source}"),
            None => why.to_string(),
        };
        tracing::warn!(code, why = text, "no session with the server");
        self.disconnect(&text, pause);
    }

    fn disconnect(&mut self, why: &str, pause: Duration) {
        self.dials += 1;
        self.ended = why.to_owned();
        self.channel.send_replace(None);
        self.link = Link::Down {
            until: Instant::now() + pause,
        };
    }

    fn connected(&mut self, up: session::Up) {
        let through = up.welcome.reports_through;
        if through > self.reports.last {
            // The server knows more of this boot than the node itself: one of
            // them was set back.
            self.count_anew();
            return self.disconnect("set back", Duration::ZERO);
        }
        let before = std::mem::replace(
            &mut self.link,
            Link::Down {
                until: Instant::now(),
            },
        );
        let Link::Dialling { _task } = before else {
            return;
        };
        self.reports.acknowledged(through);
        self.backoff.reset();
        self.ended = String::new();
        self.context.metrics.count("agent_reconnects_total", "");
        self.context.metrics.server_clock(up.welcome.clock_ms);
        self.channel.send_replace(Some(up.channel));
        let seconds = u64::from(up.welcome.heartbeat_seconds).clamp(1, 60);
        self.link = Link::Up(Up {
            _task,
            said: up.said,
            sent: (through, Instant::now()),
            next_heartbeat: Instant::now(),
            heartbeat: Duration::from_secs(seconds),
        });
        // A plan that it has already is not sent again.
        if self.plan.is_some() {
            self.acknowledge();
        }
    }

    async fn told(&mut self, told: Told) {
        match told {
            Told::Welcome(_) | Told::Plan(_) => {}
            Told::StatusAck(ack) if ack.boot_id == self.reports.boot.to_string() => {
                self.reports.acknowledged(ack.through);
                if let Link::Up(up) = &mut self.link {
                    up.sent.0 = up.sent.0.max(ack.through);
                    up.sent.1 = Instant::now();
                }
            }
            Told::StatusAck(_) => {}
            Told::Job(job) => tracing::warn!(job = job.job_id, "this node keeps no volumes"),
            Told::ExecOpen(open) => self.exec(open).await,
            Told::Errand(errand) => self.errand(errand),
            Told::RenewCertificate(_) => {
                let made = KeyPair::generate().ok();
                let request = made.and_then(|key| Some((signing_request(&key).ok()?, key)));
                if let Some((csr, key)) = request {
                    self.next_key = Some(key);
                    self.say(Said::CertificateRequest(v1::CertificateRequest { csr }));
                }
            }
            Told::Certificate(certificate) => {
                if let Some(key) = self.next_key.take() {
                    let key = key.serialize_der();
                    self.credentials = self.credentials.renewed(&certificate, &key);
                    self.keep_credentials();
                }
            }
        }
    }

    async fn exec(&mut self, open: v1::ExecOpen) {
        let session_id = open.session_id.clone();
        let channel = self.channel.borrow().clone();
        let actor = self.instances.get(&open.instance_id);
        if let (Some(actor), Some(channel)) = (actor, channel) {
            let ask = Ask::Exec(Box::new(open), channel);
            if actor.asks.try_send(ask).is_ok() {
                return;
            }
        }
        self.say(Said::ExecRefused(v1::ExecRefused {
            session_id,
            code: "instance_not_running".to_owned(),
        }));
    }

    fn errand(&mut self, errand: v1::Errand) {
        let errand_id = errand.errand_id.clone();
        if let Some(actor) = self.instances.get(&errand.instance_id)
            && actor.asks.try_send(Ask::Errand(errand)).is_ok()
        {
            return;
        }
        self.say(Said::ErrandDone(v1::ErrandDone {
            errand_id,
            refused: "instance_not_running".to_owned(),
            diagnosis: None,
        }));
    }

    /// Dials, or says what is to be said.
    fn speak(&mut self) {
        match &self.link {
            Link::Down { until } if *until <= Instant::now() => self.dial(),
            Link::Up(_) => self.report(),
            Link::Down { .. } | Link::Dialling { .. } => {}
        }
    }

    fn dial(&mut self) {
        let hello = v1::Hello {
            node_id: self.credentials.node_id.clone(),
            protocol: PROTOCOL,
            boot_id: self.reports.boot.to_string(),
            facts: None,
            capacity: Some(self.capacity()),
            plan: self.plan.as_ref().map(v1::NodePlan::position),
            features: feature::ALL.iter().map(|one| (*one).to_owned()).collect(),
        };
        let task = session::open(
            self.dials,
            self.credentials.clone(),
            (
                hello,
                facts::examined(self.settings.folder.clone(), self.context.drivers.clone()),
            ),
            self.plans.clone(),
            self.heard.0.clone(),
        );
        self.link = Link::Dialling { _task: task };
    }

    fn capacity(&self) -> v1::Capacity {
        let images = self.images_here.borrow().clone();
        facts::capacity(&self.settings.folder, images)
    }

    /// Says something if there is room; what must arrive is said again.
    fn say(&mut self, said: Said) {
        if let Link::Up(up) = &self.link {
            let message = v1::NodeMessage {
                message: Some(said),
            };
            let _ = up.said.try_send(message);
        }
    }

    /// Sends what is new: a sign of life, reports.
    fn report(&mut self) {
        let plan = self.plan.as_ref().map(v1::NodePlan::position);
        let Link::Up(up) = &mut self.link else { return };
        let now = Instant::now();
        let message = |said| v1::NodeMessage {
            message: Some(said),
        };
        if up.next_heartbeat <= now {
            up.next_heartbeat = now + up.heartbeat;
            let heartbeat = v1::Heartbeat {
                clock_ms: now_ms(),
                disk_used_permille: facts::disk_used_permille(&self.settings.folder),
                unreachable_peers: 0,
                peers: 0,
                plan,
            };
            let sent = up.said.try_send(message(Said::Heartbeat(heartbeat)));
            let result = if sent.is_ok() { "sent" } else { "refused" };
            self.context.metrics.count("agent_heartbeats_total", result);
        }
        if up.sent.1 + AGAIN <= now {
            up.sent = (0, now);
        }
        let reports = self.reports.above(up.sent.0);
        if let Some(last) = reports.last() {
            let number = last.number;
            let batch = v1::StatusBatch {
                boot_id: self.reports.boot.to_string(),
                reports,
            };
            if up.said.try_send(message(Said::Status(batch))).is_ok() {
                up.sent = (number, now);
            }
        }
    }

    /// Removes what nobody owns, once.
    async fn sweep_due(&mut self) {
        if self.sweep.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.sweep = None;
        let known: Vec<String> = self.instances.keys().cloned().collect();
        for driver in &self.context.drivers {
            for found in driver.sweep(&known).await {
                tracing::warn!(found, "nobody owned it");
            }
        }
        let folder = self.settings.folder.join("instances");
        let Ok(entries) = fs::read_dir(&folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !known.iter().any(|id| name.to_str() == Some(id)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Ends the agent; its instances go on, unless they are to end as well.
    async fn end(&mut self, instances: bool) {
        let mut endings = Vec::new();
        for actor in self.instances.values() {
            let (done, is_done) = oneshot::channel();
            if instances && actor.asks.send(Ask::Halt(done)).await.is_ok() {
                endings.push(is_done);
            }
        }
        let ended = async {
            for ending in endings {
                // One whose task keeps failing never answers.
                let _ = timeout(HALT, ending).await;
            }
        };
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = &mut ended => break,
                // What they still say is said by the next agent.
                Some(_) = self.says.recv() => {}
            }
        }
        for actor in self.instances.values() {
            actor.task.abort();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for actor in self.instances.values() {
            actor.task.abort();
        }
    }
}

/// Serves figures, at the same place again if that fails.
fn serving(
    (metrics, others): (Arc<Metrics>, Option<OtherFigures>),
    address: SocketAddr,
    listener: TcpListener,
) -> Task {
    // Where it is, even if any port was right.
    let address = listener.local_addr().unwrap_or(address);
    let (mut listener, figures) = (Some(listener), Arc::clone(&metrics));
    keep_up("metrics", metrics, move || {
        let (first, figures) = (listener.take(), Arc::clone(&figures));
        let others = others.clone();
        async move {
            let listener = match first {
                Some(listener) => Ok(listener),
                None => metrics::listen(address).await,
            };
            match listener {
                Ok(listener) => metrics::serve(figures, others, listener).await,
                Err(error) => tracing::error!(%error, "figures cannot be served"),
            }
        }
    })
}

/// Keeps every agent from a node's folder, as long as the file is there.
///
/// # Errors
/// One uses it, or there is none.
pub fn claim(folder: &Path) -> Result<File, RunError> {
    let path = folder.join("agent.lock");
    let opened = File::options().create(true).append(true).open(&path);
    let file = opened.map_err(|source| RunError::Folder { path, source })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(RunError::Taken(folder.to_owned())),
    }
}

/// Ids are names of folders and cgroups.
fn is_id(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !id.is_empty() && id.len() <= 64 && id.bytes().all(plain)
}

/// Which start of the host this is.
fn host_boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}
