//! What people do while there is trouble: deploys, scaling, drains and worse.

use fluffy_base::id::{DeployId, NodeId};
use fluffy_planner::lifecycle::{Cause, DeployState, NodeState, SecretBundleState};
use fluffy_planner::model::{
    DeployKind, Downtime, Drain, GroupId, OnFailure, RolloutOptions, Secrets, Stateful,
};

use super::machine::Fate;
use super::world::{World, any_isolation};
use crate::ground::{MIB, at, env_id, hash, release_id, secret_id, secs};

impl World {
    /// Perhaps one of the things that people do.
    pub(crate) fn command(&mut self) {
        if !self.random.one_in(12) {
            return;
        }
        match self.random.below(21) {
            0..=4 => self.deploy(),
            5..=8 => self.scale(),
            9 => self.cancel(),
            10 | 11 => self.pause_or_resume(),
            12 => self.restart(),
            13 | 14 => self.drain(),
            15 | 16 => self.uncordon(),
            17 => self.rotate(),
            18 => self.limit(),
            19 => self.isolate(),
            _ => self.roll_back(),
        }
    }

    fn groups(&self) -> Vec<GroupId> {
        self.server.state.groups.keys().cloned().collect()
    }

    fn options(&mut self) -> RolloutOptions {
        let max_surge = self.random.below(3) as u32;
        RolloutOptions {
            max_surge,
            max_unavailable: u32::from(max_surge == 0) + self.random.below(2) as u32,
            timeout: secs(60 + self.random.below(140)),
            on_failure: if self.random.one_in(3) {
                OnFailure::Pause
            } else {
                OnFailure::Rollback
            },
            downtime: if self.random.one_in(2) {
                Downtime::Allowed
            } else {
                Downtime::Refused
            },
        }
    }

    fn deploy(&mut self) {
        let first = self.random.pick(&self.groups()).unwrap();
        let release = release_id(self.next_release);
        self.next_release += 1;
        let fate = match self.random.below(20) {
            0 | 1 => Fate::NeverReady,
            2..=4 => Fate::Crashes,
            5 => Fate::TooLarge,
            6 => Fate::Hangs,
            7 => Fate::LacksSecrets,
            _ => Fate::Good,
        };
        self.fates.insert(release, fate);
        let mut groups = vec![first.clone()];
        groups.extend(
            self.groups()
                .into_iter()
                .filter(|it| it.env == first.env && *it != first),
        );
        groups.truncate(1 + self.random.below(2) as usize);
        let mut wanted = Vec::new();
        for group in groups {
            let mut spec = self.server.state.groups[&group].spec.clone();
            spec.release = release;
            spec.resources.memory = (256 + 128 * self.random.below(6)) * MIB;
            spec.hash = hash(&group, &spec);
            wanted.push((group.clone(), release));
            self.server.release(&group, spec);
        }
        let options = self.options();
        let now = self.now();
        self.server.begin(DeployKind::Deploy, wanted, options, now);
        self.counts.add("a deploy");
    }

    fn roll_back(&mut self) {
        let deploys = self.server.state.deploys.values();
        let before: Vec<_> = deploys
            .flat_map(|deploy| deploy.groups.clone())
            .filter_map(|(group, before)| Some((group, before?)))
            .collect();
        if let Some((group, release)) = self.random.pick(&before) {
            let options = self.options();
            let now = self.now();
            let wanted = vec![(group, release)];
            self.server
                .begin(DeployKind::Rollback, wanted, options, now);
            self.counts.add("a rollback");
        }
    }

    fn scale(&mut self) {
        let group = self.random.pick(&self.groups()).unwrap();
        let stateful = !self.server.state.groups[&group].spec.volumes.is_empty();
        let count = self.random.below(if stateful { 2 } else { 6 });
        self.server.scale(&group, count as u32);
        self.counts.add("a scaling");
    }

    fn open_deploys(&self, states: &[DeployState]) -> Vec<DeployId> {
        let all = self.server.state.deploys.iter();
        let open = all.filter(|(_, deploy)| states.contains(&deploy.state));
        open.map(|(id, _)| *id).collect()
    }

    fn cancel(&mut self) {
        let open = self.open_deploys(&[
            DeployState::Queued,
            DeployState::Rolling,
            DeployState::Paused,
        ]);
        if let Some(id) = self.random.pick(&open) {
            self.server.cancel(id);
            self.counts.add("a cancellation");
        }
    }

    fn pause_or_resume(&mut self) {
        let open = self.open_deploys(&[DeployState::Rolling, DeployState::Paused]);
        if let Some(id) = self.random.pick(&open) {
            let now = self.now();
            let deploy = self.server.state.deploys.get_mut(&id).unwrap();
            let to = match deploy.state {
                DeployState::Paused => DeployState::Rolling,
                _ => DeployState::Paused,
            };
            DeployState::can(Some(deploy.state), to, Cause::EnvDeploy).unwrap();
            (deploy.state, deploy.since, deploy.version) = (to, now, deploy.version + 1);
            self.counts.add("a pause");
        }
    }

    fn restart(&mut self) {
        let ids: Vec<_> = self.server.state.instances.keys().copied().collect();
        let Some(id) = self.random.pick(&ids) else {
            return;
        };
        let group = self.server.state.instances[&id].group.clone();
        let mut deploys = self.server.state.deploys.values();
        let busy = deploys.any(|it| !it.state.is_final() && it.groups.contains_key(&group));
        if busy {
            return;
        }
        self.server.state.instances.get_mut(&id).unwrap().restart = true;
        let release = self.server.state.groups[&group].spec.release;
        let options = self.options();
        let now = self.now();
        let wanted = vec![(group, release)];
        self.server.begin(DeployKind::Restart, wanted, options, now);
        self.counts.add("a restart");
    }

    pub(super) fn drain(&mut self) {
        let nodes = self.server.state.nodes.iter();
        let open =
            nodes.filter(|(_, node)| matches!(node.state, NodeState::Active | NodeState::Degraded));
        let open: Vec<NodeId> = open.map(|(id, _)| *id).collect();
        let Some(id) = self.random.pick(&open) else {
            return;
        };
        let deadline = self.second + 30 + self.random.below(400) as i64;
        let stays = self.random.one_in(2);
        let disabled = self.random.one_in(6);
        let node = self.server.state.nodes.get_mut(&id).unwrap();
        node.version += 1;
        if disabled {
            node.state = NodeState::Disabled;
            self.counts.add("a disabled node");
            return;
        }
        node.state = NodeState::Draining;
        node.drain = Some(Drain {
            deadline: at(deadline),
            stateful: if stays {
                Stateful::Stays
            } else {
                Stateful::Blocks
            },
            blockers: Default::default(),
        });
        self.counts.add("a drain");
    }

    fn uncordon(&mut self) {
        let nodes = self.server.state.nodes.iter();
        let closed = nodes.filter(|(_, node)| {
            let from = Some(node.state);
            NodeState::can(from, NodeState::Active, Cause::NodeManage).is_ok()
        });
        let closed: Vec<NodeId> = closed.map(|(id, _)| *id).collect();
        if let Some(id) = self.random.pick(&closed) {
            let node = self.server.state.nodes.get_mut(&id).unwrap();
            (node.state, node.drain, node.version) = (NodeState::Active, None, node.version + 1);
            self.counts.add("an uncordoned node");
        }
    }

    fn rotate(&mut self) {
        let env = env_id(1);
        let version = secret_id(u128::from(self.random.next()));
        let state = match self.server.state.envs[&env].secrets {
            None => SecretBundleState::Active,
            Some(_) => SecretBundleState::Rotating,
        };
        self.server.set_secrets(env, Secrets { version, state });
        self.counts.add("new secrets");
    }

    fn isolate(&mut self) {
        let envs: Vec<_> = self.server.state.envs.keys().copied().collect();
        let env = self.random.pick(&envs).unwrap();
        let isolation = any_isolation(&mut self.random);
        self.server.set_isolation(env, isolation);
        self.counts.add("another isolation");
    }

    pub(super) fn limit(&mut self) {
        let orgs: Vec<_> = self.server.state.orgs.keys().copied().collect();
        let org = self.random.pick(&orgs).unwrap();
        let quota = &mut self.server.state.orgs.get_mut(&org).unwrap().quota;
        quota.instances = 2 + self.random.below(14);
        quota.memory = (2 + self.random.below(14)) << 30;
        self.counts.add("a new quota");
    }
}
