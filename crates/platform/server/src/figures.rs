//! Figures of the platform: which addresses are scarce, and what keys have to do.
//!
//! What is there now follows from the state, so every replica says the same;
//! what is counted, each counts of what it did itself since its start. Labels
//! are of fixed sets: nothing of a tenant is in them. Next: `backend`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use fluffy_base::Timestamp;
use fluffy_control::runtime::notice::NO_ADDRESS;
use fluffy_control::{Outcome, State};

use crate::machine::Reply;
use crate::safe::live_keys;

/// How often there was no address of a kind for somebody, here.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    nodes: AtomicU64,
    instances: AtomicU64,
    ipv4: AtomicU64,
}

impl Figures {
    /// Counts what could not be given.
    pub(crate) fn note(&self, reply: &Reply) {
        let count = match reply {
            Reply::Wrote(Outcome::Refused(refusal)) => match refusal.code {
                "ipam_unavailable" => &self.nodes,
                "ipv4_pool_exhausted" => &self.ipv4,
                _ => return,
            },
            Reply::Wrote(Outcome::Done { subject, .. }) if subject.kind == NO_ADDRESS => {
                &self.instances
            }
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// All figures in the form of Prometheus, with how often a key was missed.
    pub(crate) fn text(&self, state: &State, now: Timestamp, missed: u64) -> String {
        let uses = state.runtime.ipam.uses(now);
        let mut text = String::from("# TYPE fluffy_ipam_used_ratio gauge\n");
        for it in &uses {
            // Whole millionths need no floating point.
            let ratio = u128::from(it.taken) * 1_000_000 / u128::from(it.size.max(1));
            let (whole, rest) = (ratio / 1_000_000, ratio % 1_000_000);
            let category = it.category;
            let _ = writeln!(
                text,
                "fluffy_ipam_used_ratio{{category=\"{category}\"}} {whole}.{rest:06}"
            );
        }
        text.push_str("# TYPE fluffy_ipam_quarantined gauge\n");
        for it in &uses {
            let (category, resting) = (it.category, it.resting);
            let _ = writeln!(
                text,
                "fluffy_ipam_quarantined{{category=\"{category}\"}} {resting}"
            );
        }
        text.push_str("# TYPE fluffy_ipam_allocation_failures_total counter\n");
        let failures = [
            ("node", &self.nodes),
            ("instance", &self.instances),
            ("ipv4", &self.ipv4),
        ];
        for (category, count) in failures {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "fluffy_ipam_allocation_failures_total{{category=\"{category}\"}} {count}"
            );
        }
        let _ = write!(
            text,
            "# TYPE fluffy_key_rewrap_remaining gauge\nfluffy_key_rewrap_remaining {}\n\
             # TYPE fluffy_key_unavailable_total counter\nfluffy_key_unavailable_total {missed}\n",
            to_rewrap(state)
        );
        text
    }
}

/// How many versions of secrets are sealed with another key than the newest.
fn to_rewrap(state: &State) -> usize {
    let Some(newest) = live_keys(state).first().copied() else {
        return 0;
    };
    let versions = state.runtime.bundles.values().flat_map(|it| &it.versions);
    versions.filter(|it| it.master_key != newest).count()
}

#[cfg(test)]
mod tests {
    use fluffy_control::{Refusal, Subject};

    use super::*;

    #[test]
    fn addresses_that_nobody_got_are_counted_by_kind() {
        let figures = Figures::default();
        let refused = |code| Reply::Wrote(Outcome::Refused(Refusal::new(code, "", "")));
        let stepped = |kind| {
            Reply::Wrote(Outcome::Done {
                status: 200,
                subject: Subject::of(kind, ""),
            })
        };
        figures.note(&refused("ipam_unavailable"));
        for _ in 0..2 {
            figures.note(&stepped(NO_ADDRESS));
            figures.note(&refused("ipv4_pool_exhausted"));
        }
        figures.note(&stepped("ipv4"));
        figures.note(&refused("conflict"));
        let text = figures.text(&State::default(), Timestamp::from_micros(0), 7);
        for (category, count) in [("node", 1), ("instance", 2), ("ipv4", 2)] {
            let name = "fluffy_ipam_allocation_failures_total";
            let line = format!("{name}{{category=\"{category}\"}} {count}\n");
            assert!(text.contains(&line), "{text}");
            // Of nothing nothing is used.
            let line = format!("fluffy_ipam_used_ratio{{category=\"{category}\"}} 0.000000\n");
            assert!(text.contains(&line), "{text}");
        }
        assert!(
            text.ends_with("\nfluffy_key_unavailable_total 7\n"),
            "{text}"
        );
    }
}
