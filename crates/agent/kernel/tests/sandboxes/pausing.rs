//! Who gives way: frozen for something more urgent, ended for memory.

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Span;
use fluffy_base::id::TaskId;
use fluffy_contract::isolation::{Exit, SandboxError};
use fluffy_kernel::event::AgentEvent;
use fluffy_kernel::freezer::Freezer;
use fluffy_kernel::hub::Hub;
use fluffy_kernel::slots::{Freeze, Slots, Store, Work};
use fluffy_tasks::{Kind, Limits, Memory, Priority};
use fluffy_test_kit::wait_for;

use crate::kit::{Kit, run, shell, written};

const PATIENCE: Duration = Duration::from_secs(60);

fn work(kind: Kind, priority: Priority) -> Work {
    Work {
        id: TaskId::generate(),
        name: kind.to_string(),
        kind,
        template: None,
        priority,
        after: None,
        time: Span { millis: 3_600_000 },
        freeze: None,
    }
}

/// One slot for both sessions.
fn one_slot() -> Slots {
    let limits = Limits {
        total: 1,
        ..Limits::default()
    };
    let store = Store {
        look: Arc::new(Memory::default),
        give_back: Arc::new(|_| {}),
    };
    Slots::start(limits, store).unwrap()
}

/// What those who listen heard so far.
async fn heard(hub: &Hub) -> Vec<String> {
    let mut listening = hub.listen(0);
    let mut names = Vec::new();
    for _ in 0..hub.newest() {
        let (_, event) = listening.next().await;
        names.push(match event {
            AgentEvent::TaskWarned { name, in_ms } => {
                assert!((1..=1_000).contains(&in_ms), "{in_ms}");
                format!("{name} warned")
            }
            AgentEvent::TaskSpared { name } => format!("{name} spared"),
            AgentEvent::TaskPaused { name } => format!("{name} paused"),
            AgentEvent::TaskResumed { name } => format!("{name} resumed"),
            other => panic!("{other:?}"),
        });
    }
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_test_is_frozen_for_a_more_urgent_session_and_both_end() {
    let kit = Kit::new(&[("gate", "wait"), ("hello", "hello")]).await;
    let slots = one_slot();
    let hub = Arc::new(Hub::default());
    let freezer = Arc::new(Freezer::new("test.run", Arc::clone(&hub)));
    let lower = Work {
        freeze: Some(Arc::clone(&freezer) as Arc<dyn Freeze>),
        ..work(Kind::TestRun, Priority::NORMAL)
    };
    let (one, other) = (kit.layer(), kit.layer());
    // It ends only when somebody says so, and has two commands.
    let waits = "touch started; until grep -q go gate; do sleep 0.02; done; touch ended";
    let testing = || async {
        for script in [waits, "echo again"] {
            let booth = kit.booth(&one).await.under(Some(Arc::clone(&freezer)));
            let finished = booth.run(run(), shell(script), b"").await?;
            booth.close().await;
            assert_eq!(finished.exit, Exit::Code { code: 0 });
        }
        Ok::<_, SandboxError>(())
    };
    let mut tested = std::pin::pin!(slots.run(lower, testing));
    let started = written(&one).join("started");
    let begun = async {
        while !started.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        _ = &mut tested => panic!("it did not wait"),
        () = begun => {}
        () = tokio::time::sleep(PATIENCE) => panic!("it did not start"),
    }
    let urgent = work(Kind::Commit, Priority::URGENT);
    let committing = || async {
        assert_eq!(heard(&hub).await, ["test.run warned", "test.run paused"]);
        // The frozen one could end now, if it were not.
        std::fs::write(kit.project().join("gate"), "go").unwrap();
        let booth = kit.booth(&other).await;
        let finished = booth.run(run(), shell("sleep 1; cat hello"), b"").await?;
        booth.close().await;
        assert!(!written(&one).join("ended").exists(), "it was not frozen");
        Ok::<_, SandboxError>(finished)
    };
    let committed = tokio::select! {
        _ = &mut tested => panic!("it was not frozen"),
        committed = slots.run(urgent, committing) => committed,
    };
    assert_eq!(committed.unwrap().unwrap().stdout, b"hello");
    let tested = tokio::time::timeout(PATIENCE, tested).await;
    tested.unwrap().unwrap().unwrap();
    assert!(written(&one).join("ended").exists());
    let all = ["test.run warned", "test.run paused", "test.run resumed"];
    assert_eq!(heard(&hub).await, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_paused_between_two_commands_starts_no_other() {
    let kit = Kit::new(&[]).await;
    let hub = Arc::new(Hub::default());
    let freezer = Arc::new(Freezer::new("test.run", Arc::clone(&hub)));
    let held = kit.layer();
    assert!(freezer.pause().await);
    let booth = kit.booth(&held).await.under(Some(Arc::clone(&freezer)));
    let running = tokio::spawn(async move { booth.run(run(), shell("touch ran"), b"").await });
    let ran = written(&held).join("ran");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!ran.exists());
    freezer.resume().await;
    let finished = tokio::time::timeout(PATIENCE, running).await;
    let finished = finished.unwrap().unwrap().unwrap();
    assert_eq!(finished.exit, Exit::Code { code: 0 });
    assert!(ran.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_ended_for_memory_and_nothing_else_is() {
    let kit = Kit::new(&[("gate", "wait")]).await;
    let (one, other) = (kit.layer(), kit.layer());
    let (command, commit) = (kit.booth(&one).await, kit.booth(&other).await);
    let waits = "touch started; until grep -q go gate; do sleep 0.02; done";
    let begun = [written(&one), written(&other)].map(|folder| folder.join("started"));
    let project = kit.project().to_owned();
    let workshop = Arc::clone(&kit.workshop);
    let short = async {
        let begun = tokio::task::spawn_blocking(move || {
            wait_for("both run", PATIENCE, || {
                begun.iter().all(|file| file.exists()).then_some(())
            })
        });
        begun.await.unwrap().unwrap();
        workshop.end_waiting().await;
        workshop.end_commands().await;
    };
    let ends = command.run_unless_short(&kit.workshop, run(), shell(waits));
    let stays = commit.run(run(), shell(waits), b"");
    let rest = async {
        let (ended, ()) = tokio::join!(ends, short);
        // Only now: so nothing but the order ended it.
        std::fs::write(project.join("gate"), "go").unwrap();
        ended
    };
    let (ended, stayed) = tokio::join!(rest, stays);
    assert!(ended.unwrap().is_none());
    assert_eq!(stayed.unwrap().exit, Exit::Code { code: 0 });
    // Where there is memory it runs to its end.
    let runs = kit.booth(&kit.layer()).await;
    let runs = runs.run_unless_short(&kit.workshop, run(), shell("exit 3"));
    assert_eq!(runs.await.unwrap().unwrap().exit, Exit::Code { code: 3 });
}
