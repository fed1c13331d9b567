//! Proofs, exports and sources: what others can check without the ledger.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod evidence;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use evidence::{SIZES, Site, draft, found};
use fluffy_ledger::checkpoint::parse_checkpoints;
use fluffy_ledger::export::{ExportReader, parse_header, parse_line};
use fluffy_ledger::proof::{CheckProofError, GrowthProof, Proof, ProveError};
use fluffy_ledger::verify::{
    FindingKind, Start, Verification, VerifyError, VerifyOptions, verify_path,
};
use fluffy_ledger::{Batch, Compression, Draft, ExportOptions, Ledger, LedgerOptions, Source};
use proptest::prelude::*;
use serde_json::json;

static HONEST: LazyLock<Site> = LazyLock::new(Site::new);

#[test]
fn every_event_can_be_proved_to_whoever_holds_the_key() {
    let site = HONEST.copy();
    let ledger = site.open();
    for seq in [1, 2, 149, 150, 151, 255, 256, 257, 300, 399, 400] {
        let text = ledger.prove(seq, &site.signing()).unwrap().to_string();
        let proof = Proof::parse(&text).unwrap();
        assert_eq!(proof.event.seq, seq);
        assert_eq!(proof.check(&site.key()), Ok(()));
        assert_eq!(proof.to_string(), text);
    }
    // No checkpoint covers this one yet, so one is signed.
    let signed = parse_checkpoints(&site.checkpoints()).unwrap().len();
    ledger.append_blocking(draft(401, "new")).unwrap();
    let proof = ledger.prove(401, &site.signing()).unwrap();
    assert_eq!(proof.checkpoint.checkpoint.size, 401);
    assert_eq!(proof.check(&site.key()), Ok(()));
    assert_eq!(
        parse_checkpoints(&site.checkpoints()).unwrap().len(),
        signed + 1
    );
    for seq in [0, 402, u64::MAX] {
        let refused = ledger.prove(seq, &site.signing());
        assert!(
            matches!(refused, Err(ProveError::NoSuchEvent { .. })),
            "{seq}"
        );
    }
}

/// The database was put back to an earlier point, and other events came; the
/// checkpoints of before are in a file that was not put back.
#[test]
fn a_checkpoint_of_a_history_that_was_lost_is_not_handed_out() {
    let site = HONEST.copy();
    let backup = site.copy();
    site.grow(401, 450, "lost");
    let lost = parse_checkpoints(&site.checkpoints()).unwrap().pop();
    let lost = lost.unwrap();
    assert!(lost.checkpoint.size == 450 && lost.is_signed_by(&site.key()));
    // The control: to its own history it belongs.
    let ledger = site.open();
    let covering = ledger.checkpoint_covering(445, &site.signing()).unwrap();
    assert_eq!(covering, lost);
    assert!(ledger.prove(445, &site.signing()).is_ok());
    ledger.close().unwrap();
    drop(ledger);

    fs::remove_dir_all(site.ledger()).unwrap();
    fs::rename(backup.ledger(), site.ledger()).unwrap();
    let ledger = Ledger::open(&site.ledger(), LedgerOptions::default()).unwrap();
    for (from, to) in [(401, 450), (451, 460)] {
        let other = (from..=to).map(|number| draft(number, "other")).collect();
        ledger.append_blocking(Batch::new(other)).unwrap();
        let head = ledger.head().unwrap();
        let covering = ledger.checkpoint_covering(450, &site.signing()).unwrap();
        assert_eq!(covering.checkpoint.size, 450);
        if head.seq == 450 {
            assert_eq!(covering.checkpoint.root, head.root);
        }
        assert_ne!(covering.checkpoint.root, lost.checkpoint.root);
        let proof = ledger.prove(445, &site.signing()).unwrap();
        assert_eq!(proof.check(&site.key()), Ok(()));
    }
}

#[test]
fn a_checkpoint_of_all_is_signed_for_whoever_asks_and_kept_nowhere() {
    let site = HONEST.copy();
    let ledger = site.open();
    let kept = site.checkpoints();
    for number in 401..=410 {
        ledger.append_blocking(draft(number, "more")).unwrap();
        let all = ledger.checkpoint_of_all(&site.signing()).unwrap();
        let head = ledger.head().unwrap();
        let signed = (all.checkpoint.size, all.checkpoint.root);
        assert_eq!(signed, (number, head.root));
        assert!(all.is_signed_by(&site.key()));
    }
    assert_eq!(site.checkpoints(), kept);
    let empty = Site::empty();
    let refused = empty.open().checkpoint_of_all(&empty.signing());
    assert!(matches!(refused, Err(ProveError::NoSuchEvent { seq: 0 })));
}

#[test]
fn a_changed_proof_proves_nothing() {
    let site = HONEST.copy();
    let ledger = site.open();
    let text = ledger.prove(57, &site.signing()).unwrap().to_string();
    let other = Site::empty();
    other.grow(1, 1, "other");
    let proof = Proof::parse(&text).unwrap();
    assert_eq!(proof.check(&other.key()), Err(CheckProofError::Signature));
    for at in 0..text.len() {
        let mut forged = text.clone().into_bytes();
        forged[at] ^= 1;
        let Ok(forged) = String::from_utf8(forged) else {
            continue;
        };
        let accepted = Proof::parse(&forged).is_ok_and(|proof| proof.check(&site.key()).is_ok());
        assert!(!accepted, "byte {at} of the proof can be changed");
    }
    let mut moved = proof.clone();
    moved.event.seq = 58;
    assert_eq!(moved.check(&site.key()), Err(CheckProofError::Event));
    let mut longer = proof.clone();
    longer.path.push(longer.path[0]);
    assert_eq!(longer.check(&site.key()), Err(CheckProofError::Path));
    let mut swapped = proof;
    swapped.event = ledger.read(58, 1).unwrap().remove(0);
    assert_eq!(swapped.check(&site.key()), Err(CheckProofError::Path));
}

#[test]
fn a_tampered_ledger_gives_no_proof() {
    let site = HONEST.copy();
    site.attack("UPDATE events SET payload = '{}' WHERE seq = 57");
    let ledger = site.open();
    let refused = ledger.prove(57, &site.signing());
    assert!(matches!(refused, Err(ProveError::Broken { size: 400 })));
    assert!(ledger.prove(58, &site.signing()).is_ok());
    site.attack("UPDATE tree SET hash = zeroblob(32)");
    let refused = ledger.prove(300, &site.signing());
    assert!(matches!(refused, Err(ProveError::Broken { size: 400 })));
}

#[test]
fn growth_between_checkpoints_is_proved() {
    let site = HONEST.copy();
    let ledger = site.open();
    let notes = parse_checkpoints(&site.checkpoints()).unwrap();
    assert_eq!(notes.len(), SIZES.len());
    for (old, new) in [(0, 1), (0, 2), (1, 2), (1, 1)] {
        let proof = ledger
            .prove_growth(notes[old].clone(), notes[new].clone())
            .unwrap();
        let text = proof.to_string();
        let read = GrowthProof::parse(&text).unwrap();
        assert_eq!(read, proof);
        assert_eq!(read.check(&site.key()), Ok(()));
        for at in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[at] ^= 1;
            let Ok(forged) = String::from_utf8(forged) else {
                continue;
            };
            let read = GrowthProof::parse(&forged);
            let accepted = read.is_ok_and(|proof| proof.check(&site.key()).is_ok());
            assert!(!accepted, "byte {at} of the proof can be changed");
        }
    }
    // The other way round, and into another history, there is no way.
    let refused = ledger.prove_growth(notes[2].clone(), notes[0].clone());
    assert!(matches!(refused, Err(ProveError::Broken { .. })));
    let forged = Site::empty();
    forged.grow(1, 400, "forged");
    let theirs = parse_checkpoints(&forged.checkpoints()).unwrap();
    let refused = ledger.prove_growth(notes[0].clone(), theirs[0].clone());
    assert!(matches!(refused, Err(ProveError::Broken { .. })));
}

fn export(site: &Site, compression: Compression) -> PathBuf {
    let ledger = site.open();
    let options = ExportOptions {
        compression,
        checkpoint: Some(ledger.checkpoint_covering(400, &site.signing()).unwrap()),
    };
    let path = site.file("export");
    let mut file = fs::File::create(&path).unwrap();
    let exported = ledger.export(&mut file, &options).unwrap();
    assert_eq!((exported.events, exported.last_seq), (400, 400));
    path
}

/// Verifies with the key alone: the export brings its checkpoint itself.
fn verify_export(site: &Site, path: &std::path::Path) -> Verification {
    let options = VerifyOptions {
        key: Some(site.key()),
        ..VerifyOptions::default()
    };
    verify_path(path, &options).unwrap()
}

#[test]
fn exports_verify_as_their_ledger_does() {
    for compression in [Compression::Plain, Compression::Zstd] {
        let site = HONEST.copy();
        let path = export(&site, compression);
        let report = verify_export(&site, &path);
        assert_eq!(report.verdict, Ok(()));
        assert_eq!(
            (report.start, report.checkpoints_checked),
            (Start::Genesis, 1)
        );
        assert_eq!(report.root, site.verify().root);
        assert_eq!(
            verify_path(&path, &site.witnessed())
                .unwrap()
                .checkpoints_checked,
            4
        );
        let mut reader = ExportReader::open(&path).unwrap();
        let ledger = site.open();
        for event in ledger.read(1, 400).unwrap() {
            assert_eq!(reader.next_event().unwrap(), Some(event));
        }
        assert_eq!(reader.next_event().unwrap(), None);
        assert_eq!(reader.end(), Some((400, 400, report.last_hash)));
    }
}

#[test]
fn attacks_on_an_export_are_named() {
    use FindingKind::{BadSignature, Duplicate, Gap, HashMismatch, HeadMismatch, MalformedLine};
    use FindingKind::{Truncated, UnknownGenesis, WrongPrev};
    let site = HONEST.copy();
    let path = export(&site, Compression::Plain);
    let text = fs::read_to_string(&path).unwrap();
    // Line 0 is the header, so event 57 stands in line 57.
    let lines: Vec<&str> = text.lines().collect();
    let edit = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        change(&mut lines);
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        found(&verify_export(&site, &path))
    };
    assert_eq!(edit(&|_| {}), None);
    assert_eq!(edit(&|lines| drop(lines.remove(57))), Some((57, Gap)));
    assert_eq!(edit(&|lines| drop(lines.remove(1))), Some((1, Gap)));
    assert_eq!(edit(&|lines| lines.swap(57, 58)), Some((57, Gap)));
    assert_eq!(
        edit(&|lines| lines.insert(58, lines[57].clone())),
        Some((57, Duplicate))
    );
    let word = |line: &mut String| *line = line.replace("honest", "forged");
    assert_eq!(
        edit(&|lines| word(&mut lines[57])),
        Some((57, HashMismatch))
    );
    let space = |line: &mut String| *line = line.replace(",\"seq\"", ", \"seq\"");
    assert_eq!(
        edit(&|lines| space(&mut lines[57])),
        Some((57, MalformedLine))
    );
    let null = |line: &mut String| {
        *line = line.replacen(",\"domain\"", ",\"decision_seq\":null,\"domain\"", 1)
    };
    assert_eq!(
        edit(&|lines| null(&mut lines[58])),
        Some((58, MalformedLine))
    );
    assert_eq!(edit(&|lines| lines.truncate(301)), Some((301, Truncated)));
    assert_eq!(edit(&|lines| drop(lines.pop())), Some((401, Truncated)));
    assert_eq!(
        edit(&|lines| lines.push(lines[57].clone())),
        Some((401, MalformedLine))
    );
    let prev = |line: &mut String| {
        let at = line.find("\"prev_hash\":\"").unwrap() + 13;
        let digit = if &line[at..=at] == "0" { "1" } else { "0" };
        line.replace_range(at..=at, digit);
    };
    assert_eq!(edit(&|lines| prev(&mut lines[57])), Some((57, WrongPrev)));
    assert_eq!(
        edit(&|lines| prev(&mut lines[1])),
        Some((1, UnknownGenesis))
    );
    let moved =
        |line: &mut String| *line = line.replacen("\"created_at\":\"20", "\"created_at\":\"19", 1);
    assert_eq!(
        edit(&|lines| moved(&mut lines[0])),
        Some((1, UnknownGenesis))
    );
    let count = |line: &mut String| *line = line.replace("\"events\":400", "\"events\":399");
    assert_eq!(
        edit(&|lines| count(&mut lines[401])),
        Some((400, HeadMismatch))
    );
    let size = |line: &mut String| *line = line.replace("\\n400\\n", "\\n399\\n");
    assert_eq!(
        edit(&|lines| size(&mut lines[401])),
        Some((399, BadSignature))
    );
    fs::write(&path, "neither\n").unwrap();
    let refused = verify_path(&path, &VerifyOptions::default());
    assert!(matches!(refused, Err(VerifyError::NotALedger { .. })));
}

#[test]
fn a_damaged_compressed_export_is_named() {
    let site = HONEST.copy();
    let path = export(&site, Compression::Zstd);
    let bytes = fs::read(&path).unwrap();
    // Damage before the first event leaves nothing that looks like an export.
    let sound = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let report = verify_path(&path, &VerifyOptions::default());
        report.is_ok_and(|report| report.is_sound())
    };
    assert!(sound(&bytes));
    for cut in [bytes.len() / 2, bytes.len() - 1] {
        assert!(!sound(&bytes[..cut]), "cut at {cut}");
    }
    for at in (8..bytes.len()).step_by(499) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(!sound(&damaged), "byte {at} can be changed");
    }
}

#[test]
fn a_source_is_listed_and_can_be_followed() {
    let agent = HONEST.copy();
    let ledger = agent.open();
    let event = ledger.read(57, 1).unwrap().remove(0);
    let source = Source {
        ledger_id: ledger.id(),
        seq: 57,
        hash: event.hash,
        checkpoint: ledger
            .checkpoint_covering(57, &agent.signing())
            .unwrap()
            .to_string(),
    };
    let platform = Site::empty();
    let other = platform.open();
    let deploy: Draft = draft(2, "deploy")
        .payload(json!({"image": "x"}))
        .source(&source);
    other.append_blocking(draft(1, "before")).unwrap();
    other.append_blocking(deploy).unwrap();
    let decoy = json!({"deep": {"source": {"checkpoint": "no"}}});
    other
        .append_blocking(draft(4, "after").payload(decoy))
        .unwrap();
    let report = other.verify(&VerifyOptions::default()).unwrap();
    assert_eq!(report.verdict, Ok(()));
    let [met] = report.sources.as_slice() else {
        panic!("{:?}", report.sources)
    };
    assert_eq!((met.seq, &met.source), (2, &source));
    let key = VerifyOptions {
        key: Some(agent.key()),
        ..VerifyOptions::default()
    };
    for report in [
        source.follow(&agent.ledger(), &key).unwrap(),
        source.follow_open(&ledger, &key).unwrap(),
        source
            .follow(&export(&agent.copy(), Compression::Zstd), &key)
            .unwrap(),
    ] {
        assert_eq!(report.verdict, Ok(()));
        assert!(report.checkpoints_checked >= 1);
    }
    let mut forged = source.clone();
    forged.hash = fluffy_base::Digest::of(b"other");
    let report = forged.follow(&agent.ledger(), &key).unwrap();
    assert_eq!(found(&report), Some((57, FindingKind::SourceDiffers)));
    forged = source.clone();
    forged.seq = 500;
    let report = forged.follow(&agent.ledger(), &key).unwrap();
    assert_eq!(found(&report), Some((401, FindingKind::Truncated)));
    let report = source.follow(&platform.ledger(), &key).unwrap();
    assert_eq!(found(&report), Some((1, FindingKind::OtherLedger)));
    // Several in one pass, in any order; each has to hold.
    let mut second = source.clone();
    second.seq = 12;
    second.hash = ledger.read(12, 1).unwrap().remove(0).hash;
    let all = [&source, &second, &source];
    let report = Source::follow_all(all, &agent.ledger(), &key).unwrap();
    assert_eq!(report.verdict, Ok(()));
    forged = source.clone();
    forged.hash = second.hash;
    let report = Source::follow_all([&source, &forged, &second], &agent.ledger(), &key).unwrap();
    assert_eq!(found(&report), Some((57, FindingKind::SourceDiffers)));
}

proptest! {
    #[test]
    fn no_parser_panics_on_any_text(text in "\\PC*(\n\\PC*){0,6}") {
        let _ = Proof::parse(&text);
        let _ = GrowthProof::parse(&text);
        let _ = parse_line(&text);
        let _ = parse_header(&text);
        let _ = parse_checkpoints(&text);
        for header in ["fluffy-ledger-proof-1\nevent ", "fluffy-ledger-growth-1\nsteps"] {
            let headed = format!("{header}{text}");
            prop_assert!(Proof::parse(&headed).is_err());
            prop_assert!(GrowthProof::parse(&headed).is_err());
        }
    }

    #[test]
    fn no_parser_panics_on_damaged_text(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        static TEXTS: LazyLock<[String; 2]> = LazyLock::new(|| {
            let site = HONEST.copy();
            let proof = site.open().prove(57, &site.signing()).unwrap().to_string();
            [proof, site.checkpoints()]
        });
        for text in TEXTS.iter() {
            let mut bytes = text.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let text = String::from_utf8_lossy(&bytes);
            let _ = Proof::parse(&text);
            let _ = parse_checkpoints(&text);
            let line = text.lines().nth(1).unwrap_or_default();
            let _ = parse_line(line.trim_start_matches("event "));
        }
    }
}
