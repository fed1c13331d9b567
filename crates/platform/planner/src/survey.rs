//! One group as a pass sees it: its members, its deploy, what became of them.
//!
//! Only looks; `rollout` decides what is to be done, `deploys` what becomes of
//! the deploy.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::{DeployId, InstanceId};

use crate::lifecycle::{DeployState, InstanceStatus, NodeState};
use crate::model::{Deploy, Env, EnvLife, Group, GroupId, Instance, RolloutOptions, State};
use crate::place::{FAILURE_WINDOW, Neighbours};
use crate::reason::{Condition, DrainReason, FailureReason};

/// How long instances must have been ready for a crash loop to be over.
pub(crate) const HEALTHY: Duration = Duration::from_secs(600);

/// A group with everything that belongs to it.
#[derive(Debug, Clone)]
pub(crate) struct Survey<'a> {
    pub(crate) id: &'a GroupId,
    pub(crate) group: &'a Group,
    pub(crate) env: &'a Env,
    /// Its deploy, if one is not final.
    pub(crate) deploy: Option<(DeployId, &'a Deploy)>,
    pub(crate) members: Vec<Member<'a>>,
}

/// An instance of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) id: InstanceId,
    pub(crate) instance: &'a Instance,
    /// Its node is out of reach, and it will not be waited for.
    pub(crate) given_up: bool,
    /// It counts against the quota.
    pub(crate) counts: bool,
    /// It has been ready for long enough, or is done.
    pub(crate) available: bool,
    /// Its node is to be emptied.
    pub(crate) evicted: Eviction,
}

/// Whether a member's node is to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// It is not.
    None,
    /// As soon as another instance is available.
    Wanted,
    /// Now: the drain's deadline is over.
    Forced,
}

/// How members of a group follow its spec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rolling {
    /// The deploy that wants it, if there is one.
    pub(crate) deploy: Option<DeployId>,
    /// Within which bounds.
    pub(crate) options: RolloutOptions,
}

/// All groups of a state, in the order of their ids.
pub(crate) fn survey(state: &State, now: Timestamp) -> Vec<Survey<'_>> {
    let mut members: BTreeMap<&GroupId, Vec<Member<'_>>> = BTreeMap::new();
    for (id, instance) in &state.instances {
        let spec = state.groups.get(&instance.group).map(|group| &group.spec);
        let min_ready = spec.map_or(Duration::ZERO, |spec| spec.min_ready);
        let member = Member::new(state, now, (*id, instance), min_ready);
        members.entry(&instance.group).or_default().push(member);
    }
    let mut deploys = BTreeMap::new();
    for (id, deploy) in state
        .deploys
        .iter()
        .filter(|(_, deploy)| !deploy.state.is_final())
    {
        deploys.extend(deploy.groups.keys().map(|group| (group, (*id, deploy))));
    }
    let groups = state.groups.iter().filter_map(|(id, group)| {
        Some(Survey {
            id,
            group,
            env: state.envs.get(&id.env)?,
            deploy: deploys.get(id).copied(),
            members: members.remove(id).unwrap_or_default(),
        })
    });
    groups.collect()
}

impl<'a> Member<'a> {
    fn new(
        state: &State,
        now: Timestamp,
        (id, instance): (InstanceId, &'a Instance),
        min_ready: Duration,
    ) -> Self {
        // Data is on its home node alone, so who has some is waited for.
        let given_up = state.is_fenced(instance.node)
            || (state.is_lost(instance.node) && instance.volumes.is_empty());
        let node = state.nodes.get(&instance.node);
        let evicted = match node.map(|node| (node.state, &node.drain)) {
            Some((NodeState::Draining, Some(drain))) if drain.deadline <= now => Eviction::Forced,
            Some((NodeState::Draining | NodeState::Disabled, _)) => Eviction::Wanted,
            _ => Eviction::None,
        };
        let observed = &instance.observed;
        let ready = observed.status == InstanceStatus::Ready
            && now.since(observed.since) >= min_ready
            && !state.is_lost(instance.node);
        // A process that may end, and did, has done what was wanted of it.
        let available = instance.is_wanted() && (ready || instance.has_ended());
        Self {
            id,
            instance,
            given_up,
            counts: state.counts(instance),
            available,
            evicted,
        }
    }

    /// Whether it shall run and somebody could make it.
    pub(crate) fn is_running(&self) -> bool {
        self.instance.is_wanted() && !self.given_up
    }

    /// Why it failed, if it is failed.
    pub(crate) fn failure(&self) -> Option<FailureReason> {
        let observed = &self.instance.observed;
        observed
            .reason
            .filter(|_| observed.status == InstanceStatus::Failed)
    }

    /// Whether its node failed it, and another node may do better.
    pub(crate) fn host_failed(&self) -> bool {
        let after = self.failure().and_then(FailureReason::moves_after);
        let failures = self.instance.observed.failures;
        self.instance.volumes.is_empty() && after.is_some_and(|after| failures >= after)
    }

    /// Whether its secrets did not reach it. Its node leaves it at that, and
    /// another start may do better.
    pub(crate) fn lacks_secrets(&self) -> bool {
        self.failure() == Some(FailureReason::SecretsInjectionFailed)
    }

    /// Whether it has not become ready in the time that it had.
    pub(crate) fn is_late(&self, now: Timestamp, start_timeout: Duration) -> bool {
        !self.instance.observed.was_ready
            && !self.instance.has_ended()
            && now.since(self.instance.allocated_at) >= start_timeout
    }

    /// The first to go has the lowest: failed, not ready, on its way, oldest.
    pub(crate) fn worth(&self) -> (u8, InstanceId) {
        let rank = match self.instance.observed.status {
            InstanceStatus::Failed | InstanceStatus::Lost => 0,
            _ if !self.available => 1,
            _ if self.evicted != Eviction::None => 2,
            _ => 3,
        };
        (rank, self.id)
    }
}

impl Survey<'_> {
    /// How many instances are wanted.
    pub(crate) fn count(&self) -> usize {
        match self.env.life {
            EnvLife::Live => usize::try_from(self.group.count).unwrap_or(usize::MAX),
            EnvLife::Deleted => 0,
        }
    }

    /// Whether the group has data, now or by its members.
    pub(crate) fn is_stateful(&self) -> bool {
        !self.group.spec.volumes.is_empty()
    }

    /// Whether a member is as the group and its env want it.
    pub(crate) fn matches(&self, member: &Member<'_>) -> bool {
        self.is_current(member) && self.is_accepted(member)
    }

    /// Whether a member is as the group wants it, whatever its env wants.
    pub(crate) fn is_current(&self, member: &Member<'_>) -> bool {
        member.instance.spec == self.group.spec.hash
            && !member.instance.restart
            && !self.is_spent(member)
    }

    /// Whether the env accepts what runs a member; it may want more by now
    /// than when the member was made.
    fn is_accepted(&self, member: &Member<'_>) -> bool {
        let level = member.instance.driver.level();
        self.env.isolation.accepts(level)
    }

    /// Whether a member is to give way to one as the group wants it now.
    ///
    /// What a failed deploy left stays as it is, but not where the env does
    /// not accept it any more; data does, because it would have to go before
    /// it is known that what failed can start.
    pub(crate) fn is_old(&self, member: &Member<'_>) -> bool {
        if self.deploy.is_none() && self.group.held {
            let has_data = self.is_stateful() || !member.instance.volumes.is_empty();
            return !self.is_accepted(member) && !has_data;
        }
        !self.matches(member)
    }

    /// Whether a member was given up before its deploy began: what it failed
    /// for may be mended since, and its node would not try again by itself.
    fn is_spent(&self, member: &Member<'_>) -> bool {
        let given_up = member.failure().is_some_and(|reason| {
            reason.is_hopeless()
                || matches!(
                    reason,
                    FailureReason::CrashLoopBackoff | FailureReason::SecretsInjectionFailed
                )
        });
        given_up && !self.is_own(member)
    }

    /// Whether a member came with the deploy that goes on, or later.
    fn is_own(&self, member: &Member<'_>) -> bool {
        self.deploy
            .is_none_or(|(_, deploy)| member.instance.allocated_at >= deploy.opened)
    }

    /// How members follow the spec, unless they stay as they are.
    ///
    /// A canceled deploy leaves instances that nobody wants, and an env may
    /// accept less than before; no deploy replaces those, so a group follows
    /// its spec without one, too.
    pub(crate) fn rolling(&self) -> Option<Rolling> {
        match self.deploy {
            Some((id, deploy)) => {
                let goes_on = matches!(deploy.state, DeployState::Queued | DeployState::Rolling);
                goes_on.then_some(Rolling {
                    deploy: Some(id),
                    options: deploy.options,
                })
            }
            None => {
                let mut running = self.members.iter().filter(|member| member.is_running());
                let old = running.any(|member| self.is_old(member));
                old.then_some(Rolling {
                    deploy: None,
                    options: RolloutOptions::CAREFUL,
                })
            }
        }
    }

    /// Whether everything is as the group wants it, and nothing else is left.
    pub(crate) fn is_settled(&self) -> bool {
        let matching = self.members.iter().filter(|member| self.matches(member));
        let available = matching.filter(|member| member.available).count();
        let old = self
            .members
            .iter()
            .any(|member| !self.matches(member) && (member.counts || member.instance.is_wanted()));
        available >= self.count() && !old
    }

    /// Whether a member has had its chance in this deploy and must be replaced.
    pub(crate) fn start_failed(&self, member: &Member<'_>, now: Timestamp) -> bool {
        let looping = member.failure() == Some(FailureReason::CrashLoopBackoff);
        // Whoever failed before it is not this deploy's doing.
        self.deploy.is_some()
            && self.is_own(member)
            && self.matches(member)
            && member.is_running()
            && !member.host_failed()
            && (looping
                || member.lacks_secrets()
                || member.is_late(now, self.group.spec.start_timeout))
    }

    /// What placement needs to know of the group.
    pub(crate) fn neighbours(&self, now: Timestamp) -> Neighbours {
        let mut neighbours = Neighbours::default();
        let here = self.members.iter();
        for member in here.filter(|member| !member.instance.has_ended()) {
            neighbours.add(member.instance.node);
        }
        for replaced in &self.group.replaced {
            let recent = now.since(replaced.at) < FAILURE_WINDOW;
            if recent && replaced.reason == DrainReason::HostFailed {
                neighbours.avoid(replaced.node);
            }
        }
        for member in self.members.iter().filter(|member| member.host_failed()) {
            neighbours.avoid(member.instance.node);
        }
        neighbours
    }

    /// How many members were replaced for a reason, lately and since a moment.
    pub(crate) fn replaced(&self, why: DrainReason, since: Timestamp, now: Timestamp) -> usize {
        let replaced = self.group.replaced.iter();
        replaced
            .filter(|replaced| replaced.reason == why && replaced.at >= since)
            .filter(|replaced| now.since(replaced.at) < FAILURE_WINDOW)
            .count()
    }

    /// Whether instances fail over and over, and no deploy is there to notice.
    pub(crate) fn is_crash_looping(&self, now: Timestamp) -> bool {
        if self.deploy.is_some() || self.count() == 0 {
            return false;
        }
        let mut running = self.members.iter().filter(|member| member.is_running());
        if self.group.conditions.contains(&Condition::CrashLooping) {
            return !running.all(|member| {
                member.available && now.since(member.instance.observed.since) >= HEALTHY
            });
        }
        running.any(|member| member.failure() == Some(FailureReason::CrashLoopBackoff))
    }
}
