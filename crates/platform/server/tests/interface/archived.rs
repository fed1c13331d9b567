//! Events that have left the database for the archive.

use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError};
use fluffy_base::{Clock as _, ManualClock, SystemClock};
use fluffy_ledger::{Domain, LedgerOptions, Retention};
use serde_json::{Value, json};

use crate::house::House;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_archived_events_is_told_where_the_others_begin() {
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let house = House::start_with(LedgerOptions {
        clock: Arc::clone(&clock) as _,
        ..LedgerOptions::default()
    })
    .await;
    let owner = house.owner().await;
    let app = json!({"name": "shop"});
    let made = owner.send::<Value>(Operation::CreateApp, &["local"], &app);
    made.await.unwrap();
    let events = |after: u64| {
        let ask = Ask::new(Operation::ListEvents, &["local"]);
        owner.call(ask.query("after", after.to_string()))
    };
    // The control: they are there.
    events(1).await.unwrap();
    clock.advance(DAY * 3);
    let ledger = house.crew.platform.ledger();
    let retention = Retention {
        keep_hot: DAY,
        domain: Domain::Platform,
        ..Retention::agent(&house.folder.path().join("ledger"))
    };
    ledger.enforce(&retention).unwrap();
    let first = ledger.first_hot().unwrap();
    assert!(first > 2, "{first}");
    for (operation, path) in [
        (Operation::ListEvents, &["local"][..]),
        (Operation::ListAudit, &["local"]),
        (Operation::ListPlatformEvents, &[]),
    ] {
        let ask = Ask::new(operation, path).query("after", "1");
        let problem = match owner.call(ask).await {
            Err(CallError::Refused(problem)) => problem,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (problem.status, problem.code.as_str()),
            (410, "events_archived")
        );
        let next = (first - 1).to_string();
        assert!(problem.fix.contains(&next), "{problem:?}");
    }
    // Where it says, and at the beginning, one reads on.
    events(first - 1).await.unwrap();
    events(0).await.unwrap();
}
