//! Parsers of the ledger: checkpoints, proofs, export lines.

use fluffy_ledger::checkpoint::{SignedCheckpoint, parse_checkpoints};
use fluffy_ledger::export::{parse_header, parse_line};
use fluffy_ledger::proof::{GrowthProof, Proof};
use fluffy_ledger::{Excerpt, ProvenEvent};

use crate::as_text;

/// What is printed reads back as the same notes.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let _ = parse_checkpoints(text);
    if let Ok(note) = SignedCheckpoint::parse(text) {
        let printed = note.to_string();
        assert_eq!(SignedCheckpoint::parse(&printed).as_ref(), Ok(&note));
    }
}

/// A proof that reads is one that prints and reads again.
pub(crate) fn proof(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let _ = GrowthProof::parse(text);
    if let Ok(proof) = Proof::parse(text) {
        let again = Proof::parse(&proof.to_string());
        assert!(again.is_ok_and(|again| again == proof));
    }
}

/// No line of an export panics.
pub(crate) fn export_line(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let _ = parse_line(text);
    let _ = parse_header(text);
    let _ = Excerpt::parse(text);
    let _ = ProvenEvent::parse(text);
}
