//! All plugins of a host: found, started in order, supervised, reloaded.
//!
//! One plugin that is broken never stops another. What is refused is kept with
//! its reason. Next: `plugin` for one of them, `ground` for how it starts.

mod ground;
mod plugin;
mod unread;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_contract::ToolSource;
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_core::resolve::{Candidate, resolve};

use crate::shelf::{ExamineError, Found, Placed};

pub use ground::{Ground, LaunchError, REVIEWED, THIRD_PARTY};
pub use plugin::{ReloadError, Source};
pub use unread::FindUnreadError;

use plugin::Plugin;

/// The plugins of one host.
#[derive(Debug)]
pub struct Plugins {
    ground: Arc<Ground>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    plugins: BTreeMap<String, Arc<Plugin>>,
    rejected: BTreeMap<String, String>,
}

/// How a plugin is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: State,
    /// Why, if it does not run.
    pub why: Option<String>,
}

impl Plugins {
    /// No plugin runs yet.
    #[must_use]
    pub fn new(ground: Ground) -> Self {
        Self {
            ground: Arc::new(ground),
            known: Mutex::default(),
        }
    }

    /// Finds what is installed and starts what can be started, each after what
    /// it depends on. Comes back when each runs or has failed.
    pub async fn start_all(&self) {
        let found = match self.ground.shelf.list() {
            Ok(found) => found,
            Err(error) => {
                let why = format!("the installed plugins cannot be read: {error}");
                self.known().rejected.insert("*".to_owned(), why);
                return;
            }
        };
        let ready = self.sorted_out(found);
        // Those that depend on nobody do not wait for each other.
        let (alone, others): (Vec<Placed>, Vec<Placed>) = ready
            .into_iter()
            .partition(|placed| placed.manifest.dependencies.is_empty());
        let starts = alone.into_iter().map(|placed| {
            let plugin = self.add(&placed);
            tokio::spawn(async move { plugin.begin(placed).await })
        });
        for start in starts.collect::<Vec<_>>() {
            let _ = start.await;
        }
        for placed in others {
            self.add(&placed).begin(placed).await;
        }
    }

    /// What can be started, in order; the rest is rejected by name.
    fn sorted_out(&self, found: Vec<Found>) -> Vec<Placed> {
        let mut known = self.known();
        let mut ready = BTreeMap::new();
        for Found { name, placed } in found {
            let why = match placed {
                Ok(placed) if placed.record.disabled.is_some() => continue,
                Ok(placed) => match placed.manifest.fits(&self.ground.version) {
                    Ok(()) => {
                        ready.insert(name, placed);
                        continue;
                    }
                    Err(misfit) => misfit.to_string(),
                },
                Err(error) => explain(&error),
            };
            known.rejected.insert(name, why);
        }
        let candidates = ready.iter().map(|(name, placed)| {
            let candidate = Candidate {
                version: placed.manifest.version.clone(),
                dependencies: placed.manifest.dependencies.clone(),
            };
            (name.clone(), candidate)
        });
        let resolution = resolve(&candidates.collect());
        for (name, why) in resolution.rejected {
            known.rejected.insert(name, why.to_string());
        }
        let in_order = resolution.order.into_iter();
        in_order.filter_map(|name| ready.remove(&name)).collect()
    }

    fn add(&self, placed: &Placed) -> Arc<Plugin> {
        let name = placed.manifest.name.clone();
        let plugin = Arc::new(Plugin::new(name.clone(), Arc::clone(&self.ground)));
        self.known().plugins.insert(name, Arc::clone(&plugin));
        plugin
    }

    /// The tools of everything that runs now.
    #[must_use]
    pub fn sources(&self) -> Vec<Arc<dyn ToolSource>> {
        let known = self.known();
        let sources = known.plugins.values().filter_map(Plugin::source);
        sources
            .map(|source| Arc::new(source) as Arc<dyn ToolSource>)
            .collect()
    }

    /// Where every plugin stands, rejected ones too.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        let known = self.known();
        let running = known.plugins.values().map(|plugin| plugin.status());
        let rejected = known.rejected.iter().map(|(name, why)| Status {
            name: name.clone(),
            state: State::Rejected,
            why: Some(why.clone()),
        });
        running.chain(rejected).collect()
    }

    /// Starts a plugin anew from what is installed now; the old one stays if
    /// the new one does not start.
    ///
    /// # Errors
    /// It is not installed, rejected, or does not start.
    pub async fn reload(&self, name: &str) -> Result<(), ReloadError> {
        let placed = self.ground.shelf.find(name)?;
        placed.manifest.fits(&self.ground.version)?;
        let known = self.known().plugins.get(name).cloned();
        let plugin = known.unwrap_or_else(|| self.add(&placed));
        plugin.reload(placed).await
    }

    /// Ends a plugin: no new calls, those it has may finish.
    pub async fn stop(&self, name: &str) {
        let plugin = self.known().plugins.get(name).cloned();
        if let Some(plugin) = plugin {
            plugin.end().await;
        }
    }

    /// Ends all of them.
    pub async fn stop_all(&self) {
        let plugins: Vec<_> = self.known().plugins.values().cloned().collect();
        let ends = plugins
            .into_iter()
            .map(|plugin| tokio::spawn(async move { plugin.end().await }));
        for end in ends.collect::<Vec<_>>() {
            let _ = end.await;
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Two maps, whole at any moment.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error with all its causes, in one line.
fn explain(error: &ExamineError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
