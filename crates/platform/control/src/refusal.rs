//! Why a request is refused, in words that become a `problem+json` answer.
//!
//! Codes are those of the platform's specification; their status and title are
//! in `fluffy-api`. Never names an object that the caller may not see.

use serde_json::{Map, Value};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The code, which says the status and what happened.
    pub code: &'static str,
    /// Why, in one sentence.
    pub why: String,
    /// How to mend it, in one sentence; empty if nothing can be done.
    pub fix: String,
    /// What is wrong with single fields.
    pub fields: Vec<FieldProblem>,
    /// More for programs, such as `limit` and `current` of a quota.
    pub details: Box<Map<String, Value>>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// The code, such as `E_MEMORY_RANGE`.
    pub code: String,
    /// The field, as a path.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
    /// Where it is, in a manifest.
    pub place: Option<(u64, u64)>,
}

impl Refusal {
    /// A refusal without details.
    #[must_use]
    pub fn new(code: &'static str, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            code,
            why: why.into(),
            fix: fix.into(),
            fields: Vec::new(),
            details: Box::default(),
        }
    }

    /// The same with one more detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}
