//! One instance: a task that owns its state and everything done to it.
//!
//! What it does next is [`decide`]'s to say; here it is done, written down, and
//! only then reported. Work that takes long runs beside it and comes back as an
//! [`Inner`] of the boot that it was for; what comes too late is ignored. A
//! task that fails is started again from what was written down.

mod ending;
mod errand;
mod link;
mod start;
mod supervise;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::v1;
use fluffy_base::id::BootId;
use fluffy_guest::host::{Connection, Events, LinkLost};
use fluffy_planner::reason::FailureReason;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use zeroize::Zeroizing;

use ending::of_record;
pub(crate) use supervise::spawn;

use crate::decide::{Desired, Failure, Image, Observed, Run, Status, Step, Up, decide};
use crate::driver::{Adoption, ExitRecord, Handle, InstanceDriver};
use crate::health::Check;
use crate::images::{ImageConfig, Images, Shelf};
use crate::metrics::Metrics;
use crate::session::Task;
use crate::store::{Kept, Store, StoreError};
use crate::{exec, now_ms, steady_ms, workload};

/// How many questions wait.
pub(crate) const MAILBOX: usize = 16;

/// How often everything is looked at, whatever happened.
const LOOK: Duration = Duration::from_secs(10);

/// How long a guest that said its last word may take to be gone.
const LAST: Duration = Duration::from_secs(10);

/// How long an adopted guest may stay silent.
const SILENT: Duration = Duration::from_secs(15);

/// How often the connections of one that may stop are counted.
const COUNT_MS: u64 = 500;

/// The most commands at once in one instance.
const COMMANDS: usize = 10;

/// The pause after something that must not fail did.
const PAUSE: Duration = Duration::from_secs(1);

/// When it is tried again to write down what is known, at first and at most.
const WRITE_MS: (u64, u64) = (250, 30_000);

/// What all instances of a node share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) node_id: String,
    pub(crate) folder: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) region: String,
    pub(crate) uid_base: u32,
    pub(crate) host_boot: String,
    pub(crate) store: Store,
    pub(crate) drivers: Vec<Arc<dyn InstanceDriver>>,
    pub(crate) images: Images,
    pub(crate) says: mpsc::Sender<Says>,
    pub(crate) channel: watch::Receiver<Option<Channel>>,
    pub(crate) lines: mpsc::Sender<v1::LogEntry>,
    pub(crate) metrics: Arc<Metrics>,
}

/// What an instance says.
#[derive(Debug)]
pub(crate) enum Says {
    /// Where it stands, and since when.
    Report(Box<v1::InstanceReport>, u64),
    /// Its task failed too often; why, the last time.
    Degraded(String, String),
    /// A command is not run.
    Refused(v1::ExecRefused),
    /// What came of an errand.
    Done(Box<v1::ErrandDone>),
    /// Nothing of it is left.
    Gone(String),
}

/// What somebody wants of an instance at once.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Run a command.
    Exec(Box<v1::ExecOpen>, Channel),
    /// Do something to it at once.
    Errand(v1::Errand),
    /// End it without a word: the node ends, and the plan stays.
    Halt(oneshot::Sender<()>),
}

/// What the plan says, the newest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Orders {
    pub(crate) assignment: v1::Assignment,
    pub(crate) planned: bool,
}

/// What came of something that ran beside; of a boot where there is one.
enum Inner {
    Image(Result<Prepared, Failure>),
    /// It is there; go on when it is written down.
    Handle(String, Box<Handle>, oneshot::Sender<()>),
    Linked(String, Result<(Connection, Events), Failure>),
    /// The same guest as before answers again.
    Relinked(String, Box<link::Relinked>),
    Lost(String, LinkLost),
    Silent(String),
    Workload(String),
    /// How the guest says that it ended.
    LastWords(String, Failure),
    Overdue(String),
    /// What it printed last had its time to arrive.
    Settled(String),
    Ended(String, Option<ExitRecord>),
    Well(String, bool),
}

/// What is ready before a start.
struct Prepared {
    image: (PathBuf, ImageConfig),
    secrets: Option<Secrets>,
}

/// A file of secrets, if the instance has one.
type Secrets = Option<Zeroizing<Vec<u8>>>;

/// How the task of an instance ended.
enum End {
    /// Nothing is left of it.
    Forgotten,
    /// The node ends.
    Halted,
    /// What was written down of it cannot be read.
    Unread(StoreError),
}

/// One instance.
struct Instance {
    id: String,
    context: Arc<Context>,
    orders: watch::Receiver<Orders>,
    kept: Kept,
    written: Option<Kept>,
    /// What is to be said once it is written down.
    unsaid: Vec<(v1::InstanceReport, u64)>,
    /// How often in a row nothing could be written.
    unwritten: u32,
    /// Fetched before the start that they are for.
    secrets: Option<Secrets>,
    sender: mpsc::Sender<Inner>,
    inner: mpsc::Receiver<Inner>,
    connection: Option<Connection>,
    /// Hears the guest; goes on after its end, until all is heard.
    hearing: Option<Task>,
    last_words: Option<Failure>,
    /// How it ended, as the host saw it, while its last words are on the way.
    gone: Option<Option<ExitRecord>>,
    /// Ends what starts it.
    cancel: watch::Sender<bool>,
    health: Option<Task>,
    watching: Option<Task>,
    commands: Arc<Semaphore>,
    /// How each command that runs is told that its client is gone.
    hang_ups: BTreeMap<String, oneshot::Sender<()>>,
    /// Since when it starts.
    started: Instant,
    /// When its group was looked at, and how many of its processes had been
    /// ended for their memory.
    looked: Option<Instant>,
    oom_kills: Option<u64>,
}

/// Since when it stands as is said: an end that nobody saw was earlier.
pub(crate) fn reported_at(kept: &Kept) -> u64 {
    let reason = kept.seen.reason.as_ref();
    reason
        .and_then(|reason| reason.at_ms)
        .unwrap_or_else(now_ms)
}

/// What is said of an instance now, if anything ever was.
pub(crate) fn report(id: &str, kept: &Kept) -> Option<v1::InstanceReport> {
    let status = match kept.seen.said? {
        Status::Preparing => v1::InstanceStatus::Preparing,
        Status::Booting => v1::InstanceStatus::Booting,
        Status::Ready => v1::InstanceStatus::Ready,
        Status::Unhealthy => v1::InstanceStatus::Unhealthy,
        Status::Failed => v1::InstanceStatus::Failed,
        Status::Draining => v1::InstanceStatus::Draining,
        Status::Stopped => v1::InstanceStatus::Stopped,
        Status::Collected => v1::InstanceStatus::Collected,
    };
    let reason = kept.seen.reason.as_ref();
    Some(v1::InstanceReport {
        instance_id: id.to_owned(),
        assignment_id: kept.assignment.assignment_id.clone(),
        generation: kept.assignment.generation,
        status: status.into(),
        boot_id: kept.boot_id.clone(),
        exit_code: reason.and_then(|reason| reason.exit_code),
        reason_code: reason.map_or_else(String::new, |reason| reason.reason.to_string()),
        reason_detail: reason.map_or_else(String::new, |reason| reason.detail.clone()),
        boot_ms: None,
    })
}

impl Instance {
    /// From what was written down; without that nothing may be done to what
    /// may run, until the plan does not want it any more.
    fn new(
        context: Arc<Context>,
        id: String,
        orders: watch::Receiver<Orders>,
    ) -> Result<Self, StoreError> {
        let kept = match context.store.instance(&id) {
            Ok(kept) => kept.unwrap_or_default(),
            Err(error @ StoreError::Damaged(_)) => {
                let told = orders.borrow();
                let wanted = workload::wanted(&told.assignment, told.planned);
                let may_end = match wanted.desired {
                    Desired::Running => false,
                    Desired::Draining { stop_allowed } => stop_allowed,
                    Desired::Stopped => true,
                };
                if !may_end {
                    return Err(error);
                }
                // Removed by its name, whatever is left of it.
                Kept {
                    seen: Observed {
                        dirty: true,
                        ..Observed::default()
                    },
                    ..Kept::default()
                }
            }
            Err(error) => return Err(error),
        };
        let (sender, inner) = mpsc::channel(MAILBOX);
        Ok(Self {
            id,
            context,
            orders,
            written: None,
            unsaid: Vec::new(),
            unwritten: 0,
            secrets: None,
            kept,
            sender,
            inner,
            connection: None,
            hearing: None,
            last_words: None,
            gone: None,
            cancel: watch::Sender::new(false),
            health: None,
            watching: None,
            commands: Arc::new(Semaphore::new(COMMANDS)),
            hang_ups: BTreeMap::new(),
            started: Instant::now(),
            looked: None,
            oom_kills: None,
        })
    }

    async fn run(&mut self, asks: &mut mpsc::Receiver<Ask>) -> End {
        self.take_orders();
        self.adopt().await;
        loop {
            self.take_orders();
            let drains = self.count_connections().await;
            self.try_ports().await;
            self.look().await;
            let wanted = workload::wanted(&self.kept.assignment, self.kept.planned);
            match decide(&wanted, &self.kept.seen, steady_ms()) {
                Step::Forget => {
                    self.forget().await;
                    return End::Forgotten;
                }
                Step::Wait(until) => {
                    let again = (!self.keep().await).then(|| self.write_again_ms());
                    let soon = drains.then(|| steady_ms().saturating_add(COUNT_MS));
                    let until = soon.into_iter().chain(again).chain(until).min();
                    if self.wait(until, asks).await.is_some() {
                        return End::Halted;
                    }
                }
                // Nothing is done that an agent after this one would not know
                // of.
                step => match self.keep().await {
                    true => self.act(step).await,
                    false => {
                        let again = self.write_again_ms();
                        if self.wait(Some(again), asks).await.is_some() {
                            return End::Halted;
                        }
                    }
                },
            }
        }
    }

    /// Takes what the plan says, if it is new.
    fn take_orders(&mut self) {
        let orders = self.orders.borrow_and_update().clone();
        let (now, before) = (&orders.assignment, &self.kept.assignment);
        if now.generation != before.generation && before.generation != 0 {
            self.kept.seen.revised();
        }
        let stops = workload::wanted(now, orders.planned).desired;
        let waits = matches!(
            stops,
            Desired::Running
                | Desired::Draining {
                    stop_allowed: false
                }
        );
        if waits {
            self.kept.seen.stop_allowed_ms = None;
        } else {
            self.kept.seen.stop_allowed_ms.get_or_insert(steady_ms());
        }
        self.kept.planned = orders.planned;
        self.kept.assignment = orders.assignment;
    }

    /// Sees who still has a connection to an instance that may stop; whether
    /// that is to be looked at again soon.
    async fn count_connections(&mut self) -> bool {
        let seen = &self.kept.seen;
        let (Some(since), None, Run::Up(_)) = (seen.stop_allowed_ms, seen.stop_ms, &seen.run)
        else {
            return false;
        };
        let Some((handle, driver)) = self.driven() else {
            return false;
        };
        let counted = driver.connections(&handle).await;
        // Who was on the way when the last edge forgot it may still arrive.
        let fresh = steady_ms() < since.saturating_add(COUNT_MS);
        let counted = counted.map(|count| count.max(u64::from(fresh)));
        // What cannot be seen for a moment is as it was.
        let counted = counted.or(self.kept.seen.connections);
        self.kept.seen.connections = counted;
        counted.is_some()
    }

    /// Sees whether a port of an instance that is not known to be well leads
    /// nowhere, though it is open.
    async fn try_ports(&mut self) {
        let Run::Up(up) = &self.kept.seen.run else {
            return;
        };
        let workload = self.kept.assignment.workload.as_ref();
        let is_asked = workload.is_some_and(|spec| spec.health.is_some());
        if up.workload_ms.is_none() || (is_asked && self.kept.seen.said == Some(Status::Ready)) {
            return;
        }
        let ports = workload::ports(&self.kept.assignment);
        let Some((handle, driver)) = self.driven() else {
            return;
        };
        let unreached = driver.unreached(&handle, &ports).await;
        if let Run::Up(up) = &mut self.kept.seen.run {
            up.unreached = unreached;
        }
    }

    /// Writes down what is known, if it changed, and then says what waited
    /// for that; whether all is written.
    async fn keep(&mut self) -> bool {
        if self.written.as_ref() != Some(&self.kept) {
            if let Err(error) = self.context.store.keep_instance(&self.id, &self.kept) {
                self.unwritten = self.unwritten.saturating_add(1);
                let error = &error as &dyn std::error::Error;
                tracing::error!(instance = self.id, error, "its state cannot be written");
                return false;
            }
            self.written = Some(self.kept.clone());
        }
        self.unwritten = 0;
        for (report, at_ms) in self.unsaid.drain(..) {
            let says = Says::Report(Box::new(report), at_ms);
            let _ = self.context.says.send(says).await;
        }
        true
    }

    /// When it is tried again to write it down.
    fn write_again_ms(&self) -> u64 {
        let doubled = 2_u64.saturating_pow(self.unwritten.saturating_sub(1).min(16));
        let pause = WRITE_MS.0.saturating_mul(doubled).min(WRITE_MS.1);
        steady_ms().saturating_add(pause)
    }

    /// Finds what an agent before this one left running.
    async fn adopt(&mut self) {
        self.kept.seen.awake(steady_ms());
        if self.kept.seen.image == Image::Here {
            (self.context.images.pin)(&self.image(), &self.id);
        }
        let Run::Up(up) = self.kept.seen.run.clone() else {
            return;
        };
        let Some((handle, driver)) = self.driven() else {
            let lost = Failure::new(FailureReason::VmmLost, "nothing is known of its driver");
            self.kept.seen.run = Run::Ended(lost);
            return;
        };
        if handle.host_boot != self.context.host_boot {
            // Nothing of it can be there, and it is nobody's failure.
            self.kept.seen.run = Run::Nothing;
            self.kept.seen.image = Image::Unknown;
            self.kept.seen.dirty = true;
            self.context
                .metrics
                .count("agent_adoptions_total", "rebooted");
            return;
        }
        let result = match driver.adopt(&handle).await {
            Adoption::Alive => {
                self.watch(&handle, &driver);
                self.relink(&handle, SILENT);
                if up.workload_ms.is_some() {
                    self.check_health();
                }
                "alive"
            }
            Adoption::Exited(record) => {
                let mut failure = of_record(Some(&record));
                if record.oom {
                    failure = self.out_of_memory(failure, record.memory_peak_bytes).await;
                }
                // It was then and not now.
                failure.at_ms = Some(record.at_ms.min(now_ms())).filter(|at| *at > 0);
                self.kept.seen.run = Run::Ended(failure);
                "exited"
            }
            Adoption::Lost => {
                self.kept.seen.run = Run::Ended(of_record(None));
                "lost"
            }
        };
        self.context.metrics.count("agent_adoptions_total", result);
    }

    /// What runs it, if something does.
    fn driven(&self) -> Option<(Handle, Arc<dyn InstanceDriver>)> {
        let handle = self.kept.handle.clone()?;
        let mut drivers = self.context.drivers.iter();
        let driver = drivers.find(|driver| driver.name() == handle.driver)?;
        Some((handle, Arc::clone(driver)))
    }

    async fn wait(&mut self, until: Option<u64>, asks: &mut mpsc::Receiver<Ask>) -> Option<()> {
        let pause = until.map_or(LOOK, |until| {
            Duration::from_millis(until.saturating_sub(steady_ms()).saturating_add(1))
        });
        tokio::select! {
            changed = self.orders.changed() => {
                // Nobody plans any more: the agent is going.
                if changed.is_err() {
                    return Some(());
                }
            }
            Some(ask) = asks.recv() => match ask {
                Ask::Exec(open, channel) => self.exec(*open, channel).await,
                Ask::Errand(errand) => self.errand(errand).await,
                Ask::Halt(done) => {
                    self.halt().await;
                    let _ = done.send(());
                    return Some(());
                }
            },
            Some(inner) = self.inner.recv() => self.hear(inner).await,
            () = sleep(pause.min(LOOK)) => {}
        }
        None
    }

    async fn act(&mut self, step: Step) {
        match step {
            Step::Say(status, reason) => self.say(status, reason).await,
            Step::Prepare => self.prepare(),
            Step::Start => self.start().await,
            Step::Abort => self.abort().await,
            Step::Stop => self.stop().await,
            Step::Kill(failure) => self.kill(failure).await,
            Step::Clean => self.clean().await,
            Step::Forget | Step::Wait(_) => {}
        }
    }

    async fn say(&mut self, status: Status, reason: Option<Failure>) {
        let seen = &mut self.kept.seen;
        if status == Status::Booting {
            self.kept.boot_id = BootId::generate().to_string();
            (self.last_words, self.gone) = (None, None);
            (self.looked, self.oom_kills) = (None, None);
        }
        if let Some(failure) = &reason {
            let metrics = &self.context.metrics;
            metrics.count("agent_instance_failures_total", failure.reason.as_str());
            if failure.reason == FailureReason::OomKilled {
                metrics.count("agent_oom_total", "");
            }
            tracing::info!(
                instance = self.id,
                reason = failure.reason.as_str(),
                detail = failure.detail,
                "{status:?}"
            );
        }
        let boot_ms = (status == Status::Ready && seen.said == Some(Status::Booting))
            .then(|| u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0));
        seen.told(status, reason, steady_ms());
        if let Some(mut report) = report(&self.id, &self.kept) {
            report.boot_ms = boot_ms;
            self.unsaid.push((report, reported_at(&self.kept)));
        }
        // On the disk before anybody is told.
        self.keep().await;
    }

    fn prepare(&mut self) {
        let assignment = &self.kept.assignment;
        let image = match workload::admit(assignment) {
            Ok(spec) => spec.image.clone().unwrap_or_default(),
            Err(failure) => {
                self.kept.seen.image = Image::Failed(failure);
                return;
            }
        };
        self.kept.seen.image = Image::Working;
        let ensured = (self.context.images.ensure)(
            image,
            self.id.clone(),
            Shelf {
                node_id: self.context.node_id.clone(),
                instance_id: self.id.clone(),
                generation: self.kept.assignment.generation,
                channel: self.context.channel.clone(),
            },
        );
        let secrets = start::Wanted::of(&self.context, &self.id, &self.kept.assignment);
        let (sender, context) = (self.sender.clone(), Arc::clone(&self.context));
        tokio::spawn(async move {
            let prepared = async {
                let began = Instant::now();
                // As a task, so that one that fails is an answer as well; of
                // a set, so that it ends with whoever waits for it.
                let mut one = JoinSet::new();
                one.spawn(ensured);
                let ended = one.join_next().await.and_then(Result::ok);
                let image = ended.unwrap_or_else(|| {
                    let why = "the image store failed";
                    Err(Failure::new(FailureReason::RootfsBuildFailed, why))
                });
                let result = if image.is_ok() { "ok" } else { "failed" };
                let took = began.elapsed();
                context
                    .metrics
                    .time("agent_image_pull_seconds", [result, ""], took);
                let image = image?;
                let secrets = secrets?.fetch(&context).await?;
                Ok(Prepared {
                    image,
                    secrets: Some(secrets),
                })
            };
            tokio::select! {
                prepared = prepared => {
                    let _ = sender.send(Inner::Image(prepared)).await;
                }
                // Nobody waits for it any more.
                () = sender.closed() => {}
            }
        });
    }

    async fn stop(&mut self) {
        self.kept.seen.stop_ms = Some(steady_ms());
        self.keep().await;
        let Some(connection) = &self.connection else {
            return;
        };
        let grace = workload::grace_seconds(&self.kept.assignment);
        let grace = Duration::from_secs(grace.into());
        let _ = timeout(PAUSE, connection.stop(None, Some(grace), "drained")).await;
    }

    async fn kill(&mut self, failure: Failure) {
        if let Some((handle, driver)) = self.driven()
            && let Err(error) = driver.kill(&handle).await
        {
            self.warn(&error, "it cannot be ended");
            sleep(PAUSE).await;
            return;
        }
        self.over(failure);
    }

    fn warn(&self, error: &dyn std::error::Error, what: &str) {
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(instance = self.id, %error, cause, "{what}");
    }

    /// It does not run any more.
    fn over(&mut self, failure: Failure) {
        self.kept.seen.run = Run::Ended(failure);
        self.connection = None;
        self.health = None;
        self.watching = None;
    }

    async fn clean(&mut self) {
        let cleaned = match self.driven() {
            Some((handle, driver)) => match driver.kill(&handle).await {
                Ok(()) => driver.clean(&handle).await,
                Err(error) => Err(error),
            },
            None => {
                self.sweep().await;
                Ok(())
            }
        };
        if let Err(error) = cleaned {
            self.warn(&error, "what is left cannot be removed");
            sleep(PAUSE).await;
            return;
        }
        remove([self.run_dir(), self.dir()]).await;
        self.kept.handle = None;
        self.kept.seen.dirty = false;
        self.keep().await;
    }

    /// Removes what a start left that never came to a handle.
    async fn sweep(&self) {
        let Ok(all) = self.context.store.instances() else {
            return;
        };
        let others: Vec<String> = all
            .into_iter()
            .map(|(id, _)| id)
            .filter(|id| *id != self.id)
            .collect();
        for driver in &self.context.drivers {
            driver.sweep(&others).await;
        }
    }

    async fn forget(&mut self) {
        (self.context.images.release)(&self.image(), &self.id);
        remove([self.run_dir(), self.dir()]).await;
        if let Err(error) = self.context.store.forget(&self.id) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(instance = self.id, error, "it cannot be forgotten");
        }
    }

    fn image(&self) -> v1::Image {
        let spec = self.kept.assignment.workload.as_ref();
        spec.and_then(|spec| spec.image.clone()).unwrap_or_default()
    }

    fn dir(&self) -> PathBuf {
        self.context.folder.join("instances").join(&self.id)
    }

    /// Short, because a socket's path is.
    fn run_dir(&self) -> PathBuf {
        let ulid = self.id.rsplit('_').next().unwrap_or(&self.id);
        self.context.run.join(ulid.to_ascii_lowercase())
    }

    /// Notices when it ends, however it does.
    fn watch(&mut self, handle: &Handle, driver: &Arc<dyn InstanceDriver>) {
        let (boot, sender) = (handle.boot_id.clone(), self.sender.clone());
        let (handle, driver) = (handle.clone(), Arc::clone(driver));
        self.watching = Some(Task::of(async move {
            let record = driver.ended(&handle).await;
            let _ = sender.send(Inner::Ended(boot, record)).await;
        }));
    }

    fn check_health(&mut self) {
        let spec = self.kept.assignment.workload.as_ref();
        let Some(health) = spec.and_then(|spec| spec.health.as_ref()) else {
            return;
        };
        let Ok(network) = workload::network(&self.kept.assignment) else {
            return;
        };
        let check = Check::new(health, network.address);
        let (boot, sender) = (self.kept.boot_id.clone(), self.sender.clone());
        self.health = Some(Task::of(check.run(async move |well| {
            let _ = sender.send(Inner::Well(boot.clone(), well)).await;
        })));
    }

    async fn hear(&mut self, inner: Inner) {
        match inner {
            Inner::Image(ensured) => self.prepared(ensured),
            Inner::Handle(boot, handle, done) if boot == self.kept.boot_id => {
                self.kept.handle = Some(*handle);
                let kept = self.keep().await;
                if let Some((handle, driver)) = self.driven() {
                    self.watch(&handle, &driver);
                }
                // One that an agent after this one would not find is given up.
                if kept {
                    let _ = done.send(());
                }
            }
            Inner::Linked(boot, linked) if boot == self.kept.boot_id => {
                self.linked(linked).await;
            }
            Inner::Relinked(boot, again) if boot == self.kept.boot_id => {
                self.relinked(*again).await;
            }
            Inner::Lost(boot, lost) if boot == self.kept.boot_id => self.lost(&lost).await,
            Inner::LastWords(boot, words) if boot == self.kept.boot_id => {
                self.last_words = Some(words);
                self.later(LAST, Inner::Overdue(boot));
            }
            Inner::Overdue(boot) if boot == self.kept.boot_id => {
                if let (Run::Up(_) | Run::Working, Some(words)) =
                    (&self.kept.seen.run, self.last_words.take())
                {
                    self.kill(words).await;
                }
            }
            Inner::Ended(boot, record) if boot == self.kept.boot_id => {
                self.gone = Some(record);
                match self.connection.is_some() {
                    true => self.later(LAST, Inner::Settled(boot)),
                    false => self.ended().await,
                }
            }
            Inner::Settled(boot) if boot == self.kept.boot_id => self.ended().await,
            Inner::Silent(boot) if boot == self.kept.boot_id => {
                if let Run::Up(up) = &mut self.kept.seen.run {
                    up.silent = true;
                }
            }
            Inner::Workload(boot) if boot == self.kept.boot_id => self.workload_started(),
            Inner::Well(boot, well) if boot == self.kept.boot_id => {
                if let Run::Up(up) = &mut self.kept.seen.run {
                    up.well = Some(well);
                }
            }
            // Of a boot that is over.
            _ => {}
        }
    }

    fn prepared(&mut self, prepared: Result<Prepared, Failure>) {
        let result = match prepared {
            Ok(prepared) => {
                self.kept.image = Some(prepared.image);
                self.secrets = prepared.secrets;
                self.kept.seen.image = Image::Here;
                "ok"
            }
            Err(failure) => {
                self.kept.seen.image = Image::Failed(failure);
                "failed"
            }
        };
        self.context
            .metrics
            .count("agent_image_pulls_total", result);
    }

    /// Says how long a start took, until now.
    fn time_boot(&self, result: &'static str) {
        let driver = self.driven().map_or("none", |(_, driver)| driver.name());
        let took = self.started.elapsed();
        let metrics = &self.context.metrics;
        metrics.time("agent_boot_seconds", [driver, result], took);
    }

    fn workload_started(&mut self) {
        if let Run::Up(up) = &mut self.kept.seen.run
            && up.workload_ms.is_none()
        {
            up.workload_ms = Some(steady_ms());
            self.time_boot("started");
            self.check_health();
        }
    }

    fn later(&self, pause: Duration, inner: Inner) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            sleep(pause).await;
            let _ = sender.send(inner).await;
        });
    }

    async fn exec(&mut self, open: v1::ExecOpen, channel: Channel) {
        let session_id = open.session_id.clone();
        self.hang_ups.retain(|_, hang_up| !hang_up.is_closed());
        // One that is to run nothing is over.
        if open.command.is_empty() {
            if let Some(hang_up) = self.hang_ups.remove(&session_id) {
                let _ = hang_up.send(());
            }
            return;
        }
        let refuse = async |code: &str| {
            let refused = v1::ExecRefused {
                session_id,
                code: code.to_owned(),
            };
            let _ = self.context.says.send(Says::Refused(refused)).await;
        };
        let wanted = workload::wanted(&self.kept.assignment, self.kept.planned);
        let up = self.kept.seen.is_up() && wanted.desired == Desired::Running;
        let (true, Some(connection)) = (up, self.connection.clone()) else {
            return refuse("instance_not_running").await;
        };
        let Ok(permit) = Arc::clone(&self.commands).try_acquire_owned() else {
            return refuse("exec_limit").await;
        };
        let node_id = self.context.node_id.clone();
        let metrics = Arc::clone(&self.context.metrics);
        let (hang_up, hung_up) = oneshot::channel();
        self.hang_ups.insert(open.session_id.clone(), hang_up);
        tokio::spawn(async move {
            exec::run(node_id, open, channel, connection, metrics, hung_up).await;
            drop(permit);
        });
    }

    /// Ends it and leaves the plan as it is: the next start of the node starts
    /// it again.
    async fn halt(&mut self) {
        if matches!(self.kept.seen.run, Run::Working) {
            self.abort().await;
        }
        if matches!(self.kept.seen.run, Run::Up(_)) {
            self.stop().await;
            let grace = workload::grace_seconds(&self.kept.assignment);
            let deadline = Instant::now() + Duration::from_secs(u64::from(grace) + 5);
            while matches!(self.kept.seen.run, Run::Up(_)) && Instant::now() < deadline {
                match tokio::time::timeout_at(deadline, self.inner.recv()).await {
                    Ok(Some(inner)) => self.hear(inner).await,
                    Ok(None) | Err(_) => break,
                }
            }
            if matches!(self.kept.seen.run, Run::Up(_)) {
                self.kill(of_record(None)).await;
            }
        }
        self.kept.seen.stop_ms = None;
        self.kept.seen.run = Run::Nothing;
        self.kept.seen.image = Image::Unknown;
        if self.kept.seen.dirty {
            self.clean().await;
        }
        self.keep().await;
    }
}

/// Removes folders where that keeps nobody else waiting.
async fn remove(folders: [PathBuf; 2]) {
    let removed = tokio::task::spawn_blocking(move || {
        for folder in folders {
            let _ = std::fs::remove_dir_all(folder);
        }
    });
    let _ = removed.await;
}

/// An instance that has just been linked.
fn up_now(seen: &mut Observed) {
    seen.run = Run::Up(Up {
        since_ms: steady_ms(),
        workload_ms: None,
        well: None,
        unwell_ms: None,
        silent: false,
        unreached: None,
    });
}
