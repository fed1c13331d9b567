//! What can be wrong with a configuration, and where.
//!
//! Every problem names its place exactly, because people meet these texts
//! while they edit the file. All problems of all sources are collected; if
//! there is one, nothing is loaded.

use std::fmt;
use std::path::PathBuf;

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file, at a line and column counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// How many characters are meant.
        length: usize,
        /// The text of that line.
        text: String,
    },
    /// In an environment variable.
    Environment {
        /// Its name.
        name: String,
    },
    /// In a flag of the command line.
    Flag {
        /// The flag as written.
        name: String,
    },
    /// In our own registry; a test keeps this from ever happening.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                path, line, column, ..
            } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment { name } | Self::Flag { name } => f.write_str(name),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is not TOML.
    #[error("the file is not valid TOML: {message}")]
    Syntax {
        /// Where reading stopped.
        place: Place,
        /// What the parser says, on one line.
        message: String,
    },
    /// There is no such key.
    #[error("`{key}` is not a configuration key")]
    UnknownKey {
        /// Where it stands.
        place: Place,
        /// The key as written.
        key: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A value was given to a section.
    #[error("`{key}` is a section and takes no value")]
    Section {
        /// Where it stands.
        place: Place,
        /// The section.
        key: String,
    },
    /// The value has the wrong type, form or size.
    #[error("`{value}` is no value for `{key}`")]
    Value {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
        /// The value as written, shortened.
        value: String,
        /// What values there are.
        expected: String,
    },
    /// Both places for one API key are given.
    #[error("`{key}` names two places for one key")]
    TwoKeySources {
        /// Where the second stands.
        place: Place,
        /// The key of the provider.
        key: String,
    },
    /// The file is of another version.
    #[error("this version of fluffy reads configuration of version 1, not `{found}`")]
    Version {
        /// Where it stands.
        place: Place,
        /// The version as written.
        found: String,
    },
    /// A repository's file sets what only its user may.
    #[error("`{key}` may not be set by a project")]
    ProjectMayNot {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
    },
    /// A repository's file raises a budget.
    #[error("a project may lower `{key}` and not raise it from {before} to {after}")]
    ProjectRaises {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
        /// The value without the project.
        before: String,
        /// The value the project wants.
        after: String,
    },
}

impl Problem {
    /// Where it stands.
    #[must_use]
    pub const fn place(&self) -> &Place {
        match self {
            Self::Syntax { place, .. }
            | Self::UnknownKey { place, .. }
            | Self::Section { place, .. }
            | Self::Value { place, .. }
            | Self::TwoKeySources { place, .. }
            | Self::Version { place, .. }
            | Self::ProjectMayNot { place, .. }
            | Self::ProjectRaises { place, .. } => place,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Syntax { .. } => "correct the line; strings need quotes in TOML".to_owned(),
            Self::UnknownKey {
                nearest: Some(nearest),
                ..
            } => format!("did you mean `{nearest}`?"),
            Self::UnknownKey { nearest: None, .. } => {
                "remove it; `fluffy config` lists the keys that exist".to_owned()
            }
            Self::Section { key, .. } => format!("write `[{key}]` and its keys below"),
            Self::Value { expected, .. } => format!("write {expected}"),
            Self::TwoKeySources { .. } => "keep either `env` or `keyring`".to_owned(),
            Self::Version { .. } => "use the version of fluffy that wrote it".to_owned(),
            Self::ProjectMayNot { .. } => {
                "move it to your own configuration file, if you want it: what comes with a \
                 repository could otherwise send your keys to its own host"
                    .to_owned()
            }
            Self::ProjectRaises { .. } => {
                "raise it in your own configuration file, by a variable or by a flag".to_owned()
            }
        }
    }
}

/// Everything that is wrong; nothing was loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration is not valid")]
pub struct Rejected {
    /// All problems: files by line first, then variables, then flags.
    pub problems: Vec<Problem>,
}
