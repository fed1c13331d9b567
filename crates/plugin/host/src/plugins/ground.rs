//! What plugins run on, and how one of them is started on it.
//!
//! From a manifest and a person's grant to a sandbox: nothing that either of
//! them does not name. What policy keeps unread in a granted folder is covered
//! before the plugin starts, since a mounted file is read without asking.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::isolation::{Command, PluginMount, SandboxSpec, SmallerLimits, Tier};
use fluffy_egress::Network;
use fluffy_gate::{Answer, Desk};
use fluffy_ledger::{Actor, ActorKind, Ledger};
use fluffy_plugin_core::manifest::{Effect, Execution, Protocol, Start};
use fluffy_plugin_core::profile::{
    self, Kind, NativeProfile, ProfileError, System, looks_at, native,
};
use fluffy_policy::grant::{BuildGrantError, Grant, GrantLists};
use fluffy_policy::{Context, Permit, Principal, PrincipalKind};
use fluffy_sandbox::client::LauncherHandle;
use fluffy_sandbox::plan::PROXY_PORT;
use semver::Version;

use super::unread::{FindUnreadError, find_unread};
use crate::connection::{Connection, StartPluginError};
use crate::go_plugin::{self, GoPluginSettings};
use crate::log::Log;
use crate::mcp::{self, McpSettings};
use crate::room::{Entry, Way};
use crate::services::{Kept, OpenStoreError, Places, Services, Store};
use crate::shelf::{Meeting, Placed, Shelf};
use crate::wasm::{self, Fuel, WORKER_ARGUMENTS, WasmEntry, WasmOptions};

/// How long a plugin may take until it is ready.
const READY: Duration = Duration::from_secs(60);

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
    /// The host at the gate: makes sandboxes and runs programs in them.
    pub host: Desk,
    /// Where everything is recorded.
    pub ledger: Ledger,
    /// What their proxies reach hosts through.
    pub network: Arc<dyn Network>,
    /// The project, which `/…` in their paths means.
    pub workspace: Option<PathBuf>,
    /// For whom they act.
    pub person: String,
    /// The version that manifests ask for.
    pub version: Version,
    /// This executable, which is the worker of modules too.
    pub program: PathBuf,
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
    /// What it asks for is not to be had as it says.
    #[error("what it asks for cannot be opened to it")]
    Profile(#[from] ProfileError),
    /// Nobody can say what of the granted folders has to stay unread.
    #[error("what policy keeps unread cannot be hidden from it")]
    Unread(#[from] FindUnreadError),
    /// Its folders cannot be used.
    #[error("its folders cannot be used")]
    Folder(#[from] std::io::Error),
    /// Its store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartPluginError),
}

/// A plugin that was started, and what it needs as long as it runs.
pub(super) struct Launched {
    pub(super) connection: Arc<dyn Connection>,
    /// Removed when the plugin is gone.
    pub(super) _meeting: Meeting,
}

impl Ground {
    /// Starts a plugin in its sandbox.
    pub(super) async fn launch(&self, placed: &Placed, log: &Log) -> Result<Launched, LaunchError> {
        let Some(execution) = &placed.manifest.execution else {
            let what = "it is only text, and has nothing to run".to_owned();
            return Err(LaunchError::Unsupported { what });
        };
        let desk = self.desk_of(placed)?;
        let meeting = self.shelf.meeting()?;
        let connection: Arc<dyn Connection> = match &execution.start {
            Start::Program {
                command,
                protocol: Protocol::Mcp,
            } => {
                let entry = self.entry(placed, execution, command, &desk, &meeting)?;
                let settings = mcp_settings(placed, execution, entry.spec.read.clone());
                Arc::new(mcp::start(entry, log.clone(), settings).await?)
            }
            Start::Program {
                command,
                protocol: Protocol::GoPlugin,
            } => {
                let entry = self.entry(placed, execution, command, &desk, &meeting)?;
                let services = self.services(placed, execution, &desk, log)?;
                let settings = GoPluginSettings {
                    ready: READY,
                    call: Duration::from(execution.limits.call_timeout),
                    reads: only_reads(placed).collect(),
                    ..GoPluginSettings::default()
                };
                Arc::new(go_plugin::start(entry, Arc::new(services), settings).await?)
            }
            Start::Module { file } => {
                let module = std::fs::read(placed.files.join(file))?;
                let services = self.services(placed, execution, &desk, log)?;
                let entry = WasmEntry {
                    entry: self.worker(placed, execution, &desk, &meeting)?,
                    module,
                    cache: self.shelf.compiled().map(Arc::new),
                };
                let options = wasm_options(execution);
                Arc::new(wasm::start(entry, Arc::new(services), options).await?)
            }
            Start::Image { .. } => {
                let what = "this host does not start images yet".to_owned();
                return Err(LaunchError::Unsupported { what });
            }
        };
        Ok(Launched {
            connection,
            _meeting: meeting,
        })
    }

    /// The plugin at the gate: its manifest, its denials, and a person's grant.
    pub(super) fn desk_of(&self, placed: &Placed) -> Result<Desk, BuildGrantError> {
        let manifest = &placed.manifest;
        let texts = |patterns: &[fluffy_policy::capability::Pattern]| {
            let texts = patterns.iter().map(|pattern| pattern.as_str().to_owned());
            texts.collect()
        };
        let grant = Grant::build(&GrantLists {
            capabilities: texts(&manifest.capabilities),
            deny_capabilities: texts(&manifest.deny_capabilities),
            workspace: vec!["*".to_owned()],
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

    fn entry(
        &self,
        placed: &Placed,
        execution: &Execution,
        command: &[String],
        desk: &Desk,
        meeting: &Meeting,
    ) -> Result<Entry, LaunchError> {
        let template = template_of(execution);
        let context = context_of(execution);
        let profile = self.profile(placed, execution, meeting)?;
        let data = placed.home.join("data");
        std::fs::create_dir_all(&data)?;
        let mut read = profile.read;
        let mut hidden = self.unread(&read, &profile.hidden, desk, &context)?;
        // What was named by itself is hidden by not showing it.
        read.retain(|path| !hidden.contains(path));
        hidden.retain(|path| read.iter().any(|shown| path.starts_with(shown)));
        let spec = SandboxSpec {
            template: template.to_owned(),
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
        let way = (!profile.hosts.is_empty()).then(|| Way {
            desk: desk.clone(),
            context: context.clone(),
            ledger: self.ledger.clone(),
            network: Arc::clone(&self.network),
        });
        Ok(Entry {
            launcher: self.launcher.clone(),
            create: self.permit("sandbox.create", template, &context)?,
            run: self.permit("exec.run", &placed.manifest.name, &context)?,
            spec,
            command,
            way,
        })
    }

    /// The room of the engine that runs a module: the limits are the module's,
    /// and its engine needs room beside it.
    fn worker(
        &self,
        placed: &Placed,
        execution: &Execution,
        desk: &Desk,
        meeting: &Meeting,
    ) -> Result<Entry, LaunchError> {
        let program = self.program.to_str().map(str::to_owned);
        let program = program.ok_or_else(|| LaunchError::Unsupported {
            what: "this executable has a path that is no text".to_owned(),
        })?;
        let words = WORKER_ARGUMENTS.map(str::to_owned);
        let command: Vec<String> = std::iter::once(program).chain(words).collect();
        let mut entry = self.entry(placed, execution, &command, desk, meeting)?;
        entry.spec.limits = SmallerLimits::default();
        Ok(entry)
    }

    /// What it may ask for, in its own name.
    fn services(
        &self,
        placed: &Placed,
        execution: &Execution,
        desk: &Desk,
        log: &Log,
    ) -> Result<Services, LaunchError> {
        let kept = Kept {
            store: Store::open(&placed.home.join("kv.sqlite"))?,
            log: log.clone(),
        };
        let services = Services::new(desk.clone(), context_of(execution), kept);
        Ok(services.in_places(Places {
            workspace: self.workspace.clone(),
            data: Some(placed.home.join("data")),
        }))
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

    /// What stays unread in these folders.
    fn unread(
        &self,
        read: &[PathBuf],
        denied: &[PathBuf],
        desk: &Desk,
        context: &Context,
    ) -> Result<Vec<PathBuf>, FindUnreadError> {
        let Some(workspace) = &self.workspace else {
            return Ok(Vec::new());
        };
        let may_read = |path: &Path| {
            let below = path.strip_prefix(workspace).ok().and_then(Path::to_str);
            let Some(below) = below else {
                return false;
            };
            let resource = format!("/{below}");
            let request = desk.request("fs.read", Some(&resource), context);
            !denied.iter().any(|one| path.starts_with(one)) && desk.gate.would_allow(&request)
        };
        find_unread(read, &may_read)
    }

    fn permit(&self, action: &str, name: &str, context: &Context) -> Result<Permit, LaunchError> {
        let request = self.host.request(action, Some(name), context);
        let denied = |reason: String| LaunchError::Denied {
            capability: format!("{action}.{name}"),
            reason,
        };
        match self.host.ask(&request) {
            Ok(Answer::Granted(granted)) => Ok(granted.permit),
            Ok(Answer::Review(refusal) | Answer::Denied(refusal)) => {
                Err(denied(refusal.to_string()))
            }
            Err(error) => Err(denied(error.to_string())),
        }
    }
}

fn mcp_settings(placed: &Placed, execution: &Execution, roots: Vec<PathBuf>) -> McpSettings {
    McpSettings {
        start_timeout: READY,
        call_timeout: Duration::from(execution.limits.call_timeout),
        roots,
        only_reads: only_reads(placed).collect(),
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

/// The template of a plugin: one with a network only where it has hosts.
fn template_of(execution: &Execution) -> &'static str {
    match execution.sandbox.hosts.is_empty() {
        true => "plugin",
        false => "plugin-net",
    }
}

fn context_of(execution: &Execution) -> Context {
    Context {
        template: Some(template_of(execution).to_owned()),
        tier: Some(Tier::Process),
        ..Context::default()
    }
}

/// The tools that a person reviewed as only looking.
fn only_reads(placed: &Placed) -> impl Iterator<Item = String> {
    let declared = placed.manifest.tools.iter();
    let reads = declared.filter(|tool| tool.effect == Effect::Reads);
    reads.map(|tool| tool.name.clone())
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
