//! What the launcher looks at from time to time, where the kernel sets no
//! limit: memory without a control group, a layer's size, the host's disk.
//!
//! Costs at most a fiftieth of the launcher's time, a fifth while memory is
//! short, and never blocks it. It only says which limit was run into; ending
//! commands is the launcher's. Next: `walk` counts layers, `processes` memory.

pub(crate) mod processes;
mod walk;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fluffy_contract::isolation::{Limit, Stats};
use rustix::process::Pid;

use self::walk::{Step, Walk};
use crate::cgroup::Group;
use crate::plan::{Mount, Plan};

/// How long it looks away at most, but for a look's own cost.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long it looks away at least.
const SHORTEST: Duration = Duration::from_millis(5);
/// What a few busy processors touch in a millisecond: with less room than
/// that for a whole interval it looks again sooner.
const TOUCHED_IN_A_MILLISECOND: u64 = 4 << 20;
/// How long one look may count files.
const SLICE: Duration = Duration::from_millis(2);
/// A look is followed by this many times its own cost without one.
const REST: u32 = 49;
/// The same when more than half of the memory is in use.
const REST_WHEN_SHORT: u32 = 4;
/// What must stay free on the host: this, or a twentieth if that is less.
const RESERVE: u64 = 1 << 30;
/// What counts as having written since the command started.
const WRITTEN: u64 = 1 << 20;

/// Whether something else holds memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// A control group does.
    Limited,
    /// Nothing does.
    Unlimited,
}

/// Watches one sandbox.
#[derive(Debug)]
pub struct Watch {
    init: Pid,
    /// Where no control group limits it.
    memory: Option<u64>,
    /// What the latest look found of it, never less than there was.
    used: u64,
    trees: Vec<Tree>,
    next: Instant,
}

impl Watch {
    /// A watch over what the group, if there is one, does not limit.
    pub(crate) fn new(plan: &Plan, group: Option<&Group>, init: Pid) -> Self {
        let memory = match group.is_some_and(Group::limits_memory) {
            true => Memory::Limited,
            false => Memory::Unlimited,
        };
        Self::over(plan, memory, init)
    }

    /// A watch over a sandbox whose memory somebody else limits, or nobody.
    #[must_use]
    pub fn over(plan: &Plan, memory: Memory, init: Pid) -> Self {
        Self {
            init,
            memory: (memory == Memory::Unlimited).then_some(plan.limits.memory.0),
            used: 0,
            trees: plan
                .watched
                .iter()
                .chain(&plan.scratch)
                .map(|root| Tree {
                    path: root.clone(),
                    walk: Walk::new(root),
                    most: plan.limits.disk.0,
                    start: (!is_copy(plan, root)).then_some(0),
                    used: None,
                    used_before: None,
                })
                .collect(),
            next: Instant::now(),
        }
    }

    /// When it wants to look again; never if there is nothing to look at.
    #[must_use]
    pub fn next_check(&self) -> Option<Instant> {
        (self.memory.is_some() || !self.trees.is_empty()).then_some(self.next)
    }

    /// A command starts: from now on what is written is its own.
    pub fn begin(&mut self, now: Instant) {
        for tree in &mut self.trees {
            tree.used_before = tree.used;
        }
        // A copy is counted before much is written to it. Elsewhere there is
        // time; what is overdue is so because nothing ran.
        let counted = self.trees.iter().all(|tree| tree.start.is_some());
        if counted && self.next <= now {
            self.next = now + self.pause(Duration::ZERO);
        }
    }

    /// Looks; says which limit was run into.
    pub fn check(&mut self, now: Instant) -> Option<Limit> {
        let began = processor_time();
        let memory = self.memory.is_some_and(|most| {
            self.used = memory_in_use(self.init, most);
            self.used > most
        });
        let mut disk = false;
        for tree in &mut self.trees {
            disk |= tree.is_over();
        }
        self.next = now + self.pause(processor_time().saturating_sub(began));
        match (memory, disk) {
            (true, _) => Some(Limit::Memory),
            (false, true) => Some(Limit::Disk),
            (false, false) => None,
        }
    }

    /// Whether anything but init runs.
    pub(crate) fn sees_commands(&self) -> bool {
        processes::tree(self.init).len() > 1
    }

    /// How long to look away after a look that cost this much.
    fn pause(&self, cost: Duration) -> Duration {
        let Some(most) = self.memory else {
            return INTERVAL.max(cost * REST);
        };
        let room = most.saturating_sub(self.used);
        let until_full = Duration::from_millis(room / TOUCHED_IN_A_MILLISECOND);
        let rest = if self.used > most / 2 {
            REST_WHEN_SHORT
        } else {
            REST
        };
        until_full.clamp(SHORTEST, INTERVAL).max(cost * rest)
    }

    /// What its processes use, for where no control group counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        processes::stats(self.init)
    }
}

/// A tree that the sandbox writes to: its layer, or its own scratch space.
#[derive(Debug)]
struct Tree {
    path: PathBuf,
    walk: Walk,
    most: u64,
    /// What was in it before anything was written; unknown in a copy until it
    /// was counted once.
    start: Option<u64>,
    /// The latest whole count.
    used: Option<u64>,
    /// The latest whole count when the current command started.
    used_before: Option<u64>,
}

impl Tree {
    /// Counts a little more; says whether too much was written, on a nearly
    /// full disk whether anything was.
    fn is_over(&mut self) -> bool {
        let seen = match self.walk.step(SLICE) {
            Step::TooMuch => return true,
            Step::More(seen) => seen,
            Step::Whole(seen) => {
                self.start.get_or_insert(seen);
                self.used_before.get_or_insert(seen);
                self.used = Some(seen);
                seen
            }
        };
        let too_much = self
            .start
            .is_some_and(|start| seen.saturating_sub(start) > self.most);
        let wrote = self
            .used_before
            .is_some_and(|before| seen > before.saturating_add(WRITTEN));
        too_much || (wrote && is_nearly_full(&self.path))
    }
}

/// A copy holds the whole project from the start.
fn is_copy(plan: &Plan, root: &Path) -> bool {
    plan.mounts
        .iter()
        .chain(&plan.late)
        .any(|mount| matches!(mount, Mount::Writable { host, .. } if host == root))
}

/// The exact sum is only made when the quick one, never smaller, is too much.
fn memory_in_use(init: Pid, most: u64) -> u64 {
    let tree = processes::tree(init);
    match processes::memory_at_most(&tree) {
        quick if quick > most => processes::memory(&tree),
        quick => quick,
    }
}

/// What this thread has used of a processor. Unlike time itself it does not
/// pass while others are busy, which is when looking matters most.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn is_nearly_full(path: &Path) -> bool {
    let Ok(disk) = rustix::fs::statvfs(path) else {
        return false;
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let all = disk.f_blocks.saturating_mul(disk.f_frsize);
    free < RESERVE.min(all / 20)
}

#[cfg(test)]
mod tests;
