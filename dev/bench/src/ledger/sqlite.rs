//! Appending to SQLite: buffered by a few threads, durable by many.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use fluffy_ledger::{Durability, Ledger, LedgerOptions};

use super::bare::{Bare, Indexes, Unsaved, transactions};
use super::load::{Done, Kind, crowd, signed, storm};
use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: u32 = 7;
const ROUND: Duration = Duration::from_secs(1);

/// What the agent's own events are like.
const BUFFERED: Kind = Kind {
    durability: Durability::Operational,
    payload: 200,
};
const DURABLE: Kind = Kind {
    durability: Durability::Security,
    payload: 200,
};

/// Appending in both classes, and the wait of one buffered append.
pub(super) fn run() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for threads in [1, 4] {
        let case = Case {
            what: format!("append, SQLite, operational, {threads} threads"),
            kind: BUFFERED,
            bar: Bar::PerSecond(100_000.0),
            checkpoints: Checkpoints::Signed,
            indexes: Indexes::Same,
        };
        figures.push(beside_bare(case, |ledger| record(ledger, threads))?);
    }
    let unsigned = Case {
        what: "append, SQLite, operational, no checkpoints".to_owned(),
        kind: BUFFERED,
        bar: Bar::Inform,
        checkpoints: Checkpoints::None,
        indexes: Indexes::Same,
    };
    figures.push(beside_bare(unsigned, |ledger| record(ledger, 1))?);
    figures.push(one_record()?);
    // The bar is beside an equal table; rows alone are shown for comparison.
    for (indexes, bar) in [
        (Indexes::Same, Bar::TimesReference(0.7)),
        (Indexes::None, Bar::Inform),
    ] {
        let durable = Case {
            what: "append, SQLite, security, 16 writers".to_owned(),
            kind: DURABLE,
            bar,
            checkpoints: Checkpoints::Signed,
            indexes,
        };
        let writers = |ledger: &Ledger| storm(ledger, DURABLE, 16, ROUND);
        figures.push(beside_bare(durable, writers)?);
    }
    Ok(figures)
}

/// One line of the table that has bare SQLite beside it.
struct Case {
    what: String,
    kind: Kind,
    bar: Bar,
    checkpoints: Checkpoints,
    indexes: Indexes,
}

/// Whether the ledger signs checkpoints.
enum Checkpoints {
    /// As the product does.
    Signed,
    /// Not at all, to see what they cost.
    None,
}

/// A load on the ledger and bare inserts in equal batches, in turns.
fn beside_bare(case: Case, load: impl Fn(&Ledger) -> Result<Done>) -> Result<Figure> {
    let Case {
        what,
        kind,
        bar,
        checkpoints,
        indexes,
    } = case;
    let directory = tempfile::tempdir()?;
    let ledger = match checkpoints {
        Checkpoints::Signed => open(directory.path())?,
        Checkpoints::None => {
            Ledger::open(&directory.path().join("ledger"), LedgerOptions::default())?
        }
    };
    let mut bare = Bare::beside(directory.path(), kind, indexes)?;
    let (mut ours, mut reference, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    let turn = || -> Result<(Done, u64)> {
        let before = transactions(directory.path())?;
        let done = load(&ledger)?;
        Ok((done, transactions(directory.path())? - before))
    };
    let mut warm = Unsaved::default();
    while !warm.is_due() {
        let (done, commits) = turn()?;
        warm.commits += commits;
        warm.events += done.events;
    }
    for round in 0..ROUNDS {
        let (done, commits) = turn()?;
        let group = done.group(commits);
        if round == 0 {
            bare.warm_up(group)?;
        }
        ours.push(done.seconds_per_event());
        reference.push(bare.run(group, ROUND)?.seconds_per_event());
        groups.push(group);
    }
    ledger.close()?;
    groups.sort_unstable();
    let group = groups.get(groups.len() / 2).copied().unwrap_or_default();
    let reference = Samples::new(reference, Show::Rate);
    Ok(Figure {
        what,
        ours: Samples::new(ours, Show::Rate),
        reference: Some((
            match indexes {
                Indexes::Same => format!("bare SQLite by {group}, equal table"),
                Indexes::None => format!("bare SQLite by {group}, without its index"),
            },
            reference,
        )),
        bar,
    })
}

/// Records from several threads until all of it is on disk.
fn record(ledger: &Ledger, threads: u64) -> Result<Done> {
    const EVENTS: u64 = 100_000;
    let share = EVENTS / threads;
    let start = Instant::now();
    let recorded = crowd(threads, |thread| {
        for number in thread * share..(thread + 1) * share {
            ledger.record(BUFFERED.draft(number))?;
        }
        Ok(share)
    })?;
    ledger.flush_blocking()?;
    Ok(Done {
        time: start.elapsed(),
        ..recorded
    })
}

/// How long one buffered append keeps its caller, at ten thousand a second.
fn one_record() -> Result<Figure> {
    const BURSTS: u64 = 5_000;
    const BURST: u64 = 10;
    let directory = tempfile::tempdir()?;
    let ledger = open(directory.path())?;
    let mut times = Vec::new();
    for burst in 0..BURSTS {
        for number in burst * BURST..(burst + 1) * BURST {
            let draft = BUFFERED.draft(number);
            let start = Instant::now();
            let ticket = ledger.record(draft)?;
            times.push(start.elapsed().as_secs_f64());
            drop(ticket);
        }
        thread::sleep(Duration::from_millis(1));
    }
    ledger.close()?;
    Ok(Figure {
        what: "one buffered append, SQLite".to_owned(),
        ours: Samples::new(times, Show::Time),
        reference: None,
        bar: Bar::P99Under(50e-6),
    })
}

/// The ledger in this directory, with its key and checkpoints beside it.
pub(super) fn open(directory: &Path) -> Result<Ledger> {
    Ok(Ledger::open(&directory.join("ledger"), signed(directory))?)
}
