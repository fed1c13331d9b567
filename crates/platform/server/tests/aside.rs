//! The store beside the ledger: one list of cases for both engines.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::time::{Duration, Instant};

use fluffy_server::aside::{Aside, AsideError, Claim, Draw, Kind, MAX_KEY};
use fluffy_test_kit::{FreshDatabase, PrivatePostgres};
use tempfile::TempDir;

const THING: Kind = Kind::new("thing");
const OTHER: Kind = Kind::new("other");
const LONG: Duration = Duration::from_secs(3_600);
const LIMIT: Duration = Duration::from_secs(60);

async fn database() -> (FreshDatabase, Aside) {
    let database = FreshDatabase::create().unwrap();
    let aside = open(&database).await;
    (database, aside)
}

async fn open(database: &FreshDatabase) -> Aside {
    let address = database.url().parse().unwrap();
    Aside::open_postgres(&address).await.unwrap()
}

fn directory() -> (TempDir, Aside) {
    let directory = TempDir::new().unwrap();
    let aside = Aside::open(directory.path()).unwrap();
    (directory, aside)
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod on_a_file {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let (_directory, aside) = super::directory();
                super::$case(aside).await;
            })*
        }
        mod on_a_database {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let (_database, aside) = super::database().await;
                super::$case(aside).await;
            })*
        }
    };
}

on_both!(
    entries_are_written_read_and_removed,
    the_first_of_many_writes_and_no_other,
    what_has_ended_is_gone,
    a_bucket_gives_no_more_than_it_holds,
    a_lease_has_one_holder_until_it_ends,
    places_are_shared_by_all_who_claim_them,
    what_is_too_large_is_refused,
);

/// Waits for a condition that takes a call to find out.
async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it did not happen in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn entries_are_written_read_and_removed(aside: Aside) {
    for key in ["b", "a", "c"] {
        let value = key.repeat(3).into_bytes();
        aside.put(THING, key, value, None).await.unwrap();
    }
    aside.put(OTHER, "a", vec![0], Some(LONG)).await.unwrap();
    aside.put(THING, "b", vec![1, 0, 2], None).await.unwrap();
    let get = aside.get(THING, "b").await.unwrap().unwrap();
    assert_eq!((get.key.as_str(), get.value), ("b", vec![1, 0, 2]));
    assert!(get.age < LIMIT);
    assert_eq!(aside.get(THING, "d").await.unwrap(), None);
    let keys = async |after: &str, limit| {
        let entries = aside.list(THING, after, limit).await.unwrap();
        entries.into_iter().map(|e| e.key).collect::<String>()
    };
    assert_eq!(keys("", 9).await, "abc");
    assert_eq!(keys("", 2).await, "ab");
    assert_eq!(keys("a", 9).await, "bc");
    assert_eq!(aside.last_keys(THING, 2).await.unwrap(), ["c", "b"]);
    assert!(aside.delete(THING, "a").await.unwrap());
    assert!(!aside.delete(THING, "a").await.unwrap());
    assert_eq!(keys("", 9).await, "bc");
    assert_eq!(aside.get(OTHER, "a").await.unwrap().unwrap().value, [0]);
}

async fn the_first_of_many_writes_and_no_other(aside: Aside) {
    let writers = (0..20u8).map(|writer| {
        let aside = aside.clone();
        tokio::spawn(async move {
            let first = aside.put_new(THING, "one", vec![writer], Some(LONG));
            first.await.unwrap().then_some(writer)
        })
    });
    let mut first = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        first.extend(writer.await.unwrap());
    }
    assert_eq!(first.len(), 1);
    let found = aside.get(THING, "one").await.unwrap().unwrap();
    assert_eq!(found.value, first);
}

async fn what_has_ended_is_gone(aside: Aside) {
    let short = Some(Duration::from_millis(30));
    aside.put(THING, "short", vec![1], short).await.unwrap();
    aside.put(THING, "long", vec![2], Some(LONG)).await.unwrap();
    until(async || {
        let gone = aside.get(THING, "short").await.unwrap().is_none();
        gone.then_some(())
    })
    .await;
    assert_eq!(aside.list(THING, "", 9).await.unwrap().len(), 1);
    // What has ended is as good as absent, and not only when it was swept.
    assert!(aside.put_new(THING, "short", vec![3], short).await.unwrap());
    until(async || (aside.sweep().await.unwrap() == 1).then_some(())).await;
    assert_eq!(aside.sweep().await.unwrap(), 0);
    assert!(aside.get(THING, "long").await.unwrap().is_some());
}

async fn a_bucket_gives_no_more_than_it_holds(aside: Aside) {
    let draw = Draw {
        wanted: 5,
        limit: 37,
        // No test runs at the end of so long a window.
        window: Duration::from_secs(1_000_000_000),
    };
    let drawers = (0..12).map(|_| {
        let aside = aside.clone();
        tokio::spawn(async move { aside.draw("org", draw).await.unwrap() })
    });
    let mut got = 0;
    for drawer in drawers.collect::<Vec<_>>() {
        got += drawer.await.unwrap();
    }
    assert_eq!(got, 37);
    assert_eq!(aside.draw("other", draw).await.unwrap(), 5);
    let short = Draw {
        window: Duration::from_millis(20),
        ..draw
    };
    // The next window holds as much again.
    let mut got = 0;
    until(async || {
        got += aside.draw("short", short).await.unwrap();
        (got > 2 * 37).then_some(())
    })
    .await;
}

async fn a_lease_has_one_holder_until_it_ends(aside: Aside) {
    let takers = (0..10).map(|taker| {
        let aside = aside.clone();
        tokio::spawn(async move {
            let holder = format!("holder{taker}");
            let taken = aside.take("loop", &holder, LONG).await.unwrap();
            taken.then_some(holder)
        })
    });
    let mut holders = Vec::new();
    for taker in takers.collect::<Vec<_>>() {
        holders.extend(taker.await.unwrap());
    }
    assert_eq!(holders.len(), 1);
    let holder = &holders[0];
    assert!(aside.renew("loop", holder, LONG).await.unwrap());
    assert!(aside.take("loop", holder, LONG).await.unwrap());
    assert!(!aside.renew("loop", "nobody", LONG).await.unwrap());
    aside.give_up("loop", "nobody").await.unwrap();
    assert!(!aside.take("loop", "next", LONG).await.unwrap());
    // It ends by itself, and then even its holder has to take it again.
    let short = Duration::from_millis(20);
    assert!(aside.renew("loop", holder, short).await.unwrap());
    until(async || {
        aside
            .take("loop", "next", LONG)
            .await
            .unwrap()
            .then_some(())
    })
    .await;
    assert!(!aside.renew("loop", holder, LONG).await.unwrap());
    assert!(!aside.take("loop", holder, LONG).await.unwrap());
    aside.give_up("loop", "next").await.unwrap();
    assert!(aside.take("loop", holder, LONG).await.unwrap());
}

async fn places_are_shared_by_all_who_claim_them(aside: Aside) {
    let claim = |wanted, life| Claim {
        wanted,
        limit: 20,
        life,
    };
    // Each of ten wants one more, again and again; together they get 20.
    let claimants = (0..10).map(|number| {
        let aside = aside.clone();
        tokio::spawn(async move {
            let holder = format!("holder{number}");
            let mut has = 0;
            for _ in 0..5 {
                let got = aside.claim("streams", &holder, claim(has + 1, LONG));
                has = got.await.unwrap();
            }
            has
        })
    });
    let mut all = 0;
    let mut has = Vec::new();
    for claimant in claimants.collect::<Vec<_>>() {
        has.push(claimant.await.unwrap());
        all += has.last().unwrap();
    }
    assert_eq!(all, 20, "{has:?}");
    // What is given back is there for others, under this name alone.
    let first = has.iter().position(|count| *count > 0).unwrap();
    let holder = format!("holder{first}");
    let free = has[first];
    assert_eq!(
        aside
            .claim("streams", &holder, claim(0, LONG))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        aside.claim("other", "new", claim(30, LONG)).await.unwrap(),
        20
    );
    let short = Duration::from_millis(30);
    assert_eq!(
        aside
            .claim("streams", "new", claim(9, short))
            .await
            .unwrap(),
        free
    );
    // Nobody loses what they have by asking for what there is not.
    assert_eq!(
        aside
            .claim("streams", "new", claim(99, short))
            .await
            .unwrap(),
        free
    );
    let kept = aside.keep("new", LONG).await.unwrap();
    if let Some(count) = kept.get("streams") {
        assert_eq!(*count, free);
        aside
            .claim("streams", "new", claim(free, short))
            .await
            .unwrap();
    }
    assert_eq!(kept.get("other"), Some(&20));
    // What nobody keeps is free by itself, and is not kept after that.
    until(async || {
        let got = aside
            .claim("streams", "next", claim(free, LONG))
            .await
            .unwrap();
        (got == free).then_some(())
    })
    .await;
    let kept = aside.keep("new", LONG).await.unwrap();
    assert_eq!(
        kept.into_iter().collect::<Vec<_>>(),
        [("other".to_owned(), 20)]
    );
    assert!(aside.keep("nobody", LONG).await.unwrap().is_empty());
}

async fn what_is_too_large_is_refused(aside: Aside) {
    let key = "k".repeat(MAX_KEY + 1);
    let refused = aside.put(THING, &key, Vec::new(), None).await;
    assert!(matches!(refused, Err(AsideError::TooLarge)));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_open_at_once_and_share_what_is_there() {
    let database = FreshDatabase::create().unwrap();
    let openers = (0..6).map(|_| {
        let address = database.url().parse().unwrap();
        tokio::spawn(async move { Aside::open_postgres(&address).await.unwrap() })
    });
    let mut asides = Vec::new();
    for opener in openers.collect::<Vec<_>>() {
        asides.push(opener.await.unwrap());
    }
    asides[0].put(THING, "a", vec![7], None).await.unwrap();
    let found = asides[5].get(THING, "a").await.unwrap().unwrap();
    assert_eq!(found.value, [7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_said_so_and_found_again() {
    let mut server = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&server).unwrap();
    let aside = open(&database).await;
    aside.put(THING, "a", vec![7], None).await.unwrap();
    server.stop_immediately().unwrap();
    let error = aside.get(THING, "a").await.unwrap_err();
    assert!(matches!(error, AsideError::Unavailable(_)), "{error:?}");
    server.resume().unwrap();
    assert_eq!(aside.get(THING, "a").await.unwrap().unwrap().value, [7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_clients_wait_their_turn() {
    let (_database, aside) = database().await;
    aside.put(THING, "a", vec![7], None).await.unwrap();
    let clients = (0..500).map(|_| {
        let aside = aside.clone();
        tokio::spawn(async move { aside.get(THING, "a").await })
    });
    for client in clients.collect::<Vec<_>>() {
        match client.await.unwrap() {
            Ok(found) => assert_eq!(found.unwrap().value, [7]),
            // A busy machine may make some wait too long, none without end.
            Err(error) => assert!(matches!(error, AsideError::Busy), "{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_on_files_waits_for_nobody() {
    let (directory, aside) = directory();
    assert!(aside.take("loop", "killed", LONG).await.unwrap());
    assert!(!aside.take("loop", "next", LONG).await.unwrap());
    let again = Aside::open(directory.path()).unwrap();
    assert!(again.take("loop", "next", LONG).await.unwrap());
    assert!(!aside.renew("loop", "killed", LONG).await.unwrap());
}

#[cfg(unix)]
#[test]
fn nobody_else_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, _aside) = directory();
    let file = std::fs::metadata(directory.path().join("aside.db")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}
