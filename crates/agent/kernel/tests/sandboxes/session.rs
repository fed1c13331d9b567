//! A session with a model that plays a script, on a real ledger and gate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fluffy_base::id::SessionId;
use fluffy_base::{Clock, SystemClock};
use fluffy_contract::model::{
    ModelEvent, ModelProvider, ModelStream, Part, Role, StartTurnError, StopReason, Turn,
};
use fluffy_contract::{BoxFuture, ToolSource};
use fluffy_egress::HostNetwork;
use fluffy_gate::{Desk, Gate, PolicyPlaces};
use fluffy_kernel::agent::{Agent, Ground};
use fluffy_kernel::api::Presence;
use fluffy_kernel::commit::Author;
use fluffy_kernel::host::Ways;
use fluffy_kernel::session::{Fact, Session, Started};
use fluffy_kernel::slots::{Slots, Store};
use fluffy_kernel::store::SessionStore;
use fluffy_layer::LayerKind;
use fluffy_ledger::{Ledger, LedgerOptions};
use fluffy_models::price::Prices;
use fluffy_policy::Permit;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::word::{Mode, Tier};
use fluffy_policy::{Principal, PrincipalKind};
use fluffy_script::WorkerCommand;
use fluffy_secret::Redactor;
use fluffy_tasks::{Limits as TaskLimits, Memory};
use fluffy_tools::budget::{Budget, Limits};
use fluffy_tools::paths::ProjectPaths;
use fluffy_tools::registry::Registry;
use fluffy_workflow::project::detect::Overrides;
use serde_json::Value;

use crate::kit::Kit;

/// A tool and its arguments.
pub(crate) type Called = (String, Value);

/// Makes these calls, a turn each, and remembers what it was told.
#[derive(Clone)]
pub(crate) struct Model {
    turns: Arc<Vec<Vec<Called>>>,
    told: Arc<Mutex<Vec<Turn>>>,
}

impl Model {
    pub(crate) fn new(turns: Vec<Vec<Called>>) -> Self {
        Self {
            turns: Arc::new(turns),
            told: Arc::default(),
        }
    }

    /// What it was told first of all.
    pub(crate) fn system(&self) -> String {
        let told = self.told.lock().unwrap();
        let is_system = |role: Role| role == Role::System;
        let message = told[0].messages.iter().find(|one| is_system(one.role));
        match &message.unwrap().parts[0] {
            Part::Text { text, .. } => text.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The tools it could call.
    pub(crate) fn offered(&self) -> Vec<String> {
        let told = self.told.lock().unwrap();
        told[0].tools.iter().map(|tool| tool.name.clone()).collect()
    }
}

struct Said(std::vec::IntoIter<ModelEvent>);

impl ModelStream for Said {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        let next = self.0.next();
        Box::pin(async move { next })
    }
}

impl ModelProvider for Model {
    fn name(&self) -> &str {
        "script"
    }

    fn start(
        &self,
        _permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        let number = {
            let mut told = self.told.lock().unwrap();
            told.push(turn);
            told.len() - 1
        };
        let mut events = Vec::new();
        let calls = self.turns.get(number).cloned().unwrap_or_default();
        let reason = match calls.is_empty() {
            true => StopReason::EndTurn,
            false => StopReason::ToolCalls,
        };
        for (at, (name, arguments)) in calls.into_iter().enumerate() {
            let id = format!("c{number}-{at}");
            events.push(ModelEvent::ToolCallStart {
                id: id.clone(),
                name,
            });
            events.push(ModelEvent::ToolCallDelta {
                id: id.clone(),
                arguments: arguments.to_string(),
            });
            events.push(ModelEvent::ToolCallEnd { id, opaque: None });
        }
        events.push(ModelEvent::Done { reason });
        let said = Said(events.into_iter());
        Box::pin(async move { Ok(Box::new(said) as Box<dyn ModelStream>) })
    }
}

/// One session, its gate and its ledger.
pub(crate) struct Stage<'a> {
    kit: &'a Kit,
    ledger: Ledger,
    desk: Desk,
    pub(crate) session: SessionId,
    _home: tempfile::TempDir,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) tool: String,
    pub(crate) outcome: String,
    pub(crate) content: String,
}

impl<'a> Stage<'a> {
    /// Under these rules, with a session that holds this grant.
    pub(crate) fn new(kit: &'a Kit, rules: &str, grant: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("user.yaml"), rules).unwrap();
        let ledger = Ledger::open(&home.path().join("ledger"), LedgerOptions::default()).unwrap();
        let places = PolicyPlaces {
            organisation: home.path().join("organisation.yaml"),
            user: home.path().join("user.yaml"),
            pins: None,
            worker: WorkerCommand {
                program: "/bin/false".into(),
                args: Vec::new(),
            },
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let gate = Arc::new(Gate::open(places, ledger.clone(), clock).unwrap());
        let all = || vec!["*".to_owned()];
        let lists = GrantLists {
            capabilities: grant.iter().map(|text| (*text).to_owned()).collect(),
            deny_capabilities: Vec::new(),
            workspace: all(),
            user: all(),
        };
        let session = SessionId::generate();
        let grant = Arc::new(Grant::build(&lists).unwrap());
        let principal = Principal::new(PrincipalKind::Agent, session.to_string(), grant);
        Self {
            kit,
            ledger,
            desk: Desk { gate, principal },
            session,
            _home: home,
        }
    }

    /// Lets the session work until the model has no more to say.
    pub(crate) async fn work(&self, model: &Model, source: &Arc<dyn ToolSource>) -> Vec<Ended> {
        let held = self.kit.layer();
        let author = Author {
            name: "Ann".to_owned(),
            email: "ann@example.com".to_owned(),
        };
        let started = Started {
            task: "try the tools".to_owned(),
            mode: Mode::Strict,
            model: "replay/script".to_owned(),
            layer: held.layer().id(),
            moment: SystemClock.now(),
            author: author.clone(),
            tier: Tier::Process,
            budget: BTreeMap::new(),
            forked_from: None,
            record: None,
            forked_at: None,
        };
        let store = SessionStore::new(self.ledger.clone());
        let fact = Fact::Started(started.clone());
        store.append(self.session, &fact).await.unwrap();
        let mut registry = Registry::standard(ProjectPaths::new(self.kit.project()));
        assert_eq!(registry.add(source), []);
        let ways = Ways::new(Presence::Absent);
        let memory = Store {
            look: Arc::new(Memory::default),
            give_back: Arc::new(|_| {}),
        };
        let ground = Ground {
            store,
            ledger: self.ledger.clone(),
            hub: ways.hub,
            person: ways.person,
            desk: self.desk.clone(),
            people: self.desk.clone(),
            slots: Slots::start(TaskLimits::default(), memory).unwrap(),
            workshop: Arc::clone(&self.kit.workshop),
            layers: self.kit.layers.clone(),
            kind: LayerKind::Overlay,
            registry,
            provider: Arc::new(model.clone()),
            address: None,
            network: Arc::new(HostNetwork),
            redactor: Redactor::new(&[]).unwrap(),
            prices: Prices::built_in().unwrap(),
            window: 100_000,
            overrides: Overrides::default(),
            instructions: Vec::new(),
            skills: Vec::new(),
            author,
            stop: ways.stop,
        };
        let session = Session::begin(self.session, started);
        let budget = Budget::new(Limits::STANDARD);
        let mut agent = Agent::new(session, ground, held, budget).unwrap();
        let (_errands, mut taken) = tokio::sync::mpsc::channel(1);
        agent.work(&mut taken).await.unwrap();
        self.ended()
    }

    /// What the ledger has of the calls.
    fn ended(&self) -> Vec<Ended> {
        let events = self.ledger.read(0, 10_000).unwrap();
        let ended = events
            .iter()
            .filter(|event| event.event_type == "tool.finished");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ended
            .map(|event| {
                let payload = event.payload.value().unwrap();
                Ended {
                    tool: text(&payload["tool"]),
                    outcome: text(&payload["outcome"]),
                    content: text(&payload["content"]),
                }
            })
            .collect()
    }

    /// The recorded decisions about an action.
    pub(crate) fn decisions(&self, action: &str) -> Vec<String> {
        let events = self.ledger.read(0, 10_000).unwrap();
        let decisions = events
            .iter()
            .filter(|event| event.event_type == "policy.decision");
        let texts = decisions.map(|event| format!("{event:?} {}", event.payload.value().unwrap()));
        texts
            .filter(|text| text.contains(&format!("{action}\"")))
            .collect()
    }
}
