//! After an end of the kernel: what ran starts again, what ended stays ended.

use fluffy_tasks::{Cause, Limits, Outcome, Report, ResumeError, Scheduler, Snapshot};

use crate::desk::{Desk, after, id, one_slot, task};

impl Desk {
    /// Kills the kernel: only what the ledger has is left.
    fn crash(&mut self, limits: Limits) -> String {
        let snapshot = Snapshot::default().after(&self.events).unwrap();
        assert_eq!(snapshot, self.scheduler.snapshot());
        let json = serde_json::to_string(&snapshot).unwrap();
        let snapshot: Snapshot = serde_json::from_str(&json).unwrap();
        let (scheduler, step) = Scheduler::resume(limits, &snapshot, self.now).unwrap();
        self.scheduler = scheduler;
        self.take(step)
    }
}

#[test]
fn what_ran_starts_again_in_its_old_place() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3), task(2, 3), after(3, &[1])]);
    assert_eq!(desk.crash(one_slot()), "start 1#2");
    // A late word of the first start is refused.
    let stale = fluffy_tasks::Input::Report {
        task: id(1),
        attempt: 1,
        report: Report::Succeeded,
    };
    assert!(desk.try_step(stale).is_err());
    assert_eq!(desk.succeed(1), "start 2#1");
    assert_eq!(desk.crash(Limits::default()), "start 2#2, start 3#1");
}

#[test]
fn a_task_that_was_there_at_every_crash_is_given_up() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3), after(2, &[1]), task(3, 5)]);
    assert_eq!(desk.crash(one_slot()), "start 1#2");
    assert_eq!(desk.crash(one_slot()), "start 1#3");
    assert_eq!(desk.crash(one_slot()), "start 3#1");
    let cause = Cause::Crashes;
    assert_eq!(desk.outcome(1), Some(Outcome::Failed { cause }));
    assert!(matches!(
        desk.outcome(2),
        Some(Outcome::Failed { cause: Cause::Dependency { origin } }) if origin.name == "task 1"
    ));
}

#[test]
fn what_was_being_ended_has_ended() {
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[task(1, 3), task(2, 3)]);
    desk.cancel(1);
    desk.wake_after(10_000);
    assert_eq!(desk.phase(2), "ending");
    assert_eq!(desk.crash(Limits::default()), "");
    assert_eq!(desk.outcome(1), Some(Outcome::Cancelled { with: None }));
    assert_eq!(
        desk.outcome(2),
        Some(Outcome::Failed { cause: Cause::Time })
    );
}

#[test]
fn what_was_paused_starts_from_the_beginning() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    desk.submit(&[task(2, 3)]);
    desk.wake_after(1_000);
    desk.report(1, Report::Paused);
    assert_eq!(desk.crash(one_slot()), "start 2#2");
    assert_eq!(desk.succeed(2), "start 1#2");
    assert_eq!(desk.wakes_in(), Some(10_000));
}

#[test]
fn waiting_counts_from_the_restart_and_what_was_risen_stays() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 1), task(2, 5)]);
    desk.wake_after(5_000);
    desk.succeed(1);
    desk.submit(&[task(3, 1), task(4, 5)]);
    desk.wake_after(1_000);
    desk.report(2, Report::Paused);
    desk.now = desk.now.after(std::time::Duration::from_secs(35));
    desk.step(fluffy_tasks::Input::Wake);
    assert_eq!((desk.level(2), desk.level(4)), (4, 4));
    // The clock was set back in between; nobody waits for it to catch up.
    desk.now = fluffy_base::Timestamp::from_micros(0);
    assert_eq!(desk.crash(one_slot()), "start 2#2");
    assert_eq!(desk.level(4), 4);
    assert_eq!(desk.wakes_in(), Some(10_000));
    assert_eq!(desk.succeed(2), "start 4#1");
}

#[test]
fn old_ends_are_forgotten_and_the_rest_is_not() {
    let two = Limits {
        total: 2,
        ..Limits::default()
    };
    let mut desk = Desk::new(two.clone());
    desk.submit(&[task(0, 3), task(100_000, 3)]);
    desk.succeed(0);
    for number in 1..=fluffy_tasks::REMEMBERED as u32 {
        desk.submit(&[task(number, 3)]);
        desk.succeed(number);
    }
    assert!(desk.scheduler.status(id(0)).is_none());
    assert!(desk.scheduler.status(id(1)).is_some());
    assert_eq!(desk.crash(two), "start 100000#2");
    // What waited for a task that is forgotten does not wait for ever.
    assert_eq!(desk.succeed(100_000), "");
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3), after(2, &[1]), task(3, 3)]);
    desk.succeed(1);
    let json = serde_json::to_string(&desk.scheduler.snapshot()).unwrap();
    let read = |from: &str, to: &str| {
        assert!(json.contains(from), "{from} in {json}");
        let snapshot: Snapshot = serde_json::from_str(&json.replacen(from, to, 1)).unwrap();
        Scheduler::resume(one_slot(), &snapshot, desk.now).map(|_| ())
    };
    assert_eq!(read("\"version\":1", "\"version\":1"), Ok(()));
    let one = format!("\"finished\":[\"{}\"]", id(1));
    let changes = [
        ("\"version\":1", "\"version\":2"),
        ("\"next_order\":3", "\"next_order\":2"),
        ("\"order\":1", "\"order\":0"),
        (one.as_str(), "\"finished\":[]"),
    ];
    for (from, to) in changes {
        assert!(read(from, to).is_err(), "{from} → {to}");
    }
    // Two that wait for each other.
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3), after(2, &[1]), after(3, &[2])]);
    let json = serde_json::to_string(&desk.scheduler.snapshot()).unwrap();
    let wrong = json.replacen(&format!("[\"{}\"]", id(1)), &format!("[\"{}\"]", id(3)), 1);
    let snapshot: Snapshot = serde_json::from_str(&wrong).unwrap();
    let refused = Scheduler::resume(one_slot(), &snapshot, desk.now).map(|_| ());
    assert!(matches!(refused, Err(ResumeError::Contradiction { .. })));
    let zero = Limits {
        total: 0,
        ..Limits::default()
    };
    let refused = Scheduler::resume(zero, &Snapshot::default(), desk.now);
    assert!(matches!(refused, Err(ResumeError::Limits(_))));
}

#[test]
fn events_that_do_not_follow_are_refused() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3)]);
    desk.succeed(1);
    let twice = [&desk.events[..], &desk.events[1..]].concat();
    for events in [&desk.events[1..], &twice[..]] {
        let applied = Snapshot::default().after(events);
        assert!(matches!(applied, Err(ResumeError::Event(_))), "{events:?}");
    }
}
