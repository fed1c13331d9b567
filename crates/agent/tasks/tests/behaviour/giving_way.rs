//! When somebody more urgent waits: left alone, ended, or warned and paused.

use fluffy_tasks::{Cause, Limits, Outcome, Report};

use crate::desk::{Desk, in_template, one_slot, task};

#[test]
fn a_lower_task_is_warned_paused_after_a_second_and_resumed() {
    let mut desk = Desk::new(one_slot());
    assert_eq!(desk.submit(&[task(1, 4)]), "start 1#1");
    assert_eq!(desk.submit(&[task(2, 3)]), "warn 1");
    assert_eq!(desk.wakes_in(), Some(1_000));
    assert_eq!(desk.wake_after(999), "");
    assert_eq!(desk.wake_after(1), "pause 1");
    // The slot is free when the freezer says so, and not before.
    assert_eq!(desk.phase(2), "queued");
    assert_eq!(desk.report(1, Report::Paused), "start 2#1");
    // Equal to the paused task, and later.
    assert_eq!(desk.submit(&[task(3, 4)]), "");
    desk.wake_after(2_000);
    assert_eq!(desk.succeed(2), "resume 1");
    // One second of its ten was used: the pause does not count.
    assert_eq!(desk.wakes_in(), Some(9_000));
    assert_eq!(desk.succeed(1), "start 3#1");
}

#[test]
fn equals_and_lower_ones_wait() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3)]);
    assert_eq!(desk.submit(&[task(2, 3), task(3, 5)]), "");
}

#[test]
fn a_task_past_four_fifths_of_its_time_is_left_alone() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 5)]);
    desk.wake_after(8_000);
    assert_eq!(desk.submit(&[task(2, 1)]), "");
    assert_eq!(desk.succeed(1), "start 2#1");
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 5)]);
    desk.wake_after(7_999);
    assert_eq!(desk.submit(&[task(2, 1)]), "warn 1");
    // It got there while it was warned.
    assert_eq!(desk.wake_after(1), "spare 1");
}

#[test]
fn a_second_urgent_task_takes_the_next_lowest() {
    let mut desk = Desk::new(Limits {
        total: 3,
        ..Limits::default()
    });
    desk.submit(&[task(1, 4)]);
    desk.wake_after(9_000);
    desk.submit(&[task(2, 4), task(3, 3)]);
    // The lowest that came last; the first one will be done soon.
    assert_eq!(desk.submit(&[task(4, 1)]), "warn 2");
    assert_eq!(desk.submit(&[task(5, 1)]), "");
    assert_eq!(desk.submit(&[task(6, 2)]), "warn 3");
}

#[test]
fn the_lowest_gives_way_and_among_equals_the_one_that_ran_least() {
    let mut desk = Desk::new(Limits {
        total: 3,
        ..Limits::default()
    });
    desk.submit(&[task(1, 4), task(2, 3)]);
    desk.wake_after(1_000);
    desk.submit(&[task(3, 4)]);
    assert_eq!(desk.submit(&[task(4, 1)]), "warn 3");
    assert_eq!(desk.submit(&[task(5, 1)]), "warn 1");
    assert_eq!(desk.submit(&[task(6, 1)]), "warn 2");
    assert_eq!(desk.submit(&[task(7, 1)]), "");
}

#[test]
fn a_warning_ends_with_its_reason() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    desk.submit(&[task(2, 1)]);
    assert_eq!(desk.cancel(2), "spare 1");
    // And when a slot comes free elsewhere.
    let mut desk = Desk::new(Limits {
        total: 2,
        ..Limits::default()
    });
    desk.submit(&[task(1, 4), task(2, 2)]);
    assert_eq!(desk.submit(&[task(3, 1)]), "warn 1");
    assert_eq!(desk.succeed(2), "start 3#1, spare 1");
    // And when nothing may start anyway.
    assert_eq!(desk.submit(&[task(4, 1)]), "warn 1");
    assert_eq!(desk.memory(95, 0), "spare 1");
}

#[test]
fn in_full_memory_it_is_ended_goes_back_once_and_then_fails() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4), task(9, 4)]);
    desk.memory(0, 81);
    assert_eq!(desk.submit(&[task(2, 3)]), "end 1 for Memory");
    assert_eq!(desk.report(1, Report::Ended), "start 2#1");
    // Its place is the one it had: before 9, which came later.
    assert_eq!(desk.succeed(2), "start 1#2");
    assert_eq!(desk.submit(&[task(3, 3)]), "end 1 for Memory");
    assert_eq!(desk.report(1, Report::Ended), "start 3#1");
    let cause = Cause::Memory;
    assert_eq!(desk.outcome(1), Some(Outcome::Failed { cause }));
    assert_eq!(desk.succeed(3), "start 9#1");
}

#[test]
fn memory_that_fills_during_the_warning_ends_it_at_once() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    assert_eq!(desk.submit(&[task(2, 3)]), "warn 1");
    assert_eq!(desk.memory(0, 90), "end 1 for Memory");
}

#[test]
fn what_the_kernel_reclaims_itself_follows_the_same_rule() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    assert_eq!(desk.report(1, Report::Reclaimed), "start 1#2");
    assert_eq!(desk.report(1, Report::Reclaimed), "");
    let cause = Cause::Memory;
    assert_eq!(desk.outcome(1), Some(Outcome::Failed { cause }));
}

#[test]
fn what_cannot_be_frozen_runs_on_and_is_not_asked_again() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    assert_eq!(desk.submit(&[task(2, 3)]), "warn 1");
    assert_eq!(desk.wake_after(1_000), "pause 1");
    assert_eq!(desk.report(1, Report::Unpausable), "");
    assert_eq!(desk.submit(&[task(3, 1)]), "");
    // Ending needs no freezer.
    assert_eq!(desk.memory(0, 81), "end 1 for Memory");
}

#[test]
fn where_the_template_is_full_only_its_own_tasks_give_way() {
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[
        in_template(1, 5, "code-executor"),
        in_template(2, 4, "policy-sandbox"),
    ]);
    let urgent = in_template(3, 1, "policy-sandbox");
    assert_eq!(desk.submit(&[urgent]), "warn 2");
    // Another that cannot run anyway does not stop the next in line.
    let blocked = in_template(4, 1, "policy-sandbox");
    let other = in_template(5, 3, "code-executor");
    assert_eq!(desk.submit(&[blocked, other]), "start 5#1");
    assert_eq!(desk.submit(&[in_template(6, 3, "code-executor")]), "warn 1");
}

#[test]
fn a_paused_task_goes_on_although_nothing_new_may_start() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    desk.submit(&[task(2, 3)]);
    desk.wake_after(1_000);
    desk.report(1, Report::Paused);
    desk.submit(&[task(3, 1)]);
    assert_eq!(desk.memory(85, 0), "spare 2");
    assert_eq!(desk.succeed(2), "resume 1");
    assert_eq!(desk.memory(10, 0), "warn 1");
}

#[test]
fn a_paused_task_rises_while_it_waits() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 5)]);
    desk.submit(&[task(2, 2)]);
    desk.wake_after(1_000);
    desk.report(1, Report::Paused);
    desk.succeed(2);
    desk.submit(&[task(3, 2)]);
    desk.wake_after(1_000);
    desk.report(1, Report::Paused);
    for expected in [4, 3, 2, 2] {
        desk.now = desk.now.after(std::time::Duration::from_secs(30));
        desk.memory(0, 0);
        assert_eq!(desk.level(1), expected);
    }
}

#[test]
fn cancelling_a_paused_task_ends_it_without_a_slot() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    desk.submit(&[task(2, 3)]);
    desk.wake_after(1_000);
    desk.report(1, Report::Paused);
    assert_eq!(desk.cancel(1), "end 1 for Cancelled");
    assert_eq!(desk.scheduler.slots_taken(), 1);
    assert_eq!(desk.report(1, Report::Ended), "");
    assert_eq!(desk.outcome(1), Some(Outcome::Cancelled { with: None }));
}
