//! Slots with a clock that stands still, and memory that is planted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;

fn work(template: &'static str) -> Work {
    Work {
        id: TaskId::generate(),
        name: "a turn".to_owned(),
        kind: Kind::AiGenerate,
        template: Some(template),
        priority: Priority::NORMAL,
        after: None,
        time: Span { millis: 3_600_000 },
        freeze: None,
    }
}

fn tests_run() -> Work {
    Work {
        name: "a test run".to_owned(),
        kind: Kind::TestRun,
        ..work("code-executor")
    }
}

fn endless(memory: LookAtMemory) -> Store {
    Store {
        look: memory,
        give_back: Arc::new(|_| {}),
    }
}

fn slots() -> Slots {
    Slots::start(Limits::default(), endless(Arc::new(Memory::default))).unwrap()
}

/// One slot for everything.
fn one_slot(memory: LookAtMemory) -> Slots {
    let limits = Limits {
        total: 1,
        ..Limits::default()
    };
    Slots::start(limits, endless(memory)).unwrap()
}

async fn done() -> Result<(), &'static str> {
    Ok(())
}

async fn forever() -> Result<(), &'static str> {
    std::future::pending().await
}

/// Lets everything happen that can.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// What was asked of work that can be paused.
#[derive(Debug, Default)]
struct Asked {
    calls: Mutex<Vec<&'static str>>,
}

impl Asked {
    fn add(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }
}

impl Freeze for Asked {
    fn warn(&self, after: Duration) {
        assert_eq!(after.as_millis().div_ceil(100), 10);
        self.add("warn");
    }

    fn spare(&self) {
        self.add("spare");
    }

    fn pause(&self) -> BoxFuture<'_, bool> {
        self.add("pause");
        Box::pin(async { true })
    }

    fn resume(&self) -> BoxFuture<'_, ()> {
        self.add("resume");
        Box::pin(async {})
    }
}

#[tokio::test(start_paused = true)]
async fn two_of_a_kind_run_at_once_and_the_third_waits_for_one_of_them() {
    let slots = slots();
    let running = Arc::new(AtomicUsize::new(0));
    let go = Arc::new(Notify::new());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (slots, running, go) = (slots.clone(), Arc::clone(&running), Arc::clone(&go));
        tasks.spawn(async move {
            let doing = || async {
                running.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
                done().await
            };
            slots.run(work("ai-provider"), doing).await.unwrap()
        });
    }
    settle().await;
    assert_eq!(running.load(Ordering::SeqCst), 2);
    // Another kind of sandbox is free.
    let other = slots.run(work("code-executor"), done).await;
    other.unwrap().unwrap();
    go.notify_one();
    settle().await;
    assert_eq!(running.load(Ordering::SeqCst), 3);
    go.notify_waiters();
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_takes_no_slot_with_it() {
    let slots = slots();
    let first = tokio::spawn({
        let slots = slots.clone();
        async move { slots.run(work("policy-sandbox"), forever).await }
    });
    settle().await;
    let second = tokio::spawn({
        let slots = slots.clone();
        async move { slots.run(work("policy-sandbox"), forever).await }
    });
    settle().await;
    // Both at once: the one that waits gets the slot when it is gone already.
    first.abort();
    second.abort();
    settle().await;
    let last = slots.run(work("policy-sandbox"), done);
    let last = tokio::time::timeout(Duration::from_secs(5), last).await;
    last.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_is_nearly_full_starts_nothing_until_it_is_not() {
    let kernel = Arc::new(AtomicU8::new(85));
    let look = Arc::clone(&kernel);
    let memory = move || Memory {
        kernel: look.load(Ordering::SeqCst),
        sandboxes: 0,
    };
    let short = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&short);
    let store = Store {
        look: Arc::new(memory),
        give_back: Arc::new(move |shortage| told.lock().unwrap().push(shortage)),
    };
    let slots = Slots::start(Limits::default(), store).unwrap();
    let mut waits = tokio::spawn({
        let slots = slots.clone();
        async move { slots.run(work("ai-provider"), done).await }
    });
    let early = tokio::time::timeout(Duration::from_secs(60), &mut waits).await;
    assert!(early.is_err(), "it started");
    {
        let mut short = short.lock().unwrap();
        assert!(!short.is_empty(), "nobody was asked to drop anything");
        assert!(short.iter().all(|one| *one == Shortage::Caches));
        short.clear();
    }
    kernel.store(40, Ordering::SeqCst);
    waits.await.unwrap().unwrap().unwrap();
    assert_eq!(short.lock().unwrap().as_slice(), []);
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_is_full_ends_what_can_be_done_again_and_does_it_again() {
    let kernel = Arc::new(AtomicU8::new(50));
    let look = Arc::clone(&kernel);
    let memory = move || Memory {
        kernel: look.load(Ordering::SeqCst),
        sandboxes: 0,
    };
    let commands = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commands);
    let store = Store {
        look: Arc::new(memory),
        give_back: Arc::new(move |shortage| {
            if shortage == Shortage::Commands {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }),
    };
    let slots = Slots::start(Limits::default(), store).unwrap();
    let starts = Arc::new(AtomicUsize::new(0));
    let go = Arc::new(Notify::new());
    let run = |work: Work| {
        let (slots, starts, go) = (slots.clone(), Arc::clone(&starts), Arc::clone(&go));
        tokio::spawn(async move {
            let doing = || async {
                starts.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
                done().await
            };
            slots.run(work, doing).await
        })
    };
    let again = run(tests_run());
    let turn = run(work("ai-provider"));
    let commit = run(Work {
        kind: Kind::Commit,
        template: None,
        ..work("ai-provider")
    });
    settle().await;
    assert_eq!(starts.load(Ordering::SeqCst), 3);
    kernel.store(89, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(commands.load(Ordering::SeqCst), 0, "too early");
    kernel.store(90, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(commands.load(Ordering::SeqCst) > 0);
    // It does not start again before there is room.
    assert_eq!(starts.load(Ordering::SeqCst), 3);
    kernel.store(50, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(starts.load(Ordering::SeqCst), 4, "the test run alone");
    go.notify_waiters();
    for one in [again, turn, commit] {
        one.await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_fits_into_memory_is_given_up_the_second_time() {
    let full = Memory {
        kernel: 95,
        sandboxes: 0,
    };
    let memory = Arc::new(Mutex::new(Memory::default()));
    let look = Arc::clone(&memory);
    let slots = one_slot(Arc::new(move || *look.lock().unwrap()));
    let runs = tokio::spawn({
        let slots = slots.clone();
        async move { slots.run(tests_run(), forever).await }
    });
    for _ in 0..2 {
        settle().await;
        *memory.lock().unwrap() = full;
        tokio::time::sleep(Duration::from_secs(5)).await;
        *memory.lock().unwrap() = Memory::default();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(matches!(runs.await.unwrap(), Err(SlotError::Memory)));
    // Its slot is free again.
    slots.run(tests_run(), done).await.unwrap().unwrap();
}

/// A test run that can be frozen, and tells how it was.
fn freezable(asked: &Arc<Asked>) -> Work {
    Work {
        freeze: Some(Arc::clone(asked) as Arc<dyn Freeze>),
        ..tests_run()
    }
}

/// What a test run has to give way to.
fn urgent_commit() -> Work {
    Work {
        kind: Kind::Commit,
        priority: Priority::URGENT,
        ..work("ai-provider")
    }
}

#[tokio::test(start_paused = true)]
async fn a_lower_one_is_warned_paused_for_a_higher_one_and_goes_on() {
    let slots = one_slot(Arc::new(Memory::default));
    let asked = Arc::new(Asked::default());
    let go = Arc::new(Notify::new());
    let lower = tokio::spawn({
        let (slots, go) = (slots.clone(), Arc::clone(&go));
        let work = freezable(&asked);
        async move {
            let doing = || async {
                go.notified().await;
                done().await
            };
            slots.run(work, doing).await
        }
    });
    settle().await;
    let during = Arc::clone(&asked);
    let higher = slots.run(urgent_commit(), || async {
        assert_eq!(during.calls(), ["warn", "pause"]);
        done().await
    });
    higher.await.unwrap().unwrap();
    settle().await;
    assert_eq!(asked.calls(), ["warn", "pause", "resume"]);
    go.notify_waiters();
    lower.await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_higher_one_that_gives_up_spares_the_lower_one() {
    let slots = one_slot(Arc::new(Memory::default));
    let asked = Arc::new(Asked::default());
    let _lower = tokio::spawn({
        let slots = slots.clone();
        let work = freezable(&asked);
        async move { slots.run(work, forever).await }
    });
    settle().await;
    let urgent = Work {
        priority: Priority::URGENT,
        ..work("ai-provider")
    };
    let waits = tokio::time::timeout(Duration::from_millis(500), slots.run(urgent, done)).await;
    assert!(waits.is_err());
    settle().await;
    assert_eq!(asked.calls(), ["warn", "spare"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_ended_while_it_was_frozen_goes_on_thawed() {
    let memory = Arc::new(Mutex::new(Memory::default()));
    let look = Arc::clone(&memory);
    let slots = one_slot(Arc::new(move || *look.lock().unwrap()));
    let asked = Arc::new(Asked::default());
    let starts = Arc::new(AtomicUsize::new(0));
    let lower = tokio::spawn({
        let (slots, starts) = (slots.clone(), Arc::clone(&starts));
        let work = freezable(&asked);
        async move {
            let doing = || async {
                if starts.fetch_add(1, Ordering::SeqCst) > 0 {
                    return done().await;
                }
                forever().await
            };
            slots.run(work, doing).await
        }
    });
    settle().await;
    let fills = slots.run(urgent_commit(), || async {
        memory.lock().unwrap().kernel = 95;
        tokio::time::sleep(Duration::from_secs(5)).await;
        memory.lock().unwrap().kernel = 10;
        done().await
    });
    fills.await.unwrap().unwrap();
    lower.await.unwrap().unwrap().unwrap();
    settle().await;
    assert_eq!(asked.calls(), ["warn", "pause", "resume"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_after_what_did_not_succeed() {
    let slots = slots();
    let tests = tests_run();
    let validate = Work {
        kind: Kind::Validate,
        template: None,
        after: Some(tests.id),
        ..work("ai-provider")
    };
    let review = Work {
        kind: Kind::Review,
        template: None,
        after: Some(validate.id),
        ..work("ai-provider")
    };
    let ran = AtomicUsize::new(0);
    let count = || async {
        ran.fetch_add(1, Ordering::SeqCst);
        done().await
    };
    // Asked for in the wrong order, they run in the right one.
    let behind = slots.run(validate, || async {
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        Err::<(), _>("the tests are red")
    });
    let first = slots.run(tests, count);
    let (first, behind) = tokio::join!(first, behind);
    first.unwrap().unwrap();
    assert_eq!(behind.unwrap(), Err("the tests are red"));
    let never = slots.run(review, count).await.unwrap_err();
    assert!(matches!(never, SlotError::Behind { .. }), "{never}");
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn this_process_knows_how_full_it_is() {
    let before = own_memory();
    let ballast = std::hint::black_box(vec![1_u8; 64 << 20]);
    let full = own_memory().kernel;
    assert!(
        (before.kernel + 12..80).contains(&full),
        "{before:?} {full}"
    );
    assert!((1..=100).contains(&before.sandboxes));
    drop(ballast);
}
