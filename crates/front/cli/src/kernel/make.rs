//! What a session stands on: made once for the project, used by each session.

mod configured;
mod fork;
mod hold;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::SessionId;
use fluffy_base::{Clock, SystemClock};
use fluffy_config::{Paths, ProcessEngine};
use fluffy_contract::BoxFuture;
use fluffy_contract::model::ModelProvider;
use fluffy_egress::{Network, Outside};
use fluffy_gate::{Answer, Desk, Gate, Watch};
use fluffy_ipc::{ErrorCode, Failure as Refused};
use fluffy_kernel::agent::{Agent, DriveError, Ground};
use fluffy_kernel::api::{ProviderEnvironment, Resume, Start};
use fluffy_kernel::commit::Author;
use fluffy_kernel::host::{Chosen, Make, Ways};
use fluffy_kernel::plugged::{self, PluggedModel};
use fluffy_kernel::provider::{ModelAccess, SandboxedModels};
use fluffy_kernel::session::{Fact, Session as Recorded, Started};
use fluffy_kernel::slots::{Shortage, Slots, Store, own_memory};
use fluffy_kernel::store::SessionStore;
use fluffy_kernel::workshop::{Mounts, Premises, Stay, Workshop};
use fluffy_layer::{HeldLayer, LayerKind, LayerStore, TreePath, View};
use fluffy_ledger::Ledger;
use fluffy_models::price::Prices;
use fluffy_models::replay::Replay;
use fluffy_models::selection::{self, select};
use fluffy_models::worker::SetupLink;
use fluffy_plugin_host::plugins::Plugins;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::word::{State, Tier};
use fluffy_policy::{Permit, Principal, PrincipalKind};
use fluffy_sandbox::client::{Journal, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::probe::Tools;
use fluffy_secret::{Redactor, SecretString};
use fluffy_tasks::Limits as TaskLimits;
use fluffy_tools::budget::{Budget, Limits};
use fluffy_tools::paths::ProjectPaths;
use fluffy_tools::registry::Registry;
use fluffy_workflow::project::instructions::{self, Instructions, Skill};

use self::configured::{Configured, lowered};
use super::containers::{self, Containers};
use super::plugins;
use crate::built_in;
use crate::command::sandbox::ground::Ground as Machine;
use crate::command::{layer, ledger, person, policy, recordings};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// How long a kernel that is ending may still have a session's layer.
const ENDING: Duration = Duration::from_secs(20);
/// Between two tries to have it.
const AGAIN: Duration = Duration::from_millis(20);

/// What a session of the agent can at most be permitted beside what the
/// manifests of its tools declare.
const CEILING: &[&str] = &[
    "layer.drop.*",
    "layer.restore.*",
    "merge.apply",
    "model.generate.*",
    "net.connect.*",
    "plugin.*",
    "sandbox.create.*",
];

/// How often the policy's files are looked at.
const WATCHED: Duration = Duration::from_millis(500);

/// Tokens of conversation, where the model's own limit is not known.
const WINDOW: u64 = 120_000;

/// Sandboxes that wait: a test run takes two, one after the other.
const AHEAD: usize = 2;

/// Makes sessions of one project.
pub(super) struct Maker {
    project: std::path::PathBuf,
    /// Where configuration is read when a session is made.
    paths: Paths,
    ledger: Ledger,
    gate: Arc<Gate>,
    /// What is applied while a session works holds for it at once.
    _watch: Watch,
    pub(super) launcher: LauncherHandle,
    slots: Slots,
    workshop: Arc<Workshop>,
    pub(super) containers: Arc<Containers>,
    layers: LayerStore,
    kind: LayerKind,
    roots: Option<String>,
    pub(super) network: Arc<Outside>,
    pub(super) plugins: Arc<Plugins>,
}

/// What a kernel was given when it started, and found before its walls.
pub(super) struct Connected {
    /// The socket to the launcher.
    pub(super) launcher: OwnedFd,
    /// The way to the egress process.
    pub(super) outside: Arc<Outside>,
    /// The launcher of containers, if there is an engine.
    pub(super) containers: containers::Line,
    /// Tools outside the system's own directories.
    pub(super) tools: Tools,
}

impl Maker {
    /// Opens everything that sessions share.
    pub(super) async fn prepare(
        session: &Session,
        here: &Here,
        engine: ProcessEngine,
        lines: Connected,
    ) -> Result<Self, Failure> {
        let opened = ledger::open(session, here)?;
        let gate = Gate::open(
            policy::places(here)?,
            opened.ledger.clone(),
            policy::clock(),
        );
        let gate = Arc::new(gate.map_err(|error| failure::load_policy(&error, None))?);
        let watch = Watch::start(&gate, WATCHED, |noticed| {
            if let Err(error) = noticed {
                let why = fluffy_kernel::agent::explain(&error);
                let _ = writeln!(io::stderr(), "the policy stays as it was: {why}");
            }
        });
        let watch = watch.map_err(|error| failure::no_threads(&error))?;
        let machine = Machine::of_agent(
            here,
            gate.policy().engine.templates(),
            of(engine),
            lines.tools,
        )?;
        let layers = layer::open_store(here)?;
        let actor = fluffy_ledger::Actor::system("kernel");
        let journal = Journal::new(Arc::new(opened.ledger.clone()), actor);
        let settings = machine.settings(here, layers.folder());
        let containers = containers::Plan {
            settings: Settings {
                engine: Engine::Container,
                ..settings.clone()
            },
            premises: premises(&machine, Tier::Container, Engine::Container),
            journal: journal.clone(),
        };
        let containers = Arc::new(Containers::new(lines.containers, containers));
        let launcher = LauncherHandle::over(lines.launcher, settings, journal).await;
        let launcher = launcher.map_err(|error| {
            let fix = "`fluffy doctor` says what this machine can do";
            Failure::of(fluffy_report::ExitCode::Internal, &error, fix)
        })?;
        let premises = premises(&machine, machine.tier, machine.engine);
        let values = here.settings.values();
        let workshop = Arc::new(Workshop::new(launcher.clone(), premises));
        let slots = Slots::start(task_limits(&values.tasks), store(&workshop, &containers));
        let slots = slots.map_err(|error| {
            Failure::of(
                fluffy_report::ExitCode::Internal,
                &error,
                "please report this",
            )
        })?;
        let plugins = plugins::open(plugins::Standing {
            folder: &here.paths.plugins_dir,
            project: Some(&machine.project),
            launcher: launcher.clone(),
            containers: Arc::clone(&containers) as Arc<dyn fluffy_plugin_host::plugins::Containers>,
            gate: Arc::clone(&gate),
            ledger: opened.ledger.clone(),
            network: Arc::clone(&lines.outside) as Arc<dyn Network>,
        })?;
        Ok(Self {
            slots,
            workshop,
            containers,
            plugins: Arc::new(plugins),
            project: machine.project.clone(),
            paths: here.paths.clone(),
            ledger: opened.ledger,
            gate,
            _watch: watch,
            launcher,
            layers,
            kind: machine.layer,
            roots: std::fs::read_to_string("/etc/ssl/certs/ca-certificates.crt").ok(),
            network: lines.outside,
        })
    }

    fn desk(&self, session: SessionId) -> Result<Desk, Refused> {
        let mut desk = self.desk_of(PrincipalKind::Agent, session.to_string())?;
        desk.principal.on_behalf_of = Some(person::name());
        Ok(desk)
    }

    /// An approval is bound to the process that uses it, which is this one.
    fn desk_of(&self, kind: PrincipalKind, name: String) -> Result<Desk, Refused> {
        let all = || vec!["*".to_owned()];
        let manifests = built_in::manifests().map_err(|error| internal(&error))?;
        let declared = manifests.iter().flat_map(|one| &one.capabilities);
        let declared = declared.map(|pattern| pattern.as_str().to_owned());
        let lists = GrantLists {
            capabilities: declared
                .chain(CEILING.iter().map(|text| (*text).to_owned()))
                .collect(),
            deny_capabilities: Vec::new(),
            workspace: all(),
            user: all(),
        };
        let grant = Grant::build(&lists).map_err(|error| internal(&error))?;
        let mut principal = Principal::new(kind, name, Arc::new(grant));
        principal.process = Some(person::process());
        Ok(Desk {
            gate: Arc::clone(&self.gate),
            principal,
        })
    }

    /// A session begins under the policy that is there when it begins.
    fn up_to_date(&self) -> Result<(), Refused> {
        let refreshed = self.gate.refresh();
        refreshed.map_err(|error| {
            let report = Failure::from(failure::load_policy(&error, None));
            Refused::new(ErrorCode::InvalidParams, report.line())
        })
    }

    async fn new_session(&self, start: Start, ways: Ways) -> Result<Agent, Refused> {
        let configured = self.configured(&start.providers)?;
        self.up_to_date()?;
        can_do(&start, configured.limits)?;
        let id = SessionId::generate();
        let desk = self.desk(id)?;
        let (floor, held, forked_at) = match start.forked_from {
            Some(origin) => {
                let forked = self.fork(&desk, origin, &start).await?;
                (forked.floor, forked.held, Some(forked.facts))
            }
            None => {
                let floor = self.floor(start.tier.unwrap_or(Tier::Process)).await?;
                let held = self.new_layer(&desk, &floor)?;
                (floor, held, None)
            }
        };
        let model = start.models.first().cloned().unwrap_or_default();
        let started = Started {
            task: start.task.clone(),
            mode: start.mode,
            model,
            layer: held.layer().id(),
            moment: SystemClock.now(),
            author: start.author.clone(),
            tier: floor.workshop.premises().tier,
            budget: start.budget,
            forked_from: start.forked_from,
            record: start.record.clone(),
            forked_at,
        };
        let store = SessionStore::new(self.ledger.clone());
        let fact = Fact::Started(started.clone());
        store
            .append(id, &fact)
            .await
            .map_err(|error| internal(&error))?;
        let session = match start.forked_from {
            Some(_) => store.load(id).map_err(|error| internal(&error))?,
            None => Recorded::begin(id, started),
        };
        let parts = Parts {
            session,
            desk,
            floor,
            held,
            author: start.author,
            directory: start.directory,
            configured,
            providers: start.providers,
            models: start.models,
        };
        self.ready(parts, ways).await
    }

    /// What sessions of a tier stand on.
    async fn floor(&self, tier: Tier) -> Result<Floor, Refused> {
        let refuse = |why: String| Refused::new(ErrorCode::InvalidParams, why);
        match tier {
            Tier::Process => Ok(Floor {
                workshop: Arc::clone(&self.workshop),
                kind: self.kind,
            }),
            Tier::Container => {
                let workshop = self.containers.workshop().await;
                let workshop = workshop.map_err(|why| {
                    let word = tier.as_str();
                    refuse(format!("tier `{word}` is not to be had: {why}"))
                })?;
                let kind = LayerKind::Copy;
                Ok(Floor { workshop, kind })
            }
            Tier::Wasm | Tier::Microvm => Err(refuse(format!(
                "the agent's tools run on tier `process` or `container`; tier `{}` is not possible",
                tier.as_str()
            ))),
        }
    }

    /// A session as it is recorded; without providers no model can be asked.
    async fn old_session(
        &self,
        id: SessionId,
        providers: Option<ProviderEnvironment>,
        ways: Ways,
    ) -> Result<Agent, Refused> {
        self.up_to_date()?;
        let store = SessionStore::new(self.ledger.clone());
        let mut session = store.load(id).map_err(|error| not_there(&error))?;
        let desk = self.desk(session.id)?;
        // Never another one than it began on.
        let floor = self.floor(session.started.tier).await?;
        let held = match self.hold_when_free(session.layer).await? {
            Some(held) => held,
            // It was merged; what is left to do needs a layer all the same.
            None => {
                let held = self.new_layer(&desk, &floor)?;
                // A commit is ended without one of its own.
                if session.workflow.state() != State::Committing {
                    let layer = held.layer().id();
                    let fact = Fact::Layer { layer };
                    let stored = store.append(id, &fact).await;
                    stored.map_err(|error| internal(&error))?;
                    session.apply(&fact).map_err(|error| internal(&error))?;
                }
                held
            }
        };
        let models = providers.iter().map(|_| session.model.clone()).collect();
        let author = session.started.author.clone();
        let providers = providers.unwrap_or_default();
        let parts = Parts {
            session,
            desk,
            floor,
            held,
            author,
            directory: String::new(),
            configured: self.configured(&providers)?,
            providers,
            models,
        };
        self.ready(parts, ways).await
    }

    fn new_layer(&self, desk: &Desk, floor: &Floor) -> Result<HeldLayer, Refused> {
        let permit = permit_layer(desk, floor)?;
        let created = self.layers.create(permit, &self.project, floor.kind);
        created.map_err(|error| internal(&error))
    }

    async fn ready(&self, parts: Parts, ways: Ways) -> Result<Agent, Refused> {
        let mut registry = Registry::standard(ProjectPaths::new(&self.project));
        let allowed = parts.configured.plugins.clone();
        plugins::add(&self.plugins, allowed, &mut registry, &self.ledger).await;
        let turns = usize::try_from(parts.session.turns).unwrap_or(usize::MAX);
        let asked = Asked {
            desk: &parts.desk,
            models: &parts.models,
            environment: &parts.providers,
            providers: &parts.configured.providers,
            turns,
        };
        let (provider, address) = self.provider(&asked)?;
        let view = parts.held.view().map_err(|error| internal(&error))?;
        let policy = self.gate.policy();
        let redactor = Redactor::new(policy.engine.sanitize_patterns());
        let ground = Ground {
            store: SessionStore::new(self.ledger.clone()),
            ledger: self.ledger.clone(),
            hub: ways.hub,
            person: ways.person,
            desk: parts.desk,
            people: self.desk_of(PrincipalKind::User, person::name())?,
            slots: self.slots.clone(),
            workshop: parts.floor.workshop,
            layers: self.layers.clone(),
            kind: parts.floor.kind,
            registry,
            provider,
            address,
            network: Arc::clone(&self.network) as Arc<dyn Network>,
            redactor: redactor.map_err(|error| internal(&error))?,
            prices: Prices::built_in().map_err(|error| internal(&error))?,
            window: WINDOW,
            overrides: parts.configured.overrides,
            instructions: told(&view, &parts.directory),
            skills: [skills(&view), plugins::skills(&self.plugins)].concat(),
            author: parts.author,
            stop: ways.stop,
        };
        // What is configured lower by now holds instead.
        let configured = parts.configured.limits;
        let limits = lowered(configured, &parts.session.started.budget);
        let budget = Budget::new(limits.map_or(configured, |lowered| lowered.limits));
        let agent = Agent::new(parts.session, ground, parts.held, budget);
        agent.map_err(|error| not_made(&error))
    }

    /// Who answers, and where they are.
    fn provider(
        &self,
        asked: &Asked<'_>,
    ) -> Result<(Arc<dyn ModelProvider>, Option<String>), Refused> {
        let Asked {
            desk,
            models,
            environment,
            providers,
            turns,
        } = *asked;
        let first = models.first().map(String::as_str).unwrap_or_default();
        if let Some(file) = first.strip_prefix("replay/") {
            let played = self.replay(Path::new(file))?;
            return Ok((Arc::new(played.after(turns)), None));
        }
        if models
            .iter()
            .any(|model| model.starts_with(plugged::PREFIX))
        {
            return self.plugged(desk, models);
        }
        let known = selection::Environment {
            addresses: environment.addresses.clone(),
            keys: environment.keys.keys().cloned().collect(),
        };
        let mut links = Vec::new();
        let mut keys = Vec::new();
        let mut address = None;
        for model in models {
            let selected = select(model, providers, &known).map_err(|error| {
                let message = format!("{}; {}", fluffy_kernel::agent::explain(&error), error.fix());
                Refused::new(ErrorCode::InvalidParams, message)
            })?;
            address.get_or_insert_with(|| selected.settings.base_url.authority());
            keys.push(match &selected.key {
                Some(selection::KeySource::Env(name)) => environment
                    .keys
                    .get(name)
                    .map(|key| SecretString::from(key.clone())),
                Some(selection::KeySource::Keyring(name)) => {
                    let place = ProviderEnvironment::of_keyring(name);
                    let key = environment.keys.get(&place);
                    Some(key.map_or_else(
                        || Err(no_key(model, environment.problems.get(name))),
                        |key| Ok(SecretString::from(key.clone())),
                    )?)
                }
                None => None,
            });
            links.push(SetupLink {
                settings: selected.settings,
                model: selected.model,
            });
        }
        let models = SandboxedModels::new(ModelAccess {
            launcher: self.launcher.clone(),
            desk: desk.clone(),
            ledger: self.ledger.clone(),
            links,
            keys,
            roots: self.roots.clone(),
            network: Arc::clone(&self.network) as Arc<dyn Network>,
        });
        Ok((Arc::new(models), address))
    }

    /// A model of a plugin, which is never one of several.
    fn plugged(
        &self,
        desk: &Desk,
        models: &[String],
    ) -> Result<(Arc<dyn ModelProvider>, Option<String>), Refused> {
        let wrong = |why: &str| Refused::new(ErrorCode::InvalidParams, why);
        let [model] = models else {
            return Err(wrong(
                "a plugin's model cannot be one of several; name it alone",
            ));
        };
        let names = model.strip_prefix(plugged::PREFIX);
        let names = names.and_then(|names| names.split_once('/'));
        let (name, _) = names.ok_or_else(|| wrong("write plugin:NAME/MODEL"))?;
        let provider = self.plugins.provider(name).map_err(|error| {
            let why = format!("{error}; `fluffy plugin list` shows what is installed");
            Refused::new(ErrorCode::InvalidParams, why)
        })?;
        let plugged = PluggedModel::new(Arc::new(provider), desk.clone(), model.clone());
        Ok((Arc::new(plugged), None))
    }

    /// A recording, to be played in this project.
    fn replay(&self, file: &Path) -> Result<Replay, Refused> {
        let wrong = |error: &dyn std::error::Error| {
            let why = fluffy_kernel::agent::explain(error);
            let message = format!("`{}` cannot be played: {why}", file.display());
            Refused::new(ErrorCode::InvalidParams, message)
        };
        let recording = recordings::read(file).map_err(|error| wrong(&error))?;
        let policy = self.gate.policy();
        let redactor = Redactor::new(policy.engine.sanitize_patterns());
        let redactor = redactor.map_err(|error| internal(&error))?;
        let project = self.project.to_string_lossy();
        Ok(Replay::new(recording, redactor, &project))
    }
}

impl Make for Maker {
    fn start(&self, start: Start, ways: Ways) -> BoxFuture<'_, Result<Agent, Refused>> {
        Box::pin(self.new_session(start, ways))
    }

    fn resume(&self, resume: Resume, ways: Ways) -> BoxFuture<'_, Result<Agent, Refused>> {
        Box::pin(self.old_session(resume.session, Some(resume.providers), ways))
    }

    fn open(&self, session: SessionId, ways: Ways) -> BoxFuture<'_, Result<Agent, Refused>> {
        Box::pin(self.old_session(session, None, ways))
    }

    fn model(
        &self,
        session: SessionId,
        model: &str,
        environment: &ProviderEnvironment,
    ) -> Result<Chosen, Refused> {
        let desk = self.desk(session)?;
        let models = [model.to_owned()];
        let configured = self.configured(environment)?;
        let asked = Asked {
            desk: &desk,
            models: &models,
            environment,
            providers: &configured.providers,
            turns: 0,
        };
        let (provider, address) = self.provider(&asked)?;
        let [model] = models;
        Ok(Chosen {
            model,
            provider,
            address,
        })
    }
}

/// What sandboxes of a tier are made from.
fn premises(machine: &Machine, tier: Tier, engine: Engine) -> Premises {
    Premises {
        project: machine.project.clone(),
        template: machine.template.name.clone(),
        tier,
        mounts: match engine {
            Engine::Reduced => Mounts::No,
            Engine::Native | Engine::Bwrap | Engine::Container => Mounts::Yes,
        },
        ahead: match engine {
            Engine::Native => AHEAD,
            Engine::Bwrap | Engine::Reduced | Engine::Container => 0,
        },
        stay: match engine {
            Engine::Native | Engine::Bwrap | Engine::Reduced => Stay::Call,
            // Making one takes much longer than any call.
            Engine::Container => Stay::Session,
        },
        environment: machine.environment.clone(),
    }
}

fn of(engine: ProcessEngine) -> Engine {
    match engine {
        ProcessEngine::Native => Engine::Native,
        ProcessEngine::Bwrap => Engine::Bwrap,
        ProcessEngine::Reduced => Engine::Reduced,
    }
}

fn permit_layer(desk: &Desk, floor: &Floor) -> Result<Permit, Refused> {
    let template = &floor.workshop.premises().template;
    let request = desk.request("sandbox.create", Some(template), &floor.workshop.context());
    match desk.ask(&request).map_err(|error| internal(&error))? {
        Answer::Granted(granted) => Ok(granted.permit),
        Answer::Review(refusal) | Answer::Denied(refusal) => {
            Err(Refused::new(ErrorCode::Denied, refusal.to_string()))
        }
    }
}

/// What a session's tools run on, and how its layers are made.
struct Floor {
    workshop: Arc<Workshop>,
    kind: LayerKind,
}

/// Which models are wanted, and for whom.
struct Asked<'a> {
    desk: &'a Desk,
    models: &'a [String],
    environment: &'a ProviderEnvironment,
    providers: &'a BTreeMap<String, selection::ProviderConfig>,
    /// How many answers there were already; a recording goes on after them.
    turns: usize,
}

/// What one session brings.
struct Parts {
    session: Recorded,
    desk: Desk,
    floor: Floor,
    held: HeldLayer,
    author: Author,
    directory: String,
    configured: Configured,
    providers: ProviderEnvironment,
    models: Vec<String>,
}

/// What was asked for and cannot be had is refused, never left out.
fn can_do(start: &Start, limits: Limits) -> Result<(), Refused> {
    let refuse = |what: String| Err(Refused::new(ErrorCode::InvalidParams, what));
    let lowered = match lowered(limits, &start.budget) {
        Ok(lowered) => lowered,
        Err(why) => return refuse(why),
    };
    match lowered.refused.first() {
        Some(which) => refuse(format!(
            "`{}` can only be lower than what is configured: {}",
            which.word(),
            limits.of(*which) / which.unit()
        )),
        None => Ok(()),
    }
}

fn no_key(model: &str, problem: Option<&String>) -> Refused {
    // Only the person's own command can read a keyring.
    let unread = "it was not read when the session began; resume the session with this model";
    let why = problem.map_or(unread, String::as_str);
    let message = format!("there is no key for `{model}`: {why}");
    Refused::new(ErrorCode::InvalidParams, message)
}

fn not_there(error: &dyn std::error::Error) -> Refused {
    Refused::new(ErrorCode::NotFound, fluffy_kernel::agent::explain(error))
}

fn internal(error: &dyn std::error::Error) -> Refused {
    Refused::new(ErrorCode::Internal, fluffy_kernel::agent::explain(error))
}

fn not_made(error: &DriveError) -> Refused {
    let DriveError::Hidden(hidden) = error else {
        return internal(error);
    };
    let message = format!("{}; {}", fluffy_kernel::agent::explain(error), hidden.fix());
    Refused::new(ErrorCode::InvalidParams, message)
}

/// What the repository tells the agent, the nearest last.
fn told(view: &View, directory: &str) -> Vec<Instructions> {
    let read = |path: String| {
        let place = TreePath::parse(path.as_bytes()).ok()?;
        let bytes = view.read(&place, instructions::MAX_BYTES as u64).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        Some(Instructions { path, text })
    };
    let places = instructions::places(directory);
    places.into_iter().filter_map(read).collect()
}

/// Skills of the repository, by name.
fn skills(view: &View) -> Vec<Skill> {
    const FOLDERS: [&str; 2] = [".fluffy/skills", ".agents/skills"];
    let mut found = Vec::new();
    for folder in FOLDERS {
        let place = TreePath::parse(folder.as_bytes()).ok();
        let directory = place.and_then(|place| view.directory(Some(&place)).ok());
        let entries = directory.and_then(|directory| view.list(&directory).ok());
        for entry in entries.unwrap_or_default() {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let path = format!("{folder}/{name}/SKILL.md");
            let place = TreePath::parse(path.as_bytes()).ok();
            let bytes = place.and_then(|place| view.read(&place, 64 * 1024).ok());
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            found.extend(text.and_then(|text| instructions::skill(&path, &text)));
        }
    }
    found
}

fn task_limits(tasks: &fluffy_config::Tasks) -> TaskLimits {
    let slots = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
    let mut limits = TaskLimits {
        total: slots(tasks.total),
        age: tasks.age,
        ..TaskLimits::default()
    };
    for (template, count) in [
        ("ai-provider", tasks.models),
        ("code-executor", tasks.tests),
    ] {
        if let Ok(template) = template.parse() {
            limits.templates.insert(template, slots(count));
        }
    }
    limits
}

/// Memory, and what gives it back: what waits is ended first.
fn store(workshop: &Arc<Workshop>, containers: &Arc<Containers>) -> Store {
    let (workshop, containers) = (Arc::clone(workshop), Arc::clone(containers));
    let give_back = move |shortage| {
        let all = std::iter::once(Arc::clone(&workshop)).chain(containers.in_use());
        for workshop in all {
            tokio::spawn(async move {
                match shortage {
                    Shortage::Caches => workshop.end_waiting().await,
                    Shortage::Commands => workshop.end_commands().await,
                }
            });
        }
    };
    Store {
        look: Arc::new(own_memory),
        give_back: Arc::new(give_back),
    }
}
