//! Bounded streams of answers.
//!
//! Who does not read is let go; only what a command reads waits for it, for as
//! long as its session lasts.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use fluffy_api::node::refusal;
use futures_util::Stream;
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// How many messages wait for a node that reads slowly.
const WAITING: usize = 2;

/// How long a node may take to read before it is let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// The end where a node's answers come out.
#[derive(Debug)]
pub(super) struct Outbox<T>(mpsc::Receiver<Result<T, Status>>);

/// The end where they are put in.
#[derive(Debug)]
pub(super) struct Inlet<T>(mpsc::Sender<Result<T, Status>>);

impl<T> Clone for Inlet<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(super) fn outbox<T>() -> (Inlet<T>, Outbox<T>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Inlet(sender), Outbox(receiver))
}

impl<T> Inlet<T> {
    /// Says something, as soon as there is room.
    pub(super) async fn say(&self, message: T) -> Result<(), Status> {
        match tokio::time::timeout(PATIENCE, self.0.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(refusal(
                Code::DeadlineExceeded,
                "slow_reader",
                "messages were not read in time",
            )),
        }
    }

    /// Says something, however long it takes until there is room: for those who
    /// may read late, and whose end is somebody else's to see.
    pub(super) async fn wait(&self, message: T) -> Result<(), Status> {
        self.0.send(Ok(message)).await.map_err(|_| gone())
    }

    /// Says why it ends, if anybody still listens.
    pub(super) async fn end(&self, why: Status) {
        let _ = tokio::time::timeout(PATIENCE, self.0.send(Err(why))).await;
    }

    /// When nobody listens any more.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The other side is not there any more; nobody will read this.
pub(super) fn gone() -> Status {
    Status::cancelled("the other side is gone")
}

impl<T> Stream for Outbox<T> {
    type Item = Result<T, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, Status>>> {
        self.0.poll_recv(context)
    }
}
