//! Layer 1: the rules that are compiled in and always run.
//!
//! At most ten. They protect what everything else rests on: the policy, the
//! bootstrap, the kernel's own files, the ledger, the workflow's state. No
//! file and no token skips them, and they ignore case, because some file
//! systems do.

use std::sync::Arc;

use crate::action::ActionSet;
use crate::glob::{Case, GlobSet};
use crate::rule::{Condition, Constraints, Effect, Label, Origin, Rule};

/// The most rules that may be compiled in.
pub const MAX_BUILTINS: usize = 10;

/// The compiled-in rules.
#[derive(Debug, Clone)]
pub struct Builtins {
    pub(crate) rules: Vec<Rule>,
}

struct Guard {
    name: &'static str,
    effect: Effect,
    actions: &'static [&'static str],
    paths: &'static [&'static str],
    reason: &'static str,
}

const CHANGES: &[&str] = &["fs.write", "fs.edit", "fs.remove"];

const GUARDS: &[Guard] = &[
    Guard {
        name: "policy-files",
        effect: Effect::Deny,
        actions: CHANGES,
        paths: &[
            "/.fluffy/policy.yaml",
            "/.fluffy/policy.d",
            "@host/**/fluffy/policy*",
        ],
        reason: "policy files change only through `fluffy policy apply`",
    },
    Guard {
        name: "policy-update",
        effect: Effect::RequireReview,
        actions: &["policy.update"],
        paths: &[],
        reason: "a change of the policy is always reviewed by a person",
    },
    Guard {
        name: "bootstrap",
        effect: Effect::Deny,
        actions: CHANGES,
        paths: &[
            "@host/**/bin/fluffy",
            "@host/**/bin/fluffy-*",
            "@host/**/libexec/fluffy",
        ],
        reason: "the program that watches the kernel is not written by what it watches",
    },
    Guard {
        name: "kernel-files",
        effect: Effect::Deny,
        actions: CHANGES,
        paths: &["@host/**/fluffy", "@host/**/.fluffy"],
        reason: "the kernel's own files are written by the kernel only",
    },
    Guard {
        name: "ledger",
        effect: Effect::Deny,
        actions: CHANGES,
        paths: &[
            "@host/**/fluffy/**/ledger*",
            "@host/**/fluffy/**/checkpoints*",
        ],
        reason: "the ledger is only ever appended to, by the kernel",
    },
    Guard {
        name: "workflow-state",
        effect: Effect::Deny,
        actions: CHANGES,
        paths: &[
            "@host/**/fluffy/**/sessions",
            "@host/**/fluffy/**/workflow*",
        ],
        reason: "the workflow's state follows from events and is never written",
    },
];

impl Builtins {
    /// The rules of the product.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            rules: GUARDS.iter().filter_map(Guard::rule).collect(),
        }
    }

    /// Other rules, for tests of the engine.
    #[doc(hidden)]
    #[must_use]
    pub fn from_file(file: &crate::document::PolicyFile) -> Self {
        Self {
            rules: file.rules.iter().take(MAX_BUILTINS).cloned().collect(),
        }
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl Guard {
    /// None only for a guard that does not compile, which a test rules out.
    fn rule(&self) -> Option<Rule> {
        let mut actions = ActionSet::default();
        for action in self.actions {
            actions.add(action).ok()?;
        }
        let path = match self.paths {
            [] => None,
            paths => Some(GlobSet::build_with(paths.iter().copied(), Case::Folded).ok()?),
        };
        let label = Label {
            origin: Origin::Builtin,
            name: self.name.to_owned(),
            reason: self.reason.to_owned(),
            line: 0,
        };
        Some(Rule {
            label: Arc::new(label),
            effect: Some(self.effect),
            when: Condition {
                actions: Some(actions),
                path,
                ..Condition::default()
            },
            except: Vec::new(),
            constraints: Constraints::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guard_compiles_and_there_are_at_most_ten() {
        assert_eq!(Builtins::standard().len(), GUARDS.len());
        assert!(GUARDS.len() <= MAX_BUILTINS);
    }
}
