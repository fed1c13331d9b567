//! Commands in instances: opens the WebSocket of a session that was granted.
//!
//! Its token goes in a header, never in an address. Both directions can wait
//! without the other: whoever reads slowly still says that it is there. Next:
//! `crate::exec` for what is said.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_secret::SecretString;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::body::Bytes;
use hyper::header::{
    AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use ring::rand::SecureRandom as _;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::{Ask, CallError, Client, PATIENCE};
use crate::exec::{Control, Exit, MAX_FRAME, PROTOCOL, Word, kind};
use crate::operation::Operation;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// How often a session's sender should [say](ExecSender::alive) that it is there.
pub const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// After how long without a sign the server is gone.
const SILENCE: Duration = Duration::from_secs(45);

/// How long a good-bye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// What goes to a command.
pub struct ExecSender {
    sink: SplitSink<Socket, Message>,
}

/// What comes from a command.
pub struct ExecReceiver {
    source: SplitStream<Socket>,
}

/// One thing that comes from a command.
#[derive(Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// It runs.
    Ready {
        /// Its number in the instance, where it is known.
        pid: Option<u32>,
        /// What lets its client in again when the connection broke, once;
        /// where the session was granted so.
        resume_token: Option<SecretString>,
    },
    /// Output that may have come before the connection broke.
    Again {
        /// The place of its first byte in all of the output.
        place: u64,
        /// The output.
        bytes: Bytes,
    },
    /// Output was lost before what comes next.
    Gap,
    /// Its output.
    Stdout(Bytes),
    /// Its errors.
    Stderr(Bytes),
    /// How it ended; nothing comes after.
    Exit(Exit),
}

impl Client {
    /// Opens a session that was granted; its token is good once.
    ///
    /// # Errors
    /// The token is not good, or the command can't be run. See [`CallError`].
    pub async fn exec(
        &self,
        org: &str,
        session: &str,
        token: &SecretString,
    ) -> Result<(ExecSender, ExecReceiver), CallError> {
        let path = [org, session];
        let ask = Ask::new(Operation::ConnectExec, &path);
        let mut request = self.request(&ask, None, "application/json")?;
        let key = key()?;
        let headers = request.headers_mut();
        // The session's token alone opens it.
        headers.remove(AUTHORIZATION);
        let offered = format!("{PROTOCOL}, bearer.{}", token.expose());
        let offered = HeaderValue::try_from(offered);
        let mut offered = offered.map_err(|_| unsendable("the token has a wrong form"))?;
        offered.set_sensitive(true);
        headers.insert(SEC_WEBSOCKET_PROTOCOL, offered);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let value = HeaderValue::try_from(&key);
        let value = value.map_err(|_| unsendable("its key is none"))?;
        headers.insert(SEC_WEBSOCKET_KEY, value);
        let broken = |source| CallError::Broken {
            server: self.transport.server().to_owned(),
            source,
        };
        let sent = timeout(PATIENCE, self.transport.send_alone(request)).await;
        let mut response = sent.map_err(|elapsed| broken(elapsed.into()))??;
        let status = response.status().as_u16();
        if status != 101 {
            return Err(match self.answer(response).await {
                Ok(_) => self.malformed(status),
                Err(error) => error,
            });
        }
        if !understood(response.headers(), &key) {
            return Err(self.malformed(status));
        }
        let upgraded = hyper::upgrade::on(&mut response).await;
        let upgraded = upgraded.map_err(|error| broken(error.into()))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_FRAME + 1))
            .max_frame_size(Some(MAX_FRAME + 1))
            .write_buffer_size(0);
        let stream = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
        let (sink, source) = socket.split();
        Ok((ExecSender { sink }, ExecReceiver { source }))
    }
}

impl ExecSender {
    /// Sends input; it waits until the command takes it. Whether it went.
    pub async fn input(&mut self, bytes: &[u8]) -> bool {
        for piece in bytes.chunks(MAX_FRAME) {
            if !self.say(kind::STDIN, piece).await {
                return false;
            }
        }
        true
    }

    /// Tells a size or a signal, or that there is no more input.
    pub async fn control(&mut self, control: &Control) -> bool {
        // Plain data is always JSON.
        let text = serde_json::to_vec(control).unwrap_or_default();
        self.say(kind::CONTROL, &text).await
    }

    /// Says that somebody is there, even if nothing is read for a while.
    pub async fn alive(&mut self) -> bool {
        let ping = Message::Ping(Bytes::new());
        self.sink.send(ping).await.is_ok()
    }

    async fn say(&mut self, kind: u8, bytes: &[u8]) -> bool {
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(kind);
        message.extend_from_slice(bytes);
        let message = Message::Binary(message.into());
        self.sink.send(message).await.is_ok()
    }
}

impl ExecReceiver {
    /// What comes next; nothing once the connection is gone.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        loop {
            // The server asks far more often whether somebody is there.
            let message = timeout(SILENCE, self.source.next()).await.ok()??.ok()?;
            let bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Close(_) => return None,
                _ => continue,
            };
            match bytes.first().copied() {
                Some(kind::STDOUT) => return Some(ExecEvent::Stdout(bytes.slice(1..))),
                Some(kind::REPLAY) => {
                    let (place, _) = bytes.get(1..)?.split_first_chunk()?;
                    return Some(ExecEvent::Again {
                        place: u64::from_be_bytes(*place),
                        bytes: bytes.slice(9..),
                    });
                }
                Some(kind::CONTROL) => {
                    if let Some(event) = word(&bytes.slice(1..)) {
                        return Some(event);
                    }
                }
                Some(kind::STDERR) => return Some(ExecEvent::Stderr(bytes.slice(1..))),
                Some(kind::EXIT) => {
                    let exit = serde_json::from_slice(&bytes.slice(1..)).ok()?;
                    return Some(ExecEvent::Exit(exit));
                }
                // A newer server may say more than we know.
                _ => {}
            }
        }
    }
}

impl ExecReceiver {
    /// Says good-bye after the end, so that the server need not wait for
    /// somebody who may not have heard it.
    pub async fn leave(mut self) {
        let rest = async { while let Some(Ok(_)) = self.source.next().await {} };
        let _ = timeout(GOODBYE, rest).await;
    }
}

impl fmt::Debug for ExecSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSender").finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecReceiver").finish_non_exhaustive()
    }
}

/// What the server said beside output, where it is something for us.
fn word(text: &[u8]) -> Option<ExecEvent> {
    match serde_json::from_slice(text).ok()? {
        Word::Ready {
            pid, resume_token, ..
        } => Some(ExecEvent::Ready {
            pid,
            resume_token: resume_token.map(SecretString::from),
        }),
        Word::Warning { code } if code == "output_gap" => Some(ExecEvent::Gap),
        Word::Warning { .. } | Word::Error { .. } => None,
    }
}

fn unsendable(why: &'static str) -> CallError {
    CallError::Unsendable {
        operation: Operation::ConnectExec.spec().id,
        why,
    }
}

/// What this one request is known by.
fn key() -> Result<String, CallError> {
    let mut bytes = [0; 16];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| unsendable("this machine has no randomness"))?;
    Ok(STANDARD.encode(bytes))
}

/// Whether the answer is to this very request, in our protocol.
fn understood(headers: &HeaderMap, key: &str) -> bool {
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key.as_bytes());
    context.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let proof = STANDARD.encode(context.finish().as_ref());
    let has = |name, value: &str| headers.get(name).is_some_and(|found| found == value);
    has(SEC_WEBSOCKET_ACCEPT, &proof) && has(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
}
