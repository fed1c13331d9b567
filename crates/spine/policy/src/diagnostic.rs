//! What is wrong with a text a person wrote: where, what, why, how to fix it.
//!
//! Holds the byte span besides line and column, so that a front end can draw
//! the snippet; this crate prints nothing.

use std::fmt;

use serde::Serialize;

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Place {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The first byte.
    pub offset: usize,
    /// How many bytes.
    pub length: usize,
}

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is legal, and a part of it is pointless.
    Warning,
}

/// One finding in a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How grave it is.
    pub severity: Severity,
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// Why that is not accepted.
    pub why: String,
    /// How to fix it.
    pub help: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column, .. } = self.place;
        write!(f, "{line}:{column}: {}", self.what)
    }
}

/// A text that was refused, with everything found in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{file}` is refused at {first}")]
pub struct RefusedText {
    /// What the text is, for people: a file's name or a layer.
    pub file: String,
    /// The first error.
    pub first: Box<Diagnostic>,
    /// All findings in the order of the text, the first error included.
    pub findings: Vec<Diagnostic>,
}

impl RefusedText {
    /// The findings that are errors.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        let grave = |finding: &&Diagnostic| finding.severity == Severity::Error;
        self.findings.iter().filter(grave)
    }
}

/// Collects findings while a text is read; keeps the first hundred.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Diagnostic>,
    errors: usize,
}

const MAX_FINDINGS: usize = 100;

impl Findings {
    /// Notes an error; the text will be refused.
    pub fn error(
        &mut self,
        place: Place,
        what: impl Into<String>,
        why: &str,
        help: impl Into<String>,
    ) {
        self.errors += 1;
        self.push(Severity::Error, place, what.into(), why, help.into());
    }

    /// Notes what is legal and pointless.
    pub fn warn(
        &mut self,
        place: Place,
        what: impl Into<String>,
        why: &str,
        help: impl Into<String>,
    ) {
        self.push(Severity::Warning, place, what.into(), why, help.into());
    }

    fn push(&mut self, severity: Severity, place: Place, what: String, why: &str, help: String) {
        // The first error is always kept, whatever came before it.
        if self.list.len() < MAX_FINDINGS || (severity == Severity::Error && self.errors == 1) {
            let why = why.to_owned();
            self.list.push(Diagnostic {
                severity,
                place,
                what,
                why,
                help,
            });
        }
    }

    /// The value with its warnings, or the refusal.
    ///
    /// # Errors
    /// When any error was noted, or there is no value.
    pub fn finish<T>(
        mut self,
        file: &str,
        value: Option<T>,
    ) -> Result<(T, Vec<Diagnostic>), RefusedText> {
        self.list.sort_by_key(|finding| finding.place);
        let first = self
            .list
            .iter()
            .find(|finding| finding.severity == Severity::Error);
        match (first.cloned(), value) {
            (None, Some(value)) => Ok((value, self.list)),
            (first, _) => Err(RefusedText {
                file: file.to_owned(),
                first: Box::new(first.unwrap_or_else(unreadable)),
                findings: self.list,
            }),
        }
    }
}

/// For a reader that gave up without saying why, which none does.
fn unreadable() -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        place: Place {
            line: 1,
            column: 1,
            offset: 0,
            length: 0,
        },
        what: "the text could not be read".to_owned(),
        why: "nothing that is not understood is used".to_owned(),
        help: "start from `fluffy init`".to_owned(),
    }
}
