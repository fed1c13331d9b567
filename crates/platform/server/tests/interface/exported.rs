//! An org's history with proofs: all of it, of nobody else, for who may.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client};
use fluffy_api::types::OrgExport;
use fluffy_base::id::OrgId;
use fluffy_base::{Clock as _, ManualClock, SystemClock};
use fluffy_control::access::{Audit, may_see};
use fluffy_ledger::excerpt::{ExcerptOptions, ExcerptWriter, verify_excerpt};
use fluffy_ledger::{
    Domain, Excerpt, ExcerptVerification, LedgerOptions, ProvenEvent, Retention, SignedCheckpoint,
    Signing, archive,
};
use serde_json::{Value, json};

use crate::house::House;
use crate::reach::furnish;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A page, as the server tells it.
async fn page(client: &Client, org: &str, query: &[(&str, u64)]) -> Result<OrgExport, CallError> {
    let path = [org];
    let mut ask = Ask::new(Operation::ExportOrg, &path);
    for (name, value) in query {
        ask = ask.query(name, value.to_string());
    }
    let value = client.call(ask).await?.value;
    Ok(serde_json::from_value(value).unwrap())
}

async fn send(client: &Client, operation: Operation, path: &[&str], body: Value) -> Value {
    client.send(operation, path, &body).await.unwrap()
}

fn code(answer: Result<OrgExport, CallError>) -> (u16, String) {
    match answer {
        Err(CallError::Refused(problem)) => (problem.status, problem.code),
        other => panic!("{other:?}"),
    }
}

/// All pages as a file, and what a stranger with the key sees in it.
fn verify(folder: &Path, pages: Vec<OrgExport>) -> (Vec<u64>, ExcerptVerification) {
    let signed = pages[0].checkpoint.clone().unwrap();
    let of = Excerpt {
        ledger_id: pages[0].ledger_id.parse().unwrap(),
        org_id: pages[0].org_id.clone(),
        after: 0,
        checkpoint: SignedCheckpoint::parse(&signed.note).unwrap(),
        key: signed.key.parse().unwrap(),
    };
    let mut writer = ExcerptWriter::start(Vec::new(), of).unwrap();
    let mut seqs = Vec::new();
    for page in pages {
        for item in page.items {
            let proven = ProvenEvent::from_json(&item.event, item.path).unwrap();
            seqs.push(proven.event.seq);
            writer.event(&proven).unwrap();
        }
    }
    let file = folder.join("org.ndjson");
    std::fs::write(&file, writer.end().unwrap().0).unwrap();
    let key = signed.key.parse().unwrap();
    let options = ExcerptOptions {
        keys: &[key],
        shared: &["principal"],
    };
    (seqs, verify_excerpt(&file, &options).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_org_is_exported_whole_in_pages_of_one_tree_while_more_happens() {
    let house = House::start().await;
    for number in 1..=3 {
        house.crew.join(number).await;
    }
    let owner = house.owner().await;
    furnish(&house, &owner).await;
    send(&owner, Operation::CreateOrg, &[], json!({ "slug": "beta" })).await;
    let other = json!({ "name": "other" });
    send(&owner, Operation::CreateApp, &["beta"], other).await;

    let first = page(&owner, "local", &[("limit", 7)]).await.unwrap();
    let size = first.size;
    let mut pages = vec![first];
    while let Some(after) = pages.last().unwrap().next_after {
        let body = json!({ "name": format!("late-{}", pages.len()) });
        let path = [["local", "beta"][pages.len() % 2]];
        send(&owner, Operation::CreateApp, &path, body).await;
        let query = [("after", after), ("size", size), ("limit", 7)];
        let next = page(&owner, "local", &query).await.unwrap();
        assert!(next.size == size && next.checkpoint.is_none() && next.items.len() <= 7);
        pages.push(next);
    }
    assert!(pages.len() > 5, "{}", pages.len());
    let count = pages.len();
    let org: OrgId = pages[0].org_id.parse().unwrap();
    let (seqs, seen) = verify(house.folder.path(), pages);
    assert_eq!(seen.verdict, Ok(()), "{:?}", seen.gaps);

    // It is what the ledger has of this org up to then, and nothing else.
    let events = house.crew.platform.ledger().read(1, 100_000).unwrap();
    let upto = events.iter().take_while(|event| event.seq <= size);
    let ours = upto.filter(|event| may_see(org, Audit::Included, event));
    assert_eq!(seqs, ours.map(|event| event.seq).collect::<Vec<_>>());
    assert!(seqs.len() < usize::try_from(size).unwrap());
    // Each page is on record, like every look at the audit.
    let looks = events.iter().filter(|event| {
        event.event_type == "authz.decided" && event.payload.as_str().contains("audit.read")
    });
    assert_eq!(looks.count(), count);

    let beyond = page(&owner, "local", &[("size", 1 << 40)]).await;
    assert_eq!(code(beyond), (400, "cursor_invalid".to_owned()));
}

/// Whoever asks again and again has nothing kept for it but that they looked,
/// and always gets all that there is.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_is_asked_for_again_and_again_fills_nothing() {
    let house = House::start().await;
    let owner = house.owner().await;
    let app = json!({ "name": "shop" });
    send(&owner, Operation::CreateApp, &["local"], app).await;
    let file = house.folder.path().join("notary/ledger.checkpoints");
    let kept = || std::fs::metadata(&file).map_or(0, |file| file.len());
    let before = kept();
    let ledger = house.crew.platform.ledger();
    for _ in 0..20 {
        let head = ledger.head().unwrap().seq;
        let first = page(&owner, "local", &[("limit", 1)]).await.unwrap();
        assert!(first.size > head, "its own look is in it");
        assert_eq!(kept(), before);
    }
    let whole = page(&owner, "local", &[]).await.unwrap();
    let (_, seen) = verify(house.folder.path(), vec![whole]);
    assert_eq!(seen.verdict, Ok(()));
    // The control: one that is to be kept is.
    let signing = Signing::in_directory(&house.folder.path().join("notary"));
    let head = ledger.head().unwrap().seq;
    ledger.checkpoint_covering(head, &signing).unwrap();
    assert!(kept() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_of_another_org_exports_nothing() {
    let house = House::start().await;
    let owner = house.owner().await;
    send(&owner, Operation::CreateOrg, &[], json!({ "slug": "beta" })).await;
    let robot = |grant: &str| json!({ "name": "robot", "grants": [grant] });
    let mut bearers = Vec::new();
    for (org, grant) in [
        ("beta", "audit.read.beta"),
        ("local", "events.read.local"),
        ("local", "audit.read.local"),
    ] {
        let mut body = robot(grant);
        body["name"] = format!("robot-{}", bearers.len()).into();
        let robot = send(&owner, Operation::CreatePrincipal, &[org], body).await;
        let token = json!({ "principal_id": robot["id"] });
        let token = send(&owner, Operation::CreateToken, &[org], token).await;
        bearers.push(house.bearer(token["secret"].as_str().unwrap()).await);
    }
    // The control: each in their own org, if they may read the audit.
    page(&bearers[0], "beta", &[]).await.unwrap();
    page(&bearers[2], "local", &[]).await.unwrap();
    let size = house.crew.platform.ledger().head().unwrap().seq;
    for query in [&[][..], &[("size", size), ("after", 1)]] {
        let nothing = code(page(&bearers[0], "nowhere", query).await);
        assert!([403, 404].contains(&nothing.0), "{nothing:?}");
        let other = code(page(&bearers[0], "local", query).await);
        assert_eq!(other, nothing, "an org that is there is as one that is not");
        let weaker = code(page(&bearers[1], "local", query).await);
        assert_eq!(weaker.0, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn archived_events_are_exported_and_those_that_are_lost_are_said_to_be() {
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let house = House::start_with(LedgerOptions {
        clock: Arc::clone(&clock) as _,
        ..LedgerOptions::default()
    })
    .await;
    let owner = house.owner().await;
    let app = json!({ "name": "shop" });
    send(&owner, Operation::CreateApp, &["local"], app).await;
    let before = page(&owner, "local", &[]).await.unwrap();
    clock.advance(DAY * 3);
    let ledger = house.crew.platform.ledger();
    let retention = Retention {
        keep_hot: DAY,
        domain: Domain::Platform,
        ..Retention::agent(&house.folder.path().join("ledger"))
    };
    ledger.enforce(&retention).unwrap();
    assert!(ledger.first_hot().unwrap() > 2);
    let query = [("size", before.size)];
    let after = page(&owner, "local", &query).await.unwrap();
    assert_eq!(after.items, before.items);
    let whole = page(&owner, "local", &[]).await.unwrap();
    let (_, seen) = verify(house.folder.path(), vec![whole]);
    assert_eq!(seen.verdict, Ok(()));

    for segment in archive::segments(&retention.archive).unwrap() {
        std::fs::remove_file(segment.path).unwrap();
    }
    match page(&owner, "local", &[]).await {
        Err(CallError::Refused(problem)) => {
            let code = (problem.status, problem.code.as_str());
            assert_eq!(code, (410, "events_archived"));
            assert!(problem.fix.contains("put the segments back"), "{problem:?}");
        }
        other => panic!("{other:?}"),
    }
}
