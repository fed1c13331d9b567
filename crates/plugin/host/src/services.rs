//! What a plugin may ask its host for; each call is decided first.
//!
//! The same for every protocol. The plugin's own principal asks, so its grant
//! is the ceiling and the policy's rules decide below it. Values are bounded
//! before they are stored. Next: `store` for where values are kept.

mod files;
mod store;

use std::path::PathBuf;
use std::sync::Arc;

use fluffy_gate::{Answer, Desk};
use fluffy_policy::{Context, Permit};
use fluffy_secret::Redactor;
use serde_json::{Map, Value};

use crate::log::{Level, Log, Source};

pub use store::{OpenStoreError, Store};

/// The longest key of the store, in bytes.
pub const MAX_KEY: usize = 256;

/// The largest value of the store, and the largest file, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// The most keys or files that one answer lists.
pub const MAX_LISTED: usize = 1_000;

/// The services of one plugin.
#[derive(Debug)]
pub struct Services {
    desk: Desk,
    context: Context,
    store: Store,
    log: Log,
    places: Places,
    configuration: Map<String, Value>,
    redactor: Option<Arc<Redactor>>,
}

/// What is kept of a plugin between two starts.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Its values.
    pub store: Store,
    /// What it said.
    pub log: Log,
}

/// The folders that a plugin's paths are below.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// What `/…` means: the project. Nothing outside one.
    pub workspace: Option<PathBuf>,
    /// What `@data/…` means.
    pub data: Option<PathBuf>,
}

/// Why a service was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Policy says no, or wants a person to look first.
    #[error("`{capability}` is not permitted: {reason}")]
    Denied {
        /// What was asked for.
        capability: String,
        /// Who said no.
        reason: String,
    },
    /// There is no such thing.
    #[error("there is no `{what}`")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// Larger or more than is allowed.
    #[error("{what} is larger than {most} bytes")]
    TooLarge {
        /// What.
        what: &'static str,
        /// The most.
        most: usize,
    },
    /// Its store holds no more.
    #[error("the store is full: it holds {keys} keys and {bytes} bytes")]
    Full {
        /// The most keys.
        keys: i64,
        /// The most bytes.
        bytes: i64,
    },
    /// Not a key, path or address.
    #[error("`{what}` cannot be used: {why}")]
    Invalid {
        /// What was given.
        what: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The machine failed.
    #[error("the host could not do it: {what}")]
    Failed {
        /// What happened.
        what: String,
    },
}

impl Services {
    /// Services in the name of the plugin that asks at this desk.
    #[must_use]
    pub fn new(desk: Desk, context: Context, kept: Kept) -> Self {
        let Kept { store, log } = kept;
        Self {
            desk,
            context,
            store,
            log,
            places: Places::default(),
            configuration: Map::new(),
            redactor: None,
        }
    }

    /// The same with these folders.
    #[must_use]
    pub fn in_places(mut self, places: Places) -> Self {
        self.places = places;
        self
    }

    /// The same with what a person configured for this plugin, whose secrets
    /// are in no request that is recorded.
    #[must_use]
    pub fn configured(
        mut self,
        configuration: Map<String, Value>,
        redactor: Option<Arc<Redactor>>,
    ) -> Self {
        self.configuration = configuration;
        self.redactor = redactor;
        self
    }

    /// A value of its store.
    ///
    /// # Errors
    /// Policy says no, the key is none, or the store fails.
    pub async fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, ServiceError> {
        check_key(key)?;
        let permit = self.decide("kv.get", Some(key), None)?;
        self.store.get(permit, key).await
    }

    /// Puts a value into its store.
    ///
    /// # Errors
    /// As [`Self::kv_get`], or the value or the store is too large.
    pub async fn kv_set(&self, key: &str, value: Vec<u8>) -> Result<(), ServiceError> {
        check_key(key)?;
        check_size("a value", value.len())?;
        let permit = self.decide("kv.set", Some(key), Some(value.len()))?;
        self.store.set(permit, key, value).await
    }

    /// Takes a value out of its store; one that is not there is no error.
    ///
    /// # Errors
    /// As [`Self::kv_get`].
    pub async fn kv_delete(&self, key: &str) -> Result<(), ServiceError> {
        check_key(key)?;
        let permit = self.decide("kv.delete", Some(key), None)?;
        self.store.delete(permit, key).await
    }

    /// Its keys with this beginning that come after another one, in order.
    ///
    /// # Errors
    /// As [`Self::kv_get`].
    pub async fn kv_list(&self, prefix: &str, after: &str) -> Result<Vec<String>, ServiceError> {
        // What policy is asked about is a name, and no name ends with a dot.
        let name = match prefix.trim_end_matches('.') {
            "" => "all",
            name => name,
        };
        check_key(name)?;
        let permit = self.decide("kv.list", Some(name), None)?;
        self.store.list(permit, prefix, after).await
    }

    /// Its own configuration, secrets included.
    ///
    /// # Errors
    /// Policy says no.
    pub fn configuration(&self) -> Result<&Map<String, Value>, ServiceError> {
        let _permit = self.decide("config.read", Some("self"), None)?;
        Ok(&self.configuration)
    }

    /// Its log, for what it says without asking.
    #[must_use]
    pub fn log_file(&self) -> &Log {
        &self.log
    }

    /// A line for the log, cut.
    ///
    /// # Errors
    /// Policy says no.
    pub fn log(&self, level: Level, text: &str) -> Result<(), ServiceError> {
        let _permit = self.decide("log.write", None, None)?;
        self.log.write(level, Source::Log, text);
        Ok(())
    }

    /// Whether it may connect to `host:port`. The way there is the proxy of its
    /// sandbox, which asks again.
    ///
    /// # Errors
    /// Policy says no.
    pub fn may_connect(&self, address: &str) -> Result<(), ServiceError> {
        self.decide("net.connect", Some(address), None).map(drop)
    }

    /// A file of the workspace (`/…`) or of its data (`@data/…`).
    ///
    /// # Errors
    /// Policy says no, it is not there, too large, or no plain file.
    pub async fn fs_read(&self, path: &str) -> Result<Vec<u8>, ServiceError> {
        let permit = self.decide("fs.read", Some(path), None)?;
        files::read(permit, self.places.clone(), path.to_owned()).await
    }

    /// The names in a directory; those of directories end with `/`.
    ///
    /// # Errors
    /// As [`Self::fs_read`].
    pub async fn fs_list(&self, path: &str) -> Result<Vec<String>, ServiceError> {
        let permit = self.decide("fs.list", Some(path), None)?;
        files::list(permit, self.places.clone(), path.to_owned()).await
    }

    /// Writes a file below its data; the workspace is written by merges only.
    ///
    /// # Errors
    /// As [`Self::fs_read`].
    pub async fn fs_write(&self, path: &str, content: Vec<u8>) -> Result<(), ServiceError> {
        check_size("a file", content.len())?;
        let permit = self.decide("fs.write", Some(path), Some(content.len()))?;
        files::write(permit, self.places.clone(), path.to_owned(), content).await
    }

    fn decide(
        &self,
        action: &str,
        resource: Option<&str>,
        size: Option<usize>,
    ) -> Result<Permit, ServiceError> {
        // A decision is recorded with what it was about.
        let told = |redactor: &Redactor| resource.is_some_and(|text| redactor.finds_value(text));
        if self.redactor.as_deref().is_some_and(told) {
            return Err(ServiceError::Invalid {
                what: action.to_owned(),
                why: "what it is asked about has a secret in it",
            });
        }
        let context = Context {
            size: size.and_then(|size| u64::try_from(size).ok()),
            ..self.context.clone()
        };
        let request = self.desk.request(action, resource, &context);
        let denied = |reason: String| ServiceError::Denied {
            capability: match resource {
                Some(resource) => format!("{action}.{resource}"),
                None => action.to_owned(),
            },
            reason,
        };
        match self.desk.ask(&request) {
            Ok(Answer::Granted(granted)) => Ok(granted.permit),
            Ok(Answer::Denied(refusal) | Answer::Review(refusal)) => {
                Err(denied(refusal.to_string()))
            }
            Err(error) => Err(denied(error.to_string())),
        }
    }
}

fn check_key(key: &str) -> Result<(), ServiceError> {
    let invalid = |why| ServiceError::Invalid {
        what: key.chars().take(64).collect(),
        why,
    };
    if key.is_empty() {
        return Err(invalid("a key is not empty"));
    }
    if key.len() > MAX_KEY {
        return Err(invalid("a key has at most 256 bytes"));
    }
    if key.chars().any(char::is_control) {
        return Err(invalid("a key has no control characters"));
    }
    Ok(())
}

fn check_size(what: &'static str, size: usize) -> Result<(), ServiceError> {
    match size > MAX_VALUE {
        true => Err(ServiceError::TooLarge {
            what,
            most: MAX_VALUE,
        }),
        false => Ok(()),
    }
}
