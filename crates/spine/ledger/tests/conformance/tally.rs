//! A projection that counts, so that a lost or repeated event shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use fluffy_ledger::{
    ApplyError, Cell, Event, Ledger, Projection, Projector, Schema, Upcasters, ViewTx,
};

pub(crate) const NAME: &str = "tally";

const COUNT: &str = "INSERT INTO tally (kind, id, events, last_seq, total) \
    VALUES ($1, $2, 1, $3, $4) ON CONFLICT (kind, id) DO UPDATE SET \
    events = tally.events + 1, last_seq = excluded.last_seq, \
    total = tally.total + excluded.total";

/// Counts events and adds up their numbers, by aggregate.
#[derive(Debug)]
pub(crate) struct Tally {
    schema: Schema,
    /// Types it knows besides `tool.execute`.
    known: &'static [&'static str],
    /// The schema version of payloads that it knows.
    payloads: u32,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self::version(1)
    }

    pub(crate) fn version(version: u32) -> Self {
        let schema = Schema {
            version,
            sql: &[
                "CREATE TABLE tally (kind TEXT NOT NULL, id TEXT NOT NULL, \
                 events BIGINT NOT NULL, last_seq BIGINT NOT NULL, total BIGINT NOT NULL, \
                 PRIMARY KEY (kind, id))",
                "CREATE INDEX tally_last ON tally (last_seq)",
            ],
            tables: &["tally"],
        };
        Self {
            schema,
            known: &[],
            payloads: 1,
        }
    }

    pub(crate) fn knowing(known: &'static [&'static str]) -> Self {
        Self {
            known,
            ..Self::new()
        }
    }

    pub(crate) fn payloads(version: u32) -> Self {
        Self {
            payloads: version,
            ..Self::new()
        }
    }
}

impl Projection for Tally {
    fn name(&self) -> &str {
        NAME
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn apply(&self, event: &Event, tx: &mut ViewTx) -> Result<(), ApplyError> {
        let known =
            event.event_type == "tool.execute" || self.known.contains(&event.event_type.as_str());
        // Queued first, so that a refused event would leave a trace.
        let payload = event
            .payload
            .value()
            .map_err(|_| ApplyError::payload(event))?;
        let number = payload["number"].as_i64();
        tx.execute(
            COUNT,
            [
                event.aggregate.kind.as_str().into(),
                event.aggregate.id.as_str().into(),
                event.seq.into(),
                number.unwrap_or(0).into(),
            ],
        );
        assert_ne!(
            event.event_type, "test.panic",
            "this projection panics here"
        );
        if !known || event.event_version != self.payloads {
            return Err(ApplyError::unknown(event));
        }
        number.map(|_| ()).ok_or_else(|| ApplyError::payload(event))
    }
}

/// Runs the projection on its own.
pub(crate) fn start(ledger: &Ledger, tally: Tally) -> Projector {
    Projector::start(ledger, vec![Arc::new(tally)], Upcasters::default()).unwrap()
}

/// How many events the view has counted, by aggregate.
pub(crate) fn counts(projector: &Projector) -> BTreeMap<String, i64> {
    let sql = "SELECT id, events FROM tally ORDER BY id";
    let rows = projector.query(NAME, sql, &[]).unwrap();
    let pair = |row: &Vec<Cell>| {
        let (id, events) = (row[0].as_text().unwrap(), row[1].as_integer().unwrap());
        (id.to_owned(), events)
    };
    rows.rows.iter().map(pair).collect()
}

/// How many events the view has counted.
pub(crate) fn counted(projector: &Projector) -> i64 {
    counts(projector).values().sum()
}
