//! Partitions of the events: equal ranges of `seq`, made when needed.
//!
//! Dropping one is how old events go, so pruning costs the same however many
//! they are. Never drops an event that the anchor does not cover.

use super::failure::Failure;
use super::integer;
use super::schema::bad_row;
use super::session::{Session, wait};
use crate::engine::Anchor;

/// Only one process prunes at a time.
const PRUNE_LOCK: i64 = 0x666c_7566_6679_0002;

/// Makes sure that the events `first..=last` have a place.
///
/// Runs inside the append, under the head lock. Attaching a table instead of
/// creating it in place waits for no reader, not even a long backup. Returns
/// the last position that has a place.
pub(super) fn ensure(session: &Session, span: u64, first: u64, last: u64) -> Result<u64, Failure> {
    let (from, to) = (index_of(first, span), index_of(last, span));
    for index in from..=to {
        let sql = format!("SELECT to_regclass('ledger.events_{index}') IS NOT NULL");
        let row = session.wait(session.client().query_one(sql.as_str(), &[]))??;
        if !row.try_get::<_, bool>(0)? {
            create(session, span, index)?;
        }
    }
    Ok((to + 1) * span)
}

fn create(session: &Session, span: u64, index: u64) -> Result<(), Failure> {
    let (start, end) = (index * span + 1, (index + 1) * span + 1);
    session.batch(&format!(
        "CREATE TABLE events_{index} (LIKE events INCLUDING CONSTRAINTS INCLUDING STORAGE);
         ALTER TABLE events ATTACH PARTITION events_{index} FOR VALUES FROM ({start}) TO ({end});
         CREATE TRIGGER events_are_never_emptied BEFORE TRUNCATE ON events_{index}
             FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
         REVOKE UPDATE, TRUNCATE ON events_{index} FROM CURRENT_USER;"
    ))
}

fn index_of(seq: u64, span: u64) -> u64 {
    seq.saturating_sub(1) / span
}

/// Moves the anchor and drops what lies before it, in one transaction.
pub(super) fn prune(session: &Session, span: u64, anchor: &Anchor) -> Result<(), Failure> {
    session.batch("BEGIN")?;
    match prune_inside(session, span, anchor) {
        Ok(()) => session.batch("COMMIT"),
        Err(failure) => {
            // The first failure is the one to tell; the session ends anyway.
            drop(session.batch("ROLLBACK"));
            Err(failure)
        }
    }
}

fn prune_inside(session: &Session, span: u64, anchor: &Anchor) -> Result<(), Failure> {
    session.batch(&format!("SELECT pg_advisory_xact_lock({PRUNE_LOCK})"))?;
    // The trigger allows deletion up to the anchor, so that comes first.
    if !move_anchor(session, anchor)? {
        return Ok(());
    }
    let kept = anchor.head.seq / span;
    let mut gone = Vec::new();
    for index in existing(session)? {
        if index < kept {
            gone.push(index);
        } else if index == kept {
            let sql = format!("DELETE FROM events_{index} WHERE seq <= $1");
            let seq = integer(anchor.head.seq);
            wait(session.client().execute(sql.as_str(), &[&seq]))??;
        }
    }
    // Last, because detaching keeps everyone out until the commit.
    for index in gone {
        session.batch(&format!(
            "ALTER TABLE events DETACH PARTITION events_{index}; DROP TABLE events_{index};"
        ))?;
    }
    Ok(())
}

/// False if the anchor is already there or further on.
fn move_anchor(session: &Session, anchor: &Anchor) -> Result<bool, Failure> {
    let head = &anchor.head;
    let moved = wait(session.client().execute(
        "INSERT INTO ledger_anchor (id, seq, hash, epoch, frontier, note) \
         VALUES (1, $1, $2, $3, $4, $5) \
         ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, \
         epoch = excluded.epoch, frontier = excluded.frontier, note = excluded.note \
         WHERE ledger_anchor.seq < excluded.seq",
        &[
            &integer(head.seq),
            &head.hash.as_bytes().as_slice(),
            &integer(head.epoch),
            &head.frontier.to_bytes(),
            &anchor.note,
        ],
    ))??;
    Ok(moved == 1)
}

/// The numbers of the partitions that exist, in order.
fn existing(session: &Session) -> Result<Vec<u64>, Failure> {
    let sql = "SELECT relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid \
        WHERE inhparent = 'ledger.events'::regclass";
    let mut indexes = Vec::new();
    for row in wait(session.client().query(sql, &[]))?? {
        let name: &str = row.try_get(0)?;
        let index = name.strip_prefix("events_").and_then(|n| n.parse().ok());
        indexes.push(index.ok_or_else(|| bad_row("events"))?);
    }
    indexes.sort_unstable();
    Ok(indexes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_starts_after_a_multiple_of_its_span() {
        let places: Vec<_> = [1, 1000, 1001, 2000, 2001]
            .map(|seq| index_of(seq, 1000))
            .into();
        assert_eq!(places, [0, 0, 1, 1, 2]);
    }
}
