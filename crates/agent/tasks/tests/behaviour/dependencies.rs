//! Tasks that wait for others: order, failure and cancellation along the way.

use fluffy_tasks::{Cause, Limits, Origin, Outcome, Report};

use crate::desk::{Desk, after, id, one_slot, task};

fn because_of(number: u32) -> Option<Outcome> {
    Some(Outcome::Failed {
        cause: Cause::Dependency {
            origin: origin(number),
        },
    })
}

fn cancelled_with(number: u32) -> Option<Outcome> {
    Some(Outcome::Cancelled {
        with: Some(origin(number)),
    })
}

fn origin(number: u32) -> Origin {
    Origin {
        task: id(number),
        name: format!("task {number}"),
    }
}

#[test]
fn a_task_starts_when_the_last_of_its_dependencies_has_succeeded() {
    let mut desk = Desk::new(Limits::default());
    // The one that waits comes first: a submission has no order of its own.
    let tasks = [
        after(4, &[2, 3, 2]),
        after(2, &[1]),
        after(3, &[1]),
        task(1, 3),
    ];
    assert_eq!(desk.submit(&tasks), "start 1#1");
    assert_eq!(desk.succeed(1), "start 2#1, start 3#1");
    assert_eq!(desk.succeed(3), "");
    assert_eq!(desk.succeed(2), "start 4#1");
    // What has succeeded is not waited for.
    assert_eq!(desk.submit(&[after(5, &[1, 2])]), "start 5#1");
}

#[test]
fn a_failure_reaches_everything_behind_it_and_is_named() {
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[
        task(1, 3),
        task(2, 3),
        after(3, &[1]),
        after(4, &[3, 2]),
        after(5, &[2]),
        after(6, &[3, 4]),
    ]);
    assert_eq!(desk.fail(1), "");
    let reason = "it broke".to_owned();
    let cause = Cause::Itself { reason };
    assert_eq!(desk.outcome(1), Some(Outcome::Failed { cause }));
    for number in [3, 4, 6] {
        assert_eq!(desk.outcome(number), because_of(1), "task {number}");
    }
    assert_eq!(desk.phase(5), "waiting");
    assert_eq!(desk.succeed(2), "start 5#1");
}

#[test]
fn what_depends_on_an_old_failure_fails_at_once_with_its_name() {
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[task(1, 3), after(2, &[1])]);
    desk.fail(1);
    assert_eq!(desk.submit(&[after(3, &[2]), after(4, &[3])]), "");
    assert_eq!(desk.outcome(3), because_of(1));
    assert_eq!(desk.outcome(4), because_of(1));
    desk.submit(&[task(5, 3)]);
    desk.cancel(5);
    desk.report(5, Report::Ended);
    desk.submit(&[after(6, &[5])]);
    assert_eq!(desk.outcome(6), cancelled_with(5));
}

#[test]
fn cancelling_takes_everything_along_that_waits() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[
        task(1, 3),
        after(2, &[1]),
        after(3, &[2]),
        task(4, 3),
        after(5, &[4]),
    ]);
    assert_eq!(desk.cancel(4), "");
    assert_eq!(desk.outcome(4), Some(Outcome::Cancelled { with: None }));
    assert_eq!(desk.outcome(5), cancelled_with(4));
    assert_eq!(desk.cancel(1), "end 1 for Cancelled");
    assert_eq!(desk.outcome(3), cancelled_with(1));
    assert_eq!(desk.outcome(1), None);
    // Twice is once.
    assert_eq!(desk.cancel(1), "");
    // Even a success comes too late: nobody wants it, and its dependants are gone.
    assert_eq!(desk.succeed(1), "");
    assert_eq!(desk.outcome(1), Some(Outcome::Cancelled { with: None }));
    assert_eq!(desk.scheduler.unfinished(), 0);
}

#[test]
fn a_chain_of_thousands_fails_in_one_step() {
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[task(0, 3)]);
    for number in 1..9_000 {
        desk.submit(&[after(number, &[number - 1])]);
    }
    desk.fail(0);
    assert_eq!(desk.outcome(8_999), because_of(0));
    assert_eq!(desk.scheduler.unfinished(), 0);
}
