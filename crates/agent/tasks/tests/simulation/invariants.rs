//! What must hold at every moment, one sentence each.
//!
//! They compare what the scheduler orders with what the world knows by itself.

use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::TaskId;
use fluffy_tasks::{Cause, Effect, EndWhy, Memory, Outcome, Snapshot, Task};

use crate::model::{Fate, Model, Process};
use crate::world::World;

/// When an invariant is looked at.
pub(crate) enum Moment<'a> {
    /// Before an order is carried out.
    Effect(&'a Effect),
    /// When all orders of a step are carried out.
    Step,
    /// Before a crash, and at the end.
    Rest,
    /// When there is nothing left to do.
    End,
}

pub(crate) type Invariant = fn(&World, &Moment<'_>) -> Result<(), String>;

macro_rules! invariants {
    ($($name:ident,)*) => {
        pub(crate) const INVARIANTS: &[(&str, Invariant)] = &[$((stringify!($name), $name)),*];
    };
}

invariants! {
    invariant_limits_are_never_exceeded,
    invariant_no_task_runs_before_its_dependencies,
    invariant_within_a_level_first_come_is_first_served,
    invariant_every_task_ends,
    invariant_a_task_ends_as_its_work_did,
    invariant_a_paused_task_goes_on_before_its_equals_start,
    invariant_nothing_is_lost_or_doubled,
    invariant_a_failure_names_its_cause,
    invariant_cancelling_reaches_every_dependant,
    invariant_nothing_starts_while_the_kernel_is_short_of_memory,
    invariant_full_memory_decides_between_an_end_and_a_pause,
    invariant_only_a_lower_task_gives_way,
    invariant_a_task_near_its_end_is_left_alone,
    invariant_a_pause_is_announced_a_second_before,
    invariant_waiting_lifts_as_written,
    invariant_no_slot_stays_empty_while_a_task_could_use_it,
    invariant_it_is_woken_in_time_and_never_for_nothing,
    invariant_replayed_events_give_the_same_state,
    invariant_what_memory_took_comes_back_once,
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn started<'a>(moment: &'a Moment<'_>) -> Option<&'a Task> {
    match moment {
        Moment::Effect(Effect::Start { task, .. }) => Some(task),
        _ => None,
    }
}

/// A task that is to make room: warned, paused, or ended for memory.
fn displaced(moment: &Moment<'_>) -> Option<TaskId> {
    match moment {
        Moment::Effect(
            Effect::Warn { task, .. }
            | Effect::Pause { task }
            | Effect::End {
                task,
                why: EndWhy::Memory,
            },
        ) => Some(*task),
        _ => None,
    }
}

fn invariant_limits_are_never_exceeded(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    let Moment::Step = moment else { return Ok(()) };
    ensure(world.running() <= world.limits.total, || {
        format!("{} tasks run at once", world.running())
    })?;
    for template in world.limits.templates.keys() {
        let running = world.running_of(Some(template));
        ensure(running <= world.most_of(Some(template)), || {
            format!("{running} tasks of `{template}` run at once")
        })?;
    }
    Ok(())
}

fn invariant_no_task_runs_before_its_dependencies(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Some(task) = started(moment) else {
        return Ok(());
    };
    for dependency in &world.model(task.id).task.after {
        let succeeded = world.model(*dependency).outcomes == [Outcome::Succeeded];
        ensure(succeeded, || format!("{} before {dependency}", task.id))?;
    }
    Ok(())
}

fn invariant_within_a_level_first_come_is_first_served(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Some(task) = started(moment) else {
        return Ok(());
    };
    let place = |model: &Model| (model.level(world.now, &world.limits), model.order);
    let own = place(world.model(task.id));
    for other in world.models.values().filter(|other| other.queued.is_some()) {
        let passed = place(other) < own && world.has_room(other.task.template.as_ref());
        ensure(!passed, || {
            format!(
                "{} at {own:?} before {} at {:?}",
                task.id,
                other.task.id,
                place(other)
            )
        })?;
    }
    Ok(())
}

fn invariant_every_task_ends(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    let Moment::End = moment else { return Ok(()) };
    let open = world
        .models
        .values()
        .find(|model| model.outcomes.is_empty());
    ensure(open.is_none(), || format!("{open:?} never ended"))
}

fn invariant_a_task_ends_as_its_work_did(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    let Moment::End = moment else { return Ok(()) };
    for model in world.models.values() {
        let Some(outcome) = model.outcomes.first() else {
            continue;
        };
        let in_time = model.duration < Duration::from(model.task.time);
        let expected = match outcome {
            Outcome::Succeeded => model.fate == Fate::Succeeds,
            Outcome::Failed { cause } => match cause {
                Cause::Itself { .. } => model.fate == Fate::Fails,
                Cause::Time => !in_time,
                Cause::Memory => model.reclaimed == 2,
                Cause::Crashes => model.crashes == fluffy_tasks::MOST_CRASHES,
                // Whether rightly so is the business of other invariants.
                Cause::Dependency { .. } => true,
            },
            Outcome::Cancelled { .. } => true,
        };
        ensure(expected, || format!("{outcome:?} of {model:?}"))?;
    }
    Ok(())
}

fn invariant_a_paused_task_goes_on_before_its_equals_start(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Some(task) = started(moment) else {
        return Ok(());
    };
    let level = |model: &Model| model.level(world.now, &world.limits);
    let own = level(world.model(task.id));
    for paused in world.models.values().filter(|model| model.is_paused()) {
        let passed = level(paused) <= own && world.has_room(paused.task.template.as_ref());
        ensure(!passed, || format!("{} before {}", task.id, paused.task.id))?;
    }
    Ok(())
}

fn invariant_nothing_is_lost_or_doubled(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    if let Moment::Effect(Effect::Start { task, attempt }) = moment {
        let model = world.model(task.id);
        let fresh = model.process == Process::None && model.outcomes.is_empty();
        ensure(fresh, || format!("{} is started, but {model:?}", task.id))?;
        ensure(*attempt == model.attempt + 1, || {
            format!("{attempt} is the wrong number for {model:?}")
        })?;
    }
    if let Moment::Step = moment {
        for (id, model) in &world.models {
            ensure(model.outcomes.len() <= 1, || {
                format!("{model:?} ended twice")
            })?;
            let known = world.subject.scheduler().status(*id).is_some();
            ensure(known || !model.outcomes.is_empty(), || {
                format!("{id} is lost")
            })?;
        }
    }
    Ok(())
}

fn invariant_a_failure_names_its_cause(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    let Moment::End = moment else { return Ok(()) };
    for model in world.models.values() {
        let Some(Outcome::Failed {
            cause: Cause::Dependency { origin },
        }) = model.outcomes.first()
        else {
            continue;
        };
        let culprit = world.model(origin.task);
        let failed_itself = matches!(
            culprit.outcomes.first(),
            Some(Outcome::Failed { cause }) if !matches!(cause, Cause::Dependency { .. })
        );
        let right = failed_itself
            && culprit.task.name == origin.name
            && world.depends_on(model.task.id, origin.task);
        ensure(right, || format!("{model:?} blames {culprit:?}"))?;
    }
    Ok(())
}

fn invariant_cancelling_reaches_every_dependant(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Moment::End = moment else { return Ok(()) };
    for model in world.models.values() {
        if model.cancelled {
            let cancelled = model.outcomes.first() == Some(&Outcome::Cancelled { with: None });
            ensure(cancelled, || format!("{model:?} was cancelled"))?;
        }
        let gone = model.task.after.iter().find(|dependency| {
            let outcome = world.model(**dependency).outcomes.first();
            outcome.is_some_and(|outcome| *outcome != Outcome::Succeeded)
        });
        if let Some(dependency) = gone {
            let succeeded = model.outcomes.first() == Some(&Outcome::Succeeded);
            ensure(!succeeded, || format!("{model:?} without {dependency}"))?;
        }
    }
    Ok(())
}

fn invariant_nothing_starts_while_the_kernel_is_short_of_memory(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let short = world.memory.kernel >= Memory::KERNEL_STOP;
    ensure(!short || started(moment).is_none(), || {
        format!("at {} percent", world.memory.kernel)
    })
}

fn invariant_full_memory_decides_between_an_end_and_a_pause(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let is_full = world.memory.sandboxes > Memory::SANDBOXES_FULL;
    let right = match moment {
        Moment::Effect(Effect::Warn { .. } | Effect::Pause { .. }) => !is_full,
        Moment::Effect(Effect::End {
            why: EndWhy::Memory,
            ..
        }) => is_full,
        _ => true,
    };
    ensure(right, || format!("at {} percent", world.memory.sandboxes))
}

fn invariant_only_a_lower_task_gives_way(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    let Some(task) = displaced(moment) else {
        return Ok(());
    };
    let level = |model: &Model| model.level(world.now, &world.limits);
    let own = level(world.model(task));
    let admits = world.memory.kernel < Memory::KERNEL_STOP;
    let higher = world.models.values().any(|model| {
        let waits = model.is_paused() || (admits && model.queued.is_some());
        waits && level(model) < own
    });
    ensure(higher, || format!("{task} at {own} gives way to nobody"))
}

fn invariant_a_task_near_its_end_is_left_alone(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Some(task) = displaced(moment) else {
        return Ok(());
    };
    let model = world.model(task);
    let ran = model.ran_until(world.now);
    ensure(ran * 5 < Duration::from(model.task.time) * 4, || {
        format!("{task} ran {ran:?} of {}", model.task.time)
    })
}

fn invariant_a_pause_is_announced_a_second_before(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Moment::Effect(Effect::Pause { task }) = moment else {
        return Ok(());
    };
    let warned = world.model(*task).warned;
    let in_time = warned.is_some_and(|at| world.now.since(at) >= Duration::from_secs(1));
    ensure(in_time, || format!("{task} was warned at {warned:?}"))
}

fn invariant_waiting_lifts_as_written(world: &World, moment: &Moment<'_>) -> Result<(), String> {
    let Moment::Step = moment else { return Ok(()) };
    for (id, model) in &world.models {
        let expected = model.level(world.now, &world.limits);
        let status = world.subject.scheduler().status(*id);
        let right =
            status.is_none_or(|status| !model.outcomes.is_empty() || status.level == expected);
        ensure(right, || {
            format!("{status:?} should be at {expected}: {model:?}")
        })?;
    }
    Ok(())
}

fn invariant_no_slot_stays_empty_while_a_task_could_use_it(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Moment::Step = moment else { return Ok(()) };
    let admits = world.memory.kernel < Memory::KERNEL_STOP;
    for model in world.models.values() {
        let waits = model.is_paused() || (admits && model.queued.is_some());
        let could = waits && world.has_room(model.task.template.as_ref());
        ensure(!could, || {
            let status = world.subject.scheduler().status(model.task.id);
            format!("{model:?} could run, but {status:?}")
        })?;
    }
    Ok(())
}

fn invariant_it_is_woken_in_time_and_never_for_nothing(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Moment::Step = moment else { return Ok(()) };
    let due = |model: &Model| -> Option<Timestamp> {
        if let Process::Running { since } = model.process {
            if model.pausing || model.ending.is_some() {
                return None;
            }
            let left = Duration::from(model.task.time).saturating_sub(model.ran);
            let paused = model.warned.map(|at| at.after(world.limits.warning.into()));
            return paused.into_iter().chain([since.after(left)]).min();
        }
        model.rises_at(world.now, &world.limits)
    };
    let expected = world.models.values().filter_map(due).min();
    let wakes = world.subject.next_wake();
    ensure(wakes == expected, || {
        format!("wakes at {wakes:?}, due at {expected:?}")
    })
}

fn invariant_replayed_events_give_the_same_state(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Moment::Rest = moment else { return Ok(()) };
    let replayed = Snapshot::default()
        .after(&world.ledger)
        .map_err(|error| format!("{error}: {error:?}"))?;
    ensure(replayed == world.subject.scheduler().snapshot(), || {
        "the ledger tells another story".to_owned()
    })
}

fn invariant_what_memory_took_comes_back_once(
    world: &World,
    moment: &Moment<'_>,
) -> Result<(), String> {
    let Moment::Step = moment else { return Ok(()) };
    for model in world.models.values() {
        let failed = matches!(
            model.outcomes.first(),
            Some(Outcome::Failed {
                cause: Cause::Memory
            })
        );
        let right = match model.reclaimed {
            0 | 1 => !failed,
            2 => failed,
            _ => false,
        };
        ensure(right, || format!("{model:?}"))?;
    }
    Ok(())
}
