//! The plugins of a kernel: started with it, looked at anew for each session.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_egress::Network;
use fluffy_gate::{Desk, Gate};
use fluffy_ledger::{Actor, ActorKind, Aggregate, Domain, Draft, Ledger};
use fluffy_plugin_host::plugins::{Containers, Ground, Plugins};
use fluffy_plugin_host::shelf::Shelf;
use fluffy_plugin_host::skill::{SkillText, TOOL};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Principal, PrincipalKind};
use fluffy_report::ExitCode;
use fluffy_sandbox::client::LauncherHandle;
use fluffy_tools::registry::Registry;
use fluffy_tools::sanitise::harmless;
use fluffy_workflow::project::instructions::{self, Skill};
use serde_json::json;

use crate::command::person;
use crate::failure::Failure;

/// Who runs plugins, at the gate.
const NAME: &str = "plugin-host";

/// What the host of plugins can at most be permitted.
const CEILING: [&str; 3] = ["exec.run.*", "plugins.disable.*", "sandbox.create.*"];

/// How long a session waits for plugins that are starting; one that needs
/// longer is there for the next session.
const PATIENCE: Duration = Duration::from_secs(20);

/// What plugins of a host stand on.
pub(crate) struct Standing<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) project: Option<&'a Path>,
    pub(crate) launcher: LauncherHandle,
    pub(crate) containers: Arc<dyn Containers>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) ledger: Ledger,
    pub(crate) network: Arc<dyn Network>,
}

/// The plugins of a host; none runs yet.
pub(crate) fn open(standing: Standing<'_>) -> Result<Plugins, Failure> {
    let internal = |error: &dyn std::error::Error| {
        Failure::of(ExitCode::Internal, error, "please report this")
    };
    let shelf = Shelf::open(standing.folder).map_err(|error| {
        let fix = "check that the state directory is yours and that its disk has room";
        Failure::of(ExitCode::Failure, &error, fix)
    })?;
    let all = || vec!["*".to_owned()];
    let lists = GrantLists {
        capabilities: CEILING.map(str::to_owned).to_vec(),
        deny_capabilities: Vec::new(),
        workspace: all(),
        user: all(),
    };
    let grant = Grant::build(&lists).map_err(|error| internal(&error))?;
    let mut principal = Principal::new(PrincipalKind::Service, NAME, Arc::new(grant));
    principal.on_behalf_of = Some(person::name());
    let version = env!("CARGO_PKG_VERSION").parse();
    let program = std::env::current_exe().map_err(|error| internal(&error))?;
    Ok(Plugins::new(Ground {
        shelf,
        launcher: standing.launcher,
        containers: standing.containers,
        host: Desk {
            gate: standing.gate,
            principal,
        },
        ledger: standing.ledger,
        network: standing.network,
        workspace: standing.project.map(Path::to_owned),
        // A session says what its project allows; outside one there is none.
        allowed: Mutex::new(all()),
        person: person::name(),
        program,
        version: version.map_err(|error: semver::Error| internal(&error))?,
    }))
}

/// The skills of what runs now, a line each. Their words are somebody else's:
/// each is one harmless line that says whose it is.
pub(super) fn skills(plugins: &Plugins) -> Vec<Skill> {
    let offered = plugins.skills().into_iter().filter_map(|one| {
        let SkillText { plugin, name, text } = one;
        let Skill { description, .. } = instructions::skill(&name, &text)?;
        let words = harmless(&description);
        let words: Vec<&str> = words.split_whitespace().collect();
        let how = format!(
            "text of the plugin `{plugin}`; call `plugin.{plugin}.{TOOL}` with name `{name}`"
        );
        Some(Skill {
            description: words.join(" "),
            name,
            how,
        })
    });
    offered.collect()
}

/// Adds the tools of what is installed now, as far as it runs in time, with
/// what the project allows. What a model cannot be offered is recorded with
/// its reason.
pub(super) async fn add(
    plugins: &Arc<Plugins>,
    allowed: Vec<String>,
    registry: &mut Registry,
    ledger: &Ledger,
) {
    plugins.allow(allowed);
    let refreshing = Arc::clone(plugins);
    // Goes on by itself when it takes longer.
    let refreshed = tokio::spawn(async move { refreshing.refresh().await });
    let _ = tokio::time::timeout(PATIENCE, refreshed).await;
    for source in plugins.sources() {
        for left_out in registry.add(&source) {
            let why = fluffy_kernel::agent::explain(&left_out);
            let aggregate = Aggregate::new("plugin", source.name());
            let actor = Actor::new(ActorKind::System, NAME);
            let draft = Draft::new(Domain::Plugin, aggregate, "plugin.tool_left_out", actor);
            // Nobody is permitted anything by this; a ledger that fails says
            // so where somebody is.
            let _ = ledger.record(draft.payload(json!({"why": why})));
        }
    }
}
