//! One pass: the state and the time in, what to append out.
//!
//! Deploys first, then each group; what groups want is served org by org, in
//! turns, so that nobody's thousand instances keep another's one waiting.
//! Equal input gives equal output, and a pass on what it left finds nothing.
//! Start here; `rollout` has the rules of a group.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fluffy_base::Timestamp;
use fluffy_base::id::{InstanceId, NodeId, OrgId};

use crate::action::{Action, Expected, Rejections, Step};
use crate::deploys;
use crate::lifecycle::NodeState;
use crate::model::{GroupId, Node, Quota, Resources, State, Stateful, VolumeClaims};
use crate::place::{Board, ClassId, Neighbours, Placement};
use crate::reason::{Condition, Dimension};
use crate::rollout::Work;
use crate::survey::survey;

/// How many placements an org gets before it is the next one's turn.
pub const TURN: usize = 32;

/// How many groups move away from a draining node at a time.
pub const MOVING_GROUPS: usize = 5;

/// Says what is to be appended now.
///
/// Steps are independent of each other but for the order they come in; one
/// that is refused, because somebody else was faster, is planned anew by the
/// next pass.
#[must_use]
pub fn plan(state: &State, now: Timestamp) -> Vec<Step> {
    let surveys = survey(state, now);
    let decided = deploys::decide(state, &surveys, now);
    let claims = VolumeClaims::of(state);
    let mut market = Market::new(state, now);
    for survey in &surveys {
        for member in survey.members.iter().filter(|member| member.counts) {
            market.count(survey.env.org, &member.instance.booking);
        }
    }
    let mut works = Vec::new();
    for survey in surveys {
        if decided.changing.contains(survey.id) {
            continue;
        }
        let concluded = |id| decided.held.contains(&id);
        let rolling = survey.rolling();
        let rolling = rolling.filter(|rolling| !rolling.deploy.is_some_and(concluded));
        let mut work = Work::new(survey, rolling, now);
        work.ask(state, &claims, &mut market.board);
        works.push(work);
    }
    market.serve(&mut works);
    let mut steps = decided.steps;
    steps.extend(works.into_iter().filter_map(Work::finish));
    steps.extend(drained(state));
    steps
}

/// Where one more instance of a group could go, the best node first.
///
/// For whoever carries out a step and cannot have the node that was chosen;
/// `booked` is what the step has placed before. What has data has one node and
/// no other.
#[must_use]
pub fn ranking(
    state: &State,
    group: &GroupId,
    booked: impl IntoIterator<Item = (NodeId, Resources)>,
    now: Timestamp,
) -> Vec<Placement> {
    let mut surveys = survey(state, now).into_iter();
    let Some(survey) = surveys.find(|survey| survey.id == group) else {
        return Vec::new();
    };
    if survey.is_stateful() {
        return Vec::new();
    }
    let mut board = Board::new(state, now);
    let mut neighbours = survey.neighbours(now);
    for (node, booking) in booked {
        board.take_in(node, &booking);
        neighbours.add(node);
    }
    let class = board.class(&survey.group.spec, survey.env.isolation);
    board.ranked(class, &neighbours)
}

const NOTHING: Quota = Quota {
    instances: 0,
    memory: 0,
    cpu_millis: 0,
};

/// Nodes, quotas and turns: what groups compete for.
#[derive(Debug)]
struct Market<'a> {
    state: &'a State,
    board: Board<'a>,
    used: BTreeMap<OrgId, Quota>,
    moving: BTreeMap<NodeId, usize>,
}

/// A group that waits for its turn.
#[derive(Debug)]
struct Waiting {
    work: usize,
    class: ClassId,
    neighbours: Neighbours,
}

impl<'a> Market<'a> {
    fn new(state: &'a State, now: Timestamp) -> Self {
        Self {
            state,
            board: Board::new(state, now),
            used: BTreeMap::new(),
            moving: BTreeMap::new(),
        }
    }

    fn count(&mut self, org: OrgId, booking: &Resources) {
        let used = self.used.entry(org).or_insert(NOTHING);
        used.instances = used.instances.saturating_add(1);
        used.memory = used.memory.saturating_add(booking.memory);
        used.cpu_millis = used.cpu_millis.saturating_add(booking.cpu_millis);
    }

    /// Places what is wanted, a turn for each org while anything is left.
    fn serve(&mut self, works: &mut [Work<'a>]) {
        let mut queues: BTreeMap<OrgId, VecDeque<Waiting>> = BTreeMap::new();
        for (at, work) in works.iter().enumerate() {
            for node in work.moving_from() {
                *self.moving.entry(node).or_default() += 1;
            }
            if work.want > 0 {
                queues
                    .entry(work.survey.env.org)
                    .or_default()
                    .push_back(Waiting {
                        work: at,
                        class: work.class(&mut self.board),
                        neighbours: work.neighbours(),
                    });
            }
        }
        while !queues.is_empty() {
            queues.retain(|org, queue| {
                for _ in 0..TURN {
                    let Some(waiting) = queue.front_mut() else {
                        return false;
                    };
                    let Some(work) = works.get_mut(waiting.work) else {
                        return false;
                    };
                    if !self.serve_one(*org, work, waiting) {
                        queue.pop_front();
                    }
                }
                !queue.is_empty()
            });
        }
    }

    /// Places one instance; false if the group wants, or gets, no more.
    fn serve_one(&mut self, org: OrgId, work: &mut Work<'a>, waiting: &mut Waiting) -> bool {
        let from = work.moves_from();
        if from.is_some_and(|node| self.is_busy(node)) {
            return false;
        }
        let placed = match self.book(org, work, waiting) {
            Ok(placed) => placed,
            Err(rejected) => {
                let gives_room = self.gives_room(org, work, waiting);
                work.refuse(rejected, gives_room);
                return false;
            }
        };
        waiting.neighbours.add(placed.node);
        if let Some(node) = from.filter(|_| !work.was_tried()) {
            *self.moving.entry(node).or_default() += 1;
        }
        work.place(placed);
        work.want > 0
    }

    fn is_busy(&self, node: NodeId) -> bool {
        self.moving
            .get(&node)
            .is_some_and(|groups| *groups >= MOVING_GROUPS)
    }

    fn book(
        &mut self,
        org: OrgId,
        work: &Work<'a>,
        waiting: &Waiting,
    ) -> Result<Placement, Rejections> {
        let asked = work.survey.group.spec.resources;
        self.within_quota(org, &asked, None)?;
        let placed = match work.home {
            Some(home) => self.board.place_at(waiting.class, home)?,
            None => self.board.place(waiting.class, &waiting.neighbours)?,
        };
        // What the driver needs beside the guest is known only now.
        if let Err(rejected) = self.within_quota(org, &placed.booking, None) {
            self.board.undo(&placed);
            return Err(rejected);
        }
        self.count(org, &placed.booking);
        Ok(placed)
    }

    /// Who of those that leave would make room for the next one by going: on
    /// its node, or in the quota of an org that has room elsewhere.
    fn gives_room(&mut self, org: OrgId, work: &Work<'a>, waiting: &Waiting) -> Option<InstanceId> {
        work.yielding().next()?;
        let placed = self.board.place(waiting.class, &waiting.neighbours);
        let elsewhere = placed.ok().map(|placed| {
            self.board.undo(&placed);
            placed.booking
        });
        let mut yielding = work.yielding();
        let first = yielding.find(|member| {
            let gone = member.instance;
            let here = self.board.could_follow(waiting.class, gone.node, gone);
            let freed = member.counts.then_some(&gone.booking);
            let mut bookings = [here.ok(), elsewhere].into_iter().flatten();
            bookings.any(|booking| self.within_quota(org, &booking, freed).is_ok())
        });
        first.map(|member| member.id)
    }

    /// Whether an org may have one more, once what is freed is gone.
    fn within_quota(
        &self,
        org: OrgId,
        booking: &Resources,
        freed: Option<&Resources>,
    ) -> Result<(), Rejections> {
        let over = |dimension| {
            let condition = Condition::OrgQuotaExceeded(dimension);
            Err(Rejections(BTreeMap::from([(condition, 0)])))
        };
        let limits = self.state.orgs.get(&org).map_or(NOTHING, |org| org.quota);
        let mut used = self.used.get(&org).copied().unwrap_or(NOTHING);
        if let Some(freed) = freed {
            used.instances = used.instances.saturating_sub(1);
            used.memory = used.memory.saturating_sub(freed.memory);
            used.cpu_millis = used.cpu_millis.saturating_sub(freed.cpu_millis);
        }
        if used.instances >= limits.instances {
            return over(Dimension::Instances);
        }
        if used.memory.saturating_add(booking.memory) > limits.memory {
            return over(Dimension::Memory);
        }
        if used.cpu_millis.saturating_add(booking.cpu_millis) > limits.cpu_millis {
            return over(Dimension::Cpu);
        }
        Ok(())
    }
}

/// What becomes of nodes that are being emptied.
fn drained(state: &State) -> Vec<Step> {
    let draining = state.nodes.iter();
    let draining = draining.filter(|(_, node)| node.state == NodeState::Draining);
    let mut live: BTreeMap<NodeId, (usize, BTreeSet<InstanceId>)> = draining
        .clone()
        .map(|(id, _)| (*id, Default::default()))
        .collect();
    for (id, instance) in state
        .instances
        .iter()
        .filter(|(_, instance)| !instance.has_ended())
    {
        if let Some((stateless, stateful)) = live.get_mut(&instance.node) {
            if instance.volumes.is_empty() {
                *stateless += 1;
            } else {
                stateful.insert(*id);
            }
        }
    }
    let steps = draining.filter_map(|(id, node)| {
        let (stateless, stateful) = live.remove(id)?;
        let action = conclude(*id, node, stateless, stateful)?;
        Some(Step {
            expects: vec![Expected::Node(*id, node.version)],
            actions: vec![action],
        })
    });
    steps.collect()
}

fn conclude(
    id: NodeId,
    node: &Node,
    stateless: usize,
    stateful: BTreeSet<InstanceId>,
) -> Option<Action> {
    let drain = node.drain.as_ref();
    let stays = drain.is_some_and(|drain| drain.stateful == Stateful::Stays);
    if stateless == 0 && (stateful.is_empty() || stays) {
        return Some(Action::ChangeNode {
            node: id,
            to: NodeState::Drained,
        });
    }
    let named = drain.map(|drain| &drain.blockers);
    (!stays && named.is_some_and(|named| *named != stateful)).then_some(Action::SetBlockers {
        node: id,
        blockers: stateful,
    })
}
