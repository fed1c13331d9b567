//! What a plugin asks back: its imports become one kind of question.
//!
//! Whoever holds the plugin answers ([`Host`]); nothing is decided or done
//! here. Questions are counted, and one call has only so many of them. Next:
//! `instance` for the calls in the other direction.

use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::bindings::fluffy::plugin::{config, egress, fs, kv, log, types};
use crate::guest::Guest;

/// How many questions one call may ask.
pub const ASKS_MAX: u32 = 10_000;

/// Answers what a plugin asks.
pub trait Host: Send + Sync {
    /// The answer to one question; bounds and policy are the host's.
    fn ask(&self, ask: Ask) -> Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + '_>>;
}

/// A question of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// A value of its store.
    KvGet {
        /// Which.
        key: String,
    },
    /// Puts a value into its store.
    KvSet {
        /// Which.
        key: String,
        /// The value.
        value: Vec<u8>,
    },
    /// Takes a value out of its store.
    KvDelete {
        /// Which.
        key: String,
    },
    /// Keys of its store.
    KvList {
        /// How they begin.
        prefix: String,
        /// After which one.
        after: String,
    },
    /// Its configuration.
    Config,
    /// A line for its log.
    Log {
        /// How important.
        level: Level,
        /// The line.
        text: String,
    },
    /// An HTTP request.
    Fetch(Request),
    /// A file.
    FsRead {
        /// Which.
        path: String,
    },
    /// The names in a directory.
    FsList {
        /// Which.
        path: String,
    },
    /// Writes a file.
    FsWrite {
        /// Which.
        path: String,
        /// What is in it then.
        content: Vec<u8>,
    },
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    /// For whoever looks closely.
    Trace,
    /// For whoever looks for a fault.
    Debug,
    /// For whoever wants to know.
    Info,
    /// Something is not as it should be.
    Warn,
    /// Something failed.
    Error,
}

/// An HTTP request, as the plugin wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Where to.
    pub url: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

/// What came back for a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

/// An answer, of the kind its question asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// A value or a file, where there is one.
    Bytes(Option<Vec<u8>>),
    /// Keys or names.
    Names(Vec<String>),
    /// The configuration as JSON.
    Text(String),
    /// What came back.
    Response(Response),
}

/// Why there is no answer, in words for the plugin's author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Policy says no.
    Denied(String),
    /// There is no such thing.
    NotFound(String),
    /// Larger than is allowed.
    TooLarge(String),
    /// The store is full.
    Full(String),
    /// Not a key, path or address.
    Invalid(String),
    /// The host failed.
    Failed(String),
}

/// What an instance reaches of the system: its host, and a WASI with nothing.
pub(crate) struct System {
    pub(super) host: Arc<dyn Host>,
    pub(super) wasi: WasiCtx,
    pub(super) table: ResourceTable,
    pub(super) asks_left: u32,
}

impl WasiView for Guest<System> {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let System { wasi, table, .. } = &mut self.system;
        WasiCtxView { ctx: wasi, table }
    }
}

impl Guest<System> {
    /// The answer to a question, or a trap after too many of them.
    async fn ask<T>(
        &mut self,
        ask: Ask,
        take: impl FnOnce(Reply) -> Option<T>,
    ) -> wasmtime::Result<Result<T, types::HostError>> {
        match self.system.asks_left.checked_sub(1) {
            Some(left) => self.system.asks_left = left,
            None => return Err(self.too_many_asks(ASKS_MAX)),
        }
        let reply = self.system.host.ask(ask).await;
        Ok(match reply.map(take) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(types::HostError::Failed(
                "the host answered something else".to_owned(),
            )),
            Err(fault) => Err(fault.into()),
        })
    }
}

impl From<Fault> for types::HostError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Denied(text) => Self::Denied(text),
            Fault::NotFound(text) => Self::NotFound(text),
            Fault::TooLarge(text) => Self::TooLarge(text),
            Fault::Full(text) => Self::Full(text),
            Fault::Invalid(text) => Self::Invalid(text),
            Fault::Failed(text) => Self::Failed(text),
        }
    }
}

type Answered<T> = wasmtime::Result<Result<T, types::HostError>>;

fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

fn names(reply: Reply) -> Option<Vec<String>> {
    match reply {
        Reply::Names(names) => Some(names),
        _ => None,
    }
}

impl types::Host for Guest<System> {}

impl kv::Host for Guest<System> {
    async fn get(&mut self, key: String) -> Answered<Option<Vec<u8>>> {
        self.ask(Ask::KvGet { key }, |reply| match reply {
            Reply::Bytes(value) => Some(value),
            _ => None,
        })
        .await
    }

    async fn set(&mut self, key: String, value: Vec<u8>) -> Answered<()> {
        self.ask(Ask::KvSet { key, value }, done).await
    }

    async fn delete(&mut self, key: String) -> Answered<()> {
        self.ask(Ask::KvDelete { key }, done).await
    }

    async fn list(&mut self, prefix: String, after: String) -> Answered<Vec<String>> {
        self.ask(Ask::KvList { prefix, after }, names).await
    }
}

impl config::Host for Guest<System> {
    async fn get(&mut self) -> Answered<String> {
        self.ask(Ask::Config, |reply| match reply {
            Reply::Text(text) => Some(text),
            _ => None,
        })
        .await
    }
}

impl log::Host for Guest<System> {
    async fn write(&mut self, level: log::Level, text: String) -> Answered<()> {
        let level = match level {
            log::Level::Trace => Level::Trace,
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        };
        self.ask(Ask::Log { level, text }, done).await
    }
}

impl egress::Host for Guest<System> {
    async fn fetch(&mut self, request: egress::Request) -> Answered<egress::Response> {
        let ask = Ask::Fetch(Request {
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: request.body,
        });
        self.ask(ask, |reply| match reply {
            Reply::Response(response) => Some(egress::Response {
                status: response.status,
                headers: response.headers,
                body: response.body,
            }),
            _ => None,
        })
        .await
    }
}

impl fs::Host for Guest<System> {
    async fn read(&mut self, path: String) -> Answered<Vec<u8>> {
        self.ask(Ask::FsRead { path }, |reply| match reply {
            Reply::Bytes(content) => content,
            _ => None,
        })
        .await
    }

    async fn list(&mut self, path: String) -> Answered<Vec<String>> {
        self.ask(Ask::FsList { path }, names).await
    }

    async fn write(&mut self, path: String, content: Vec<u8>) -> Answered<()> {
        self.ask(Ask::FsWrite { path, content }, done).await
    }
}
