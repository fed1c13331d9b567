//! Decides which task runs when: priorities, dependencies, limits, giving way.
//!
//! A pure core: [`Scheduler::step`] takes an input and the time, and says what
//! to record and what to do. It never reads a clock, starts anything or waits.
//! Start with [`Scheduler`], then [`Task`] for what is submitted and [`Event`]
//! for what is remembered.
//!
//! # What it promises
//!
//! - The most urgent task goes first, and within a level whoever came first.
//!   Waiting lifts a task by one level for each [`Limits::age`], up to 2.
//! - A task starts when everything it waits for has succeeded. A failure or a
//!   cancellation ends everything behind it, and says where it began.
//! - When somebody more urgent waits for a slot, the lowest running task is
//!   left alone if past 80 % of its time; ended if the sandboxes' memory is
//!   more than 80 % full; else warned, paused [`Limits::warning`] later, and
//!   resumed before anything that is no more urgent starts in its slot.
//! - A task that was ended for memory goes back to its place in the queue once
//!   and starts from the beginning; the second time it fails with
//!   [`Cause::Memory`]. One that was running during [`MOST_CRASHES`] crashes
//!   fails with [`Cause::Crashes`]. Every task must therefore bear being
//!   started again: its effects belong into a layer, and a commit looks first
//!   whether it was made.
//! - From 80 % of the kernel's memory on nothing starts. Submissions are still
//!   queued, up to [`Limits::queue`], and what is paused may go on.
//! - Everything follows from the events: after a crash [`Snapshot::after`] and
//!   [`Scheduler::resume`] continue with nothing lost and nothing doubled.
//!
//! # How a driver uses it
//!
//! One task of the driver owns the scheduler and waits for two things: the
//! next input, and the moment of [`Scheduler::next_wake`], which is a step with
//! [`Input::Wake`]. No polling is needed. Each step goes through one function:
//!
//! ```
//! use std::collections::VecDeque;
//!
//! use fluffy_base::Timestamp;
//! use fluffy_tasks::{Effect, Event, Input, Limits, Report, Scheduler, Snapshot, Step, Task};
//!
//! /// First the ledger, in one transaction; then the effects.
//! fn carry_out(step: Step, ledger: &mut Vec<Event>, inputs: &mut VecDeque<Input>) {
//!     ledger.extend(step.events);
//!     for effect in step.effects {
//!         match effect {
//!             // A real driver starts it in a sandbox, and reports its end later.
//!             Effect::Start { task, attempt } => inputs.push_back(Input::Report {
//!                 task: task.id,
//!                 attempt,
//!                 report: Report::Succeeded,
//!             }),
//!             Effect::Warn { .. } | Effect::Spare { .. } => { /* a message over IPC */ }
//!             Effect::Pause { .. } => { /* freeze, then report `Paused` or `Unpausable` */ }
//!             Effect::Resume { .. } => { /* thaw */ }
//!             Effect::End { .. } => { /* kill, then report `Ended` */ }
//!         }
//!     }
//! }
//!
//! let test: Task = serde_json::from_str(
//!     r#"{"id": "tsk_00000000000000000000000001", "name": "run the tests", "kind": "test_run",
//!         "template": "code-executor", "priority": 3, "time": "5m"}"#,
//! )?;
//! let commit: Task = serde_json::from_str(
//!     r#"{"id": "tsk_00000000000000000000000002", "name": "commit", "kind": "commit",
//!         "priority": 3, "time": "1m", "after": ["tsk_00000000000000000000000001"]}"#,
//! )?;
//! let (mut ledger, mut inputs) = (Vec::new(), VecDeque::new());
//! let now = Timestamp::from_micros(0);
//! let mut scheduler = Scheduler::new(Limits::default())?;
//! inputs.push_back(Input::Submit { tasks: vec![test, commit] });
//! while let Some(input) = inputs.pop_front() {
//!     // An error is the answer to whoever sent the input; nothing has changed.
//!     carry_out(scheduler.step(now, input)?, &mut ledger, &mut inputs);
//! }
//! assert_eq!(scheduler.unfinished(), 0);
//!
//! // After a crash: what the ledger has, or a snapshot and what came after it.
//! let snapshot = Snapshot::default().after(&ledger)?;
//! let (scheduler, step) = Scheduler::resume(Limits::default(), &snapshot, now)?;
//! carry_out(step, &mut ledger, &mut inputs);
//! assert_eq!(scheduler.next_wake(), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! If the ledger does not take the events, the driver must not carry out the
//! effects; it drops the scheduler and resumes from what the ledger has.

#![forbid(unsafe_code)]

mod event;
mod give_way;
mod hear;
mod limits;
mod phase;
mod scheduler;
mod snapshot;
mod step;
mod submit;
mod table;
mod task;

pub use event::{Change, EndWhy, Event, RequeueWhy};
pub use limits::{LONGEST_QUEUE, Limits, LimitsError, MOST_SLOTS, MOST_TEMPLATES, Memory};
pub use phase::{Phase, Slot};
pub use scheduler::{MOST_CRASHES, Scheduler, Status};
pub use snapshot::{ResumeError, Snapshot};
pub use step::{Effect, Input, Report, Step, StepError};
pub use submit::{LONGEST_NAME, MOST_AT_ONCE, MOST_DEPENDENCIES, SubmitError};
pub use table::{ApplyError, REMEMBERED};
pub use task::{Cause, Kind, MAX_REASON, Origin, Outcome, ParseTaskError, Priority, Task, Word};
