//! What becomes of deploys: they begin, succeed, pause, fail and roll back.
//!
//! Judges facts only: how many are available, what was replaced, how long it
//! took. Also gives groups the env's current secrets by deploys of its own.
//! Never touches an instance; that is `rollout`'s.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Timestamp;
use fluffy_base::id::{DeployId, EnvId};

use crate::action::{Action, Expected, OpenDeploy, Step};
use crate::lifecycle::{DeployState, SecretBundleState};
use crate::model::{Deploy, DeployKind, EnvLife, GroupId, OnFailure, SecretUse, State};
use crate::reason::{DeployFailure, DrainReason, FailureReason};
use crate::survey::{Member, Survey};

/// How many replacements in one group end a deploy.
pub const RETRIES: usize = 3;

/// What deploys do in a pass, and what that means for groups.
#[derive(Debug, Default)]
pub(crate) struct Decided<'a> {
    /// What is to be appended.
    pub(crate) steps: Vec<Step>,
    /// Deploys that do not go on in this pass.
    pub(crate) held: BTreeSet<DeployId>,
    /// Groups whose spec is about to change; the next pass sees to them.
    pub(crate) changing: BTreeSet<&'a GroupId>,
}

/// Decides about every deploy and every env's secrets.
pub(crate) fn decide<'a>(state: &'a State, surveys: &[Survey<'a>], now: Timestamp) -> Decided<'a> {
    let mut decided = Decided::default();
    let by_id: BTreeMap<&GroupId, &Survey<'a>> =
        surveys.iter().map(|survey| (survey.id, survey)).collect();
    for (id, deploy) in &state.deploys {
        let groups = deploy
            .groups
            .keys()
            .filter_map(|group| by_id.get(group).copied());
        let groups: Vec<&Survey<'_>> = groups.collect();
        let Some((to, why)) = verdict(deploy, &groups, now) else {
            continue;
        };
        if to != DeployState::Rolling {
            decided.held.insert(*id);
        }
        decided.change((*id, deploy), &groups, (to, why));
    }
    decided.secrets(state, surveys);
    decided
}

/// Where a deploy goes now, if anywhere.
fn verdict(
    deploy: &Deploy,
    groups: &[&Survey<'_>],
    now: Timestamp,
) -> Option<(DeployState, Option<DeployFailure>)> {
    let late = now.since(deploy.since) >= deploy.options.timeout;
    let why = match deploy.state {
        DeployState::Queued => return Some((DeployState::Rolling, None)),
        DeployState::Rolling if groups.iter().all(|group| group.is_settled()) => {
            return Some((DeployState::Succeeded, None));
        }
        DeployState::Rolling => groups
            .iter()
            .find_map(|group| gate(deploy, group, now))
            .or(late.then_some(DeployFailure::Timeout))?,
        DeployState::Paused => late.then_some(DeployFailure::Timeout)?,
        DeployState::Succeeded
        | DeployState::Failed
        | DeployState::Canceled
        | DeployState::Superseded => return None,
    };
    let pauses =
        deploy.state == DeployState::Rolling && deploy.options.on_failure == OnFailure::Pause;
    let to = if pauses {
        DeployState::Paused
    } else {
        DeployState::Failed
    };
    Some((to, Some(why)))
}

/// Why a group ends its deploy, if it does.
fn gate(deploy: &Deploy, group: &Survey<'_>, now: Timestamp) -> Option<DeployFailure> {
    let running = || group.members.iter().filter(|member| member.is_running());
    let hopeless = running()
        .filter(|member| group.matches(member))
        .any(|member| member.failure().is_some_and(|reason| reason.is_hopeless()));
    if hopeless {
        return Some(DeployFailure::Hopeless);
    }
    let failing: Vec<_> = running()
        .filter(|member| group.start_failed(member, now))
        .collect();
    // Its node has tried often enough; the next one would do the same.
    let loops = |member: &&Member<'_>| member.failure() == Some(FailureReason::CrashLoopBackoff);
    if failing.iter().any(loops) {
        return Some(DeployFailure::RetriesSpent);
    }
    let failing = failing.len();
    let spent = group.replaced(DrainReason::StartFailed, deploy.since, now);
    (failing > 0 && failing + spent >= RETRIES).then_some(DeployFailure::RetriesSpent)
}

impl<'a> Decided<'a> {
    fn change(
        &mut self,
        (id, deploy): (DeployId, &Deploy),
        groups: &[&Survey<'a>],
        (to, why): (DeployState, Option<DeployFailure>),
    ) {
        let mut expects = vec![Expected::Deploy(id, deploy.version)];
        let mut actions = vec![Action::ChangeDeploy {
            deploy: id,
            to,
            why,
        }];
        if to == DeployState::Failed
            && let Some(open) = rollback(id, deploy)
        {
            let back = groups.iter();
            let back = back.filter(|group| {
                open.groups.contains_key(group.id) || open.cleared.contains(group.id)
            });
            for group in back {
                expects.push(Expected::Group(group.id.clone(), group.group.version));
                self.changing.insert(group.id);
            }
            actions.push(Action::OpenDeploy(open));
        }
        self.steps.push(Step { expects, actions });
    }

    /// Gives groups the current version, and says when all have it.
    fn secrets(&mut self, state: &State, surveys: &[Survey<'a>]) {
        let mut users: BTreeMap<EnvId, Vec<&Survey<'a>>> = BTreeMap::new();
        for survey in surveys {
            if survey.group.spec.secrets != SecretUse::Unused {
                users.entry(survey.id.env).or_default().push(survey);
            }
        }
        for (id, env) in &state.envs {
            let Some(secrets) = env.secrets.filter(|_| env.life == EnvLife::Live) else {
                continue;
            };
            let current = SecretUse::Required(Some(secrets.version));
            let users = users.remove(id).unwrap_or_default().into_iter();
            let (have, lack): (Vec<_>, Vec<_>) =
                users.partition(|survey| survey.group.spec.secrets == current);
            let expected = Expected::Env(*id, env.version);
            match secrets.state {
                SecretBundleState::Active | SecretBundleState::Rotating if !lack.is_empty() => {
                    let free = lack.into_iter().filter(|survey| survey.deploy.is_none());
                    self.restart(expected, *id, free.collect());
                }
                SecretBundleState::Rotating => self.steps.extend(rotated(&have).map(|to| Step {
                    expects: vec![expected],
                    actions: vec![Action::ChangeSecrets { env: *id, to }],
                })),
                SecretBundleState::Active
                | SecretBundleState::RotationFailed
                | SecretBundleState::Deleted => {}
            }
        }
    }

    fn restart(&mut self, expected: Expected, env: EnvId, groups: Vec<&Survey<'a>>) {
        if groups.is_empty() {
            return;
        }
        self.changing.extend(groups.iter().map(|survey| survey.id));
        let versions = groups.iter();
        let versions =
            versions.map(|survey| Expected::Group(survey.id.clone(), survey.group.version));
        let same = groups.iter().map(|survey| (survey.id.clone(), None));
        self.steps.push(Step {
            expects: [expected].into_iter().chain(versions).collect(),
            actions: vec![Action::OpenDeploy(OpenDeploy {
                env,
                kind: DeployKind::Restart,
                groups: same.collect(),
                cleared: BTreeSet::new(),
                because: None,
            })],
        });
    }
}

/// What became of a rotation, once every group is wanted with its version.
fn rotated(users: &[&Survey<'_>]) -> Option<SecretBundleState> {
    if users.iter().any(|survey| survey.deploy.is_some()) {
        return None;
    }
    if users.iter().any(|survey| survey.group.held) {
        return Some(SecretBundleState::RotationFailed);
    }
    let mut members = users
        .iter()
        .flat_map(|survey| survey.members.iter().map(move |member| (survey, member)));
    let done = members.all(|(survey, member)| !member.counts || survey.is_current(member));
    done.then_some(SecretBundleState::Active)
}

/// The way back from a failed deploy, where there is one: what had a release
/// gets it back, and what the deploy had added goes again. Where nothing had a
/// release there is nothing to go back to.
fn rollback(id: DeployId, deploy: &Deploy) -> Option<OpenDeploy> {
    if deploy.kind != DeployKind::Deploy || deploy.options.on_failure != OnFailure::Rollback {
        return None;
    }
    let (mut groups, mut cleared) = (BTreeMap::new(), BTreeSet::new());
    for (group, before) in &deploy.groups {
        match before {
            Some(_) => {
                groups.insert(group.clone(), *before);
            }
            None => {
                cleared.insert(group.clone());
            }
        }
    }
    (!groups.is_empty()).then_some(OpenDeploy {
        env: deploy.env,
        kind: DeployKind::Rollback,
        groups,
        cleared,
        because: Some(id),
    })
}
