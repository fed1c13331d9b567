//! What a submission must be: bounded, known, without a circle.
//!
//! Looks only; a submission is taken whole or not at all. Since a task can
//! only wait for tasks that exist or come along with it, a circle can only be
//! inside one submission. Next: `scheduler`.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::id::TaskId;

use crate::limits::MOST_TEMPLATES;
use crate::table::Table;
use crate::task::Task;

/// The most tasks of one submission.
pub const MOST_AT_ONCE: usize = 64;
/// The most tasks that one task may wait for.
pub const MOST_DEPENDENCIES: usize = 64;
/// The longest name of a task, in bytes.
pub const LONGEST_NAME: usize = 200;

/// Why a submission was refused; none of its tasks was taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There is no room.
    #[error(
        "the queue is full: {unfinished} of at most {most} tasks are not finished, \
         and {more} more were submitted; wait until some are"
    )]
    QueueFull {
        /// How many are not finished.
        unfinished: usize,
        /// How many may be.
        most: u32,
        /// How many were submitted.
        more: usize,
    },
    /// Too many tasks in one submission, or none.
    #[error("{count} tasks were submitted at once, but it must be 1 to {MOST_AT_ONCE}")]
    Count {
        /// How many.
        count: usize,
    },
    /// A task with this id is known.
    #[error("task `{task}` was submitted before")]
    Duplicate {
        /// Which.
        task: TaskId,
    },
    /// The name is empty, too long, or has control characters.
    #[error("the name of task `{task}` must be 1 to {LONGEST_NAME} bytes of plain text")]
    Name {
        /// Which.
        task: TaskId,
    },
    /// A task without time could never end well.
    #[error("task `{task}` has no time to run in")]
    NoTime {
        /// Which.
        task: TaskId,
    },
    /// A task waits for too many others.
    #[error("task `{task}` waits for {count} tasks, but it may be {MOST_DEPENDENCIES}")]
    TooManyDependencies {
        /// Which.
        task: TaskId,
        /// How many.
        count: usize,
    },
    /// A task waits for one that is not known, or no longer.
    #[error("task `{task}` waits for `{dependency}`, which is not known")]
    UnknownDependency {
        /// Which.
        task: TaskId,
        /// For which.
        dependency: TaskId,
    },
    /// Tasks wait for each other in a circle.
    #[error("these tasks wait for each other: {}", circle(.path))]
    Cycle {
        /// Name and id of each; the last waits for the first.
        path: Vec<(TaskId, String)>,
    },
    /// Too many templates have tasks.
    #[error("tasks for more than {MOST_TEMPLATES} templates cannot be queued at once")]
    TooManyTemplates,
}

fn circle(path: &[(TaskId, String)]) -> String {
    let mut text = String::new();
    for (_, name) in path.iter().chain(path.first()) {
        if !text.is_empty() {
            text.push_str(" → ");
        }
        text.push('`');
        text.push_str(name);
        text.push('`');
    }
    text
}

/// Refuses a submission that cannot be taken whole.
pub(crate) fn check(table: &Table, tasks: &[Task]) -> Result<(), SubmitError> {
    if !(1..=MOST_AT_ONCE).contains(&tasks.len()) {
        return Err(SubmitError::Count { count: tasks.len() });
    }
    let most = table.limits.queue;
    let room = usize::try_from(most).unwrap_or(usize::MAX);
    if table.unfinished().saturating_add(tasks.len()) > room {
        return Err(SubmitError::QueueFull {
            unfinished: table.unfinished(),
            most,
            more: tasks.len(),
        });
    }
    let mut batch = BTreeMap::new();
    for task in tasks {
        if table.get(task.id).is_some() || batch.insert(task.id, task).is_some() {
            return Err(SubmitError::Duplicate { task: task.id });
        }
        check_one(task)?;
    }
    for task in tasks {
        for dependency in &task.after {
            if !batch.contains_key(dependency) && table.get(*dependency).is_none() {
                return Err(SubmitError::UnknownDependency {
                    task: task.id,
                    dependency: *dependency,
                });
            }
        }
    }
    let fresh: BTreeSet<_> = tasks
        .iter()
        .map(|task| &task.template)
        .filter(|template| !table.lanes.contains_key(*template))
        .collect();
    if table.lanes.len().saturating_add(fresh.len()) > MOST_TEMPLATES {
        return Err(SubmitError::TooManyTemplates);
    }
    find_cycle(&batch).map_or(Ok(()), |path| Err(SubmitError::Cycle { path }))
}

/// Refuses a task that is not bounded.
pub(crate) fn check_one(task: &Task) -> Result<(), SubmitError> {
    let name = &task.name;
    if !(1..=LONGEST_NAME).contains(&name.len()) || name.chars().any(char::is_control) {
        return Err(SubmitError::Name { task: task.id });
    }
    if task.time.millis == 0 {
        return Err(SubmitError::NoTime { task: task.id });
    }
    if task.after.len() > MOST_DEPENDENCIES {
        return Err(SubmitError::TooManyDependencies {
            task: task.id,
            count: task.after.len(),
        });
    }
    Ok(())
}

/// A circle among these tasks, if there is one.
///
/// Takes away, again and again, what waits for nothing that is left. If
/// something stays, every one of it waits for another of it, so that walking
/// along must come back.
pub(crate) fn find_cycle(batch: &BTreeMap<TaskId, &Task>) -> Option<Vec<(TaskId, String)>> {
    let inside = |task: &&TaskId| batch.contains_key(*task);
    let mut missing = BTreeMap::new();
    let mut dependants: BTreeMap<TaskId, Vec<TaskId>> = BTreeMap::new();
    for (id, task) in batch {
        missing.insert(*id, task.after.iter().filter(inside).count());
        for dependency in task.after.iter().filter(inside) {
            dependants.entry(*dependency).or_default().push(*id);
        }
    }
    let is_free = |(id, count): (&TaskId, &usize)| (*count == 0).then_some(*id);
    let mut free: Vec<TaskId> = missing.iter().filter_map(is_free).collect();
    while let Some(id) = free.pop() {
        missing.remove(&id);
        for dependant in dependants.remove(&id).unwrap_or_default() {
            if let Some(count) = missing.get_mut(&dependant) {
                *count -= 1;
                if *count == 0 {
                    free.push(dependant);
                }
            }
        }
    }
    let mut path: Vec<TaskId> = Vec::new();
    let mut next = *missing.keys().next()?;
    let start = loop {
        if let Some(start) = path.iter().position(|seen| *seen == next) {
            break start;
        }
        path.push(next);
        let stays = |task: &&TaskId| missing.contains_key(*task);
        next = *batch.get(&next)?.after.iter().find(stays)?;
    };
    let named = |id: &TaskId| Some((*id, batch.get(id)?.name.clone()));
    path.get(start..)?.iter().map(named).collect()
}
