//! A model of a plugin, tried again by the same rules as our own.
//!
//! The plugin answers in its sandbox and reaches what its grant names; nothing
//! is kept of an answer that broke off. Every further attempt is decided about
//! like the first. Next: `ask`, which puts an answer together.

use std::sync::Arc;

use fluffy_base::{Clock as _, SystemClock};
use fluffy_contract::BoxFuture;
use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelFault, ModelProvider, ModelStream, Retry, StartTurnError, Turn,
};
use fluffy_gate::{Answer, Desk};
use fluffy_models::attempt::{Attempt, Next, RetryRules, Shown, next_attempt};
use fluffy_models::driver::jitter;
use fluffy_policy::{Context, Permit};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What names of such models begin with.
pub const PREFIX: &str = "plugin:";

/// Events that may wait to be taken; then the plugin waits.
const QUEUE: usize = 64;

/// One model of a plugin.
#[derive(Clone)]
pub struct PluggedModel {
    provider: Arc<dyn ModelProvider>,
    desk: Desk,
    /// `plugin:name/model`, as rules and people call it.
    model: String,
}

impl PluggedModel {
    /// This model, asked in the name of whoever has this desk.
    #[must_use]
    pub fn new(provider: Arc<dyn ModelProvider>, desk: Desk, model: String) -> Self {
        Self {
            provider,
            desk,
            model,
        }
    }

    async fn run(self, permit: Permit, turn: Turn, out: mpsc::Sender<ModelEvent>) {
        let rules = RetryRules::for_models(1);
        let mut history = Vec::new();
        let mut permit = Some(permit);
        loop {
            let tried = match permit.take().map_or_else(|| self.permit(), Ok) {
                Ok(permit) => self.attempt(permit, turn.clone(), &out).await,
                Err(fault) => Err((fault, Shown::Nothing)),
            };
            let Err((fault, shown)) = tried else {
                return;
            };
            let now = SystemClock.now();
            history.push(Attempt {
                model: 0,
                ended: now,
                fault: fault.clone(),
                retry_after: None,
                shown,
            });
            let Next::Wait { until } = next_attempt(&history, now, &rules, jitter()) else {
                let _ = out.send(ModelEvent::Error(fault)).await;
                return;
            };
            let pause = until.since(now);
            let because = fault.message;
            let waiting = ModelEvent::Waiting {
                millis: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                because: because.clone(),
            };
            let _ = out.send(waiting).await;
            tokio::time::sleep(pause).await;
            let restarted = ModelEvent::Restarted {
                model: self.model.clone(),
                because,
            };
            if shown == Shown::Output && out.send(restarted).await.is_err() {
                return;
            }
        }
    }

    /// One attempt: all of its events, or why it failed.
    async fn attempt(
        &self,
        permit: Permit,
        turn: Turn,
        out: &mpsc::Sender<ModelEvent>,
    ) -> Result<(), (ModelFault, Shown)> {
        let mut shown = Shown::Nothing;
        let started = self.provider.start(permit, turn).await;
        let mut stream = started.map_err(|error| (unstarted(&error), shown))?;
        while let Some(event) = stream.next().await {
            match event {
                ModelEvent::Error(fault) => return Err((fault, shown)),
                // Counting alone shows nothing.
                ModelEvent::Usage(_) => {}
                _ => shown = Shown::Output,
            }
            let _ = out.send(event).await;
        }
        Ok(())
    }

    /// Asks anew: what was allowed before may not be any more.
    fn permit(&self) -> Result<Permit, ModelFault> {
        let request = self.desk.request(
            "model.generate",
            Some(&self.model),
            &context(Context::default()),
        );
        let refused = |message: String| ModelFault {
            kind: FaultKind::Authentication,
            message,
            retryable: Retry::Never,
        };
        match self.desk.ask(&request) {
            Ok(Answer::Granted(granted)) => Ok(granted.permit),
            Ok(Answer::Review(refusal) | Answer::Denied(refusal)) => {
                Err(refused(refusal.to_string()))
            }
            Err(error) => Err(refused(error.to_string())),
        }
    }
}

/// Under which circumstances a model of a plugin is asked.
pub(crate) fn context(session: Context) -> Context {
    Context {
        template: Some("plugin".to_owned()),
        ..session
    }
}

impl std::fmt::Debug for PluggedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluggedModel")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl ModelProvider for PluggedModel {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn start(
        &self,
        permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        let (sender, events) = mpsc::channel(QUEUE);
        let task = tokio::spawn(self.clone().run(permit, turn, sender));
        let stream: Box<dyn ModelStream> = Box::new(Running { events, task });
        Box::pin(std::future::ready(Ok(stream)))
    }
}

/// A running turn. Dropping it ends the turn.
struct Running {
    events: mpsc::Receiver<ModelEvent>,
    task: JoinHandle<()>,
}

impl ModelStream for Running {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        Box::pin(self.events.recv())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A plugin that is not there may be there again; nothing else changes.
fn unstarted(error: &StartTurnError) -> ModelFault {
    let (kind, retryable) = match error {
        StartTurnError::Unreachable { .. } => (FaultKind::Network, Retry::Later),
        StartTurnError::WrongPermit { .. } | StartTurnError::Turn { .. } => {
            (FaultKind::InvalidRequest, Retry::Never)
        }
    };
    ModelFault {
        kind,
        message: crate::agent::explain(error),
        retryable,
    }
}
