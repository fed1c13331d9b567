//! Who gives way to whom: looks at those that wait and those that run.
//!
//! Pure and repeatable: it is asked after every step, says which running
//! tasks should make room now, and changes nothing. A task that was warned and
//! is no longer named is spared. Next: `scheduler` carries it out.

use std::collections::BTreeMap;
use std::iter::Peekable;

use fluffy_base::Timestamp;
use fluffy_base::id::TaskId;

use crate::limits::Memory;
use crate::phase::Phase;
use crate::table::{Place, Table};
use crate::task::{Priority, Word};

/// One running task that should make room for one that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GiveWay {
    /// Which.
    pub(crate) task: TaskId,
    /// For which.
    pub(crate) instead: TaskId,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Who should make room, each for somebody else.
    pub(crate) yields: Vec<GiveWay>,
    /// How many tasks were looked at.
    pub(crate) looks: u64,
}

/// A running task that could make room.
#[derive(Debug, Clone, Copy)]
struct Candidate<'a> {
    task: TaskId,
    template: Option<&'a Word>,
    level: Priority,
    since: Timestamp,
    order: u64,
}

impl Candidate<'_> {
    /// The larger, the sooner it makes room: the lowest, and among equals the
    /// one that has run for the shortest time.
    fn rank(&self) -> (Priority, Timestamp, u64) {
        (self.level, self.since, self.order)
    }
}

/// Pairs tasks that wait with running tasks of a lower level.
///
/// Each waiting task, in the order of the queue, takes a slot that is free or
/// will be; where there is none, the lowest task that runs makes one. That
/// task is left alone if it will be done soon, which is as good as a slot.
/// At most one look for each slot and each template.
pub(crate) fn find(table: &Table, memory: Memory, now: Timestamp) -> Found {
    let mut found = Found::default();
    let mut free = Free::of(table);
    let mut candidates = candidates(table, memory, &mut free);
    let mut waiting = Waiting::of(table, memory);
    while let Some((place, template)) = waiting.next() {
        found.looks += 1;
        if free.take(template) {
            continue;
        }
        let only_own = free.is_full(template);
        let eligible = candidates.iter().enumerate().filter(|(_, candidate)| {
            candidate.level > place.level && (!only_own || candidate.template == template)
        });
        let Some((index, _)) = eligible.max_by_key(|(_, candidate)| candidate.rank()) else {
            if only_own {
                // Whoever comes later in this template is no more urgent.
                waiting.skip(template);
                continue;
            }
            break;
        };
        let candidate = candidates.swap_remove(index);
        free.give(candidate.template);
        free.take(template);
        let soon = table
            .get(candidate.task)
            .is_some_and(|record| record.nearly_done(now));
        if !soon {
            found.yields.push(GiveWay {
                task: candidate.task,
                instead: place.task,
            });
        }
    }
    found
}

/// Those that can be asked; the slots of those that are leaving count as free.
fn candidates<'a>(table: &'a Table, memory: Memory, free: &mut Free<'a>) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for record in table.slots.iter().filter_map(|task| table.get(*task)) {
        let template = record.task.template.as_ref();
        let since = match &record.phase {
            Phase::Running { since } | Phase::Warned { since, .. } => *since,
            Phase::Pausing { .. } | Phase::Ending { .. } => {
                free.give(template);
                continue;
            }
            Phase::Waiting
            | Phase::Queued { .. }
            | Phase::Paused { .. }
            | Phase::Finished { .. } => continue,
        };
        if record.unpausable && memory.affords_pause() {
            continue;
        }
        candidates.push(Candidate {
            task: record.task.id,
            template,
            level: record.level(),
            since,
            order: record.order,
        });
    }
    candidates
}

/// The slots that are free, or will be without anybody's doing.
struct Free<'a> {
    total: u16,
    templates: BTreeMap<Option<&'a Word>, u16>,
}

impl<'a> Free<'a> {
    fn of(table: &'a Table) -> Self {
        let used = u16::try_from(table.slots.len()).unwrap_or(u16::MAX);
        let lanes = table.lanes.iter().map(|(template, lane)| {
            let template = template.as_ref();
            let most = table.limits.of(template);
            (template, most.saturating_sub(lane.used))
        });
        Self {
            total: table.limits.total.saturating_sub(used),
            templates: lanes.collect(),
        }
    }

    fn is_full(&self, template: Option<&'a Word>) -> bool {
        self.templates.get(&template).is_none_or(|free| *free == 0)
    }

    fn give(&mut self, template: Option<&'a Word>) {
        self.total += 1;
        *self.templates.entry(template).or_default() += 1;
    }

    /// Takes a slot if there is one.
    fn take(&mut self, template: Option<&'a Word>) -> bool {
        if self.total == 0 || self.is_full(template) {
            return false;
        }
        self.total -= 1;
        if let Some(free) = self.templates.get_mut(&template) {
            *free -= 1;
        }
        true
    }
}

type Queue<'a> = Peekable<std::collections::btree_set::Iter<'a, Place>>;

/// Those that wait for a slot, most urgent first, over all templates.
pub(crate) struct Waiting<'a> {
    /// Of each template those that are paused, and those that may start.
    lanes: Vec<(Option<&'a Word>, Queue<'a>, Option<Queue<'a>>)>,
}

impl<'a> Waiting<'a> {
    pub(crate) fn of(table: &'a Table, memory: Memory) -> Self {
        let lanes = table.lanes.iter().map(|(template, lane)| {
            let queued = memory.admits().then(|| lane.queued.iter().peekable());
            (template.as_ref(), lane.paused.iter().peekable(), queued)
        });
        Self {
            lanes: lanes.collect(),
        }
    }

    /// Forgets everybody of a template.
    pub(crate) fn skip(&mut self, template: Option<&Word>) {
        self.lanes.retain(|(other, _, _)| *other != template);
    }

    pub(crate) fn next(&mut self) -> Option<(Place, Option<&'a Word>)> {
        // Paused before queued within a level: `false` sorts first.
        let mut best: Option<(Priority, bool, u64, usize)> = None;
        for (index, (_, paused, queued)) in self.lanes.iter_mut().enumerate() {
            let paused = paused
                .peek()
                .map(|place| (place.level, false, place.order, index));
            let queued = queued.as_mut().and_then(Peekable::peek);
            let queued = queued.map(|place| (place.level, true, place.order, index));
            best = best.into_iter().chain(paused).chain(queued).min();
        }
        let (_, is_queued, _, index) = best?;
        let (template, paused, queued) = self.lanes.get_mut(index)?;
        let place = if is_queued {
            queued.as_mut()?.next()?
        } else {
            paused.next()?
        };
        Some((*place, *template))
    }
}
