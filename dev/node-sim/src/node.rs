//! One simulated node: its machine, its connection, and who controls it.
//!
//! The machine goes on whether there is a connection or not. What is said and
//! not acknowledged is said again; after a break it connects anew, a little
//! later each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use fluffy_api::node::dial::{Channel, dial};
use fluffy_api::node::join::{nodes, signing_request, streaming};
use fluffy_api::node::{MAX_REPORTS, PROTOCOL, v1};
use fluffy_base::id::BootId;
use rcgen::KeyPair;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tonic::Code;
use v1::node_message::Message as Said;
use v1::server_message::Message as Told;

use crate::behaviour::Behaviour;
use crate::home::{Credentials, Home};
use crate::machine::{Kept, Machine, SecretError};
use crate::shell::Shell;
use crate::task::Task;

/// How long until reports are sent again that were not acknowledged.
const AGAIN: Duration = Duration::from_secs(2);

/// The shortest and the longest pause before the next try to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How many log lines go in one batch.
const LINES: usize = 500;

/// What a node is, apart from what it does.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Host of the servers.
    pub host: String,
    /// Their ports; after a break the next one is tried.
    pub ports: Vec<u16>,
    /// What it can.
    pub facts: v1::Facts,
    /// What it has.
    pub capacity: v1::Capacity,
    /// How often it says that it is alive; as the server says, if not said.
    pub heartbeat: Option<Duration>,
}

/// What somebody wants of a node.
#[derive(Debug)]
pub enum Order {
    /// Say how you are.
    Status,
    /// Behave like this from now on.
    Behave(Behaviour),
    /// Let an instance crash.
    Crash(String),
    /// Print a line as an instance.
    Print(String, String),
    /// Lose the connection.
    Drop,
    /// Remember how everything is now.
    Remember,
    /// Be again as remembered: an old disk in an old machine.
    Back,
}

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its id.
    pub node_id: String,
    /// Whether it has a session.
    pub connected: bool,
    /// How often it had to connect.
    pub connections: u64,
    /// Why the last session ended.
    pub ended: String,
    /// The plan that it goes by, as epoch and number.
    pub plan: Option<(u64, u64)>,
    /// Reports that were not acknowledged.
    pub unacknowledged: usize,
    /// Where its instances stand.
    pub instances: BTreeMap<String, String>,
    /// How often each instance was started, since this process was.
    pub started: BTreeMap<String, u64>,
    /// Commands that it was told to run, and bytes that came for them.
    pub execs: (u64, u64),
}

/// The way to a node that runs.
#[derive(Debug, Clone)]
pub struct Handle(mpsc::Sender<(Order, oneshot::Sender<Status>)>);

impl Handle {
    /// Has a node do something, and says how it is then.
    ///
    /// # Errors
    /// It does not run any more.
    pub async fn order(&self, order: Order) -> Result<Status> {
        let (answer, answered) = oneshot::channel();
        self.0.send((order, answer)).await?;
        Ok(answered.await?)
    }
}

/// A simulated node.
#[derive(Debug)]
pub struct Node {
    setup: Setup,
    home: Home,
    credentials: Credentials,
    behaviour: Behaviour,
    machine: Machine,
    boot: BootId,
    remembered: Option<(Machine, BootId)>,
    kept: BTreeMap<String, Kept>,
    link: Link,
    /// Which connection is the current one; what comes from others is late.
    dials: u64,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    orders: mpsc::Receiver<(Order, oneshot::Sender<Status>)>,
    /// The key of a certificate that was asked for.
    next_key: Option<KeyPair>,
    connections: u64,
    ended: String,
    execs: Arc<Counts>,
}

/// What reached it of exec sessions.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) opened: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// Where the connection stands.
#[derive(Debug)]
enum Link {
    Down { until: Instant, pause: Duration },
    Dialling { _task: Task, pause: Duration },
    Up(Up),
}

#[derive(Debug)]
struct Up {
    _task: Task,
    said: mpsc::Sender<v1::NodeMessage>,
    lines: mpsc::Sender<v1::LogBatch>,
    channel: Channel,
    batches: u64,
    /// The last report that was sent, and when.
    sent: (u64, Instant),
    next_heartbeat: Instant,
    heartbeat: Duration,
}

/// What happens beside the machine.
#[derive(Debug)]
enum Event {
    /// Of the connection of this number.
    Link(u64, Heard),
    Secret(String, Result<(), SecretError>),
}

#[derive(Debug)]
enum Heard {
    Up(Box<Connected>),
    Told(Box<Told>),
    Ended(String),
}

#[derive(Debug)]
struct Connected {
    said: mpsc::Sender<v1::NodeMessage>,
    lines: mpsc::Sender<v1::LogBatch>,
    channel: Channel,
    welcome: v1::Welcome,
}

impl Node {
    /// A node with what its home keeps, and the way to it.
    ///
    /// # Errors
    /// What was kept cannot be read.
    pub fn new(
        setup: Setup,
        home: Home,
        credentials: Credentials,
        behaviour: Behaviour,
    ) -> Result<(Self, Handle)> {
        let (sender, orders) = mpsc::channel(16);
        let kept = home.instances()?;
        let machine = Machine::resume(home.plan()?, &kept, now_ms());
        let node = Self {
            setup,
            home,
            credentials,
            behaviour,
            machine,
            boot: BootId::generate(),
            remembered: None,
            kept,
            link: Link::Down {
                until: Instant::now(),
                pause: PAUSE.0,
            },
            dials: 0,
            events: mpsc::channel(64),
            orders,
            next_key: None,
            connections: 0,
            ended: String::new(),
            execs: Arc::default(),
        };
        Ok((node, Handle(sender)))
    }

    /// Runs until nobody holds its handle any more.
    ///
    /// # Errors
    /// Its home cannot be written.
    pub async fn run(mut self) -> Result<()> {
        loop {
            self.machine.advance(&self.behaviour, now_ms());
            self.keep()?;
            self.speak().await;
            let due = self.next_due();
            tokio::select! {
                order = self.orders.recv() => match order {
                    None => return Ok(()),
                    Some((order, answer)) => {
                        self.obey(order);
                        self.machine.advance(&self.behaviour, now_ms());
                        let _ = answer.send(self.status());
                    }
                },
                Some(event) = self.events.1.recv() => self.hear(event).await?,
                () = sleep_until(due) => {}
            }
        }
    }

    /// When there is something to do, if nothing happens before.
    fn next_due(&self) -> Instant {
        let now = Instant::now();
        let machine = self.machine.next_due(&self.behaviour).map(|due| {
            let wait = due.saturating_sub(now_ms());
            // A little later than due: milliseconds are cut off.
            now + Duration::from_millis(wait + 1)
        });
        let link = match &self.link {
            Link::Down { until, .. } if !self.behaviour.offline => Some(*until),
            Link::Up(up) => Some(up.next_heartbeat.min(up.sent.1 + AGAIN)),
            Link::Down { .. } | Link::Dialling { .. } => None,
        };
        let earliest = machine.into_iter().chain(link).min();
        earliest.unwrap_or(now + Duration::from_secs(60))
    }

    fn status(&self) -> Status {
        let plan = self.machine.plan().map(v1::NodePlan::position);
        Status {
            node_id: self.credentials.node_id.clone(),
            connected: matches!(self.link, Link::Up(_)),
            connections: self.connections,
            ended: self.ended.clone(),
            plan: plan.map(|plan| (plan.epoch, plan.seq)),
            unacknowledged: self.machine.reports_above(0, usize::MAX).len(),
            instances: self.machine.statuses(),
            started: self.machine.started().clone(),
            execs: (
                self.execs.opened.load(Ordering::Relaxed),
                self.execs.bytes.load(Ordering::Relaxed),
            ),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Status => {}
            Order::Behave(behaviour) => self.behaviour = behaviour,
            Order::Crash(instance) => {
                self.machine.crash(&instance, now_ms());
            }
            Order::Print(instance, text) => self.machine.print(&instance, &text, now_ms()),
            Order::Drop => self.disconnect("dropped", PAUSE.0),
            Order::Remember => self.remembered = Some((self.machine.clone(), self.boot)),
            Order::Back => {
                if let Some((machine, boot)) = self.remembered.clone() {
                    (self.machine, self.boot) = (machine, boot);
                    self.disconnect("went back", PAUSE.0);
                }
            }
        }
        if self.behaviour.offline && !matches!(self.link, Link::Down { .. }) {
            self.disconnect("offline", PAUSE.0);
        }
    }

    fn disconnect(&mut self, why: &str, pause: Duration) {
        self.dials += 1;
        self.ended = why.to_owned();
        self.link = Link::Down {
            until: Instant::now() + pause,
            pause: (pause * 2).min(PAUSE.1),
        };
    }

    fn keep(&mut self) -> Result<()> {
        let kept = self.machine.kept();
        if kept != self.kept {
            self.home.keep_instances(&kept)?;
            self.kept = kept;
        }
        Ok(())
    }

    /// Dials, or says what is to be said.
    async fn speak(&mut self) {
        match &self.link {
            Link::Down { until, pause } if *until <= Instant::now() && !self.behaviour.offline => {
                let pause = *pause;
                self.link = Link::Dialling {
                    _task: self.dial(),
                    pause,
                };
            }
            Link::Up(_) if !self.behaviour.silent => self.report().await,
            _ => {}
        }
    }

    /// Connects in the background; what comes of it is an event.
    fn dial(&self) -> Task {
        let link = (self.dials, self.events.0.clone());
        let turn = usize::try_from(self.dials).unwrap_or(0);
        let port = self
            .setup
            .ports
            .iter()
            .cycle()
            .nth(turn % self.setup.ports.len().max(1));
        let server = (self.setup.host.clone(), port.copied().unwrap_or_default());
        let credentials = self.credentials.clone();
        let hello = v1::Hello {
            node_id: credentials.node_id.clone(),
            protocol: PROTOCOL,
            boot_id: self.boot.to_string(),
            facts: Some(self.setup.facts.clone()),
            capacity: Some(self.setup.capacity.clone()),
            plan: self.machine.plan().map(v1::NodePlan::position),
            // It is one that knows of none.
            features: Vec::new(),
        };
        Task::of(async move {
            let ended = match connect(server, &credentials, hello, &link).await {
                Ok(()) => "the server ended it".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            let (number, events) = link;
            let _ = events.send(Event::Link(number, Heard::Ended(ended))).await;
        })
    }

    async fn hear(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Secret(instance, came) => self.machine.secret(&instance, came),
            Event::Link(number, _) if number != self.dials => {}
            Event::Link(_, Heard::Up(connected)) => self.connected(*connected),
            Event::Link(_, Heard::Told(told)) => self.told(*told).await?,
            Event::Link(_, Heard::Ended(why)) => {
                let pause = match &self.link {
                    Link::Up(_) => PAUSE.0,
                    Link::Down { pause, .. } | Link::Dialling { pause, .. } => *pause,
                };
                self.disconnect(&why, pause);
            }
        }
        Ok(())
    }

    fn connected(&mut self, connected: Connected) {
        let through = connected.welcome.reports_through;
        if through > self.machine.last_report() {
            // The server knows more of this boot than the node itself: it was
            // set back, and counts anew.
            self.boot = BootId::generate();
            self.machine.count_anew(now_ms());
            return self.disconnect("set back", PAUSE.0);
        }
        let Link::Dialling { .. } = &self.link else {
            return;
        };
        let before = std::mem::replace(
            &mut self.link,
            Link::Down {
                until: Instant::now(),
                pause: PAUSE.0,
            },
        );
        let Link::Dialling { _task, .. } = before else {
            return;
        };
        self.machine.acknowledged(through);
        self.connections += 1;
        let seconds = u64::from(connected.welcome.heartbeat_seconds).max(1);
        self.link = Link::Up(Up {
            _task,
            said: connected.said,
            lines: connected.lines,
            channel: connected.channel,
            batches: 0,
            sent: (through, Instant::now()),
            next_heartbeat: Instant::now(),
            heartbeat: self.setup.heartbeat.unwrap_or(Duration::from_secs(seconds)),
        });
    }

    async fn told(&mut self, told: Told) -> Result<()> {
        let now = now_ms();
        match told {
            Told::Welcome(_) => {}
            Told::Plan(plan) => {
                if self.machine.take_plan(plan, now)
                    && let Some(plan) = self.machine.plan()
                {
                    self.home.keep_plan(plan)?;
                }
                let ack = self.machine.plan_ack();
                self.say(Said::PlanAck(ack)).await;
            }
            Told::StatusAck(ack) if ack.boot_id == self.boot.to_string() => {
                self.machine.acknowledged(ack.through);
                if let Link::Up(up) = &mut self.link {
                    up.sent.0 = up.sent.0.max(ack.through);
                    up.sent.1 = Instant::now();
                }
            }
            Told::StatusAck(_) => {}
            Told::Job(job) => self.machine.take_job(&job, now),
            Told::ExecOpen(open) => self.exec(open).await,
            // It never said that it does any.
            Told::Errand(_) => {}
            Told::RenewCertificate(_) => {
                let key = KeyPair::generate()?;
                let csr = signing_request(&key)?;
                self.next_key = Some(key);
                let request = v1::CertificateRequest { csr };
                self.say(Said::CertificateRequest(request)).await;
            }
            Told::Certificate(certificate) => {
                if let Some(key) = self.next_key.take() {
                    let key = key.serialize_der();
                    self.credentials = self.credentials.renewed(&certificate, &key);
                    self.home.keep_credentials(&self.credentials)?;
                }
            }
        }
        Ok(())
    }

    async fn say(&self, said: Said) {
        if let Link::Up(up) = &self.link {
            let message = v1::NodeMessage {
                message: Some(said),
            };
            // When the link is gone, its end is the next event.
            let _ = up.said.send(message).await;
        }
    }

    /// Sends what is new: heartbeat, reports, lines, questions for secrets.
    async fn report(&mut self) {
        let plan = self.machine.plan().map(v1::NodePlan::position);
        let wanted = self.machine.wanted_secrets();
        let Link::Up(up) = &mut self.link else { return };
        let now = Instant::now();
        if up.next_heartbeat <= now {
            up.next_heartbeat = now + up.heartbeat;
            let heartbeat = v1::Heartbeat {
                clock_ms: now_ms(),
                disk_used_permille: self.behaviour.disk_used_permille,
                unreachable_peers: 0,
                peers: 0,
                plan,
            };
            let _ = up.said.send(message(Said::Heartbeat(heartbeat))).await;
        }
        if up.sent.1 + AGAIN <= now {
            up.sent = (0, now);
        }
        let mut reports = self.machine.reports_above(up.sent.0, MAX_REPORTS);
        if let Some(last) = reports.last() {
            up.sent = (last.number, now);
            if self.behaviour.reorder {
                reports.reverse();
            }
            let batch = v1::StatusBatch {
                boot_id: self.boot.to_string(),
                reports,
            };
            for _ in 0..=usize::from(self.behaviour.twice) {
                let again = message(Said::Status(batch.clone()));
                let _ = up.said.send(again).await;
            }
        }
        let entries = self.machine.take_lines(LINES);
        if !entries.is_empty() {
            up.batches += 1;
            let batch = v1::LogBatch {
                node_id: self.credentials.node_id.clone(),
                number: up.batches,
                entries,
            };
            let _ = up.lines.send(batch).await;
        }
        for request in wanted {
            let request = v1::SecretMaterialRequest {
                node_id: self.credentials.node_id.clone(),
                ..request
            };
            let (channel, events) = (up.channel.clone(), self.events.0.clone());
            tokio::spawn(fetch_secret(channel, request, events));
        }
    }

    /// Runs a command of an exec session on a stream of its own.
    async fn exec(&self, open: v1::ExecOpen) {
        let Link::Up(up) = &self.link else { return };
        // One that is to run nothing is over; its stream says so, too.
        if open.command.is_empty() {
            return;
        }
        self.execs.opened.fetch_add(1, Ordering::Relaxed);
        if !self.machine.is_up(&open.instance_id) {
            let refused = v1::ExecRefused {
                session_id: open.session_id,
                code: "instance_not_running".to_owned(),
            };
            return self.say(Said::ExecRefused(refused)).await;
        }
        let attach = v1::ExecAttach {
            node_id: self.credentials.node_id.clone(),
            session_id: open.session_id.clone(),
        };
        let (mut client, counts) = (nodes(&up.channel), Arc::clone(&self.execs));
        let pause = Duration::from_millis(self.behaviour.attach_ms);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let (output, frames) = mpsc::channel(2);
            let attach = v1::ExecFromNode {
                frame: Some(v1::exec_from_node::Frame::Attach(attach)),
            };
            if output.send(attach).await.is_ok()
                && let Ok(input) = client.exec_attach(streaming(frames)).await
            {
                Shell::run(open, output, input.into_inner(), counts).await;
            }
        });
    }
}

fn message(said: Said) -> v1::NodeMessage {
    v1::NodeMessage {
        message: Some(said),
    }
}

/// Connects, confirms, and hands on what the server says until it ends.
async fn connect(
    (host, port): (String, u16),
    credentials: &Credentials,
    hello: v1::Hello,
    (number, events): &(u64, mpsc::Sender<Event>),
) -> Result<()> {
    let (trust, identity) = (credentials.trust()?, credentials.identity()?);
    let channel = dial((&host, port), &trust, Some(&identity)).await?;
    let mut client = nodes(&channel);
    let confirm = v1::ConfirmRequest {
        node_id: credentials.node_id.clone(),
    };
    client.confirm(confirm).await?;
    let (said, messages) = mpsc::channel(16);
    said.send(message(Said::Hello(hello))).await?;
    let mut told = client.session(streaming(messages)).await?.into_inner();
    let (lines, batches) = mpsc::channel(4);
    let mut logs = client.clone();
    let _logs = Task::of(async move {
        if let Ok(acks) = logs.push_logs(streaming(batches)).await {
            let mut acks = acks.into_inner();
            while let Ok(Some(_)) = acks.message().await {}
        }
    });
    while let Some(message) = told.message().await? {
        let heard = match message.message {
            Some(Told::Welcome(welcome)) => Heard::Up(Box::new(Connected {
                said: said.clone(),
                lines: lines.clone(),
                channel: channel.clone(),
                welcome,
            })),
            Some(told) => Heard::Told(Box::new(told)),
            None => continue,
        };
        events.send(Event::Link(*number, heard)).await?;
    }
    Ok(())
}

async fn fetch_secret(
    channel: Channel,
    request: v1::SecretMaterialRequest,
    events: mpsc::Sender<Event>,
) {
    let instance = request.instance_id.clone();
    let came = match nodes(&channel).get_secret_material(request).await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::PermissionDenied => Err(SecretError::Refused),
        Err(_) => {
            tokio::time::sleep(PAUSE.0).await;
            Err(SecretError::Unreachable)
        }
    };
    let _ = events.send(Event::Secret(instance, came)).await;
}

/// The time in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
