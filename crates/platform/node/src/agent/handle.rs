//! An agent from outside: how it is set up, how it is, how it is ended.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot};

use crate::metrics::OtherFigures;
use crate::otlp::Collector;
use crate::store::StoreError;

/// How a node is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Everything that it keeps.
    pub folder: PathBuf,
    /// Sockets; a short path.
    pub run: PathBuf,
    /// What instances are told about where they are.
    pub region: String,
    /// Where figures are served; an address of this machine.
    pub metrics: Option<SocketAddr>,
    /// What is served there beside the node's own.
    pub other_figures: Option<OtherFigures>,
    /// Who figures are pushed to.
    pub collector: Option<Collector>,
}

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another one uses the folder.
    #[error("another agent uses `{0}`")]
    Taken(PathBuf),
    /// A folder cannot be used.
    #[error("`{path}` cannot be used")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Its memory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Figures cannot be served.
    #[error("figures cannot be served at {address}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// How an agent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The node.
    pub node_id: String,
    /// Whether it has a session.
    pub connected: bool,
    /// Why it has none, if it has not.
    pub ended: String,
    /// The plan that it goes by, as epoch and number.
    pub plan: Option<(u64, u64)>,
    /// Reports that were not acknowledged.
    pub unacknowledged: usize,
    /// Where its instances stand.
    pub instances: BTreeMap<String, String>,
    /// Where figures are served.
    pub metrics: Option<SocketAddr>,
    /// What could not be written down and is tried again; nothing if all is.
    pub unwritten: String,
}

#[derive(Debug)]
pub(super) enum Order {
    Status(oneshot::Sender<Status>),
    /// End; instances go on, or not.
    End {
        instances: bool,
    },
}

/// The way to an agent that runs.
#[derive(Debug, Clone)]
pub struct Handle(pub(super) mpsc::Sender<Order>);

impl Handle {
    /// How it is; nothing if it ended.
    pub async fn status(&self) -> Option<Status> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Order::Status(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Ends the agent and leaves its instances running.
    pub async fn leave(&self) {
        let _ = self.0.send(Order::End { instances: false }).await;
    }

    /// Ends the agent and everything that it runs; the next one starts it
    /// again, as the plan says.
    pub async fn halt(&self) {
        let _ = self.0.send(Order::End { instances: true }).await;
    }
}
