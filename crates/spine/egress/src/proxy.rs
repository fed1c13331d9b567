//! The proxy of one sandbox: its settings, its listener, its life.
//!
//! It serves connections accepted on a listener that was opened inside the
//! sandbox's network namespace and handed out; nothing of it runs inside. One
//! connection can never take the others down. See `connection.rs` for one.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_base::id::SandboxId;
use fluffy_base::{Clock, SystemClock, Timestamp};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Duration, Instant, sleep};

use crate::connection::{self, Client};
use crate::decide::Decide;
use crate::guard::Guards;
use crate::limits::{Limits, Used};
use crate::network::{HostNetwork, Network};
use crate::reason::Reason;
use crate::record::{Exchange, Record, Verdict};

/// How many clients over the limit are told so at once; more are just closed.
const TURNED_AWAY: usize = 16;
/// How often a flood of the same refusal is recorded.
const FLOOD_RECORD: Duration = Duration::from_secs(1);
/// How long to wait when the system has no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a proxy needs to know.
#[derive(Clone)]
pub struct Settings {
    /// The sandbox it serves.
    pub sandbox: SandboxId,
    /// The template that the sandbox was made from.
    pub template: String,
    /// Who decides.
    pub decide: Arc<dyn Decide>,
    /// Where requests are recorded.
    pub record: Arc<dyn Record>,
    /// Who looks names up and connects.
    pub network: Arc<dyn Network>,
    /// How much the sandbox may take.
    pub limits: Limits,
}

impl Settings {
    /// Settings with this machine's network and the ordinary limits.
    #[must_use]
    pub fn new(
        sandbox: SandboxId,
        template: impl Into<String>,
        decide: Arc<dyn Decide>,
        record: Arc<dyn Record>,
    ) -> Self {
        Self {
            sandbox,
            template: template.into(),
            decide,
            record,
            network: Arc::new(HostNetwork),
            limits: Limits::default(),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("sandbox", &self.sandbox)
            .field("template", &self.template)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Where a sandbox's connections come in.
#[derive(Debug)]
pub enum Listener {
    /// A port of the sandbox's own loopback.
    Tcp(std::net::TcpListener),
    /// A socket file, for engines that cannot hand out a listener.
    Unix(std::os::unix::net::UnixListener),
}

impl From<std::net::TcpListener> for Listener {
    fn from(listener: std::net::TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<std::os::unix::net::UnixListener> for Listener {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// A running proxy; dropping it ends every connection.
#[derive(Debug)]
pub struct ProxyHandle {
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl ProxyHandle {
    /// Bytes out of the sandbox and into it, so far.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.shared.used.bytes()
    }

    /// Ends every connection and waits until all are recorded.
    pub async fn stop(self) {
        drop(self.stop);
        // It can only fail by a panic, which has been reported where it was.
        let _ = self.task.await;
    }
}

/// Serves a sandbox's connections until the handle is stopped or dropped.
///
/// Must be called within a tokio runtime with time and I/O.
///
/// # Errors
/// The listener cannot be used without blocking.
pub fn serve(listener: impl Into<Listener>, settings: Settings) -> io::Result<ProxyHandle> {
    start(listener.into(), Shared::new(settings, Guards::default()))
}

pub(crate) fn start(listener: Listener, shared: Shared) -> io::Result<ProxyHandle> {
    let accepting = match listener {
        Listener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            Accepting::Tcp(TcpListener::from_std(listener)?)
        }
        Listener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            Accepting::Unix(UnixListener::from_std(listener)?)
        }
    };
    let shared = Arc::new(shared);
    let (stop, stopped) = watch::channel(());
    let task = tokio::spawn(accept(accepting, Arc::clone(&shared), stopped));
    Ok(ProxyHandle { stop, task, shared })
}

/// What all connections of a proxy share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) guards: Guards,
    pub(crate) used: Used,
    /// Whether the last request could not be recorded.
    unrecorded: AtomicBool,
    flood: Flood,
}

/// Refusals of which only a summary is recorded.
#[derive(Debug, Default)]
struct Flood {
    held: AtomicU64,
    recorded: Mutex<Option<Instant>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(settings: Settings, guards: Guards) -> Self {
        Self {
            settings,
            guards,
            used: Used::default(),
            unrecorded: AtomicBool::new(false),
            flood: Flood::default(),
        }
    }

    /// The record of a request that has just come.
    pub(crate) fn exchange(&self, started: Timestamp) -> Exchange {
        Exchange {
            sandbox: self.settings.sandbox,
            template: self.settings.template.clone(),
            kind: None,
            host: None,
            port: None,
            address: None,
            verdict: Verdict::Refused,
            reason: None,
            rule: None,
            decision: None,
            bytes_up: 0,
            bytes_down: 0,
            started,
            took: Duration::ZERO,
            times: 1,
        }
    }

    /// Whether another request may be made at all.
    pub(crate) fn admit(&self) -> Result<(), Reason> {
        self.used.request(&self.settings.limits)?;
        match self.unrecorded.load(Ordering::Relaxed) {
            true => Err(Reason::Unrecorded),
            false => Ok(()),
        }
    }

    /// Records a request; those that only say that a limit holds are summed up,
    /// or a sandbox could fill the ledger with them.
    pub(crate) fn record(&self, exchange: &Exchange) {
        match exchange.reason {
            Some(Reason::Requests | Reason::Connections) => self.record_flood(exchange),
            _ => self.keep(exchange),
        }
    }

    fn record_flood(&self, exchange: &Exchange) {
        self.flood.held.fetch_add(1, Ordering::Relaxed);
        let mut recorded = self
            .flood
            .recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if recorded.is_some_and(|last| last.elapsed() < FLOOD_RECORD) {
            return;
        }
        *recorded = Some(Instant::now());
        drop(recorded);
        self.keep_flood(exchange);
    }

    fn keep_flood(&self, exchange: &Exchange) {
        let times = self.flood.held.swap(0, Ordering::Relaxed);
        if times > 0 {
            self.keep(&Exchange {
                times,
                ..exchange.clone()
            });
        }
    }

    fn keep(&self, exchange: &Exchange) {
        let failed = self.settings.record.record(exchange).is_err();
        self.unrecorded.store(failed, Ordering::Relaxed);
    }

    fn over_the_limit(&self) -> Exchange {
        Exchange {
            reason: Some(Reason::Connections),
            ..self.exchange(SystemClock.now())
        }
    }
}

enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Accepting {
    async fn next(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A failure only costs time.
                let _ = stream.set_nodelay(true);
                let (reader, writer) = stream.into_split();
                Ok(Client::new(reader, writer))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let (reader, writer) = stream.into_split();
                Ok(Client::new(reader, writer))
            }
        }
    }
}

async fn accept(listener: Accepting, shared: Arc<Shared>, mut stop: watch::Receiver<()>) {
    let places = Arc::new(Semaphore::new(shared.settings.limits.connections));
    let doors = Arc::new(Semaphore::new(TURNED_AWAY));
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            // Only the sender's end is ever told.
            _ = stop.changed() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.next() => accepted,
        };
        let Ok(mut client) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            tasks.spawn(async move {
                connection::serve(&shared, client, stop).await;
                drop(place);
            });
            continue;
        }
        shared.record(&shared.over_the_limit());
        if let Ok(door) = Arc::clone(&doors).try_acquire_owned() {
            tasks.spawn(async move {
                client.refuse(&Reason::Connections.response(None)).await;
                drop(door);
            });
        }
    }
    // No more come in; those that are there see the end themselves.
    drop(listener);
    while tasks.join_next().await.is_some() {}
    shared.keep_flood(&shared.over_the_limit());
}
