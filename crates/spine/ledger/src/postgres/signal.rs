//! Waking other processes: `NOTIFY` as a hint, polling as the truth.
//!
//! One connection listens and notifies, outside of every append, because a
//! notification inside would serialise all commits. Whatever is lost here is
//! only late: the head is looked at every [`POLL`], however silent it is.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_postgres::{AsyncMessage, Client, Statement};

use super::address::{PostgresAddress, Way};
use super::session::Link;

/// How long an event of another process stays unseen if every hint is lost.
const POLL: Duration = Duration::from_millis(200);
/// No two hints come closer: a busy ledger gives one for many commits.
const SPACING: Duration = Duration::from_millis(5);
/// The shortest pause between two tries to reach the server …
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// … and the longest.
const MAX_PAUSE: Duration = Duration::from_secs(2);

const CHANNEL: &str = "ledger_appended";

/// Both directions of the wake-up; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Signal {
    announce: watch::Sender<u64>,
    heard: watch::Receiver<u64>,
}

impl Signal {
    /// Starts to listen.
    pub(super) fn start(link: &Link) -> Self {
        let (announce, announced) = watch::channel(0);
        let (hear, heard) = watch::channel(0);
        let listener = Listener {
            address: link.address().clone(),
            announced,
            hear,
        };
        link.handle().spawn(listener.run());
        Self { announce, heard }
    }

    /// Where a writer leaves the head after each commit.
    pub(super) fn announce(&self) -> watch::Sender<u64> {
        self.announce.clone()
    }

    /// Ticks with the head as other processes move it.
    pub(super) fn heard(&self) -> watch::Receiver<u64> {
        self.heard.clone()
    }
}

struct Listener {
    address: PostgresAddress,
    announced: watch::Receiver<u64>,
    hear: watch::Sender<u64>,
}

/// Nobody needs the listener any more.
struct Done;

impl Listener {
    async fn run(mut self) {
        let mut pause = MIN_PAUSE;
        while self.announced.has_changed().is_ok() {
            let started = Instant::now();
            match self.hold().await {
                Ok(Done) => return,
                Err(error) => tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "the wake-up connection broke"
                ),
            }
            if started.elapsed() > MAX_PAUSE {
                pause = MIN_PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Listens and notifies over one connection until it breaks.
    async fn hold(&mut self) -> Result<Done, tokio_postgres::Error> {
        // A pooler would forget who listens.
        let opening = self.address.open("fluffy-ledger-signal", Way::Session);
        let (client, mut connection) = opening.await?;
        let hints = Arc::new(Notify::new());
        let hint = Arc::clone(&hints);
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                // Anyone may send a hint, so what it says is not believed.
                if let AsyncMessage::Notification(_) = message {
                    hint.notify_one();
                }
            }
        });
        client.batch_execute(&set_up()).await?;
        let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
        let head = client
            .prepare("SELECT seq FROM ledger_head WHERE id = 1")
            .await?;
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = self.announced.changed() => {
                    if changed.is_err() {
                        return Ok(Done);
                    }
                    let seq = self.announced.borrow_and_update().to_string();
                    client.execute(&notify, &[&CHANNEL, &seq]).await?;
                    sleep(SPACING).await;
                }
                () = hints.notified() => self.look(&client, &head).await?,
                _ = poll.tick() => self.look(&client, &head).await?,
            }
        }
    }

    /// Looks where the head is.
    async fn look(&self, client: &Client, head: &Statement) -> Result<(), tokio_postgres::Error> {
        let seq: i64 = client.query_one(head, &[]).await?.try_get(0)?;
        let seq = u64::try_from(seq).unwrap_or(0);
        self.hear
            .send_if_modified(|heard| std::mem::replace(heard, seq) != seq);
        Ok(())
    }
}

/// A hint need not survive a crash.
fn set_up() -> String {
    format!(
        "SET statement_timeout = '10s'; SET synchronous_commit = off; \
         SET search_path = ledger; LISTEN {CHANNEL}"
    )
}
