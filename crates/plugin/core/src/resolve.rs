//! Which plugins start in which order, and which cannot at all.
//!
//! A plugin whose dependency is missing, of another version or behind itself
//! is rejected by name with the way that leads there; all others go on. The
//! order in which plugins are given never matters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use semver::{Version, VersionReq};

/// What is known of one plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its version.
    pub version: Version,
    /// What must run before it.
    pub dependencies: BTreeMap<String, VersionReq>,
}

/// Who starts when, and who does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolution {
    /// The plugins that can start; each after all it depends on.
    pub order: Vec<String>,
    /// The others, each with its reason.
    pub rejected: BTreeMap<String, Unresolved>,
}

/// Why a plugin cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// There is no such plugin.
    #[error("it needs `{dependency}` {wanted}, which is not installed")]
    Missing {
        /// What it needs.
        dependency: String,
        /// In which versions.
        wanted: VersionReq,
    },
    /// There is another version of it.
    #[error("it needs `{dependency}` {wanted}, and {found} is installed")]
    OutOfRange {
        /// What it needs.
        dependency: String,
        /// In which versions.
        wanted: VersionReq,
        /// Which there is.
        found: Version,
    },
    /// It waits for itself.
    #[error("it waits for itself: {way}")]
    Cycle {
        /// From the plugin back to itself.
        way: Way,
    },
    /// What it needs is rejected itself.
    #[error("it needs what cannot start: {way}")]
    Behind {
        /// From the plugin to the one that is rejected for its own sake.
        way: Way,
    },
}

/// From one plugin to another, each needing the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The first names of it, or all.
    pub names: Vec<String>,
    /// Where it ends.
    pub end: String,
}

/// How many names of a way are kept; a hostile one is as long as the list.
const SHOWN: usize = 8;

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(" → "))?;
        match self.names.len() > 1 && self.names.last() == Some(&self.end) {
            true => Ok(()),
            false => write!(f, " → … → {}", self.end),
        }
    }
}

/// Puts plugins in the order in which they can start.
#[must_use]
pub fn resolve(candidates: &BTreeMap<String, Candidate>) -> Resolution {
    let mut resolution = Resolution::default();
    for (name, candidate) in candidates {
        if let Some(reason) = unmet(candidate, candidates) {
            resolution.rejected.insert(name.clone(), reason);
        }
    }
    let placed = place(candidates, &mut resolution);
    // Whoever was not placed has a dependency that was not placed either.
    let mut waiting = BTreeMap::new();
    for (name, candidate) in candidates {
        let mut needs = candidate.dependencies.keys();
        if !placed.contains(name)
            && !resolution.rejected.contains_key(name)
            && let Some(need) = needs.find(|need| !placed.contains(need))
        {
            waiting.insert(name, need);
        }
    }
    for (name, cause) in causes(&waiting) {
        let end = match cause {
            Cause::Circle => name,
            Cause::Other(end) => end,
        };
        let way = way(name, end, &waiting);
        let reason = match cause {
            Cause::Circle => Unresolved::Cycle { way },
            Cause::Other(_) => Unresolved::Behind { way },
        };
        resolution.rejected.insert(name.clone(), reason);
    }
    resolution
}

/// The first dependency that is not there as it is wanted.
fn unmet(candidate: &Candidate, all: &BTreeMap<String, Candidate>) -> Option<Unresolved> {
    candidate
        .dependencies
        .iter()
        .find_map(|(dependency, wanted)| {
            let (dependency, wanted) = (dependency.clone(), wanted.clone());
            match all.get(&dependency) {
                None => Some(Unresolved::Missing { dependency, wanted }),
                Some(found) if !wanted.matches(&found.version) => Some(Unresolved::OutOfRange {
                    dependency,
                    wanted,
                    found: found.version.clone(),
                }),
                Some(_) => None,
            }
        })
}

/// Places whoever waits for nobody, and then whoever waited only for those.
fn place<'c>(
    candidates: &'c BTreeMap<String, Candidate>,
    resolution: &mut Resolution,
) -> BTreeSet<&'c String> {
    let mut missing: BTreeMap<&String, usize> = BTreeMap::new();
    let mut followers: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    let mut ready = BTreeSet::new();
    for (name, candidate) in candidates {
        if resolution.rejected.contains_key(name) {
            continue;
        }
        for dependency in candidate.dependencies.keys() {
            followers.entry(dependency).or_default().push(name);
        }
        match candidate.dependencies.len() {
            0 => {
                ready.insert(name);
            }
            count => {
                missing.insert(name, count);
            }
        }
    }
    let mut placed = BTreeSet::new();
    while let Some(name) = ready.pop_first() {
        resolution.order.push(name.clone());
        placed.insert(name);
        for follower in followers.get(name).into_iter().flatten() {
            if let Some(count) = missing.get_mut(follower) {
                *count -= 1;
                if *count == 0 {
                    ready.insert(follower);
                }
            }
        }
    }
    placed
}

/// Why somebody waits for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause<'c> {
    /// It is on a circle.
    Circle,
    /// This one is rejected, or on a circle.
    Other(&'c String),
}

/// Where waiting leads to, looked up once for each.
fn causes<'c>(waiting: &BTreeMap<&'c String, &'c String>) -> BTreeMap<&'c String, Cause<'c>> {
    let mut causes = BTreeMap::new();
    for start in waiting.keys() {
        let mut path: Vec<&'c String> = Vec::new();
        let mut been = BTreeMap::new();
        let mut at: &'c String = start;
        let (circle, end) = loop {
            match (causes.get(at), waiting.get(at), been.get(at)) {
                (Some(Cause::Other(end)), _, _) => break (path.len(), *end),
                (Some(Cause::Circle), _, _) | (None, None, _) => break (path.len(), at),
                (None, Some(_), Some(first)) => break (*first, at),
                (None, Some(next), None) => {
                    been.insert(at, path.len());
                    path.push(at);
                    at = next;
                }
            }
        };
        for (index, name) in path.into_iter().enumerate() {
            let cause = match index < circle {
                true => Cause::Other(end),
                false => Cause::Circle,
            };
            causes.insert(name, cause);
        }
    }
    causes
}

fn way(name: &String, end: &String, waiting: &BTreeMap<&String, &String>) -> Way {
    let mut names = vec![name.clone()];
    let mut at = name;
    while let (Some(next), true) = (waiting.get(at), names.len() < SHOWN) {
        names.push((*next).clone());
        at = next;
        if at == end {
            break;
        }
    }
    Way {
        names,
        end: end.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

    fn candidates(rows: &[Row<'_>]) -> BTreeMap<String, Candidate> {
        let row = |(name, version, needs): &Row<'_>| {
            let needs = needs
                .iter()
                .map(|(name, range)| ((*name).to_owned(), range.parse().unwrap()));
            let candidate = Candidate {
                version: version.parse().unwrap(),
                dependencies: needs.collect(),
            };
            ((*name).to_owned(), candidate)
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn each_starts_after_what_it_needs() {
        let all = candidates(&[
            ("app", "1.0.0", &[("store", "^1"), ("log", "*")]),
            ("log", "0.3.0", &[]),
            ("store", "1.4.2", &[("log", ">=0.2, <0.4")]),
        ]);
        let resolution = resolve(&all);
        assert_eq!(resolution.order, ["log", "store", "app"]);
        assert!(resolution.rejected.is_empty());
    }

    #[test]
    fn what_cannot_start_is_named_with_the_way_there_and_others_go_on() {
        let all = candidates(&[
            ("alone", "1.0.0", &[]),
            ("behind", "1.0.0", &[("lost", "*")]),
            ("further", "1.0.0", &[("alone", "*"), ("behind", "*")]),
            ("into", "1.0.0", &[("round", "*")]),
            ("lost", "1.0.0", &[("nobody", "^2")]),
            ("old", "1.0.0", &[("alone", "^2")]),
            ("round", "1.0.0", &[("trip", "*")]),
            ("self", "1.0.0", &[("self", "*")]),
            ("trip", "1.0.0", &[("round", "*")]),
        ]);
        let resolution = resolve(&all);
        assert_eq!(resolution.order, ["alone"]);
        let said: Vec<String> = resolution
            .rejected
            .iter()
            .map(|(name, reason)| format!("{name}: {reason}"))
            .collect();
        assert_eq!(
            said,
            [
                "behind: it needs what cannot start: behind → lost",
                "further: it needs what cannot start: further → behind → lost",
                "into: it needs what cannot start: into → round",
                "lost: it needs `nobody` ^2, which is not installed",
                "old: it needs `alone` ^2, and 1.0.0 is installed",
                "round: it waits for itself: round → trip → round",
                "self: it waits for itself: self → self",
                "trip: it waits for itself: trip → round → trip",
            ]
        );
    }

    #[test]
    fn a_chain_of_ten_thousand_is_no_trouble() {
        let name = |number: usize| format!("p{number:05}");
        let mut all = BTreeMap::new();
        for number in 0..10_000 {
            let dependencies = BTreeMap::from([(name(number + 1), VersionReq::STAR)]);
            let version = Version::new(1, 0, 0);
            all.insert(
                name(number),
                Candidate {
                    version,
                    dependencies,
                },
            );
        }
        let rejected = resolve(&all).rejected;
        assert_eq!(rejected.len(), 10_000);
        assert_eq!(
            rejected["p00000"].to_string(),
            "it needs what cannot start: p00000 → p00001 → p00002 → p00003 → p00004 → p00005 → \
             p00006 → p00007 → … → p09999"
        );
        let version = Version::new(1, 0, 0);
        let dependencies = BTreeMap::new();
        all.insert(
            name(10_000),
            Candidate {
                version,
                dependencies,
            },
        );
        assert_eq!(resolve(&all).order.len(), 10_001);
    }

    /// Whether it can start, by asking everything it needs, and never twice.
    fn can_start(name: &str, all: &BTreeMap<String, Candidate>, above: &mut Vec<String>) -> bool {
        let Some(candidate) = all.get(name) else {
            return false;
        };
        if above.iter().any(|each| each == name) {
            return false;
        }
        above.push(name.to_owned());
        let fine = candidate.dependencies.iter().all(|(dependency, wanted)| {
            let there = all
                .get(dependency)
                .is_some_and(|found| wanted.matches(&found.version));
            there && can_start(dependency, all, above)
        });
        above.pop();
        fine
    }

    fn any_candidates() -> impl Strategy<Value = BTreeMap<String, Candidate>> {
        let names = prop::sample::select(vec!["a", "b", "c", "d", "e", "f", "g"]);
        let needs = prop::collection::btree_map(names.clone(), 1u64..3, 0..3);
        prop::collection::btree_map(names, (1u64..3, needs), 0..7).prop_map(|rows| {
            let row = |(name, (version, needs)): (&str, (u64, BTreeMap<&str, u64>))| {
                let range = |major: u64| format!("^{major}").parse().unwrap();
                let needs = needs
                    .into_iter()
                    .map(|(name, major)| (name.to_owned(), range(major)));
                let candidate = Candidate {
                    version: Version::new(version, 0, 0),
                    dependencies: needs.collect(),
                };
                (name.to_owned(), candidate)
            };
            rows.into_iter().map(row).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

        #[test]
        fn the_order_holds_exactly_those_that_can_start(all in any_candidates()) {
            let Resolution { order, rejected } = resolve(&all);
            for name in all.keys() {
                let fine = can_start(name, &all, &mut Vec::new());
                prop_assert_eq!(order.contains(name), fine, "{}", name);
                prop_assert_eq!(rejected.contains_key(name), !fine, "{}", name);
            }
            prop_assert_eq!(order.len() + rejected.len(), all.len());
            for (at, name) in order.iter().enumerate() {
                let needs = all[name].dependencies.keys();
                prop_assert!(needs.clone().all(|need| order[..at].contains(need)));
            }
            for (name, reason) in &rejected {
                let way = match reason {
                    Unresolved::Missing { dependency, .. } => {
                        prop_assert!(!all.contains_key(dependency));
                        continue;
                    }
                    Unresolved::OutOfRange { dependency, wanted, .. } => {
                        prop_assert!(!wanted.matches(&all[dependency].version));
                        continue;
                    }
                    Unresolved::Cycle { way } => {
                        prop_assert_eq!(&way.end, name);
                        way
                    }
                    Unresolved::Behind { way } => {
                        let further = matches!(rejected[&way.end], Unresolved::Behind { .. });
                        prop_assert!(!further);
                        way
                    }
                };
                prop_assert_eq!((way.names.first(), way.names.last()), (Some(name), Some(&way.end)));
                for pair in way.names.windows(2) {
                    prop_assert!(all[&pair[0]].dependencies.contains_key(&pair[1]));
                    prop_assert!(rejected.contains_key(&pair[1]));
                }
            }
        }
    }
}
