//! Where the custodians of master keys bring their shares to a running server.
//!
//! A socket for this server's own user. Each share is one call; those of a set
//! are gathered in memory until there are enough, and then they are the key or
//! nothing, and either is on record. What is not completed is forgotten.
//! Writes nothing to a disk. Next: `safe`, which holds what came together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::MasterKeyId;
use fluffy_control::Notice;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::Brought;
use fluffy_ipc::{
    ApiRange, BindError, CallError, Client, ConnectError, ErrorCode, Failure, Hello, Listener,
    PeerIdentity, Server,
};
use fluffy_vault::shares::SetId;
use fluffy_vault::{Custody, LoadKeyError, Share};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use zeroize::Zeroizing;

use crate::platform::Platform;
use crate::safe::{Safe, live_keys};
use crate::sequencer::SubmitError;

/// The version of the calls.
const API: u32 = 1;
const BRING: &str = "bring";
/// How many sets are gathered at once.
const SETS: usize = 4;
/// How long an incomplete set is kept.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How often it is looked whose time is over.
const FORGET: Duration = Duration::from_secs(30);
/// How long it is waited until every server can read that a key was brought:
/// longer than the first leader takes to find out.
const READERS: Duration = Duration::from_secs(40);
/// How long who brings a share waits.
const ANSWER: Duration = Duration::from_secs(60);

/// Where a set of shares is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The key that they are of.
    pub key: MasterKeyId,
    /// The set.
    pub set: String,
    /// The numbers of those that are here.
    pub here: Vec<u8>,
    /// How many it takes.
    pub needed: u8,
    /// Whether the server has the key now.
    pub unsealed: bool,
}

/// Why shares can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum ServeDeskError {
    /// The socket can't be had.
    #[error("custodians can't reach the server")]
    Bind(#[from] BindError),
    /// The keys are in files all the same.
    #[error("the keys are not with their custodians alone")]
    Keys(#[source] LoadKeyError),
}

/// Why a share could not be brought.
#[derive(Debug, thiserror::Error)]
pub enum BringError {
    /// The server is not there.
    #[error("the server can't be reached")]
    Connect(#[from] ConnectError),
    /// It did not take it.
    #[error("the server did not take the share")]
    Call(#[from] CallError),
}

/// Brings a share to the server at this socket.
///
/// # Errors
/// It is not there, or does not take it.
pub async fn bring(socket: &Path, share: &Share) -> Result<Progress, BringError> {
    let hello = Hello::new("fluffy", env!("CARGO_PKG_VERSION"), API);
    let client = Client::connect(socket, hello).await?;
    let client = client.with_timeout(ANSWER);
    Ok(client.call(BRING, &share.expose().as_str()).await?)
}

/// Gathers shares; to be cloned freely.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    platform: Platform,
    safe: Safe,
    piles: Arc<Mutex<BTreeMap<SetId, Pile>>>,
}

/// Shares of a set that is not complete, and who brought each.
#[derive(Debug)]
struct Pile {
    since: Instant,
    shares: Vec<(Share, String)>,
}

impl Desk {
    pub(crate) fn new(platform: Platform, safe: Safe) -> Self {
        Self {
            platform,
            safe,
            piles: Arc::default(),
        }
    }

    /// Takes shares until told to stop.
    ///
    /// # Errors
    /// The socket can't be had.
    pub(crate) fn serve(
        &self,
        socket: &Path,
        mut stop: watch::Receiver<bool>,
    ) -> Result<impl Future<Output = ()> + Send + 'static, ServeDeskError> {
        let listener = Listener::bind(socket)?;
        let (desk, forgetting) = (self.clone(), self.clone());
        let server = Server::new("unseal", ApiRange::current_and_previous(API));
        let server = server.method(BRING, move |context, share: String| {
            let (desk, share) = (desk.clone(), Zeroizing::new(share));
            async move { desk.bring(&share, user(context.peer())).await }
        });
        Ok(async move {
            let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
            tokio::select! {
                served = server.serve(listener, stopped) => if let Err(error) = served {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "shares of master keys are not taken any more");
                },
                () = forgetting.forget() => {}
            }
        })
    }

    async fn forget(&self) {
        let mut ticks = interval(FORGET);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut piles = self.piles.lock().await;
            piles.retain(|_, pile| pile.since.elapsed() < PATIENCE);
        }
    }

    async fn bring(&self, text: &str, by: String) -> Result<Progress, Failure> {
        let share: Share = text
            .parse()
            .map_err(|error: fluffy_vault::ReadShareError| {
                Failure::new(ErrorCode::InvalidParams, error.to_string())
            })?;
        let (key, set, share_needed) = (share.key(), share.set(), share.needed());
        let mut piles = self.piles.lock().await;
        if !piles.contains_key(&set) && piles.len() >= SETS {
            let why = format!(
                "shares of {SETS} other sets wait for their others; those that do not come are \
                 forgotten after {} minutes",
                PATIENCE.as_secs() / 60
            );
            return Err(Failure::new(ErrorCode::Conflict, why));
        }
        let pile = piles.entry(set).or_insert_with(|| Pile {
            since: Instant::now(),
            shares: Vec::new(),
        });
        let is_other = |(first, _): &(Share, String)| {
            (first.key(), first.total(), first.needed())
                != (share.key(), share.total(), share.needed())
        };
        if pile.shares.iter().any(is_other) {
            let why = format!("it says other things of set {set} than the share before");
            return Err(Failure::new(ErrorCode::InvalidParams, why));
        }
        // Who brought the wrong one may bring another in its place.
        pile.shares.retain(|(it, _)| it.index() != share.index());
        pile.shares.push((share, by));
        let (here, needed) = (pile.numbers(), share_needed);
        let mut progress = Progress {
            key,
            set: set.to_string(),
            here,
            needed,
            unsealed: false,
        };
        if pile.shares.len() < usize::from(needed) {
            return Ok(progress);
        }
        let taken = self.take(&pile.shares).await;
        if !taken.as_ref().is_err_and(|failure| failure.retryable) {
            piles.remove(&set);
        }
        taken?;
        progress.unsealed = true;
        Ok(progress)
    }

    /// Makes the key of a complete set and takes it in; first it is on record.
    async fn take(&self, shares: &[(Share, String)]) -> Result<(), Failure> {
        let known = self.platform.sequencer().read(live_keys);
        let only: Vec<Share> = shares.iter().map(|(share, _)| share.clone()).collect();
        let custody = Custody::combine(&only).map_err(|error| error.to_string());
        let custody = custody.and_then(|custody| {
            let usable = self.safe.may_take(&custody, &known);
            usable.map(|()| custody).map_err(|error| match error {
                LoadKeyError::Missing { id } => {
                    format!("they are not of a key of this platform: it needs `{id}`")
                }
                error => error.to_string(),
            })
        });
        let failed = custody.as_ref().err().cloned();
        self.record(shares, failed).await?;
        let custody = custody.map_err(|why| Failure::new(ErrorCode::Denied, why))?;
        let (key, was_sealed) = (custody.key_id(), self.safe.is_sealed());
        let denied = |error: LoadKeyError| Failure::new(ErrorCode::Denied, error.to_string());
        self.safe.take(custody, &known).map_err(denied)?;
        if was_sealed {
            // Who waits for the keys takes note of them (`doors`).
            return Ok(());
        }
        let notice = RuntimeNotice::KeyIntroduced(key);
        self.notice(notice)
            .await
            .map_err(|error| unavailable(&error))
    }

    /// Puts it on record; if that can't be, nothing is taken.
    async fn record(
        &self,
        shares: &[(Share, String)],
        failed: Option<String>,
    ) -> Result<(), Failure> {
        let Some((first, _)) = shares.first() else {
            return Ok(());
        };
        let numbers = shares.iter().map(|(share, _)| u64::from(share.index()));
        let brought = Brought {
            key: first.key(),
            set: first.set().to_string(),
            shares: numbers.collect(),
            by: shares.iter().map(|(_, by)| by.clone()).collect(),
            failed,
        };
        let limit = Instant::now() + READERS;
        loop {
            let notice = RuntimeNotice::KeyBrought(brought.clone());
            match self.notice(notice).await {
                Ok(()) => return Ok(()),
                Err(SubmitError::Unreadable { .. }) if Instant::now() < limit => {
                    sleep(Duration::from_millis(500)).await;
                }
                Err(error) => return Err(unavailable(&error)),
            }
        }
    }

    async fn notice(&self, notice: RuntimeNotice) -> Result<(), SubmitError> {
        let notice = Notice::Runtime(notice);
        self.platform.notice("keys", None, notice).await.map(drop)
    }
}

impl Pile {
    fn numbers(&self) -> Vec<u8> {
        let mut numbers: Vec<u8> = self.shares.iter().map(|(it, _)| it.index()).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn unavailable(error: &SubmitError) -> Failure {
    let why = format!("the key was not taken, because it can't be put on record: {error}");
    Failure::new(ErrorCode::Unavailable, why)
}

/// Who is at the other end, as the system knows them.
fn user(peer: &PeerIdentity) -> String {
    match peer.uid {
        Some(uid) => format!("uid {uid}"),
        None => "unknown".to_owned(),
    }
}
