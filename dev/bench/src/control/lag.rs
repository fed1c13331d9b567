//! How late other replicas know what was committed.
//!
//! A third process's ledger, as it were, appends what real command handlers
//! decided, a thousand events a second and then as fast as it goes; two
//! replicas follow. Every delay is from before the append, so it is rather too
//! long than too short.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fluffy_control::State;
use fluffy_ledger::{Batch, Draft, Ledger, LedgerOptions, PostgresAddress};
use fluffy_server::fold::Position;
use fluffy_server::platform::{Platform, Storage};
use fluffy_test_kit::{FreshDatabase, campaign};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};

use super::starting::renamed;
use super::{BACKGROUND, LIMIT, exact};
use crate::figure::{Bar, Figure, Samples, Show};
use crate::rebuild::past::Past;

/// What several callers at once lead to in one commit.
const COMMIT: usize = 10;
/// What a burst has in one commit: as much as a replica appends at once.
const BURST: usize = 500;
/// How long a burst lasts, and how long it may be felt.
const BURST_LASTS: Duration = Duration::from_secs(10);
const BURST_FELT: f64 = 30.0;
/// Who looks five times a second by itself is this late and more, in seconds.
const UNTOLD: f64 = 0.02;

/// Whether replicas hear of each other's commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hearing {
    /// As always.
    Notified,
    /// Nobody is told anything; they look by themselves.
    Polling,
}

/// The lag at a steady rate and, where replicas are notified, after a burst.
pub(super) async fn run(database: &FreshDatabase, hearing: Hearing) -> Result<Vec<Figure>> {
    let told = match hearing {
        Hearing::Notified => "notified",
        Hearing::Polling => {
            silence(database)?;
            "polling only"
        }
    };
    let address: PostgresAddress = database.url().parse()?;
    let storage = Storage::database(address.clone());
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Platform::open(&storage, LedgerOptions::default()).await?);
    }
    let writer = spawn_blocking(move || Ledger::open_postgres(&address, LedgerOptions::default()));
    let writer = writer.await??;
    let mut tail = Vec::new();
    let mut following = JoinSet::new();
    for replica in &replicas {
        let (committed, commits) = mpsc::unbounded_channel();
        tail.push(committed);
        following.spawn(follow(replica.clone(), commits));
    }
    let mut past = Drafts::start(COMMIT);
    let steady = steady(&writer, &mut past, &tail).await?;
    drop(tail);
    let mut lags = Vec::new();
    while let Some(done) = following.join_next().await {
        lags.extend(done??);
    }
    let lags = Samples::new(lags, Show::Time);
    ensure!(
        hearing == Hearing::Notified || lags.median() > UNTOLD,
        "the replicas were told of commits all the same: {:.1} ms late",
        lags.median() * 1e3
    );
    let mut figures = vec![
        Figure {
            what: format!("lag of two other replicas, 1000 events/s, {told}"),
            ours: lags,
            reference: None,
            bar: Bar::P99Under(0.5),
        },
        Figure {
            what: format!("rate kept up meanwhile, {told}"),
            ours: Samples::new(vec![steady], Show::Rate),
            reference: None,
            bar: Bar::PerSecond(0.95 * exact(BACKGROUND)),
        },
    ];
    if hearing == Hearing::Notified {
        figures.extend(burst(&writer, &replicas).await?);
    }
    let [here, there] = replicas.as_slice() else {
        unreachable!("there are two");
    };
    let digests = |platform: &Platform| platform.sequencer().read(State::digests);
    ensure!(digests(here) == digests(there), "the replicas differ");
    for replica in &replicas {
        replica.close().await;
    }
    spawn_blocking(move || writer.close()).await??;
    Ok(figures)
}

/// Makes what tells others of a commit do nothing, in this database alone.
///
/// The function that is there goes by its number whatever its row says, so
/// another one takes its name.
fn silence(database: &FreshDatabase) -> Result<()> {
    database.sql(
        "set allow_system_table_mods = on; \
         alter function pg_catalog.pg_notify(text, text) rename to pg_notify_aside; \
         create function pg_catalog.pg_notify(text, text) returns void \
         language sql as 'select'",
    )?;
    Ok(())
}

/// A commit: its last event, how many it has, and when it was begun.
type Commit = (Position, usize, Instant);

/// Appends at the pace of the background; seconds per event.
async fn steady(
    writer: &Ledger,
    past: &mut Drafts,
    tail: &[mpsc::UnboundedSender<Commit>],
) -> Result<f64> {
    let seconds = campaign(10, 600);
    let started = Instant::now();
    let mut events = 0;
    while events < seconds * BACKGROUND {
        let drafts = past.next().await?;
        let due = started + Duration::from_micros(1_000_000 * events / BACKGROUND);
        tokio::time::sleep_until(due.into()).await;
        let (begun, many) = (Instant::now(), drafts.len());
        let appended = writer.append(Batch::new(drafts)).await?;
        events += many as u64;
        for committed in tail {
            let position = Position {
                epoch: appended.epoch,
                seq: appended.last_seq,
            };
            committed.send((position, many, begun))?;
        }
    }
    Ok(started.elapsed().as_secs_f64() / exact(events))
}

/// How late one replica was for each event.
async fn follow(
    replica: Platform,
    mut commits: mpsc::UnboundedReceiver<Commit>,
) -> Result<Vec<f64>> {
    let mut lags = Vec::new();
    while let Some((position, events, begun)) = commits.recv().await {
        replica.sequencer().wait_for(position, LIMIT).await?;
        let lag = begun.elapsed().as_secs_f64();
        lags.extend(std::iter::repeat_n(lag, events));
    }
    Ok(lags)
}

/// As much as goes for a while, and how long it is felt after that.
///
/// Whoever makes real commands is slower than a burst: it is of changes of one
/// org, which cost replicas what any event costs them.
async fn burst(writer: &Ledger, replicas: &[Platform]) -> Result<Vec<Figure>> {
    let first = replicas.first().context("there are two")?;
    let org = first
        .sequencer()
        .read(|state| state.access.names.org("local"));
    let org = org.context("there is no org `local`")?.to_string();
    let now = first.clock().now();
    let started = Instant::now();
    let mut events = 0;
    let mut last = None;
    while started.elapsed() < BURST_LASTS {
        let drafts: Vec<_> = (0..BURST).map(|_| renamed(&org, now)).collect();
        events += drafts.len() as u64;
        last = Some(writer.append(Batch::new(drafts)).await?);
    }
    let seconds = started.elapsed().as_secs_f64();
    let last = last.context("nothing was appended")?;
    let wanted = Position {
        epoch: last.epoch,
        seq: last.last_seq,
    };
    let ended = Instant::now();
    for replica in replicas {
        replica.sequencer().wait_for(wanted, 10 * LIMIT).await?;
    }
    let felt = ended.elapsed().as_secs_f64();
    Ok(vec![
        Figure {
            what: "events in a burst of 10 s".to_owned(),
            ours: Samples::new(vec![seconds / exact(events)], Show::Rate),
            reference: None,
            bar: Bar::PerSecond(2.0 * exact(BACKGROUND)),
        },
        Figure {
            what: "until two other replicas have all of the burst".to_owned(),
            ours: Samples::new(vec![felt], Show::Time),
            reference: None,
            bar: Bar::Under(BURST_FELT),
        },
    ])
}

/// Events that a thread prepares, some of them ahead.
struct Drafts {
    ready: mpsc::Receiver<Vec<Draft>>,
}

impl Drafts {
    /// A history in commits of about this many events.
    fn start(commit: usize) -> Self {
        let (made, ready) = mpsc::channel(2_000);
        let made = Arc::new(made);
        thread::spawn(move || {
            let mut past = Past::new(6);
            while made.blocking_send(past.next(commit)).is_ok() {}
        });
        Self { ready }
    }

    async fn next(&mut self) -> Result<Vec<Draft>> {
        self.ready.recv().await.context("the history ended")
    }
}
