//! Random trees and random edits: merging equals having edited directly.

use std::fmt::Write;

use fluffy_test_kit::{Seed, campaign};

use crate::support::{Stage, kinds, merge, merge_permit};

/// Numbers from a seed, one after the other.
struct Dice<'a> {
    seed: &'a Seed,
    step: u64,
}

impl Dice<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        self.step += 1;
        self.seed.choice(self.step) % limit
    }

    fn one_of<'t>(&mut self, from: &[&'t str]) -> &'t str {
        let at = self.below(from.len() as u64);
        from[usize::try_from(at).unwrap()]
    }

    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "dir", "sub", "n m"];
        let depth = 1 + self.below(3);
        let names: Vec<&str> = (0..depth).map(|_| self.one_of(&names)).collect();
        names.join("/")
    }
}

/// A script whose every line may fail; what it does is the same everywhere.
fn edits(dice: &mut Dice<'_>, count: u64) -> String {
    let mut script = String::from("exec 2>/dev/null; set +e\n");
    for number in 0..count {
        let (one, other) = (dice.path(), dice.path());
        let line = match dice.below(12) {
            0..=3 => format!("mkdir -p \"$(dirname '{one}')\"; echo {number} >'{one}'"),
            4 => format!("echo {number} >>'{one}'"),
            5 => format!("rm -rf '{one}'"),
            6 => format!("mkdir -p '{one}'"),
            7 => format!("mv -T '{one}' '{other}'"),
            8 => format!("chmod {} '{one}'", dice.one_of(&["644", "755", "600"])),
            9 => format!(
                "test -e '{one}' || ln -s {} '{one}'",
                dice.one_of(&["a", "b", "dir"])
            ),
            10 => format!("test -f '{one}' && cp '{one}' '{other}'"),
            _ => format!("printf '\\000{number}' >'{one}'"),
        };
        writeln!(script, "{line}").unwrap();
    }
    // A directory that lost its execute bit could not be entered by everyone.
    script.push_str("find . -type d -exec chmod 755 {} +; true\n");
    script
}

#[test]
fn merging_equals_editing_directly() {
    let seed = Seed::from_environment();
    let mut compared = 0;
    for case in 0..campaign(15, 300) {
        let mut dice = Dice {
            seed: &seed,
            step: case * 10_000,
        };
        let start = edits(&mut dice, 20);
        let rounds: Vec<String> = (0..=dice.below(3)).map(|_| edits(&mut dice, 12)).collect();
        let direct = Stage::new(&start);
        for script in &rounds {
            direct.in_project(script);
        }
        for kind in kinds() {
            let stage = Stage::new(&start);
            let held = stage.create(kind);
            for script in &rounds {
                stage.in_layer(&held, script);
            }
            if !held.plan_merge().unwrap().refusals().is_empty() {
                // Links in circles, which dice make now and then.
                continue;
            }
            let report = merge(held);
            compared += 1;
            assert!(report.retired, "case {case}, {kind:?}: {report:#?}");
            let (merged, edited) = (stage.files(), direct.files());
            let differing: Vec<_> = merged
                .keys()
                .chain(edited.keys())
                .filter(|path| merged.get(*path) != edited.get(*path))
                .map(|path| (path, merged.get(path), edited.get(path)))
                .collect();
            assert!(
                differing.is_empty(),
                "case {case}, {kind:?}: {differing:#?}\n{start}\n{}",
                rounds.join("\n")
            );
        }
    }
    assert!(compared > 0, "every case was refused");
}

#[test]
fn whatever_a_person_does_meanwhile_nothing_of_it_is_lost() {
    let seed = Seed::from_environment();
    for case in 0..campaign(15, 300) {
        let mut dice = Dice {
            seed: &seed,
            step: case * 10_000 + 5_000,
        };
        let start = edits(&mut dice, 20);
        let (layer, person) = (edits(&mut dice, 8), edits(&mut dice, 8));
        let untouched = Stage::new(&start).files();
        for kind in kinds() {
            let stage = Stage::new(&start);
            let mut held = stage.create(kind);
            stage.in_layer(&held, &layer);
            let layered = held.changes().unwrap().list;
            stage.in_project(&person);
            let theirs = stage.files();
            let plan = held.plan_merge().unwrap();
            if plan.is_clear() {
                held.apply(merge_permit(), &plan).unwrap();
            }
            let now = stage.files();
            for (path, content) in &theirs {
                let is_layers = layered
                    .iter()
                    .any(|change| change.path.to_string() == *path);
                let is_persons = untouched.get(path) != Some(content);
                // What the person wrote is there, unless the layer wrote the
                // very same place and the two were put together line by line.
                if is_persons && !is_layers {
                    assert_eq!(
                        now.get(path),
                        Some(content),
                        "case {case}, {kind:?}: {path}"
                    );
                }
            }
            if !plan.is_clear() {
                assert_eq!(now, theirs, "a plan with conflicts does nothing");
            }
        }
    }
}
