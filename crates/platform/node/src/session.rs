//! One connection to a server, from dialling to its end.
//!
//! The node dials; nothing listens here. A connection lives in a task of its
//! own and says what it hears; the agent decides what is said. Plans go by a
//! slot of their own, in which the newest wins.

use std::time::Duration;

use fluffy_api::node::dial::{Channel, DialError, dial};
use fluffy_api::node::join::{nodes, streaming};
use fluffy_api::node::{code_of, v1};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tonic::Status;
use v1::node_message::Message as Said;
use v1::server_message::Message as Told;

use crate::home::Credentials;

/// How many messages wait to be sent.
const WAITING: usize = 256;

/// The shortest and the longest pause before the next try to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How long a server may take to answer the first questions.
const PATIENCE: Duration = Duration::from_secs(15);

/// Something that a connection heard.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It is open.
    Up(Box<Up>),
    /// The server says something.
    Told(Box<Told>),
    /// It is over.
    Ended(SessionError),
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct Up {
    /// For what the node says.
    pub(crate) said: mpsc::Sender<v1::NodeMessage>,
    /// For what it asks besides.
    pub(crate) channel: Channel,
    /// How the server greeted it.
    pub(crate) welcome: v1::Welcome,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("the server cannot be reached")]
    Dial(#[from] DialError),
    #[error("the server refused: {}", .0.message())]
    Refused(#[from] Status),
    #[error("the server did not answer in time")]
    Late,
    #[error("the server ended the session")]
    Ended,
    #[error("the credentials are damaged")]
    Credentials,
}

impl SessionError {
    /// The server's code, if it gave one.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(status) => code_of(status),
            _ => None,
        }
    }
}

/// A task that ends with whoever holds it.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Runs something until this is dropped.
    pub(crate) fn of(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects in the background; what comes of it is told with `number`.
pub(crate) fn open(
    number: u64,
    credentials: Credentials,
    (hello, facts): (v1::Hello, impl Future<Output = v1::Facts> + Send + 'static),
    plans: watch::Sender<Option<v1::NodePlan>>,
    events: mpsc::Sender<(u64, Heard)>,
) -> Task {
    Task::of(async move {
        let heard = events.clone();
        // As a task that ends with this one: if it fails, that is an end too.
        let mut held = JoinSet::new();
        held.spawn(async move {
            let hello = v1::Hello {
                facts: Some(facts.await),
                ..hello
            };
            hold(number, &credentials, hello, &plans, &heard).await
        });
        let ended = match held.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) | None => SessionError::Ended,
        };
        let _ = events.send((number, Heard::Ended(ended))).await;
    })
}

async fn hold(
    number: u64,
    credentials: &Credentials,
    hello: v1::Hello,
    plans: &watch::Sender<Option<v1::NodePlan>>,
    events: &mpsc::Sender<(u64, Heard)>,
) -> Result<(), SessionError> {
    let (trust, identity) = (credentials.trust(), credentials.identity());
    let (Some(trust), Some(identity)) = (trust, identity) else {
        return Err(SessionError::Credentials);
    };
    // Each try asks the next server.
    let turn = usize::try_from(number).unwrap_or(0) % credentials.servers.len().max(1);
    let server = credentials.servers.get(turn);
    let server = server.and_then(|server| split(server));
    let (host, port) = server.ok_or(SessionError::Credentials)?;
    let channel = dial((host, port), &trust, Some(&identity)).await?;
    let mut client = nodes(&channel);
    let confirm = v1::ConfirmRequest {
        node_id: credentials.node_id.clone(),
    };
    in_time(client.confirm(confirm)).await?;
    let (said, messages) = mpsc::channel(WAITING);
    let hello = v1::NodeMessage {
        message: Some(Said::Hello(hello)),
    };
    // There is room for the first.
    let _ = said.send(hello).await;
    let told = in_time(client.session(streaming(messages))).await?;
    let mut told = told.into_inner();
    let mut said = Some(said);
    while let Some(message) = told.message().await? {
        let heard = match message.message {
            Some(Told::Welcome(welcome)) => match said.take() {
                Some(said) => Heard::Up(Box::new(Up {
                    said,
                    channel: channel.clone(),
                    welcome,
                })),
                None => continue,
            },
            Some(Told::Plan(plan)) => {
                plans.send_replace(Some(plan));
                continue;
            }
            Some(told) => Heard::Told(Box::new(told)),
            None => continue,
        };
        if events.send((number, heard)).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn in_time<T>(
    asked: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<tonic::Response<T>, SessionError> {
    match timeout(PATIENCE, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(SessionError::Late),
    }
}

/// Host and port; an IPv6 address has brackets.
pub(crate) fn split(server: &str) -> Option<(&str, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    let host = host.strip_prefix('[').unwrap_or(host);
    let host = host.strip_suffix(']').unwrap_or(host);
    Some((host, port.parse().ok()?))
}

/// Pauses between tries: anywhere up to a bound that doubles, so that nodes
/// that lost a server together do not come back together.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = PAUSE.0.saturating_mul(2_u32.saturating_pow(self.0.min(16)));
        let bound = bound.min(PAUSE.1);
        self.0 = self.0.saturating_add(1);
        let mut random = [0; 4];
        // Without randomness every pause is the longest.
        let part = match getrandom::fill(&mut random) {
            Ok(()) => f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX),
            Err(_) => 1.0,
        };
        bound.mul_f64(part).max(PAUSE.0 / 10)
    }

    /// It worked.
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_differ() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= PAUSE.0);
        assert!(pauses.iter().all(|pause| *pause <= PAUSE.1));
        assert!(pauses[10..].iter().max() > Some(&Duration::from_secs(10)));
        backoff.reset();
        assert!(backoff.next() <= PAUSE.0);
    }

    #[test]
    fn servers_are_hosts_with_ports() {
        assert_eq!(split("[::1]:7444"), Some(("::1", 7444)));
        assert_eq!(split("localhost:1"), Some(("localhost", 1)));
        assert_eq!(split("localhost"), None);
        assert_eq!(split("localhost:x"), None);
    }
}
