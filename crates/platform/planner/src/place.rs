//! Placement: which node an instance goes to.
//!
//! Filters in a fixed order, each leaving its reason; then a score of five
//! parts in integers; ties go to the smallest node id. Never gives a node more
//! memory than it has, and never frees anything: within one pass nodes only
//! fill up, which is what makes [`Board::place`] fast. Next: `plan`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::NodeId;

use crate::action::Rejections;
use crate::lifecycle::NodeState;
use crate::model::{Arch, Driver, EnvIsolation, Instance, Node, Resources, Spec, State};
use crate::reason::Condition;

/// The most instances that a node may have.
pub const MOST_INSTANCES: u32 = 250;

/// How long a failure counts against a node.
pub const FAILURE_WINDOW: Duration = Duration::from_secs(600);

/// What each part of a score counts; together 100.
const WEIGHTS: Parts = Parts {
    spread: 35,
    cpu: 25,
    memory: 20,
    health: 15,
    image: 5,
};

/// A node on which the group has just failed is taken only if no other is left.
const AVOIDED: i64 = -1_000_000;

/// The nodes with what is booked on them, during one pass.
#[derive(Debug)]
pub struct Board<'a> {
    slots: Vec<Slot<'a>>,
    classes: Vec<Class>,
    known: BTreeMap<Shape, usize>,
}

/// One node and what is booked on it.
#[derive(Debug, Clone)]
struct Slot<'a> {
    id: NodeId,
    node: &'a Node,
    allocatable_memory: u64,
    allocatable_cpu_millis: u64,
    health: u64,
    used: Resources,
    instances: u32,
}

/// What requests have in common that fit the same nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    isolation: EnvIsolation,
    resources: Resources,
    images: BTreeMap<Arch, fluffy_base::Digest>,
}

/// The nodes that may still fit a shape, the best first.
#[derive(Debug)]
struct Class {
    shape: Shape,
    /// Bounds of scores from above: of when they were last looked at, for a
    /// group that has nothing on the node. None until somebody asks.
    candidates: Option<BinaryHeap<(i64, Reverse<usize>)>>,
    /// Why no node fits, once none does; nodes do not get emptier.
    full: Option<Rejections>,
}

/// A shape that was made known to a [`Board`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassId(usize);

/// What a group already has on nodes, as far as it matters for the next one.
#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    nodes: BTreeMap<NodeId, Neighbour>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Neighbour {
    live: u64,
    avoid: bool,
}

/// Where an instance goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// The strongest of its drivers that fits.
    pub driver: Driver,
    /// What is booked, overhead included.
    pub booking: Resources,
}

/// What a node is worth to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rating {
    /// The weighted sum; the highest wins.
    pub score: i64,
    /// What it is made of, each from 0 to 1000.
    pub parts: Parts,
    /// The driver that it would run with.
    pub driver: Driver,
}

/// The five parts of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// More, the fewer of the same group are there.
    pub spread: u64,
    /// More, the less processor time is asked for.
    pub cpu: u64,
    /// More, the more memory stays free.
    pub memory: u64,
    /// Less for each failure of the node's own.
    pub health: u64,
    /// Whether the image is there.
    pub image: u64,
}

impl Neighbours {
    /// Counts one more live instance of the group on a node.
    pub fn add(&mut self, node: NodeId) {
        self.nodes.entry(node).or_default().live += 1;
    }

    /// Takes a node only if no other is left: the group has just failed on it.
    pub fn avoid(&mut self, node: NodeId) {
        self.nodes.entry(node).or_default().avoid = true;
    }
}

impl<'a> Board<'a> {
    /// The nodes of a state with everything that is booked on them.
    #[must_use]
    pub fn new(state: &'a State, now: Timestamp) -> Self {
        let slots = state
            .nodes
            .iter()
            .map(|(id, node)| Slot::new(*id, node, now));
        let mut board = Self {
            slots: slots.collect(),
            classes: Vec::new(),
            known: BTreeMap::new(),
        };
        for instance in state
            .instances
            .values()
            .filter(|instance| !instance.has_ended())
        {
            board.book(instance);
        }
        board
    }

    /// Makes known what instances of a spec need in an env.
    pub fn class(&mut self, spec: &Spec, isolation: EnvIsolation) -> ClassId {
        let shape = Shape {
            isolation,
            resources: spec.resources,
            images: spec.images.clone(),
        };
        if let Some(known) = self.known.get(&shape) {
            return ClassId(*known);
        }
        let class = self.classes.len();
        self.known.insert(shape.clone(), class);
        self.classes.push(Class {
            shape,
            candidates: None,
            full: None,
        });
        ClassId(class)
    }

    /// Books the best node for one instance.
    ///
    /// Gives the same as rating every node. It looks at few, because a bound
    /// that is kept for each node only falls: once the best that was seen
    /// reaches the highest bound left, nothing better can follow.
    ///
    /// # Errors
    /// No node fits; says how many were refused by which filter.
    pub fn place(
        &mut self,
        class: ClassId,
        neighbours: &Neighbours,
    ) -> Result<Placement, Rejections> {
        let Some(known) = self.classes.get_mut(class.0) else {
            return Err(Rejections::default());
        };
        if let Some(full) = &known.full {
            return Err(full.clone());
        }
        let shape = &known.shape;
        let candidates = known.candidates.get_or_insert_with(|| {
            let fitting = self.slots.iter().enumerate();
            fitting
                .filter_map(|(at, slot)| Some((slot.rate(shape, None).ok()?.score, Reverse(at))))
                .collect()
        });
        let mut best: Option<((i64, Reverse<usize>), Driver)> = None;
        let mut seen = Vec::new();
        while let Some(top) = candidates.peek().copied() {
            if best.is_some_and(|(best, _)| best >= top) {
                break;
            }
            candidates.pop();
            let Some(slot) = self.slots.get(top.1.0) else {
                continue;
            };
            // What does not fit any more will not fit again in this pass.
            let Ok(bound) = slot.rate(shape, None) else {
                continue;
            };
            seen.push((bound.score, top.1));
            let score = match neighbours.nodes.get(&slot.id) {
                None => bound.score,
                Some(here) => slot
                    .rate(shape, Some(here))
                    .map_or(i64::MIN, |own| own.score),
            };
            let rated = ((score, top.1), bound.driver);
            if best.is_none_or(|(best, _)| best < rated.0) {
                best = Some(rated);
            }
        }
        candidates.extend(seen);
        match best {
            Some(((_, Reverse(at)), driver)) => self.take(class, at, driver),
            None => Err(self.refuse(class)),
        }
    }

    /// Books a certain node for one instance, if it fits.
    ///
    /// # Errors
    /// It does not fit; names the filter.
    pub fn place_at(&mut self, class: ClassId, node: NodeId) -> Result<Placement, Rejections> {
        let fits = self.index(node).and_then(|at| {
            let slot = self.slots.get(at)?;
            let class = self.classes.get(class.0)?;
            Some((at, slot.rate(&class.shape, None)))
        });
        let refused = |condition| Err(Rejections(BTreeMap::from([(condition, 1)])));
        match fits {
            Some((at, Ok(rating))) => self.take(class, at, rating.driver),
            // The data is there, so it must be this node, and it takes nothing.
            Some((_, Err(Condition::NoNodesActive))) | None => {
                refused(Condition::VolumeLocalityNoNode)
            }
            Some((_, Err(condition))) => refused(condition),
        }
    }

    /// What would be booked on a node that fits one instance if another one
    /// were gone.
    pub(crate) fn could_follow(
        &self,
        class: ClassId,
        node: NodeId,
        gone: &Instance,
    ) -> Result<Resources, Condition> {
        let slot = self.index(node).and_then(|at| self.slots.get(at));
        let (Some(slot), Some(class)) = (slot, self.classes.get(class.0)) else {
            return Err(Condition::VolumeLocalityNoNode);
        };
        let mut slot = slot.clone();
        if gone.node == node && !gone.has_ended() {
            slot.free(&gone.booking);
        }
        match slot.rate(&class.shape, None) {
            Ok(rating) => Ok(booking(&class.shape.resources, rating.driver)),
            Err(Condition::NoNodesActive) => Err(Condition::VolumeLocalityNoNode),
            Err(condition) => Err(condition),
        }
    }

    /// Every node that fits one instance, the best first; books nothing.
    pub(crate) fn ranked(&self, class: ClassId, neighbours: &Neighbours) -> Vec<Placement> {
        let Some(class) = self.classes.get(class.0) else {
            return Vec::new();
        };
        let fitting = self.slots.iter().filter_map(|slot| {
            let here = neighbours.nodes.get(&slot.id);
            let rating = slot.rate(&class.shape, here).ok()?;
            let placement = Placement {
                node: slot.id,
                driver: rating.driver,
                booking: booking(&class.shape.resources, rating.driver),
            };
            Some((Reverse(rating.score), placement))
        });
        let mut ranked: Vec<_> = fitting.collect();
        ranked.sort_by_key(|(score, placement)| (*score, placement.node));
        ranked.into_iter().map(|(_, placement)| placement).collect()
    }

    /// Books what was placed and is in no state yet.
    pub(crate) fn take_in(&mut self, node: NodeId, booking: &Resources) {
        if let Some(slot) = self.index(node).and_then(|at| self.slots.get_mut(at)) {
            slot.book(booking);
        }
    }

    /// What a node is worth to a request now, or the filter that refuses it.
    ///
    /// # Errors
    /// The first filter that the node does not pass.
    pub fn rate(
        &self,
        class: ClassId,
        node: NodeId,
        neighbours: &Neighbours,
    ) -> Result<Rating, Condition> {
        let slot = self.index(node).and_then(|at| self.slots.get(at));
        match (slot, self.classes.get(class.0)) {
            (Some(slot), Some(class)) => slot.rate(&class.shape, neighbours.nodes.get(&node)),
            _ => Err(Condition::NoNodesActive),
        }
    }

    /// Takes the last placement back, as if it had not been made.
    ///
    /// Bounds that were kept before it still hold.
    pub(crate) fn undo(&mut self, placement: &Placement) {
        if let Some(slot) = self
            .index(placement.node)
            .and_then(|at| self.slots.get_mut(at))
        {
            slot.free(&placement.booking);
        }
    }

    fn take(&mut self, class: ClassId, at: usize, driver: Driver) -> Result<Placement, Rejections> {
        let (Some(class), Some(slot)) = (self.classes.get(class.0), self.slots.get_mut(at)) else {
            return Err(Rejections::default());
        };
        let booking = booking(&class.shape.resources, driver);
        slot.book(&booking);
        Ok(Placement {
            node: slot.id,
            driver,
            booking,
        })
    }

    fn refuse(&mut self, class: ClassId) -> Rejections {
        let mut rejected = Rejections::default();
        if let Some(class) = self.classes.get_mut(class.0) {
            for slot in &self.slots {
                if let Err(condition) = slot.rate(&class.shape, None) {
                    *rejected.0.entry(condition).or_default() += 1;
                }
            }
            class.full = Some(rejected.clone());
        }
        rejected
    }

    fn book(&mut self, instance: &Instance) {
        if let Some(slot) = self
            .index(instance.node)
            .and_then(|at| self.slots.get_mut(at))
        {
            slot.book(&instance.booking);
        }
    }

    fn index(&self, node: NodeId) -> Option<usize> {
        self.slots.binary_search_by_key(&node, |slot| slot.id).ok()
    }
}

impl<'a> Slot<'a> {
    fn new(id: NodeId, node: &'a Node, now: Timestamp) -> Self {
        let recent = node.host_failures.iter();
        let failures = recent.filter(|at| now.since(**at) < FAILURE_WINDOW).count();
        let failures = u64::try_from(failures).unwrap_or(u64::MAX);
        Self {
            id,
            node,
            allocatable_memory: node.capacity.allocatable_memory(),
            allocatable_cpu_millis: node.capacity.allocatable_cpu_millis(),
            health: 1000_u64.saturating_sub(failures.saturating_mul(250)),
            used: Resources {
                cpu_millis: 0,
                memory: 0,
                disk: 0,
            },
            instances: 0,
        }
    }

    fn book(&mut self, booking: &Resources) {
        self.used.cpu_millis = self.used.cpu_millis.saturating_add(booking.cpu_millis);
        self.used.memory = self.used.memory.saturating_add(booking.memory);
        self.used.disk = self.used.disk.saturating_add(booking.disk);
        self.instances = self.instances.saturating_add(1);
    }

    fn free(&mut self, booking: &Resources) {
        self.used.cpu_millis = self.used.cpu_millis.saturating_sub(booking.cpu_millis);
        self.used.memory = self.used.memory.saturating_sub(booking.memory);
        self.used.disk = self.used.disk.saturating_sub(booking.disk);
        self.instances = self.instances.saturating_sub(1);
    }

    /// The filters in their order, then the score.
    fn rate(&self, shape: &Shape, here: Option<&Neighbour>) -> Result<Rating, Condition> {
        if self.node.state != NodeState::Active {
            return Err(Condition::NoNodesActive);
        }
        let driver = self.driver(shape).ok_or(Condition::IsolationUnavailable)?;
        let image = shape.images.get(&self.node.arch);
        let image = image.ok_or(Condition::ArchUnavailable)?;
        let booking = booking(&shape.resources, driver);
        let memory = self.used.memory.saturating_add(booking.memory);
        if memory > self.allocatable_memory {
            return Err(Condition::NoCapacityMemory);
        }
        if self.used.disk.saturating_add(booking.disk) > self.node.capacity.disk {
            return Err(Condition::NoCapacityDisk);
        }
        if self.instances >= MOST_INSTANCES {
            return Err(Condition::NoCapacityInstances);
        }
        let live = here.map_or(0, |here| here.live);
        let cpu = self.used.cpu_millis.saturating_add(booking.cpu_millis);
        let parts = Parts {
            spread: 1000 / live.saturating_add(1),
            cpu: 1000 - per_mille(cpu, self.allocatable_cpu_millis),
            memory: per_mille(self.allocatable_memory - memory, self.allocatable_memory),
            health: self.health,
            image: if self.node.images.contains(image) {
                1000
            } else {
                0
            },
        };
        let avoided = here.is_some_and(|here| here.avoid);
        Ok(Rating {
            score: parts.weighted() + if avoided { AVOIDED } else { 0 },
            parts,
            driver,
        })
    }

    /// The strongest driver that the env accepts and that is large enough.
    fn driver(&self, shape: &Shape) -> Option<Driver> {
        let drivers = self.node.drivers.iter();
        let mut fitting = drivers.filter(|(driver, limits)| {
            shape.isolation.accepts(driver.level())
                && shape.resources.vcpus() <= limits.vcpus
                && shape.resources.memory <= limits.memory
        });
        fitting.next().map(|(driver, _)| *driver)
    }
}

impl Parts {
    fn weighted(&self) -> i64 {
        let sum = WEIGHTS.spread * self.spread
            + WEIGHTS.cpu * self.cpu
            + WEIGHTS.memory * self.memory
            + WEIGHTS.health * self.health
            + WEIGHTS.image * self.image;
        i64::try_from(sum).unwrap_or(i64::MAX)
    }
}

/// What is booked for an instance: the driver needs memory too.
pub(crate) fn booking(resources: &Resources, driver: Driver) -> Resources {
    Resources {
        memory: resources.memory.saturating_add(driver.overhead()),
        ..*resources
    }
}

/// Thousandths of a whole, from 0 to 1000.
fn per_mille(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 1000;
    }
    let thousandths = u128::from(part) * 1000 / u128::from(whole);
    u64::try_from(thousandths).unwrap_or(u64::MAX).min(1000)
}

#[cfg(test)]
mod tests;
