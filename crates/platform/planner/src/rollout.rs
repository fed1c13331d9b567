//! One group's way from what it has to what it wants.
//!
//! Members stay or leave; new ones come while there is room above the count,
//! and one leaves only if enough available ones remain. Roll-outs, drains of
//! nodes and plain scaling are this one rule with other bounds. Data is
//! different: the old instance is gone before the new one comes. Never places
//! anything itself; `plan` serves what is wanted, fairly.

use std::collections::BTreeSet;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::{DeployId, InstanceId, NodeId};

use crate::action::{Action, Allocation, Expected, Rejections, Step};
use crate::deploys::RETRIES;
use crate::lifecycle::{InstanceStatus, VolumeState};
use crate::model::{Desired, Downtime, EnvLife, GroupId, SecretUse, State, VolumeClaims};
use crate::place::{Board, ClassId, FAILURE_WINDOW, Neighbours, Placement};
use crate::reason::{Condition, DrainReason, StopReason};
use crate::survey::{Eviction, Member, Rolling, Survey};

/// How long edges have to drop an instance before it may stop anyway.
pub const EDGE_PATIENCE: Duration = Duration::from_secs(5);

/// How often a group that crashes over and over gets a new instance.
pub const CRASH_PAUSE: Duration = Duration::from_secs(300);

/// How many instances of a group may move for their nodes' failures at a time.
pub const MOVES: usize = 3;

/// How often a lasting failure to place is recorded.
pub const FAILURE_PAUSE: Duration = Duration::from_secs(300);

/// What a pass does about one group.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) survey: Survey<'a>,
    now: Timestamp,
    rolling: Option<Rolling>,
    staying: Vec<Member<'a>>,
    leaving: Vec<(Member<'a>, DrainReason)>,
    /// Those that must be gone before another one comes.
    data: Vec<(Member<'a>, DrainReason)>,
    /// How many more instances there is reason and room to ask for.
    pub(crate) want: usize,
    /// Where a single node must be, for the sake of data.
    pub(crate) home: Option<NodeId>,
    placed: Vec<Placement>,
    refused: Option<Refused>,
    conditions: BTreeSet<Condition>,
    actions: Vec<Action>,
}

/// Why the next instance was not placed.
#[derive(Debug)]
struct Refused {
    reason: Condition,
    rejected: Rejections,
    /// Who of those that leave would make room for it by going.
    gives_room: Option<InstanceId>,
}

impl<'a> Work<'a> {
    /// Sees to what must end, and says how many new instances are wanted.
    pub(crate) fn new(survey: Survey<'a>, rolling: Option<Rolling>, now: Timestamp) -> Self {
        let mut work = Self {
            survey,
            now,
            rolling,
            staying: Vec::new(),
            leaving: Vec::new(),
            data: Vec::new(),
            want: 0,
            home: None,
            placed: Vec::new(),
            refused: None,
            conditions: BTreeSet::new(),
            actions: Vec::new(),
        };
        work.settle();
        work.divide();
        work
    }

    /// Lets those end that are on their way out.
    fn settle(&mut self) {
        for member in &self.survey.members {
            let instance = member.id;
            let stop = |reason| Some(Action::Stop { instance, reason });
            let action = match member.instance.desired {
                Desired::Stopped { .. } => None,
                Desired::Running if member.given_up => stop(StopReason::NodeLost),
                Desired::Running => None,
                Desired::Draining { .. } if member.instance.has_ended() => {
                    stop(StopReason::Reported)
                }
                Desired::Draining { .. } if member.given_up => stop(StopReason::NodeLost),
                Desired::Draining {
                    stop_allowed: Some(at),
                    grace,
                    ..
                } if self.now.since(at) >= grace => stop(StopReason::GracePassed),
                Desired::Draining {
                    stop_allowed: None,
                    since,
                    ..
                } if !member.instance.routed || self.now.since(since) >= EDGE_PATIENCE => {
                    Some(Action::AllowStop { instance })
                }
                Desired::Draining { .. } => None,
            };
            self.actions.extend(action);
        }
    }

    /// Who stays, who leaves when others are there, and who goes at once.
    fn divide(&mut self) {
        let mut moves = self
            .survey
            .replaced(DrainReason::HostFailed, Timestamp::MIN, self.now);
        let mut tries = self
            .survey
            .replaced(DrainReason::StartFailed, Timestamp::MIN, self.now);
        let in_deploy = self.in_deploy();
        let members = std::mem::take(&mut self.survey.members);
        for member in members.iter().filter(|member| member.is_running()) {
            let stateful = !member.instance.volumes.is_empty();
            let old = self.rolling.is_some() && self.survey.is_old(member);
            let replace = match member.instance.restart {
                true => DrainReason::OperatorRestart,
                false => DrainReason::RolloutReplace,
            };
            if old && (stateful || self.survey.is_stateful()) {
                self.data.push((*member, replace));
            } else if !stateful && member.evicted == Eviction::Forced {
                self.drain(member, DrainReason::NodeDraining);
            } else if old {
                self.leaving.push((*member, replace));
            } else if !stateful && member.evicted == Eviction::Wanted {
                self.leaving.push((*member, DrainReason::NodeDraining));
            } else if in_deploy && self.survey.start_failed(member, self.now) {
                self.drain(member, DrainReason::StartFailed);
            } else if tries < RETRIES && self.survey.deploy.is_none() && member.lacks_secrets() {
                tries += 1;
                self.drain(member, DrainReason::StartFailed);
            } else if moves < MOVES && self.is_failed_by_host(member) {
                moves += 1;
                self.drain(member, DrainReason::HostFailed);
            } else {
                self.staying.push(*member);
            }
        }
        self.survey.members = members;
        self.staying.sort_by_key(Member::worth);
        self.leaving.sort_by_key(|(member, _)| member.worth());
    }

    /// Whether another node may do better; where no deploy is or was to blame,
    /// also for the slow.
    fn is_failed_by_host(&self, member: &Member<'_>) -> bool {
        let stuck = self.survey.deploy.is_none()
            && !self.survey.group.held
            && member.instance.volumes.is_empty()
            && member.instance.observed.status != InstanceStatus::Failed
            && member.is_late(self.now, self.survey.group.spec.start_timeout);
        stuck || member.host_failed()
    }

    fn in_deploy(&self) -> bool {
        self.rolling.is_some_and(|rolling| rolling.deploy.is_some())
    }

    fn drain(&mut self, member: &Member<'_>, reason: DrainReason) {
        // What a node or an env is the cause of is no deploy's doing.
        let of_deploy = !matches!(
            reason,
            DrainReason::NodeDraining | DrainReason::HostFailed | DrainReason::EnvDeleted
        );
        self.actions.push(Action::Drain {
            instance: member.id,
            grace: self.survey.group.spec.grace,
            reason,
            deploy: self.deploy().filter(|_| of_deploy),
        });
    }

    /// The deploy that goes on in this pass, if one does.
    fn deploy(&self) -> Option<DeployId> {
        self.rolling.and_then(|rolling| rolling.deploy)
    }

    /// Finds out how many instances to ask for, and what forbids it.
    pub(crate) fn ask(&mut self, state: &State, claims: &VolumeClaims<'_>, board: &mut Board<'_>) {
        self.give_way(state, board);
        self.want = if self.survey.is_stateful() {
            self.want_with_data(state, claims)
        } else {
            self.want_without_data()
        };
        if self.survey.is_crash_looping(self.now) {
            self.conditions.insert(Condition::CrashLooping);
            let allocated = self
                .survey
                .members
                .iter()
                .map(|member| member.instance.allocated_at);
            let waits = allocated
                .max()
                .is_some_and(|at| self.now.since(at) < CRASH_PAUSE);
            self.want = if waits { 0 } else { self.want.min(1) };
        }
        let secrets = self.survey.group.spec.secrets;
        if secrets != SecretUse::Unused && self.survey.env.secrets.is_none() && self.want > 0 {
            self.conditions.insert(Condition::SecretsMissing);
            self.want = 0;
        }
    }

    /// Downtime is what a volume costs: two never have it at once. But nobody
    /// goes for what could not come.
    fn give_way(&mut self, state: &State, board: &mut Board<'_>) {
        for (member, reason) in std::mem::take(&mut self.data) {
            match self.could_follow(&member, state, board) {
                Ok(()) => self.drain(&member, reason),
                Err(condition) => {
                    self.conditions.insert(condition);
                    self.staying.push(member);
                }
            }
        }
    }

    fn could_follow(
        &self,
        member: &Member<'_>,
        state: &State,
        board: &mut Board<'_>,
    ) -> Result<(), Condition> {
        let spec = &self.survey.group.spec;
        if self.survey.count() == 0 {
            return Ok(());
        }
        if spec.secrets != SecretUse::Unused && self.survey.env.secrets.is_none() {
            return Err(Condition::SecretsMissing);
        }
        let mut homes = BTreeSet::new();
        for id in &spec.volumes {
            let volume = state.volumes.get(id);
            homes.insert(volume.ok_or(Condition::VolumeConstraintsInvalid)?.home);
        }
        match (homes.pop_first(), homes.is_empty()) {
            (Some(home), true) if state.is_lost(home) => Err(Condition::VolumeHomeNodeOffline),
            (Some(home), true) => {
                let class = self.class(board);
                let booking = board.could_follow(class, home, member.instance);
                booking.map(drop)
            }
            (Some(_), false) => Err(Condition::VolumeLocalityNoNode),
            // Without data of its own it goes wherever there is room.
            (None, _) => Ok(()),
        }
    }

    fn want_without_data(&self) -> usize {
        let count = self.survey.count();
        let missing = count.saturating_sub(self.staying.len());
        let room = match &self.rolling {
            Some(rolling) => {
                // Whoever still takes memory counts, so the bound holds for it.
                let live = self.survey.members.iter().filter(|member| {
                    member.counts || (member.is_running() && member.instance.has_ended())
                });
                (count + bound(rolling.options.max_surge)).saturating_sub(live.count())
            }
            None => {
                let running = self.staying.len() + self.leaving.len();
                (count + usize::from(!self.leaving.is_empty())).saturating_sub(running)
            }
        };
        missing.min(room)
    }

    fn want_with_data(&mut self, state: &State, claims: &VolumeClaims<'_>) -> usize {
        if self.survey.count() > 1 {
            self.conditions.insert(Condition::VolumeConstraintsInvalid);
        }
        let away = self
            .staying
            .iter()
            .any(|member| state.is_lost(member.instance.node));
        if away {
            self.conditions.insert(Condition::VolumeHomeNodeOffline);
        }
        if self.survey.count() == 0 || !self.staying.is_empty() {
            return 0;
        }
        match self.home(state, claims) {
            Ok(home) => {
                self.home = home;
                usize::from(home.is_some())
            }
            Err(condition) => {
                self.conditions.insert(condition);
                0
            }
        }
    }

    /// The node that has all the group's volumes; none while one is on its way.
    fn home(&self, state: &State, claims: &VolumeClaims<'_>) -> Result<Option<NodeId>, Condition> {
        let mut home = None;
        for id in &self.survey.group.spec.volumes {
            let volume = state
                .volumes
                .get(id)
                .ok_or(Condition::VolumeConstraintsInvalid)?;
            if state.is_lost(volume.home) {
                return Err(Condition::VolumeHomeNodeOffline);
            }
            if home.is_some_and(|home| home != volume.home) {
                return Err(Condition::VolumeLocalityNoNode);
            }
            home = Some(volume.home);
            match claims.holder(*id) {
                // Its own predecessor is on its way out.
                Some(group) if group == self.survey.id => return Ok(None),
                Some(_) => return Err(Condition::VolumeInUse),
                None => {}
            }
            match volume.state {
                VolumeState::Available => {}
                VolumeState::Creating
                | VolumeState::Attaching
                | VolumeState::InUse
                | VolumeState::Detaching => return Ok(None),
                VolumeState::Unavailable => return Err(Condition::VolumeHomeNodeOffline),
                VolumeState::Error | VolumeState::Deleting | VolumeState::Deleted => {
                    return Err(Condition::VolumeConstraintsInvalid);
                }
            }
        }
        Ok(home)
    }

    /// The node that the next instance is to take over from, outside deploys.
    pub(crate) fn moves_from(&self) -> Option<NodeId> {
        match (&self.rolling, self.leaving.first()) {
            (None, Some((member, _))) => Some(member.instance.node),
            _ => None,
        }
    }

    /// The nodes that this group is already on its way from.
    pub(crate) fn moving_from(&self) -> BTreeSet<NodeId> {
        let draining = self.survey.members.iter().filter(|member| {
            let reason = match member.instance.desired {
                Desired::Draining { reason, .. } => Some(reason),
                Desired::Running | Desired::Stopped { .. } => None,
            };
            reason == Some(DrainReason::NodeDraining) && !member.instance.has_ended()
        });
        let mut nodes: BTreeSet<NodeId> = draining.map(|member| member.instance.node).collect();
        if self.gets_on() {
            nodes.extend(self.moves_from());
        }
        nodes
    }

    /// Whether a member leaves in this pass, or one is on its way up that will
    /// let it.
    ///
    /// What does not come up in its time, fails, or was tried before keeps
    /// nobody else on its node.
    fn gets_on(&self) -> bool {
        let count = self.survey.count();
        if self.staying.len() + self.leaving.len() <= count {
            return false;
        }
        let leaving = || self.leaving.iter().map(|(member, _)| member);
        let available = self.staying.iter().chain(leaving());
        let available = available.filter(|member| member.available).count();
        if available > count || leaving().any(|member| !member.available) {
            return true;
        }
        if self.was_tried() {
            return false;
        }
        let spec = &self.survey.group.spec;
        let patience = spec.start_timeout.saturating_add(spec.min_ready);
        self.staying.iter().any(|member| {
            let young = self.now.since(member.instance.allocated_at) < patience;
            young && !member.available && member.failure().is_none()
        })
    }

    /// What placement needs to know of the group.
    pub(crate) fn neighbours(&self) -> Neighbours {
        self.survey.neighbours(self.now)
    }

    /// What an instance of the group needs.
    pub(crate) fn class(&self, board: &mut Board<'_>) -> ClassId {
        board.class(&self.survey.group.spec, self.survey.env.isolation)
    }

    /// Takes note of a new instance.
    pub(crate) fn place(&mut self, placement: Placement) {
        self.placed.push(placement);
        self.want = self.want.saturating_sub(1);
    }

    /// Whether one that did not come up was replaced lately, or is now: the
    /// next one keeps nobody waiting.
    pub(crate) fn was_tried(&self) -> bool {
        let mut replaced = self.survey.group.replaced.iter();
        let lately = replaced.any(|replaced| self.now.since(replaced.at) < FAILURE_WINDOW);
        let now = |action: &Action| match action {
            Action::Drain { reason, .. } => {
                matches!(reason, DrainReason::HostFailed | DrainReason::StartFailed)
            }
            _ => false,
        };
        lately || self.actions.iter().any(now)
    }

    /// Those that could go first if there is no room beside them.
    pub(crate) fn yielding(&self) -> impl Iterator<Item = &Member<'a>> {
        let rolls = self.rolling.is_some() && !self.survey.is_stateful();
        let leaving = self.leaving.iter().filter(move |_| rolls);
        leaving.map(|(member, _)| member)
    }

    /// Takes note that there is no room, and who would make some by going.
    pub(crate) fn refuse(&mut self, rejected: Rejections, gives_room: Option<InstanceId>) {
        self.refused = Some(Refused {
            reason: rejected.reason(),
            rejected,
            gives_room,
        });
    }

    /// The append of this group, if anything is to be done.
    pub(crate) fn finish(mut self) -> Option<Step> {
        self.scale_down();
        self.let_leave();
        self.allocate();
        self.show();
        if self.actions.is_empty() {
            return None;
        }
        Some(Step {
            expects: vec![Expected::Group(
                self.survey.id.clone(),
                self.survey.group.version,
            )],
            actions: self.actions,
        })
    }

    fn scale_down(&mut self) {
        // A paused deploy keeps the mix that it was stopped in.
        let paused = self.survey.deploy.filter(|_| self.rolling.is_none());
        let surge = paused.map_or(0, |(_, deploy)| bound(deploy.options.max_surge));
        let most = self.survey.count() + surge;
        let excess = self.staying.len().saturating_sub(most);
        let reason = match self.survey.env.life {
            EnvLife::Live => DrainReason::ScaleDown,
            EnvLife::Deleted => DrainReason::EnvDeleted,
        };
        for member in self.staying.drain(..excess).collect::<Vec<_>>() {
            self.drain(&member, reason);
        }
    }

    /// Lets go whom nobody will miss.
    fn let_leave(&mut self) {
        let count = self.survey.count();
        let unavailable = match &self.rolling {
            Some(rolling) => bound(rolling.options.max_unavailable),
            None => 0,
        };
        let least = count.saturating_sub(unavailable);
        let first = self.goes_first();
        // Whoever makes room goes before whoever makes none.
        self.leaving
            .sort_by_key(|(member, _)| (Some(member.id) != first, member.worth()));
        let both = || {
            self.staying
                .iter()
                .chain(self.leaving.iter().map(|(member, _)| member))
        };
        let mut available = both().filter(|member| member.available).count();
        let mut running = both().count() + self.placed.len();
        for (member, reason) in std::mem::take(&mut self.leaving) {
            let least = match first {
                Some(first) if first == member.id => least.min(count.saturating_sub(1)),
                _ => least,
            };
            let missed = member.available && available <= least;
            if running <= least || missed {
                continue;
            }
            running -= 1;
            available -= usize::from(member.available);
            self.drain(&member, reason);
        }
    }

    /// Who leaves before its successor comes, where it must and may: there is
    /// room for the successor only once it is gone, and others go on meanwhile.
    fn goes_first(&mut self) -> Option<InstanceId> {
        let first = self.refused.as_ref()?.gives_room?;
        let downtime = self.rolling.as_ref()?.options.downtime;
        if self.survey.count() >= 2 || downtime == Downtime::Allowed {
            self.conditions.insert(Condition::DrainFirst);
            return Some(first);
        }
        self.conditions.insert(Condition::SurgeBlocked);
        None
    }

    fn allocate(&mut self) {
        let deploy = self.deploy();
        for placement in std::mem::take(&mut self.placed) {
            self.actions.push(Action::Allocate(Allocation {
                group: self.survey.id.clone(),
                node: placement.node,
                driver: placement.driver,
                spec: self.survey.group.spec.hash,
                booking: placement.booking,
                deploy,
            }));
        }
    }

    /// Shows what holds now and hides what does not.
    fn show(&mut self) {
        let group: &GroupId = self.survey.id;
        let deploy = self.survey.deploy.map(|(id, _)| id);
        if let Some(refused) = self.refused.take() {
            self.conditions.insert(refused.reason);
            let last = self.survey.group.allocation_failed_at;
            if last.is_none_or(|at| self.now.since(at) >= FAILURE_PAUSE) {
                self.actions.push(Action::RecordFailure {
                    group: group.clone(),
                    wanted: u32::try_from(self.want).unwrap_or(u32::MAX),
                    reason: refused.reason,
                    rejected: refused.rejected,
                    deploy,
                });
            }
        }
        let shown = &self.survey.group.conditions;
        let set = |condition: &Condition, active| Action::SetCondition {
            group: group.clone(),
            condition: *condition,
            active,
            deploy,
        };
        let gone = shown
            .difference(&self.conditions)
            .map(|gone| set(gone, false));
        let new = self.conditions.difference(shown).map(|new| set(new, true));
        self.actions.extend(gone.chain(new));
    }
}

fn bound(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
