//! What an edge counts, for Prometheus.
//!
//! Labels come from fixed sets and from the ports of the table in force: never
//! a client, a route, an instance or a name. Knows nothing of what is carried
//! but how many bytes it was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Up to how many milliseconds each bucket of a connect goes.
const BOUNDS: [u64; 10] = [1, 2, 5, 10, 25, 50, 100, 250, 1_000, 2_000];

/// How a connection ended, or why there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// One of both sides ended it.
    Closed,
    /// Its route went.
    Gone,
    /// There were too many.
    Limited,
    /// No instance took it.
    Unavailable,
}

/// Their words, in the order of the variants.
const ENDS: [&str; 4] = ["closed", "route_gone", "limited", "unavailable"];

/// Why an instance took no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    Refused,
    Timeout,
    Unreachable,
    Other,
}

/// Their words, in the order of the variants.
const FAILS: [&str; 4] = ["refused", "timeout", "unreachable", "other"];

impl Failed {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

/// What became of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    Taken,
    /// It was not newer.
    Old,
    Refused,
}

/// Their words, in the order of the variants.
const APPLIES: [&str; 3] = ["applied", "old", "refused"];

/// The states of instances, as they are counted.
pub(crate) const STATES: [&str; 4] = ["up", "out", "aside", "draining"];

/// What is counted of one port.
#[derive(Debug, Default, Clone, Copy)]
struct Port {
    open: u64,
    ended: [u64; ENDS.len()],
}

/// How long instances took to take connections.
#[derive(Debug, Default)]
struct Connects {
    counts: [u64; BOUNDS.len() + 1],
    micros: u64,
}

/// What an edge counts.
#[derive(Debug)]
pub(crate) struct Meter {
    ports: Mutex<BTreeMap<u16, Port>>,
    connects: Mutex<Connects>,
    failed: [AtomicU64; FAILS.len()],
    applied: [AtomicU64; APPLIES.len()],
    /// The number of the table in force.
    pub(crate) version: AtomicU64,
    from_clients: AtomicU64,
    to_clients: AtomicU64,
    /// How many servers are heard, and since when none is.
    heard: AtomicUsize,
    alone: Mutex<Instant>,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            ports: Mutex::default(),
            connects: Mutex::default(),
            failed: Default::default(),
            applied: Default::default(),
            version: AtomicU64::new(0),
            from_clients: AtomicU64::new(0),
            to_clients: AtomicU64::new(0),
            heard: AtomicUsize::new(0),
            alone: Mutex::new(Instant::now()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meter {
    /// Only these ports are counted from now on: there are no more words for
    /// the label than routes.
    pub(crate) fn keep_ports(&self, is_used: impl Fn(u16) -> bool) {
        // Who is carried on a port that went is told by its end.
        lock(&self.ports).retain(|port, counts| is_used(*port) || counts.open > 0);
    }

    pub(crate) fn opened(&self, port: u16) {
        lock(&self.ports).entry(port).or_default().open += 1;
    }

    /// One that was open has ended.
    pub(crate) fn closed(&self, port: u16, how: Ended) {
        let mut ports = lock(&self.ports);
        let counts = ports.entry(port).or_default();
        counts.open = counts.open.saturating_sub(1);
        count(&mut counts.ended, how as usize);
    }

    /// One was not even begun.
    pub(crate) fn turned_away(&self, port: u16, why: Ended) {
        let mut ports = lock(&self.ports);
        count(&mut ports.entry(port).or_default().ended, why as usize);
    }

    pub(crate) fn connected(&self, took: Duration) {
        let mut connects = lock(&self.connects);
        let mut bounds = BOUNDS.iter();
        let bucket = bounds.position(|bound| took <= Duration::from_millis(*bound));
        count(&mut connects.counts, bucket.unwrap_or(BOUNDS.len()));
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        connects.micros = connects.micros.saturating_add(micros);
    }

    pub(crate) fn failed(&self, why: Failed) {
        add(&self.failed, why as usize);
    }

    pub(crate) fn applied(&self, what: Applied) {
        add(&self.applied, what as usize);
    }

    pub(crate) fn begin_hearing(&self) {
        self.heard.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_hearing(&self) {
        *lock(&self.alone) = Instant::now();
        self.heard.fetch_sub(1, Ordering::SeqCst);
    }

    /// For how long no server has been heard.
    fn stale(&self) -> Duration {
        match self.heard.load(Ordering::SeqCst) {
            0 => lock(&self.alone).elapsed(),
            _ => Duration::ZERO,
        }
    }

    /// Everything as Prometheus reads it; what is not counted here is given.
    pub(crate) fn text(&self, routes: usize, backends: [u64; STATES.len()]) -> String {
        let mut text = Text::default();
        let ports = lock(&self.ports).clone();
        text.head("edge_connections", "gauge", "Connections that are open");
        for (port, counts) in &ports {
            text.line(
                "edge_connections",
                &[("port", &port.to_string())],
                counts.open,
            );
        }
        let name = "edge_connections_total";
        text.head(name, "counter", "Connections that ended, by how");
        for (port, counts) in &ports {
            for (result, count) in ENDS.iter().zip(counts.ended) {
                text.line(
                    name,
                    &[("port", &port.to_string()), ("result", result)],
                    count,
                );
            }
        }
        self.connects(&mut text);
        let name = "edge_upstream_failures_total";
        text.head(name, "counter", "Connections that an instance did not take");
        text.each(name, "reason", FAILS.iter().zip(values(&self.failed)));
        text.head("edge_backends", "gauge", "Instances that routes lead to");
        text.each("edge_backends", "state", STATES.iter().zip(backends));
        let routes = u64::try_from(routes).unwrap_or(u64::MAX);
        text.head("edge_routes", "gauge", "Routes that are listened for");
        text.line("edge_routes", &[], routes);
        let name = "edge_config_version";
        text.head(name, "gauge", "The number of the table in force");
        text.line(name, &[], self.version.load(Ordering::Relaxed));
        let name = "edge_config_apply_total";
        text.head(name, "counter", "Tables that came");
        text.each(name, "result", APPLIES.iter().zip(values(&self.applied)));
        let name = "edge_config_stale_seconds";
        text.head(name, "gauge", "For how long no server has been heard");
        text.line(name, &[], self.stale().as_secs());
        let name = "edge_bytes_total";
        text.head(name, "counter", "Bytes from clients (in) and to them (out)");
        for (direction, bytes) in [("in", &self.from_clients), ("out", &self.to_clients)] {
            text.line(
                name,
                &[("direction", direction)],
                bytes.load(Ordering::Relaxed),
            );
        }
        text.0
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn connects(&self, text: &mut Text) {
        let name = "edge_upstream_connect_seconds";
        text.head(
            name,
            "histogram",
            "Time until an instance took a connection",
        );
        let connects = lock(&self.connects);
        let bounds = BOUNDS.iter().map(|bound| (*bound as f64 / 1e3).to_string());
        let mut sum = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(connects.counts) {
            sum += count;
            text.line(&format!("{name}_bucket"), &[("le", &bound)], sum);
        }
        text.line(&format!("{name}_sum"), &[], connects.micros as f64 / 1e6);
        text.line(&format!("{name}_count"), &[], sum);
    }
}

fn count(counts: &mut [u64], place: usize) {
    if let Some(count) = counts.get_mut(place) {
        *count += 1;
    }
}

fn add(counts: &[AtomicU64], place: usize) {
    if let Some(count) = counts.get(place) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn values(counts: &[AtomicU64]) -> impl Iterator<Item = u64> {
    counts.iter().map(|count| count.load(Ordering::Relaxed))
}

/// Lines as Prometheus reads them.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP fluffy_{name} {help}");
        let _ = writeln!(self.0, "# TYPE fluffy_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, word)| format!("{name}=\"{word}\""))
            .collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.0, "fluffy_{name} {value}"),
            false => writeln!(self.0, "fluffy_{name}{{{}}} {value}", labels.join(",")),
        };
    }

    fn each<'a>(
        &mut self,
        name: &str,
        label: &str,
        values: impl Iterator<Item = (&'a &'static str, u64)>,
    ) {
        for (word, value) in values {
            self.line(name, &[(label, word)], value);
        }
    }
}

/// A client's connection whose bytes are counted as they go.
#[derive(Debug)]
pub(crate) struct Metered<'a> {
    pub(crate) stream: TcpStream,
    pub(crate) meter: &'a Meter,
}

impl AsyncRead for Metered<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len().saturating_sub(before);
        let bytes = u64::try_from(bytes).unwrap_or(0);
        self.meter.from_clients.fetch_add(bytes, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Metered<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = &wrote {
            let bytes = u64::try_from(*bytes).unwrap_or(0);
            self.meter.to_clients.fetch_add(bytes, Ordering::Relaxed);
        }
        wrote
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
