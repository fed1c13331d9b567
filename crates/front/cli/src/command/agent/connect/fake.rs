//! A kernel that plays a script, for tests of everything that talks to one.
//!
//! Serves the real wire on a real socket. Also part of the tests of the built
//! program, so it uses nothing of this crate.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_base::id::SessionId;
use fluffy_contract::isolation::Level;
use fluffy_ipc::message::ErrorCode;
use fluffy_ipc::server::EventSender;
use fluffy_ipc::{ApiRange, Failure, Listener, RequestContext, Server};
use fluffy_kernel::api::{self, Begun, Heard, Reply, SessionOrder, Status};
use fluffy_kernel::event::{AgentEvent, Spent};
use fluffy_policy::word::{Mode, State, Tier};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One step of the script.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// An event, with the next number.
    Tell(AgentEvent),
    /// Nothing goes on before this method is called, once for each such step.
    Await(&'static str),
    /// The kernel is gone at once, as after kill -9.
    Die,
}

/// Whether the kernel knows the session of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Attaching works.
    Kept,
    /// It has to be resumed first.
    Lost,
}

/// A kernel that plays a script.
#[derive(Debug)]
pub(crate) struct Fake {
    stage: Arc<Stage>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Stage {
    session: SessionId,
    acts: Vec<Act>,
    memory: Memory,
    calls: Mutex<Vec<(String, Value)>>,
    /// Counts the calls, so that a step can wait for one.
    called: watch::Sender<usize>,
    dead: watch::Sender<bool>,
}

/// Everything with a deadline here waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

impl Fake {
    /// Serves the socket; must be called where tasks can be spawned.
    pub(crate) fn serve(socket: &Path, session: SessionId, acts: Vec<Act>) -> Self {
        Self::serve_with(socket, session, (acts, Memory::Kept))
    }

    /// The same, for a kernel that may have forgotten the session.
    pub(crate) fn serve_with(
        socket: &Path,
        session: SessionId,
        (acts, memory): (Vec<Act>, Memory),
    ) -> Self {
        let folder = socket.parent().and_then(Path::parent).unwrap();
        std::fs::create_dir_all(folder).unwrap();
        let listener = Listener::bind(socket).unwrap();
        let stage = Arc::new(Stage {
            session,
            acts,
            memory,
            calls: Mutex::default(),
            called: watch::Sender::new(0),
            dead: watch::Sender::new(false),
        });
        let mut dead = stage.dead.subscribe();
        let server = methods(&stage);
        let serving = tokio::spawn(async move {
            let serve = server.serve(listener, std::future::pending());
            tokio::select! {
                served = serve => served.unwrap(),
                // Dropping the server cuts every connection.
                died = dead.wait_for(|dead| *dead) => drop(died.unwrap()),
            }
        });
        Self { stage, serving }
    }

    /// Every call so far: its method and its parameters.
    pub(crate) fn calls(&self) -> Vec<(String, Value)> {
        self.stage.calls.lock().unwrap().clone()
    }

    /// The names of the methods that were called.
    pub(crate) fn called(&self) -> Vec<String> {
        self.calls().into_iter().map(|(method, _)| method).collect()
    }

    /// The parameters of the first call of this method.
    pub(crate) fn call(&self, method: &str) -> Value {
        let calls = self.calls();
        let found = calls.into_iter().find(|(name, _)| name == method);
        found.unwrap_or_else(|| panic!("{method} was not called")).1
    }

    /// Ends it at once, as kill -9 would.
    pub(crate) async fn kill(self) {
        self.stage.dead.send_replace(true);
        self.died().await;
    }

    /// Waits until it has died by its script.
    pub(crate) async fn died(self) {
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .unwrap()
            .unwrap();
    }
}

fn methods(stage: &Arc<Stage>) -> Server {
    let mut server = Server::new("kernel", ApiRange::current_and_previous(api::VERSION));
    for method in [api::START, api::RESUME] {
        let stage = Arc::clone(stage);
        server = server.method(method, move |context: RequestContext, params: Value| {
            let stage = Arc::clone(&stage);
            async move {
                stage.note(method, params);
                let session = stage.session;
                tokio::spawn(play(Arc::clone(&stage), context.events(), 0));
                Ok(Begun { session })
            }
        });
    }
    let own = Arc::clone(stage);
    server = server.method(
        api::ATTACH,
        move |context: RequestContext, params: Value| {
            let stage = Arc::clone(&own);
            async move {
                let after = params["after"].as_u64().unwrap_or_default();
                stage.note(api::ATTACH, params);
                if stage.memory == Memory::Lost {
                    return Err(Failure::new(ErrorCode::NotFound, "the session is not open"));
                }
                tokio::spawn(play(Arc::clone(&stage), context.events(), after));
                Ok(())
            }
        },
    );
    for method in [api::SAY, api::ANSWER, api::STOP] {
        let stage = Arc::clone(stage);
        server = server.method(method, move |_: RequestContext, params: Value| {
            let stage = Arc::clone(&stage);
            async move {
                stage.note(method, params);
                Ok(())
            }
        });
    }
    let own = Arc::clone(stage);
    server.method(api::COMMAND, move |_: RequestContext, params: Value| {
        let stage = Arc::clone(&own);
        async move {
            let order = serde_json::from_value(params["order"].clone()).unwrap();
            stage.note(api::COMMAND, params);
            Ok(stage.reply(&order))
        }
    })
}

impl Stage {
    fn note(&self, method: &str, params: Value) {
        let mut calls = self.calls.lock().unwrap();
        calls.push((method.to_owned(), params));
        self.called.send_replace(calls.len());
    }

    /// Waits until a method was called this many times.
    async fn wait_for(&self, method: &str, times: usize) {
        let mut called = self.called.subscribe();
        let count = || {
            let calls = self.calls.lock().unwrap();
            calls.iter().filter(|(name, _)| name == method).count()
        };
        while count() < times {
            called.changed().await.unwrap();
        }
    }

    fn reply(&self, order: &SessionOrder) -> Reply {
        match order {
            SessionOrder::Status => Reply::Status(Status {
                session: self.session,
                mode: Mode::Explore,
                state: State::Exploring,
                model: "openai/gpt-5".to_owned(),
                tier: Tier::Process,
                isolation: Level::SharedKernel,
                spent: Spent::default(),
                budgets: BTreeMap::from([("turns".to_owned(), (3, 50))]),
            }),
            SessionOrder::Diff => Reply::Text {
                text: "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n".to_owned(),
            },
            SessionOrder::Undo => Reply::Refused {
                text: "no turn has changed anything".to_owned(),
            },
            SessionOrder::Mode { .. }
            | SessionOrder::Pin { .. }
            | SessionOrder::Model { .. }
            | SessionOrder::Compact => Reply::Done {
                text: "so be it".to_owned(),
            },
        }
    }
}

/// Plays the script from the beginning; who attaches hears what is new to it.
async fn play(stage: Arc<Stage>, events: EventSender, after: u64) {
    let mut number = 0;
    let mut awaited: BTreeMap<&str, usize> = BTreeMap::new();
    for act in &stage.acts {
        match act {
            Act::Tell(event) => {
                number += 1;
                let heard = Heard {
                    session: stage.session,
                    number,
                    event: event.clone(),
                };
                if number > after && events.emit(api::EVENT, &heard).await.is_err() {
                    return;
                }
            }
            Act::Await(method) => {
                let times = awaited.entry(method).or_default();
                *times += 1;
                stage.wait_for(method, *times).await;
            }
            Act::Die => {
                stage.dead.send_replace(true);
                return;
            }
        }
    }
}
