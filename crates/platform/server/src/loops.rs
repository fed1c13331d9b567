//! What runs by itself: loops of which one replica at a time does the work.
//!
//! `lease` says who leads. A loop only submits jobs like everyone else, under
//! the fence of its term; it never writes anything by another way.

mod approvals;
pub mod lease;
mod liveness;
mod routes;
mod scheduler;
mod upkeep;

use std::future::Future;
use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_control::{Fence, Notice};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::hostnames::Hostnames;
use crate::platform::Platform;
use lease::{Leases, Term, Timing};

/// Runs the loops of a replica until told to stop.
///
/// Of each loop one replica at a time does the work; this one does its share,
/// and gives up what it leads when it stops.
pub async fn run(platform: Platform, timing: Timing, stop: watch::Receiver<bool>) {
    let mut loops = JoinSet::new();
    let mut start = |name: &'static str, pass: Pass| {
        loops.spawn(lead(platform.clone(), timing, name, pass, stop.clone()));
    };
    start("approvals", Box::new(approvals::run));
    start("liveness", Box::new(liveness::run));
    start("retention", Box::new(upkeep::run));
    start("scheduler", Box::new(scheduler::run));
    while loops.join_next().await.is_some() {}
}

/// Looks up hostnames that wait to be proven, until told to stop.
pub async fn verify_routes(
    platform: Platform,
    timing: Timing,
    hostnames: Hostnames,
    stop: watch::Receiver<bool>,
) {
    let pass = move |platform, fence| routes::run(platform, fence, hostnames.clone());
    lead(platform, timing, "routes-verify", Box::new(pass), stop).await;
}

/// The work of one loop in one term.
type Pass = Box<dyn Fn(Platform, Fence) -> BoxFuture<'static, ()> + Send + Sync>;

/// Leads one loop whenever it can, until told to stop.
async fn lead(
    platform: Platform,
    timing: Timing,
    name: &'static str,
    pass: Pass,
    mut stop: watch::Receiver<bool>,
) {
    let leases = Leases::new(platform.aside().clone(), platform.replica()).with_timing(timing);
    let begin = || platform.lead(name);
    let work = |Term { lease, epoch }| pass(platform.clone(), Fence { lease, epoch });
    tokio::select! {
        () = leases.lead(name, begin, work) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // If that is lost, the lease ends by itself.
    let _ = platform.aside().give_up(name, leases.holder()).await;
}

/// Does something now and then, for as long as the term lasts.
pub(crate) async fn every<F: Future<Output = ()>>(period: Duration, pass: impl Fn() -> F) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        pass().await;
    }
}

/// Submits what a loop noticed; a failure is for the next time.
async fn say(platform: &Platform, part: &str, fence: &Fence, notice: Notice) {
    if let Err(error) = platform.notice(part, Some(fence.clone()), notice).await {
        tracing::warn!(
            part,
            error = &error as &dyn std::error::Error,
            "what a loop noticed was not decided"
        );
    }
}
