//! The proof that a ledger only grew from one checkpoint to a later one.
//!
//! Whoever kept the older checkpoint can check it without the ledger: events
//! were added, and none of the old ones was changed.

use std::fmt;

use fluffy_base::Digest;

use super::{CheckProofError, ParseProofError, ProveError, parse_path, split, write_path};
use crate::checkpoint::SignedCheckpoint;
use crate::key::PublicKey;
use crate::ledger::Ledger;
use crate::tree;

const HEADER: &str = "fluffy-ledger-growth-1";

/// The proof that the newer tree starts with the older one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrowthProof {
    /// The older checkpoint.
    pub old: SignedCheckpoint,
    /// The newer one.
    pub new: SignedCheckpoint,
    /// The hashes that lead from both roots to common ones.
    pub path: Vec<Digest>,
}

impl Ledger {
    /// Proves that the ledger of the newer checkpoint grew out of the older.
    ///
    /// # Errors
    /// The ledger does not have that many events, or does not lead from the
    /// one to the other.
    pub fn prove_growth(
        &self,
        old: SignedCheckpoint,
        new: SignedCheckpoint,
    ) -> Result<GrowthProof, ProveError> {
        let (from, to) = (old.checkpoint.size, new.checkpoint.size);
        let seq = from.max(to);
        if seq > self.head()?.seq {
            return Err(ProveError::NoSuchEvent { seq });
        }
        let mut source = &*self.shared.engine;
        let path = tree::consistency(&mut source, from, to).map_err(|error| self.lost(error))?;
        let proof = GrowthProof { old, new, path };
        if proof.leads() {
            Ok(proof)
        } else {
            Err(ProveError::Broken { size: to })
        }
    }
}

impl GrowthProof {
    /// Reads a proof.
    ///
    /// # Errors
    /// The text is not a proof of growth.
    pub fn parse(text: &str) -> Result<Self, ParseProofError> {
        let (lines, notes) = split(text, HEADER)?;
        let paths = lines.strip_prefix("steps").ok_or(ParseProofError::Shape)?;
        let paths = match paths.strip_prefix('\n') {
            Some(paths) => parse_path(paths.split('\n'))?,
            None if paths.is_empty() => Vec::new(),
            None => return Err(ParseProofError::Shape),
        };
        let mut notes = crate::checkpoint::parse_checkpoints(notes)
            .map_err(|(_, error)| ParseProofError::from(error))?
            .into_iter();
        match (notes.next(), notes.next(), notes.next()) {
            (Some(old), Some(new), None) => Ok(Self {
                old,
                new,
                path: paths,
            }),
            _ => Err(ParseProofError::Shape),
        }
    }

    /// Whether the ledger whose key this is only grew between the two.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self, key: &PublicKey) -> Result<(), CheckProofError> {
        if !self.old.is_signed_by(key) || !self.new.is_signed_by(key) {
            return Err(CheckProofError::Signature);
        }
        if self.old.checkpoint.origin != self.new.checkpoint.origin {
            return Err(CheckProofError::OtherLedger);
        }
        if !self.leads() {
            return Err(CheckProofError::Path);
        }
        Ok(())
    }

    fn leads(&self) -> bool {
        let (old, new) = (&self.old.checkpoint, &self.new.checkpoint);
        tree::check_consistency((old.size, old.root), (new.size, new.root), &self.path)
    }
}

impl fmt::Display for GrowthProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}\nsteps")?;
        write_path(f, &self.path)?;
        write!(f, "\n{}\n{}", self.old, self.new)
    }
}
