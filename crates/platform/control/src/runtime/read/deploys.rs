//! Deploys, scale, and how an env is.

use fluffy_api::types::{self, GroupProgress, GroupStatus, ProcessScale};
use fluffy_base::id::{DeployId, EnvId};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus};
use fluffy_planner::model::{GroupId, Instance};
use fluffy_planner::reason::Condition;
use serde_json::Value;

use super::apps::{LOGS_NEAR, LOGS_SAMPLED};
use super::{Asked, View, count};
use crate::refusal::Refusal;
use crate::runtime::{record, spec};

impl View<'_> {
    pub(super) fn deploy(&self, id: DeployId) -> Option<types::Deploy> {
        let deploy = self.runtime().deploys.get(&id)?;
        let processes = deploy.before.keys();
        let groups: Vec<_> = processes
            .clone()
            .filter_map(|process| self.progress(deploy, process))
            .collect();
        Some(types::Deploy {
            meta: self.meta("deploy", id)?,
            org_id: deploy.org,
            app_id: deploy.app,
            env_id: deploy.env,
            kind: spec::deploy_kind_text(deploy.kind).to_owned(),
            status: deploy.state.to_string(),
            message: deploy.message.clone().or_else(|| self.message(deploy)),
            failed_reason: deploy.failed_reason.clone(),
            release_id: deploy.release,
            from_releases: deploy
                .before
                .iter()
                .map(|(process, before)| (process.clone(), before.map(|before| before.release)))
                .collect(),
            process_types: processes.cloned().collect(),
            options: spec::options_shown(&deploy.options),
            groups,
            isolation: self.isolation(deploy.env),
            created_by: deploy.created_by.clone(),
            finished_at: deploy.finished_at,
        })
    }

    /// What a roll-out has to say while it goes on.
    fn message(&self, deploy: &record::Deploy) -> Option<String> {
        if deploy.state.is_final() {
            return None;
        }
        let groups = deploy.before.keys().filter_map(|process| {
            let group = self
                .runtime()
                .plan
                .groups
                .get(&spec::group_id(deploy.env, process))?;
            Some((process, group))
        });
        let texts = groups.flat_map(|(process, group)| {
            let conditions = group.conditions.iter();
            conditions.map(move |condition| match condition {
                Condition::DrainFirst => {
                    format!("{process}: no room for more, so one is taken out before one comes in")
                }
                other => format!("{process}: {other}"),
            })
        });
        let mut texts: Vec<String> = texts.collect();
        texts.extend(self.downtimes(deploy));
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// The process types that a roll-out takes down for a while: a volume is
    /// mounted once, so the old instance goes before the new one comes.
    fn downtimes(&self, deploy: &record::Deploy) -> Vec<String> {
        let down = deploy.before.keys().filter(|process| {
            let id = spec::group_id(deploy.env, process);
            let group = self.runtime().plan.groups.get(&id);
            group.is_some_and(|group| {
                let old = |it: &Instance| it.spec != group.spec.hash || it.restart;
                !group.spec.volumes.is_empty() && self.members(&id).any(old)
            })
        });
        let told = down.map(|process| {
            format!("{process}: mounts a volume, so it is down while it is replaced")
        });
        told.collect()
    }

    fn members<'b>(&'b self, group: &'b GroupId) -> impl Iterator<Item = &'b Instance> {
        let plan = &self.runtime().plan;
        let own = plan.instances.values();
        own.filter(move |it| it.group == *group && plan.counts(it))
    }

    fn progress(&self, deploy: &record::Deploy, process: &str) -> Option<GroupProgress> {
        let id = spec::group_id(deploy.env, process);
        let group = self.runtime().plan.groups.get(&id)?;
        let env = self.runtime().plan.envs.get(&deploy.env)?;
        let new = || {
            let own = self.members(&id);
            let accepted = own.filter(|it| env.isolation.accepts(it.driver.level()));
            accepted.filter(|it| it.spec == group.spec.hash && !it.restart && it.is_wanted())
        };
        let ready = |it: &&Instance| it.observed.status == InstanceStatus::Ready;
        let long = |it: &&Instance| self.now.since(it.observed.since) >= group.spec.min_ready;
        let replaced = group.replaced.iter();
        Some(GroupProgress {
            process: process.to_owned(),
            desired: group.count,
            new: count(new().count()),
            ready: count(new().filter(ready).count()),
            available: count(new().filter(ready).filter(long).count()),
            old: count(self.members(&id).count() - new().count()),
            replaced: count(replaced.filter(|it| it.at >= deploy.created_at).count()),
            conditions: self.group_conditions(deploy.env, process),
        })
    }

    /// What is so in a group for now; also that there was no address for it.
    pub(super) fn group_conditions(&self, env: EnvId, process: &str) -> Vec<types::Condition> {
        let Some(notes) = self.runtime().groups.get(&spec::group_id(env, process)) else {
            return Vec::new();
        };
        let shown = |condition: &str, detail: Option<String>, since| types::Condition {
            condition: condition.to_owned(),
            process: Some(process.to_owned()),
            reason: Some(condition.to_owned()),
            detail,
            since,
        };
        let held = notes.conditions.iter();
        let mut all: Vec<_> = held
            .map(|(condition, (since, detail))| shown(condition, detail.clone(), Some(*since)))
            .collect();
        if let Some((reason, attempts)) = &notes.allocation
            && !notes.conditions.contains_key(reason)
        {
            all.push(shown(
                reason,
                Some(format!("recorded {attempts} times")),
                None,
            ));
        }
        all
    }

    pub(super) fn scale(&self, id: EnvId) -> Option<types::Scale> {
        let runtime = self.runtime();
        let env = runtime.envs.get(&id)?;
        let processes = env.desired.iter().filter_map(|(name, wanted)| {
            let process = runtime.process(id, wanted.release, name)?;
            let scale = ProcessScale {
                desired: runtime.count(id, name, &process),
                source: match env.scales.contains_key(name) {
                    true => "explicit",
                    false => "manifest",
                }
                .to_owned(),
                min: process.scaling.min,
                max: process.scaling.max,
            };
            Some((name.clone(), scale))
        });
        Some(types::Scale {
            env_id: id,
            version: self.meta("env", id)?.version,
            processes: processes.collect(),
        })
    }

    pub(super) fn status(&self, id: EnvId) -> Option<types::EnvStatus> {
        let runtime = self.runtime();
        let env = runtime.envs.get(&id)?;
        let groups: Vec<_> = env
            .desired
            .iter()
            .filter_map(|(process, wanted)| self.group(id, process, wanted))
            .collect();
        let conditions = self.conditions(id);
        let routes = runtime.routes.iter().filter(|(_, it)| it.env == id);
        let error = env.last_error.as_ref();
        let last = env.deploys.back();
        Some(types::EnvStatus {
            org_id: env.org,
            app_id: env.app,
            env_id: id,
            status: self.health(id, env, &groups, &conditions).to_owned(),
            isolation: self.isolation(id),
            conditions,
            groups,
            routes: routes.filter_map(|(id, _)| self.route(*id)).collect(),
            last_deploy: last.and_then(|id| self.deploy(*id)),
            last_error: error.map(|error| types::LastError {
                at: error.at,
                reason: error.reason.clone(),
                detail: error.detail.clone(),
                instance_id: error.instance.map(|id| id.to_string()),
            }),
        })
    }

    fn health(
        &self,
        id: EnvId,
        env: &record::Env,
        groups: &[GroupStatus],
        conditions: &[types::Condition],
    ) -> &'static str {
        let rolling = self.runtime().plan.deploys.values().any(|deploy| {
            deploy.env == id && matches!(deploy.state, DeployState::Queued | DeployState::Rolling)
        });
        // One that takes turns for want of room goes on all the same.
        let slow = |process: Option<&str>| {
            conditions.iter().any(|it| {
                it.condition == Condition::DrainFirst.to_string()
                    && it.process.as_deref() == process
            })
        };
        // What somebody may want to know, and no trouble of what runs.
        let told = ["shared_kernel", LOGS_NEAR, LOGS_SAMPLED];
        let trouble = conditions
            .iter()
            .filter(|it| !told.contains(&it.condition.as_str()))
            .any(|it| !slow(it.process.as_deref()));
        let short = groups.iter().any(|group| group.ready < group.desired);
        match () {
            () if env.deleted_at.is_some() => "deleting",
            () if groups.is_empty() => "empty",
            () if trouble => "degraded",
            () if rolling => "progressing",
            () if self.is_ill(id) => "degraded",
            () if short => "progressing",
            () => "healthy",
        }
    }

    /// Whether an instance that should run has been seen and is not well.
    fn is_ill(&self, env: EnvId) -> bool {
        let plan = &self.runtime().plan;
        let mut own = plan.instances.values().filter(|it| it.group.env == env);
        own.any(|it| {
            let ill = matches!(
                it.observed.status,
                InstanceStatus::Unhealthy | InstanceStatus::Failed | InstanceStatus::Lost
            );
            ill && it.is_wanted()
        })
    }

    fn group(&self, env: EnvId, process: &str, wanted: &record::Wanted) -> Option<GroupStatus> {
        let id = spec::group_id(env, process);
        let group = self.runtime().plan.groups.get(&id)?;
        let ready = |it: &&Instance| it.observed.status == InstanceStatus::Ready;
        let current = |it: &&Instance| it.spec == group.spec.hash && it.is_wanted();
        Some(GroupStatus {
            process: process.to_owned(),
            release_id: wanted.release,
            desired: group.count,
            live: count(self.members(&id).count()),
            ready: count(self.members(&id).filter(ready).count()),
            current: count(self.members(&id).filter(current).count()),
            conditions: self.group_conditions(env, process),
        })
    }
}

impl Asked<'_> {
    pub(super) fn deploys(&self) -> Result<Value, Refusal> {
        let (kind, process) = (self.given("kind"), self.given("process"));
        let all = self.view.runtime().deploys.iter();
        let own = all.filter(|(_, it)| {
            Some(it.env) == self.place.owner.env
                && kind.is_none_or(|kind| spec::deploy_kind_text(it.kind) == kind)
                && process.is_none_or(|process| it.before.contains_key(process))
        });
        self.page("deploy", own.map(|(id, _)| *id), View::deploy)
    }
}
