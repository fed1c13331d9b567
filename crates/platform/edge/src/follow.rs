//! Hears the server: takes its tables, and says which one is in force.
//!
//! One connection's worth; whoever dialled it dials again. What is in force
//! stays in force without a server.

use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::v1;
use fluffy_base::{Clock as _, SystemClock};
use futures_util::stream::unfold;
use tokio::sync::mpsc;
use tonic::Status;
use v1::edge_message::Message as Said;
use v1::nodes_client::NodesClient;

use crate::edge::Edge;

/// How often the server hears that the edge lives.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Goes by what the server says until the connection ends. `hello` says who
/// the edge is; the table in force is added.
///
/// # Errors
/// How it ended.
pub async fn follow(edge: &Edge, channel: Channel, hello: v1::Hello) -> Result<(), Status> {
    let (say, said) = mpsc::channel::<v1::EdgeMessage>(8);
    let said = unfold(said, |mut said| async {
        let message = said.recv().await?;
        Some((message, said))
    });
    let hello = v1::Hello {
        plan: edge.config().await,
        ..hello
    };
    tell(&say, Said::Hello(hello)).await?;
    let client = NodesClient::with_origin(channel, Channel::origin());
    let mut client = client.max_decoding_message_size(64 << 20);
    let mut tables = client.edge_config(said).await?.into_inner();
    let _heard = edge.hear();
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            table = tables.message() => {
                let Some(table) = table? else { return Ok(()) };
                let ack = edge.apply(&table).await;
                if !ack.refused.is_empty() {
                    tracing::warn!(why = ack.refused, "a routing table is refused whole");
                }
                tell(&say, Said::Ack(ack)).await?;
            }
            _ = heartbeat.tick() => {
                // Says what it was unable to do, and whether that is over.
                if let Some(ack) = edge.standing().await {
                    tell(&say, Said::Ack(ack)).await?;
                }
                let now = SystemClock.now().as_micros() / 1000;
                let beat = v1::Heartbeat {
                    clock_ms: u64::try_from(now).unwrap_or_default(),
                    plan: edge.config().await,
                    ..Default::default()
                };
                tell(&say, Said::Heartbeat(beat)).await?;
            }
        }
    }
}

async fn tell(say: &mpsc::Sender<v1::EdgeMessage>, message: Said) -> Result<(), Status> {
    let message = Some(message);
    let told = say.send(v1::EdgeMessage { message }).await;
    told.map_err(|_| Status::cancelled("the server is gone"))
}
