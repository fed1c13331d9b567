//! Patches of several files: one shape for the two ways they are written.
//!
//! A text that starts with `*** Begin Patch` is read by `begin_patch`, anything
//! else as a unified diff by `unified`. Line numbers and counts are hints, for
//! models count badly; what the lines say is what counts. Where the hunks land
//! is decided in `apply`.

use serde::{Deserialize, Serialize};

use super::{begin_patch, unified};

/// The most bytes of one patch.
pub const MAX_PATCH_BYTES: usize = 4 << 20;

/// The most files of one patch.
pub(crate) const MAX_FILES: usize = 256;

/// What a patch does to one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileChange {
    /// The file, as the patch names it.
    pub path: String,
    /// What becomes of it.
    pub kind: FileChangeKind,
}

/// What becomes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FileChangeKind {
    /// It is new.
    Create {
        /// All of its content.
        content: String,
    },
    /// It goes.
    Delete,
    /// It changes, and may get another name.
    Update {
        /// Where it goes; nothing if it stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        move_to: Option<String>,
        /// What changes, in the order of the file.
        hunks: Vec<Hunk>,
    },
}

/// A run of lines that are kept, removed and added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hunk {
    /// Lines to be found before it, one after the other: `@@ fn parse() {`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchors: Vec<String>,
    /// The first line of the file that it speaks of, counted from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Whether it says that it is at the end of the file.
    #[serde(default)]
    pub at_end: bool,
    /// The lines.
    pub lines: Vec<HunkLine>,
}

/// One line of a hunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HunkLine {
    /// What becomes of it.
    pub sign: Sign,
    /// The line, without its newline.
    pub text: String,
    /// Whether the patch says that no newline follows it.
    #[serde(default)]
    pub unterminated: bool,
}

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// It stays.
    Keep,
    /// It goes.
    Remove,
    /// It is new.
    Add,
}

/// Why a text is no patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePatchError {
    /// It is larger than any patch that is taken.
    #[error("the patch has {bytes} bytes, more than {MAX_PATCH_BYTES}")]
    TooLarge {
        /// How large.
        bytes: usize,
    },
    /// There is no file in it.
    #[error(
        "the text is no patch: start with `*** Begin Patch`, or with `--- a/file` and `+++ b/file`"
    )]
    NoPatch,
    /// It stops before its end.
    #[error("the patch has no `*** End Patch` line, so it may be cut off")]
    Unfinished,
    /// A line is not what it should be at its place.
    #[error("line {line} of the patch: {expected}")]
    Unexpected {
        /// Counted from one.
        line: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// The same file twice.
    #[error("`{path}` is in the patch twice: put its hunks together")]
    Twice {
        /// The file.
        path: String,
    },
    /// More files than are taken at once.
    #[error("the patch touches more than {MAX_FILES} files")]
    TooManyFiles,
}

/// Reads a patch in either form.
///
/// # Errors
/// The text is neither, or only a part of a patch.
pub fn parse(text: &str) -> Result<Vec<FileChange>, ParsePatchError> {
    if text.len() > MAX_PATCH_BYTES {
        let bytes = text.len();
        return Err(ParsePatchError::TooLarge { bytes });
    }
    let lines = patch_lines(text);
    let begins = |line: &&&str| !line.trim().is_empty();
    let changes = match lines.iter().find(begins) {
        Some(line) if line.trim() == begin_patch::BEGIN => begin_patch::parse(&lines)?,
        _ => unified::parse(&lines)?,
    };
    let mut names = std::collections::HashSet::new();
    for change in &changes {
        let moved = match &change.kind {
            FileChangeKind::Update { move_to, .. } => move_to.as_ref(),
            FileChangeKind::Create { .. } | FileChangeKind::Delete => None,
        };
        for path in std::iter::once(&change.path).chain(moved) {
            if !names.insert(path) {
                let path = path.clone();
                return Err(ParsePatchError::Twice { path });
            }
        }
    }
    match changes.len() {
        0 => Err(ParsePatchError::NoPatch),
        1..=MAX_FILES => Ok(changes),
        _ => Err(ParsePatchError::TooManyFiles),
    }
}

/// The lines of a patch, without a fence around it and what a carrier did to it.
fn patch_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    // If even the headers end with a carriage return, it is not the file's.
    if lines.iter().all(|line| line.ends_with('\r')) {
        for line in &mut lines {
            *line = line.strip_suffix('\r').unwrap_or(line);
        }
    }
    let is_fence = |line: &&&str| line.trim_start().starts_with("```");
    if lines.first().as_ref().is_some_and(is_fence) && lines.last().as_ref().is_some_and(is_fence) {
        lines.pop();
        if !lines.is_empty() {
            lines.remove(0);
        }
    }
    lines
}

impl HunkLine {
    pub(crate) fn new(sign: Sign, text: &str) -> Self {
        Self {
            sign,
            text: text.to_owned(),
            unterminated: false,
        }
    }

    /// A line of a hunk as both forms write it; nothing if it is none.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut characters = line.chars();
        let sign = match characters.next() {
            Some('+') => Sign::Add,
            Some('-') => Sign::Remove,
            Some(' ') => Sign::Keep,
            // An empty line that stays, without the space before it.
            None | Some('\r') => return Some(Self::new(Sign::Keep, line)),
            Some(_) => return None,
        };
        Some(Self::new(sign, characters.as_str()))
    }
}
