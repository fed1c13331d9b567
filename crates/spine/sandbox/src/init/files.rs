//! Counts the files in private memory, where nobody else limits them.
//!
//! Bubblewrap limits the size of what it mounts, not the number of files in
//! it, and each of those takes memory of the kernel. So its init looks from
//! time to time. Never counts one by one: the kernel knows the number.

use std::path::PathBuf;

use rustix::event::Timespec;

use crate::guard::Guard;
use crate::plan::{Engine, Mount, Plan};

/// How often it is looked at while a command runs.
const EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// The places to look at, each with the most files that may be there.
#[derive(Debug, Default)]
pub(super) struct Files {
    places: Vec<(PathBuf, u64)>,
}

impl Files {
    /// What this plan leaves to be counted: nothing for most engines.
    pub(super) fn of(plan: &Plan) -> Self {
        if plan.engine != Engine::Bwrap || plan.without.lacks(Guard::ScratchLimit) {
            return Self::default();
        }
        let place = |mount: &Mount| match mount {
            Mount::Scratch { inside, inodes, .. } => Some((inside.clone(), *inodes)),
            _ => None,
        };
        Self {
            places: plan.mounts.iter().filter_map(place).collect(),
        }
    }

    /// When to look again; never if there is nothing to look at.
    pub(super) fn pause(&self) -> Option<&'static Timespec> {
        (!self.places.is_empty()).then_some(&EVERY)
    }

    /// Whether there are too many in one place.
    pub(super) fn are_too_many(&self) -> bool {
        self.places.iter().any(|(place, most)| {
            rustix::fs::statvfs(place)
                .is_ok_and(|about| about.f_files.saturating_sub(about.f_ffree) > *most)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_with_more_files_than_allowed_is_found() {
        let of = |most| Files {
            places: vec![("/dev/shm".into(), most)],
        };
        // The directory itself is one.
        assert!(of(0).are_too_many());
        assert!(!of(u64::MAX).are_too_many());
        assert!(of(0).pause().is_some());
    }

    #[test]
    fn nothing_to_count_is_never_too_much() {
        assert!(!Files::default().are_too_many());
        assert!(Files::default().pause().is_none());
    }
}
