//! What an edge is told: whole routing tables, and which of them it goes by.
//!
//! An older table never follows a newer one. Decides nothing.

use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::v1;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Status, Streaming};
use v1::edge_message::Message as Said;

use super::service::{Shared, of_desk};
use super::session::{check_hello, wrong};
use super::stream::{Inlet, gone};
use super::tls::Peer;

/// How long the first message may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a connected edge's standing is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Keeps an edge up to date until either side ends it.
pub(super) async fn hold(
    shared: Arc<Shared>,
    peer: Peer,
    said: Streaming<v1::EdgeMessage>,
    told: Inlet<v1::RoutingTable>,
) {
    let ended = talk(&shared, &peer, said, &told).await;
    told.end(ended.err().unwrap_or_else(gone)).await;
}

async fn talk(
    shared: &Shared,
    peer: &Peer,
    mut said: Streaming<v1::EdgeMessage>,
    told: &Inlet<v1::RoutingTable>,
) -> Result<(), Status> {
    let first = timeout(PATIENCE, said.message()).await;
    let Ok(Some(v1::EdgeMessage {
        message: Some(Said::Hello(hello)),
    })) = first.unwrap_or(Ok(None))
    else {
        return Err(wrong("no hello"));
    };
    check_hello(peer, &hello)?;
    let mut sent = hello.plan;
    shared.desk.open(peer.node, hello).await.map_err(of_desk)?;
    let mut tables = shared.desk.table();
    tables.mark_changed();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = said.message() => {
                let Some(message) = message? else { return Ok(()) };
                shared.admit(peer)?;
                match message.message.ok_or_else(|| wrong("an empty message"))? {
                    Said::Hello(_) => return Err(wrong("a second hello")),
                    Said::Heartbeat(heartbeat) => {
                        shared.desk.edge_beat(peer.node, heartbeat.plan);
                    }
                    Said::Ack(ack) => shared.desk.edge_ack(peer.node, ack),
                }
            }
            changed = tables.changed() => {
                changed.map_err(|_| gone())?;
                let table = Arc::clone(&tables.borrow_and_update());
                let position = table.config.unwrap_or_default();
                if sent.is_none_or(|sent| position.is_above(sent)) {
                    shared.admit(peer)?;
                    told.say(v1::RoutingTable::clone(&table)).await?;
                    sent = Some(position);
                }
            }
            _ = tick.tick() => shared.admit(peer)?,
            () = told.closed() => return Ok(()),
        }
    }
}
