//! Proofs that need no ledger: that an event is in one, that one grew.
//!
//! A proof is text: a header, the event, the path through the tree, and the
//! signed checkpoint it leads to. Checking believes the pinned key and nothing
//! else. Proofs of growth are in `proof/growth.rs`.

mod archived;
mod growth;
mod page;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_base::Digest;

pub use growth::GrowthProof;
pub use page::{ProvenPage, Stretch};

use crate::chain::Head;
use crate::checkpoint::{self, Notary, ParseCheckpointError, SignError, SignedCheckpoint, Signing};
use crate::error::{AppendError, StoreError};
use crate::event::Event;
use crate::export::{MAX_LINE, ParseLineError, parse_line};
use crate::key::{PublicKey, SigningKeyFile};
use crate::ledger::Ledger;
use crate::row::RowRef;
use crate::tree;
use archived::Leaves;

const HEADER: &str = "fluffy-ledger-proof-1";
/// No path is longer: positions have 64 bits, and a proof of growth names
/// at most one node more than that.
const MAX_PATH: usize = 65;
/// The longest proof that is read.
const MAX_PROOF: usize = MAX_LINE + 2 * checkpoint::MAX_NOTE + 64 * MAX_PATH;

/// The proof that one event is in a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The event.
    pub event: Event,
    /// The hashes beside the way from the event to the root.
    pub path: Vec<Digest>,
    /// The checkpoint whose root it leads to.
    pub checkpoint: SignedCheckpoint,
}

/// Why a text is not a proof.
#[derive(Debug, thiserror::Error)]
pub enum ParseProofError {
    /// Longer than any proof.
    #[error("the proof is longer than {MAX_PROOF} bytes")]
    TooLong,
    /// Not the header, lines and checkpoint of a proof.
    #[error("the text is not a proof of a known format")]
    Shape,
    /// The event can't be understood.
    #[error("the event of the proof can't be understood")]
    Event(#[from] ParseLineError),
    /// A line of the path is no hash, or there are too many.
    #[error("the path of the proof can't be understood")]
    Path,
    /// A checkpoint can't be understood.
    #[error("a checkpoint of the proof can't be understood")]
    Checkpoint(#[from] ParseCheckpointError),
}

/// Why a proof proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckProofError {
    /// The checkpoint is signed by someone else.
    #[error("the checkpoint is not signed by the pinned key")]
    Signature,
    /// The event was changed.
    #[error("the event's fields do not give its hash")]
    Event,
    /// The path leads elsewhere.
    #[error("the path does not lead from the event to the checkpoint")]
    Path,
    /// The checkpoints are of two ledgers.
    #[error("the two checkpoints are of different ledgers")]
    OtherLedger,
}

/// Why a proof could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// There is no such event.
    #[error("there is no event {seq} in the ledger")]
    NoSuchEvent {
        /// The position asked for.
        seq: u64,
    },
    /// The events that the path needs were archived away.
    #[error("event {seq} was archived away, and its segment was not given")]
    Archived {
        /// The first event that is missing.
        seq: u64,
    },
    /// The ledger can't be read.
    #[error("the ledger can't be read")]
    Store(#[from] StoreError),
    /// What is buffered can't be written.
    #[error("the ledger can't be written")]
    Append(#[from] AppendError),
    /// No checkpoint can be signed.
    #[error("no checkpoint can be signed")]
    Sign(#[from] SignError),
    /// What is stored does not lead to the checkpoint: it was tampered with.
    #[error("the stored tree does not lead to the checkpoint of {size} events")]
    Broken {
        /// The size of the checkpoint.
        size: u64,
    },
}

impl Ledger {
    /// Proves that an event is in the ledger; blocks.
    ///
    /// Uses the newest checkpoint that covers the event, and signs a fresh
    /// one if there is none.
    ///
    /// # Errors
    /// There is no such event, it was archived away, or the ledger is broken.
    pub fn prove(&self, seq: u64, signing: &Signing) -> Result<Proof, ProveError> {
        self.prove_with_archives(seq, signing, &[])
    }

    /// As [`Ledger::prove`], also for events in archive segments that are
    /// given, oldest first.
    ///
    /// # Errors
    /// As [`Ledger::prove`].
    pub fn prove_with_archives(
        &self,
        seq: u64,
        signing: &Signing,
        archives: &[PathBuf],
    ) -> Result<Proof, ProveError> {
        let mut leaves = Leaves {
            engine: &self.shared.engine,
            archives,
        };
        let checkpoint = self.covering(seq, signing, &mut leaves)?;
        let (size, root) = (checkpoint.checkpoint.size, checkpoint.checkpoint.root);
        let event = if seq < self.first_hot()? {
            let archived = leaves.event(seq)?;
            archived.ok_or(ProveError::Archived { seq })?
        } else {
            let hot = self.shared.engine.read(seq, 1)?.into_iter().next();
            hot.ok_or(ProveError::NoSuchEvent { seq })?
        };
        let path = tree::inclusion(&mut leaves, seq - 1, size).map_err(|error| self.lost(error))?;
        let proof = Proof {
            event,
            path,
            checkpoint,
        };
        let fits = tree::check_inclusion(&proof.event.hash, seq - 1, (size, root), &proof.path);
        if fits && proof.is_hashed() {
            Ok(proof)
        } else {
            Err(ProveError::Broken { size })
        }
    }

    /// The newest checkpoint of at least `seq` events that the ledger's key
    /// signed, of those that were kept lately; signs one and keeps it, durably,
    /// if there is none.
    ///
    /// # Errors
    /// There are fewer events, or no checkpoint can be signed.
    pub fn checkpoint_covering(
        &self,
        seq: u64,
        signing: &Signing,
    ) -> Result<SignedCheckpoint, ProveError> {
        let mut leaves = Leaves {
            engine: &self.shared.engine,
            archives: &[],
        };
        self.covering(seq, signing, &mut leaves)
    }

    /// A checkpoint of all events there are, signed for whoever asks and kept
    /// nowhere here: however often somebody asks, nothing fills up. What is
    /// kept is signed every so many events, whoever asks.
    ///
    /// # Errors
    /// There is no event, or no checkpoint can be signed.
    pub fn checkpoint_of_all(&self, signing: &Signing) -> Result<SignedCheckpoint, ProveError> {
        let key = SigningKeyFile::open_or_create(&signing.key).map_err(SignError::from)?;
        let head = self.durable_head()?;
        if head.seq == 0 {
            return Err(ProveError::NoSuchEvent { seq: 0 });
        }
        let origin = checkpoint::origin(self.id());
        Ok(SignedCheckpoint::of_head(origin, &head, &key))
    }

    fn covering(
        &self,
        seq: u64,
        signing: &Signing,
        leaves: &mut Leaves<'_>,
    ) -> Result<SignedCheckpoint, ProveError> {
        let key = SigningKeyFile::open_or_create(&signing.key).map_err(SignError::from)?;
        let head = self.shared.engine.head()?;
        if seq == 0 || seq > head.seq {
            return Err(ProveError::NoSuchEvent { seq });
        }
        let origin = checkpoint::origin(self.id());
        let mut kept = checkpoint::newest_notes(&signing.checkpoints, &origin)?;
        kept.retain(|note| (seq..=head.seq).contains(&note.checkpoint.size));
        kept.sort_by_key(|note| std::cmp::Reverse(note.checkpoint.size));
        for note in kept {
            if note.is_signed_by(&key.public_key()) && is_of(&note, &head, leaves)? {
                return Ok(note);
            }
        }
        let head = self.durable_head()?;
        let mut notary = Notary::new(signing.clone(), self.id(), 0).map_err(SignError::from)?;
        Ok(notary.sign(&head)?)
    }

    /// The end of the chain, once it is on the disk: a checkpoint of events
    /// that a power cut could undo would accuse an honest ledger of truncation.
    fn durable_head(&self) -> Result<Head, ProveError> {
        self.flush_blocking()?;
        Ok(self.shared.engine.head()?)
    }

    /// A leaf that is gone because it was archived is no damage.
    fn lost(&self, error: StoreError) -> ProveError {
        match error {
            StoreError::SequenceGap { seq } if self.first_hot().is_ok_and(|hot| seq < hot) => {
                ProveError::Archived { seq }
            }
            other => other.into(),
        }
    }
}

/// Whether a checkpoint is of this history. A ledger that was put back to an
/// earlier point has its own key's signatures on another one.
fn is_of(
    note: &SignedCheckpoint,
    head: &Head,
    leaves: &mut Leaves<'_>,
) -> Result<bool, StoreError> {
    let signed = &note.checkpoint;
    let root = match signed.size == head.seq {
        true => Ok(head.frontier.root()),
        false => tree::range_root(leaves, 0, signed.size),
    };
    match root {
        Ok(root) => Ok(root == signed.root),
        // What it takes to tell was archived away.
        Err(StoreError::SequenceGap { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Proof {
    /// Reads a proof.
    ///
    /// # Errors
    /// The text is not a proof.
    pub fn parse(text: &str) -> Result<Self, ParseProofError> {
        let (lines, note) = split(text, HEADER)?;
        let mut lines = lines.split('\n');
        let event = lines.next().and_then(|line| line.strip_prefix("event "));
        let event = parse_line(event.ok_or(ParseProofError::Shape)?)?;
        Ok(Self {
            event,
            path: parse_path(lines)?,
            checkpoint: SignedCheckpoint::parse(note)?,
        })
    }

    /// Whether the event is in the ledger whose key this is.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self, key: &PublicKey) -> Result<(), CheckProofError> {
        if !self.checkpoint.is_signed_by(key) {
            return Err(CheckProofError::Signature);
        }
        if !self.is_hashed() {
            return Err(CheckProofError::Event);
        }
        let index = self.event.seq.checked_sub(1).ok_or(CheckProofError::Path)?;
        let signed = &self.checkpoint.checkpoint;
        let tree = (signed.size, signed.root);
        if !tree::check_inclusion(&self.event.hash, index, tree, &self.path) {
            return Err(CheckProofError::Path);
        }
        Ok(())
    }

    fn is_hashed(&self) -> bool {
        let hash = RowRef::of(&self.event).expected_hash(&self.event.prev_hash, &mut String::new());
        hash == self.event.hash
    }
}

impl FromStr for Proof {
    type Err = ParseProofError;

    fn from_str(text: &str) -> Result<Self, ParseProofError> {
        Self::parse(text)
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        RowRef::of(&self.event).write_export(&mut line);
        writeln!(f, "{HEADER}\nevent {line}")?;
        write_path(f, &self.path)?;
        write!(f, "\n{}", self.checkpoint)
    }
}

/// The lines after the header, and what follows the blank line.
fn split<'t>(text: &'t str, header: &str) -> Result<(&'t str, &'t str), ParseProofError> {
    if text.len() > MAX_PROOF {
        return Err(ParseProofError::TooLong);
    }
    text.strip_prefix(header)
        .and_then(|rest| rest.strip_prefix('\n'))
        .and_then(|rest| rest.split_once("\n\n"))
        .ok_or(ParseProofError::Shape)
}

fn parse_path<'t>(lines: impl Iterator<Item = &'t str>) -> Result<Vec<Digest>, ParseProofError> {
    let mut path = Vec::new();
    for line in lines {
        let hash = line
            .strip_prefix("path ")
            .and_then(|text| STANDARD.decode(text).ok()?.try_into().ok());
        if path.len() >= MAX_PATH {
            return Err(ParseProofError::Path);
        }
        path.push(Digest(hash.ok_or(ParseProofError::Path)?));
    }
    Ok(path)
}

fn write_path(f: &mut fmt::Formatter<'_>, path: &[Digest]) -> fmt::Result {
    path.iter()
        .try_for_each(|hash| writeln!(f, "path {}", STANDARD.encode(hash.as_bytes())))
}
