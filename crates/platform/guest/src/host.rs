//! The node's end of a link, over any stream of tokio's.
//!
//! [`open`] takes the stream, waits for the guest's `hello`, and leaves a task
//! that moves bytes. [`Connection`] is for orders and may be cloned;
//! [`Events`] is what the guest says by itself and must be read all the time,
//! for nothing is read from the guest while nobody takes it. What a guest says
//! is believed to be about itself only.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, interval, timeout_at};

use crate::config::{ConfigError, GuestConfig};
use crate::link::{
    Event, FIRST_EXEC, INIT_LOG, Link, LinkError, ReadMessageError, STDERR, STDOUT, SendError,
    read_message,
};
use crate::log::{BadRecord, Reader, Record};
use crate::message::{ExecOpen, FromGuest, FromHost, Hello, State, Stats, Status};

/// How a link is held.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long the guest has to say hello, and to accept its config.
    pub handshake: Duration,
    /// How often it is asked for a sign of life.
    pub ping: Duration,
    /// How many may stay without an answer.
    pub missed: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            ping: Duration::from_secs(5),
            missed: 3,
        }
    }
}

/// Why there is no link, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkLost {
    /// The stream ended.
    #[error("the guest closed the link")]
    Closed,
    /// The stream failed.
    #[error("the link failed")]
    Stream(#[source] io::Error),
    /// The guest broke the protocol.
    #[error("the guest broke the protocol")]
    Protocol(#[source] LinkError),
    /// The guest sent a message that cannot be read.
    #[error("the guest sent a message that cannot be read")]
    Message(#[source] ReadMessageError),
    /// The guest sent a log record that is none.
    #[error("the guest's logs cannot be read")]
    Log(#[source] BadRecord),
    /// The guest did not answer in time.
    #[error("the guest does not answer")]
    Unresponsive,
    /// Nobody wants the link any more.
    #[error("the link was given up here")]
    GivenUp,
}

/// Why a config was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    /// It is wrong; nothing was sent.
    #[error("the config is not valid")]
    Invalid(#[source] ConfigError),
    /// It, or the secrets, cannot be sent.
    #[error("the config cannot be sent")]
    Send(#[source] SendError),
    /// The guest refused it.
    #[error("the guest refused its config: {code}: {detail}")]
    Refused {
        /// Why.
        code: String,
        /// More of it.
        detail: String,
    },
    /// No answer within the time.
    #[error("the guest did not accept its config in time")]
    Timeout,
    /// The link is gone.
    #[error("the link is gone")]
    Gone,
}

/// Why a command does not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// It cannot be run at all; nothing was sent.
    #[error("the command is not valid")]
    Invalid(#[source] ConfigError),
    /// The guest refused it, or could not start it.
    #[error("the command was not started: {code}: {detail}")]
    Refused {
        /// Why.
        code: String,
        /// More of it.
        detail: String,
    },
    /// The link is gone.
    #[error("the link is gone")]
    Gone,
}

/// The link is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the link is gone")]
pub struct Gone;

/// A stream of a guest's logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogStream {
    /// The workload's output.
    Stdout,
    /// The workload's error output.
    Stderr,
    /// What init says.
    Init,
}

/// What a guest says by itself.
#[derive(Debug)]
pub enum GuestEvent {
    /// Something happened.
    Status(Status),
    /// A line. It counts as dealt with when the next event is asked for.
    Log {
        /// Where.
        stream: LogStream,
        /// What.
        record: Record,
    },
    /// What is used.
    Stats(Stats),
    /// The link is gone; nothing follows.
    Lost(LinkLost),
}

/// Orders for a guest. Clones are of the same link, which is given up when the
/// last one is dropped, with all inputs of commands.
#[derive(Debug, Clone)]
pub struct Connection {
    orders: mpsc::Sender<Order>,
    handshake: Duration,
}

/// What a guest says by itself, in order.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<(GuestEvent, Option<(u32, usize)>)>,
    returned: mpsc::UnboundedSender<Returned>,
    taken: Option<(u32, usize)>,
}

impl Events {
    /// The next thing; nothing after [`GuestEvent::Lost`].
    pub async fn next(&mut self) -> Option<GuestEvent> {
        if let Some((channel, bytes)) = self.taken.take() {
            // Where it cannot be sent there is nobody to tell.
            let _ = self.returned.send(Returned::Consumed(channel, bytes));
        }
        let (event, taken) = self.events.recv().await?;
        self.taken = taken;
        Some(event)
    }
}

#[derive(Debug)]
enum Order {
    Say(FromHost),
    Configure {
        config: Box<GuestConfig>,
        secrets: Option<crate::link::Hidden>,
        answer: oneshot::Sender<Result<(), ConfigureError>>,
    },
    QueryState(oneshot::Sender<State>),
    Open {
        open: ExecOpen,
        answer: Opened,
    },
    Write {
        channel: u32,
        bytes: Vec<u8>,
        done: oneshot::Sender<()>,
    },
    Eof(u32),
}

/// What readers give back. A way of its own, that never waits: the pump may
/// itself wait for a reader. There is never more of it than was read.
#[derive(Debug)]
enum Returned {
    Consumed(u32, usize),
    Reset(u32),
}

/// Opens a link: waits for the guest's hello.
///
/// # Errors
/// When the guest does not say it in time, or breaks the protocol.
pub async fn open<S>(
    mut stream: S,
    options: Options,
) -> Result<(Hello, Connection, Events), LinkLost>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let deadline = Instant::now() + options.handshake;
    let mut link = Link::new();
    let hello = timeout_at(deadline, hello(&mut stream, &mut link))
        .await
        .map_err(|_| LinkLost::Unresponsive)??;
    // Enough that ordinary talk never waits, few enough to be bounded.
    let (orders, taken) = mpsc::channel(64);
    let (events, received) = mpsc::channel(256);
    let (returned, given_back) = mpsc::unbounded_channel();
    let (read, write) = tokio::io::split(stream);
    let pump = Pump {
        link,
        orders: taken,
        again: orders.downgrade(),
        given_back,
        returned: returned.clone(),
        events,
        logs: BTreeMap::new(),
        execs: BTreeMap::new(),
        configure: None,
        states: Vec::new(),
        next_channel: FIRST_EXEC,
        silent: 0,
    };
    tokio::spawn(pump.run(read, write, options));
    let connection = Connection {
        orders,
        handshake: options.handshake,
    };
    let events = Events {
        events: received,
        returned,
        taken: None,
    };
    Ok((hello, connection, events))
}

async fn hello<S>(stream: &mut S, link: &mut Link) -> Result<Hello, LinkLost>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = vec![0; 16 << 10];
    loop {
        while link.has_outgoing() {
            let written = stream
                .write(link.outgoing())
                .await
                .map_err(LinkLost::Stream)?;
            link.written(written);
        }
        stream.flush().await.map_err(LinkLost::Stream)?;
        // Nothing but a hello may come first; what comes later stays inside.
        while let Some(event) = link.event() {
            match event {
                Event::Begun => {}
                Event::Message(message) => match read_message(&message) {
                    Ok(FromGuest::Hello(hello)) => return Ok(hello),
                    Ok(_) => return Err(LinkLost::Protocol(LinkError::Malformed)),
                    Err(error) => return Err(LinkLost::Message(error)),
                },
                _ => return Err(LinkLost::Protocol(LinkError::Malformed)),
            }
        }
        let length = stream.read(&mut buffer).await.map_err(LinkLost::Stream)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            return Err(LinkLost::Closed);
        }
        link.feed(bytes).map_err(LinkLost::Protocol)?;
    }
}

impl Connection {
    /// Gives the guest its config and its secrets; returns when it accepted
    /// them. That they are applied is a status.
    ///
    /// # Errors
    /// When it refuses them or does not answer.
    pub async fn configure(
        &self,
        config: GuestConfig,
        secrets: Option<Vec<u8>>,
    ) -> Result<(), ConfigureError> {
        config.check().map_err(ConfigureError::Invalid)?;
        let (answer, answered) = oneshot::channel();
        let order = Order::Configure {
            config: Box::new(config),
            secrets: secrets.map(crate::link::Hidden),
            answer,
        };
        self.orders
            .send(order)
            .await
            .map_err(|_| ConfigureError::Gone)?;
        tokio::time::timeout(self.handshake, answered)
            .await
            .map_err(|_| ConfigureError::Timeout)?
            .map_err(|_| ConfigureError::Gone)?
    }

    /// Asks how the guest is.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn state(&self) -> Result<State, Gone> {
        let (answer, answered) = oneshot::channel();
        self.order(Order::QueryState(answer)).await?;
        answered.await.map_err(|_| Gone)
    }

    /// Tells the workload to end; that it did is a status.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn stop(
        &self,
        signal: Option<String>,
        grace: Option<Duration>,
        reason: &str,
    ) -> Result<(), Gone> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.order(Order::Say(FromHost::Stop {
            signal,
            grace_ms,
            reason: reason.to_owned(),
        }))
        .await
    }

    /// Sends a signal to the workload.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn signal(&self, signal: &str) -> Result<(), Gone> {
        let signal = signal.to_owned();
        self.order(Order::Say(FromHost::Signal { signal })).await
    }

    /// Tells the guest that it is not wanted.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn reject(&self, code: &str) -> Result<(), Gone> {
        let code = code.to_owned();
        self.order(Order::Say(FromHost::Reject { code })).await
    }

    /// Starts a command; the channel of `open` is chosen here.
    ///
    /// # Errors
    /// When it is refused or cannot be started.
    pub async fn exec(&self, mut open: ExecOpen) -> Result<Exec, ExecError> {
        open.channel = FIRST_EXEC;
        open.check().map_err(ExecError::Invalid)?;
        let (answer, answered) = oneshot::channel();
        self.orders
            .send(Order::Open { open, answer })
            .await
            .map_err(|_| ExecError::Gone)?;
        answered.await.map_err(|_| ExecError::Gone)?
    }

    async fn order(&self, order: Order) -> Result<(), Gone> {
        self.orders.send(order).await.map_err(|_| Gone)
    }
}

/// A command that runs in a guest.
#[derive(Debug)]
pub struct Exec {
    /// Its process, as the guest counts.
    pub pid: u32,
    /// For what it reads and what it is told.
    pub input: ExecInput,
    /// What it writes; dropping it ends the command.
    pub output: ExecOutput,
}

/// What a command reads and is told.
#[derive(Debug, Clone)]
pub struct ExecInput {
    channel: u32,
    orders: mpsc::Sender<Order>,
}

impl ExecInput {
    /// Writes to its input; waits while it does not read.
    ///
    /// # Errors
    /// When the command or the link is gone.
    pub async fn write(&self, bytes: Vec<u8>) -> Result<(), Gone> {
        let (done, is_done) = oneshot::channel();
        let channel = self.channel;
        self.order(Order::Write {
            channel,
            bytes,
            done,
        })
        .await?;
        is_done.await.map_err(|_| Gone)
    }

    /// Ends its input.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn close(&self) -> Result<(), Gone> {
        self.order(Order::Eof(self.channel)).await
    }

    /// Gives its terminal another size.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn resize(&self, cols: u16, rows: u16) -> Result<(), Gone> {
        let channel = self.channel;
        self.order(Order::Say(FromHost::ExecResize {
            channel,
            cols,
            rows,
        }))
        .await
    }

    /// Sends a signal to it.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn signal(&self, signal: &str) -> Result<(), Gone> {
        let (channel, signal) = (self.channel, signal.to_owned());
        self.order(Order::Say(FromHost::ExecSignal { channel, signal }))
            .await
    }

    async fn order(&self, order: Order) -> Result<(), Gone> {
        self.orders.send(order).await.map_err(|_| Gone)
    }
}

/// What a command writes.
#[derive(Debug)]
pub struct ExecOutput {
    channel: u32,
    pieces: mpsc::UnboundedReceiver<Piece>,
    returned: mpsc::UnboundedSender<Returned>,
    over: bool,
}

/// Something that a command wrote, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Output; with a terminal all of it.
    Stdout(Vec<u8>),
    /// Error output.
    Stderr(Vec<u8>),
    /// It ended; nothing follows.
    Exit {
        /// With which code.
        exit_code: Option<i32>,
        /// By which signal.
        signal: Option<i32>,
    },
}

impl ExecOutput {
    /// The next piece; nothing after its end, or when the link is gone. What
    /// is not taken slows the command down.
    pub async fn next(&mut self) -> Option<Piece> {
        let piece = self.pieces.recv().await;
        let (channel, length) = match &piece {
            Some(Piece::Stdout(bytes)) => (self.channel, bytes.len()),
            Some(Piece::Stderr(bytes)) => (self.channel + 1, bytes.len()),
            Some(Piece::Exit { .. }) | None => {
                self.over = true;
                return piece;
            }
        };
        let _ = self.returned.send(Returned::Consumed(channel, length));
        piece
    }
}

impl Drop for ExecOutput {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.returned.send(Returned::Reset(self.channel));
        }
    }
}

type Opened = oneshot::Sender<Result<Exec, ExecError>>;

/// A command as the pump sees it.
struct ExecState {
    /// Until the guest said that it runs.
    opening: Option<(Exec, Opened)>,
    pieces: mpsc::UnboundedSender<Piece>,
    /// What is to be written, and who waits for it.
    unwritten: Vec<(Vec<u8>, oneshot::Sender<()>)>,
    eof: bool,
}

struct Pump {
    link: Link,
    orders: mpsc::Receiver<Order>,
    /// For what is handed out; does not keep the link alive.
    again: mpsc::WeakSender<Order>,
    given_back: mpsc::UnboundedReceiver<Returned>,
    returned: mpsc::UnboundedSender<Returned>,
    events: mpsc::Sender<(GuestEvent, Option<(u32, usize)>)>,
    logs: BTreeMap<u32, Reader>,
    execs: BTreeMap<u32, ExecState>,
    configure: Option<oneshot::Sender<Result<(), ConfigureError>>>,
    states: Vec<oneshot::Sender<State>>,
    next_channel: u32,
    silent: u32,
}

impl Pump {
    async fn run<S>(mut self, read: ReadHalf<S>, write: WriteHalf<S>, options: Options)
    where
        S: AsyncRead + AsyncWrite,
    {
        let Err(lost) = self.pump(read, write, options).await;
        let events = self.events.clone();
        // Whoever waits for an answer hears that there will be none.
        drop(self);
        let _ = events.send((GuestEvent::Lost(lost), None)).await;
    }

    async fn pump<S>(
        &mut self,
        mut read: ReadHalf<S>,
        mut write: WriteHalf<S>,
        options: Options,
    ) -> Result<std::convert::Infallible, LinkLost>
    where
        S: AsyncRead + AsyncWrite,
    {
        let mut buffer = vec![0; 64 << 10];
        let mut pings = interval(options.ping);
        pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.take_events().await?;
        loop {
            let congested = self.link.is_congested();
            let has_outgoing = self.link.has_outgoing();
            tokio::select! {
                length = read.read(&mut buffer), if !congested => {
                    let length = length.map_err(LinkLost::Stream)?;
                    let bytes = buffer.get(..length).unwrap_or_default();
                    if bytes.is_empty() {
                        return Err(LinkLost::Closed);
                    }
                    // Whatever it says, it lives.
                    self.silent = 0;
                    self.link.feed(bytes).map_err(LinkLost::Protocol)?;
                    self.take_events().await?;
                }
                written = write.write(self.link.outgoing()), if has_outgoing => {
                    match written.map_err(LinkLost::Stream)? {
                        0 => return Err(LinkLost::Closed),
                        written => self.link.written(written),
                    }
                }
                order = self.orders.recv(), if !congested => {
                    let order = order.ok_or(LinkLost::GivenUp)?;
                    self.obey(order);
                }
                Some(returned) = self.given_back.recv() => match returned {
                    Returned::Consumed(channel, bytes) => self.link.consumed(channel, bytes),
                    Returned::Reset(channel) => self.reset(channel),
                },
                _ = pings.tick() => {
                    if self.silent >= options.missed {
                        return Err(LinkLost::Unresponsive);
                    }
                    self.silent += 1;
                    self.link.ping();
                    self.reset_unopened();
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Say(message) => self.say(&message),
            Order::Configure {
                config,
                secrets,
                answer,
            } => self.configure(config, secrets, answer),
            Order::QueryState(answer) => {
                self.states.push(answer);
                self.say(&FromHost::StateQuery);
            }
            Order::Open { open, answer } => self.open(open, answer),
            Order::Write {
                channel,
                bytes,
                done,
            } => {
                if let Some(exec) = self.execs.get_mut(&channel) {
                    exec.unwritten.push((bytes, done));
                    self.write(channel);
                }
            }
            Order::Eof(channel) => {
                if let Some(exec) = self.execs.get_mut(&channel) {
                    exec.eof = true;
                    self.write(channel);
                }
            }
        }
    }

    fn say(&mut self, message: &FromHost) {
        // Only a config can be too long, and that is sent elsewhere.
        let _ = self.link.send(message);
    }

    fn configure(
        &mut self,
        config: Box<GuestConfig>,
        secrets: Option<crate::link::Hidden>,
        answer: oneshot::Sender<Result<(), ConfigureError>>,
    ) {
        let sent = self
            .link
            .send(&FromHost::Config(config))
            .and_then(|()| secrets.map_or(Ok(()), |secrets| self.link.send_secrets(&secrets.0)));
        match sent {
            Ok(()) => self.configure = Some(answer),
            Err(error) => {
                let _ = answer.send(Err(ConfigureError::Send(error)));
            }
        }
    }

    fn open(&mut self, mut open: ExecOpen, answer: Opened) {
        let Some(orders) = self.again.upgrade() else {
            return;
        };
        let channel = self.next_channel;
        self.next_channel = channel.wrapping_add(2).max(FIRST_EXEC);
        open.channel = channel;
        self.link.open(channel);
        self.link.open(channel + 1);
        let (pieces, received) = mpsc::unbounded_channel();
        let exec = Exec {
            pid: 0,
            input: ExecInput { channel, orders },
            output: ExecOutput {
                channel,
                pieces: received,
                returned: self.returned.clone(),
                over: false,
            },
        };
        let state = ExecState {
            opening: Some((exec, answer)),
            pieces,
            unwritten: Vec::new(),
            eof: false,
        };
        self.execs.insert(channel, state);
        self.say(&FromHost::ExecOpen(open));
    }

    fn opened(&mut self, channel: u32, pid: u32) {
        let state = self.execs.get_mut(&channel);
        if let Some((mut exec, answer)) = state.and_then(|state| state.opening.take()) {
            exec.pid = pid;
            // Where nobody waits any more, dropping it ends the command.
            let _ = answer.send(Ok(exec));
        }
    }

    fn write(&mut self, channel: u32) {
        let Some(exec) = self.execs.get_mut(&channel) else {
            return;
        };
        while let Some((bytes, _)) = exec.unwritten.first_mut() {
            let sent = self.link.send_data(channel, bytes);
            if sent < bytes.len() {
                bytes.drain(..sent);
                return;
            }
            let (_, done) = exec.unwritten.remove(0);
            let _ = done.send(());
        }
        if std::mem::take(&mut exec.eof) {
            self.link.send_eof(channel);
        }
    }

    fn reset(&mut self, channel: u32) {
        if self.execs.remove(&channel).is_some() {
            self.link.send_reset(channel);
            self.link.close(channel);
            self.link.close(channel + 1);
        }
    }

    /// Gives up commands that nobody waits for any more and of which the guest
    /// never said that they run: what it sends for them would stay here.
    fn reset_unopened(&mut self) {
        let execs = self.execs.iter();
        let unopened = execs.filter(|(_, exec)| {
            let opening = exec.opening.as_ref();
            opening.is_some_and(|(_, answer)| answer.is_closed())
        });
        let unopened: Vec<u32> = unopened.map(|(channel, _)| *channel).collect();
        for channel in unopened {
            self.reset(channel);
        }
    }

    async fn take_events(&mut self) -> Result<(), LinkLost> {
        while let Some(event) = self.link.event() {
            match event {
                Event::Message(message) => {
                    let message = read_message(&message).map_err(LinkLost::Message)?;
                    self.take_message(message).await?;
                }
                Event::Data { channel, bytes } => self.take_data(channel, bytes).await?,
                Event::Credit { channel, .. } => self.write(channel),
                Event::Reset { channel } => {
                    // It does not read any more; what it writes still comes.
                    if let Some(exec) = self.execs.get_mut(&channel) {
                        exec.unwritten.clear();
                    }
                }
                Event::Begun | Event::Eof { .. } | Event::Pong | Event::Secrets(_) => {}
            }
        }
        Ok(())
    }

    async fn take_message(&mut self, message: FromGuest) -> Result<(), LinkLost> {
        match message {
            FromGuest::Status(status) => self.tell(GuestEvent::Status(status), None).await?,
            FromGuest::Stats(stats) => self.tell(GuestEvent::Stats(stats), None).await?,
            FromGuest::Ack { .. } => {
                if let Some(answer) = self.configure.take() {
                    let _ = answer.send(Ok(()));
                }
            }
            FromGuest::Nack { code, detail } => {
                if let Some(answer) = self.configure.take() {
                    let _ = answer.send(Err(ConfigureError::Refused { code, detail }));
                }
            }
            FromGuest::State(state) => {
                for answer in self.states.drain(..) {
                    let _ = answer.send(state.clone());
                }
            }
            FromGuest::ExecOpened { channel, pid } => self.opened(channel, pid),
            FromGuest::ExecError {
                channel,
                code,
                detail,
            } => {
                if let Some(exec) = self.forget(channel)
                    && let Some((_, answer)) = exec.opening
                {
                    let _ = answer.send(Err(ExecError::Refused { code, detail }));
                }
            }
            FromGuest::ExecExit {
                channel,
                exit_code,
                signal,
            } => {
                if let Some(exec) = self.forget(channel) {
                    let _ = exec.pieces.send(Piece::Exit { exit_code, signal });
                }
            }
            FromGuest::Hello(_) | FromGuest::FreezeDone { .. } | FromGuest::Unknown => {}
        }
        Ok(())
    }

    fn forget(&mut self, channel: u32) -> Option<ExecState> {
        let exec = self.execs.remove(&channel)?;
        self.link.close(channel);
        self.link.close(channel + 1);
        Some(exec)
    }

    async fn take_data(&mut self, channel: u32, bytes: Vec<u8>) -> Result<(), LinkLost> {
        let stream = match channel {
            STDOUT => LogStream::Stdout,
            STDERR => LogStream::Stderr,
            INIT_LOG => LogStream::Init,
            _ => {
                self.take_output(channel, bytes);
                return Ok(());
            }
        };
        let reader = self.logs.entry(channel).or_default();
        reader.feed(&bytes);
        let mut records = Vec::new();
        while let Some(record) = reader.record().map_err(LinkLost::Log)? {
            records.push(record);
        }
        for (record, length) in records {
            let event = GuestEvent::Log { stream, record };
            self.tell(event, Some((channel, length))).await?;
        }
        Ok(())
    }

    fn take_output(&mut self, channel: u32, bytes: Vec<u8>) {
        let main = channel & !1;
        let Some(exec) = self.execs.get(&main) else {
            return;
        };
        let piece = if channel == main {
            Piece::Stdout(bytes)
        } else {
            Piece::Stderr(bytes)
        };
        if exec.pieces.send(piece).is_err() {
            self.reset(main);
        }
    }

    async fn tell(
        &mut self,
        event: GuestEvent,
        taken: Option<(u32, usize)>,
    ) -> Result<(), LinkLost> {
        self.events
            .send((event, taken))
            .await
            .map_err(|_| LinkLost::GivenUp)
    }
}
