//! Priorities, first come first served, limits, ageing, a task's time.

use fluffy_base::Span;
use fluffy_tasks::{Cause, Limits, Outcome};

use crate::desk::{Desk, in_template, one_slot, task};

#[test]
fn the_most_urgent_goes_first_and_equals_in_the_order_they_came() {
    let mut desk = Desk::new(one_slot());
    let tasks = [task(1, 3), task(2, 5), task(3, 3), task(4, 1), task(5, 3)];
    assert_eq!(desk.submit(&tasks), "start 4#1");
    assert_eq!(desk.succeed(4), "start 1#1");
    assert_eq!(desk.succeed(1), "start 3#1");
    assert_eq!(desk.succeed(3), "start 5#1");
    assert_eq!(desk.succeed(5), "start 2#1");
    assert_eq!(desk.succeed(2), "");
    assert_eq!(desk.scheduler.unfinished(), 0);
}

#[test]
fn four_run_at_once_and_templates_have_their_own_limit() {
    let mut desk = Desk::new(Limits::default());
    let tasks = [
        in_template(1, 3, "ai-provider"),
        in_template(2, 3, "ai-provider"),
        in_template(3, 3, "ai-provider"),
        in_template(4, 3, "policy-sandbox"),
        in_template(5, 3, "policy-sandbox"),
        in_template(6, 3, "code-executor"),
        in_template(7, 3, "code-executor"),
    ];
    assert_eq!(
        desk.submit(&tasks),
        "start 1#1, start 2#1, start 4#1, start 6#1"
    );
    // The third of `ai-provider` waits for one of its own, 5 for 4.
    assert_eq!(desk.succeed(6), "start 7#1");
    assert_eq!(desk.succeed(7), "");
    assert_eq!(desk.succeed(1), "start 3#1");
    assert_eq!(desk.succeed(4), "start 5#1");
}

#[test]
fn waiting_lifts_one_level_for_each_threshold_and_stops_at_two() {
    let mut desk = Desk::new(one_slot());
    let long = fluffy_tasks::Task {
        time: Span { millis: 1_000_000 },
        ..task(1, 1)
    };
    desk.submit(&[long, task(2, 5), task(3, 2), task(4, 3)]);
    assert_eq!((desk.level(2), desk.level(3), desk.level(4)), (5, 2, 3));
    assert_eq!(desk.wakes_in(), Some(30_000));
    desk.wake_after(29_999);
    assert_eq!(desk.level(2), 5);
    desk.wake_after(1);
    assert_eq!((desk.level(2), desk.level(3), desk.level(4)), (4, 2, 2));
    // A driver that comes late loses nothing of the waiting.
    desk.wake_after(75_000);
    assert_eq!((desk.level(2), desk.level(3)), (2, 2));
    // Nobody can rise any more: only the end of the time is awaited.
    assert_eq!(desk.wakes_in(), Some(1_000_000 - 105_000));
    // At the same level whoever came first goes first.
    assert_eq!(desk.succeed(1), "start 2#1");
}

#[test]
fn a_task_whose_time_is_over_is_ended_and_fails() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3), task(2, 3)]);
    assert_eq!(desk.wakes_in(), Some(10_000));
    assert_eq!(desk.wake_after(10_000), "end 1 for Time");
    assert_eq!(desk.phase(1), "ending");
    // Its slot is not given away before it is gone.
    assert_eq!(desk.report(1, fluffy_tasks::Report::Ended), "start 2#1");
    assert_eq!(
        desk.outcome(1),
        Some(Outcome::Failed { cause: Cause::Time })
    );
}

#[test]
fn a_success_that_comes_with_the_order_to_end_is_a_success() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3)]);
    desk.wake_after(10_000);
    desk.succeed(1);
    assert_eq!(desk.outcome(1), Some(Outcome::Succeeded));
}

#[test]
fn time_does_not_go_back() {
    let mut desk = Desk::new(one_slot());
    let long = fluffy_tasks::Task {
        time: Span { millis: 1_000_000 },
        ..task(1, 1)
    };
    desk.submit(&[long]);
    desk.wake_after(20_000);
    desk.now = fluffy_base::Timestamp::from_micros(0);
    desk.submit(&[task(2, 5)]);
    // It waits from the latest time that was told, not from the earlier one.
    assert_eq!(desk.wakes_in(), Some(50_000));
}

#[test]
fn nothing_starts_while_the_kernel_is_short_of_memory() {
    let mut desk = Desk::new(Limits::default());
    assert_eq!(desk.memory(80, 0), "");
    assert_eq!(desk.submit(&[task(1, 1), task(2, 5)]), "");
    assert_eq!(desk.memory(79, 0), "start 1#1, start 2#1");
}
