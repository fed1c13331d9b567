//! All plugins of a host: found, started in order, supervised, reloaded.
//!
//! One plugin that is broken never stops another. What is refused is kept with
//! its reason. Next: `plugin` for one of them, `ground` for how it starts.

mod channel;
mod ground;
mod plugin;
mod provider;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_contract::ToolSource;
use fluffy_contract::tool::ForeignTool;
use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_core::manifest::{Kind, Misfit};
use fluffy_plugin_core::resolve::{Candidate, resolve};

use crate::connection::Connection;
use crate::go_plugin::PluginProvider;
use crate::log::Log;
use crate::shelf::{Found, Placed};
use crate::skill::SkillText;

pub use channel::{ChannelPlugin, RunChannelError};
pub use ground::{Containers, Ground, LaunchError, REVIEWED, THIRD_PARTY};
pub use plugin::{ReloadError, Source};
pub use provider::{NoProvider, Provider};

use ground::Launched;
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

    /// What the project lets plugins have from now on; those that run are
    /// started anew by the next [`Self::refresh`] where it differs.
    pub fn allow(&self, patterns: Vec<String>) {
        let allowed = &self.ground.allowed;
        *allowed.lock().unwrap_or_else(PoisonError::into_inner) = patterns;
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
                Ok(placed) if placed.manifest.kind == Kind::Channel => continue,
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
        let alone = self.start_alone(placed).await?;
        let tools = alone.connection().tools();
        alone.connection().stop(TRIED).await;
        Ok(tools)
    }

    /// Starts a plugin apart from all others, with nobody who looks after it.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_alone(&self, placed: &Placed) -> Result<Alone, LaunchError> {
        let log = Log::open(&placed.home.join("log"))?;
        let launched = self.ground.launch(placed, &log).await?;
        Ok(Alone { launched })
    }

    /// Whether a plugin is for this version.
    ///
    /// # Errors
    /// It is for others.
    pub fn fits(&self, manifest: &Manifest) -> Result<(), Misfit> {
        manifest.fits(&self.ground.version)
    }

    /// Starts an installed provider once, as [`Plugins::try_out`] does, to see
    /// which models it has.
    ///
    /// # Errors
    /// It does not start, or does not say.
    pub async fn try_models(&self, placed: &Placed) -> Result<Vec<String>, LaunchError> {
        let log = Log::open(&placed.home.join("log"))?;
        let launched = self.ground.launch(placed, &log).await?;
        let models = match launched.connection.channel() {
            Some(channel) => PluginProvider::new("", channel).models().await,
            None => Err("only `go-plugin` has providers".to_owned()),
        };
        launched.connection.stop(TRIED).await;
        models.map_err(|mut what| {
            launched.connection.free(&mut what);
            LaunchError::Unsupported { what }
        })
    }

    /// The models of a provider that runs, or why there are none.
    ///
    /// # Errors
    /// It is not there, no provider, or does not run.
    pub fn provider(&self, name: &str) -> Result<Provider, NoProvider> {
        let known = self.known();
        let rejected = known.rejected.get(name).cloned();
        Provider::of(name, known.plugins.get(name), rejected)
    }

    /// Starts an installed channel, and starts it again when it crashes. No
    /// other look at what is installed starts channels: each has a host of its
    /// own.
    ///
    /// # Errors
    /// It is not installed, not a channel, or does not start.
    pub async fn run_channel(&self, name: &str) -> Result<ChannelPlugin, RunChannelError> {
        let placed = self.ground.shelf.find(name)?;
        placed.manifest.fits(&self.ground.version)?;
        if placed.manifest.kind != Kind::Channel {
            return Err(RunChannelError::Kind {
                name: name.to_owned(),
                kind: placed.manifest.kind.as_str(),
            });
        }
        if let Some(why) = placed.record.disabled {
            return Err(RunChannelError::Disabled { why });
        }
        let desk = self.ground.desk_of(&placed)?;
        let plugin = self.plugin(name);
        Arc::clone(&plugin).begin(placed).await;
        match plugin.status().why {
            Some(why) => Err(RunChannelError::Down { why }),
            None => Ok(ChannelPlugin::new(plugin, desk)),
        }
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

    /// The skills of everything that is there now.
    #[must_use]
    pub fn skills(&self) -> Vec<SkillText> {
        let known = self.known();
        let skills = known.plugins.values().flat_map(|plugin| plugin.skills());
        skills.collect()
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

/// A plugin that runs apart from all others. Dropping it ends it.
pub struct Alone {
    launched: Launched,
}

impl Alone {
    /// The way to it.
    #[must_use]
    pub fn connection(&self) -> &dyn Connection {
        &*self.launched.connection
    }
}

impl std::fmt::Debug for Alone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alone").finish_non_exhaustive()
    }
}

fn candidate(placed: &Placed) -> Candidate {
    Candidate {
        version: placed.manifest.version.clone(),
        dependencies: placed.manifest.dependencies.clone(),
    }
}

/// An error with all its causes, in one line.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        // One that only passes its cause on says the same.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = next.source();
    }
    text
}
