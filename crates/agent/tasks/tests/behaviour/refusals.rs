//! What is refused: by name, and without leaving a trace.

use fluffy_base::Span;
use fluffy_tasks::{Input, Limits, MOST_AT_ONCE, MOST_DEPENDENCIES, Report, StepError, Task};

use crate::desk::{Desk, after, id, in_template, one_slot, task};

#[test]
fn a_submission_is_taken_whole_or_not_at_all() {
    let wrong: Vec<(Vec<Task>, &str)> = vec![
        (vec![], "0 tasks were submitted at once"),
        (
            (10..=10 + MOST_AT_ONCE as u32)
                .map(|number| task(number, 3))
                .collect(),
            "65 tasks were submitted at once",
        ),
        (vec![task(2, 3), task(2, 3)], "was submitted before"),
        (vec![task(2, 3), task(1, 3)], "was submitted before"),
        (vec![task(2, 3), after(3, &[77])], "which is not known"),
        (
            vec![Task {
                name: String::new(),
                ..task(2, 3)
            }],
            "must be 1 to 200 bytes",
        ),
        (
            vec![Task {
                name: "a\u{1b}[2J".to_owned(),
                ..task(2, 3)
            }],
            "plain text",
        ),
        (
            vec![Task {
                time: Span { millis: 0 },
                ..task(2, 3)
            }],
            "has no time to run in",
        ),
        (
            vec![Task {
                after: vec![id(1); MOST_DEPENDENCIES + 1],
                ..task(2, 3)
            }],
            "waits for 65 tasks",
        ),
    ];
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[task(1, 3)]);
    let before = desk.scheduler.snapshot();
    for (tasks, expected) in wrong {
        let refused = desk.try_step(Input::Submit { tasks }).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(desk.scheduler.snapshot(), before);
    }
}

#[test]
fn a_circle_is_refused_and_its_members_named() {
    let mut desk = Desk::new(Limits::default());
    desk.submit(&[task(1, 3)]);
    let tasks = vec![
        after(2, &[1, 5]),
        after(3, &[2]),
        after(4, &[1]),
        after(5, &[4, 3]),
        after(6, &[5]),
    ];
    let refused = desk.try_step(Input::Submit { tasks }).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "these tasks wait for each other: `task 2` → `task 5` → `task 3` → `task 2`"
    );
    let tasks = vec![after(7, &[7])];
    let refused = desk.try_step(Input::Submit { tasks }).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "these tasks wait for each other: `task 7` → `task 7`"
    );
}

#[test]
fn a_full_queue_says_so_and_takes_tasks_again_later() {
    let mut desk = Desk::new(Limits {
        queue: 3,
        ..one_slot()
    });
    desk.submit(&[task(1, 3), task(2, 3)]);
    let tasks = vec![task(3, 3), task(4, 3)];
    let refused = desk.try_step(Input::Submit {
        tasks: tasks.clone(),
    });
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the queue is full: 2 of at most 3 tasks are not finished, \
         and 2 more were submitted; wait until some are"
    );
    desk.succeed(1);
    desk.submit(&tasks);
}

#[test]
fn templates_are_bounded_too() {
    let mut desk = Desk::new(Limits::default());
    for number in 0..32 {
        desk.submit(&[in_template(number, 3, &format!("template-{number}"))]);
    }
    let tasks = vec![in_template(40, 3, "one-more")];
    let refused = desk.try_step(Input::Submit {
        tasks: tasks.clone(),
    });
    assert!(refused.unwrap_err().to_string().contains("32 templates"));
    desk.succeed(0);
    desk.submit(&tasks);
}

#[test]
fn a_report_that_does_not_fit_changes_nothing() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3), task(2, 3), after(3, &[2])]);
    let before = desk.scheduler.snapshot();
    let rows = [
        (1, Report::Paused, "`paused` was reported of task"),
        (1, Report::Unpausable, "which is running"),
        (1, Report::Ended, "`ended` was reported"),
        (2, Report::Succeeded, "which is queued"),
        (3, Report::Reclaimed, "which is waiting"),
    ];
    for (number, report, expected) in rows {
        let refused = desk.try_report(number, report).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(desk.scheduler.snapshot(), before);
    }
    let stale = Input::Report {
        task: id(1),
        attempt: 7,
        report: Report::Succeeded,
    };
    assert_eq!(
        desk.try_step(stale),
        Err(StepError::Stale {
            task: id(1),
            reported: 7,
            current: 1
        })
    );
    desk.succeed(1);
    let finished = Err(StepError::Finished { task: id(1) });
    assert_eq!(desk.try_report(1, Report::Succeeded), finished);
    assert_eq!(desk.try_step(Input::Cancel { task: id(1) }), finished);
    let unknown = Err(StepError::UnknownTask { task: id(99) });
    assert_eq!(desk.try_step(Input::Cancel { task: id(99) }), unknown);
}

#[test]
fn answers_to_a_pause_may_come_after_the_order_to_end() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 4)]);
    desk.submit(&[task(2, 3)]);
    desk.wake_after(1_000);
    assert_eq!(desk.cancel(1), "end 1 for Cancelled");
    assert_eq!(desk.report(1, Report::Paused), "");
    assert_eq!(desk.phase(1), "ending");
    assert_eq!(desk.report(1, Report::Ended), "start 2#1");
}

#[test]
fn a_long_reason_is_cut() {
    let mut desk = Desk::new(one_slot());
    desk.submit(&[task(1, 3)]);
    let reason = "ä".repeat(5_000);
    desk.report(1, Report::Failed { reason });
    let Some(fluffy_tasks::Outcome::Failed {
        cause: fluffy_tasks::Cause::Itself { reason },
    }) = desk.outcome(1)
    else {
        panic!("it failed by itself");
    };
    assert_eq!(reason.chars().count(), fluffy_tasks::MAX_REASON);
}
