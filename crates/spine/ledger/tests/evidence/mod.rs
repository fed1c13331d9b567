//! A ledger with checkpoints at known sizes, and copies of it to attack.
//!
//! Shared by the tests of verification and proofs; knows the tables because an
//! attacker does.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests; each test file uses its own part of the kit"
)]

use std::fs;
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_ledger::verify::{Finding, FindingKind, Verification, VerifyOptions, verify_path};
use fluffy_ledger::{
    Actor, ActorKind, Aggregate, Batch, Domain, Draft, Ledger, LedgerOptions, PublicKey, Scope,
    Signing,
};
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

/// The sizes at which the ledger of [`Site::new`] has a checkpoint.
pub(crate) const SIZES: [u64; 3] = [150, 300, 400];

/// A ledger, and apart from it its key and checkpoints.
pub(crate) struct Site {
    home: TempDir,
}

impl Site {
    /// 400 events with checkpoints at [`SIZES`], closed.
    pub(crate) fn new() -> Self {
        let site = Self::empty();
        let mut from = 1;
        for size in SIZES {
            site.grow(from, size, "honest");
            from = size + 1;
        }
        site
    }

    pub(crate) fn empty() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.home.path().join("ledger")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.ledger().join("ledger.db")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn signing(&self) -> Signing {
        Signing::in_directory(&self.home.path().join("trust"))
    }

    pub(crate) fn open(&self) -> Ledger {
        Ledger::open(&self.ledger(), self.options()).unwrap()
    }

    pub(crate) fn options(&self) -> LedgerOptions {
        LedgerOptions {
            signing: Some(self.signing()),
            ..LedgerOptions::default()
        }
    }

    pub(crate) fn key(&self) -> PublicKey {
        fluffy_ledger::SigningKeyFile::open(&self.signing().key)
            .unwrap()
            .public_key()
    }

    pub(crate) fn checkpoints(&self) -> String {
        fs::read_to_string(self.signing().checkpoints).unwrap()
    }

    /// Appends the events of these positions; a checkpoint follows.
    pub(crate) fn grow(&self, from: u64, to: u64, word: &str) {
        let ledger = self.open();
        let drafts = (from..=to).map(|number| draft(number, word)).collect();
        ledger.append_blocking(Batch::new(drafts)).unwrap();
        ledger.close().unwrap();
    }

    /// The same files somewhere else, as they are now.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::empty();
        copy_directory(self.home.path(), copy.home.path());
        copy
    }

    /// What a verifier who holds the checkpoints and the key finds.
    pub(crate) fn verify(&self) -> Verification {
        verify_path(&self.ledger(), &self.witnessed()).unwrap()
    }

    /// What a verifier who holds nothing finds.
    pub(crate) fn verify_alone(&self) -> Verification {
        verify_path(&self.ledger(), &VerifyOptions::default()).unwrap()
    }

    pub(crate) fn witnessed(&self) -> VerifyOptions {
        VerifyOptions {
            against: vec![self.checkpoints()],
            key: Some(self.key()),
            ..VerifyOptions::default()
        }
    }

    /// Changes the database as whoever has its file can.
    pub(crate) fn attack(&self, sql: &str) {
        let connection = self.attacker();
        connection
            .execute_batch(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) fn attacker(&self) -> Connection {
        let connection = Connection::open(self.database()).unwrap();
        connection
            .execute_batch(
                "DROP TRIGGER IF EXISTS events_are_never_updated;
                 DROP TRIGGER IF EXISTS events_are_only_pruned;
                 DROP INDEX IF EXISTS events_by_aggregate;",
            )
            .unwrap();
        connection
    }
}

/// The first bad event and what is wrong with it.
pub(crate) fn found(verification: &Verification) -> Option<(u64, FindingKind)> {
    let finding: &Finding = verification.verdict.as_ref().err()?;
    assert!(!finding.detail.is_empty());
    Some((finding.seq, finding.kind))
}

/// An event with every field, or with none that may be left out.
pub(crate) fn draft(number: u64, word: &str) -> Draft {
    let aggregate = Aggregate::new("session", format!("s{}", number % 7));
    let actor = Actor::new(ActorKind::User, "alice");
    let payload = json!({"number": number, "word": word, "text": "ü \"quoted\" \\ and more"});
    let plain = |actor| {
        Draft::new(Domain::Agent, aggregate.clone(), "tool.execute", actor).payload(payload.clone())
    };
    if number.is_multiple_of(2) {
        return plain(actor);
    }
    plain(actor.on_behalf_of("bob"))
        .scope(Scope {
            org_id: Some("org".to_owned()),
            app_id: Some("app".to_owned()),
            env_id: Some("env".to_owned()),
        })
        .request(format!("request-{number}"))
        .idempotency(format!("key-{number}"))
        .correlation("story")
        .caused_by(1)
        .decided_by(2)
}

/// Every file below a directory with its size and digest.
pub(crate) fn contents(directory: &Path) -> Vec<(PathBuf, usize, Digest)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            files.push((path, bytes.len(), Digest::of(&bytes)));
        }
    }
    files.sort();
    files
}

fn copy_directory(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
