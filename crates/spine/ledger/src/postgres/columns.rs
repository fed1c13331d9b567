//! Events column by column, as one statement takes many of them.
//!
//! One array per column keeps the statement the same for every size of group,
//! so that it is planned once. The order is that of `row::COLUMNS`.

use tokio_postgres::types::ToSql;

use super::integer;
use crate::event::Event;
use crate::row::{COLUMNS, RowRef};

/// `INSERT` of many rows, with one array per column as its parameters, for
/// each row of `condition`.
pub(super) fn insert_if(condition: &str) -> String {
    let arrays: Vec<String> = COLUMNS
        .iter()
        .enumerate()
        .map(|(index, column)| format!("${}::{}[]", index + 1, type_of(column)))
        .collect();
    let columns = COLUMNS.join(", ");
    let arrays = arrays.join(", ");
    format!("INSERT INTO events ({columns}) SELECT new.* FROM {condition}, unnest({arrays}) AS new")
}

fn type_of(column: &str) -> &'static str {
    match column {
        "seq" | "aggregate_version" | "event_version" | "occurred_at" | "causation_seq"
        | "decision_seq" => "bigint",
        "prev_hash" | "hash" => "bytea",
        _ => "text",
    }
}

/// The columns of many rows.
#[derive(Default)]
pub(super) struct Columns<'e> {
    seq: Vec<i64>,
    domain: Vec<&'e str>,
    aggregate_type: Vec<&'e str>,
    aggregate_id: Vec<&'e str>,
    aggregate_version: Vec<i64>,
    event_type: Vec<&'e str>,
    event_version: Vec<i64>,
    occurred_at: Vec<i64>,
    actor_type: Vec<&'e str>,
    actor_id: Vec<&'e str>,
    actor_on_behalf_of: Vec<Option<&'e str>>,
    org_id: Vec<Option<&'e str>>,
    app_id: Vec<Option<&'e str>>,
    env_id: Vec<Option<&'e str>>,
    request_id: Vec<&'e str>,
    idempotency_key: Vec<Option<&'e str>>,
    correlation_id: Vec<Option<&'e str>>,
    causation_seq: Vec<Option<i64>>,
    decision_seq: Vec<Option<i64>>,
    payload: Vec<&'e str>,
    prev_hash: Vec<&'e [u8]>,
    hash: Vec<&'e [u8]>,
}

impl<'e> Columns<'e> {
    pub(super) fn push(&mut self, event: &'e Event) {
        let row = RowRef::of(event);
        self.seq.push(integer(row.seq));
        self.domain.push(row.domain);
        self.aggregate_type.push(row.aggregate_type);
        self.aggregate_id.push(row.aggregate_id);
        self.aggregate_version.push(integer(row.aggregate_version));
        self.event_type.push(row.event_type);
        self.event_version.push(i64::from(row.event_version));
        self.occurred_at.push(row.occurred_at.as_micros());
        self.actor_type.push(row.actor_type);
        self.actor_id.push(row.actor_id);
        self.actor_on_behalf_of.push(row.actor_on_behalf_of);
        self.org_id.push(row.org_id);
        self.app_id.push(row.app_id);
        self.env_id.push(row.env_id);
        self.request_id.push(row.request_id);
        self.idempotency_key.push(row.idempotency_key);
        self.correlation_id.push(row.correlation_id);
        self.causation_seq.push(row.causation_seq.map(integer));
        self.decision_seq.push(row.decision_seq.map(integer));
        self.payload.push(row.payload);
        self.prev_hash.push(event.prev_hash.as_bytes());
        self.hash.push(event.hash.as_bytes());
    }

    /// The parameters of [`insert_if`], in order.
    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); COLUMNS.len()] {
        [
            &self.seq,
            &self.domain,
            &self.aggregate_type,
            &self.aggregate_id,
            &self.aggregate_version,
            &self.event_type,
            &self.event_version,
            &self.occurred_at,
            &self.actor_type,
            &self.actor_id,
            &self.actor_on_behalf_of,
            &self.org_id,
            &self.app_id,
            &self.env_id,
            &self.request_id,
            &self.idempotency_key,
            &self.correlation_id,
            &self.causation_seq,
            &self.decision_seq,
            &self.payload,
            &self.prev_hash,
            &self.hash,
        ]
    }
}
