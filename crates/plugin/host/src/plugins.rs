//! All plugins of a host: found, started in order, supervised, reloaded.
//!
//! One plugin that is broken never stops another. What is refused is kept with
//! its reason. Next: `plugin` for one of them, `ground` for how it starts.

mod ground;
mod plugin;
mod unread;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_contract::ToolSource;
use fluffy_contract::tool::ForeignTool;
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_core::resolve::{Candidate, resolve};

use crate::log::Log;
use crate::shelf::{ExamineError, Found, Placed};

pub use ground::{Ground, LaunchError, REVIEWED, THIRD_PARTY};
pub use plugin::{ReloadError, Source};
pub use unread::FindUnreadError;

use plugin::Plugin;

/// How long one that was only looked at may take to end.
const TRIED: Duration = Duration::from_secs(2);

/// The plugins of one host.
#[derive(Debug)]
pub struct Plugins {
    ground: Arc<Ground>,
    known: Mutex<Known>,
    /// One look at what is installed after the other.
    turn: tokio::sync::Mutex<()>,
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
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Makes what runs what is installed: starts what is new, each after what
    /// it depends on, reloads what was replaced, ends what is gone or switched
    /// off. Comes back when each runs or has failed.
    pub async fn refresh(&self) {
        let _turn = self.turn.lock().await;
        let names = match self.ground.shelf.names() {
            Ok(names) => names,
            Err(error) => {
                let why = format!("the installed plugins cannot be read: {error}");
                self.known().rejected.insert("*".to_owned(), why);
                return;
            }
        };
        let known = self.known().plugins.clone();
        // One that is what its record says needs no second look.
        let is_as_it_was = |name: &String| {
            let record = self.ground.shelf.record(name).ok();
            let plugin = known.get(name);
            record.is_some() && plugin.is_some_and(|plugin| plugin.runs(record.as_ref()))
        };
        let (same, others): (Vec<_>, Vec<_>) = names.into_iter().partition(is_as_it_was);
        let found = others.into_iter().map(|name| self.ground.shelf.look(name));
        let ready = self.sorted_out(found.flatten().collect(), &same);
        let kept = |name: &String| {
            same.contains(name) || ready.iter().any(|one| one.manifest.name == *name)
        };
        let gone = known.iter().filter(|(name, _)| !kept(name));
        let gone: Vec<_> = gone
            .map(|(name, plugin)| (name.clone(), Arc::clone(plugin)))
            .collect();
        for (name, plugin) in gone {
            self.known().plugins.remove(&name);
            plugin.end().await;
        }
        self.start(ready).await;
    }

    async fn start(&self, ready: Vec<Placed>) {
        // Those that depend on nobody do not wait for each other.
        let (alone, others): (Vec<Placed>, Vec<Placed>) = ready
            .into_iter()
            .partition(|placed| placed.manifest.dependencies.is_empty());
        let starts = alone.into_iter().map(|placed| {
            let plugin = self.plugin(&placed.manifest.name);
            tokio::spawn(async move { plugin.begin(placed).await })
        });
        for start in starts.collect::<Vec<_>>() {
            let _ = start.await;
        }
        for placed in others {
            self.plugin(&placed.manifest.name).begin(placed).await;
        }
    }

    /// What can be started, in order; the rest is rejected by name.
    fn sorted_out(&self, found: Vec<Found>, same: &[String]) -> Vec<Placed> {
        let mut known = self.known();
        known.rejected.clear();
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
        let running = same.iter().filter_map(|name| {
            let plugin = known.plugins.get(name)?;
            Some((name.clone(), candidate(&plugin.placed()?)))
        });
        let new = ready
            .iter()
            .map(|(name, placed)| (name.clone(), candidate(placed)));
        let resolution = resolve(&running.chain(new).collect());
        for (name, why) in resolution.rejected {
            known.rejected.insert(name, why.to_string());
        }
        let in_order = resolution.order.into_iter();
        in_order.filter_map(|name| ready.remove(&name)).collect()
    }

    /// The plugin of this name, which is made where it is new.
    fn plugin(&self, name: &str) -> Arc<Plugin> {
        let new = || Arc::new(Plugin::new(name.to_owned(), Arc::clone(&self.ground)));
        let mut known = self.known();
        Arc::clone(known.plugins.entry(name.to_owned()).or_insert_with(new))
    }

    /// Starts an installed plugin once, apart from all others, to see what
    /// tools it has, and ends it.
    ///
    /// # Errors
    /// It does not start.
    pub async fn try_out(&self, placed: &Placed) -> Result<Vec<ForeignTool>, LaunchError> {
        let log = Log::open(&placed.home.join("log"))?;
        let launched = self.ground.launch(placed, &log).await?;
        let tools = launched.connection.tools();
        launched.connection.stop(TRIED).await;
        Ok(tools)
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
        self.plugin(name).reload(placed).await
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

fn candidate(placed: &Placed) -> Candidate {
    Candidate {
        version: placed.manifest.version.clone(),
        dependencies: placed.manifest.dependencies.clone(),
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
