//! The store beside the ledger as tables of PostgreSQL.
//!
//! Every call is one statement, so it happens whole or not at all. Two pools,
//! so that a lease is renewed however busy the rest is. No wait is without end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_ledger::{PostgresAddress, Way};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::{AsideError, Claim, Draw, Entry, TURN, integer, millis};

/// How many sessions answer ordinary calls.
const SESSIONS: usize = 16;
/// How many sessions are there for leases alone.
const LEASES: usize = 2;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(15);

/// Settings of every session.
const SET_UP: &str = "SET client_min_messages = warning; SET lock_timeout = '5s'; \
    SET statement_timeout = '12s'; SET jit = off";

/// What a transaction begins with whose session a pooler gives to others
/// afterwards: what those prepared there bears the names that ours will.
const BEGIN: &str = "BEGIN; DEALLOCATE ALL; SET LOCAL client_min_messages = warning; \
    SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '12s'; SET LOCAL jit = off";

/// Locks out others that make the same tables. The number is arbitrary.
const TABLES: &str = "
BEGIN;
SELECT pg_advisory_xact_lock(7213554190235577);
CREATE SCHEMA IF NOT EXISTS fluffy_aside;
CREATE TABLE IF NOT EXISTS fluffy_aside.entries (
    kind text NOT NULL,
    key text COLLATE \"C\" NOT NULL,
    value bytea NOT NULL,
    written bigint NOT NULL,
    expires bigint,
    PRIMARY KEY (kind, key)
);
CREATE INDEX IF NOT EXISTS entries_expires
    ON fluffy_aside.entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS fluffy_aside.leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    expires bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS fluffy_aside.buckets (
    name text PRIMARY KEY,
    \"window\" bigint NOT NULL,
    used bigint NOT NULL,
    got bigint NOT NULL,
    expires bigint NOT NULL
);
CREATE OR REPLACE FUNCTION fluffy_aside.now_ms() RETURNS bigint VOLATILE LANGUAGE sql
    AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';
CREATE TABLE IF NOT EXISTS fluffy_aside.places (
    name text NOT NULL,
    holder text NOT NULL,
    count bigint NOT NULL,
    expires bigint NOT NULL,
    PRIMARY KEY (name, holder)
);
CREATE INDEX IF NOT EXISTS places_holder ON fluffy_aside.places (holder);
-- One claims at a time, and every statement of it sees what the one before
-- left: that is what this language is for.
CREATE OR REPLACE FUNCTION fluffy_aside.claim(
    of_name text, of_holder text, wanted bigint, most bigint, life bigint
) RETURNS bigint VOLATILE LANGUAGE plpgsql AS $body$
DECLARE
    others bigint;
    got bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7213554, hashtext(of_name));
    SELECT coalesce(sum(p.count), 0) INTO others FROM fluffy_aside.places AS p
        WHERE p.name = of_name AND p.holder <> of_holder AND p.expires > fluffy_aside.now_ms();
    got := greatest(least(wanted, most - others), 0);
    IF got = 0 THEN
        DELETE FROM fluffy_aside.places AS p WHERE p.name = of_name AND p.holder = of_holder;
    ELSE
        INSERT INTO fluffy_aside.places AS p (name, holder, count, expires)
            VALUES (of_name, of_holder, got, fluffy_aside.now_ms() + life)
            ON CONFLICT (name, holder) DO UPDATE
            SET count = excluded.count, expires = excluded.expires;
    END IF;
    RETURN got;
END
$body$;
COMMIT;
";

const PUT: &str = "INSERT INTO fluffy_aside.entries (kind, key, value, written, expires) \
    VALUES ($1, $2, $3, fluffy_aside.now_ms(), fluffy_aside.now_ms() + $4) \
    ON CONFLICT (kind, key) DO UPDATE \
    SET value = excluded.value, written = excluded.written, expires = excluded.expires";
const PUT_NEW: &str = "INSERT INTO fluffy_aside.entries AS e (kind, key, value, written, expires) \
    VALUES ($1, $2, $3, fluffy_aside.now_ms(), fluffy_aside.now_ms() + $4) \
    ON CONFLICT (kind, key) DO UPDATE \
    SET value = excluded.value, written = excluded.written, expires = excluded.expires \
    WHERE e.expires <= fluffy_aside.now_ms() RETURNING 1";
const GET: &str = "SELECT key, value, fluffy_aside.now_ms() - written FROM fluffy_aside.entries \
    WHERE kind = $1 AND key = $2 AND (expires IS NULL OR expires > fluffy_aside.now_ms())";
const LIST: &str = "SELECT key, value, fluffy_aside.now_ms() - written FROM fluffy_aside.entries \
    WHERE kind = $1 AND key > $2 AND (expires IS NULL OR expires > fluffy_aside.now_ms()) \
    ORDER BY key LIMIT $3";
const LAST_KEYS: &str = "SELECT key FROM fluffy_aside.entries WHERE kind = $1 \
    AND (expires IS NULL OR expires > fluffy_aside.now_ms()) ORDER BY key DESC LIMIT $2";
const DELETE: &str = "DELETE FROM fluffy_aside.entries WHERE kind = $1 AND key = $2 RETURNING 1";
/// The row is locked when it is updated, so what others drew counts.
const DRAW: &str = "INSERT INTO fluffy_aside.buckets AS b (name, \"window\", used, got, expires) \
    SELECT $1, w, least($2::bigint, $3::bigint), least($2, $3), (w + 1) * $4 \
    FROM (SELECT fluffy_aside.now_ms() / $4::bigint AS w) AS clock \
    ON CONFLICT (name) DO UPDATE SET \
    got = CASE WHEN b.\"window\" = excluded.\"window\" \
        THEN greatest(least($2, $3 - b.used), 0) ELSE excluded.got END, \
    used = CASE WHEN b.\"window\" = excluded.\"window\" \
        THEN b.used + greatest(least($2, $3 - b.used), 0) ELSE excluded.used END, \
    \"window\" = excluded.\"window\", expires = excluded.expires RETURNING got";
const TAKE: &str = "INSERT INTO fluffy_aside.leases AS l (name, holder, expires) \
    VALUES ($1, $2, fluffy_aside.now_ms() + $3) ON CONFLICT (name) DO UPDATE \
    SET holder = excluded.holder, expires = excluded.expires \
    WHERE l.expires <= fluffy_aside.now_ms() OR l.holder = excluded.holder RETURNING 1";
const RENEW: &str = "UPDATE fluffy_aside.leases SET expires = fluffy_aside.now_ms() + $3 \
    WHERE name = $1 AND holder = $2 AND expires > fluffy_aside.now_ms() RETURNING 1";
const GIVE_UP: &str = "DELETE FROM fluffy_aside.leases WHERE name = $1 AND holder = $2";
const CLAIM: &str = "SELECT fluffy_aside.claim($1, $2, $3, $4, $5)";
const KEEP: &str = "UPDATE fluffy_aside.places SET expires = fluffy_aside.now_ms() + $2 \
    WHERE holder = $1 AND expires > fluffy_aside.now_ms() RETURNING name, count";
const SWEEP: &str = "WITH e AS (DELETE FROM fluffy_aside.entries \
    WHERE expires <= fluffy_aside.now_ms() RETURNING 1), \
    b AS (DELETE FROM fluffy_aside.buckets WHERE expires <= fluffy_aside.now_ms() RETURNING 1), \
    p AS (DELETE FROM fluffy_aside.places WHERE expires <= fluffy_aside.now_ms() RETURNING 1) \
    SELECT (SELECT count(*) FROM e) + (SELECT count(*) FROM b) + (SELECT count(*) FROM p)";

type Params<'p> = &'p [&'p (dyn ToSql + Sync)];

#[derive(Debug)]
pub(super) struct Store {
    pool: Pool,
    leases: Pool,
}

/// Whether a call may be sent again when its answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    May,
    MustNot,
}

impl Store {
    pub(super) async fn open(address: &PostgresAddress) -> Result<Self, AsideError> {
        let store = Self {
            pool: Pool::new(address, "fluffy-aside", Way::Transactions, SESSIONS),
            // Whoever has a lease must not wait behind a pooler's queue.
            leases: Pool::new(address, "fluffy-leases", Way::Session, LEASES),
        };
        let session = store.pool.connect().await?;
        let made = timeout(ANSWER, session.client.batch_execute(TABLES)).await;
        made.map_err(|late| AsideError::Unavailable(Arc::new(late)))?
            .map_err(failed)?;
        store.pool.keep(session);
        Ok(store)
    }

    pub(super) async fn put(
        &self,
        kind: &str,
        key: &str,
        value: &[u8],
        life: Option<Duration>,
    ) -> Result<(), AsideError> {
        let params: Params<'_> = &[&kind, &key, &value, &life.map(millis)];
        self.pool.run(PUT, params, Again::May).await.map(drop)
    }

    pub(super) async fn put_new(
        &self,
        kind: &str,
        key: &str,
        value: &[u8],
        life: Option<Duration>,
    ) -> Result<bool, AsideError> {
        let params: Params<'_> = &[&kind, &key, &value, &life.map(millis)];
        let rows = self.pool.run(PUT_NEW, params, Again::MustNot).await?;
        Ok(!rows.is_empty())
    }

    pub(super) async fn get(&self, kind: &str, key: &str) -> Result<Option<Entry>, AsideError> {
        let rows = self.pool.run(GET, &[&kind, &key], Again::May).await?;
        rows.first().map(entry).transpose()
    }

    pub(super) async fn delete(&self, kind: &str, key: &str) -> Result<bool, AsideError> {
        let rows = self.pool.run(DELETE, &[&kind, &key], Again::May).await?;
        Ok(!rows.is_empty())
    }

    pub(super) async fn list(
        &self,
        kind: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Entry>, AsideError> {
        let params: Params<'_> = &[&kind, &after, &i64::from(limit)];
        let rows = self.pool.run(LIST, params, Again::May).await?;
        rows.iter().map(entry).collect()
    }

    pub(super) async fn last_keys(
        &self,
        kind: &str,
        limit: u32,
    ) -> Result<Vec<String>, AsideError> {
        let params: Params<'_> = &[&kind, &i64::from(limit)];
        let rows = self.pool.run(LAST_KEYS, params, Again::May).await?;
        let keys = rows.iter().map(|row| row.try_get(0).map_err(failed));
        keys.collect()
    }

    pub(super) async fn draw(&self, bucket: &str, draw: Draw) -> Result<u64, AsideError> {
        let (wanted, limit) = (integer(draw.wanted), integer(draw.limit));
        let window = millis(draw.window).max(1);
        let params: Params<'_> = &[&bucket, &wanted, &limit, &window];
        let rows = self.pool.run(DRAW, params, Again::MustNot).await?;
        number(&rows)
    }

    pub(super) async fn claim(
        &self,
        name: &str,
        holder: &str,
        claim: Claim,
    ) -> Result<u64, AsideError> {
        let (wanted, limit) = (integer(claim.wanted), integer(claim.limit));
        let life = millis(claim.life);
        let params: Params<'_> = &[&name, &holder, &wanted, &limit, &life];
        // Saying twice how many there are changes nothing.
        number(&self.pool.run(CLAIM, params, Again::May).await?)
    }

    pub(super) async fn keep(
        &self,
        holder: &str,
        life: Duration,
    ) -> Result<BTreeMap<String, u64>, AsideError> {
        let params: Params<'_> = &[&holder, &millis(life)];
        let rows = self.leases.run(KEEP, params, Again::May).await?;
        let kept = rows.iter().map(|row| {
            let name: String = row.try_get(0).map_err(failed)?;
            let count: i64 = row.try_get(1).map_err(failed)?;
            Ok((name, u64::try_from(count).unwrap_or(0)))
        });
        kept.collect()
    }

    pub(super) async fn take(
        &self,
        name: &str,
        holder: &str,
        life: Duration,
    ) -> Result<bool, AsideError> {
        let params: Params<'_> = &[&name, &holder, &millis(life)];
        let rows = self.leases.run(TAKE, params, Again::May).await?;
        Ok(!rows.is_empty())
    }

    pub(super) async fn renew(
        &self,
        name: &str,
        holder: &str,
        life: Duration,
    ) -> Result<bool, AsideError> {
        let params: Params<'_> = &[&name, &holder, &millis(life)];
        let rows = self.leases.run(RENEW, params, Again::May).await?;
        Ok(!rows.is_empty())
    }

    pub(super) async fn give_up(&self, name: &str, holder: &str) -> Result<(), AsideError> {
        let params: Params<'_> = &[&name, &holder];
        self.leases.run(GIVE_UP, params, Again::May).await.map(drop)
    }

    pub(super) async fn sweep(&self) -> Result<u64, AsideError> {
        number(&self.pool.run(SWEEP, &[], Again::May).await?)
    }
}

/// Sessions of which at most so many are open.
#[derive(Debug)]
struct Pool {
    address: PostgresAddress,
    name: &'static str,
    way: Way,
    gate: Semaphore,
    idle: Mutex<Vec<Session>>,
}

/// A connection with the statements it has prepared.
#[derive(Debug)]
struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    /// Whether there is a session of the server for one transaction only.
    pooled: bool,
}

/// The server did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL did not answer in time")]
struct Late;

impl Pool {
    fn new(address: &PostgresAddress, name: &'static str, way: Way, sessions: usize) -> Self {
        Self {
            address: address.clone(),
            name,
            way,
            gate: Semaphore::new(sessions),
            idle: Mutex::default(),
        }
    }

    async fn run(
        &self,
        sql: &'static str,
        params: Params<'_>,
        again: Again,
    ) -> Result<Vec<Row>, AsideError> {
        let turn = timeout(TURN, self.gate.acquire()).await;
        let _turn = turn
            .map_err(|_| AsideError::Busy)?
            .map_err(|_| AsideError::Busy)?;
        let mut tries = if again == Again::May { 2 } else { 1 };
        loop {
            tries -= 1;
            let mut session = match self.idle() {
                Some(session) => session,
                None => self.connect().await?,
            };
            let answer = match timeout(ANSWER, session.query(sql, params)).await {
                Ok(answer) => answer,
                Err(_) => return Err(AsideError::Unavailable(Arc::new(Late))),
            };
            match answer {
                Ok(rows) => {
                    self.keep(session);
                    return Ok(rows);
                }
                Err(error) if session.client.is_closed() && tries > 0 => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "a session broke; trying another"
                    );
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn idle(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|session| !session.client.is_closed());
        idle.pop()
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(session);
    }

    async fn connect(&self) -> Result<Session, AsideError> {
        let pooled = self.way == Way::Transactions && self.address.is_pooled();
        let connecting = async {
            let (client, connection) = self.address.connect(self.name, self.way).await?;
            tokio::spawn(connection);
            if !pooled {
                client.batch_execute(SET_UP).await?;
            }
            Ok::<_, tokio_postgres::Error>(client)
        };
        let client = timeout(TURN, connecting).await;
        let client = client.map_err(|_| AsideError::Unavailable(Arc::new(Late)))?;
        Ok(Session {
            client: client.map_err(|error| AsideError::Unavailable(Arc::new(error)))?,
            statements: HashMap::new(),
            pooled,
        })
    }
}

impl Session {
    async fn query(
        &mut self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.pooled {
            self.client.batch_execute(BEGIN).await?;
            let rows = self.client.query(sql, params).await?;
            self.client.batch_execute("COMMIT").await?;
            return Ok(rows);
        }
        if !self.statements.contains_key(sql) {
            let statement = self.client.prepare(sql).await?;
            self.statements.insert(sql, statement);
        }
        match self.statements.get(sql) {
            Some(statement) => self.client.query(statement, params).await,
            None => self.client.query(sql, params).await,
        }
    }
}

fn entry(row: &Row) -> Result<Entry, AsideError> {
    let age: i64 = row.try_get(2).map_err(failed)?;
    Ok(Entry {
        key: row.try_get(0).map_err(failed)?,
        value: row.try_get(1).map_err(failed)?,
        age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
    })
}

fn number(rows: &[Row]) -> Result<u64, AsideError> {
    let number: Option<i64> = match rows.first() {
        Some(row) => row.try_get(0).map_err(failed)?,
        None => None,
    };
    Ok(number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
}

fn failed(error: tokio_postgres::Error) -> AsideError {
    // The server's word is an answer; anything else is the way to it.
    let passing = |code: &str| code.starts_with("57P") || code.starts_with("08") || code == "53300";
    match error.as_db_error() {
        Some(db) if !passing(db.code().code()) => AsideError::Store(Arc::new(error)),
        _ => AsideError::Unavailable(Arc::new(error)),
    }
}
