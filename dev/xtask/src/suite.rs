//! The steps of `cargo xtask test`, in order, cheap ones first.
//!
//! All steps run, whatever fails before them; the table at the end tells.
//! Everything is built in one profile and one target folder, except what the
//! fuzzer instruments.

use std::process::Command;

use anyhow::Result;

use crate::process::run;
use crate::step::{Outcome, Record};
use crate::workspace::Workspace;
use crate::{deny, docs, fuzz, headers, layers, permits, portable, promises, setup, testing};

/// One step: what it is called, what it means, what it does.
pub(crate) struct Step {
    /// The name for `--only`.
    pub(crate) name: &'static str,
    /// Half a line for the heading.
    meaning: &'static str,
    run: fn(&Workspace) -> Result<Outcome>,
}

/// All steps.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "setup",
        meaning: "install what is missing",
        run: setup::run_setup,
    },
    Step {
        name: "fmt",
        meaning: "the code is formatted",
        run: |workspace| {
            let mut command = workspace.cargo(&["fmt", "--all", "--", "--check"]);
            run(&mut command, "formatted")
        },
    },
    Step {
        name: "layers",
        meaning: "dependencies point one way",
        run: layers::check,
    },
    Step {
        name: "headers",
        meaning: "every file says what it is for",
        run: headers::check,
    },
    Step {
        name: "permits",
        meaning: "effects take a permit",
        run: permits::check,
    },
    Step {
        name: "links",
        meaning: "links in documents lead somewhere",
        run: docs::check_structure,
    },
    Step {
        name: "promises",
        meaning: "every promise of SPECIFICATION.md has its test",
        run: promises::check,
    },
    Step {
        name: "deny",
        meaning: "licences, bans and sources of dependencies",
        run: deny::check,
    },
    Step {
        name: "advisories",
        meaning: "known faults of dependencies",
        run: deny::check_advisories,
    },
    Step {
        name: "lints",
        meaning: "no warning from clippy",
        run: |workspace| {
            let mut command = workspace.cargo(&["clippy", "--workspace", "--all-targets"]);
            command.args(["--", "--deny", "warnings"]);
            run(&mut command, "no warnings")
        },
    },
    Step {
        name: "tests",
        meaning: "all tests, with real servers beside them",
        run: testing::run_tests,
    },
    Step {
        name: "doctests",
        meaning: "examples in the code's documentation",
        run: testing::run_doctests,
    },
    Step {
        name: "docs",
        meaning: "commands in README and docs do what they say",
        run: docs::check_commands,
    },
    Step {
        name: "generated",
        meaning: "generated files are up to date",
        run: |workspace| {
            let built = run(&mut workspace.build_as_tests_do(), "")?;
            if let Outcome::Failed(_) = built {
                return Ok(built);
            }
            let mut command = Command::new(workspace.target.join("debug/fluffy"));
            command.args(["dev", "generate", "--check"]);
            run(command.current_dir(&workspace.root), "up to date")
        },
    },
    Step {
        name: "portable",
        meaning: "portable crates compile for macOS and Windows",
        run: portable::check,
    },
    Step {
        name: "fuzz",
        meaning: "the corpus, and a minute of search",
        run: fuzz::run_short,
    },
];

/// Runs all steps, or only the named ones.
pub(crate) fn run_steps(workspace: &Workspace, only: &[String]) -> Outcome {
    let mut record = Record::default();
    for step in STEPS {
        if only.is_empty() || only.iter().any(|name| name == step.name) {
            record.perform(step.name, step.meaning, || (step.run)(workspace));
        }
    }
    record.conclude()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_fit_the_table_and_are_unique() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(step.name.len() <= 10, "{}", step.name);
            let same = |other: &Step| other.name == step.name;
            assert_eq!(STEPS.iter().position(same), Some(index), "{}", step.name);
        }
    }
}
