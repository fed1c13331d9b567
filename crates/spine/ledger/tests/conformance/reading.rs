//! Cases of reading: paging, aggregates, every field, sizes.

use fluffy_base::Timestamp;
use fluffy_ledger::draft::MAX_PAYLOAD;
use fluffy_ledger::excerpt::{ExcerptOptions, ExcerptWriter, verify_excerpt};
use fluffy_ledger::{
    Actor, ActorKind, Aggregate, AppendError, Batch, Domain, Draft, DraftError, Event, Excerpt,
    ProveError, ProvenEvent, Scope, Signing, SigningKeyFile, Stretch,
};
use serde_json::json;

use super::{Place, append_many, draft, read_chain};

pub(crate) fn pages_join_without_overlap(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 1_100);
    let whole = read_chain(&ledger);
    for size in [1, 7, 512, 513, 1_100, 5_000] {
        let mut read = Vec::new();
        while let Ok(page) = ledger.read(read.len() as u64 + 1, size) {
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= size);
            read.extend(page);
        }
        assert_eq!(read, whole, "pages of {size}");
    }
    assert!(ledger.read(1_101, 10).unwrap().is_empty());
    assert!(ledger.read(1, 0).unwrap().is_empty());
}

pub(crate) fn aggregates_are_told_apart(place: &impl Place) {
    let ledger = place.open();
    let other = |domain, kind: &str| {
        Draft::new(
            domain,
            Aggregate::new(kind, "x"),
            "tool.execute",
            Actor::system("test"),
        )
    };
    for _ in 0..3 {
        let three = vec![
            other(Domain::Agent, "session"),
            other(Domain::Plugin, "session"),
            other(Domain::Agent, "deploy"),
        ];
        ledger.append_blocking(Batch::new(three)).unwrap();
    }
    let session = Aggregate::new("session", "x");
    let read = |domain, after, limit| {
        let events = ledger
            .read_aggregate(domain, &session, after, limit)
            .unwrap();
        events
            .into_iter()
            .map(|event| (event.seq, event.aggregate_version))
            .collect::<Vec<_>>()
    };
    assert_eq!(read(Domain::Agent, 0, 10), [(1, 1), (4, 2), (7, 3)]);
    assert_eq!(read(Domain::Plugin, 0, 10), [(2, 1), (5, 2), (8, 3)]);
    assert_eq!(read(Domain::Agent, 1, 1), [(4, 2)]);
    assert_eq!(read(Domain::Agent, 3, 10), []);
    assert_eq!(read(Domain::Platform, 0, 10), []);
    assert_eq!(ledger.version(Domain::Agent, &session).unwrap(), 3);
    assert_eq!(ledger.version(Domain::Platform, &session).unwrap(), 0);
}

pub(crate) fn the_newest_are_found_from_the_end(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "a", 1_200);
    append_many(&ledger, "b", 3);
    append_many(&ledger, "a", 20);
    let newest = |count, id: &str| {
        let events = ledger
            .last_where(count, |event| event.aggregate.id == id)
            .unwrap();
        events
            .into_iter()
            .map(|event| event.seq)
            .collect::<Vec<_>>()
    };
    assert_eq!(newest(2, "b"), [1_202, 1_203]);
    assert_eq!(newest(9, "b"), [1_201, 1_202, 1_203]);
    assert_eq!(
        newest(21, "a"),
        [[1_200].as_slice(), &(1_204..=1_223).collect::<Vec<_>>()].concat()
    );
    assert!(newest(5, "c").is_empty());
    assert!(newest(0, "a").is_empty());
}

pub(crate) fn every_field_reads_back(place: &impl Place) {
    let ledger = place.open();
    append_many(&ledger, "before", 2);
    let text = "Grüße, 世界 \u{1f98a} \u{10ffff} 'quoted' \"twice\" back\\slash";
    let moment = Timestamp::from_micros(-62_000_000_123_456);
    let full = Draft::new(
        Domain::Platform,
        Aggregate::new("deploy", text),
        "deploy.started",
        Actor::new(ActorKind::Node, text).on_behalf_of(text),
    )
    .event_version(u32::MAX)
    .occurred_at(moment)
    .scope(Scope {
        org_id: Some(text.to_owned()),
        app_id: Some("app".to_owned()),
        env_id: Some("env".to_owned()),
    })
    .request(text)
    .idempotency("key")
    .correlation("undertaking")
    .caused_by(1)
    .decided_by(2)
    .payload(json!({
        "text": text,
        "control": "\u{0}\u{1f}\u{7f}\u{2028}",
        "deep": [{"": null}, [[]], true, -9_007_199_254_740_991_i64],
    }));
    let seq = ledger.append_blocking(full.clone()).unwrap().last_seq;
    drop(ledger);
    let ledger = place.open();
    let event = ledger.read(seq, 1).unwrap().remove(0);
    assert_eq!(event.domain, Domain::Platform);
    assert_eq!(event.aggregate, Aggregate::new("deploy", text));
    assert_eq!(event.aggregate_version, 1);
    assert_eq!(
        (event.event_type.as_str(), event.event_version),
        ("deploy.started", u32::MAX)
    );
    assert_eq!(event.occurred_at, moment);
    assert_eq!(
        event.actor,
        Actor::new(ActorKind::Node, text).on_behalf_of(text)
    );
    assert_eq!(event.scope.org_id.as_deref(), Some(text));
    assert_eq!(event.scope.env_id.as_deref(), Some("env"));
    assert_eq!(event.request_id, text);
    assert_eq!(event.idempotency_key.as_deref(), Some("key"));
    assert_eq!(event.correlation_id.as_deref(), Some("undertaking"));
    assert_eq!(
        (event.causation_seq, event.decision_seq),
        (Some(1), Some(2))
    );
    let payload = event.payload.value().unwrap();
    assert_eq!(payload["text"], text);
    assert_eq!(payload["control"], "\u{0}\u{1f}\u{7f}\u{2028}");
    assert_eq!(payload["deep"][3], -9_007_199_254_740_991_i64);
    read_chain(&ledger);
}

/// A draft whose canonical payload has exactly this many bytes.
fn sized(bytes: usize) -> Draft {
    let frame = r#"{"text":""}"#.len();
    draft("large", 0).payload(json!({"text": "x".repeat(bytes - frame)}))
}

pub(crate) fn the_largest_payload_fits_and_no_larger(place: &impl Place) {
    let ledger = place.open();
    let seq = ledger.append_blocking(sized(MAX_PAYLOAD)).unwrap().last_seq;
    assert_eq!(
        ledger.read(seq, 1).unwrap()[0].payload.as_str().len(),
        MAX_PAYLOAD
    );
    let error = ledger.append_blocking(sized(MAX_PAYLOAD + 1)).unwrap_err();
    let bytes = MAX_PAYLOAD + 1;
    assert!(
        matches!(&error, AppendError::Draft(DraftError::TooLarge { bytes: b, .. }) if *b == bytes),
        "{error:?}"
    );
    assert_eq!(read_chain(&ledger).len(), 1);
}

pub(crate) fn large_events_come_in_bounded_pages(place: &impl Place) {
    let ledger = place.open();
    let drafts = (0..40).map(|_| sized(MAX_PAYLOAD)).collect();
    ledger.append_blocking(Batch::new(drafts)).unwrap();
    let page = ledger.read(1, 1_000).unwrap();
    assert!(
        (1..40).contains(&page.len()),
        "{} events at once",
        page.len()
    );
    assert_eq!(read_chain(&ledger).len(), 40);
}

pub(crate) fn pages_of_proofs_are_of_one_tree_while_it_grows(place: &impl Place) {
    let ledger = place.open();
    let of = |org: &str, number: u64| {
        let aggregate = Aggregate::new("app", format!("{org}-{}", number % 3));
        let scope = Scope {
            org_id: Some(org.to_owned()),
            ..Scope::default()
        };
        Draft::new(
            Domain::Platform,
            aggregate,
            "app.updated",
            Actor::system("test"),
        )
        .scope(scope)
    };
    let grow = |count: u64| {
        let orgs =
            (0..count).map(|number| of(["ours", "theirs"][usize::from(number % 3 > 0)], number));
        ledger.append_blocking(Batch::new(orgs.collect())).unwrap();
    };
    grow(700);
    let notary = tempfile::tempdir().unwrap();
    let signing = Signing::in_directory(notary.path());
    let checkpoint = ledger.checkpoint_covering(700, &signing).unwrap();
    let key = SigningKeyFile::open(&signing.key).unwrap().public_key();
    let size = checkpoint.checkpoint.size;
    let excerpt = Excerpt {
        ledger_id: ledger.id(),
        org_id: "ours".to_owned(),
        after: 0,
        checkpoint,
        key,
    };
    for limit in [1, 50, 1_000] {
        let mut writer = ExcerptWriter::start(Vec::new(), excerpt.clone()).unwrap();
        let (mut after, mut pages, mut seqs) = (0, 0, Vec::new());
        loop {
            let stretch = Stretch {
                after,
                size,
                limit,
                archives: &[],
            };
            let ours = |event: &Event| event.scope.org_id.as_deref() == Some("ours");
            let page = ledger.prove_page(&stretch, ours).unwrap();
            assert!(page.items.len() <= limit);
            for item in &page.items {
                // It is what it was before it was sent.
                let sent = ProvenEvent::from_json(&item.event_json(), item.path.clone()).unwrap();
                assert_eq!(sent, *item);
                writer.event(&sent).unwrap();
                seqs.push(item.event.seq);
            }
            pages += 1;
            grow(7);
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert!(pages >= 234 / limit, "{pages} pages of {limit}");
        assert_eq!(
            seqs,
            (0..700).step_by(3).map(|it| it + 1).collect::<Vec<u64>>()
        );
        let (text, last) = writer.end().unwrap();
        assert_eq!(last, 700);
        let file = notary.path().join("ours.ndjson");
        std::fs::write(&file, text).unwrap();
        let options = ExcerptOptions {
            keys: &[key],
            shared: &[],
        };
        let seen = verify_excerpt(&file, &options).unwrap();
        assert_eq!((seen.verdict, seen.events), (Ok(()), 234));
    }
    let beyond = Stretch {
        after: 0,
        size: ledger.head().unwrap().seq + 1,
        limit: 1,
        archives: &[],
    };
    let refused = ledger.prove_page(&beyond, |_| true);
    assert!(matches!(refused, Err(ProveError::NoSuchEvent { .. })));
}
