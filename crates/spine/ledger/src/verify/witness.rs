//! The checkpoints a chain is held against, in the order of their sizes.
//!
//! Knows only sizes and roots: the walk tells it each root it passes. A key is
//! only believed if the caller pinned it.

use fluffy_base::Digest;

use super::VerifyError;
use super::finding::{Finding, FindingKind};
use crate::checkpoint::{SignedCheckpoint, parse_checkpoints};
use crate::key::PublicKey;

/// What the checkpoints have said so far.
#[derive(Debug, Default)]
pub(super) struct Witness {
    /// Of this ledger, smallest first, each size and root once.
    notes: Vec<SignedCheckpoint>,
    /// For each note, the files it stands in.
    files: Vec<Vec<usize>>,
    /// The index of the next one to meet.
    next: usize,
    /// Events up to here are as this file says. By file, because an attacker
    /// may have written one of them: it must not vouch against the others.
    good: Vec<u64>,
    checked: u64,
    /// Too old to be met: they lie before the start of the walk.
    passed: u64,
    finding: Option<Finding>,
}

impl Witness {
    /// Reads the notes of the ledger called `origin` out of whole files.
    pub(super) fn new(
        texts: &[String],
        origin: &str,
        key: Option<&PublicKey>,
    ) -> Result<Self, VerifyError> {
        let mut notes = Vec::new();
        let mut others = 0u64;
        for (file, text) in texts.iter().enumerate() {
            let parsed = parse_checkpoints(text)
                .map_err(|(note, source)| VerifyError::Checkpoint { file, note, source })?;
            for note in parsed {
                if note.checkpoint.origin == origin {
                    notes.push((file, note));
                } else {
                    others += 1;
                }
            }
        }
        let mut witness = Self {
            good: vec![0; texts.len()],
            ..Self::default()
        };
        if notes.is_empty() && others > 0 {
            let detail =
                format!("the {others} checkpoints given are of other ledgers than `{origin}`");
            witness.report(Finding::new(1, FindingKind::OtherLedger, detail));
        }
        notes.sort_by_key(|(_, note)| note.checkpoint.size);
        for (file, note) in notes {
            if key.is_some_and(|key| !note.is_signed_by(key)) {
                witness.unsigned(&note);
                continue;
            }
            // Sorted, so an equal one can only be among the last of its size.
            let same_size =
                |other: &&SignedCheckpoint| other.checkpoint.size == note.checkpoint.size;
            let mut last = witness.notes.iter().rev().take_while(same_size);
            let back = last.position(|other| other.checkpoint == note.checkpoint);
            let known = back.map(|back| witness.notes.len() - 1 - back);
            match known.and_then(|index| witness.files.get_mut(index)) {
                Some(files) => files.push(file),
                None => {
                    witness.notes.push(note);
                    witness.files.push(vec![file]);
                }
            }
        }
        Ok(witness)
    }

    /// Adds the checkpoint an archive or export carries itself.
    pub(super) fn add(&mut self, note: SignedCheckpoint, origin: &str, key: Option<&PublicKey>) {
        if note.checkpoint.origin != origin {
            let detail = format!(
                "the checkpoint it carries is of `{}`",
                note.checkpoint.origin
            );
            self.report(Finding::new(
                note.checkpoint.size,
                FindingKind::OtherLedger,
                detail,
            ));
        } else if key.is_some_and(|key| !note.is_signed_by(key)) {
            self.unsigned(&note);
        } else {
            let size = note.checkpoint.size;
            let rest = self.notes.get(self.next..).unwrap_or_default();
            let place = self.next + rest.partition_point(|other| other.checkpoint.size < size);
            self.notes.insert(place, note);
            self.files.insert(place, vec![self.good.len()]);
            self.good.push(0);
        }
    }

    /// The notes that can be believed, smallest first.
    pub(super) fn notes(&self) -> &[SignedCheckpoint] {
        &self.notes
    }

    /// Leaves out the checkpoints of fewer events than the walk starts after.
    pub(super) fn start_at(&mut self, size: u64) {
        while self.peek().is_some_and(|next| next < size) {
            self.next += 1;
            self.passed += 1;
        }
        self.good.fill(size);
    }

    /// The size of the next checkpoint.
    pub(super) fn peek(&self) -> Option<u64> {
        Some(self.notes.get(self.next)?.checkpoint.size)
    }

    /// Compares the root of the first `size` events, if a checkpoint has one.
    pub(super) fn meet(&mut self, size: u64, root: &Digest) {
        while let Some(note) = self.notes.get(self.next)
            && note.checkpoint.size == size
        {
            let files = self.files.get(self.next).map_or(&[][..], Vec::as_slice);
            let fits = note.checkpoint.root == *root;
            let mut good = u64::MAX;
            for file in files {
                if let Some(reached) = self.good.get_mut(*file) {
                    good = good.min(*reached);
                    *reached = if fits { size } else { *reached };
                }
            }
            self.next += 1;
            self.checked += 1;
            if fits {
                continue;
            }
            let first = good.saturating_add(1).min(size);
            let detail = format!(
                "events {first} to {size} are not those that the checkpoint of {size} events was signed for"
            );
            self.report(Finding::new(first, FindingKind::Rewritten, detail));
        }
    }

    /// The chain ended soundly at `size` events.
    pub(super) fn end_at(&mut self, size: u64) {
        let Some(last) = self.notes.get(self.next..).and_then(<[_]>::last) else {
            return;
        };
        let promised = last.checkpoint.size;
        let detail = format!(
            "there are {size} events, but a checkpoint was signed for {promised}: the end is missing"
        );
        self.report(Finding::new(size + 1, FindingKind::Truncated, detail));
    }

    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    pub(super) fn into_finding(self) -> Option<Finding> {
        self.finding
    }

    fn unsigned(&mut self, note: &SignedCheckpoint) {
        let size = note.checkpoint.size;
        let detail = format!("the checkpoint of {size} events is not signed by the pinned key");
        self.report(Finding::new(size, FindingKind::BadSignature, detail));
    }

    fn report(&mut self, finding: Finding) {
        if self
            .finding
            .as_ref()
            .is_none_or(|first| finding.seq < first.seq)
        {
            self.finding = Some(finding);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::key::SigningKeyFile;

    #[test]
    fn a_file_that_an_attacker_wrote_vouches_for_nothing_against_another() {
        let folder = tempfile::tempdir().unwrap();
        let key = SigningKeyFile::open_or_create(&folder.path().join("key")).unwrap();
        let note = |size, root: &[u8]| {
            let checkpoint = Checkpoint {
                origin: "o".to_owned(),
                size,
                root: Digest::of(root),
            };
            format!("{}\n", SignedCheckpoint::sign(checkpoint, &key))
        };
        // The first file fits the forged chain everywhere, the second is honest.
        let forged = note(2, b"forged 2") + &note(4, b"forged 4");
        let honest = note(3, b"honest 3");
        for texts in [[forged.clone(), honest.clone()], [honest, forged]] {
            let mut witness = Witness::new(&texts, "o", None).unwrap();
            for size in 2..=4u64 {
                witness.meet(size, &Digest::of(format!("forged {size}").as_bytes()));
            }
            assert_eq!(witness.checked(), 3);
            assert_eq!(witness.into_finding().unwrap().seq, 1);
        }
    }
}
