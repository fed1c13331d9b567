//! One replica of the platform: its ledger, its state, what is kept beside.
//!
//! Opens them, starts an empty ledger, and submits what the platform itself
//! has to say. The doors (HTTP, nodes) and the loops all go through this; none
//! has another way to the ledger. Next: `server`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::{RequestId, TokenId};
use fluffy_base::{Clock, Digest};
use fluffy_control::access::{Bootstrap, Notice as AccessNotice};
use fluffy_control::{Caller, CallerKind, Fence, Mint, Notice, Outcome, State};
use fluffy_ledger::archive::ARCHIVE;
use fluffy_ledger::health::{AcceptBreakError, CheckError};
use fluffy_ledger::{
    Actor, AppendError, Health, Ledger, LedgerOptions, OnBreak, OpenLedgerError, PostgresAddress,
    Signing,
};
use fluffy_secret::SecretString;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::aside::{Aside, AsideError};
use crate::credential::{Credential, CredentialKind, NoRandomness};
use crate::figures::Figures;
use crate::fold::{self, FoldError};
use crate::hashes::Hashes;
use crate::machine::{Ask, Job, Reply};
use crate::readers::{Build, Sign};
use crate::room::{Fill, Room};
use crate::sequencer::{Answer, Sequencer, SequencerOptions, StartSequencerError, SubmitError};
use crate::snapshot::Snapshots;

/// How many events are checked at every start: a fraction of a second's worth.
const CHECKED: u64 = 10_000;

/// How long a first invite can be used; so long its hash is kept.
const INVITE: Duration = Duration::from_secs(24 * 3600);

/// One replica of the platform; to be cloned freely.
#[derive(Debug, Clone)]
pub struct Platform {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    ledger: Ledger,
    aside: Aside,
    sequencer: Sequencer<State>,
    mint: Arc<Mint>,
    clock: Arc<dyn Clock>,
    replica: String,
    build: Build,
    figures: Arc<Figures>,
    /// The disk of the ledger; none where it is in a database.
    room: Option<Arc<Room>>,
    /// What this replica says of itself; none if there can be no other.
    sign: Option<Arc<Sign>>,
    archive: Option<PathBuf>,
    signing: Option<Signing>,
    stop: watch::Sender<bool>,
    saving: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    snapshots: Snapshots<State>,
}

/// Where everything is kept.
#[derive(Debug, Clone)]
pub enum Storage {
    /// Files of one machine, in a directory.
    Directory(PathBuf),
    /// A database, for any number of replicas.
    Database {
        /// Where it is.
        address: Box<PostgresAddress>,
        /// A folder that all replicas see, for segments of the archive.
        archive: Option<PathBuf>,
    },
}

impl Storage {
    /// A database without an archive.
    #[must_use]
    pub fn database(address: PostgresAddress) -> Self {
        Self::Database {
            address: Box::new(address),
            archive: None,
        }
    }
}

/// To whom an empty platform belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Founder {
    /// To whoever owns the data directory, with an org `local`.
    Local,
    /// To whoever has the invite that is made.
    Invited,
}

/// What a second fold of the whole ledger gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The last event in it.
    pub seq: u64,
    /// The views that are not as readers have them; none in a sound replica.
    pub differ: Vec<&'static str>,
    /// The digest of every view.
    pub digests: BTreeMap<&'static str, Digest>,
}

/// Why a platform can't be opened or begun.
#[derive(Debug, thiserror::Error)]
pub enum OpenPlatformError {
    /// The ledger can't be opened.
    #[error("the platform's ledger can't be opened")]
    Ledger(#[from] OpenLedgerError),
    /// Whether the ledger is what was written can't be found out.
    #[error("the platform's ledger can't be checked")]
    Check(#[from] Box<CheckError>),
    /// What is kept beside it can't be opened.
    #[error("what is kept beside the platform's ledger can't be opened")]
    Aside(#[from] AsideError),
    /// The state can't be folded.
    #[error("the platform's state can't be read")]
    State(#[from] StartSequencerError),
    /// The system gives no random bits.
    #[error("no identifiers can be made")]
    Random(#[from] NoRandomness),
    /// The platform can't begin.
    #[error("an empty ledger can't be begun")]
    Begin(#[from] SubmitError),
    /// This version does not know all events that may be appended.
    #[error(
        "this version of fluffy reads events of version {reads}, and the ledger may hold those of \
         version {wanted}"
    )]
    TooOld {
        /// Which version of readers this is.
        reads: u64,
        /// The version that every reader has, as the ledger says.
        wanted: u64,
    },
    /// The runtime shuts down.
    #[error("the runtime ended while the platform was opened")]
    Interrupted,
}

impl Platform {
    /// Opens what is stored, and folds it to its end.
    ///
    /// # Errors
    /// See [`OpenPlatformError`].
    pub async fn open(
        storage: &Storage,
        options: LedgerOptions,
    ) -> Result<Self, OpenPlatformError> {
        Self::open_as(storage, options, Build::default()).await
    }

    /// Opens what is stored as this build would.
    pub(crate) async fn open_as(
        storage: &Storage,
        options: LedgerOptions,
        build: Build,
    ) -> Result<Self, OpenPlatformError> {
        let (clock, signing) = (Arc::clone(&options.clock), options.signing.clone());
        let (ledger, aside) = match storage {
            Storage::Directory(directory) => {
                let ledger = directory.join("ledger");
                let open = move || Ledger::open(&ledger, options);
                let ledger = blocking(open).await??;
                (ledger, Aside::open(directory)?)
            }
            Storage::Database { address, .. } => {
                let aside = Aside::open_postgres(address).await?;
                let address = address.clone();
                let open = move || Ledger::open_postgres(&address, options);
                (blocking(open).await??, aside)
            }
        };
        let archive = match storage {
            Storage::Directory(directory) => Some(directory.join("ledger").join(ARCHIVE)),
            Storage::Database { archive, .. } => archive.clone(),
        };
        let (checked, signed) = (ledger.clone(), signing.clone());
        let look = move || {
            let on_break = OnBreak::RefuseWrites;
            checked.check_newest(CHECKED, signed.as_ref(), on_break)
        };
        if let Health::Broken(finding) = blocking(look).await?.map_err(Box::new)? {
            tracing::error!(
                seq = finding.seq,
                detail = finding.detail,
                "the ledger is not what was written: nothing is changed on it until that is \
                 accepted by its number"
            );
        }
        let room = match storage {
            Storage::Directory(directory) => Some(Arc::new(Room::new(directory.join("ledger")))),
            Storage::Database { .. } => None,
        };
        let snapshots = Snapshots::new(aside.clone());
        let figures: Arc<Figures> = Arc::default();
        let counting = Arc::clone(&figures);
        let options: SequencerOptions<State> = SequencerOptions {
            recall: snapshots.recall(Handle::current()),
            archive: archive.clone(),
            clock: Arc::clone(&clock),
            since: build.since,
            seen: Arc::new(move |event| counting.see(event)),
        };
        let replica = RequestId::generate().to_string();
        let sign = match storage {
            Storage::Directory(_) => None,
            Storage::Database { .. } => {
                let sign = Sign::new(aside.clone(), replica.clone(), build.reads);
                // Before anything is read: what is appended from now on is
                // what this replica knows.
                sign.say().await?;
                Some(Arc::new(sign))
            }
        };
        let folded = ledger.clone();
        let sequencer = blocking(move || Sequencer::start(folded, options)).await??;
        let wanted = sequencer.read(|state| state.runtime.cluster.reader_version);
        if wanted > build.reads {
            if let Some(sign) = &sign {
                sign.take_back().await;
            }
            let reads = build.reads;
            return Err(OpenPlatformError::TooOld { reads, wanted });
        }
        let (stop, stopped) = watch::channel(false);
        let (saved, kept) = (sequencer.clone(), snapshots.clone());
        let (said, unsaid) = (sign.clone(), stopped.clone());
        let (watched, unwatched) = (room.clone(), stopped.clone());
        let saving = tokio::spawn(async move {
            let say = async {
                if let Some(sign) = said {
                    sign.keep(unsaid).await;
                }
            };
            let look = async {
                if let Some(room) = watched {
                    room.watch(unwatched).await;
                }
            };
            tokio::join!(kept.keep(&saved, stopped), say, look);
        });
        Ok(Self {
            parts: Arc::new(Parts {
                ledger,
                aside,
                sequencer,
                mint: Arc::new(Mint::new(random()?)),
                clock,
                archive,
                signing,
                replica,
                build,
                figures,
                room,
                sign,
                stop,
                saving: tokio::sync::Mutex::new(Some(saving)),
                snapshots,
            }),
        })
    }

    /// Begins an empty platform; the code of its first invite, if there is one
    /// and this replica made it. While nobody has come in there is another at
    /// every start: the one before may have been lost before anybody saw it.
    /// Those that other replicas showed stay good until one is used.
    ///
    /// # Errors
    /// The ledger or what is kept beside it is not available.
    pub async fn begin(&self, founder: Founder) -> Result<Option<SecretString>, OpenPlatformError> {
        let (begun, awaited) = self.sequencer().read(|state| {
            let begun = state.metas.contains_key("cluster");
            (begun, state.access.awaited().is_some())
        });
        let again = begun && awaited && founder == Founder::Invited;
        // What is broken is shown all the same, and invites nobody.
        if begun && (!again || self.ledger().refused_since().is_some()) {
            return Ok(None);
        }
        let hashes = Hashes::new(self.aside().clone());
        let invite = match founder {
            Founder::Local => None,
            Founder::Invited => Some(self.invite(&hashes).await?),
        };
        let notice = match &invite {
            Some((id, _)) if again => AccessNotice::InvitedAgain(*id),
            _ => AccessNotice::Bootstrap(self.bootstrap(invite.as_ref().map(|(id, _)| *id))?),
        };
        let notice = Notice::Access(notice);
        let said = self.notice("bootstrap", None, notice).await?;
        let Some((_, credential)) = invite else {
            return Ok(None);
        };
        match said.reply {
            Reply::Wrote(Outcome::Done { .. }) => Ok(Some(credential.text)),
            // Another replica was first, or somebody came in.
            _ => {
                hashes
                    .forget(CredentialKind::Invite, credential.hash)
                    .await?;
                Ok(None)
            }
        }
    }

    /// A fresh invite, whose hash is put aside.
    async fn invite(&self, hashes: &Hashes) -> Result<(TokenId, Credential), OpenPlatformError> {
        let id = TokenId::from_bits(self.parts.mint.bits(self.parts.clock.now()));
        let credential = Credential::generate(CredentialKind::Invite)?;
        let (kind, hash) = (CredentialKind::Invite, credential.hash);
        hashes
            .keep(kind, hash, &id.to_string(), Some(INVITE))
            .await?;
        Ok((id, credential))
    }

    /// How this platform begins.
    fn bootstrap(&self, invite: Option<TokenId>) -> Result<Bootstrap, NoRandomness> {
        let [a, b, c, d, e, ..] = random()?;
        Ok(Bootstrap {
            ledger_id: self.ledger().id(),
            // A range of the kind that everyone may use, and hardly anyone
            // else has the same.
            ipv6_prefix: format!("fd{a:02x}:{b:02x}{c:02x}:{d:02x}{e:02x}::/48"),
            invite,
        })
    }

    /// Accepts by name that the ledger is not what was written, and lets it be
    /// written again.
    ///
    /// # Errors
    /// Writing is not refused for that event, or the ledger can't be written.
    pub async fn accept_break(&self, seq: u64, actor: Actor) -> Result<(), AcceptBreakError> {
        let ledger = self.ledger().clone();
        let accepted = spawn_blocking(move || ledger.accept_break(seq, actor)).await;
        accepted.unwrap_or(Err(AcceptBreakError::Record {
            seq,
            source: AppendError::Closed,
        }))
    }

    /// Opens a new epoch, because the database was put back to an earlier point
    /// while no replica ran that would have noticed.
    ///
    /// # Errors
    /// The ledger can't be written.
    pub async fn restored(&self) -> Result<(), AppendError> {
        let appended = self.ledger().append(fold::restored(self.ledger()));
        appended.await.map(drop)
    }

    /// Submits what a part of the platform itself has to say.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub async fn notice(
        &self,
        part: &str,
        fence: Option<Fence>,
        notice: Notice,
    ) -> Result<Answer<Reply>, SubmitError> {
        self.ask(part, fence, Ask::Notice(notice)).await
    }

    /// Submits what somebody other than the platform has to say, such as a
    /// node whose certificate was checked.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub async fn notice_of(
        &self,
        caller: Caller,
        notice: Notice,
    ) -> Result<Answer<Reply>, SubmitError> {
        self.submit(caller, Ask::Notice(notice)).await
    }

    /// Begins the next term of a lease; its number, if that can be recorded.
    pub async fn lead(&self, lease: &str) -> Option<u64> {
        let ask = Ask::Lead {
            lease: lease.to_owned(),
            replica: self.parts.replica.clone(),
        };
        match self.ask(lease, None, ask).await {
            Ok(Answer {
                reply: Reply::Term(term),
                ..
            }) => Some(term),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(
                    lease,
                    error = &error as &dyn std::error::Error,
                    "no term could begin"
                );
                None
            }
        }
    }

    async fn ask(
        &self,
        part: &str,
        fence: Option<Fence>,
        ask: Ask,
    ) -> Result<Answer<Reply>, SubmitError> {
        let caller = Caller {
            kind: CallerKind::System(fence),
            actor: Actor::system(part),
        };
        self.submit(caller, ask).await
    }

    async fn submit(&self, caller: Caller, ask: Ask) -> Result<Answer<Reply>, SubmitError> {
        let job = Job {
            caller,
            request_id: RequestId::generate().to_string(),
            now: self.parts.clock.now(),
            idempotency: None,
            if_match: None,
            mint: Arc::clone(&self.parts.mint),
            ask,
        };
        self.decide(job).await
    }

    /// Has a job decided, and counts what could not be given.
    pub(crate) async fn decide(&self, job: Job) -> Result<Answer<Reply>, SubmitError> {
        let answer = self.sequencer().submit(job).await?;
        self.figures().note(&answer.reply);
        Ok(answer)
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.parts.ledger
    }

    /// What is kept beside it.
    #[must_use]
    pub fn aside(&self) -> &Aside {
        &self.parts.aside
    }

    /// Decides and appends, and holds the state.
    #[must_use]
    pub fn sequencer(&self) -> &Sequencer<State> {
        &self.parts.sequencer
    }

    /// Where new ids come from.
    #[must_use]
    pub fn mint(&self) -> &Arc<Mint> {
        &self.parts.mint
    }

    /// Where the time comes from.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.parts.clock
    }

    /// The name of this replica, which no other process ever had.
    #[must_use]
    pub fn replica(&self) -> &str {
        &self.parts.replica
    }

    /// Whether there can be no other replica.
    pub(crate) fn is_alone(&self) -> bool {
        self.parts.sign.is_none()
    }

    /// What was counted here.
    pub(crate) fn figures(&self) -> &Figures {
        &self.parts.figures
    }

    /// How full the disk of the ledger is, where this process sees it.
    pub(crate) fn room(&self) -> Option<Fill> {
        self.parts.room.as_ref()?.look()
    }

    /// What this build reads and writes.
    pub(crate) fn build(&self) -> Build {
        self.parts.build
    }

    /// Where archived segments are, if anywhere.
    pub(crate) fn archive(&self) -> Option<&PathBuf> {
        self.parts.archive.as_ref()
    }

    /// How this replica signs checkpoints, if it does.
    pub(crate) fn signing(&self) -> Option<&Signing> {
        self.parts.signing.as_ref()
    }

    /// Saved folds of the state.
    pub(crate) fn snapshots(&self) -> &Snapshots<State> {
        &self.parts.snapshots
    }

    /// Folds the ledger from its first event to where readers are now, while
    /// they go on, and compares; where something differs, readers get what was
    /// folded, and no snapshot of before is used again. What is in the archive
    /// and in the ledger is read where it is said.
    ///
    /// # Errors
    /// The ledger or the archive can't be read, or an event is not known.
    pub async fn rebuild(&self, from_archive: bool) -> Result<Rebuilt, FoldError> {
        let (ledger, held) = (self.ledger().clone(), self.sequencer().save());
        let archive = self.parts.archive.clone();
        let folding = spawn_blocking(move || {
            let seq = held.position.seq;
            let archived = match from_archive {
                true => seq,
                false => ledger.first_hot()? - 1,
            };
            let archive = archive.as_deref().filter(|_| archived > 0);
            let archive = archive.map(|folder| (folder, archived));
            let folded = fold::refold_to::<State>(&ledger, seq, archive)?;
            let digests = folded.machine.digests();
            let differ = |(view, digest): (&'static str, Digest)| {
                (digests.get(view) != Some(&digest)).then_some(view)
            };
            let held = held.machine.digests().into_iter();
            let differ: Vec<_> = held.filter_map(differ).collect();
            let rebuilt = Rebuilt {
                seq,
                differ,
                digests,
            };
            Ok::<_, FoldError>((rebuilt, folded))
        });
        let (rebuilt, folded) = folding.await.map_err(|_| FoldError::Interrupted)??;
        if !rebuilt.differ.is_empty() {
            tracing::error!(
                views = rebuilt.differ.join(", "),
                seq = rebuilt.seq,
                "views were not what the ledger says; they are replaced"
            );
            self.sequencer().install(folded).await?;
            // One of them may be where the difference came from. What is left
            // is of a state before, which the next rebuild would find again.
            if let Err(error) = self.snapshots().forget().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "snapshots of the wrong views may be left");
            }
        }
        Ok(rebuilt)
    }

    /// Takes a last snapshot, decides what waits, and closes the ledger.
    pub async fn close(&self) {
        self.parts.stop.send_replace(true);
        if let Some(saving) = self.parts.saving.lock().await.take() {
            // It only ends early if the runtime does.
            let _ = saving.await;
        }
        let (sequencer, ledger) = (self.sequencer().clone(), self.ledger().clone());
        let closed = blocking(move || {
            sequencer.close();
            ledger.close()
        });
        if let Ok(Err(error)) = closed.await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the ledger was not closed well"
            );
        }
        if let Some(sign) = &self.parts.sign {
            sign.take_back().await;
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OpenPlatformError> {
    spawn_blocking(work)
        .await
        .map_err(|_| OpenPlatformError::Interrupted)
}

fn random() -> Result<[u8; 32], NoRandomness> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|_| NoRandomness)?;
    Ok(bits)
}
