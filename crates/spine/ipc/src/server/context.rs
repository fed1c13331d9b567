//! What a method is told about its call, and how it sends events.
//!
//! Must never let a method name another peer than the one that called. Next:
//! `connection.rs`, which makes these.

use std::sync::Arc;

use serde::Serialize;

use crate::frame::EncodeFrameError;
use crate::handshake::Hello;
use crate::message::RequestId;
use crate::message::v1::encode_event;
use crate::peer::PeerIdentity;
use crate::transport::{Disconnected, Outgoing};

/// Who calls, with which request, and a way to send them events.
#[derive(Debug, Clone)]
pub struct RequestContext {
    pub(super) caller: Arc<Caller>,
    pub(super) id: RequestId,
    pub(super) outgoing: Outgoing,
}

/// What is the same for all requests of a connection.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) peer: PeerIdentity,
    pub(super) hello: Hello,
}

/// Sends events to one client, also after the call that made it.
#[derive(Debug, Clone)]
pub struct EventSender {
    id: RequestId,
    outgoing: Outgoing,
}

/// Why an event was not sent.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The client is gone, or was too slow to read.
    #[error("the client of request {request} is gone")]
    Disconnected {
        /// The request the event belongs to.
        request: RequestId,
        /// The state of the connection.
        #[source]
        source: Disconnected,
    },
    /// The event is too large or has no JSON form.
    #[error("cannot encode the event `{event}`")]
    Encode {
        /// The name of the event.
        event: String,
        /// What is wrong with it.
        #[source]
        source: EncodeFrameError,
    },
}

impl RequestContext {
    /// The process that connected, as the operating system knows it.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.caller.peer
    }

    /// What the client said about itself; not proven.
    #[must_use]
    pub fn client(&self) -> &Hello {
        &self.caller.hello
    }

    /// The id of this request, unique on its connection.
    #[must_use]
    pub const fn request_id(&self) -> RequestId {
        self.id
    }

    /// A sender of events that belong to this request.
    #[must_use]
    pub fn events(&self) -> EventSender {
        EventSender {
            id: self.id,
            outgoing: self.outgoing.clone(),
        }
    }
}

impl EventSender {
    /// Waits until the client is gone.
    pub async fn gone(&self) {
        self.outgoing.closed().await;
    }

    /// Sends an event, waiting while the client has too many unread.
    ///
    /// # Errors
    /// The client is gone, or the event cannot be encoded.
    pub async fn emit<P: Serialize + ?Sized>(
        &self,
        event: &str,
        params: &P,
    ) -> Result<(), EmitError> {
        let bytes =
            encode_event(Some(self.id), event, params).map_err(|source| EmitError::Encode {
                event: event.into(),
                source,
            })?;
        let sent = self.outgoing.send(bytes).await;
        sent.map_err(|source| EmitError::Disconnected {
            request: self.id,
            source,
        })
    }
}
