//! What plugins run on, and how one of them is started on it.
//!
//! From a manifest and a person's grant to a sandbox: nothing that either of
//! them does not name. What policy keeps unread in a granted folder is covered
//! before the plugin starts, since a mounted file is read without asking.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{
    Command, PluginMount, SandboxError, SandboxSpec, SmallerLimits, Tier,
};
use fluffy_egress::Network;
use fluffy_gate::{Answer, Desk};
use fluffy_layer::{FileError, FindUnreadError, MAX_LOOKED_AT, View, find_unread};
use fluffy_ledger::{Actor, ActorKind, Ledger};
use fluffy_plugin_core::manifest::{self, Execution, Protocol, Start};
use fluffy_plugin_core::profile::{
    self, Kind, NativeProfile, ProfileError, System, looks_at, native,
};
use fluffy_plugin_core::tier::{Availability, ChooseTierError, Circumstances, Origin, choose};
use fluffy_policy::grant::{BuildGrantError, Grant, GrantLists};
use fluffy_policy::{Context, Permit, Principal, PrincipalKind};
use fluffy_sandbox::client::LauncherHandle;
use fluffy_sandbox::owner::give_away;
use fluffy_sandbox::plan::PROXY_PORT;
use fluffy_secret::Redactor;
use semver::Version;
use serde_json::{Map, Value};

use crate::connection::{Connection, StartPluginError};
use crate::go_plugin::{self, GoPluginSettings};
use crate::guarded::{Guarded, freed};
use crate::log::{Level, Log, Source};
use crate::mcp::{self, McpSettings};
use crate::room::{Entry, Way};
use crate::services::{Kept, OpenStoreError, Places, Services, Store};
use crate::settings::SettingsError;
use crate::shelf::{Meeting, Placed, Shelf};
use crate::skill::{ReadSkillsError, Skills};
use crate::wasm::{self, Fuel, WORKER_ARGUMENTS, WasmEntry, WasmOptions};

/// How long a plugin may take until it is ready.
const READY: Duration = Duration::from_secs(60);

/// How long its image may take to be fetched.
const FETCHED: Duration = Duration::from_secs(600);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The label of every plugin that a person reviewed.
pub const REVIEWED: &str = "reviewed_plugin";

/// The label of every plugin that did not come with the product.
pub const THIRD_PARTY: &str = "third_party";

/// What plugins run on.
pub struct Ground {
    /// What is installed.
    pub shelf: Shelf,
    /// Who makes their sandboxes.
    pub launcher: LauncherHandle,
    /// Who makes those that are containers.
    pub containers: Arc<dyn Containers>,
    /// The host at the gate: makes sandboxes and runs programs in them.
    pub host: Desk,
    /// Where everything is recorded.
    pub ledger: Ledger,
    /// What their proxies reach hosts through.
    pub network: Arc<dyn Network>,
    /// The project, which `/…` in their paths means.
    pub workspace: Option<PathBuf>,
    /// What that project lets them have, as patterns; looked at when one of
    /// them starts.
    pub allowed: Mutex<Vec<String>>,
    /// For whom they act.
    pub person: String,
    /// The version that manifests ask for.
    pub version: Version,
    /// This executable, which is the worker of modules too.
    pub program: PathBuf,
}

/// Who makes containers, once a plugin wants one.
pub trait Containers: Send + Sync {
    /// Their launcher, or why there is none and how to get one.
    fn launcher(&self) -> BoxFuture<'_, Result<LauncherHandle, String>>;
}

/// A launcher of containers that is there, or is not.
impl Containers for Result<LauncherHandle, String> {
    fn launcher(&self) -> BoxFuture<'_, Result<LauncherHandle, String>> {
        Box::pin(async { self.clone() })
    }
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground")
            .field("shelf", &self.shelf)
            .finish_non_exhaustive()
    }
}

/// Why a plugin does not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Policy says no to running it at all.
    #[error("policy does not let `{capability}` happen: {reason}")]
    Denied {
        /// What was asked for.
        capability: String,
        /// Who said no.
        reason: String,
    },
    /// What was granted is no grant.
    #[error("what was granted cannot be used")]
    Grant(#[from] BuildGrantError),
    /// It has nothing to run, or needs what is not there yet.
    #[error("it cannot run here: {what}")]
    Unsupported {
        /// What is missing.
        what: String,
    },
    /// No tier that is here is strong enough for it.
    #[error(transparent)]
    Tier(#[from] ChooseTierError),
    /// What it asks for is not to be had as it says.
    #[error("what it asks for cannot be opened to it")]
    Profile(#[from] ProfileError),
    /// Nobody can say what of the granted folders has to stay unread.
    #[error("what policy keeps unread cannot be hidden from it")]
    Unread(#[from] FindUnreadError),
    /// The project cannot be opened.
    #[error(transparent)]
    Project(#[from] FileError),
    /// Its settings are missing or cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Its folders cannot be used.
    #[error("its folders cannot be used")]
    Folder(#[from] std::io::Error),
    /// Its store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// It has no skills.
    #[error("its skills cannot be used")]
    Skills(#[from] ReadSkillsError),
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartPluginError),
}

/// A plugin that was started, and what it needs as long as it runs.
pub(super) struct Launched {
    pub(super) connection: Arc<dyn Connection>,
    /// Removed when the plugin is gone.
    pub(super) _meeting: Option<Meeting>,
}

/// One start of a plugin: what it is made from.
struct Beginning<'a> {
    placed: &'a Placed,
    execution: &'a Execution,
    /// Whose sandboxes are of this tier.
    launcher: LauncherHandle,
    tier: Tier,
    desk: Desk,
    meeting: &'a Meeting,
    log: Log,
    settings: Map<String, Value>,
    redactor: Option<Arc<Redactor>>,
}

impl Ground {
    /// Starts a plugin in its sandbox.
    pub(super) async fn launch(&self, placed: &Placed, log: &Log) -> Result<Launched, LaunchError> {
        let execution = match (&placed.manifest.execution, placed.manifest.kind) {
            (None, _) => {
                return Ok(Launched {
                    connection: Arc::new(Skills::of(placed)?),
                    _meeting: None,
                });
            }
            (Some(_), manifest::Kind::Skill) => {
                let what = "a skill is text, and runs nothing".to_owned();
                return Err(LaunchError::Unsupported { what });
            }
            (Some(execution), _) => execution,
        };
        let (tier, launcher) = self.isolated(execution).await?;
        let words = format!("it runs in tier {tier}");
        log.write(Level::Info, Source::Host, &words);
        let set = self.shelf.settings(&placed.manifest.name)?;
        let redactor = set.redactor()?.map(Arc::new);
        let meeting = self.shelf.meeting()?;
        let beginning = Beginning {
            placed,
            execution,
            launcher,
            tier,
            desk: self.desk_of(placed)?,
            meeting: &meeting,
            log: log.without(redactor.clone()),
            settings: set.resolved(&placed.manifest)?,
            redactor,
        };
        let started = self.start(&beginning).await;
        let connection = match (&beginning.redactor, started) {
            (Some(redactor), Ok(inner)) => Arc::new(Guarded {
                inner,
                redactor: Arc::clone(redactor),
            }),
            (Some(redactor), Err(LaunchError::Start(error))) => {
                return Err(freed(redactor, error).into());
            }
            (_, started) => started?,
        };
        Ok(Launched {
            connection,
            _meeting: Some(meeting),
        })
    }

    /// The tier for a plugin, the strongest that it can run in here, and who
    /// makes its sandboxes.
    async fn isolated(&self, execution: &Execution) -> Result<(Tier, LauncherHandle), LaunchError> {
        // An engine is left alone while nothing could run in a container.
        let containers = match execution.start.tiers().contains(&Tier::Container) {
            true => self.containers.launcher().await,
            false => Err("it cannot run in a container".to_owned()),
        };
        let chosen = choose(execution, &circumstances(&containers))?;
        Ok(match (chosen.tier, containers) {
            (Tier::Container, Ok(launcher)) => (Tier::Container, launcher),
            // A module's worker is a process.
            _ => (Tier::Process, self.launcher.clone()),
        })
    }

    /// Starts it, as soon as its image is there.
    async fn start(&self, beginning: &Beginning<'_>) -> Result<Arc<dyn Connection>, LaunchError> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(100);
        loop {
            match self.start_once(beginning).await {
                Err(LaunchError::Start(error))
                    if is_pending(&error) && began.elapsed() < FETCHED =>
                {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                started => return started,
            }
        }
    }

    async fn start_once(
        &self,
        beginning: &Beginning<'_>,
    ) -> Result<Arc<dyn Connection>, LaunchError> {
        let Beginning {
            placed, execution, ..
        } = *beginning;
        Ok(match &execution.start {
            Start::Program {
                command,
                protocol: Protocol::Mcp,
            }
            | Start::Image {
                command,
                protocol: Protocol::Mcp,
                ..
            } => {
                let entry = self.entry(beginning, command)?;
                let settings = mcp_settings(execution, entry.spec.read.clone());
                Arc::new(mcp::start(entry, beginning.log.clone(), settings).await?)
            }
            Start::Program {
                command,
                protocol: Protocol::GoPlugin,
            }
            | Start::Image {
                command,
                protocol: Protocol::GoPlugin,
                ..
            } => {
                let entry = self.entry(beginning, command)?;
                let services = self.services(beginning)?;
                let settings = GoPluginSettings {
                    ready: READY,
                    call: Duration::from(execution.limits.call_timeout),
                    ..GoPluginSettings::default()
                };
                Arc::new(go_plugin::start(entry, Arc::new(services), settings).await?)
            }
            Start::Module { file } => {
                let module = std::fs::read(placed.files.join(file))?;
                let services = self.services(beginning)?;
                let entry = WasmEntry {
                    entry: self.worker(beginning)?,
                    module,
                    cache: self.shelf.compiled().map(Arc::new),
                };
                let options = wasm_options(execution);
                Arc::new(wasm::start(entry, Arc::new(services), options).await?)
            }
        })
    }

    /// What the project lets plugins have now.
    pub(super) fn allowed(&self) -> Vec<String> {
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        allowed.clone()
    }

    /// The plugin at the gate: what its manifest declares and denies, what the
    /// project allows, and what a person granted.
    pub(super) fn desk_of(&self, placed: &Placed) -> Result<Desk, BuildGrantError> {
        let manifest = &placed.manifest;
        let texts = |patterns: &[fluffy_policy::capability::Pattern]| {
            let texts = patterns.iter().map(|pattern| pattern.as_str().to_owned());
            texts.collect()
        };
        let grant = Grant::build(&GrantLists {
            capabilities: texts(&manifest.capabilities),
            deny_capabilities: texts(&manifest.deny_capabilities),
            workspace: self.allowed(),
            user: placed.record.granted.clone(),
        })?;
        let mut principal = Principal::new(PrincipalKind::Plugin, &*manifest.name, Arc::new(grant));
        principal
            .tags
            .extend([REVIEWED, THIRD_PARTY].map(str::to_owned));
        principal.on_behalf_of = Some(self.person.clone());
        Ok(Desk {
            gate: Arc::clone(&self.host.gate),
            principal,
        })
    }

    /// Who acted, for events about a plugin.
    pub(super) fn actor(name: &str) -> Actor {
        Actor::new(ActorKind::ServicePrincipal, name)
    }

    fn entry(&self, beginning: &Beginning<'_>, command: &[String]) -> Result<Entry, LaunchError> {
        let Beginning {
            placed,
            execution,
            meeting,
            ref desk,
            ..
        } = *beginning;
        let template = template_of(execution);
        let context = context_of(beginning);
        let profile = self.profile(placed, execution, meeting)?;
        let data = placed.home.join("data");
        std::fs::create_dir_all(&data)?;
        if beginning.tier != Tier::Container {
            take_back(&data)?;
        }
        let mut read = profile.read;
        let mut hidden = self.unread(&read, desk, &context)?;
        // What is hidden as a whole is not shown at all.
        read.retain(|path| !hidden.iter().any(|one| path.starts_with(one)));
        hidden.extend(profile.hidden);
        hidden.retain(|path| read.iter().any(|shown| path.starts_with(shown)));
        let spec = SandboxSpec {
            template: template.to_owned(),
            tier: Some(beginning.tier),
            image: match &execution.start {
                Start::Image { image, .. } => Some(image.clone()),
                Start::Program { .. } | Start::Module { .. } => None,
            },
            read,
            hidden,
            plugin: Some(PluginMount {
                files: placed.files.clone(),
                data: profile.data.then_some(data),
                meeting: Some(meeting.path().to_owned()),
            }),
            limits: SmallerLimits {
                memory: Some(profile.memory),
                cpu_milli: Some(profile.cpu_milli),
                pids: Some(profile.pids),
            },
            ..SandboxSpec::default()
        };
        let mut command = Command::new(in_files(command, &placed.files));
        command.directory = Some(placed.files.clone());
        command.environment = variables(beginning, &context)?;
        let way = (!profile.hosts.is_empty()).then(|| Way {
            desk: desk.clone(),
            context: context.clone(),
            ledger: self.ledger.clone(),
            network: Arc::clone(&self.network),
        });
        Ok(Entry {
            launcher: beginning.launcher.clone(),
            create: self.permit("sandbox.create", template, &context)?,
            run: self.permit("exec.run", &placed.manifest.name, &context)?,
            spec,
            command,
            way,
        })
    }

    /// The room of the engine that runs a module: the limits are the module's,
    /// and its engine needs room beside it.
    fn worker(&self, beginning: &Beginning<'_>) -> Result<Entry, LaunchError> {
        let program = self.program.to_str().map(str::to_owned);
        let program = program.ok_or_else(|| LaunchError::Unsupported {
            what: "this executable has a path that is no text".to_owned(),
        })?;
        let words = WORKER_ARGUMENTS.map(str::to_owned);
        let command: Vec<String> = std::iter::once(program).chain(words).collect();
        let mut entry = self.entry(beginning, &command)?;
        entry.spec.limits = SmallerLimits::default();
        Ok(entry)
    }

    /// What it may ask for, in its own name.
    fn services(&self, beginning: &Beginning<'_>) -> Result<Services, LaunchError> {
        let home = &beginning.placed.home;
        let kept = Kept {
            store: Store::open(&home.join("kv.sqlite"))?,
            log: beginning.log.clone(),
        };
        let context = context_of(beginning);
        let services = Services::new(beginning.desk.clone(), context, kept);
        let services = services.in_places(Places {
            workspace: self.workspace.clone(),
            data: Some(home.join("data")),
        });
        let settings = beginning.settings.clone();
        Ok(services.configured(settings, beginning.redactor.clone()))
    }

    /// What its manifest opens here; a link on the way to any of it is refused.
    fn profile(
        &self,
        placed: &Placed,
        execution: &Execution,
        meeting: &Meeting,
    ) -> Result<NativeProfile, LaunchError> {
        let workspace = self.workspace.as_deref();
        let looked_at = looks_at(execution, System::Linux, workspace).into_iter();
        let present = looked_at.filter_map(|path| Some((path.clone(), kind_of(&path)?)));
        let places = profile::Places {
            files: placed.files.clone(),
            data: placed.home.join("data"),
            meeting: meeting.path().to_owned(),
            workspace: self.workspace.clone(),
            proxy_port: PROXY_PORT,
            present: present.collect(),
        };
        Ok(native(execution, &places)?)
    }

    /// What stays unread in these folders, under any of its names.
    fn unread(
        &self,
        read: &[PathBuf],
        desk: &Desk,
        context: &Context,
    ) -> Result<Vec<PathBuf>, LaunchError> {
        let Some(workspace) = self.workspace.as_ref().filter(|_| !read.is_empty()) else {
            return Ok(Vec::new());
        };
        let may_read = |resource: &str| {
            let request = desk.request("fs.read", Some(resource), context);
            desk.gate.would_allow(&request)
        };
        let view = View::of_project(workspace)?;
        let unread = find_unread(&view, None, MAX_LOOKED_AT, &may_read)?;
        let mut hidden = Vec::new();
        for path in unread.paths() {
            let place = workspace.join(OsStr::from_bytes(path.as_bytes()));
            if read
                .iter()
                .any(|shown| place.starts_with(shown) || shown.starts_with(&place))
            {
                hidden.push(place);
            }
        }
        Ok(hidden)
    }

    fn permit(&self, action: &str, name: &str, context: &Context) -> Result<Permit, LaunchError> {
        permit(&self.host, action, name, context)
    }
}

fn permit(desk: &Desk, action: &str, name: &str, context: &Context) -> Result<Permit, LaunchError> {
    let request = desk.request(action, Some(name), context);
    let denied = |reason: String| LaunchError::Denied {
        capability: format!("{action}.{name}"),
        reason,
    };
    match desk.ask(&request) {
        Ok(Answer::Granted(granted)) => Ok(granted.permit),
        Ok(Answer::Review(refusal) | Answer::Denied(refusal)) => Err(denied(refusal.to_string())),
        Err(error) => Err(denied(error.to_string())),
    }
}

/// The variables that carry settings; policy is asked in the plugin's name, as
/// when it asks for them itself.
fn variables(
    beginning: &Beginning<'_>,
    context: &Context,
) -> Result<BTreeMap<String, String>, LaunchError> {
    let wanted = &beginning.execution.environment;
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let _permit = permit(&beginning.desk, "config.read", "self", context)?;
    let value = |(variable, setting): (&String, &String)| {
        let text = match beginning.settings.get(setting)? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some((variable.clone(), text))
    };
    Ok(wanted.iter().filter_map(value).collect())
}

fn mcp_settings(execution: &Execution, roots: Vec<PathBuf>) -> McpSettings {
    McpSettings {
        start_timeout: READY,
        call_timeout: Duration::from(execution.limits.call_timeout),
        roots,
    }
}

/// Data that a container's user owned is its host's again: there, a user
/// without any capability works with it.
fn take_back(data: &Path) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let is_ours = std::fs::symlink_metadata(data)?.uid() == own;
    match is_ours || own != 0 {
        true => Ok(()),
        false => give_away(data, own, rustix::process::getegid().as_raw()),
    }
}

/// What a path is, if it is there; one with a link on the way is a link.
fn kind_of(path: &Path) -> Option<Kind> {
    let found = std::fs::symlink_metadata(path).ok()?;
    let target = path.canonicalize().ok()?;
    Some(match found.is_dir() {
        _ if target != path => Kind::Link { target },
        true => Kind::Directory,
        false => Kind::File,
    })
}

/// What a host can do for plugins that somebody installed. What asks for a
/// tier that is not there is refused and never weakened.
fn circumstances(containers: &Result<LauncherHandle, String>) -> Circumstances {
    let missing = |reason: &str| Availability::Missing {
        reason: reason.to_owned(),
    };
    Circumstances {
        origin: Origin::ThirdParty,
        policy: None,
        asked: None,
        machine: BTreeMap::from([
            (Tier::Wasm, Availability::Here),
            (Tier::Process, Availability::Here),
            (
                Tier::Container,
                match containers {
                    Ok(_) => Availability::Here,
                    Err(why) => missing(why),
                },
            ),
            (Tier::Microvm, missing("there are no virtual machines yet")),
        ]),
    }
}

/// The template of a plugin: one with a network only where it has hosts.
fn template_of(execution: &Execution) -> &'static str {
    match execution.sandbox.hosts.is_empty() {
        true => "plugin",
        false => "plugin-net",
    }
}

/// Whether its image is still being fetched.
fn is_pending(error: &StartPluginError) -> bool {
    let StartPluginError::Sandbox { source } = error else {
        return false;
    };
    let error = source.downcast_ref::<SandboxError>();
    matches!(error, Some(SandboxError::Pending { .. }))
}

fn context_of(beginning: &Beginning<'_>) -> Context {
    Context {
        template: Some(template_of(beginning.execution).to_owned()),
        tier: Some(beginning.tier),
        ..Context::default()
    }
}

/// A program of the plugin's own is named from its files; all others are the
/// system's.
fn in_files(command: &[String], files: &Path) -> Vec<String> {
    let mut words = command.to_vec();
    if let Some(program) = words.first_mut()
        && let Some(own) = program.strip_prefix("./")
        && let Some(path) = files.join(own).to_str()
    {
        path.clone_into(program);
    }
    words
}

fn wasm_options(execution: &Execution) -> WasmOptions {
    let limits = &execution.limits;
    WasmOptions {
        fuel: limits.fuel.map_or(Fuel::ByLanguage, Fuel::Units),
        call_timeout: limits.call_timeout,
        memory: limits.memory,
        ..WasmOptions::default()
    }
}
