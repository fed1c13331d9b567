//! What a person types to give work to the agent: a task, `run`, `session`.
//!
//! Only clap lives here, and the one rule clap does not know: a task needs no
//! command in front of it. The work is in `command/agent` and `command/session`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::sandbox::TierArg;

/// The hidden command that a bare task stands for.
const TASK: &str = "task";

/// Flags before a task whose value is a word of its own.
const WITH_VALUE: [&str; 6] = [
    "--budget",
    "--mode",
    "--model",
    "--project",
    "--record",
    "--tier",
];

/// What the program does by itself, whatever else is typed.
const OWN: [&str; 4] = ["--help", "-h", "--version", "-V"];

/// A task, and how it is worked on.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// What is to be done; without it, fluffy asks
    #[arg(value_name = "TASK")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// What `run` takes.
#[derive(Debug, Args)]
pub(crate) struct RunTaskArgs {
    /// What is to be done
    #[arg(value_name = "TASK", required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// What `replay` takes.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The recording
    pub(crate) file: PathBuf,
    /// Answer yes to every question of this session, each on the record
    #[arg(long)]
    pub(crate) yes_auto: bool,
}

/// How a task is worked on.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkArgs {
    /// How strictly test-first holds
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeArg>,
    /// Who answers; repeat it for those that are asked when one fails
    #[arg(long, value_name = "PROVIDER/MODEL")]
    pub(crate) model: Vec<String>,
    /// How strongly tools are isolated
    #[arg(long, value_enum)]
    pub(crate) tier: Option<TierArg>,
    /// A lower limit than the configured one, as in turns=20 or wall_time=10m
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) budget: Vec<String>,
    /// Answer yes to every question of this session, each on the record
    #[arg(long)]
    pub(crate) yes_auto: bool,
    /// Write a recording of the session, which `fluffy replay` plays
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// The modes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// Test first, enforced
    Strict,
    /// Tests may come later; commits are unverified
    Explore,
    /// Explore, and reviewed commands in a running sandbox
    Debug,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, newest first
    List {
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 20)]
        last: usize,
        /// Also those of more than 30 days ago
        #[arg(long)]
        archived: bool,
    },
    /// Show what happened in a session
    Show {
        /// The session; the beginning of its id is enough
        id: String,
    },
    /// Go on with a session
    Resume {
        /// The session; the beginning of its id is enough
        id: String,
        /// Answer yes to every question of this session, each on the record
        #[arg(long)]
        yes_auto: bool,
    },
    /// Begin a new session from where another one stands
    Fork {
        /// The session; the beginning of its id is enough
        id: String,
        /// What is to be done in the new one; without it, it goes on
        #[arg(value_name = "TASK")]
        words: Vec<String>,
        #[command(flatten)]
        work: Box<WorkArgs>,
    },
    /// Show what a session would change, as a unified diff
    Diff {
        /// The session; the beginning of its id is enough
        id: String,
    },
    /// Take back the last turn that changed something
    Undo {
        /// The session; the newest of this project if left out
        id: Option<String>,
    },
    /// Write everything that is recorded of a session as JSON Lines
    Export {
        /// The session; the beginning of its id is enough
        id: String,
        /// Where to write; standard output without it
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// The command line with the command that a bare task leaves out.
///
/// A task has a space in it or follows `--`; a single word is a command. No
/// word at all means that the person wants to be asked.
pub(crate) fn with_task(words: Vec<OsString>, asked: Asked) -> Vec<OsString> {
    if !is_task(words.get(1..).unwrap_or_default(), asked) {
        return words;
    }
    let mut words = words;
    words.insert(1, TASK.into());
    words
}

/// Whether somebody can be asked for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// There is a terminal.
    Possible,
    /// There is none.
    Impossible,
}

fn is_task(words: &[OsString], asked: Asked) -> bool {
    let mut words = words.iter();
    let mut any = false;
    while let Some(word) = words.next() {
        any = true;
        let text = word.to_string_lossy();
        if text == "--" {
            return true;
        }
        if OWN.contains(&text.as_ref()) {
            return false;
        }
        if !text.starts_with('-') {
            return text.contains(char::is_whitespace);
        }
        if WITH_VALUE.contains(&text.as_ref()) {
            words.next();
        }
    }
    any || asked == Asked::Possible
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn rewritten(words: &[&str], asked: Asked) -> Vec<String> {
        let words = std::iter::once("fluffy").chain(words.iter().copied());
        let words = with_task(words.map(OsString::from).collect(), asked);
        let words = words.into_iter().map(|word| word.into_string().unwrap());
        words.collect()
    }

    #[test]
    fn a_task_has_a_space_or_follows_two_dashes() {
        for (words, is_task) in [
            (["add a test"].as_slice(), true),
            (&["--", "fix"], true),
            (&["--json", "--", "fix", "it"], true),
            (&["--model", "a/b", "fix it"], true),
            (&["--model=a/b", "fix it"], true),
            (&["--project", "some dir", "doctor"], false),
            (&["--quiet", "doctor"], false),
            (&["doctor", "with space"], false),
            (&["run", "fix it"], false),
            (&["nonsense"], false),
            (&["--help"], false),
            (&["--json", "-V"], false),
            (&["--mode", "explore"], true),
        ] {
            let got = rewritten(words, Asked::Impossible);
            assert_eq!(
                got.get(1).map(String::as_str) == Some(TASK),
                is_task,
                "{words:?}"
            );
        }
    }

    #[test]
    fn no_word_at_all_asks_where_somebody_can_answer() {
        assert_eq!(rewritten(&[], Asked::Possible), ["fluffy", TASK]);
        assert_eq!(rewritten(&[], Asked::Impossible), ["fluffy"]);
    }

    #[test]
    fn flags_may_stand_on_both_sides_of_a_task() {
        let words = rewritten(
            &[
                "--model",
                "a/b",
                "fix the bug",
                "--mode",
                "explore",
                "--json",
            ],
            Asked::Impossible,
        );
        let cli = Cli::try_parse_from(words).unwrap();
        assert!(cli.global.json);
        let Command::Task(args) = cli.command else {
            panic!("not a task");
        };
        assert_eq!(args.words, ["fix the bug"]);
        assert_eq!(args.work.model, ["a/b"]);
        assert_eq!(args.work.mode, Some(ModeArg::Explore));
    }

    #[test]
    fn words_after_two_dashes_are_the_task_whatever_they_look_like() {
        let words = rewritten(&["--", "explain", "--help", "doctor"], Asked::Impossible);
        let cli = Cli::try_parse_from(words).unwrap();
        let Command::Task(args) = cli.command else {
            panic!("not a task");
        };
        assert_eq!(args.words, ["explain", "--help", "doctor"]);
    }
}
