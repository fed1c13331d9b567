//! The corpus: every attempt, by family, one file each.
//!
//! To add one: write its file, name it in its family's `mod.rs`; the test
//! below finds what was forgotten. Must never hold an attempt that could harm
//! a machine on which its guard fails: attempts bound themselves.

mod archive;
mod archives;
mod clean_up;
mod exhaustion;
mod kernel;
mod leaking_in;
mod look;
mod paths;
mod persistence;
mod prelude;
mod privilege;
pub(crate) mod request;
mod talking_out;

use crate::attack::Attack;
use crate::witness;

/// Every attack, by family.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    [
        paths::ATTACKS,
        privilege::ATTACKS,
        kernel::ATTACKS,
        exhaustion::ATTACKS,
        talking_out::ATTACKS,
        leaking_in::ATTACKS,
        persistence::ATTACKS,
        archives::ATTACKS,
        clean_up::ATTACKS,
    ]
    .into_iter()
    .flatten()
}

/// The attack of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Attack> {
    all().find(|attack| attack.name == name)
}

/// The attack or the witness of this name.
pub(crate) fn find_or_witness(name: &str) -> Option<&'static Attack> {
    [&witness::MERGE, &witness::EGRESS]
        .into_iter()
        .find(|witness| witness.name == name)
        .or_else(|| find(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::attack::Family;
    use crate::guard::Guard;

    #[test]
    fn there_are_at_least_66_with_names_of_their_own() {
        let names: BTreeSet<_> = all().map(|attack| attack.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 66, "{}", names.len());
    }

    #[test]
    fn every_family_and_every_guard_is_tried() {
        for family in Family::ALL {
            assert!(all().any(|attack| attack.family == family), "{family}");
        }
        for guard in Guard::ALL {
            let named = |attack: &Attack| attack.guard == *guard || attack.also.contains(guard);
            assert!(all().any(named), "{guard}");
        }
    }

    #[test]
    fn every_file_is_registered_under_its_own_name() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/corpus");
        let mut files = BTreeSet::new();
        for family in Family::ALL {
            let folder = corpus.join(family.name().replace('-', "_"));
            for entry in std::fs::read_dir(folder).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name != "mod.rs" {
                    let name = name.strip_suffix(".rs").unwrap().replace('_', "-");
                    files.insert((family, name));
                }
            }
        }
        let registered: BTreeSet<_> = all()
            .map(|attack| (attack.family, attack.name.to_owned()))
            .collect();
        assert_eq!(files, registered);
    }

    #[test]
    fn every_attack_says_what_it_would_gain() {
        for attack in all() {
            let what = attack.what;
            assert!(what.len() > 15 && !what.ends_with('.'), "{}", attack.name);
            assert!(!what.contains('|'), "{} would break a table", attack.name);
        }
    }
}
