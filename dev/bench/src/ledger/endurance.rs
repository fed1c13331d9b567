//! A minute of as much as goes (E5): nothing is lost, doubled or out of order.
//!
//! Sixty-four appenders with payloads of a KiB, one command in twenty made to
//! fail its version check. On PostgreSQL also in two processes, one of which
//! is killed halfway. Afterwards the chain is verified, which takes in every
//! position and every aggregate's versions, and every command that was
//! acknowledged must be there once.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fluffy_base::id::RequestId;
use fluffy_ledger::{
    AppendError, Batch, Durability, Ledger, LedgerOptions, PostgresAddress, VerifyOptions,
};
use fluffy_test_kit::{campaign, wait_for};
use tokio::runtime::Builder;

use super::load::Kind;
use super::server::Server;
use super::sqlite;
use crate::figure::{Bar, Figure, Samples, Show};

/// The argument that makes this program an appender.
pub(crate) const APPENDER: &str = "--appender";

const APPENDERS: u64 = 64;
/// One command in so many expects a version that its aggregate does not have.
const REFUSED: u64 = 20;
const RATE: f64 = 10_000.0;
const KIND: Kind = Kind {
    durability: Durability::Security,
    payload: 1_024,
};

/// Both engines in one process, and PostgreSQL in two.
pub(super) fn run(server: &Server) -> Result<Vec<Figure>> {
    let time = Duration::from_secs(campaign(6, 60));
    let directory = tempfile::tempdir()?;
    let acks = directory.path().join("acks");
    let mut figures = Vec::new();
    let ledger = sqlite::open(directory.path())?;
    figures.push(alone("SQLite", &ledger, time, &acks)?);
    let place = server.open()?;
    figures.push(alone("PostgreSQL", &place.ledger, time, &acks)?);
    let place = server.open()?;
    let url = place.database.url();
    figures.push(together(&place.ledger, url, time, directory.path())?);
    Ok(figures)
}

fn figure(what: String, seconds: f64, events: u64) -> Result<Figure> {
    let events = f64::from(u32::try_from(events)?);
    Ok(Figure {
        what,
        ours: Samples::new(vec![seconds / events], Show::Rate),
        reference: None,
        bar: Bar::PerSecond(RATE),
    })
}

fn alone(engine: &str, ledger: &Ledger, time: Duration, acks: &Path) -> Result<Figure> {
    let started = Instant::now();
    append(ledger, APPENDERS, time, acks)?;
    let seconds = started.elapsed().as_secs_f64();
    let events = judge(ledger, &[acks])?;
    ledger.close()?;
    let what = format!("append, {engine}, {APPENDERS} appenders, 1 KiB (E5)");
    figure(what, seconds, events)
}

/// Two processes, of which one is killed halfway; the rate is that of both.
fn together(ledger: &Ledger, url: &str, time: Duration, folder: &Path) -> Result<Figure> {
    let (stays, goes) = (folder.join("stays"), folder.join("goes"));
    let seconds = time.as_secs().to_string();
    let spawn = |acks: &Path| -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([APPENDER, url, &seconds]).arg(acks);
        Ok(command.stdin(Stdio::null()).spawn()?)
    };
    let mut staying = spawn(&stays)?;
    let mut going = spawn(&goes)?;
    let begun = |acks: &Path| fs::metadata(acks).is_ok_and(|file| file.len() > 0);
    let both = wait_for("both appenders", Duration::from_secs(60), || {
        (begun(&stays) && begun(&goes)).then_some(())
    });
    let (started, first) = (Instant::now(), ledger.head()?.seq);
    std::thread::sleep(time / 2);
    let (halfway, last) = (started.elapsed().as_secs_f64(), ledger.head()?.seq);
    going.kill()?;
    going.wait()?;
    let ended = staying.wait()?;
    both?;
    ensure!(ended.success(), "an appender ended with {ended}");
    judge(ledger, &[&stays, &goes])?;
    ledger.close()?;
    let what = "append, PostgreSQL, 2 processes, one killed later (E5)";
    figure(what.to_owned(), halfway, last - first)
}

/// What this program does as an appender.
pub(crate) fn appender(arguments: &[String]) -> Result<()> {
    let [url, seconds, acks] = arguments else {
        bail!("an appender needs an address, seconds and a file");
    };
    let address: PostgresAddress = url.parse()?;
    let ledger = Ledger::open_postgres(&address, LedgerOptions::default())?;
    let time = Duration::from_secs(seconds.parse()?);
    append(&ledger, APPENDERS / 2, time, Path::new(acks))?;
    ledger.close()?;
    Ok(())
}

/// Appends from this many tasks, and notes what was acknowledged as it is.
fn append(ledger: &Ledger, appenders: u64, time: Duration, acks: &Path) -> Result<()> {
    let runtime = Builder::new_current_thread().build()?;
    let deadline = Instant::now() + time;
    let acks = File::create(acks)?;
    let tasks: Vec<_> = (0..appenders)
        .map(|appender| {
            let (ledger, acks) = (ledger.clone(), acks.try_clone());
            runtime.spawn(async move {
                let mut acks = acks?;
                let mut number = appender * 1_000_000;
                while Instant::now() < deadline {
                    number += 1;
                    if let Some(id) = command(&ledger, number).await? {
                        // One call each, so that what is there is whole.
                        acks.write_all(format!("{id}\n").as_bytes())?;
                    }
                }
                anyhow::Ok(())
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

/// One command; its request, unless it was one that had to be refused.
async fn command(ledger: &Ledger, number: u64) -> Result<Option<String>> {
    let id = RequestId::generate().to_string();
    let draft = KIND.draft(number).request(id.clone());
    let (domain, aggregate) = draft.aggregate();
    let aggregate = aggregate.clone();
    let batch = Batch::new(vec![draft]);
    if number.is_multiple_of(REFUSED) {
        let batch = batch.expecting(domain, aggregate, u64::from(u32::MAX));
        return match ledger.append(batch).await {
            Err(AppendError::Conflict { .. }) => Ok(None),
            other => bail!("a command with a wrong version: {other:?}"),
        };
    }
    ledger.append(batch).await?;
    Ok(Some(id))
}

/// Checks that all is there, once; how many events there are.
fn judge(ledger: &Ledger, acks: &[&Path]) -> Result<u64> {
    let verified = ledger.verify(&VerifyOptions::default())?;
    ensure!(verified.is_sound(), "{:?}", verified.verdict);
    let mut times: HashMap<String, u32> = HashMap::new();
    let mut next = 1;
    loop {
        let events = ledger.read(next, 1_000)?;
        let Some(last) = events.last() else { break };
        next = last.seq + 1;
        for event in events {
            *times.entry(event.request_id).or_default() += 1;
        }
    }
    ensure!(
        next == verified.last_seq + 1,
        "the last events can't be read"
    );
    for acks in acks {
        let acks = fs::read_to_string(acks).context("no command was acknowledged")?;
        // What a killed process was writing has no end of line.
        let whole = acks.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for id in whole.lines() {
            let found = times.get(id).copied().unwrap_or(0);
            ensure!(
                found == 1,
                "`{id}` was acknowledged and is there {found} times"
            );
        }
    }
    Ok(verified.events)
}
