//! One plugin: its instance, its crashes, its reloads, and who calls it.
//!
//! Calls go to whichever instance is current. A reload starts the new instance
//! while the old one still serves, switches, and lets the old one finish what
//! it has: no call waits for a reload and none is lost. A crash is followed by
//! another start, later each time, until a person has to look.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_base::{Clock as _, SystemClock};
use fluffy_contract::tool::{CallToolError, Effect, ForeignTool, ToolOutput};
use fluffy_contract::{BoxFuture, ToolSource};
use fluffy_ledger::{Aggregate, Domain, Draft};
use fluffy_plugin_core::lifecycle::{Cell, Crashes, Event, State, Verdict};
use fluffy_plugin_core::manifest::{self, Misfit, ToolDeclaration};
use fluffy_policy::{Context, Permit};
use serde_json::{Value, json};
use tokio::sync::{Mutex as Turn, Notify, watch};

use super::ground::{Ground, LaunchError, Launched};
use super::{Status, explain};
use crate::connection::{Connection, Gone};
use crate::log::{Level, Log, Source as Said};
use crate::shelf::{ExamineError, Placed, Record, pin_of};
use crate::skill::{SkillText, Skills};

/// How long a call waits for a plugin that is just starting.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one may take to end when nothing is left to do.
const GRACE: Duration = Duration::from_secs(5);

/// Why a plugin was not reloaded; the old instance goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It is not installed, or not what was reviewed.
    #[error(transparent)]
    Examine(#[from] ExamineError),
    /// It is not for this version.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// It is switched off.
    #[error("it is switched off: {why}")]
    Disabled {
        /// Why.
        why: String,
    },
    /// The new one does not start.
    #[error("the new one does not start")]
    Launch(#[from] LaunchError),
}

/// One plugin of a host.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: String,
    ground: Arc<Ground>,
    slot: watch::Sender<Slot>,
    crashes: Mutex<Crashes>,
    /// Starts, reloads and ends come one after the other.
    turn: Turn<()>,
    /// What it was started from last, and what the project allowed then,
    /// whether or not it came up.
    tried: Mutex<Option<(Placed, Vec<String>)>>,
    /// Numbers its instances.
    started: AtomicU64,
}

/// Who takes calls now.
#[derive(Debug, Clone)]
enum Slot {
    /// Nobody yet.
    Starting,
    /// This one.
    Running(Arc<Instance>),
    /// Nobody, for this reason.
    Down { state: State, why: String },
}

/// A started plugin and the calls it has.
pub(super) struct Instance {
    pub(super) number: u64,
    placed: Placed,
    launched: Launched,
    cell: Cell,
    calls: AtomicUsize,
    idle: Notify,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    pub(super) fn new(name: String, ground: Arc<Ground>) -> Self {
        Self {
            name,
            ground,
            slot: watch::Sender::new(Slot::Starting),
            crashes: Mutex::default(),
            turn: Turn::default(),
            tried: Mutex::default(),
            started: AtomicU64::new(0),
        }
    }

    pub(super) fn status(&self) -> Status {
        let (state, why) = match &*self.slot.borrow() {
            Slot::Starting => (State::Loading, None),
            Slot::Running(instance) => (instance.cell.state(), None),
            Slot::Down { state, why } => (*state, Some(why.clone())),
        };
        Status {
            name: self.name.clone(),
            state,
            why,
        }
    }

    /// Its tools, if it runs.
    pub(super) fn source(self: &Arc<Self>) -> Option<Source> {
        match &*self.slot.borrow() {
            Slot::Running(instance) if instance.has_tools() => Some(Source {
                plugin: Arc::clone(self),
                sandbox: instance.launched.connection.sandbox(),
            }),
            Slot::Running(_) | Slot::Starting | Slot::Down { .. } => None,
        }
    }

    /// Its skills, if it is made of them.
    pub(super) fn skills(&self) -> Vec<SkillText> {
        let placed = self.current().map(|now| now.placed.clone());
        let text = placed.filter(|placed| placed.manifest.kind == manifest::Kind::Skill);
        let skills = text.and_then(|placed| Skills::of(&placed).ok());
        skills.map_or_else(Vec::new, |skills| skills.texts(&self.name))
    }

    /// Whether it was started from what this record names, or failed to.
    pub(super) fn runs(&self, record: Option<&Record>) -> bool {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(placed, allowed): &(Placed, Vec<String>)| {
            Some(&placed.record) == record && *allowed == self.ground.allowed()
        };
        tried.as_ref().is_some_and(is_same)
    }

    /// What it was started from last.
    pub(super) fn placed(&self) -> Option<Placed> {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.as_ref().map(|(placed, _)| placed.clone())
    }

    /// Starts it, or another version of it in its place.
    pub(super) async fn begin(self: Arc<Self>, placed: Placed) {
        let note = |placed: &Placed| {
            let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
            *tried = Some((placed.clone(), self.ground.allowed()));
        };
        note(&placed);
        if self.current().is_some() {
            // Where the new one does not start, its log says so.
            let _ = self.reload(placed).await;
            return;
        }
        let _turn = self.turn.lock().await;
        match self.start(placed).await {
            Ok(instance) => self.take_over(instance),
            Err(error) => self.down(State::Error, explain(&error)),
        }
    }

    /// Puts another instance in the place of the one that runs.
    pub(super) async fn reload(self: Arc<Self>, placed: Placed) -> Result<(), ReloadError> {
        let _turn = self.turn.lock().await;
        if let Some(why) = placed.record.disabled {
            return Err(ReloadError::Disabled { why });
        }
        let old = self.current();
        if let Some(old) = &old
            && !placed.manifest.lifecycle.hot_reload
        {
            return self.exchange(old, placed).await;
        }
        let new = self.start(placed).await?;
        self.crashes().forget();
        self.take_over(new);
        if let Some(old) = old {
            self.drain(&old).await;
            self.ground.shelf.tidy(&self.name);
        }
        Ok(())
    }

    /// For one that cannot run twice: calls wait while there is none.
    async fn exchange(self: &Arc<Self>, old: &Instance, placed: Placed) -> Result<(), ReloadError> {
        self.slot.send_replace(Slot::Starting);
        self.drain(old).await;
        let started = self.start(placed).await;
        match started {
            Ok(new) => {
                self.crashes().forget();
                self.take_over(new);
                self.ground.shelf.tidy(&self.name);
                Ok(())
            }
            Err(error) => {
                match self.start(old.placed.clone()).await {
                    Ok(again) => self.take_over(again),
                    Err(error) => self.down(State::Error, explain(&error)),
                }
                Err(error.into())
            }
        }
    }

    /// Lets its calls finish, and ends it.
    pub(super) async fn end(self: Arc<Self>) {
        let _turn = self.turn.lock().await;
        let current = self.current();
        self.down(State::Stopped, "it was stopped".to_owned());
        if let Some(instance) = current {
            self.drain(&instance).await;
        }
    }

    async fn start(self: &Arc<Self>, placed: Placed) -> Result<Arc<Instance>, LaunchError> {
        let cell = Cell::new();
        let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        let step = |event, why: Option<&str>| self.step(&cell, number, event, why);
        step(Event::Validate, None);
        step(Event::Load, None);
        let log = Log::open(&placed.home.join("log"))?;
        match self.ground.launch(&placed, &log).await {
            Ok(launched) => {
                step(Event::Run, None);
                Ok(Arc::new(Instance {
                    number,
                    placed,
                    launched,
                    cell,
                    calls: AtomicUsize::new(0),
                    idle: Notify::new(),
                }))
            }
            Err(error) => {
                let why = explain(&error);
                log.write(
                    Level::Error,
                    Said::Host,
                    &format!("it did not start: {why}"),
                );
                step(Event::Fail, Some(&why));
                Err(error)
            }
        }
    }

    /// From now on calls go to this one, and its end is noticed.
    fn take_over(self: &Arc<Self>, instance: Arc<Instance>) {
        self.slot.send_replace(Slot::Running(Arc::clone(&instance)));
        tokio::spawn(Arc::clone(self).watch_over(instance));
    }

    /// Waits for its end; one that nobody asked for is a crash.
    async fn watch_over(self: Arc<Self>, instance: Arc<Instance>) {
        let Gone::Crashed { how } = instance.launched.connection.gone().await else {
            return;
        };
        let _turn = self.turn.lock().await;
        self.step(&instance.cell, instance.number, Event::Fail, Some(&how));
        instance.launched.connection.stop(GRACE).await;
        let is_current = self
            .current()
            .is_some_and(|now| now.number == instance.number);
        if !is_current {
            return;
        }
        self.slot.send_replace(Slot::Starting);
        let verdict = self.crashes().crashed(SystemClock.now());
        match verdict {
            Verdict::Restart { after } => {
                tokio::time::sleep(Duration::from(after)).await;
                match self.start(instance.placed.clone()).await {
                    Ok(again) => self.take_over(again),
                    Err(error) => self.down(State::Error, explain(&error)),
                }
            }
            Verdict::Disable => {
                let why = format!("it crashed too often; last: {how}");
                self.disable(&why);
                self.down(State::Error, why);
            }
        }
    }

    /// Keeps it off, also for the next start, until a person switches it on.
    fn disable(&self, why: &str) {
        let request =
            self.ground
                .host
                .request("plugins.disable", Some(&self.name), &Context::default());
        let permitted = self.ground.host.ask(&request);
        if let Ok(fluffy_gate::Answer::Granted(granted)) = permitted {
            let switched =
                self.ground
                    .shelf
                    .switch(granted.permit, &self.name, Some(why.to_owned()));
            if switched.is_ok() {
                return;
            }
        }
        // It stays off here in any case.
        self.record("plugin.not_disabled", json!({"why": why}));
    }

    /// Takes no new calls, waits for those it has, and ends.
    async fn drain(&self, instance: &Instance) {
        let step = |event| self.step(&instance.cell, instance.number, event, None);
        step(Event::Drain);
        fence(Ordering::SeqCst);
        let wishes = instance.placed.manifest.lifecycle;
        let patience = Duration::from(wishes.graceful_shutdown_timeout);
        let _ = tokio::time::timeout(patience, instance.idle()).await;
        step(Event::Stop);
        instance.launched.connection.stop(patience.min(GRACE)).await;
        step(Event::End);
    }

    fn down(&self, state: State, why: String) {
        self.slot.send_replace(Slot::Down { state, why });
    }

    pub(super) fn current(&self) -> Option<Arc<Instance>> {
        match &*self.slot.borrow() {
            Slot::Running(instance) => Some(Arc::clone(instance)),
            Slot::Starting | Slot::Down { .. } => None,
        }
    }

    /// One step of an instance's life, recorded; an illegal one is neither.
    fn step(&self, cell: &Cell, instance: u64, event: Event, why: Option<&str>) {
        if let Ok(step) = cell.apply(event) {
            let mut payload = json!({
                "instance": instance,
                "from": step.from.as_str(),
                "to": step.to.as_str(),
            });
            if let (Some(why), Value::Object(fields)) = (why, &mut payload) {
                let why: String = why.chars().take(512).collect();
                fields.insert("why".to_owned(), Value::String(why));
            }
            self.record("plugin.transition", payload);
        }
    }

    fn record(&self, event_type: &str, payload: Value) {
        let aggregate = Aggregate::new("plugin", self.name.clone());
        let actor = Ground::actor(&self.name);
        let draft = Draft::new(Domain::Plugin, aggregate, event_type, actor).payload(payload);
        // A ledger that fails says so to everybody who needs it to act.
        let _ = self.ground.ledger.record(draft);
    }

    /// The instance that takes a call, with the call counted.
    pub(super) async fn enter(&self) -> Result<Entered, String> {
        let mut slot = self.slot.subscribe();
        let entering = async {
            loop {
                let now = slot.borrow_and_update().clone();
                match now {
                    Slot::Running(instance) => {
                        let entered = Entered::new(instance);
                        // One that takes no more is no longer in its place.
                        if entered.0.cell.state() == State::Running {
                            return Ok(entered);
                        }
                    }
                    Slot::Down { why, .. } => return Err(why),
                    Slot::Starting => {}
                }
                if slot.changed().await.is_err() {
                    return Err("its host is ending".to_owned());
                }
            }
        };
        let entered = tokio::time::timeout(PATIENCE, entering).await;
        entered.unwrap_or_else(|_| Err("it is starting again".to_owned()))
    }

    fn crashes(&self) -> std::sync::MutexGuard<'_, Crashes> {
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Instance {
    /// Waits until it has no calls.
    async fn idle(&self) {
        loop {
            let left = self.idle.notified();
            if self.calls.load(Ordering::SeqCst) == 0 {
                return;
            }
            left.await;
        }
    }

    /// Whether it is of a type that has any.
    fn has_tools(&self) -> bool {
        match self.kind() {
            manifest::Kind::Tool | manifest::Kind::Skill => true,
            manifest::Kind::Provider | manifest::Kind::Channel => false,
        }
    }

    pub(super) fn kind(&self) -> manifest::Kind {
        self.placed.manifest.kind
    }

    pub(super) fn connection(&self) -> &dyn Connection {
        &*self.launched.connection
    }

    /// Its tools as they were reviewed; what it changed since is left out.
    fn tools(&self) -> Vec<ForeignTool> {
        let pins = &self.placed.record.tools;
        let tools = self.launched.connection.tools();
        let reviewed = |tool: &ForeignTool| pins.get(&tool.name) == Some(&pin_of(tool));
        let manifest = &self.placed.manifest;
        let mut tools: Vec<ForeignTool> = tools.into_iter().filter(reviewed).collect();
        for tool in &mut tools {
            // By what a person reviewed, whatever the plugin is written in.
            let reads = |one: &ToolDeclaration| {
                one.name == tool.name && one.effect == manifest::Effect::Reads
            };
            let is_text = manifest.kind == manifest::Kind::Skill;
            tool.effect = match is_text || manifest.tools.iter().any(reads) {
                true => Effect::Reads,
                false => Effect::Acts,
            };
        }
        tools
    }
}

/// A call that an instance has.
pub(super) struct Entered(pub(super) Arc<Instance>);

impl Entered {
    fn new(instance: Arc<Instance>) -> Self {
        instance.calls.fetch_add(1, Ordering::SeqCst);
        // Whoever counts calls after the state changed sees this one, or this
        // one sees the state.
        fence(Ordering::SeqCst);
        Self(instance)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The tools of one plugin, for a session.
#[derive(Debug)]
pub struct Source {
    plugin: Arc<Plugin>,
    sandbox: SandboxId,
}

impl ToolSource for Source {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn sandbox(&self) -> SandboxId {
        let current = self.plugin.current();
        current.map_or(self.sandbox, |now| now.launched.connection.sandbox())
    }

    fn tools(&self) -> Vec<ForeignTool> {
        let current = self.plugin.current();
        current.map(|now| now.tools()).unwrap_or_default()
    }

    fn call<'a>(
        &'a self,
        permit: Permit,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallToolError>> {
        Box::pin(async move {
            let needed = format!("plugin.{}.{}", self.plugin.name, tool.to_ascii_lowercase());
            if permit.action() != needed {
                return Err(CallToolError::WrongPermit {
                    permitted: permit.action().to_owned(),
                    needed,
                });
            }
            let unavailable =
                |why: Box<dyn std::error::Error + Send + Sync>| CallToolError::Unavailable {
                    tool: needed.clone(),
                    source: why,
                };
            let entered = self.plugin.enter().await;
            let entered = entered.map_err(|why| unavailable(why.into()))?;
            let instance = &entered.0;
            if !instance.tools().iter().any(|one| one.name == tool) {
                let why = "it is not the tool that was reviewed; `fluffy plugin inspect` shows it";
                return Err(unavailable(why.into()));
            }
            let called = instance.launched.connection.call(tool, arguments).await;
            called.map_err(|error| unavailable(Box::new(error)))
        })
    }
}
