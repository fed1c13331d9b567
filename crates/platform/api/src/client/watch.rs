//! A stream of changes of a list, as the server sends it.
//!
//! Bounded: one event has a largest size. Does not reconnect by itself;
//! whoever watches knows where to go on. Next: `super`.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use sse_core::{SseDecoder, SseEvent};

use super::CallError;

/// The largest event.
const MAX_EVENT: usize = 4 << 20;

/// A stream of changes.
#[derive(Debug)]
pub struct Watch {
    body: Incoming,
    decoder: SseDecoder,
    ready: VecDeque<Change>,
    server: String,
}

/// One thing that a stream says.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// What.
    pub kind: ChangeKind,
    /// The event that the stream has come to.
    pub seq: u64,
    /// Where the stream goes on from, if it is opened again; empty if it does
    /// not say.
    pub id: String,
    /// The object, or of a deletion its id.
    pub value: Value,
}

/// What a stream says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// An object that was there at the start.
    Snapshot,
    /// An object that is new or has changed.
    Upsert,
    /// An object is gone.
    Delete,
    /// Everything that was there at the start has been said.
    Synced,
    /// Nothing happened up to here.
    Watermark,
}

impl Watch {
    pub(super) fn new(body: Incoming, server: &str) -> Self {
        Self {
            body,
            decoder: SseDecoder::with_limit(
                NonZeroUsize::new(MAX_EVENT).unwrap_or(NonZeroUsize::MIN),
            ),
            ready: VecDeque::new(),
            server: server.to_owned(),
        }
    }

    /// The next thing that the stream says; none at its end.
    ///
    /// # Errors
    /// The connection broke, or the server sent no stream of ours.
    pub async fn next(&mut self) -> Result<Option<Change>, CallError> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(Some(change));
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|source| CallError::Broken {
                server: self.server.clone(),
                source: source.into(),
            })?;
            let Ok(mut bytes) = frame.into_data() else {
                continue;
            };
            while let Some(event) = self.decoder.next(&mut bytes) {
                let event = event.map_err(|_| self.malformed())?;
                if let SseEvent::Message(message) = event {
                    let seq = message
                        .last_event_id
                        .as_deref()
                        .and_then(|id| id.parse().ok());
                    self.ready.push_back(Change {
                        kind: kind(&message.event).ok_or_else(|| self.malformed())?,
                        seq: seq.unwrap_or_default(),
                        id: message
                            .last_event_id
                            .as_deref()
                            .unwrap_or_default()
                            .to_owned(),
                        value: serde_json::from_str(&message.data).map_err(|_| self.malformed())?,
                    });
                }
            }
        }
    }

    fn malformed(&self) -> CallError {
        CallError::Malformed {
            server: self.server.clone(),
            status: 200,
        }
    }
}

fn kind(name: &str) -> Option<ChangeKind> {
    Some(match name {
        "snapshot" => ChangeKind::Snapshot,
        "upsert" => ChangeKind::Upsert,
        "delete" => ChangeKind::Delete,
        "synced" => ChangeKind::Synced,
        "watermark" => ChangeKind::Watermark,
        _ => return None,
    })
}
