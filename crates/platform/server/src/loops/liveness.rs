//! Which nodes are alive: from signs of life to what the state makes of them.
//!
//! A node counts as silent only for as long as somebody could have heard it:
//! after an outage of the database, or in a new term, every silence begins
//! anew, so that no outage of ours takes nodes for lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fluffy_base::id::{NodeId, RouteId};
use fluffy_contract::BoxFuture;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::Vital;
use fluffy_control::{Fence, Notice};

use super::{every, say};
use crate::platform::Platform;
use crate::vitals::{Beat, Vitals};

const PERIOD: Duration = Duration::from_secs(1);
/// An edge that was not heard for so long holds up nobody.
const LIVE: Duration = Duration::from_secs(60);
/// A look that comes later than this after the last one begins anew.
const GAP: Duration = Duration::from_secs(10);

pub(super) fn run(platform: Platform, fence: Fence) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let watch = Mutex::new(Watch::default());
        every(PERIOD, || async {
            let beats = match Vitals::new(platform.aside().clone()).all().await {
                Ok(beats) => beats,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "nodes can't be watched"
                    );
                    return;
                }
            };
            let since = watch
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .look(Instant::now());
            let nodes: Vec<NodeId> = platform
                .sequencer()
                .read(|state| state.runtime.plan.nodes.keys().copied().collect());
            let vitals = vitals(&nodes, &beats, since);
            if !vitals.is_empty() {
                let notice = Notice::Runtime(RuntimeNotice::Liveness(vitals));
                say(&platform, "liveness", &fence, notice).await;
            }
            let routes = platform
                .sequencer()
                .read(|state| !state.runtime.routes.is_empty());
            let loopback = live(&beats).any(|beat| beat.loopback);
            if routes || loopback {
                let notice = RuntimeNotice::Routes {
                    applied: routing(&beats),
                    problems: problems(&beats),
                    loopback,
                };
                say(&platform, "liveness", &fence, Notice::Runtime(notice)).await;
            }
        })
        .await;
    })
}

/// Since when signs of life can be seen without a gap.
#[derive(Debug, Default)]
struct Watch {
    since: Option<Instant>,
    last: Option<Instant>,
}

impl Watch {
    /// Notes a look; for how long there has been no gap.
    fn look(&mut self, now: Instant) -> Duration {
        if self.last.is_none_or(|last| now.duration_since(last) > GAP) {
            self.since = Some(now);
        }
        self.last = Some(now);
        self.since
            .map_or(Duration::ZERO, |since| now.duration_since(since))
    }
}

/// How every node is, of which nothing is known from before `since`.
fn vitals(
    nodes: &[NodeId],
    beats: &BTreeMap<NodeId, (Duration, Beat)>,
    since: Duration,
) -> BTreeMap<NodeId, Vital> {
    let vital = |node: &NodeId| {
        let (age, beat) = beats.get(node).cloned().unwrap_or((since, Beat::default()));
        let vital = Vital {
            silent: age.min(since),
            disk_percent: beat.disk_percent,
            unreachable: beat.unreachable,
            acknowledged: beat.acknowledged,
            clock_off: Duration::from_millis(beat.clock_off_ms),
            unfit: (!beat.unfit.is_empty()).then_some(beat.unfit),
        };
        (*node, vital)
    };
    nodes.iter().map(vital).collect()
}

type Beats = BTreeMap<NodeId, (Duration, Beat)>;

/// What was heard of edges and nodes that count.
fn live(beats: &Beats) -> impl Iterator<Item = &Beat> {
    let live = beats.values().filter(|(age, _)| *age < LIVE);
    live.map(|(_, beat)| beat)
}

/// The lowest routing that every live edge goes by; none without an edge.
pub(super) fn routing(beats: &Beats) -> Option<u64> {
    live(beats).filter_map(|beat| beat.routing).min()
}

/// The routes that some live edge cannot serve, and why.
fn problems(beats: &Beats) -> BTreeMap<RouteId, String> {
    let problems = live(beats).flat_map(|beat| &beat.problems);
    let known = problems.filter_map(|(route, why)| Some((route.parse().ok()?, why.clone())));
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nobody_is_silent_for_longer_than_somebody_listened() {
        let (quiet, unheard) = (NodeId::from_bits(1), NodeId::from_bits(2));
        let beats = BTreeMap::from([(quiet, (300 * SECOND, Beat::default()))]);
        let silent = |since| {
            let vitals = vitals(&[quiet, unheard], &beats, since);
            (vitals[&quiet].silent, vitals[&unheard].silent)
        };
        assert_eq!(silent(3 * SECOND), (3 * SECOND, 3 * SECOND));
        assert_eq!(silent(400 * SECOND), (300 * SECOND, 400 * SECOND));
    }

    #[test]
    fn a_gap_begins_every_silence_anew() {
        let mut watch = Watch::default();
        let start = Instant::now();
        assert_eq!(watch.look(start), Duration::ZERO);
        assert_eq!(watch.look(start + 5 * SECOND), 5 * SECOND);
        assert_eq!(watch.look(start + 14 * SECOND), 14 * SECOND);
        let after = start + 14 * SECOND + GAP + SECOND;
        assert_eq!(watch.look(after), Duration::ZERO);
        assert_eq!(watch.look(after + SECOND), SECOND);
    }

    #[test]
    fn an_edge_that_is_gone_holds_up_nobody() {
        let beat = |routing| Beat {
            routing,
            ..Beat::default()
        };
        let beats = [
            (SECOND, beat(Some(7))),
            (2 * SECOND, beat(Some(9))),
            (100 * SECOND, beat(Some(3))),
            (SECOND, beat(None)),
        ];
        let beats = (1..).map(NodeId::from_bits).zip(beats).collect();
        assert_eq!(routing(&beats), Some(7));
        assert_eq!(routing(&BTreeMap::new()), None);
    }

    #[test]
    fn what_one_live_edge_cannot_serve_counts() {
        let route = RouteId::from_bits(7);
        let beat = |route: String, why: &str| Beat {
            problems: vec![(route, why.to_owned())],
            ..Beat::default()
        };
        let gone = RouteId::from_bits(8).to_string();
        let beats = [
            (SECOND, beat(route.to_string(), "bind_failed")),
            (SECOND, beat("no id".to_owned(), "bind_failed")),
            (100 * SECOND, beat(gone, "bind_failed")),
            (SECOND, Beat::default()),
        ];
        let beats = (1..).map(NodeId::from_bits).zip(beats).collect();
        let found = problems(&beats);
        assert_eq!(found, BTreeMap::from([(route, "bind_failed".to_owned())]));
    }
}
