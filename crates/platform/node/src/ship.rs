//! Takes lines to a server: at least once, oldest first, never in the way.
//!
//! One task owns the spool. Lines come over a short channel; a workload that
//! prints too much is cut to its share before that ([`Share`]), and a server
//! that is away only makes the spool longer.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::join::{nodes, streaming};
use fluffy_api::node::{MAX_LOG_ENTRIES, v1};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Streaming;

use crate::metrics::Metrics;
use crate::session::Task;
use crate::spool::{Limits, Spool};
use crate::supervise::keep_up;

/// How many lines wait to be written down.
const WAITING: usize = 1024;

/// The most bytes of one batch; the largest message is twice that.
const BATCH_BYTES: usize = 512 << 10;

/// How long lines wait for company.
const GATHER: Duration = Duration::from_millis(250);

/// How long a server may take to take a batch.
const PATIENCE: Duration = Duration::from_secs(30);

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// What one instance may print: lines and bytes a second, for so long at once.
const SHARE: (f64, f64, f64) = (1_000.0, 1_048_576.0, 5.0);

/// Begins to take lines to whichever server is connected; a task that fails
/// is started again, and lines wait for it.
///
/// # Errors
/// The spool cannot be opened.
pub(crate) fn start(
    node_id: String,
    folder: PathBuf,
    channel: watch::Receiver<Option<Channel>>,
    metrics: Arc<Metrics>,
) -> io::Result<(mpsc::Sender<v1::LogEntry>, Task)> {
    let (sender, lines) = mpsc::channel(WAITING);
    let lines = Arc::new(Mutex::new(lines));
    let mut opened = Some(Spool::open(&folder, Limits::default())?);
    let figures = Arc::clone(&metrics);
    let task = keep_up("ship", metrics, move || {
        let spool = opened.take().map_or_else(
            || Spool::open(&folder, Limits::default()),
            Ok::<Spool, io::Error>,
        );
        let (node_id, lines) = (node_id.clone(), Arc::clone(&lines));
        let (channel, metrics) = (channel.clone(), Arc::clone(&figures));
        async move {
            match spool {
                Ok(spool) => {
                    let mut ship = Ship {
                        node_id,
                        spool,
                        lines: lines.lock_owned().await,
                        channel,
                        metrics,
                        stream: None,
                        due: Instant::now(),
                    };
                    // What an earlier process left waits already.
                    ship.count();
                    ship.run().await;
                    // Its agent is over, and it goes with it: that is no failure.
                    std::future::pending().await
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, "the spool cannot be opened");
                }
            }
        }
    });
    Ok((sender, task))
}

struct Ship {
    node_id: String,
    spool: Spool,
    lines: OwnedMutexGuard<mpsc::Receiver<v1::LogEntry>>,
    channel: watch::Receiver<Option<Channel>>,
    metrics: Arc<Metrics>,
    stream: Option<Stream>,
    /// When the next batch may go.
    due: Instant,
}

/// A stream that is open.
struct Stream {
    batches: mpsc::Sender<v1::LogBatch>,
    acks: Streaming<v1::LogAck>,
    number: u64,
}

impl Ship {
    async fn run(mut self) {
        loop {
            let waits = self.spool.bytes() > 0 && self.channel.borrow().is_some();
            tokio::select! {
                line = self.lines.recv() => match line {
                    None => return,
                    Some(line) => self.keep(line),
                },
                changed = self.channel.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.stream = None;
                }
                () = sleep_until(self.due), if waits => {
                    let pause = match self.deliver().await {
                        Ok(()) => GATHER,
                        Err(()) => {
                            self.stream = None;
                            PAUSE
                        }
                    };
                    self.due = Instant::now() + pause;
                }
            }
        }
    }

    fn keep(&mut self, line: v1::LogEntry) {
        self.metrics.count("log_lines_total", "workload");
        if self.spool.bytes() == 0 {
            self.due = self.due.max(Instant::now() + GATHER);
        }
        if let Err(error) = self.spool.append(line) {
            tracing::warn!(error = &error as &dyn std::error::Error, "a line was lost");
        }
        self.count();
    }

    fn count(&mut self) {
        let dropped = i64::try_from(self.spool.take_dropped()).unwrap_or(i64::MAX);
        if dropped > 0 {
            self.metrics.add("log_dropped_total", "spool", dropped);
        }
        self.metrics.set("log_spool_bytes", "", self.spool.bytes());
        let oldest = self.spool.oldest_ms();
        self.metrics.since("log_ship_lag_seconds", oldest);
    }

    /// Delivers what waits, as far as nothing new comes.
    async fn deliver(&mut self) -> Result<(), ()> {
        loop {
            let batch = self.spool.batch(MAX_LOG_ENTRIES, BATCH_BYTES);
            let batch = batch.map_err(|error| {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "lines cannot be read"
                );
            })?;
            let Some(mut batch) = batch else {
                return Ok(());
            };
            let entries = std::mem::take(&mut batch.entries);
            // It is put back when it has done its work.
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => self.open().await?,
            };
            stream.number += 1;
            let message = v1::LogBatch {
                node_id: self.node_id.clone(),
                number: stream.number,
                entries,
            };
            let delivered = timeout(PATIENCE, stream.carry(message));
            self.meanwhile(delivered).await.unwrap_or(Err(()))?;
            self.stream = Some(stream);
            self.spool.arrived(&batch);
            self.count();
            // Lines that came meanwhile go to the disk first.
            for _ in 0..WAITING {
                match self.lines.try_recv() {
                    Ok(line) => self.keep(line),
                    Err(_) => break,
                }
            }
        }
    }

    /// Waits for a server and writes lines down all the while: whoever prints
    /// does not wait for one.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(line) = self.lines.recv() => self.keep(line),
            }
        }
    }

    async fn open(&mut self) -> Result<Stream, ()> {
        let channel = self.channel.borrow_and_update().clone();
        let channel = channel.ok_or(())?;
        let (batches, messages) = mpsc::channel(1);
        let mut client = nodes(&channel);
        let opened = timeout(PATIENCE, client.push_logs(streaming(messages)));
        let opened = self.meanwhile(opened).await;
        let acks = opened.map_err(drop)?.map_err(drop)?.into_inner();
        Ok(Stream {
            batches,
            acks,
            number: 0,
        })
    }
}

impl Stream {
    /// Sends a batch, and waits until it arrived.
    async fn carry(&mut self, batch: v1::LogBatch) -> Result<(), ()> {
        let number = batch.number;
        self.batches.send(batch).await.map_err(drop)?;
        loop {
            match self.acks.message().await {
                Ok(Some(ack)) if ack.through >= number => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Err(()),
            }
        }
    }
}

/// What one instance may print, as two buckets that fill with time.
#[derive(Debug)]
pub(crate) struct Share {
    lines: f64,
    bytes: f64,
    at: Instant,
    dropped: u64,
}

impl Share {
    /// Full at the beginning.
    pub(crate) fn new() -> Self {
        Self {
            lines: SHARE.0 * SHARE.2,
            bytes: SHARE.1 * SHARE.2,
            at: Instant::now(),
            dropped: 0,
        }
    }

    /// Whether a line of so many bytes may pass; how many were held back
    /// before it, if it may.
    pub(crate) fn pass(&mut self, bytes: usize) -> Option<u64> {
        let now = Instant::now();
        let seconds = now.duration_since(self.at).as_secs_f64();
        self.at = now;
        self.lines = (self.lines + seconds * SHARE.0).min(SHARE.0 * SHARE.2);
        self.bytes = (self.bytes + seconds * SHARE.1).min(SHARE.1 * SHARE.2);
        #[expect(clippy::cast_precision_loss, reason = "a line is never that long")]
        let bytes = bytes as f64;
        if self.lines < 1.0 || self.bytes < bytes {
            self.dropped += 1;
            return None;
        }
        self.lines -= 1.0;
        self.bytes -= bytes;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_cut_to_its_share_and_counted() {
        let mut share = Share::new();
        let passed = (0..20_000).filter(|_| share.pass(10).is_some()).count();
        assert_eq!(passed, 5_000, "five seconds' worth at once");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(share.pass(10), Some(15_000));
        let passed = (0..20_000).filter(|_| share.pass(10).is_some()).count();
        assert_eq!(passed, 999);
        tokio::time::advance(Duration::from_secs(60)).await;
        let long = (0..1_000)
            .filter(|_| share.pass(16 << 10).is_some())
            .count();
        assert_eq!(long, 320, "5 MiB in lines of 16 KiB");
    }

    /// Understands nothing.
    struct Mute;

    impl tonic::codec::Decoder for Mute {
        type Item = v1::LogAck;
        type Error = tonic::Status;

        fn decode(
            &mut self,
            _: &mut tonic::codec::DecodeBuf<'_>,
        ) -> Result<Option<v1::LogAck>, tonic::Status> {
            Ok(None)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_who_prints_waits_for_a_server_that_takes_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, lines) = mpsc::channel(1);
        let (_channel, channels) = watch::channel(None);
        // Nobody takes what is sent, as where a server's disk is slow.
        let (batches, _untaken) = mpsc::channel(1);
        batches.try_send(v1::LogBatch::default()).unwrap();
        let mut ship = Ship {
            node_id: "node_1".to_owned(),
            spool: Spool::open(folder.path(), Limits::default()).unwrap(),
            lines: Arc::new(Mutex::new(lines)).lock_owned().await,
            channel: channels,
            metrics: Arc::new(Metrics::default()),
            stream: Some(Stream {
                batches,
                acks: Streaming::new_empty(Mute, tonic::body::Body::empty()),
                number: 0,
            }),
            due: Instant::now(),
        };
        let line = |seq| v1::LogEntry {
            instance_id: "inst_1".to_owned(),
            seq,
            ..Default::default()
        };
        ship.keep(line(1));
        let began = Instant::now();
        let prints = async {
            for seq in 2..=100 {
                let printed = timeout(PATIENCE * 2, sender.send(line(seq))).await;
                printed.expect("room for a line").unwrap();
            }
            began.elapsed()
        };
        let (delivered, took) = tokio::join!(ship.deliver(), prints);
        assert_eq!((delivered, took), (Err(()), Duration::ZERO));
        // All are there, for a server that is faster.
        let kept = ship.spool.batch(1_000, BATCH_BYTES).unwrap().unwrap();
        assert_eq!(kept.entries.len(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn that_its_agent_is_over_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let (channel, channels) = watch::channel(None);
        let metrics = Arc::new(Metrics::default());
        let started = start(
            "node_1".to_owned(),
            folder.path().to_owned(),
            channels,
            Arc::clone(&metrics),
        );
        let (sender, task) = started.unwrap();
        drop((sender, channel));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let figures = metrics.figures();
        let restarts = figures.iter().filter(|it| it.name.contains("restarts"));
        let counted: i64 = restarts.flat_map(|it| &it.values).map(|it| it.1).sum();
        assert_eq!(counted, 0);
        drop(task);
    }
}
