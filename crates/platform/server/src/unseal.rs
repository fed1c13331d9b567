//! Where the custodians of master keys bring their shares to a running server.
//!
//! A socket for this server's own user. Each share is one call; those of a set
//! are gathered in memory until there are enough, and then they are the key or
//! nothing, and either is on record. What is not completed is forgotten, as is
//! a key that is whole and waits for the one that it follows. Writes nothing to
//! a disk. Next: `safe`, which holds what came together.

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
use crate::safe::{Safe, SafeError, Standing, live_keys};
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
    /// Whether it had the key before, so that the share was not needed.
    #[serde(default)]
    pub already: bool,
    /// The newest master key, if this server has not got it: until then it
    /// seals nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<MasterKeyId>,
    /// Keys without which this server does not go on, whatever else it has: the
    /// one that the brought key follows, and that of the cluster's authority.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<MasterKeyId>,
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
            let by = user(context.peer());
            async move {
                // A call ends with its client. What is on record has to be true,
                // so what was begun is ended without anybody, too.
                let brought = tokio::spawn(async move { desk.bring(&share, by).await });
                brought.await.unwrap_or_else(|error| {
                    Err(Failure::new(ErrorCode::Internal, error.to_string()))
                })
            }
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
        let (key, set, needed) = (share.key(), share.set(), share.needed());
        let mut progress = Progress {
            key,
            set: set.to_string(),
            here: Vec::new(),
            needed,
            unsealed: false,
            already: false,
            newest: None,
            needs: Vec::new(),
        };
        let mut piles = self.piles.lock().await;
        if self.safe.key_ids().contains(&key) {
            (progress.unsealed, progress.already) = (true, true);
            return Ok(self.told(progress).await);
        }
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
        progress.here = pile.numbers();
        if !pile.is_whole() {
            return Ok(self.told(progress).await);
        }
        let taken = self.take(&pile.shares).await;
        if !matches!(taken, Ok(Standing::Behind(_)))
            && !taken.as_ref().is_err_and(|it| it.retryable)
        {
            piles.remove(&set);
        }
        match taken? {
            Standing::Behind(before) => progress.needs.push(before),
            Standing::Proven => {
                progress.unsealed = true;
                self.take_those_behind(&mut piles).await;
            }
        }
        Ok(self.told(progress).await)
    }

    /// Takes the whole sets that waited for a key that was just taken.
    async fn take_those_behind(&self, piles: &mut BTreeMap<SetId, Pile>) {
        let whole = |(set, pile): (&SetId, &Pile)| pile.is_whole().then_some(*set);
        let mut waiting: Vec<SetId> = piles.iter().filter_map(whole).collect();
        loop {
            let before = waiting.len();
            for set in std::mem::take(&mut waiting) {
                let Some(pile) = piles.get(&set) else {
                    continue;
                };
                match self.take(&pile.shares).await {
                    Ok(Standing::Behind(_)) => waiting.push(set),
                    // They can be brought again.
                    Ok(Standing::Proven) | Err(_) => drop(piles.remove(&set)),
                }
            }
            if waiting.is_empty() || waiting.len() == before {
                return;
            }
        }
    }

    /// Puts in what else the server wants of custodians.
    async fn told(&self, mut progress: Progress) -> Progress {
        let at_hand = self.safe.key_ids();
        let newest = self.platform.sequencer().read(live_keys).first().copied();
        progress.newest = newest.filter(|it| !at_hand.contains(it) && *it != progress.key);
        // What can't be looked up is told by the server's log.
        let needed = self.safe.needs().await.ok().flatten();
        let needed = needed.filter(|it| *it != progress.key && !progress.needs.contains(it));
        progress.needs.extend(needed);
        progress
    }

    /// Makes the key of a complete set and takes it in; first it is on record.
    /// One that waits for another is neither.
    async fn take(&self, shares: &[(Share, String)]) -> Result<Standing, Failure> {
        let known = self.platform.sequencer().read(live_keys);
        let only: Vec<Share> = shares.iter().map(|(share, _)| share.clone()).collect();
        let custody = match Custody::combine(&only) {
            Ok(custody) => match self.safe.standing(&custody, &known).await {
                Ok(Standing::Proven) => Ok(custody),
                Ok(behind) => return Ok(behind),
                Err(SafeError::Key(LoadKeyError::Missing { id })) => Err(format!(
                    "they are not of a key of this platform: it needs `{id}`"
                )),
                Err(SafeError::Key(error)) => Err(error.to_string()),
                Err(error) => return Err(Failure::new(ErrorCode::Unavailable, error.to_string())),
            },
            Err(error) => Err(error.to_string()),
        };
        let failed = custody.as_ref().err().cloned();
        // With it the key is on record as used, so all that is left is to keep
        // it in memory.
        self.record(shares, failed).await?;
        let denied = |why: String| Failure::new(ErrorCode::Denied, why);
        let custody = custody.map_err(denied)?;
        let taken = self.safe.take(custody);
        taken.map_err(|error| denied(error.to_string()))?;
        Ok(Standing::Proven)
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
    /// Whether there are as many as it takes.
    fn is_whole(&self) -> bool {
        let needed = self.shares.first().map(|(share, _)| share.needed());
        needed.is_some_and(|needed| self.shares.len() >= usize::from(needed))
    }

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
