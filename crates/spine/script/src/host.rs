//! The extensions of a policy, each behind its own worker process.
//!
//! [`ScriptHost`] is what the policy engine asks. An extension that cannot
//! answer is reported as failed, which the engine reads as deny; it never
//! disappears from the answers. Next: `keeper` runs one extension.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use fluffy_base::{Clock, Timestamp};
use fluffy_policy::Request;
use fluffy_policy::extension::{Answer, Extensions, Opinion};

use crate::actions::GuardedActions;
use crate::keeper::{Health, Keeper, Loading, Setting};
use crate::problem::{Problem, tame};
use crate::process::{Limits, StartWorkerError, WorkerCommand};
use crate::strip::check_length;

/// The most extensions that one policy has.
pub const MAX_EXTENSIONS: usize = 32;
/// The longest request that an extension is asked about, as JSON. Escaped once
/// more it still fits into a frame.
const MAX_REQUEST: usize = 448 * 1024;
const MAX_NAME: usize = 64;

/// Asks the extensions of a policy; safe to share between threads.
///
/// Every extension has its own worker process and its own thread, so one that
/// hangs or crashes costs the others nothing.
#[derive(Debug)]
pub struct ScriptHost {
    command: WorkerCommand,
    limits: Limits,
    clock: Arc<dyn Clock>,
    guards: RwLock<Arc<[Guarded]>>,
}

/// One extension as it lies in `policy.d`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionSource {
    /// Its file name without `.ts`.
    pub name: String,
    /// Its TypeScript.
    pub source: String,
}

/// How one extension is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionReport {
    /// Its name.
    pub name: String,
    /// The actions it declares; `None` means all.
    pub actions: Option<Vec<String>>,
    /// Whether it answers.
    pub health: Health,
}

/// Why extensions could not be loaded; nothing half-loads.
#[derive(Debug, thiserror::Error)]
pub enum LoadExtensionsError {
    /// There are more than a policy can have.
    #[error("{count} extensions are more than {MAX_EXTENSIONS}")]
    TooMany {
        /// How many were given.
        count: usize,
    },
    /// The name is not 1 to 64 letters, digits, `-`, `_` and `.`.
    #[error("`{extension}` is not a name for an extension")]
    Name {
        /// What was given, shortened.
        extension: String,
    },
    /// Two extensions share a name.
    #[error("there are two extensions `{extension}`")]
    Duplicate {
        /// Their name.
        extension: String,
    },
    /// The source cannot be used; the [`Problem`] says where, why and what to do.
    #[error("extension `{extension}` is refused")]
    Refused {
        /// Its name.
        extension: String,
        /// What is wrong.
        #[source]
        problem: Problem,
    },
    /// The operating system gave no thread or process.
    #[error("no worker could be started for extension `{extension}`")]
    Start {
        /// Its name.
        extension: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The worker failed while it was loading.
    #[error("extension `{extension}` failed while loading: {fault}")]
    Worker {
        /// Its name.
        extension: String,
        /// What happened.
        fault: String,
    },
}

impl ScriptHost {
    /// Starts a worker for each extension and loads them all.
    ///
    /// # Errors
    /// The first extension that cannot be loaded; then none runs.
    pub fn start(
        command: WorkerCommand,
        extensions: Vec<ExtensionSource>,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, LoadExtensionsError> {
        let host = Self {
            command,
            limits,
            clock,
            guards: RwLock::new(Arc::new([])),
        };
        host.reload(extensions)?;
        Ok(host)
    }

    /// Replaces all extensions; a disabled one gets a new life.
    ///
    /// # Errors
    /// The first extension that cannot be loaded; then the old ones stay.
    pub fn reload(&self, extensions: Vec<ExtensionSource>) -> Result<(), LoadExtensionsError> {
        check_names(&extensions)?;
        let mut loading = Vec::with_capacity(extensions.len());
        for extension in extensions {
            let name = extension.name.clone();
            loading.push((name, self.begin(extension)?));
        }
        let mut guards = Vec::with_capacity(loading.len());
        for (name, started) in loading {
            let (keeper, declared) = started
                .finish()
                .map_err(|error| load_error(name.clone(), error))?;
            let actions = GuardedActions::declared(declared).map_err(|problem| {
                LoadExtensionsError::Refused {
                    extension: name.clone(),
                    problem,
                }
            })?;
            guards.push(Guarded {
                name,
                actions,
                keeper,
            });
        }
        let fresh: Arc<[Guarded]> = guards.into();
        let mut current = self.guards.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, fresh);
        drop(current);
        // Outside the lock, because it waits for evaluations under way.
        drop(old);
        Ok(())
    }

    /// How each extension is doing, in the order in which they were given.
    #[must_use]
    pub fn report(&self) -> Vec<ExtensionReport> {
        let gone = || Health::Disabled {
            since: self.clock.now(),
            because: "its keeper is gone".to_owned(),
        };
        self.guards()
            .iter()
            .map(|guarded| ExtensionReport {
                name: guarded.name.clone(),
                actions: guarded.actions.words().map(<[String]>::to_vec),
                health: guarded.keeper.health().unwrap_or_else(gone),
            })
            .collect()
    }

    fn begin(&self, extension: ExtensionSource) -> Result<Loading, LoadExtensionsError> {
        let ExtensionSource { name, source } = extension;
        check_length(&source).map_err(|problem| LoadExtensionsError::Refused {
            extension: name.clone(),
            problem,
        })?;
        let setting = Setting {
            name: name.clone(),
            source,
            command: self.command.clone(),
            limits: self.limits,
            clock: Arc::clone(&self.clock),
        };
        Keeper::start(setting).map_err(|source| LoadExtensionsError::Start {
            extension: name,
            source,
        })
    }

    fn guards(&self) -> Arc<[Guarded]> {
        let guards = self.guards.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&guards)
    }
}

impl Extensions for ScriptHost {
    fn ask(&self, request: &Request, now: Timestamp) -> Vec<Answer> {
        let guards = self.guards();
        let concerned: Vec<&Guarded> = guards
            .iter()
            .filter(|guarded| guarded.actions.contain(&request.action))
            .collect();
        if concerned.is_empty() {
            return Vec::new();
        }
        let text: Arc<str> = match serde_json::to_string(request) {
            Ok(text) if text.len() <= MAX_REQUEST => text.into(),
            Ok(_) => return all_failed(&concerned, "the request is too long for an extension"),
            Err(_) => return all_failed(&concerned, "the request cannot be written as JSON"),
        };
        // All are asked before any is waited for.
        let pending: Vec<_> = concerned
            .iter()
            .map(|guarded| (guarded, guarded.keeper.ask(Arc::clone(&text), now)))
            .collect();
        pending
            .into_iter()
            .map(|(guarded, pending)| {
                let said = pending.wait();
                Answer {
                    extension: guarded.name.clone(),
                    opinion: said.opinion,
                    reason: said.reason,
                }
            })
            .collect()
    }
}

/// A loaded extension.
#[derive(Debug)]
struct Guarded {
    name: String,
    actions: GuardedActions,
    keeper: Keeper,
}

fn all_failed(concerned: &[&Guarded], reason: &str) -> Vec<Answer> {
    concerned
        .iter()
        .map(|guarded| Answer {
            extension: guarded.name.clone(),
            opinion: Opinion::Failed,
            reason: reason.to_owned(),
        })
        .collect()
}

fn check_names(extensions: &[ExtensionSource]) -> Result<(), LoadExtensionsError> {
    let count = extensions.len();
    if count > MAX_EXTENSIONS {
        return Err(LoadExtensionsError::TooMany { count });
    }
    let mut seen = BTreeSet::new();
    for ExtensionSource { name, .. } in extensions {
        let legal = !name.is_empty()
            && name.len() <= MAX_NAME
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !legal {
            return Err(LoadExtensionsError::Name {
                extension: tame(name).chars().take(MAX_NAME).collect(),
            });
        }
        if !seen.insert(name) {
            return Err(LoadExtensionsError::Duplicate {
                extension: name.clone(),
            });
        }
    }
    Ok(())
}

fn load_error(extension: String, error: StartWorkerError) -> LoadExtensionsError {
    match error {
        StartWorkerError::Spawn(source) => LoadExtensionsError::Start { extension, source },
        StartWorkerError::Refused(problem) => LoadExtensionsError::Refused { extension, problem },
        StartWorkerError::Fault(fault) => LoadExtensionsError::Worker {
            extension,
            fault: fault.to_string(),
        },
    }
}
