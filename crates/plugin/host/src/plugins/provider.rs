//! A plugin's models, for sessions: asked of whichever instance is current.
//!
//! An answer counts as a call: a reload waits for it. When the instance ends in
//! the middle, the answer ends with a fault that says to try again.

use std::sync::Arc;

use fluffy_contract::BoxFuture;
use fluffy_contract::model::{ModelEvent, ModelProvider, ModelStream, StartTurnError, Turn};
use fluffy_plugin_core::manifest::Kind;
use fluffy_policy::Permit;

use super::plugin::{Entered, Plugin};
use crate::connection::Connection;
use crate::go_plugin::PluginProvider;

/// The models of one plugin.
#[derive(Debug)]
pub struct Provider {
    plugin: Arc<Plugin>,
}

/// Why a plugin answers for no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoProvider {
    /// There is no such plugin.
    #[error("no plugin `{name}` is installed and switched on")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// It is of another type, or does not run.
    #[error("the plugin `{name}` does not answer for models: {why}")]
    Not {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
}

impl Provider {
    pub(super) fn of(
        name: &str,
        plugin: Option<&Arc<Plugin>>,
        rejected: Option<String>,
    ) -> Result<Self, NoProvider> {
        let not = |why: String| NoProvider::Not {
            name: name.to_owned(),
            why,
        };
        let plugin = match (plugin, rejected) {
            (Some(plugin), _) => plugin,
            (None, Some(why)) => return Err(not(why)),
            (None, None) => {
                let name = name.to_owned();
                return Err(NoProvider::Unknown { name });
            }
        };
        let Some(placed) = plugin.placed() else {
            return Err(not("it never started".to_owned()));
        };
        if placed.manifest.kind != Kind::Provider {
            let kind = placed.manifest.kind.as_str();
            return Err(not(format!("its type is `{kind}`")));
        }
        match (plugin.current(), plugin.status().why) {
            (None, Some(why)) => Err(not(why)),
            _ => Ok(Self {
                plugin: Arc::clone(plugin),
            }),
        }
    }
}

impl ModelProvider for Provider {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn start(
        &self,
        permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        Box::pin(async move {
            let unreachable = |why: String| StartTurnError::Unreachable {
                provider: self.plugin.name.clone(),
                source: why.into(),
            };
            let entered = self.plugin.enter().await.map_err(unreachable)?;
            let channel = match entered.0.kind() {
                Kind::Provider => entered.0.connection().channel(),
                Kind::Tool | Kind::Channel | Kind::Skill => None,
            };
            let none = || unreachable("it has no models".to_owned());
            let channel = channel.ok_or_else(none)?;
            let provider = PluginProvider::new(self.plugin.name.clone(), channel);
            let stream = provider.start(permit, turn).await?;
            let entered = Some(entered);
            Ok(Box::new(Answering { stream, entered }) as Box<dyn ModelStream>)
        })
    }
}

/// An answer, and the call it is for its plugin.
struct Answering {
    stream: Box<dyn ModelStream>,
    entered: Option<Entered>,
}

impl ModelStream for Answering {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        Box::pin(async move {
            let mut event = self.stream.next().await;
            match (&mut event, &self.entered) {
                (Some(event), Some(entered)) => free(entered.0.connection(), event),
                (Some(_), None) | (None, _) => self.entered = None,
            }
            event
        })
    }
}

/// A key that a provider was given is not for the model's answer, nor for what
/// a person is told about a failure.
fn free(connection: &dyn Connection, event: &mut ModelEvent) {
    match event {
        ModelEvent::TextDelta { text } | ModelEvent::ReasoningDelta { text } => {
            connection.free(text);
        }
        ModelEvent::ToolCallStart { name, .. } => connection.free(name),
        ModelEvent::ToolCallDelta { arguments, .. } => connection.free(arguments),
        ModelEvent::Waiting { because, .. } | ModelEvent::Restarted { because, .. } => {
            connection.free(because);
        }
        ModelEvent::Error(fault) => connection.free(&mut fault.message),
        // What only goes back to it, and numbers.
        ModelEvent::TextEnd { .. }
        | ModelEvent::ReasoningEnd { .. }
        | ModelEvent::ToolCallEnd { .. }
        | ModelEvent::Usage(_)
        | ModelEvent::Done { .. } => {}
    }
}
