//! Exec sessions over WebSocket: between a client's socket and a node's stream.
//!
//! Who may open one was decided before. Every piece is bounded and passed on
//! before the next is read, so a slow end slows the other. Whoever loses its
//! client is told to go: HUP at once, TERM after 5 s, KILL after 30 s. What is
//! said is counted and never kept, but for the last of the output of a session
//! whose client may come back: that waits 30 s for it (`rejoin`).

mod rejoin;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use fluffy_api::exec::{Control, Exit, PROTOCOL, Signal, kind};
use fluffy_api::exec::{MAX_RESIZES, MAX_SIZE, Word, close};
use fluffy_api::node::{MAX_EXEC_FRAME, v1};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::HeaderMap;
use hyper::header::{
    AUTHORIZATION, CONNECTION, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use v1::exec_from_node::Frame;
use v1::exec_to_node::Frame as ToNode;

use self::rejoin::Ring;
pub use self::rejoin::{Pass, Rejoin, WAITS};
use crate::node::ExecLink;

/// How often a silent client is asked whether it is there …
const PING: Duration = Duration::from_secs(15);
/// … and after how long without a sign it is not.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest control message.
const MAX_CONTROL: usize = 1024;
/// When a command without a client is told to end, and then made to.
const TERM_AFTER: Duration = Duration::from_secs(5);
const KILL_AFTER: Duration = Duration::from_secs(25);
/// How long a client has to say good-bye too, and one that is cut off: it must
/// not hold up the record of its end.
const FAREWELL: Duration = Duration::from_secs(5);
const CUT: Duration = Duration::from_secs(1);
/// How long a signal may wait behind input that a command does not read. Then
/// the node's stream is ended instead, and its guest does the rest.
const STUCK: Duration = Duration::from_secs(1);
/// How long a killed command may take to be gone.
const GONE_AFTER: Duration = Duration::from_secs(5);

/// How long a client that came back has to say how far it is.
const TELLS: Duration = Duration::from_secs(10);

/// How long before its end a client hears of it.
const WARNING: Duration = Duration::from_secs(60);
/// After how long without a byte a terminal is left, and how often it is
/// looked whether it was.
const IDLE: Duration = Duration::from_secs(30 * 60);
const IDLE_LOOK: Duration = Duration::from_secs(30);

/// What a session is carried by.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Which it is.
    pub session: String,
    /// How long it may last.
    pub longest: Duration,
    /// Whether it has a terminal, which somebody must use.
    pub tty: bool,
}

/// How a session ended, as the ledger records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The code that the command ended with, if it is known.
    pub exit_code: Option<i32>,
    /// Why the session ended.
    pub reason: &'static str,
    /// How much went to the command.
    pub bytes_in: u64,
    /// How much came from it.
    pub bytes_out: u64,
}

impl Ended {
    /// The client went before anything was carried.
    #[must_use]
    pub const fn before_it_began() -> Self {
        Self {
            exit_code: None,
            reason: "client_disconnect",
            bytes_in: 0,
            bytes_out: 0,
        }
    }
}

/// Why a request can't become a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// It does not ask for one as RFC 6455 says.
    #[error("the request does not ask for a WebSocket of version 13")]
    NotWebSocket,
    /// It does not name our protocol.
    #[error("the request does not name the subprotocol `{PROTOCOL}`")]
    Protocol,
}

/// What a request for a WebSocket brought.
#[derive(Debug)]
pub struct Handshake {
    /// The token it showed, as a subprotocol or as a bearer.
    pub token: Option<String>,
    /// The headers of the answer that lets it in.
    pub answer: HeaderMap,
}

impl Handshake {
    /// Reads the headers of a request.
    ///
    /// # Errors
    /// It is not a request for our WebSocket.
    pub fn read(headers: &HeaderMap) -> Result<Self, HandshakeError> {
        let has = |name, word: &str| {
            let mut words = listed(headers, name);
            words.any(|found| found.eq_ignore_ascii_case(word))
        };
        let key = headers.get(SEC_WEBSOCKET_KEY);
        let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16));
        let key = key.ok_or(HandshakeError::NotWebSocket)?;
        let asks = has(UPGRADE, "websocket")
            && has(CONNECTION, "upgrade")
            && has(SEC_WEBSOCKET_VERSION, "13");
        if !asks {
            return Err(HandshakeError::NotWebSocket);
        }
        if !has(SEC_WEBSOCKET_PROTOCOL, PROTOCOL) {
            return Err(HandshakeError::Protocol);
        }
        let mut offered = listed(headers, SEC_WEBSOCKET_PROTOCOL);
        let offered = offered.find_map(|word| word.strip_prefix("bearer."));
        let bearer = headers
            .get(AUTHORIZATION)
            .and_then(|text| text.to_str().ok());
        let bearer = bearer.and_then(|text| text.strip_prefix("Bearer "));
        let mut answer = HeaderMap::new();
        answer.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
        answer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
        // Base64 is always a header's value.
        if let Ok(accept) = HeaderValue::from_str(&accept(key.as_bytes())) {
            answer.insert(hyper::header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        Ok(Self {
            token: offered.or(bearer).map(str::to_owned),
            answer,
        })
    }
}

/// The words of a header that is a list.
fn listed(headers: &HeaderMap, name: hyper::header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',').map(str::trim))
}

/// What proves that the request was understood; RFC 6455 wants SHA-1 here.
fn accept(key: &[u8]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(context.finish().as_ref())
}

/// Carries a session until one of its ends is gone; one with a `rejoin` waits
/// a while for its client to come back.
///
/// `revoked` ends it when it becomes true or its sender goes.
pub async fn carry<S>(
    stream: S,
    mut link: ExecLink,
    terms: Terms,
    mut revoked: watch::Receiver<bool>,
    mut rejoin: Option<Rejoin<S>>,
) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let traffic = Traffic {
        counts: Counts::default(),
        ring: rejoin.is_some().then(Ring::default),
    };
    let pass = rejoin.as_ref().map(|rejoin| Arc::clone(&rejoin.pass));
    let mut course = Course::new(&terms, &link, pass);
    let mut stream = stream;
    let (exit_code, reason) = loop {
        let mut visit = Visit {
            link: &mut link,
            course: &mut course,
            traffic: &traffic,
            revoked: &mut revoked,
        };
        match visit.carry(stream, &mut rejoin).await {
            Left::Over(exit_code, reason) => break (exit_code, reason),
            Left::Replaced(newer) => stream = newer,
            Left::Lost => match wait(visit, &mut rejoin).await {
                Waited::Back(newer) => stream = newer,
                Waited::Cut(reason) => break (kill(&mut link, &traffic.counts).await, reason),
                Waited::Alone => match course.exit.take() {
                    Some(exit) => break (exit.exit_code, known(&exit.reason)),
                    None => {
                        let code = farewell(&mut link, &traffic.counts).await;
                        break (code, "client_disconnect");
                    }
                },
            },
        }
    };
    Ended {
        exit_code,
        reason,
        bytes_in: traffic.counts.into.load(Ordering::Relaxed),
        bytes_out: traffic.counts.out.load(Ordering::Relaxed),
    }
}

/// What both directions of a session share.
#[derive(Debug)]
struct Traffic {
    counts: Counts,
    /// What the client has not had yet, where it may come back.
    ring: Option<Ring>,
}

impl Traffic {
    /// Takes note of output.
    fn takes(&self, bytes: &[u8]) {
        let out = &self.counts.out;
        out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if let Some(ring) = &self.ring {
            ring.push(bytes);
        }
    }
}

/// Where a session is, whoever is connected.
struct Course<'a> {
    terms: &'a Terms,
    pass: Option<Arc<Pass>>,
    /// When its time is over, and until then when its client hears of that.
    ends: Instant,
    warning: Option<Instant>,
    /// Whether it is for the node to say that the command runs.
    is_silent: bool,
    pid: Option<u32>,
    /// Whether somebody was connected before.
    is_begun: bool,
    /// How the command ended, as long as nobody heard of it.
    exit: Option<Exit>,
}

impl<'a> Course<'a> {
    fn new(terms: &'a Terms, link: &ExecLink, pass: Option<Arc<Pass>>) -> Self {
        let warning = terms.longest.checked_sub(WARNING);
        let warning = warning.filter(|after| !after.is_zero());
        let now = Instant::now();
        Self {
            terms,
            pass,
            ends: now + terms.longest,
            warning: warning.map(|after| now + after),
            is_silent: link.tells_started,
            pid: None,
            is_begun: false,
            exit: None,
        }
    }

    /// That the command runs, with what lets its client in again.
    fn ready(&self) -> Message {
        let token = self.pass.as_ref().and_then(|pass| pass.issue());
        said(&Word::Ready {
            session_id: self.terms.session.clone(),
            pid: self.pid,
            resume_token: token.map(|token| token.expose().clone()),
        })
    }
}

/// One connection of a session's client.
struct Visit<'a, 'b> {
    link: &'a mut ExecLink,
    course: &'a mut Course<'b>,
    traffic: &'a Traffic,
    revoked: &'a mut watch::Receiver<bool>,
}

/// What became of a connection.
enum Left<S> {
    /// The session is over: with which code, and why.
    Over(Option<i32>, &'static str),
    /// The client is gone, and may not have meant it.
    Lost,
    /// It came by another way.
    Replaced(S),
}

/// What became of a session without a client.
enum Waited<S> {
    /// It came back.
    Back(S),
    /// It did not, in time.
    Alone,
    /// Somebody else ended it, or its time is up.
    Cut(&'static str),
}

impl Visit<'_, '_> {
    /// Carries the session for as long as this connection lives.
    async fn carry<S>(&mut self, stream: S, rejoin: &mut Option<Rejoin<S>>) -> Left<S>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_EXEC_FRAME + 1))
            .max_frame_size(Some(MAX_EXEC_FRAME + 1))
            .max_write_buffer_size(4 * MAX_EXEC_FRAME)
            .write_buffer_size(0);
        let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
        let (mut sink, mut source) = socket.split();
        let traffic = self.traffic;
        if let Some(ring) = &traffic.ring {
            ring.begin();
        }
        let (ends, tty) = (self.course.ends, self.course.terms.tty);
        let end = {
            let down = down(&mut sink, &mut self.link.from_node, self.course, traffic);
            let up = up(&mut source, &self.link.to_node, traffic);
            tokio::select! {
                end = down => end,
                end = up => end,
                _ = self.revoked.wait_for(|revoked| *revoked) => End::Cut("operator_revoked"),
                () = tokio::time::sleep_until(ends) => End::Cut("timeout"),
                () = traffic.counts.idle(), if tty => End::Cut("timeout"),
                newer = newer(rejoin) => return Left::Replaced(newer),
            }
        };
        let patience = match end {
            End::Cut(_) => CUT,
            _ => FAREWELL,
        };
        let link = &mut *self.link;
        if !matches!(end, End::Lost | End::Exited(_))
            && let Some(rejoin) = rejoin
        {
            rejoin.pass.void();
        }
        let (exit_code, reason) = match end {
            End::Lost if rejoin.is_some() => return Left::Lost,
            End::Exited(exit) => {
                let told = said_goodbye(&mut source, patience).await;
                if !told && rejoin.is_some() {
                    // It may have gone before it heard.
                    self.course.exit = Some(exit);
                    return Left::Lost;
                }
                return Left::Over(exit.exit_code, known(&exit.reason));
            }
            End::Lost | End::Left => {
                let code = farewell(link, &traffic.counts).await;
                (code, "client_disconnect")
            }
            End::Violated(why) => {
                let word = Word::Error {
                    code: "protocol".to_owned(),
                    text: why.to_owned(),
                };
                let _ = timeout(PING, sink.send(said(&word))).await;
                hang_up(&mut sink, CloseCode::Policy, why).await;
                (farewell(link, &traffic.counts).await, "client_disconnect")
            }
            End::Cut(reason) => {
                let code = kill(link, &traffic.counts).await;
                let exit = Exit {
                    exit_code: None,
                    signal: Some("KILL".to_owned()),
                    not_started: None,
                    reason: reason.to_owned(),
                };
                tell_exit(&mut sink, &exit).await;
                (code, reason)
            }
        };
        said_goodbye(&mut source, patience).await;
        Left::Over(exit_code, reason)
    }

    /// Waits without a client, and holds what the command says: as with one
    /// that reads slowly, it waits when that is too much.
    async fn alone<S>(&mut self, rejoin: &mut Rejoin<S>) -> Waited<S> {
        // A client that did not answer to the end sees by nothing but silence
        // that its connection is gone.
        let waits = match self.course.exit {
            Some(_) => SILENCE,
            None => WAITS,
        };
        let until = Instant::now() + waits;
        loop {
            let ring = self.traffic.ring.as_ref();
            let has_room = ring.is_some_and(Ring::has_room) && self.course.exit.is_none();
            let frame = tokio::select! {
                Some(newer) = rejoin.clients.recv() => return Waited::Back(newer),
                frame = self.link.from_node.recv(), if has_room => frame,
                _ = self.revoked.wait_for(|revoked| *revoked) => {
                    return Waited::Cut("operator_revoked");
                }
                () = tokio::time::sleep_until(self.course.ends) => return Waited::Cut("timeout"),
                () = tokio::time::sleep_until(until) => return Waited::Alone,
            };
            match frame {
                Some(Frame::Stdout(bytes) | Frame::Stderr(bytes)) => self.traffic.takes(&bytes),
                Some(Frame::Started(started)) => {
                    self.course.is_silent = false;
                    self.course.pid = Some(started.pid);
                }
                Some(Frame::Attach(_)) => {}
                Some(Frame::Exit(exit)) => self.course.exit = Some(exit_of(exit)),
                None => self.course.exit = Some(gone()),
            }
        }
    }
}

/// Waits for a client to come back, where it may.
async fn wait<S>(mut visit: Visit<'_, '_>, rejoin: &mut Option<Rejoin<S>>) -> Waited<S> {
    let Some(rejoin) = rejoin else {
        return Waited::Alone;
    };
    let waited = visit.alone(rejoin).await;
    if !matches!(waited, Waited::Back(_)) {
        rejoin.pass.void();
    }
    waited
}

/// The next connection of a client that was let in again; never, where none is.
async fn newer<S>(rejoin: &mut Option<Rejoin<S>>) -> S {
    if let Some(rejoin) = rejoin
        && let Some(newer) = rejoin.clients.recv().await
    {
        return newer;
    }
    std::future::pending().await
}

/// Whoever hangs up while the other still speaks may take back what it said
/// last, and that was how the command ended. Whether the client said good-bye
/// too: one that says nothing may be behind a network that leads nowhere, and
/// what was sent to it is in a buffer here.
async fn said_goodbye<S>(source: &mut SplitStream<WebSocketStream<S>>, patience: Duration) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let listened = timeout(patience, async {
        let mut told = false;
        while let Some(Ok(message)) = source.next().await {
            told |= matches!(message, Message::Close(_));
        }
        told
    });
    listened.await.unwrap_or(false)
}

/// How much went each way.
#[derive(Debug, Default)]
struct Counts {
    into: AtomicU64,
    out: AtomicU64,
}

impl Counts {
    fn all(&self) -> u64 {
        self.into.load(Ordering::Relaxed) + self.out.load(Ordering::Relaxed)
    }

    /// Returns when nothing went either way for too long.
    async fn idle(&self) {
        let (mut last, mut since) = (self.all(), Instant::now());
        loop {
            tokio::time::sleep(IDLE_LOOK).await;
            let now = self.all();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= IDLE {
                return;
            }
        }
    }
}

/// Keeps resizes to so many in a second; the last one always comes through.
#[derive(Debug)]
struct Resizes {
    since: Instant,
    many: u32,
}

impl Resizes {
    async fn pace(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        if self.many >= MAX_RESIZES {
            tokio::time::sleep_until(self.since + SECOND).await;
        }
        if self.since.elapsed() >= SECOND {
            (self.since, self.many) = (Instant::now(), 0);
        }
        self.many += 1;
    }
}

/// What ended the carrying.
enum End {
    /// The command is done, and the client knows.
    Exited(Exit),
    /// The client is gone.
    Lost,
    /// The client said that it goes.
    Left,
    /// The client said what it must not.
    Violated(&'static str),
    /// Somebody else ended it, or its time is up.
    Cut(&'static str),
}

/// From the client to the node.
async fn up<S>(
    source: &mut SplitStream<WebSocketStream<S>>,
    to_node: &mpsc::Sender<v1::ExecToNode>,
    traffic: &Traffic,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut resizes = Resizes {
        since: Instant::now(),
        many: 0,
    };
    loop {
        let message = match timeout(SILENCE, source.next()).await {
            Ok(Some(Ok(message))) => message,
            _ => return End::Lost,
        };
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            Message::Close(Some(frame)) if frame.code == CloseCode::Normal => return End::Left,
            Message::Close(_) => return End::Lost,
            Message::Text(_) => return End::Violated("messages are binary"),
        };
        let frame = match bytes.split_first() {
            // Nothing more comes, where that has an end: not at a terminal.
            Some((&kind::STDIN, [])) => ToNode::StdinEnd(v1::StdinEnd {}),
            Some((&kind::STDIN, input)) => {
                let into = &traffic.counts.into;
                into.fetch_add(input.len() as u64, Ordering::Relaxed);
                ToNode::Stdin(input.to_vec())
            }
            Some((&kind::CONTROL, text)) => match control(text) {
                Some(Meant::Frame(frame)) => frame,
                Some(Meant::Had(place)) => match &traffic.ring {
                    Some(ring) if !ring.ack(place) => {
                        return End::Violated("a place in the output that there is not");
                    }
                    _ => continue,
                },
                None => return End::Violated("unknown control message"),
            },
            _ => return End::Violated("unknown type of message"),
        };
        if matches!(frame, ToNode::Resize(_)) {
            resizes.pace().await;
        }
        let frame = Some(frame);
        if let Some(ring) = &traffic.ring {
            ring.deafen(true);
        }
        if to_node.send(v1::ExecToNode { frame }).await.is_err() {
            // The node's side tells how it ended.
            return std::future::pending().await;
        }
        if let Some(ring) = &traffic.ring {
            ring.deafen(false);
        }
    }
}

/// What a client means by a control message.
enum Meant {
    /// Something for the command.
    Frame(ToNode),
    /// It has the output before this place.
    Had(u64),
}

fn control(text: &[u8]) -> Option<Meant> {
    if text.len() > MAX_CONTROL {
        return None;
    }
    let fits = |size: u16| (1..=MAX_SIZE).contains(&size);
    Some(Meant::Frame(match serde_json::from_slice(text).ok()? {
        Control::Ack { out_offset } => return Some(Meant::Had(out_offset)),
        Control::Resize { cols, rows } if fits(cols) && fits(rows) => {
            ToNode::Resize(v1::Terminal {
                cols: cols.into(),
                rows: rows.into(),
            })
        }
        Control::Resize { .. } => return None,
        Control::Signal { signal } => ToNode::Signal(signal.as_str().to_owned()),
        Control::Close => ToNode::StdinEnd(v1::StdinEnd {}),
    }))
}

/// From the node to the client.
async fn down<S>(
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
    from_node: &mut mpsc::Receiver<Frame>,
    course: &mut Course<'_>,
    traffic: &Traffic,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if !course.is_silent && sink.send(course.ready()).await.is_err() {
        return End::Lost;
    }
    if std::mem::replace(&mut course.is_begun, true)
        && let Some(ring) = &traffic.ring
        && again(sink, ring).await.is_err()
    {
        return End::Lost;
    }
    if let Some(exit) = course.exit.take() {
        return exited(sink, exit).await;
    }
    let mut pings = interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            frame = next_frame(from_node, traffic) => match frame {
                Some(Frame::Stdout(bytes)) => output(kind::STDOUT, &bytes, traffic),
                Some(Frame::Stderr(bytes)) => output(kind::STDERR, &bytes, traffic),
                Some(Frame::Started(started)) if course.is_silent => {
                    course.is_silent = false;
                    course.pid = Some(started.pid);
                    course.ready()
                }
                Some(Frame::Attach(_) | Frame::Started(_)) => continue,
                Some(Frame::Exit(exit)) => return exited(sink, exit_of(exit)).await,
                None => return exited(sink, gone()).await,
            },
            _ = pings.tick() => Message::Ping(Vec::new().into()),
            () = reached(course.warning) => {
                course.warning = None;
                warning("ends_soon")
            }
        };
        if sink.send(message).await.is_err() {
            return End::Lost;
        }
    }
}

/// What comes next from the node, once it may.
async fn next_frame(from_node: &mut mpsc::Receiver<Frame>, traffic: &Traffic) -> Option<Frame> {
    if let Some(ring) = &traffic.ring {
        ring.room().await;
    }
    from_node.recv().await
}

/// Says again what a client that came back has not had, from where it says
/// that it is.
async fn again<S>(
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
    ring: &Ring,
) -> Result<(), tokio_tungstenite::tungstenite::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // One that does not say it has what it said before.
    let place = timeout(TELLS, ring.client()).await;
    let mut place = place.unwrap_or_else(|_| ring.start());
    if place < ring.start() {
        sink.send(warning("output_gap")).await?;
    }
    while let Some((at, bytes)) = ring.piece(place, MAX_EXEC_FRAME - 8) {
        place = at + bytes.len() as u64;
        let mut message = Vec::with_capacity(bytes.len() + 9);
        message.push(kind::REPLAY);
        message.extend_from_slice(&at.to_be_bytes());
        message.extend_from_slice(&bytes);
        sink.send(Message::Binary(message.into())).await?;
    }
    Ok(())
}

fn warning(code: &str) -> Message {
    let code = code.to_owned();
    said(&Word::Warning { code })
}

/// Waits for a moment, if there is one.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// A word to the client.
fn said(word: &Word) -> Message {
    let mut message = vec![kind::CONTROL];
    // Texts and numbers always are JSON.
    message.extend(serde_json::to_vec(word).unwrap_or_default());
    Message::Binary(message.into())
}

fn output(kind: u8, bytes: &[u8], traffic: &Traffic) -> Message {
    traffic.takes(bytes);
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(kind);
    message.extend_from_slice(bytes);
    Message::Binary(message.into())
}

async fn exited<S>(sink: &mut SplitSink<WebSocketStream<S>, Message>, exit: Exit) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    tell_exit(sink, &exit).await;
    End::Exited(exit)
}

/// Tells the client how it ended; if it is gone, that is its own loss.
async fn tell_exit<S>(sink: &mut SplitSink<WebSocketStream<S>, Message>, exit: &Exit)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut message = vec![kind::EXIT];
    // A struct of texts and numbers always is JSON.
    message.extend(serde_json::to_vec(exit).unwrap_or_default());
    let told = timeout(PING, sink.send(Message::Binary(message.into()))).await;
    if matches!(told, Ok(Ok(()))) {
        hang_up(sink, close_code(&exit.reason), "").await;
    }
}

/// The code that a session is closed with, by what ended it.
fn close_code(reason: &str) -> CloseCode {
    match reason {
        "timeout" => close::TIMEOUT.into(),
        "instance_gone" => close::GONE.into(),
        "operator_revoked" => close::REVOKED.into(),
        _ => CloseCode::Normal,
    }
}

async fn hang_up<S>(sink: &mut SplitSink<WebSocketStream<S>, Message>, code: CloseCode, why: &str)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let reason = why.into();
    let frame = CloseFrame { code, reason };
    let _ = timeout(PING, sink.send(Message::Close(Some(frame)))).await;
}

fn exit_of(exit: v1::ExecExit) -> Exit {
    use v1::exec_exit::Of;
    let mut told = Exit {
        exit_code: None,
        signal: None,
        not_started: None,
        reason: known(&exit.reason).to_owned(),
    };
    match exit.of {
        Some(Of::ExitCode(code)) => told.exit_code = Some(code),
        Some(Of::Signal(signal)) => told.signal = Some(signal.chars().take(16).collect()),
        Some(Of::NotStarted(why)) => told.not_started = Some(why.chars().take(256).collect()),
        None => {}
    }
    told
}

/// The node's end was lost before the command's was told.
fn gone() -> Exit {
    Exit {
        exit_code: None,
        signal: None,
        not_started: None,
        reason: "instance_gone".to_owned(),
    }
}

/// A reason that a node may give; another one counts as the instance's end.
fn known(reason: &str) -> &'static str {
    match reason {
        "exited" => "exited",
        "killed" => "killed",
        "timeout" => "timeout",
        "operator_revoked" => "operator_revoked",
        _ => "instance_gone",
    }
}

/// Has a command end whose client is gone; tells its code if there is one.
async fn farewell(link: &mut ExecLink, counts: &Counts) -> Option<i32> {
    for (signal, patience) in [
        (Signal::Hup, TERM_AFTER),
        (Signal::Term, KILL_AFTER),
        (Signal::Kill, GONE_AFTER),
    ] {
        if let Some(code) = signal_and_wait(link, signal, patience, counts).await {
            return code;
        }
    }
    None
}

/// Ends a command at once.
async fn kill(link: &mut ExecLink, counts: &Counts) -> Option<i32> {
    let ended = signal_and_wait(link, Signal::Kill, GONE_AFTER, counts).await;
    ended.flatten()
}

/// Sends a signal and waits for the end; its code, if it came in time.
async fn signal_and_wait(
    link: &mut ExecLink,
    signal: Signal,
    patience: Duration,
    counts: &Counts,
) -> Option<Option<i32>> {
    let deadline = Instant::now() + patience;
    let frame = Some(ToNode::Signal(signal.as_str().to_owned()));
    let mut unsent = Some(v1::ExecToNode { frame });
    let stuck = Instant::now() + STUCK;
    loop {
        let frame = tokio::select! {
            // Input may wait before the signal while output is not read.
            room = link.to_node.reserve(), if unsent.is_some() => {
                if let (Ok(room), Some(message)) = (room, unsent.take()) {
                    room.send(message);
                }
                continue;
            }
            frame = link.from_node.recv() => frame,
            () = tokio::time::sleep_until(stuck), if unsent.is_some() => return Some(None),
            () = tokio::time::sleep_until(deadline) => return None,
        };
        match frame {
            Some(Frame::Stdout(bytes) | Frame::Stderr(bytes)) => {
                counts.out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            Some(Frame::Attach(_) | Frame::Started(_)) => {}
            Some(Frame::Exit(exit)) => return Some(exit_of(exit).exit_code),
            None => return Some(None),
        }
    }
}

#[cfg(test)]
mod tests;
