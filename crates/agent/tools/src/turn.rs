//! The order of the calls of one model turn.
//!
//! Pure. Calls run beside each other unless they touch the same place and one
//! of them writes; those run in the order in which the model made them.

use std::borrow::Cow;

use fluffy_contract::tool::{Access, Area, CallPlan, Touch};
use fluffy_policy::path::normalise;

/// Which calls of a turn wait for which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnPlan {
    waits: Vec<Vec<usize>>,
}

impl TurnPlan {
    /// Orders the calls of a turn.
    #[must_use]
    pub fn of(calls: &[&CallPlan]) -> Self {
        let areas: Vec<Vec<(Access, Place)>> = calls
            .iter()
            .map(|call| call.touches.iter().map(place).collect())
            .collect();
        let waits = areas.iter().enumerate().map(|(index, own)| {
            let earlier = areas.iter().take(index).enumerate();
            let conflicting = earlier.filter(|(_, other)| conflict(own, other));
            conflicting.map(|(other, _)| other).collect()
        });
        Self {
            waits: waits.collect(),
        }
    }

    /// The earlier calls that must have ended before this one begins.
    #[must_use]
    pub fn waits_for(&self, call: usize) -> &[usize] {
        self.waits.get(call).map_or(&[], Vec::as_slice)
    }

    /// Whether a call may begin, given which ones have ended.
    #[must_use]
    pub fn is_ready(&self, call: usize, ended: &[bool]) -> bool {
        let has_ended = |other: &usize| ended.get(*other).copied().unwrap_or(false);
        self.waits_for(call).iter().all(has_ended)
    }
}

/// A part of the project in the spelling that is compared.
enum Place {
    Everything,
    Below(String),
}

fn place(touch: &Touch) -> (Access, Place) {
    let place = match &touch.area {
        Area::Everything => Place::Everything,
        // What has no normal form could be anything. Case does not count, for
        // on some file systems it does not.
        Area::Below(path) => match normalise(path).map(Cow::into_owned) {
            Ok(normal) => Place::Below(normal.to_lowercase()),
            Err(_) => Place::Everything,
        },
    };
    (touch.access, place)
}

fn conflict(one: &[(Access, Place)], other: &[(Access, Place)]) -> bool {
    one.iter().any(|(access, place)| {
        other.iter().any(|(other_access, other_place)| {
            (*access == Access::Write || *other_access == Access::Write)
                && overlap(place, other_place)
        })
    })
}

fn overlap(one: &Place, other: &Place) -> bool {
    match (one, other) {
        (Place::Everything, _) | (_, Place::Everything) => true,
        (Place::Below(one), Place::Below(other)) => is_within(one, other) || is_within(other, one),
    }
}

fn is_within(path: &str, directory: &str) -> bool {
    directory == "/"
        || path
            .strip_prefix(directory)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(access: Access, path: Option<&str>) -> CallPlan {
        let area = path.map_or(Area::Everything, |path| Area::Below(path.to_owned()));
        CallPlan {
            needs: Vec::new(),
            touches: vec![Touch { access, area }],
        }
    }

    fn read(path: &str) -> CallPlan {
        call(Access::Read, Some(path))
    }

    fn write(path: &str) -> CallPlan {
        call(Access::Write, Some(path))
    }

    #[track_caller]
    fn waits(calls: &[CallPlan], expected: &[&[usize]]) {
        let plan = TurnPlan::of(&calls.iter().collect::<Vec<_>>());
        let waits: Vec<&[usize]> = (0..calls.len()).map(|call| plan.waits_for(call)).collect();
        assert_eq!(waits, expected);
    }

    #[test]
    fn only_overlapping_writes_wait() {
        waits(&[read("/a"), read("/a"), read("/")], &[&[], &[], &[]]);
        waits(&[write("/a"), write("/b"), write("/ab")], &[&[], &[], &[]]);
        waits(
            &[write("/a"), read("/a"), write("/a")],
            &[&[], &[0], &[0, 1]],
        );
        waits(
            &[write("/src/a"), read("/src"), read("/")],
            &[&[], &[0], &[0]],
        );
        waits(&[read("/src/a"), write("/src")], &[&[], &[0]]);
        // One spelling, and names that are one where case does not count.
        waits(&[write("/./A"), write("/a/")], &[&[], &[0]]);
        waits(&[write("/../a"), read("/b")], &[&[], &[0]]);
    }

    #[test]
    fn a_command_is_a_wall_between_calls() {
        let shell = call(Access::Write, None);
        waits(
            &[read("/a"), shell, read("/a"), read("/b")],
            &[&[], &[0], &[1], &[1]],
        );
    }

    proptest! {
        #[test]
        fn whatever_ends_first_no_two_conflicting_calls_run_at_once(
            calls in proptest::collection::vec((any::<bool>(), "(/[ab]){0,3}"), 0..12),
            picks in proptest::collection::vec(any::<prop::sample::Index>(), 64),
        ) {
            let plans: Vec<CallPlan> = calls
                .iter()
                .map(|(writes, path)| {
                    let access = if *writes { Access::Write } else { Access::Read };
                    call(access, Some(if path.is_empty() { "/" } else { path }))
                })
                .collect();
            let plan = TurnPlan::of(&plans.iter().collect::<Vec<_>>());
            let mut ended = vec![false; calls.len()];
            let mut begun = vec![false; calls.len()];
            for pick in picks {
                for (call, begun) in begun.iter_mut().enumerate() {
                    *begun = *begun || plan.is_ready(call, &ended);
                }
                let running: Vec<usize> = (0..calls.len()).filter(|c| begun[*c] && !ended[*c]).collect();
                if running.is_empty() {
                    break;
                }
                for one in &running {
                    for other in &running {
                        let both = |c: &usize| [place(&plans[*c].touches[0])];
                        prop_assert!(one == other || !conflict(&both(one), &both(other)));
                    }
                }
                ended[running[pick.index(running.len())]] = true;
            }
            prop_assert!(ended.iter().all(|ended| *ended), "every call gets its turn");
        }
    }
}
