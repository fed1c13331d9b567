//! What to run and what it is given: data, checked before anything starts.
//!
//! A command has exactly the arguments, variables and directories named here;
//! nothing of the host's own is inherited. Next: `tier`, which runs it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::limits::Limits;

/// The most bytes that arguments and variables may have together.
const ARGUMENTS_MAX: usize = 1 << 20;

/// One run of a program as a command.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Its arguments, the program's name first.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: BTreeMap<String, String>,
    /// What it reads from standard input.
    pub stdin: Vec<u8>,
    /// The only directories it can reach.
    pub directories: Vec<Directory>,
    /// What it may use.
    pub limits: Limits,
}

/// A directory of the host that a command can reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Where it is on the host; judged by whoever grants it.
    pub host: PathBuf,
    /// What the command calls it.
    pub guest: String,
    /// What may be done in it.
    pub access: Access,
}

/// What may be done in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Files can be read, nothing can be changed.
    ReadOnly,
    /// Files can be read, made, changed and removed.
    ReadWrite,
}

/// One call of a plain function.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The exported function.
    pub function: String,
    /// Its arguments.
    pub arguments: Vec<Value>,
    /// What it may use.
    pub limits: Limits,
}

/// An argument or a result of a plain function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// 32 bits.
    I32(i32),
    /// 64 bits.
    I64(i64),
}

/// Why a command can't be given to a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCommand {
    /// A text that can't be passed on as it is.
    #[error("the {what} `{text}` has a character that cannot be passed on")]
    Character {
        /// Which kind of text.
        what: &'static str,
        /// The text, shown so that no control character is printed.
        text: String,
    },
    /// Arguments and variables are too long.
    #[error("arguments and variables have {found} bytes, and {limit} are allowed")]
    TooLong {
        /// How long they are.
        found: usize,
        /// How long they may be.
        limit: usize,
    },
}

impl Command {
    /// Checks that all of it can be passed on unchanged.
    pub(crate) fn check(&self) -> Result<(), InvalidCommand> {
        let mut length = 0usize;
        let mut check = |what, text: &str, forbidden: &[char]| {
            length = length.saturating_add(text.len()).saturating_add(1);
            match text.contains(forbidden) {
                true => Err(InvalidCommand::Character {
                    what,
                    text: text.escape_debug().take(80).collect(),
                }),
                false => Ok(()),
            }
        };
        for argument in &self.arguments {
            check("argument", argument, &['\0'])?;
        }
        for (name, value) in &self.environment {
            check("variable's name", name, &['\0', '='])?;
            check("variable's value", value, &['\0'])?;
        }
        for directory in &self.directories {
            check("directory's name", &directory.guest, &['\0'])?;
        }
        match length > ARGUMENTS_MAX {
            true => Err(InvalidCommand::TooLong {
                found: length,
                limit: ARGUMENTS_MAX,
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_would_arrive_changed_are_refused() {
        let argument = Command {
            arguments: vec!["a\0b".into()],
            ..Command::default()
        };
        let refused = argument.check().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the argument `a\\0b` has a character that cannot be passed on"
        );
        let variable = Command {
            environment: BTreeMap::from([("A=B".into(), "c".into())]),
            ..Command::default()
        };
        assert!(variable.check().is_err());
        let fine = Command {
            environment: BTreeMap::from([("A".into(), "b=c".into())]),
            ..Command::default()
        };
        assert_eq!(fine.check(), Ok(()));
    }

    #[test]
    fn arguments_are_bounded() {
        let long = Command {
            arguments: vec!["x".repeat(ARGUMENTS_MAX)],
            ..Command::default()
        };
        let (found, limit) = (ARGUMENTS_MAX + 1, ARGUMENTS_MAX);
        assert_eq!(long.check(), Err(InvalidCommand::TooLong { found, limit }));
    }
}
