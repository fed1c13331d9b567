//! One turn through a chain of models, however many attempts it takes.
//!
//! Sends, reads, and does what `attempt` decides; what was shown is taken back
//! by [`ModelEvent::Restarted`] before anything is shown again. Dropping the
//! stream ends the turn at once. Never decides by itself and never runs a tool.

use std::sync::Arc;

use fluffy_base::Clock;
use fluffy_contract::BoxFuture;
use fluffy_contract::model::{FaultKind, ModelEvent, ModelFault, ModelStream, Part, Retry, Turn};
use fluffy_secret::SecretString;
use fluffy_secret::redactor::MARK;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::adapter::{Decoder, ProviderSettings, encode};
use crate::attempt::{Attempt, Jitter, Next, RetryRules, Shown, next_attempt};
use crate::client::{Exchange, Refused};

/// Events that may wait to be taken; then the provider waits.
const QUEUE: usize = 64;

/// One model of a chain.
#[derive(Debug)]
pub struct Link {
    /// Its provider.
    pub settings: ProviderSettings,
    /// Its name there.
    pub model: String,
    /// The key, unless the provider is on this machine.
    pub key: Option<SecretString>,
}

/// A chain of models, tried in order.
pub struct Chain {
    links: Vec<Link>,
    exchange: Arc<dyn Exchange>,
    rules: RetryRules,
    clock: Arc<dyn Clock>,
}

impl Chain {
    /// A chain with the usual patience.
    #[must_use]
    pub fn new(links: Vec<Link>, exchange: Arc<dyn Exchange>, clock: Arc<dyn Clock>) -> Self {
        Self {
            rules: RetryRules::for_models(links.len()),
            links,
            exchange,
            clock,
        }
    }

    /// The same chain with other patience.
    #[must_use]
    pub fn with_rules(self, rules: RetryRules) -> Self {
        Self { rules, ..self }
    }

    /// Starts a turn; the turn's own model name gives way to the chain's.
    #[must_use]
    pub fn start(self: &Arc<Self>, turn: Turn) -> TurnStream {
        let (sender, events) = mpsc::channel(QUEUE);
        let chain = Arc::clone(self);
        let task = tokio::spawn(async move { chain.run(turn, sender).await });
        TurnStream { events, task }
    }

    async fn run(&self, mut turn: Turn, out: mpsc::Sender<ModelEvent>) {
        let (mut history, mut model) = (Vec::new(), 0);
        loop {
            let Some(link) = self.links.get(model) else {
                let fault = fault(FaultKind::InvalidRequest, "there is no model to ask");
                let _ = out.send(ModelEvent::Error(fault)).await;
                return;
            };
            turn.model.clone_from(&link.model);
            let Err((mut failed, shown)) = self.attempt(link, &turn, &out).await else {
                return;
            };
            link.hide_key(&mut failed.fault);
            if shown == Shown::Nothing
                && refuses_thoughts(&failed.fault)
                && drop_thoughts(&mut turn)
            {
                continue;
            }
            let because = failed.fault.message.clone();
            history.push(Attempt {
                model,
                ended: self.clock.now(),
                fault: failed.fault.clone(),
                retry_after: failed.retry_after,
                shown,
            });
            let now = self.clock.now();
            let next = next_attempt(&history, now, &self.rules, jitter());
            let is_restart = match next {
                Next::GiveUp => {
                    let _ = out.send(ModelEvent::Error(failed.fault)).await;
                    return;
                }
                Next::Failover { model: other } => {
                    model = other;
                    true
                }
                Next::Wait { until } => {
                    let pause = until.since(now);
                    let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                    let because = because.clone();
                    if out
                        .send(ModelEvent::Waiting { millis, because })
                        .await
                        .is_err()
                    {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                    shown == Shown::Output
                }
            };
            let name = self.links.get(model).map(Link::name).unwrap_or_default();
            let restarted = ModelEvent::Restarted {
                model: name,
                because,
            };
            if is_restart && out.send(restarted).await.is_err() {
                return;
            }
        }
    }

    /// One attempt: all of its events, or why it failed.
    async fn attempt(
        &self,
        link: &Link,
        turn: &Turn,
        out: &mpsc::Sender<ModelEvent>,
    ) -> Result<(), (Refused, Shown)> {
        let nothing = |refused: Refused| (refused, Shown::Nothing);
        let request = encode(turn, &link.settings).map_err(|error| {
            nothing(fault(FaultKind::InvalidRequest, &error.to_string()).into())
        })?;
        let sent = self
            .exchange
            .send(&link.settings, &request, link.key.as_ref());
        let mut body = sent.await.map_err(nothing)?;
        drop(request);
        let mut decoder = Decoder::new(link.settings.wire, turn);
        let mut shown = Shown::Nothing;
        loop {
            let piece = body.next().await.map_err(|fault| (fault.into(), shown))?;
            let events = match &piece {
                Some(bytes) => decoder.feed(bytes),
                None => decoder.finish(),
            };
            for event in events {
                if let ModelEvent::Error(fault) = event {
                    return Err((fault.into(), shown));
                }
                // Counting alone shows nothing.
                if !matches!(event, ModelEvent::Usage(_)) {
                    shown = Shown::Output;
                }
                let _ = out.send(event).await;
            }
            if decoder.has_ended() {
                return Ok(());
            }
        }
    }
}

impl Link {
    /// A server may repeat the key in what it complains about.
    fn hide_key(&self, fault: &mut ModelFault) {
        if let Some(key) = &self.key
            && fault.message.contains(key.expose().as_str())
        {
            fault.message = fault.message.replace(key.expose().as_str(), MARK);
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.settings.provider, self.model)
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain")
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// A running turn. Dropping it ends the turn and its connection.
#[derive(Debug)]
pub struct TurnStream {
    events: mpsc::Receiver<ModelEvent>,
    task: JoinHandle<()>,
}

impl ModelStream for TurnStream {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        Box::pin(self.events.recv())
    }
}

impl Drop for TurnStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a provider does not take back thoughts it once signed. They are
/// bound to the conversation they were made in, and a summary changes that.
fn refuses_thoughts(fault: &ModelFault) -> bool {
    fault.kind == FaultKind::InvalidRequest && fault.message.contains("thinking")
}

/// Leaves the model's thoughts out; says whether there were any.
fn drop_thoughts(turn: &mut Turn) -> bool {
    let mut found = false;
    for message in &mut turn.messages {
        let before = message.parts.len();
        let is_thought = |part: &Part| matches!(part, Part::Reasoning { .. });
        message.parts.retain(|part| !is_thought(part));
        found |= message.parts.len() < before;
    }
    found
}

fn fault(kind: FaultKind, message: &str) -> ModelFault {
    ModelFault {
        kind,
        message: message.to_owned(),
        retryable: Retry::Never,
    }
}

/// A random number for the next pause.
#[must_use]
pub fn jitter() -> Jitter {
    let mut bytes = [0; 2];
    // Without randomness everybody waits equally long, which is no harm here.
    let _ = getrandom::fill(&mut bytes);
    Jitter(u16::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
