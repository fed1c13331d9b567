//! A plugin that carries a conversation, through its crashes and restarts.
//!
//! What people say comes from whichever instance is current; when one ends, the
//! next is listened to. Who may speak and what is said is decided elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_contract::BoxFuture;
use fluffy_contract::channel::{Channel, Incoming, Outgoing, SendMessageError};
use fluffy_gate::Desk;
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_core::manifest::{Kind, Misfit};
use fluffy_policy::Permit;
use fluffy_policy::grant::BuildGrantError;
use tokio::sync::Mutex;

use super::plugin::Plugin;
use crate::go_plugin::PluginChannel;
use crate::shelf::ExamineError;

/// How long one that says nothing more may take to end; then it has closed.
const FUNERAL: Duration = Duration::from_secs(5);

/// How many messages are remembered.
const MAX_SEEN: usize = 256;

/// The channel of one plugin, as long as it can be started again.
#[derive(Debug)]
pub struct ChannelPlugin {
    plugin: Arc<Plugin>,
    desk: Desk,
    /// The instance that is listened to, by its number.
    heard: Mutex<Option<(u64, Arc<PluginChannel>)>>,
    /// The newest messages, so that a repeated one is heard once.
    seen: Mutex<VecDeque<Digest>>,
}

/// Why a channel is not run.
#[derive(Debug, thiserror::Error)]
pub enum RunChannelError {
    /// It is not installed, or not what was reviewed.
    #[error(transparent)]
    Examine(#[from] ExamineError),
    /// It is not for this version.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// What was granted is no grant.
    #[error("what was granted cannot be used")]
    Grant(#[from] BuildGrantError),
    /// It is of another type.
    #[error("the plugin `{name}` is no channel: its type is `{kind}`")]
    Kind {
        /// Its name.
        name: String,
        /// Its type.
        kind: &'static str,
    },
    /// It is switched off.
    #[error("the plugin is switched off: {why}")]
    Disabled {
        /// Why.
        why: String,
    },
    /// It does not start.
    #[error("the plugin does not run: {why}")]
    Down {
        /// Why.
        why: String,
    },
}

impl ChannelPlugin {
    pub(super) fn new(plugin: Arc<Plugin>, desk: Desk) -> Self {
        Self {
            plugin,
            desk,
            heard: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Whether a message came before; one without an id never did.
    async fn is_repeated(&self, said: &Incoming) -> bool {
        if said.id.is_empty() {
            return false;
        }
        let id = Digest::of(format!("{}\0{}", said.conversation, said.id).as_bytes());
        let mut seen = self.seen.lock().await;
        if seen.contains(&id) {
            return true;
        }
        if seen.len() >= MAX_SEEN {
            seen.pop_front();
        }
        seen.push_back(id);
        false
    }

    /// The plugin at the gate.
    #[must_use]
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Whether it will not be started again.
    fn is_down(&self) -> bool {
        matches!(self.plugin.status().state, State::Error | State::Stopped)
    }

    /// The next message of one instance; nothing once that instance is over.
    async fn hear(&self) -> Result<Option<Incoming>, String> {
        let instance = Arc::clone(&self.plugin.enter().await?.0);
        let channel = {
            let mut heard = self.heard.lock().await;
            match &*heard {
                Some((number, channel)) if *number == instance.number => Arc::clone(channel),
                _ => {
                    let none = || "it has no messages".to_owned();
                    let way = instance.connection().channel().ok_or_else(none)?;
                    let channel = Arc::new(PluginChannel::new(self.plugin.name.clone(), way));
                    *heard = Some((instance.number, Arc::clone(&channel)));
                    channel
                }
            }
        };
        if let Some(mut said) = channel.receive().await {
            for words in [&mut said.from, &mut said.conversation, &mut said.text] {
                instance.connection().free(words);
            }
            return Ok(Some(said));
        }
        let ended = tokio::time::timeout(FUNERAL, instance.connection().gone()).await;
        ended.map_err(|_| "it closed the channel".to_owned())?;
        Ok(None)
    }
}

impl Channel for ChannelPlugin {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn receive(&self) -> BoxFuture<'_, Option<Incoming>> {
        Box::pin(async move {
            loop {
                match self.hear().await {
                    Ok(Some(said)) if self.is_repeated(&said).await => {}
                    Ok(Some(said)) => return Some(said),
                    // The next instance is waited for, if there is one.
                    Ok(None) => {}
                    Err(_) if self.is_down() => return None,
                    Err(_) if self.plugin.current().is_some() => return None,
                    Err(_) => {}
                }
            }
        })
    }

    fn send(
        &self,
        permit: Permit,
        message: Outgoing,
    ) -> BoxFuture<'_, Result<(), SendMessageError>> {
        Box::pin(async move {
            let disconnected = |why: String| SendMessageError::Disconnected {
                channel: self.plugin.name.clone(),
                source: why.into(),
            };
            let entered = self.plugin.enter().await.map_err(disconnected)?;
            let none = || disconnected("it has no messages".to_owned());
            let way = match entered.0.kind() {
                Kind::Channel => entered.0.connection().channel(),
                Kind::Tool | Kind::Provider | Kind::Skill => None,
            };
            let channel = PluginChannel::new(self.plugin.name.clone(), way.ok_or_else(none)?);
            let sent = channel.send(permit, message).await;
            sent.map_err(|error| match error {
                SendMessageError::Disconnected { source, .. } => {
                    let mut why = source.to_string();
                    entered.0.connection().free(&mut why);
                    disconnected(why)
                }
                error => error,
            })
        })
    }
}
