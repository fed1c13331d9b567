//! The edge of `fluffy up`: connections to this machine reach instances.
//!
//! Goes by the same tables as any edge, from the server in this process. What
//! was served before is served again at once, whatever the server does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_edge::{Edge, Keep, Options, Prefix};
use fluffy_node::OtherFigures;
use fluffy_server::node::LocalEdge;
use fluffy_server::server::Server;
use serde::Serialize;
use tokio::task::{AbortHandle, spawn};

/// How often the server hears of it, and taken ports are tried again.
const BEAT: Duration = Duration::from_secs(2);

/// An edge that runs in this process, and ends with its owner.
pub(super) struct Local {
    following: AbortHandle,
    edge: Edge,
}

impl Local {
    /// What it counts.
    pub(super) fn figures(&self) -> OtherFigures {
        let edge = self.edge.clone();
        OtherFigures(Arc::new(move || edge.metrics()))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// Begins the edge of this machine; none without a place for instances.
pub(super) async fn begin(folder: &Path, mut seat: LocalEdge) -> Option<Local> {
    let (address, length) = seat.prefix()?;
    let prefix = Prefix {
        address: address.into(),
        length,
    };
    let options = Options {
        keep: Some(Keep::new(folder)),
        ..Options::loopback(vec![prefix])
    };
    let local = Edge::start(options).await;
    let edge = local.clone();
    let following = spawn(async move {
        let _heard = edge.hear();
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                table = seat.table() => {
                    let Some(table) = table else { return };
                    let ack = edge.apply(&table).await;
                    if !ack.refused.is_empty() {
                        tracing::warn!(why = ack.refused, "a routing table is refused whole");
                    }
                    seat.acknowledge(ack);
                }
                _ = beat.tick() => {
                    if let Some(ack) = edge.standing().await {
                        seat.acknowledge(ack);
                    }
                }
            }
        }
    });
    Some(Local {
        following: following.abort_handle(),
        edge: local,
    })
}

/// A way in from this machine.
#[derive(Debug, Serialize)]
pub(super) struct Way {
    pub(super) address: String,
    pub(super) app: String,
    pub(super) env: String,
    pub(super) process: String,
    pub(super) port: u16,
}

/// The ways in that this machine has already.
pub(super) fn known(server: &Server) -> Vec<Way> {
    server.platform().sequencer().read(|state| {
        let runtime = &state.runtime;
        let routes = runtime.routes.values().filter(|it| it.loopback);
        let shown = routes.filter_map(|route| {
            let (app, env) = (runtime.apps.get(&route.app)?, runtime.envs.get(&route.env)?);
            Some(Way {
                address: format!("127.0.0.1:{}", route.listen_port),
                app: app.name.clone(),
                env: env.name.clone(),
                process: route.backend_process.clone(),
                port: route.backend_port,
            })
        });
        shown.collect()
    })
}
