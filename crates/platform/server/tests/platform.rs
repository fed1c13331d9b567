//! Replicas of the real platform over one database, and one on files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::time::Duration;

use fluffy_base::id::TokenId;
use fluffy_control::{Fence, Notice, Outcome, State, access};
use fluffy_ledger::{Actor, ActorKind, AppendError, Event, LedgerOptions};
use fluffy_server::credential::{CredentialKind, recognise};
use fluffy_server::hashes::Hashes;
use fluffy_server::loops;
use fluffy_server::loops::lease::Timing;
use fluffy_server::machine::Reply;
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_test_kit::{FreshDatabase, wait_for};
use tempfile::TempDir;
use tokio::sync::watch;

const LIMIT: Duration = Duration::from_secs(90);

async fn open(storage: &Storage) -> Platform {
    Platform::open(storage, LedgerOptions::default())
        .await
        .unwrap()
}

fn database() -> (FreshDatabase, Storage) {
    let database = FreshDatabase::create().unwrap();
    let storage = Storage::database(database.url().parse().unwrap());
    (database, storage)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_replicas_that_begin_at_once_one_begins_the_platform() {
    let (_database, storage) = database();
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(open(&storage).await);
    }
    let begin = |replica: &Platform| {
        let replica = replica.clone();
        tokio::spawn(async move { replica.begin(Founder::Invited).await.unwrap() })
    };
    let mut invites = Vec::new();
    for begun in replicas.iter().map(begin).collect::<Vec<_>>() {
        invites.extend(begun.await.unwrap());
    }
    let is_beginning = |event: &Event| event.event_type == "cluster.initialized";
    let beginnings = replicas[0].ledger().last_where(2, is_beginning);
    assert_eq!(beginnings.unwrap().len(), 1);
    // The hash of an invite is kept, and stands for the token that the ledger
    // has. Who was too late to begin but saw it may have another.
    assert!(!invites.is_empty());
    let (kind, hash) = recognise(invites[0].expose()).unwrap();
    assert_eq!(kind, CredentialKind::Invite);
    let hashes = Hashes::new(replicas[2].aside().clone());
    let token = hashes.find(kind, hash).await.unwrap().unwrap();
    let last = replicas[0].ledger().head().unwrap().seq;
    for replica in &replicas {
        wait_for("every replica is at the end", LIMIT, || {
            (replica.sequencer().applied().seq == last).then_some(())
        })
        .unwrap();
        assert!(
            replica
                .sequencer()
                .read(|s| s.meta("token", &token).is_some())
        );
    }
    let digests = |replica: &Platform| replica.sequencer().read(State::digests);
    assert_eq!(digests(&replicas[0]), digests(&replicas[1]));
    assert_eq!(digests(&replicas[0]), digests(&replicas[2]));
    assert_eq!(replicas[0].ledger().head().unwrap().seq, last);
}

/// A start that fails after the platform began may have lost its invite.
#[tokio::test(flavor = "multi_thread")]
async fn while_nobody_has_come_in_every_start_has_an_invite() {
    let directory = TempDir::new().unwrap();
    let storage = Storage::Directory(directory.path().to_owned());
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let platform = open(&storage).await;
        let invite = platform.begin(Founder::Invited).await.unwrap().unwrap();
        let (kind, hash) = recognise(invite.expose()).unwrap();
        let hashes = Hashes::new(platform.aside().clone());
        let token = hashes.find(kind, hash).await.unwrap().unwrap();
        tokens.push(token.parse::<TokenId>().unwrap());
        platform.close().await;
    }
    let platform = open(&storage).await;
    let state = platform.sequencer().read(State::clone);
    let [first, second] = [0, 1].map(|start: usize| &state.access.tokens[&tokens[start]]);
    assert_ne!(tokens[0], tokens[1]);
    // Both let in the same person, so that no second owner comes in.
    assert_eq!(first.principal, second.principal);
    assert_eq!(state.access.awaited(), Some(first.principal.as_str()));
    assert_eq!((&first.revoked, &second.revoked), (&None, &None));
    // Who owns the machine needs none, and neither does what they have begun.
    assert!(platform.begin(Founder::Local).await.unwrap().is_none());
    platform.close().await;
    let directory = TempDir::new().unwrap();
    let platform = open(&Storage::Directory(directory.path().to_owned())).await;
    for founder in [Founder::Local, Founder::Invited] {
        assert!(platform.begin(founder).await.unwrap().is_none());
    }
    platform.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_goes_on_where_it_was_closed() {
    let directory = TempDir::new().unwrap();
    let storage = Storage::Directory(directory.path().to_owned());
    let platform = open(&storage).await;
    assert!(platform.begin(Founder::Local).await.unwrap().is_none());
    let state = platform.sequencer().read(State::clone);
    assert!(state.seq > 0);
    platform.close().await;
    drop(platform);
    let platform = open(&storage).await;
    assert_eq!(platform.sequencer().read(State::clone), state);
    let rebuilt = platform.rebuild(false).await.unwrap();
    assert_eq!((rebuilt.seq, rebuilt.differ), (state.seq, Vec::new()));
    assert!(!rebuilt.digests.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_loop_is_led_by_one_replica_and_taken_over() {
    let (_database, storage) = database();
    let timing = Timing {
        life: Duration::from_secs(2),
        renewal: Duration::from_millis(400),
        retry: Duration::from_millis(100),
    };
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let platform = open(&storage).await;
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(loops::run(platform.clone(), timing, stopped));
        replicas.push((platform, stop, running));
    }
    let terms = |platform: &Platform| platform.sequencer().read(|state| state.leases.clone());
    let (first, ..) = &replicas[0];
    wait_for("every loop is led", LIMIT, || {
        (terms(first).len() == 4).then_some(())
    })
    .unwrap();
    let before = terms(first);
    // Whoever stops gives up what it leads, and the other one leads all.
    let (_, stop, running) = replicas.remove(0);
    stop.send_replace(true);
    running.await.unwrap();
    let (second, ..) = &replicas[0];
    let holders = |platform: &Platform| {
        let last = |lease: &str| {
            let wanted = |event: &fluffy_ledger::Event| {
                event.event_type == "leader.acquired" && event.aggregate.id == lease
            };
            let found = platform.ledger().last_where(1, wanted).unwrap().remove(0);
            found.payload.value().unwrap()["replica_id"].clone()
        };
        before.keys().map(|lease| last(lease)).collect::<Vec<_>>()
    };
    wait_for("the other leads every loop", LIMIT, || {
        let all = holders(second).iter().all(|held| held == second.replica());
        all.then_some(())
    })
    .unwrap();
    // A term of before is of no more use.
    let (lease, epoch) = before.iter().next().unwrap();
    let now = terms(second)[lease];
    for (epoch, accepted) in [(now, true), (now + 1, false), (now - 1, false)] {
        let fence = Fence {
            lease: lease.clone(),
            epoch,
        };
        let notice = Notice::Access(access::Notice::ApprovalsExpired);
        let answer = second.notice("test", Some(fence), notice).await.unwrap();
        let done = matches!(answer.reply, Reply::Wrote(Outcome::Done { .. }));
        assert_eq!(done, accepted, "{epoch} of {now}");
    }
    assert!(now >= *epoch);
}

/// A tail that somebody changed is served, and nothing is added to it before
/// somebody accepts it by name.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_after_a_tail_that_was_tampered_with() {
    let directory = TempDir::new().unwrap();
    let storage = Storage::Directory(directory.path().to_owned());
    let platform = open(&storage).await;
    platform.begin(Founder::Local).await.unwrap();
    let last = platform.ledger().head().unwrap().seq;
    platform.close().await;
    drop(platform);
    // Control: nobody minds a ledger that is what was written.
    let platform = open(&storage).await;
    platform.lead("sound").await.unwrap();
    platform.close().await;
    drop(platform);

    let attacker = rusqlite::Connection::open(directory.path().join("ledger/ledger.db")).unwrap();
    attacker
        .execute_batch("DROP TRIGGER IF EXISTS events_are_never_updated")
        .unwrap();
    let forge = "UPDATE events SET actor_id = 'mallory' WHERE seq = ?1";
    let row = i64::try_from(last).unwrap();
    assert_eq!(attacker.execute(forge, [row]).unwrap(), 1);
    drop(attacker);
    let platform = open(&storage).await;
    assert_eq!(platform.ledger().refused_since(), Some(last));
    assert!(
        platform
            .sequencer()
            .read(|state| !state.access.orgs.is_empty())
    );
    assert_eq!(platform.lead("broken").await, None);
    let notice = || Notice::Access(access::Notice::ApprovalsExpired);
    let refused = platform.restored().await.unwrap_err();
    assert!(matches!(refused, AppendError::ChainBroken { seq } if seq == last));
    // What would change nothing is answered.
    platform.notice("test", None, notice()).await.unwrap();
    let operator = || Actor::new(ActorKind::User, "operator");
    platform
        .accept_break(last - 1, operator())
        .await
        .unwrap_err();
    platform.accept_break(last, operator()).await.unwrap();
    platform.lead("accepted").await.unwrap();
    platform.close().await;
    drop(platform);
    let platform = open(&storage).await;
    platform.lead("still").await.unwrap();
}
