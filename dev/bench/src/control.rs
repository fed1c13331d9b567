//! The control plane: what a replica decides, how soon others know it.
//!
//! Two replicas over one PostgreSQL, as two servers would be, under the load
//! of the specification: commands of the product, a thousand events a second.
//! `FLUFFY_CAMPAIGN=full` makes the long runs long.

mod scheduling;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::RequestId;
use fluffy_control::{Caller, CallerKind, Material, Outcome, Request, State};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_server::fold::{Fold, Position};
use fluffy_server::machine::{Ask, Job, Reply};
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_test_kit::{FreshDatabase, POSTGRES_ENV, PrivatePostgres, campaign};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::figure::{Bar, Figure, Samples, Show};

/// Who writes at once where the rate is measured.
const WRITERS: u64 = 64;
/// Who writes and reads at once where the delay is measured.
const CLIENTS: u64 = 50;
/// The events a second that everything else happens beside.
const BACKGROUND: u64 = 1_000;
/// What one write of the background leads to: a decision and its effect.
const EVENTS_PER_WRITE: u64 = 2;
/// Nothing is this late unless it is broken.
const LIMIT: Duration = Duration::from_secs(30);

/// All figures of the control plane.
///
/// # Errors
/// A server is missing, or something was lost.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let given = std::env::var(POSTGRES_ENV).is_ok_and(|url| !url.is_empty());
        let own = (!given).then(PrivatePostgres::start).transpose()?;
        let directory = tempfile::tempdir()?;
        let files = Storage::Directory(directory.path().to_owned());
        let mut figures = vec![rate("files", &files).await?];
        let database = fresh(own.as_ref())?;
        figures.push(rate("PostgreSQL", &stored(&database)?).await?);
        let database = fresh(own.as_ref())?;
        figures.extend(delay(&stored(&database)?).await?);
        figures.extend(start(directory.path()).await?);
        let database = fresh(own.as_ref())?;
        figures.push(scheduling::run(stored(&database)?).await?);
        Ok(figures)
    })
}

fn fresh(own: Option<&PrivatePostgres>) -> Result<FreshDatabase> {
    own.map_or_else(FreshDatabase::create, FreshDatabase::create_in)
}

fn stored(database: &FreshDatabase) -> Result<Storage> {
    Ok(Storage::Database(Box::new(database.url().parse()?)))
}

async fn open(storage: &Storage) -> Result<Platform> {
    let platform = Platform::open(storage, LedgerOptions::default()).await?;
    platform.begin(Founder::Local).await?;
    Ok(platform)
}

/// Submits a request as the owner of the machine.
async fn ask(platform: &Platform, request: Request, if_match: Option<u64>) -> Result<Position> {
    let caller = Caller {
        kind: CallerKind::Local,
        actor: Actor::new(fluffy_ledger::ActorKind::User, "local"),
    };
    let job = Job {
        caller,
        request_id: RequestId::generate().to_string(),
        now: platform.clock().now(),
        idempotency: Some((RequestId::generate().to_string(), Digest::of(b""))),
        if_match,
        mint: Arc::clone(platform.mint()),
        ask: Ask::Write(request),
    };
    let answer = platform.sequencer().submit(job).await?;
    match answer.reply {
        Reply::Wrote(Outcome::Done { .. }) => Ok(answer.position),
        other => bail!("a request was not done: {other:?}"),
    }
}

fn request(operation: Operation, path: &[&str], body: Value) -> Request {
    Request {
        operation,
        path: path.iter().map(|part| (*part).to_owned()).collect(),
        query: BTreeMap::new(),
        body: Some(body),
        material: Material::None,
    }
}

/// The write that the background is made of.
async fn rename(platform: &Platform, number: u64) -> Result<Position> {
    let body = json!({"display_name": format!("Local {number}")});
    ask(
        platform,
        request(Operation::UpdateOrg, &["local"], body),
        None,
    )
    .await
}

/// How many events a second one replica decides and commits.
async fn rate(engine: &str, storage: &Storage) -> Result<Figure> {
    let platform = open(storage).await?;
    let before = platform.ledger().head()?.seq;
    let time = Duration::from_secs(campaign(5, 60));
    let started = Instant::now();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let platform = platform.clone();
        writers.spawn(async move {
            let mut number = 0;
            while started.elapsed() < time {
                rename(&platform, number).await?;
                number += 1;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    let seconds = started.elapsed().as_secs_f64();
    let events = platform.ledger().head()?.seq - before;
    platform.close().await;
    Ok(Figure {
        what: format!("events decided and committed, {engine}, {WRITERS} writers"),
        ours: Samples::new(vec![seconds / exact(events)], Show::Rate),
        reference: None,
        bar: Bar::PerSecond(exact(BACKGROUND)),
    })
}

/// How late one replica knows what another has committed, and how soon what
/// was created on one is read on the other.
async fn delay(storage: &Storage) -> Result<Vec<Figure>> {
    let (here, there) = (open(storage).await?, open(storage).await?);
    let before = here.ledger().head()?.seq;
    let started = Instant::now();
    let mut background = JoinSet::new();
    let writers = 20;
    for writer in 0..writers {
        let (here, there) = (here.clone(), there.clone());
        background.spawn(async move { pace(&here, &there, writers, writer).await });
    }
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (here, there) = (here.clone(), there.clone());
        clients.spawn(async move { create_and_read(&here, &there, client).await });
    }
    let mut created = Vec::new();
    while let Some(done) = clients.join_next().await {
        created.extend(done??);
    }
    let mut lags = Vec::new();
    while let Some(done) = background.join_next().await {
        lags.extend(done??);
    }
    let seconds = started.elapsed().as_secs_f64();
    let events = here.ledger().head()?.seq - before;
    let last = here.sequencer().applied();
    there.sequencer().wait_for(last, LIMIT).await?;
    let digests = |platform: &Platform| platform.sequencer().read(State::digests);
    ensure!(digests(&here) == digests(&there), "the replicas differ");
    here.close().await;
    there.close().await;
    let figure = |what: &str, samples, bar| Figure {
        what: what.to_owned(),
        ours: samples,
        reference: None,
        bar,
    };
    Ok(vec![
        figure(
            "lag of another replica, 1000 events/s",
            Samples::new(lags, Show::Time),
            Bar::P99Under(0.5),
        ),
        figure(
            "created here, read there, 50 clients",
            Samples::new(created, Show::Time),
            Bar::P99Under(1.0),
        ),
        figure(
            "rate kept up meanwhile",
            Samples::new(vec![seconds / exact(events)], Show::Rate),
            Bar::PerSecond(0.9 * exact(BACKGROUND)),
        ),
    ])
}

/// Writes at its share of the background's pace; how late the other replica
/// was each time, from the answer on.
async fn pace(here: &Platform, there: &Platform, writers: u64, writer: u64) -> Result<Vec<f64>> {
    let writes = BACKGROUND / EVENTS_PER_WRITE;
    let mut ticks = interval(Duration::from_secs(writers) / u32::try_from(writes)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let seconds = campaign(10, 600);
    let mut lags = Vec::new();
    for number in 0..seconds * writes / writers {
        ticks.tick().await;
        let position = rename(here, writer * 1_000_000 + number).await?;
        let acknowledged = Instant::now();
        there.sequencer().wait_for(position, LIMIT).await?;
        lags.push(acknowledged.elapsed().as_secs_f64());
    }
    Ok(lags)
}

/// Creates apps on one replica and reads each on the other at once.
async fn create_and_read(here: &Platform, there: &Platform, client: u64) -> Result<Vec<f64>> {
    let mut delays = Vec::new();
    for number in 0..campaign(10, 100) {
        let name = format!("a{client}-{number}");
        let started = Instant::now();
        let create = request(Operation::CreateProject, &["local"], json!({"name": name}));
        let position = ask(here, create, None).await?;
        there.sequencer().wait_for(position, LIMIT).await?;
        let found = there.sequencer().read(|state| {
            let mut projects = state.runtime.projects.values();
            projects.any(|project| project.slug == name)
        });
        ensure!(found, "`{name}` is not there after its position");
        delays.push(started.elapsed().as_secs_f64());
    }
    Ok(delays)
}

/// How fast a ledger is folded, and how soon a replica starts from a snapshot.
async fn start(directory: &Path) -> Result<Vec<Figure>> {
    let path = directory.join("ledger");
    let (folding, events) = tokio::task::spawn_blocking(move || {
        let ledger = Ledger::open(&path, LedgerOptions::default())?;
        let started = Instant::now();
        let mut fold = Fold::<State>::empty(&ledger);
        ensure!(fold.finish(&ledger)?, "the ledger was restored");
        Ok((started.elapsed().as_secs_f64(), fold.position.seq))
    })
    .await
    .context("folding ended early")??;
    let started = Instant::now();
    let platform = open(&Storage::Directory(directory.to_owned())).await?;
    let starting = started.elapsed().as_secs_f64();
    ensure!(
        platform.sequencer().applied().seq == events,
        "not at the end"
    );
    platform.close().await;
    Ok(vec![
        Figure {
            what: format!("fold of {events} events"),
            ours: Samples::new(vec![folding / exact(events)], Show::Rate),
            reference: None,
            bar: Bar::PerSecond(20_000.0),
        },
        Figure {
            what: format!("start from a snapshot, {events} events"),
            ours: Samples::new(vec![starting], Show::Time),
            reference: None,
            bar: Bar::Under(1.0),
        },
    ])
}

#[expect(clippy::cast_precision_loss, reason = "far below what a float holds")]
fn exact(number: u64) -> f64 {
    number as f64
}
