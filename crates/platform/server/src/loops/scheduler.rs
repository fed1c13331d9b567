//! The planner's driver: plans on the newest state, submits what follows.
//!
//! Woken by whatever was appended, and every second because time passes too.
//! What was planned on a state that has moved on is refused step by step; the
//! next pass plans it anew. Never keeps anything between two passes.

use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Fence, Notice, Outcome};
use fluffy_planner::action::{Action, Step};
use fluffy_planner::model::State;
use futures_util::future::join_all;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::liveness;
use crate::machine::Reply;
use crate::platform::Platform;
use crate::vitals::Vitals;

/// How long nothing may happen before the next pass.
const TICK: Duration = Duration::from_secs(1);
/// Passes come no closer: a burst of events is one reason to plan.
const SPACING: Duration = Duration::from_millis(10);

pub(super) fn run(platform: Platform, fence: Fence) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let mut positions = platform.sequencer().positions();
        loop {
            positions.mark_unchanged();
            // What the pass itself led to may be the reason for the next.
            if !pass(&platform, &fence).await {
                // The channel lives as long as the platform.
                let _ = timeout(TICK, positions.changed()).await;
            }
            sleep(SPACING).await;
        }
    })
}

/// The routing that every live edge goes by; none if there is nobody to ask.
///
/// What is on its way out may end once they all know it.
async fn edges(platform: &Platform) -> Option<u64> {
    let routes = platform
        .sequencer()
        .read(|state| !state.runtime.routes.is_empty());
    if !routes {
        return None;
    }
    match Vitals::new(platform.aside().clone()).all().await {
        Ok(beats) => liveness::routing(&beats),
        // Nobody is known to know anything: each has its five seconds.
        Err(_) => Some(0),
    }
}

/// Adds which images nodes need not fetch; whether there are any.
async fn add_images(platform: &Platform, plan: &mut State) -> bool {
    // Without it the plan is as good, and slower to start.
    let said = Vitals::new(platform.aside().clone()).images().await;
    let mut added = false;
    for (id, images) in said.unwrap_or_default() {
        if let Some(node) = plan.nodes.get_mut(&id) {
            added |= !images.is_empty();
            node.images = images;
        }
    }
    added
}

/// Plans once and submits all steps; whether the state has moved on since.
async fn pass(platform: &Platform, fence: &Fence) -> bool {
    let edges = edges(platform).await;
    // A copy, so that planning keeps nobody waiting.
    let (plan, seq) = platform
        .sequencer()
        .read(|state| (state.runtime.planner_input(edges), state.seq));
    let now = platform.clock().now();
    let planned = spawn_blocking(move || (fluffy_planner::plan(&plan, now), plan)).await;
    let Ok((mut steps, mut plan)) = planned else {
        return false;
    };
    // Where images are only matters to whoever is looked for a place for.
    let places = |step: &Step| {
        step.actions
            .iter()
            .any(|it| matches!(it, Action::Allocate(_)))
    };
    if steps.iter().any(places) && add_images(platform, &mut plan).await {
        let planned = spawn_blocking(move || fluffy_planner::plan(&plan, now)).await;
        let Ok(better) = planned else { return false };
        steps = better;
    }
    let submitted = steps.into_iter().map(|step| {
        let notice = Notice::Runtime(RuntimeNotice::Step(step));
        platform.notice("scheduler", Some(fence.clone()), notice)
    });
    let mut moved = false;
    for answer in join_all(submitted).await {
        match answer {
            Ok(answer) => {
                moved |= answer.position.seq > seq;
                if let Reply::Wrote(Outcome::Refused(refusal)) = answer.reply {
                    tracing::debug!(why = refusal.why, "a step was refused");
                }
            }
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a step was not decided"
            ),
        }
    }
    moved
}
