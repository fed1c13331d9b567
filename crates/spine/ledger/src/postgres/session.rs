//! Connections: one thread drives them all, any thread may wait for answers.
//!
//! Callers block without a runtime of their own, so the engine works the same
//! from plain threads and from inside somebody else's runtime. Only the writer
//! drives its connection itself, which spares two hand-overs per answer. No
//! wait is without end: the server has time limits, and so has the waiting.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::maybe_done;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_postgres::{Client, Statement};

use super::address::{PostgresAddress, Way};
use super::failure::Failure;
use crate::wake::block_until;

/// Longer than any statement may run on the server.
const ANSWER: Duration = Duration::from_secs(90);
/// How long opening one session may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a call keeps trying to reach a server that is away.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What every session of the ledger sets. A sane plan for a statement of the
/// ledger always uses an index; without statistics the planner can't know.
const SET_UP: &str = "
SET client_min_messages = warning;
SET search_path = ledger;
SET jit = off;
SET lock_timeout = '5s';
SET statement_timeout = '30s';
SET idle_in_transaction_session_timeout = '10s';
";
const PLANS: &str = "
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET plan_cache_mode = force_generic_plan;
";
const READ_ONLY: &str = "SET default_transaction_read_only = on;";
/// The operator may ask for more than `on`, never for less.
const DURABLE: &str = "
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');
";

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Appending, and creating the tables.
    Write,
    /// Reading events.
    Read,
    /// Dropping old events, which may take its time.
    Prune,
    /// Keeping and querying a view.
    View,
}

impl Use {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write => "fluffy-ledger-writer",
            Self::Read => "fluffy-ledger-reader",
            Self::Prune => "fluffy-ledger-prune",
            Self::View => "fluffy-ledger-view",
        }
    }

    /// Only reading does without a session of its own.
    const fn way(self) -> Way {
        match self {
            Self::Read => Way::Transactions,
            Self::Write | Self::Prune | Self::View => Way::Session,
        }
    }

    fn set_up(self) -> String {
        match self {
            Self::Write => format!("{SET_UP}{PLANS}{DURABLE}"),
            Self::Read => format!("{SET_UP}{PLANS}{READ_ONLY}"),
            Self::Prune => format!("{SET_UP}{DURABLE}SET statement_timeout = '80s';"),
            // A view that loses its last transactions is only behind.
            Self::View => format!("{SET_UP}SET synchronous_commit = off;"),
        }
    }
}

/// Begins a transaction that a pooler gives any session of the server for:
/// statements that others prepared there bear the names that ours will.
fn begin() -> String {
    let settings = format!("{SET_UP}{PLANS}").replace("SET ", "SET LOCAL ");
    format!("BEGIN READ ONLY; DEALLOCATE ALL; {settings}")
}

/// The way to the server, shared by everything that opens sessions.
#[derive(Debug, Clone)]
pub(super) struct Link {
    driver: Arc<Driver>,
    address: Arc<PostgresAddress>,
}

impl Link {
    pub(super) fn new(address: &PostgresAddress) -> Result<Self, Failure> {
        Ok(Self {
            driver: Arc::new(Driver::start()?),
            address: Arc::new(address.clone()),
        })
    }

    pub(super) fn address(&self) -> &PostgresAddress {
        &self.address
    }

    fn is_pooled(&self, usage: Use) -> bool {
        self.address.is_pooled() && usage.way() == Way::Transactions
    }

    /// Where tasks of the engine run.
    pub(super) fn handle(&self) -> &Handle {
        &self.driver.handle
    }

    /// One try to open a session.
    pub(super) fn connect(&self, usage: Use) -> Result<Session, Failure> {
        let address = Arc::clone(&self.address);
        let opening = self
            .handle()
            .spawn(async move { timeout(CONNECT, open(&address, usage)).await });
        let opened = wait(opening)?.map_err(|_| Failure::Late)?;
        let client = opened.map_err(|_| Failure::Late)??;
        Ok(Session {
            client,
            statements: HashMap::new(),
            pooled: self.is_pooled(usage),
            own: None,
        })
    }

    /// One try to open a session that is driven by whoever waits on it.
    ///
    /// Must not be called, and the session not be waited on, inside a runtime.
    pub(super) fn connect_here(&self, usage: Use) -> Result<Session, Failure> {
        let runtime = runtime()?;
        let opening = async { timeout(CONNECT, open(&self.address, usage)).await };
        let client = runtime.block_on(opening).map_err(|_| Failure::Late)??;
        Ok(Session {
            client,
            statements: HashMap::new(),
            pooled: self.is_pooled(usage),
            own: Some(OwnRuntime(Some(runtime))),
        })
    }

    /// Opens a session, trying again while the server is away.
    pub(super) fn connect_patiently(
        &self,
        usage: Use,
        patience: &mut Patience,
    ) -> Result<Session, Failure> {
        patience.retry(|| self.connect(usage))
    }
}

/// Opens a connection, leaves it to the runtime, and sets the session up.
async fn open(address: &PostgresAddress, usage: Use) -> Result<Client, tokio_postgres::Error> {
    let way = usage.way();
    let (client, connection) = address.connect(usage.name(), way).await?;
    // Its end shows as a closed client; there is nothing more to say.
    tokio::spawn(connection);
    // Settings of a pooler's session would stay with whoever gets it next.
    if way == Way::Session || !address.is_pooled() {
        client.batch_execute(&usage.set_up()).await?;
    }
    Ok(client)
}

/// A pause that grows, until there is no time left.
#[derive(Debug)]
pub(super) struct Patience {
    deadline: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            deadline: Instant::now() + limit,
            pause: Duration::from_millis(10),
        }
    }

    /// Tries again while the failure may pass and there is time.
    pub(super) fn retry<T>(
        &mut self,
        attempt: impl Fn() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            match attempt() {
                Err(failure) if failure.is_passing() && self.pause() => {}
                other => return other,
            }
        }
    }

    /// Waits a little; false, at once, when the time is over.
    pub(super) fn pause(&mut self) -> bool {
        if Instant::now() + self.pause > self.deadline {
            return false;
        }
        thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(500));
        true
    }
}

/// One connection, set up, with the statements it has prepared.
pub(super) struct Session {
    client: Client,
    statements: HashMap<String, Statement>,
    /// Whether there is a session of the server for one transaction only.
    pooled: bool,
    /// What drives the connection, if it is not the common thread.
    own: Option<OwnRuntime>,
}

/// A runtime that may be dropped anywhere.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Waiting for its end would panic inside a runtime of somebody else.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Session {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The prepared statement of this text, which is kept for the next time.
    pub(super) fn prepare(&mut self, sql: &str) -> Result<Statement, Failure> {
        // Far more than the ledger's own; a projection that builds its SQL
        // anew each time must not fill the server.
        const MAX_STATEMENTS: usize = 256;
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(sql))??;
        if self.statements.len() >= MAX_STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs `read` where the settings of this session hold; a session that
    /// it failed on is of no more use.
    pub(super) fn within<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if !self.pooled {
            return read(self);
        }
        self.batch(&begin())?;
        let value = read(self)?;
        self.batch("COMMIT")?;
        self.statements.clear();
        Ok(value)
    }

    /// Runs statements without parameters.
    pub(super) fn batch(&self, sql: &str) -> Result<(), Failure> {
        Ok(self.wait(self.client.batch_execute(sql))??)
    }

    /// Blocks until a request of this session is done, or [`ANSWER`] has passed.
    pub(super) fn wait<F: Future>(&self, request: F) -> Result<F::Output, Failure> {
        match self.runtime() {
            Some(runtime) => runtime
                .block_on(async { timeout(ANSWER, request).await })
                .map_err(|_| Failure::Late),
            None => wait(request),
        }
    }

    /// Takes in what the server said unasked, above all that it hung up.
    pub(super) fn catch_up(&self) {
        if let Some(runtime) = self.runtime() {
            // The first turn finds the news, the second hands it on.
            runtime.block_on(async {
                yield_now().await;
                yield_now().await;
            });
        }
    }

    fn runtime(&self) -> Option<&Runtime> {
        self.own.as_ref()?.0.as_ref()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("closed", &self.client.is_closed())
            .field("statements", &self.statements.len())
            .finish()
    }
}

/// The thread that drives the connections; ends when nobody needs it.
#[derive(Debug)]
struct Driver {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Driver {
    fn start() -> Result<Self, Failure> {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new()
            .name("ledger-postgres".to_owned())
            // Dropping the sender is the signal, so an error is the answer.
            .spawn(move || drop(runtime.block_on(stopped)))
            .map_err(Failure::Driver)?;
        Ok(Self {
            handle,
            _stop: stop,
        })
    }
}

/// A runtime that the thread which waits on it drives.
fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(Failure::Driver)
}

/// Blocks this thread until the future is done or [`ANSWER`] has passed.
pub(super) fn wait<F: Future>(future: F) -> Result<F::Output, Failure> {
    block_until(future, Instant::now() + ANSWER).ok_or(Failure::Late)
}

/// Starts all futures in order, so that every request is on its way before
/// the first answer is awaited; gives the outputs in the same order.
pub(super) async fn pipeline<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut started: Vec<_> = futures.map(|future| Box::pin(maybe_done(future))).collect();
    poll_fn(|context| {
        for future in &mut started {
            // Whether it is done already is asked again below.
            let _ = future.as_mut().poll(context);
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(started.len());
    for mut future in started {
        future.as_mut().await;
        outputs.extend(future.as_mut().take_output());
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_works_inside_a_runtime_of_somebody_else() {
        let driver = Driver::start().unwrap();
        let task = driver.handle.spawn(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            7
        });
        assert_eq!(wait(task).unwrap().unwrap(), 7);
    }

    #[test]
    fn patience_ends() {
        let mut patience = Patience::new(Duration::from_millis(25));
        assert!(patience.pause());
        assert!(!patience.pause());
    }
}
