//! A launcher, a policy, a ledger, and folders for one plugin.

use std::path::PathBuf;
use std::sync::Arc;

use fluffy_base::{ByteSize, Clock, SystemClock};
use fluffy_contract::isolation::{Command, PluginMount, SandboxSpec};
use fluffy_gate::{Desk, Gate, PolicyPlaces};
use fluffy_ledger::{Actor, Event, Ledger, LedgerOptions};
use fluffy_plugin_host::log::Log;
use fluffy_plugin_host::room::Entry;
use fluffy_plugin_host::services::{Kept, Places, Services, Store};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Principal, PrincipalKind};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;
use fluffy_script::WorkerCommand;
use fluffy_test_kit::permit;

/// Lets a plugin do whatever its grant covers.
pub(crate) const ALLOW_ALL: &str =
    "version: 1\ncapabilities:\n  - { name: all, match: {}, do: allow }\n";

pub(crate) struct Kit {
    pub(crate) launcher: LauncherHandle,
    pub(crate) gate: Arc<Gate>,
    pub(crate) ledger: Ledger,
    root: tempfile::TempDir,
}

impl Kit {
    /// Under these rules.
    pub(crate) async fn new(rules: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let below = |name: &str| root.path().join(name);
        for name in ["project", "state/layers", "p/a/files", "p/a/data", "p/m"] {
            std::fs::create_dir_all(below(name)).unwrap();
        }
        std::fs::write(below("user.yaml"), rules).unwrap();
        let ledger = Ledger::open(&below("ledger"), LedgerOptions::default()).unwrap();
        let settings = Settings {
            templates: Template::builtin(ByteSize(8 << 30)),
            projects: vec![below("project")],
            plugins: Some(below("p")),
            layers: below("state/layers"),
            state: below("state"),
            // Where the workers of WASM plugins are.
            tools: vec![PathBuf::from(env!("CARGO_BIN_EXE_fluffy-plugin-worker"))],
            engine: Engine::Native,
        };
        let journal = Journal::new(Arc::new(ledger.clone()), Actor::system("test"));
        let command = LauncherCommand {
            program: PathBuf::from(env!("CARGO_BIN_EXE_fluffy-plugin-worker")),
            arguments: vec!["worker".to_owned(), "launcher".to_owned()],
        };
        let launcher = LauncherHandle::start(&command, settings, journal).await;
        let places = PolicyPlaces {
            organisation: below("organisation.yaml"),
            user: below("user.yaml"),
            pins: None,
            worker: WorkerCommand {
                program: "/bin/false".into(),
                args: Vec::new(),
            },
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Self {
            launcher: launcher.unwrap(),
            gate: Arc::new(Gate::open(places, ledger.clone(), clock).unwrap()),
            ledger,
            root,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A file of the plugin.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path("p/a/files").join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The plugin at the gate, with this grant.
    pub(crate) fn desk(&self, capabilities: &[&str]) -> Desk {
        let all = || vec!["*".to_owned()];
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        self.desk_of(&GrantLists {
            capabilities: owned(capabilities),
            deny_capabilities: Vec::new(),
            workspace: all(),
            user: all(),
        })
    }

    /// The same with all four lists.
    pub(crate) fn desk_of(&self, lists: &GrantLists) -> Desk {
        let grant = Arc::new(Grant::build(lists).unwrap());
        Desk {
            gate: Arc::clone(&self.gate),
            principal: Principal::new(PrincipalKind::Plugin, "sample", grant),
        }
    }

    /// What the plugin may ask its host for.
    pub(crate) fn services(&self, desk: Desk) -> Services {
        let kept = Kept {
            store: Store::open(&self.path("p/a/kv.sqlite")).unwrap(),
            log: Log::open(&self.log()).unwrap(),
        };
        Services::new(desk, Context::default(), kept).in_places(Places {
            workspace: Some(self.path("project")),
            data: Some(self.path("p/a/data")),
        })
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("p/a/log")
    }

    /// An empty folder for the plugin's sockets.
    pub(crate) fn meeting(&self) -> PathBuf {
        let folder = self.path("p/m/1");
        if !folder.exists() {
            std::fs::create_dir(&folder).unwrap();
        }
        folder
    }

    /// A start of this program, without a network.
    pub(crate) fn entry<S: Into<String>>(&self, argv: impl IntoIterator<Item = S>) -> Entry {
        Entry {
            launcher: self.launcher.clone(),
            create: permit("sandbox.create", Some("plugin")),
            run: permit("exec.run", Some("sample")),
            spec: SandboxSpec {
                template: "plugin".to_owned(),
                plugin: Some(PluginMount {
                    files: self.path("p/a/files"),
                    data: Some(self.path("p/a/data")),
                    meeting: Some(self.meeting()),
                }),
                ..SandboxSpec::default()
            },
            command: Command::new(argv),
            way: None,
        }
    }

    /// How many decisions about this action ended so.
    pub(crate) fn decisions(&self, action: &str, verdict: &str) -> usize {
        self.ledger.flush_blocking().unwrap();
        let is = |event: &Event| {
            let payload = event.payload.value().unwrap();
            let asked = format!("\"action\":\"{action}\"");
            event.event_type == "policy.decision"
                && payload["decision"] == verdict
                && payload["record"].to_string().contains(&asked)
        };
        self.ledger.last_where(10_000, is).unwrap().len()
    }
}
