//! The control plane: what a replica decides, how soon others know it.
//!
//! Two replicas over one PostgreSQL, as two servers would be, under the load
//! of the specification: commands of the product, a thousand events a second.
//! `FLUFFY_CAMPAIGN=full` makes the long runs long.

mod lag;
mod rebuilding;
mod scheduling;
mod starting;
mod web;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::RequestId;
use fluffy_control::{Caller, CallerKind, Material, Outcome, Request};
use fluffy_ledger::{Actor, LedgerOptions};
use fluffy_server::fold::Position;
use fluffy_server::machine::{Ask, Job, Reply};
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_test_kit::{FreshDatabase, POSTGRES_ENV, PrivatePostgres, campaign};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::figure::{Bar, Figure, Samples, Show};
use lag::Hearing;

/// Who writes at once where the rate is measured.
const WRITERS: u64 = 64;
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
        let fresh = || {
            own.as_ref()
                .map_or_else(FreshDatabase::create, FreshDatabase::create_in)
        };
        let chosen = std::env::var(PART_ENV).unwrap_or_default();
        let mut figures = Vec::new();
        for (name, part) in PARTS.iter().filter(|(name, _)| name.contains(&chosen)) {
            eprintln!("  {name} …");
            figures.extend(match part {
                Part::Rate => {
                    let directory = tempfile::tempdir()?;
                    let files = Storage::Directory(directory.path().to_owned());
                    let database = fresh()?;
                    vec![
                        rate("files", &files).await?,
                        rate("PostgreSQL", &stored(&database)?).await?,
                    ]
                }
                Part::Lag(hearing) => lag::run(&fresh()?, *hearing).await?,
                Part::Scheduling => vec![scheduling::run(stored(&fresh()?)?).await?],
                Part::Web => web::run(&fresh()?, &fresh()?).await?,
                Part::Starting => starting::run().await?,
                Part::Rebuilding => rebuilding::run().await?,
            });
        }
        Ok(figures)
    })
}

/// Picks the parts whose name holds this text, for whoever works on one.
const PART_ENV: &str = "FLUFFY_BENCH_PART";

enum Part {
    Rate,
    Lag(Hearing),
    Scheduling,
    Web,
    Starting,
    Rebuilding,
}

const PARTS: &[(&str, Part)] = &[
    ("rate", Part::Rate),
    ("lag, notified (E6)", Part::Lag(Hearing::Notified)),
    ("lag, polling (E6)", Part::Lag(Hearing::Polling)),
    ("scheduling (E7)", Part::Scheduling),
    ("web (E8)", Part::Web),
    ("starting", Part::Starting),
    ("rebuilding (E20)", Part::Rebuilding),
];

fn stored(database: &FreshDatabase) -> Result<Storage> {
    Ok(Storage::database(database.url().parse()?))
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

#[expect(clippy::cast_precision_loss, reason = "far below what a float holds")]
fn exact(number: u64) -> f64 {
    number as f64
}
