//! Appending to PostgreSQL beside bare multi-row inserts of the same columns.
//!
//! A ledger stores through one connection per process, so the reference with
//! the bar has one too; sixteen are shown beside it.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fluffy_ledger::Durability;
use fluffy_test_kit::FreshDatabase;
use futures_util::TryStreamExt as _;
use sha2::{Digest, Sha256};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, NoTls, Statement};

use super::load::{Done, Kind, crowd, storm};
use super::server::Server;
use crate::figure::{Bar, Figure, Samples, Show};

/// Ten seconds in all; `cargo xtask accept` runs a whole minute elsewhere.
const ROUNDS: u32 = 5;
const ROUND: Duration = Duration::from_secs(2);
const WRITERS: u64 = 16;
const KIND: Kind = Kind {
    durability: Durability::Security,
    payload: 500,
};

/// Sixteen writers, and the same without chain or sequence.
pub(super) fn run(server: &Server) -> Result<Vec<Figure>> {
    let place = server.open()?;
    let (ledger, database) = (&place.ledger, &place.database);
    // An equal table: the same columns, key and index.
    database.sql("create table bare (like ledger.events including indexes)")?;
    let mut crowd = Crowd::new(database)?;
    let (mut ours, mut one, mut many, mut groups) = (vec![], vec![], vec![], vec![]);
    // The first round of each warms up and is not counted.
    for round in 0..=ROUNDS {
        let before = ledger.head()?.seq;
        let done = storm(ledger, KIND, WRITERS, ROUND)?;
        let group = done.group(transactions(database, before)?);
        let (alone, together) = (crowd.run(1, group)?, crowd.run(WRITERS, group)?);
        if round > 0 {
            ours.push(done.seconds_per_event());
            one.push(alone.seconds_per_event());
            many.push(together.seconds_per_event());
            groups.push(group);
        }
    }
    check_gaps(database)?;
    ledger.close()?;
    groups.sort_unstable();
    let group = groups.get(groups.len() / 2).copied().unwrap_or_default();
    let ours = Samples::new(ours, Show::Rate);
    let figure = |name: Option<(String, Vec<f64>)>, bar| Figure {
        what: "append, PostgreSQL, 16 writers".to_owned(),
        ours: ours.clone(),
        reference: name.map(|(name, times)| (name, Samples::new(times, Show::Rate))),
        bar,
    };
    let alone = (format!("bare inserts by {group}, equal table"), one);
    let together = (format!("bare inserts by {group}, 16 connections"), many);
    Ok(vec![
        figure(None, Bar::PerSecond(10_000.0)),
        figure(Some(alone), Bar::TimesReference(0.6)),
        figure(Some(together), Bar::Inform),
    ])
}

/// How many transactions stored the events after this one.
fn transactions(database: &FreshDatabase, after: u64) -> Result<u64> {
    let sql = "select count(distinct xmin::text) from ledger.events where seq >";
    let count = database.sql(&format!("{sql} {after}"))?;
    count
        .trim()
        .parse()
        .with_context(|| format!("`{count}` is no count"))
}

fn check_gaps(database: &FreshDatabase) -> Result<()> {
    let missing = database.sql("select max(seq) - count(*) from ledger.events")?;
    ensure!(missing.trim() == "0", "there are {} gaps", missing.trim());
    Ok(())
}

/// Connections that insert rows like a ledger's.
struct Crowd {
    connections: Vec<std::sync::Mutex<Bare>>,
}

impl Crowd {
    fn new(database: &FreshDatabase) -> Result<Self> {
        let connect = |writer: u64| Bare::connect(database.url(), writer).map(Into::into);
        let connections = (0..WRITERS).map(connect).collect::<Result<_>>()?;
        Ok(Self { connections })
    }

    /// Inserts batches of this size over this many of the connections.
    fn run(&mut self, writers: u64, batch: usize) -> Result<Done> {
        crowd(writers, |writer| {
            let connection = self.connections.get(usize::try_from(writer)?);
            let bare = connection.context("there is one for each writer")?;
            let mut bare = bare.lock().ok().context("a writer panicked")?;
            let (start, first) = (Instant::now(), bare.next);
            while start.elapsed() < ROUND {
                bare.insert(batch)?;
            }
            Ok(u64::try_from(bare.next - first)?)
        })
    }
}

/// One connection that inserts rows like a ledger's.
struct Bare {
    client: Client,
    statement: Statement,
    runtime: Runtime,
    next: i64,
}

impl Bare {
    fn connect(url: &str, writer: u64) -> Result<Self> {
        let (runtime, client) = connect(url)?;
        let statement = runtime.block_on(client.prepare(
            "INSERT INTO bare SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], \
             $4::text[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[], $9::text[], \
             $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], \
             $16::text[], $17::text[], $18::bigint[], $19::bigint[], $20::text[], $21::bytea[], \
             $22::bytea[])",
        ))?;
        Ok(Self {
            client,
            statement,
            runtime,
            next: i64::try_from(writer * 1_000_000_000 + 1)?,
        })
    }

    fn insert(&mut self, batch: usize) -> Result<()> {
        let seqs: Vec<i64> = (self.next..).take(batch).collect();
        let numbers = seqs.iter().map(|seq| seq.unsigned_abs());
        let payloads: Vec<String> = numbers.clone().map(|number| KIND.payload(number)).collect();
        let aggregates: Vec<String> = numbers.map(|number| format!("a{}", number % 100)).collect();
        let (ones, moments) = (vec![1_i64; batch], vec![1_700_000_000_000_000_i64; batch]);
        let text = |value| vec![value; batch];
        let (platform, app, updated) = (text("platform"), text("app"), text("app.updated"));
        let (system, bench) = (text("system"), text("bench"));
        let request = text("req_01ARZ3NDEKTSV4RRFFQ69G5FAV");
        let (none, no_number) = (vec![None::<&str>; batch], vec![None::<i64>; batch]);
        let hashes = vec![[7u8; 32].as_slice(); batch];
        let params: [&(dyn ToSql + Sync); 22] = [
            &seqs,
            &platform,
            &app,
            &aggregates,
            &seqs,
            &updated,
            &ones,
            &moments,
            &system,
            &bench,
            &none,
            &none,
            &none,
            &none,
            &request,
            &none,
            &none,
            &no_number,
            &no_number,
            &payloads,
            &hashes,
            &hashes,
        ];
        self.runtime
            .block_on(self.client.execute(&self.statement, &params))?;
        self.next += i64::try_from(batch)?;
        Ok(())
    }
}

/// Reads every column of every event and hashes it; returns how many.
pub(super) fn read_and_hash(url: &str) -> Result<u64> {
    let (runtime, client) = connect(url)?;
    runtime.block_on(async {
        let sql = "SELECT * FROM ledger.events ORDER BY seq";
        let mut rows = pin!(client.query_raw(sql, std::iter::empty::<i64>()).await?);
        let mut events = 0;
        let mut digest = Sha256::digest(b"");
        while let Some(row) = rows.try_next().await? {
            let mut hash = Sha256::new();
            for column in 0..row.len() {
                if let Some(Raw(bytes)) = row.try_get(column)? {
                    hash.update(bytes);
                }
            }
            digest = hash.finalize();
            events += 1;
        }
        std::hint::black_box(digest);
        Ok(events)
    })
}

fn connect(url: &str) -> Result<(Runtime, Client)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
    // Its end is seen by whoever uses the client.
    runtime.spawn(async { drop(connection.await) });
    Ok((runtime, client))
}

/// The bytes of a column of any type, as the server sent them.
struct Raw<'r>(&'r [u8]);

impl<'r> FromSql<'r> for Raw<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
