//! What a person may type after `cargo xtask`.
//!
//! Parsed by hand: this crate is built before everything else, so it stays
//! small. Never does anything; `main` does.

use crate::suite::STEPS;

/// The help text.
pub(crate) const USAGE: &str = "\
cargo xtask test [--only STEP]…       set up, check and test everything (what CI runs)
cargo xtask accept [NAME]             run the long campaigns at full length
cargo xtask bench [AREA]              measure: policy, ledger, ipc, process, sandbox, agent, plugin, planner, control, image, node or all; writes docs/benchmarks.md
cargo xtask fuzz [TARGET] [--minutes N]  fuzz one parser, or all in turn
cargo xtask with-postgres COMMAND…    run a command while a private PostgreSQL is there
cargo xtask with-engines COMMAND…     run a command while a private Docker and Podman are there
cargo xtask docs                      check the book, and build it where mdbook is installed
cargo xtask pictures                  draw the pictures of README.md anew, from real runs
cargo xtask check-layers              check which crate depends on which
cargo xtask check-permits             check that effects take a permit";

/// What `cargo xtask bench` measures.
const AREAS: &[&str] = &[
    "policy", "ledger", "ipc", "process", "sandbox", "agent", "plugin", "planner", "control",
    "image", "node", "all",
];

/// How long `cargo xtask fuzz` runs when nothing else is said.
const FUZZ_MINUTES: u64 = 10;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// Print the help text.
    Usage,
    /// Run the steps of the test command, or only some.
    Test {
        /// The names of the steps; none means all.
        only: Vec<String>,
    },
    /// Run the campaigns at full length.
    Accept {
        /// One campaign, or all.
        name: Option<String>,
    },
    /// Run the benchmarks.
    Bench {
        /// Which ones.
        area: String,
    },
    /// Fuzz.
    Fuzz {
        /// One target, or all.
        target: Option<String>,
        /// For how long in all.
        minutes: u64,
    },
    /// Run a command with a private PostgreSQL.
    WithPostgres {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
    },
    /// Run a command with private container engines.
    WithEngines {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
    },
    /// Check the direction of dependencies.
    CheckLayers,
    /// Check the list of effectful functions.
    CheckPermits,
    /// Check and build the book.
    Docs,
    /// Draw the pictures of the documents.
    Pictures,
}

impl Task {
    /// Reads the arguments; the error is for the person who typed them.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut words = arguments.iter().map(String::as_str);
        let Some(name) = words.next() else {
            return Ok(Self::Usage);
        };
        let rest: Vec<&str> = words.collect();
        match (name, rest.as_slice()) {
            ("help" | "--help" | "-h", _) | (_, ["--help" | "-h"]) => Ok(Self::Usage),
            ("test", options) => parse_test(options),
            ("accept", []) => Ok(Self::Accept { name: None }),
            ("accept", [name]) => Ok(Self::Accept {
                name: Some((*name).to_owned()),
            }),
            ("bench", []) => Ok(Self::Bench {
                area: "all".to_owned(),
            }),
            ("bench", [area]) if AREAS.contains(area) => Ok(Self::Bench {
                area: (*area).to_owned(),
            }),
            ("fuzz", options) => parse_fuzz(options),
            ("with-postgres", [program, rest @ ..]) => Ok(Self::WithPostgres {
                program: (*program).to_owned(),
                arguments: rest.iter().map(|word| (*word).to_owned()).collect(),
            }),
            ("with-engines", [program, rest @ ..]) => Ok(Self::WithEngines {
                program: (*program).to_owned(),
                arguments: rest.iter().map(|word| (*word).to_owned()).collect(),
            }),
            ("check-layers", []) => Ok(Self::CheckLayers),
            ("check-permits", []) => Ok(Self::CheckPermits),
            ("docs", []) => Ok(Self::Docs),
            ("pictures", []) => Ok(Self::Pictures),
            _ => Err(format!(
                "`{}` is not a command of xtask; there are:\n{USAGE}",
                arguments.join(" ")
            )),
        }
    }
}

fn parse_test(mut options: &[&str]) -> Result<Task, String> {
    let mut only = Vec::new();
    while let ["--only", step, rest @ ..] = options {
        if !STEPS.iter().any(|known| known.name == *step) {
            let names: Vec<&str> = STEPS.iter().map(|known| known.name).collect();
            return Err(format!("there is no step `{step}`: {}", names.join(", ")));
        }
        only.push((*step).to_owned());
        options = rest;
    }
    match options {
        [] => Ok(Task::Test { only }),
        [other, ..] => Err(format!(
            "`{other}` is not an option of test; use --only STEP"
        )),
    }
}

fn parse_fuzz(mut options: &[&str]) -> Result<Task, String> {
    let (mut target, mut minutes) = (None, FUZZ_MINUTES);
    loop {
        options = match options {
            [] => return Ok(Task::Fuzz { target, minutes }),
            ["--minutes", number, rest @ ..] => {
                minutes = number
                    .parse()
                    .ok()
                    .filter(|minutes| (1..=10_000).contains(minutes))
                    .ok_or_else(|| format!("`{number}` is not a number of minutes"))?;
                rest
            }
            [name, rest @ ..] if target.is_none() && !name.starts_with('-') => {
                target = Some((*name).to_owned());
                rest
            }
            [other, ..] => return Err(format!("`{other}` is not an option of fuzz")),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Task::parse(&words)
    }

    #[test]
    fn every_command_of_the_help_text_is_understood() {
        for line in USAGE.lines() {
            let words: Vec<&str> = line.split_whitespace().skip(2).collect();
            let needed = words.iter().position(|word| *word == "COMMAND…");
            let typed = words[..=needed.unwrap_or(0)].join(" ");
            assert!(
                parse(&typed).is_ok_and(|task| task != Task::Usage),
                "{typed}"
            );
        }
        for area in AREAS {
            assert!(parse(&format!("bench {area}")).is_ok(), "{area}");
        }
        let named = format!("measure: {} or all;", AREAS[..AREAS.len() - 1].join(", "));
        assert!(USAGE.contains(&named), "{named}");
        assert_eq!(parse(""), Ok(Task::Usage));
        assert_eq!(parse("fuzz --help"), Ok(Task::Usage));
    }

    #[test]
    fn options_reach_their_place() {
        let only = vec!["fmt".to_owned(), "layers".to_owned()];
        assert_eq!(
            parse("test --only fmt --only layers"),
            Ok(Task::Test { only })
        );
        let (target, minutes) = (Some("units".to_owned()), 3);
        assert_eq!(
            parse("fuzz --minutes 3 units"),
            Ok(Task::Fuzz { target, minutes })
        );
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, named) in [
            ("tset", "tset"),
            ("test --only nonsense", "nonsense"),
            ("test --fast", "--fast"),
            ("bench cheese", "cheese"),
            ("with-postgres", "with-postgres"),
            ("with-engines", "with-engines"),
            ("fuzz a b", "`b`"),
            ("fuzz --minutes 0", "`0`"),
            ("fuzz --minutes", "--minutes"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
