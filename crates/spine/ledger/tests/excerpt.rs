//! Excerpts: what is proven of one org, and what of a forged file is found.
//!
//! Every attack is tried on a file that verified before, by somebody who can
//! also write a fitting last line.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::{ManualClock, Timestamp};
use fluffy_ledger::excerpt::{
    ExcerptOptions, ExcerptVerification, ExcerptWriter, WriteExcerptError, verify_excerpt,
};
use fluffy_ledger::verify::VerifyError;
use fluffy_ledger::{
    Actor, Aggregate, Batch, Domain, Draft, Event, Excerpt, FindingKind, Ledger, LedgerOptions,
    ProveError, ProvenEvent, PublicKey, Retention, Scope, Signing, SigningKeyFile, Stretch,
    archive,
};
use serde_json::json;
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(86_400);

/// A ledger of two orgs, and apart from it its key.
struct Stage {
    folder: TempDir,
    clock: Arc<ManualClock>,
    ledger: Ledger,
    signing: Signing,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let clock = Arc::new(ManualClock::new(now));
        let signing = Signing::in_directory(&folder.path().join("notary"));
        let options = LedgerOptions {
            clock: Arc::clone(&clock) as _,
            signing: Some(signing.clone()),
            ..LedgerOptions::default()
        };
        let ledger = Ledger::open(&folder.path().join("ledger"), options).unwrap();
        Self {
            folder,
            clock,
            ledger,
            signing,
        }
    }

    /// Every other event is of `ours`, in three aggregates of each org, and in
    /// one that both have.
    fn grow(&self, count: u64) {
        let draft = |number: u64| {
            let org = ["ours", "theirs"][usize::from(!number.is_multiple_of(2))];
            let aggregate = match number % 10 < 2 {
                true => Aggregate::new("principal", "prin_both"),
                false => Aggregate::new("app", format!("app_{org}_{}", number % 3)),
            };
            let scope = Scope {
                org_id: Some(org.to_owned()),
                ..Scope::default()
            };
            let actor = Actor::system("test");
            Draft::new(Domain::Platform, aggregate, "app.updated", actor)
                .scope(scope)
                .payload(json!({ "number": number, "text": "ü \"quoted\" \\ and more" }))
        };
        let drafts = (0..count).map(draft).collect();
        self.ledger.append_blocking(Batch::new(drafts)).unwrap();
    }

    fn key(&self) -> PublicKey {
        let key = SigningKeyFile::open(&self.signing.key).unwrap();
        key.public_key()
    }

    fn excerpt(&self, after: u64) -> Excerpt {
        let head = self.ledger.head().unwrap().seq;
        Excerpt {
            ledger_id: self.ledger.id(),
            org_id: "ours".to_owned(),
            after,
            checkpoint: self
                .ledger
                .checkpoint_covering(head, &self.signing)
                .unwrap(),
            key: self.key(),
        }
    }

    fn prove(
        &self,
        after: u64,
        archives: &[PathBuf],
        org: &str,
    ) -> Result<Vec<ProvenEvent>, ProveError> {
        let size = self.ledger.head().unwrap().seq;
        let (mut after, mut items) = (after, Vec::new());
        loop {
            let stretch = Stretch {
                after,
                size,
                limit: 37,
                archives,
            };
            let of_org = |event: &Event| event.scope.org_id.as_deref() == Some(org);
            let page = self.ledger.prove_page(&stretch, of_org)?;
            items.extend(page.items);
            match page.next {
                Some(next) => after = next,
                None => return Ok(items),
            }
        }
    }

    /// The lines of an honest file.
    fn lines(&self) -> Vec<String> {
        let mut writer = ExcerptWriter::start(Vec::new(), self.excerpt(0)).unwrap();
        for item in self.prove(0, &[], "ours").unwrap() {
            writer.event(&item).unwrap();
        }
        let text = String::from_utf8(writer.end().unwrap().0).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn check_text(
        &self,
        text: &str,
        key: Option<&PublicKey>,
    ) -> Result<ExcerptVerification, VerifyError> {
        self.check_by(text, &key.copied().into_iter().collect::<Vec<_>>())
    }

    fn check_by(&self, text: &str, keys: &[PublicKey]) -> Result<ExcerptVerification, VerifyError> {
        let file = self.folder.path().join("file");
        fs::write(&file, text).unwrap();
        let shared = &["principal"];
        verify_excerpt(&file, &ExcerptOptions { keys, shared })
    }

    fn check(&self, lines: &[String]) -> ExcerptVerification {
        let text = lines.join("\n") + "\n";
        self.check_text(&text, Some(&self.key())).unwrap()
    }

    /// What is found in a file that is sound but for this.
    fn found(&self, lines: &[String]) -> Option<(u64, FindingKind)> {
        let finding = self.check(lines).verdict.err()?;
        assert!(!finding.detail.is_empty());
        Some((finding.seq, finding.kind))
    }
}

/// The last line says again what is there, as a careful forger has it.
fn sealed(mut lines: Vec<String>) -> Vec<String> {
    lines.pop();
    let seq = |line: &String| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["event"]["seq"].as_u64().unwrap()
    };
    let last = lines.last().map_or(0, seq);
    let events = lines.len() - 1;
    lines.push(format!(
        "{{\"end\":{{\"events\":{events},\"last_seq\":{last}}}}}"
    ));
    lines
}

#[test]
fn an_org_is_proven_whole_and_alone() {
    let stage = Stage::new();
    stage.grow(600);
    let lines = stage.lines();
    let seen = stage.check(&lines);
    assert_eq!((&seen.verdict, seen.events), (&Ok(()), 300));
    assert_eq!(
        sealed(lines.clone()),
        lines,
        "the forger's last line is as ours"
    );
    // What is of several orgs jumps in each, and that is told apart.
    assert!(!seen.gaps.is_empty());
    assert!(
        seen.gaps
            .iter()
            .all(|gap| gap.shared && gap.aggregate_type == "principal")
    );
    // Without a key nobody vouches, and it says so.
    let alone = stage.check_text(&(lines.join("\n") + "\n"), None).unwrap();
    assert!(alone.is_sound() && alone.trust == fluffy_ledger::Trust::Unpinned);
}

#[test]
fn what_a_forger_does_to_a_file_is_named() {
    let stage = Stage::new();
    stage.grow(300);
    let lines = stage.lines();
    assert_eq!(stage.found(&lines), None, "the control");
    let theirs = stage.prove(0, &[], "theirs").unwrap();

    // Altered: the payload, its hash with it, and then the path with that.
    let mut forged = lines.clone();
    forged[40] = forged[40].replace("quoted", "forged");
    assert_eq!(stage.found(&forged), Some((79, FindingKind::HashMismatch)));
    let mut forged = lines.clone();
    let (event, path) = lines[40].rsplit_once(",\"path\":").unwrap();
    let (_, other) = lines[41].rsplit_once(",\"path\":").unwrap();
    assert_ne!(path, other);
    forged[40] = format!("{event},\"path\":{other}");
    assert_eq!(stage.found(&forged), Some((79, FindingKind::NotProven)));

    // Dropped: the count says it, and with another count the numbers do.
    let mut forged = lines.clone();
    forged.remove(43);
    let unsealed = stage.check(&forged);
    assert!(!unsealed.is_sound());
    let (seq, kind) = stage.found(&sealed(forged)).unwrap();
    assert_eq!(kind, FindingKind::VersionGap);
    assert!(seq > 85, "{seq}");
    // The last of an aggregate leaves no gap: this is what can't be proven.
    let mut forged = lines.clone();
    let end = forged.len() - 2;
    forged.remove(end);
    assert_eq!(stage.found(&forged).unwrap().1, FindingKind::Truncated);
    assert_eq!(stage.found(&sealed(forged)), None);

    // Spliced in: an honest event of the other org, with its honest proof.
    let foreign = theirs.iter().find(|it| it.event.seq == 86).unwrap();
    let line = json!({"event": foreign.event_json(), "path": foreign.path});
    let mut forged = lines.clone();
    forged.insert(44, line.to_string());
    assert_eq!(
        stage.found(&sealed(forged)),
        Some((86, FindingKind::ForeignOrg))
    );

    // Twice, and in another order.
    let mut forged = lines.clone();
    forged.insert(10, lines[10].clone());
    assert_eq!(
        stage.found(&sealed(forged)),
        Some((19, FindingKind::Duplicate))
    );
    let mut forged = lines.clone();
    forged.swap(10, 11);
    assert_eq!(
        stage.found(&sealed(forged)),
        Some((19, FindingKind::Duplicate))
    );

    // Of another org than it says.
    let mut forged = lines.clone();
    forged[0] = forged[0].replace("\"ours\"", "\"theirs\"");
    assert_eq!(stage.found(&forged), Some((1, FindingKind::ForeignOrg)));
}

#[test]
fn what_somebody_else_signed_proves_nothing_to_who_has_the_key() {
    let (stage, other) = (Stage::new(), Stage::new());
    stage.grow(40);
    other.grow(40);
    let (ours, theirs) = (stage.lines(), other.lines());
    assert_eq!(stage.found(&ours), None, "the control");
    assert_eq!(stage.found(&theirs), Some((1, FindingKind::BadSignature)));
    let text = theirs.join("\n") + "\n";
    assert!(stage.check_text(&text, None).unwrap().is_sound());
    // Their key under our checkpoint, and their events under it.
    let mut forged = ours.clone();
    let (ours_key, theirs_key) = (stage.key().to_string(), other.key().to_string());
    forged[0] = forged[0].replace(&ours_key, &theirs_key);
    let text = forged.join("\n") + "\n";
    let seen = stage.check_text(&text, None).unwrap();
    assert_eq!(seen.verdict.unwrap_err().kind, FindingKind::BadSignature);
    let mut forged = theirs;
    forged[0] = ours[0].clone();
    assert_eq!(stage.found(&forged), Some((1, FindingKind::NotProven)));
    // A checkpoint of another ledger under our name.
    let mut forged = ours.clone();
    let (a, b) = (stage.ledger.id().to_string(), other.ledger.id().to_string());
    forged[0] = forged[0].replace(
        &format!("\"ledger_id\":\"{a}\""),
        &format!("\"ledger_id\":\"{b}\""),
    );
    assert_ne!(forged[0], ours[0]);
    assert_eq!(stage.found(&forged), Some((1, FindingKind::OtherLedger)));
}

/// Each server of a platform signs with a key of its own.
#[test]
fn one_of_several_pinned_keys_has_to_have_signed() {
    let (stage, other, third) = (Stage::new(), Stage::new(), Stage::new());
    for stage in [&stage, &other, &third] {
        stage.grow(20);
    }
    let text = |stage: &Stage| stage.lines().join("\n") + "\n";
    let keys = [stage.key(), other.key()];
    for signer in [&stage, &other] {
        let seen = stage.check_by(&text(signer), &keys).unwrap();
        assert!(seen.is_sound(), "{seen:?}");
        assert_eq!(seen.of.key, signer.key());
    }
    let seen = stage.check_by(&text(&third), &keys).unwrap();
    let finding = seen.verdict.unwrap_err();
    assert_eq!(finding.kind, FindingKind::BadSignature);
    let named = third.key().to_string();
    assert!(finding.detail.contains(&named), "{}", finding.detail);
    // The control: it is sound to who has its key, too.
    let all = [stage.key(), other.key(), third.key()];
    assert!(stage.check_by(&text(&third), &all).unwrap().is_sound());
}

#[test]
fn a_file_that_was_cut_anywhere_does_not_verify() {
    let stage = Stage::new();
    stage.grow(6);
    let text = stage.lines().join("\n") + "\n";
    let key = stage.key();
    let sound = |text: &str| {
        let seen = stage.check_text(text, Some(&key));
        seen.is_ok_and(|seen| seen.is_sound())
    };
    assert!(sound(&text), "the control");
    for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
        assert!(!sound(&text[..at]), "cut at {at}");
    }
    assert!(!sound(&format!("{text}\n")), "something behind the end");
    let cut = text.rfind("{\"end\"").unwrap();
    let seen = stage.check_text(&text[..cut], Some(&key)).unwrap();
    let finding = seen.verdict.unwrap_err();
    assert_eq!((finding.seq, finding.kind), (6, FindingKind::Truncated));
}

#[test]
fn no_changed_byte_verifies() {
    let stage = Stage::new();
    stage.grow(6);
    let text = stage.lines().join("\n") + "\n";
    let key = stage.key();
    for at in 0..text.len() {
        let mut forged = text.clone().into_bytes();
        forged[at] ^= 1;
        let Ok(forged) = String::from_utf8(forged) else {
            continue;
        };
        // The key in the header is for who has none of their own.
        let seen = stage.check_text(&forged, Some(&key));
        assert!(
            !seen.is_ok_and(|seen| seen.is_sound()),
            "byte {at}: {forged}"
        );
    }
}

#[test]
fn what_does_not_belong_is_not_written() {
    let stage = Stage::new();
    stage.grow(20);
    let mut writer = ExcerptWriter::start(Vec::new(), stage.excerpt(0)).unwrap();
    let ours = stage.prove(0, &[], "ours").unwrap();
    let theirs = stage.prove(0, &[], "theirs").unwrap();
    writer.event(&ours[0]).unwrap();
    let unfit = |wrote: Result<(), WriteExcerptError>| match wrote {
        Err(WriteExcerptError::Unfit { seq, .. }) => seq,
        other => panic!("{other:?}"),
    };
    assert_eq!(unfit(writer.event(&theirs[0])), 2);
    assert_eq!(unfit(writer.event(&ours[0])), 1);
    let mut pathless = ours[1].clone();
    pathless.path.pop();
    assert_eq!(unfit(writer.event(&pathless)), 3);
    writer.event(&ours[1]).unwrap();
    assert_eq!(writer.events(), 2);
}

#[test]
fn archived_events_are_proven_from_their_segments_and_missing_ones_refused() {
    let stage = Stage::new();
    for _ in 0..4 {
        stage.grow(300);
        stage.clock.advance(DAY);
    }
    let before = stage.prove(0, &[], "ours").unwrap();
    let folder = stage.folder.path().join("ledger");
    let retention = Retention {
        keep_hot: DAY,
        domain: Domain::Platform,
        key: Some(stage.signing.key.clone()),
        ..Retention::agent(&folder)
    };
    stage.ledger.enforce(&retention).unwrap();
    let first_hot = stage.ledger.first_hot().unwrap();
    assert!(first_hot > 600, "{first_hot}");
    let segments = archive::segments(&retention.archive).unwrap();
    let mut archives: Vec<PathBuf> = segments.into_iter().map(|it| it.path).collect();
    assert!(archives.len() > 1);
    // What came to the ledger since has the same proofs for a tree of before.
    let size = before.last().unwrap().event.seq;
    let after_all = stage.prove(0, &archives, "ours").unwrap();
    let seqs = |items: &[ProvenEvent]| items.iter().map(|it| it.event.seq).collect::<Vec<_>>();
    assert_eq!(seqs(&after_all)[..before.len()], seqs(&before));
    assert!(
        after_all
            .iter()
            .any(|it| it.event.seq < first_hot && it.event.seq <= size)
    );
    let mut writer = ExcerptWriter::start(Vec::new(), stage.excerpt(0)).unwrap();
    after_all
        .iter()
        .for_each(|item| writer.event(item).unwrap());
    let text = String::from_utf8(writer.end().unwrap().0).unwrap();
    let seen = stage.check_text(&text, Some(&stage.key())).unwrap();
    assert_eq!(seen.verdict, Ok(()));

    // Without a segment it is refused, and from where it needs none it works.
    archives.remove(0);
    for missing in [&archives[..], &[]] {
        let refused = stage.prove(0, missing, "ours").unwrap_err();
        assert!(
            matches!(refused, ProveError::Archived { seq: 1 }),
            "{refused:?}"
        );
    }
    let after = stage.ledger.provable_after().unwrap();
    let rest = stage.prove(after, &[], "ours").unwrap();
    let mut writer = ExcerptWriter::start(Vec::new(), stage.excerpt(after)).unwrap();
    rest.iter().for_each(|item| writer.event(item).unwrap());
    let text = String::from_utf8(writer.end().unwrap().0).unwrap();
    let seen = stage.check_text(&text, Some(&stage.key())).unwrap();
    assert_eq!((&seen.verdict, seen.of.after), (&Ok(()), after));
    assert!(seen.events > 0);
}
