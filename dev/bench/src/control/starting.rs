//! How soon a replica is there: on nothing, and on a long history.
//!
//! The long one begins with what real handlers decided and goes on with
//! changes of one org, appended in bulk; its snapshot is the fold of all of
//! it, whose rate is a figure too.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fluffy_control::event::OrgUpdated;
use fluffy_control::{Body, Fact, Owner, State};
use fluffy_ledger::{Actor, Aggregate, Batch, Domain, Draft, Ledger, LedgerOptions};
use fluffy_server::aside::Aside;
use fluffy_server::doors::Doors;
use fluffy_server::fold::Fold;
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_server::snapshot::Snapshots;
use fluffy_test_kit::campaign;
use tokio::task::spawn_blocking;

use super::exact;
use super::rebuilding::REBUILD;
use crate::figure::{Bar, Figure, Samples, Show};
use crate::rebuild::past::Past;

const ROUNDS: usize = 5;
/// The events of real commands at the start of the long history.
const REAL: u64 = 20_000;
const BATCH: usize = 5_000;

/// Both starts, and the fold.
pub(super) async fn run() -> Result<Vec<Figure>> {
    let mut empty = Vec::new();
    for _ in 0..ROUNDS {
        let home = tempfile::tempdir()?;
        empty.push(start(home.path()).await?);
    }
    let home = tempfile::tempdir()?;
    let (events, folding) = long(home.path()).await?;
    let mut large = Vec::new();
    for _ in 0..ROUNDS {
        large.push(start(home.path()).await?);
    }
    let starting = |what: String, times| Figure {
        what,
        ours: Samples::new(times, Show::Time),
        reference: None,
        bar: Bar::Under(1.0),
    };
    Ok(vec![
        starting("start with all doors, no events".to_owned(), empty),
        starting(format!("start with all doors, {events} events"), large),
        Figure {
            what: format!("fold of {events} events"),
            ours: Samples::new(vec![folding.as_secs_f64() / exact(events)], Show::Rate),
            reference: None,
            bar: Bar::PerSecond(REBUILD),
        },
    ])
}

/// Seconds until a replica on this directory answers at all of its doors.
async fn start(home: &Path) -> Result<f64> {
    let started = Instant::now();
    let mut server = Server::start(Options {
        storage: Storage::Directory(home.to_owned()),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    })
    .await?;
    let doors = Doors {
        keys: home.join("keys"),
        api: Some("127.0.0.1:0".parse()?),
        nodes: Some("127.0.0.1:0".parse()?),
        socket: Some(home.join("api.sock")),
        names: vec!["localhost".to_owned()],
        ..Doors::default()
    };
    let open = server.open(doors).await?;
    let took = started.elapsed().as_secs_f64();
    ensure!(open.sealed.is_none(), "the master keys are not at hand");
    server.stop().await;
    Ok(took)
}

/// Makes a long history and its snapshot; how many events, and how long it
/// took to fold them.
async fn long(home: &Path) -> Result<(u64, Duration)> {
    let path = home.join("ledger");
    let folded = spawn_blocking(move || {
        let ledger = Ledger::open(&path, LedgerOptions::default())?;
        grow(&ledger, campaign(1_000_000, 10_000_000))?;
        let started = Instant::now();
        let mut fold = Fold::<State>::empty(&ledger);
        ensure!(fold.finish(&ledger)?, "the ledger was restored");
        let folding = started.elapsed();
        ledger.close()?;
        Ok((fold, folding))
    });
    let (fold, folding) = folded.await.context("folding ended early")??;
    let events = fold.position.seq;
    let aside = Aside::open(home)?;
    Snapshots::new(aside).take(fold).await?;
    Ok((events, folding))
}

fn grow(ledger: &Ledger, events: u64) -> Result<()> {
    let mut past = Past::new(10);
    let mut last = 0;
    while last < REAL {
        last = ledger
            .append_blocking(Batch::new(past.next(BATCH)))?
            .last_seq;
    }
    let local = past.state().access.names.org("local");
    let local = local.context("there is no org `local`")?;
    while last < events {
        let drafts = (0..BATCH).map(|_| renamed(&local.to_string(), past.now()));
        last = ledger
            .append_blocking(Batch::new(drafts.collect()))?
            .last_seq;
    }
    Ok(())
}

/// A change of an org, as its handler would have decided it.
pub(super) fn renamed(org: &str, now: fluffy_base::Timestamp) -> Draft {
    let body = OrgUpdated { display_name: None };
    let fact = Fact::new(org, Body::from(body));
    let aggregate = Aggregate::new(fact.body.aggregate_kind(), org);
    let owner = Owner {
        org: org.parse().ok(),
        ..Owner::default()
    };
    let actor = Actor::system("bench");
    Draft::new(Domain::Platform, aggregate, fact.body.event_type(), actor)
        .payload(fact.body.payload())
        .scope(owner.scope())
        .occurred_at(now)
}
