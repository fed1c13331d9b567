//! What a plugin may ask its host for, as plain functions.
//!
//! Each call is decided by policy in the plugin's own name: declare what you
//! need under `capabilities` in `plugin.yaml`. What is refused answers
//! [`Error::Denied`]; go on without. In tests the host is [`double`].

#[cfg(not(target_family = "wasm"))]
pub mod double;

use std::fmt;

#[cfg(target_family = "wasm")]
use crate::component as asked;
#[cfg(not(target_family = "wasm"))]
use double as asked;

/// Values that are kept between calls and between starts.
///
/// At most 10,000 keys and 64 MiB together; a key has at most 256 bytes, a
/// value at most 1 MiB. Capabilities: `kv.get.KEY`, `kv.set.KEY`,
/// `kv.delete.KEY`, `kv.list.PREFIX`.
pub mod kv {
    use super::{Error, asked};

    /// A value, or nothing where there is none.
    ///
    /// # Errors
    /// The host does not give it.
    pub fn get(key: &str) -> Result<Option<Vec<u8>>, Error> {
        asked::kv_get(key)
    }

    /// Puts a value, whole or not at all.
    ///
    /// # Errors
    /// The host does not keep it.
    pub fn set(key: &str, value: &[u8]) -> Result<(), Error> {
        asked::kv_set(key, value)
    }

    /// Takes a value away; one that is not there is no error.
    ///
    /// # Errors
    /// The host does not do it.
    pub fn delete(key: &str) -> Result<(), Error> {
        asked::kv_delete(key)
    }

    /// Keys that begin with `prefix` and come after `after`, in order, at most
    /// 1,000. Ask again with the last one to get the next.
    ///
    /// # Errors
    /// The host does not list them.
    pub fn list(prefix: &str, after: &str) -> Result<Vec<String>, Error> {
        asked::kv_list(prefix, after)
    }
}

/// What a person configured for this plugin. Capability: `config.read.self`.
pub mod config {
    use super::{Error, asked};
    use serde_json::Value;

    /// All of it. Secrets are in it in the clear: never put them into a log.
    ///
    /// # Errors
    /// The host does not give it.
    pub fn get() -> Result<Value, Error> {
        let text = asked::config_get()?;
        serde_json::from_str(&text).map_err(|error| Error::Failed(error.to_string()))
    }
}

/// The plugin's log: `fluffy plugin logs NAME`. Capability: `log.write`.
pub mod log {
    use super::{Error, asked};

    /// How important a line is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Level {
        /// Every step.
        Trace,
        /// For whoever looks for a fault.
        Debug,
        /// What happens.
        Info,
        /// What should not happen.
        Warn,
        /// What went wrong.
        Error,
    }

    /// Adds a line, cut at 4 KiB.
    ///
    /// # Errors
    /// The host does not keep it.
    pub fn write(level: Level, text: &str) -> Result<(), Error> {
        asked::log_write(level, text)
    }
}

/// Files of the project (`/docs/a.md`) and of the plugin itself (`@data/a`).
///
/// Only plain files, at most 1 MiB. Capabilities: `fs.read.PATH`,
/// `fs.list.PATH`, `fs.write.PATH`.
pub mod fs {
    use super::{Error, asked};

    /// The content of a file.
    ///
    /// # Errors
    /// The host does not give it.
    pub fn read(path: &str) -> Result<Vec<u8>, Error> {
        asked::fs_read(path)
    }

    /// The names in a directory in order; those of directories end with `/`.
    ///
    /// # Errors
    /// The host does not list them.
    pub fn list(path: &str) -> Result<Vec<String>, Error> {
        asked::fs_list(path)
    }

    /// Writes a file below `@data/`; nothing of the project can be written.
    ///
    /// # Errors
    /// The host does not write it.
    pub fn write(path: &str, content: &[u8]) -> Result<(), Error> {
        asked::fs_write(path, content)
    }
}

/// HTTP requests. Capability: `net.connect.HOST:PORT`.
pub mod egress {
    use super::{Error, asked};

    /// What to send.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Request {
        /// `GET`, `POST`, and so on.
        pub method: String,
        /// `https://host/path?query`.
        pub url: String,
        /// At most 100; those of the connection itself are the host's.
        pub headers: Vec<(String, String)>,
        /// At most 1 MiB.
        pub body: Vec<u8>,
    }

    impl Request {
        /// A `GET` of this address.
        #[must_use]
        pub fn get(url: &str) -> Self {
            Self {
                method: "GET".to_owned(),
                url: url.to_owned(),
                headers: Vec::new(),
                body: Vec::new(),
            }
        }
    }

    /// What came back.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Response {
        /// The status: 200, 404, …
        pub status: u16,
        /// Its headers.
        pub headers: Vec<(String, String)>,
        /// At most 2 MiB.
        pub body: Vec<u8>,
    }

    /// Sends one request. Redirects are not followed: look at `location`.
    ///
    /// # Errors
    /// The host does not send it, or nobody answers.
    pub fn fetch(request: &Request) -> Result<Response, Error> {
        asked::egress_fetch(request)
    }
}

/// Why the host did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// Policy says no; the text names the capability and who refused it.
    Denied(String),
    /// There is no such thing.
    NotFound(String),
    /// Larger than the host takes or gives.
    TooLarge(String),
    /// The store is full.
    Full(String),
    /// Not a key, a path or an address.
    Invalid(String),
    /// The host, or whoever it asked, failed.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Denied(text)
        | Self::NotFound(text)
        | Self::TooLarge(text)
        | Self::Full(text)
        | Self::Invalid(text)
        | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}
