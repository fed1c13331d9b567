//! What time does: sessions end, ranges are freed, jobs of nodes that are gone
//! fail, releases retire.

use std::collections::BTreeSet;
use std::time::Duration;

use fluffy_base::id::ReleaseId;
use fluffy_planner::lifecycle::{Cause, DeployState, ExecState, JobState, ReleaseState};
use fluffy_planner::model::Desired;

use super::reports::{of_restore, of_snapshot};
use super::{JobReport, Noticed, Said};
use crate::call::{Call, Fact};
use crate::event::{
    ClusterIpv4PoolSet, ClusterReaderVersionSet, ExecSessionEnded, InstanceCollected,
    ReleaseRetired,
};
use crate::refusal::Refusal;
use crate::runtime::ipam::ipv4_range;
use crate::runtime::steps::scope;
use crate::state::{Owner, State};

/// How long a client has to connect after the token's time.
const CONNECT: Duration = Duration::from_secs(30);

/// How long whoever carries a session has to say how it ended.
const LATE: Duration = Duration::from_secs(60);

/// How long and how often a release must have been out of use to retire.
const RETIRE: Duration = Duration::from_secs(30 * 24 * 3600);
const SUCCEEDED: usize = 20;

/// The most that one pass says, so that an append stays small.
const MOST: usize = 200;

pub(super) fn upkeep(state: &State, call: &Call<'_>) -> Said {
    let mut facts = Vec::new();
    sessions(state, call, &mut facts);
    reclaim(state, &mut facts);
    retire(state, call, &mut facts);
    facts.truncate(MOST);
    jobs(state, &mut facts);
    Said::facts(facts)
}

fn sessions(state: &State, call: &Call<'_>, facts: &mut Vec<Fact>) {
    for (id, session) in &state.runtime.execs {
        let expired = session.expires_at.map(|until| until.after(CONNECT));
        let longest = Duration::from_secs(session.max_seconds);
        // Whoever carries it ends it by itself, and knows more.
        let over = session
            .connected_at
            .map(|since| since.after(longest + LATE));
        let end_reason = match session.state {
            ExecState::Granted if expired.is_some_and(|at| at <= call.now) => "connect_timeout",
            ExecState::Connected if over.is_some_and(|at| at <= call.now) => "timeout",
            _ => continue,
        };
        let ended = ExecSessionEnded {
            exit_code: None,
            end_reason: end_reason.to_owned(),
            bytes_in: 0,
            bytes_out: 0,
        };
        let scope = scope(&state.runtime, session.env);
        facts.push(Fact::new(id, ended.into()).of(&scope));
    }
}

/// Nobody will say that an instance of a node is gone which is out for good.
fn reclaim(state: &State, facts: &mut Vec<Fact>) {
    let plan = &state.runtime.plan;
    for (id, instance) in &plan.instances {
        let stopped = matches!(instance.desired, Desired::Stopped { .. });
        if stopped && plan.is_fenced(instance.node) {
            let scope = scope(&state.runtime, instance.group.env);
            facts.push(Fact::new(id, InstanceCollected {}.into()).of(&scope));
        }
    }
}

/// Nor how a snapshot or a restore ended that was such a node's.
fn jobs(state: &State, facts: &mut Vec<Fact>) {
    let runtime = &state.runtime;
    let lost = |node, state: JobState| !state.is_final() && runtime.plan.is_fenced(node);
    let failed = JobReport::Failed("node_lost".to_owned());
    let snapshots = runtime.snapshots.iter();
    let snapshots = snapshots.filter(|(_, it)| lost(it.node, it.state));
    let snapshots = snapshots.map(|(id, it)| of_snapshot((*id, it), &failed));
    let restores = runtime.restores.iter();
    let restores = restores.filter(|(_, it)| lost(it.node, it.state));
    let restores = restores.map(|(id, it)| of_restore(state, (*id, it), &failed));
    for ended in snapshots.chain(restores) {
        // A restore ends with its volume, or not yet.
        if facts.len() >= MOST {
            return;
        }
        facts.extend(ended.unwrap_or_default());
    }
}

fn retire(state: &State, call: &Call<'_>, facts: &mut Vec<Fact>) {
    let runtime = &state.runtime;
    let mut kept: BTreeSet<ReleaseId> = BTreeSet::new();
    for env in runtime.envs.values() {
        kept.extend(env.desired.values().map(|wanted| wanted.release));
        let deploys = env
            .deploys
            .iter()
            .rev()
            .filter_map(|id| runtime.deploys.get(id));
        let succeeded = deploys
            .clone()
            .filter(|deploy| deploy.state == DeployState::Succeeded);
        kept.extend(
            succeeded
                .take(SUCCEEDED)
                .filter_map(|deploy| deploy.release),
        );
        // What a deploy may go back to.
        let open = deploys.filter(|deploy| !deploy.state.is_final());
        kept.extend(open.flat_map(|deploy| {
            let before = deploy.before.values().flatten();
            before.map(|wanted| wanted.release)
        }));
    }
    kept.extend(runtime.instances.values().map(|instance| instance.release));
    for (id, release) in &runtime.releases {
        // Most are retired already: what is looked up by text comes last.
        let can = ReleaseState::can(Some(release.state), ReleaseState::Retired, Cause::Retention);
        if can.is_err() || kept.contains(id) {
            continue;
        }
        let created = state.meta("release", &id.to_string());
        if created.is_some_and(|it| call.now.since(it.created_at) >= RETIRE) {
            let owner = Owner {
                org: Some(release.org),
                app: Some(release.app),
                env: None,
            };
            facts.push(Fact::new(id, ReleaseRetired {}.into()).of(&owner.scope()));
        }
    }
}

/// The operator's public addresses, where they changed.
pub(super) fn pool(state: &State, ranges: &[String]) -> Noticed {
    let parsed: Option<Vec<_>> = ranges.iter().map(|range| ipv4_range(range)).collect();
    let Some(parsed) = parsed else {
        let why = "a range is an address, `from-to` or `address/length`";
        return Err(Refusal::new("invalid_argument", why, ""));
    };
    if parsed == state.runtime.ipam.public {
        return Ok(Said::default());
    }
    let set = ClusterIpv4PoolSet {
        ranges: ranges.to_vec(),
    };
    Ok(Said::facts(vec![Fact::new("cluster", set.into())]))
}

/// What every replica can read, where that is more than before: what was
/// appended since is never taken back.
pub(super) fn readers(state: &State, version: u64) -> Said {
    let cluster = &state.runtime.cluster;
    // A platform begins with its first event and no other.
    if cluster.ledger.is_none() || version <= cluster.reader_version {
        return Said::default();
    }
    let set = ClusterReaderVersionSet {
        min_version: version,
    };
    Said::facts(vec![Fact::new("cluster", set.into())])
}
