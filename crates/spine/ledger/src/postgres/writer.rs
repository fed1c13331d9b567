//! Appending: one transaction per group, numbered under the head row's lock.
//!
//! That lock is taken first and by every process, so numbers have no gap and
//! become visible in order. A process that appends alone numbers by the head
//! it left and stores on condition that it is still there, in one round trip.
//! A commit whose answer was lost is looked up under the same lock before
//! anything is said about it: never stored twice, never acknowledged without
//! being there.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fluffy_base::Digest;
use futures_util::future::{join, join3};
use tokio::sync::watch;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::columns::{self, Columns};
use super::failure::Failure;
use super::session::{Link, PATIENCE, Patience, Session, Use};
use super::{integer, partition, schema};
use crate::chain::{AggregateKey, Command, Head, Versions, seal};
use crate::class::Durability;
use crate::error::StoreError;
use crate::event::Event;
use crate::row::COLUMNS;
use crate::tree::Node;

/// How long the fate of a commit is asked for before giving up. A server that
/// recovers from a crash may take its time.
const RESOLVE: Duration = Duration::from_secs(60);

/// How often a group whose commit was lost, but did not happen, is tried again.
const MAX_LOST: u32 = 3;

const LOCK: &str = "SELECT seq, hash, epoch, frontier FROM ledger_head WHERE id = 1 FOR UPDATE";
const VERSIONS: &str = "SELECT COALESCE((SELECT version FROM aggregates a \
    WHERE a.aggregate_id = k.id AND a.aggregate_type = k.kind AND a.domain = k.domain), 0) \
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY \
    AS k (domain, kind, id, place) ORDER BY k.place";
const HASH_AT: &str = "SELECT hash FROM events WHERE seq = $1";

/// Starts a transaction that may be lost with the server.
const BEGIN_UNFLUSHED: &str = "BEGIN; SET LOCAL synchronous_commit = off";

/// The connection that appends, made anew whenever it breaks.
#[derive(Debug)]
pub(crate) struct Writer {
    link: Link,
    session: Option<Box<Armed>>,
    versions: Versions,
    /// The head after our last commit in this session.
    left: Option<Head>,
    company: Company,
    partition_events: u64,
    /// The last position that has a partition, as far as we know.
    partitioned_to: u64,
    /// Something was committed without waiting for the disk.
    unflushed: bool,
    /// Takes the head after each commit, for other processes.
    announce: watch::Sender<u64>,
}

/// A session with the statements of an append.
#[derive(Debug)]
struct Armed {
    session: Session,
    lock: Statement,
    versions: Statement,
    store: Statement,
}

/// One step of the chain, sealed.
struct Step<'s> {
    before: &'s Head,
    after: &'s Head,
    nodes: &'s [Node],
    versions: &'s Versions,
}

/// Whether somebody else appends too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    /// The head was last found where we had left it.
    Alone,
    /// It was not, or we have not looked.
    Others,
}

/// How a group is made one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// It has been begun, and ends with the statement.
    Begun,
    /// The statement is a transaction by itself, durable when answered.
    Statement,
    /// It is begun and ended around the statement, and may be flushed later.
    Around,
}

/// What became of a statement that stores on condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Stored,
    /// Somebody else has moved the head; nothing was stored.
    Moved,
}

/// Why one try to commit did not succeed.
enum Attempt {
    /// Nothing was stored.
    Failed(Failure),
    /// The answer to the commit that ends at this head was lost.
    Open(Head, Failure),
}

/// Why a group was not stored, or perhaps was.
enum Refusal {
    Failed(Failure),
    Open(Failure),
}

impl Refusal {
    /// For the group that ends at this head.
    fn of(self, head: &Head) -> Attempt {
        match self {
            Self::Failed(failure) => Attempt::Failed(failure),
            Self::Open(failure) => Attempt::Open(head.clone(), failure),
        }
    }
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Writer {
    pub(super) fn open(
        link: &Link,
        partition_events: u64,
        announce: watch::Sender<u64>,
    ) -> Result<Self, StoreError> {
        let mut writer = Self {
            link: link.clone(),
            session: None,
            versions: Versions::default(),
            left: None,
            company: Company::Others,
            partition_events,
            partitioned_to: 0,
            unflushed: true,
            announce,
        };
        // Whoever opens a ledger may be inside a runtime, where nothing can be
        // waited for the way the writer's thread does.
        thread::scope(|scope| {
            let connecting = thread::Builder::new()
                .spawn_scoped(scope, || writer.connect(&mut Patience::new(PATIENCE)))
                .map_err(Failure::Driver)?;
            connecting.join().map_err(|_| Failure::Late)?
        })?;
        Ok(writer)
    }

    /// See [`crate::engine::Writer::commit`].
    pub(crate) fn commit(
        &mut self,
        commands: &mut [Command],
        durability: Durability,
    ) -> Result<Head, StoreError> {
        let mut patience = Patience::new(PATIENCE);
        let mut lost = 0;
        loop {
            self.connect(&mut patience)?;
            match self.attempt(commands, durability) {
                Ok(head) => return Ok(self.committed(head, durability)),
                Err(Attempt::Failed(failure)) => {
                    self.disconnect();
                    if !(failure.is_passing() && patience.pause()) {
                        return Err(failure.into());
                    }
                }
                Err(Attempt::Open(head, failure)) => {
                    self.disconnect();
                    let failure = Arc::new(failure);
                    if self.is_stored(&head, &failure)? {
                        return Ok(self.committed(head, durability));
                    }
                    lost += 1;
                    if lost == MAX_LOST {
                        return Err(StoreError::Unavailable(failure));
                    }
                    // It took long to find out; trying again gets full time.
                    patience = Patience::new(PATIENCE);
                }
            }
        }
    }

    /// See [`crate::engine::Writer::sync`].
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        if !self.unflushed {
            return Ok(());
        }
        let mut patience = Patience::new(PATIENCE);
        loop {
            self.connect(&mut patience)?;
            let Some(armed) = &self.session else { continue };
            // A durable commit that wrote something takes all of the log
            // before it to the disk.
            match armed
                .session
                .batch("UPDATE ledger_head SET seq = seq WHERE id = 1")
            {
                Ok(()) => break,
                Err(failure) => {
                    self.disconnect();
                    if !(failure.is_passing() && patience.pause()) {
                        return Err(failure.into());
                    }
                }
            }
        }
        self.unflushed = false;
        Ok(())
    }

    /// See [`crate::engine::Writer::maintain`]; the server does its own.
    pub(crate) fn maintain(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn committed(&mut self, head: Head, durability: Durability) -> Head {
        self.versions.committed(&head);
        self.left = Some(head.clone());
        self.unflushed = durability == Durability::Operational;
        self.announce.send_if_modified(|announced| {
            let newer = head.seq > *announced;
            *announced = head.seq.max(*announced);
            newer
        });
        head
    }

    fn connect(&mut self, patience: &mut Patience) -> Result<(), StoreError> {
        if let Some(armed) = &self.session {
            armed.session.catch_up();
            if !armed.session.is_closed() {
                return Ok(());
            }
            self.disconnect();
        }
        loop {
            let session = patience.retry(|| self.link.connect_here(Use::Write))?;
            match Armed::new(session) {
                Ok(armed) => {
                    self.session = Some(Box::new(armed));
                    return Ok(());
                }
                Err(failure) if failure.is_passing() && patience.pause() => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Ends the session, and with it whatever transaction is open in it.
    fn disconnect(&mut self) {
        self.session = None;
        self.left = None;
        // A partition made by a transaction that failed is not there.
        self.partitioned_to = 0;
    }

    fn attempt(
        &mut self,
        commands: &mut [Command],
        durability: Durability,
    ) -> Result<Head, Attempt> {
        if let Some(head) = self.attempt_unlocked(commands, durability)? {
            return Ok(head);
        }
        let Some(armed) = &self.session else {
            return Err(Failure::Late.into());
        };
        let mut head = armed.begin(durability)?;
        self.company = match self.left.take() {
            Some(left) if left == head => Company::Alone,
            _ => Company::Others,
        };
        self.versions.start(&head);
        armed.look_up(&mut self.versions, commands)?;
        let before = head.clone();
        let nodes = seal(&mut head, &mut self.versions, commands);
        if head.seq == before.seq {
            armed.session.batch("ROLLBACK")?;
            return Ok(head);
        }
        if head.seq > self.partitioned_to {
            let (span, first) = (self.partition_events, before.seq + 1);
            self.partitioned_to = partition::ensure(&armed.session, span, first, head.seq)?;
        }
        let events = commands.iter().flat_map(Command::events);
        let step = Step {
            before: &before,
            after: &head,
            nodes: &nodes,
            versions: &self.versions,
        };
        match armed.store(&step, events, Framing::Begun)? {
            Outcome::Stored => Ok(head),
            Outcome::Moved => Err(schema::bad_row("ledger_head").into()),
        }
    }

    /// Stores on condition that the head is where we left it; none if it has
    /// to be locked first, and nothing was stored.
    fn attempt_unlocked(
        &mut self,
        commands: &mut [Command],
        durability: Durability,
    ) -> Result<Option<Head>, Attempt> {
        let (Company::Alone, Some(armed), Some(before)) = (self.company, &self.session, &self.left)
        else {
            return Ok(None);
        };
        if commands.iter().all(|command| command.prepared.is_empty()) {
            return Ok(None);
        }
        let mut head = before.clone();
        // What is looked up now was so at the head we left, if that is still
        // the head when the group is stored.
        self.versions.start(&head);
        armed.look_up(&mut self.versions, commands)?;
        let nodes = seal(&mut head, &mut self.versions, commands);
        // Without a condition that is checked, not even a refusal is certain.
        if head.seq == before.seq || head.seq > self.partitioned_to {
            return Ok(None);
        }
        let events = commands.iter().flat_map(Command::events);
        let step = Step {
            before,
            after: &head,
            nodes: &nodes,
            versions: &self.versions,
        };
        let framing = match durability {
            Durability::Operational => Framing::Around,
            Durability::Security => Framing::Statement,
        };
        let outcome = armed.store(&step, events, framing)?;
        Ok((outcome == Outcome::Stored).then_some(head))
    }

    /// Whether the group that ends at `head` is in the ledger.
    ///
    /// Its transaction held the head's lock, so having that lock means that
    /// it has ended, one way or the other.
    fn is_stored(&mut self, head: &Head, lost: &Arc<Failure>) -> Result<bool, StoreError> {
        let mut patience = Patience::new(RESOLVE);
        loop {
            let found = self
                .link
                .connect_patiently(Use::Write, &mut patience)
                .and_then(|session| hash_under_lock(&session, head.seq));
            match found {
                Ok(hash) => return Ok(hash == Some(head.hash)),
                Err(_) if patience.pause() => {}
                Err(failure) => {
                    tracing::error!(
                        seq = head.seq,
                        error = &failure as &dyn std::error::Error,
                        "the fate of a commit can't be found out"
                    );
                    return Err(StoreError::UnknownOutcome(Arc::clone(lost) as _));
                }
            }
        }
    }
}

fn hash_under_lock(session: &Session, seq: u64) -> Result<Option<Digest>, Failure> {
    let client = session.client();
    session.batch("BEGIN")?;
    session.wait(client.query_one(LOCK, &[]))??;
    let row = session.wait(client.query_opt(HASH_AT, &[&integer(seq)]))??;
    session.batch("ROLLBACK")?;
    Ok(row.and_then(|row| schema::digest(&row, 0)))
}

impl Armed {
    fn new(mut session: Session) -> Result<Self, Failure> {
        Ok(Self {
            lock: session.prepare(LOCK)?,
            versions: session.prepare(VERSIONS)?,
            store: session.prepare(&store_sql())?,
            session,
        })
    }

    /// Starts the transaction and locks the head.
    fn begin(&self, durability: Durability) -> Result<Head, Failure> {
        let begin = match durability {
            Durability::Operational => BEGIN_UNFLUSHED,
            Durability::Security => "BEGIN",
        };
        let client = self.session.client();
        // Both are sent before the first is answered.
        let (begun, locked) = self.session.wait(join(
            client.batch_execute(begin),
            client.query_one(&self.lock, &[]),
        ))?;
        begun?;
        schema::decode_head(&locked?).ok_or_else(|| schema::bad_row("ledger_head"))
    }

    /// Learns the versions that are not known yet.
    fn look_up(&self, versions: &mut Versions, commands: &[Command]) -> Result<(), Failure> {
        let missing = versions.missing(commands);
        if missing.is_empty() {
            return Ok(());
        }
        let mut keys = Keys::default();
        missing.iter().for_each(|key| keys.push(key));
        let Keys {
            domains,
            kinds,
            ids,
        } = &keys;
        let client = self.session.client();
        let rows = self
            .session
            .wait(client.query(&self.versions, &[domains, kinds, ids]))??;
        let found: Vec<_> = rows.iter().map(|row| schema::number(row, 0)).collect();
        for (key, version) in missing.into_iter().zip(found) {
            versions.learn(key, version.ok_or_else(|| schema::bad_row("aggregates"))?);
        }
        Ok(())
    }

    /// Stores a sealed group and commits, all sent in one go.
    fn store<'e>(
        &self,
        step: &Step<'_>,
        events: impl Iterator<Item = &'e Event>,
        framing: Framing,
    ) -> Result<Outcome, Attempt> {
        let Step {
            before,
            after,
            nodes,
            versions,
        } = step;
        let mut columns = Columns::default();
        events.for_each(|event| columns.push(event));
        let mut keys = Keys::default();
        let mut numbers = Vec::new();
        for (key, version) in versions.changed() {
            keys.push(key);
            numbers.push(integer(version));
        }
        let levels: Vec<i16> = nodes.iter().map(|node| i16::from(node.level)).collect();
        let positions: Vec<i64> = nodes.iter().map(|node| integer(node.position)).collect();
        let hashes: Vec<&[u8]> = nodes.iter().map(|node| node.hash.0.as_slice()).collect();
        let (seq, epoch) = (integer(after.seq), integer(after.epoch));
        let (hash, frontier) = (after.hash.as_bytes().as_slice(), after.frontier.to_bytes());
        let (old_seq, old_hash) = (integer(before.seq), before.hash.as_bytes().as_slice());
        let mut params: Vec<&(dyn ToSql + Sync)> = columns.params().into();
        params.extend::<[&(dyn ToSql + Sync); 3]>([&levels, &positions, &hashes]);
        params.extend::<[&(dyn ToSql + Sync); 3]>([&keys.domains, &keys.kinds, &keys.ids]);
        params.extend::<[&(dyn ToSql + Sync); 5]>([&numbers, &seq, &hash, &epoch, &frontier]);
        params.extend::<[&(dyn ToSql + Sync); 2]>([&old_seq, &old_hash]);
        self.send(&params, framing)
            .map_err(|refusal| refusal.of(after))
    }

    /// Sends the statement with what makes it a transaction.
    fn send(&self, params: &[&(dyn ToSql + Sync)], framing: Framing) -> Result<Outcome, Refusal> {
        let client = self.session.client();
        let statement = client.execute(&self.store, params);
        // Nobody knows about what was sent and not answered in time.
        let late = Refusal::Open;
        let (stored, committed) = match framing {
            Framing::Statement => {
                let stored = self.session.wait(statement).map_err(late)?;
                return match stored.map_err(Failure::from) {
                    Ok(rows) => Ok(outcome(rows)),
                    Err(failure) if failure.leaves_transaction_open() => {
                        Err(Refusal::Open(failure))
                    }
                    Err(failure) => Err(Refusal::Failed(failure)),
                };
            }
            Framing::Begun => {
                let sent = join(statement, client.batch_execute("COMMIT"));
                self.session.wait(sent).map_err(late)?
            }
            Framing::Around => {
                let begin = client.batch_execute(BEGIN_UNFLUSHED);
                let sent = join3(begin, statement, client.batch_execute("COMMIT"));
                let (begun, stored, committed) = self.session.wait(sent).map_err(late)?;
                match (begun, stored) {
                    (Ok(()), stored) => (stored, committed),
                    (Err(error), Err(_)) => (Err(error), committed),
                    // Outside of the transaction it was one by itself.
                    (Err(error), Ok(_)) => return Err(Refusal::Open(error.into())),
                }
            }
        };
        let rows = match stored.map_err(Failure::from) {
            Err(failure) if failure.leaves_statement_open() => return Err(Refusal::Open(failure)),
            Err(failure) => return Err(Refusal::Failed(failure)),
            Ok(rows) => rows,
        };
        match committed.map_err(Failure::from) {
            Err(failure) if failure.leaves_commit_open() => Err(Refusal::Open(failure)),
            Err(failure) => Err(Refusal::Failed(failure)),
            Ok(()) => Ok(outcome(rows)),
        }
    }
}

/// The statement finds the head once, or not at all.
fn outcome(rows: u64) -> Outcome {
    if rows == 0 {
        Outcome::Moved
    } else {
        Outcome::Stored
    }
}

/// Everything of a group in one statement: what is not sent whole can't leave
/// a head without its events. All of it hangs on the head being the expected
/// one, whose lock is held from there to the end.
fn store_sql() -> String {
    let slot = |offset: usize| COLUMNS.len() + offset;
    format!(
        "WITH moved AS (UPDATE ledger_head SET seq = ${}, hash = ${}, epoch = ${}, \
         frontier = ${} WHERE id = 1 AND seq = ${} AND hash = ${} RETURNING id), \
         added AS ({}), \
         nodes AS (INSERT INTO tree (level, position, hash) \
         SELECT new.* FROM moved, unnest(${}::smallint[], ${}::bigint[], ${}::bytea[]) AS new), \
         versions AS (INSERT INTO aggregates (domain, aggregate_type, aggregate_id, version) \
         SELECT new.* FROM moved, unnest(${}::text[], ${}::text[], ${}::text[], ${}::bigint[]) \
         AS new ON CONFLICT (aggregate_id, aggregate_type, domain) \
         DO UPDATE SET version = excluded.version) \
         SELECT id FROM moved",
        slot(8),
        slot(9),
        slot(10),
        slot(11),
        slot(12),
        slot(13),
        columns::insert_if("moved"),
        slot(1),
        slot(2),
        slot(3),
        slot(4),
        slot(5),
        slot(6),
        slot(7),
    )
}

/// Keys of aggregates, column by column.
#[derive(Default)]
struct Keys<'k> {
    domains: Vec<&'k str>,
    kinds: Vec<&'k str>,
    ids: Vec<&'k str>,
}

impl<'k> Keys<'k> {
    fn push(&mut self, key: &'k AggregateKey) {
        let (domain, kind, id) = key.parts();
        self.domains.push(domain);
        self.kinds.push(kind);
        self.ids.push(id);
    }
}
