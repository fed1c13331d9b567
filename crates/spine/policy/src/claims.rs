//! What a token is for: everything it is bound to.
//!
//! A token skips rules and extensions, so it is bound to all that they could
//! have looked at. Sizes and line counts are bound to the range in which no
//! rule's comparison changes its answer. Checked anew on each use; how tokens
//! are issued and counted is in [`crate::token`].

use std::collections::BTreeSet;

use fluffy_base::id::{DecisionId, SandboxId, TokenId};
use fluffy_base::{Digest, Timestamp};
use serde::Serialize;

use crate::decision::Layer;
use crate::engine::Engine;
use crate::glob::{Case, Glob, GlobError, SplitPath};
use crate::request::{Field, PrincipalKind, ProcessIdentity, Request};
use crate::rule::{Absent, Comparison, Condition, Effect, Operator, Outcome, Rule};
use crate::subject::{Facts, Subject};
use crate::word::{Mode, State, Tier};

/// Everything a token is bound to; recorded when it is issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claims {
    /// The token's id.
    pub id: TokenId,
    /// The decision it rests on.
    pub decision: DecisionId,
    /// The policy it was decided under.
    pub policy: Digest,
    /// That policy's epoch.
    pub epoch: u64,
    /// When it was issued.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// How many operations it is good for.
    pub max_ops: u32,
    /// The review rules that a person answered, as `origin:name`.
    pub answers: Vec<String>,
    /// What it may be used on.
    pub resources: Coverage,
    pub(crate) bound: Bound,
}

/// The resources of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Coverage {
    /// Exactly these, each evaluated; `None` for an action without resource.
    Exactly(Vec<Option<String>>),
    /// Everything the glob matches.
    Tree(String),
}

/// The circumstances that must be the same on each use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Bound {
    kind: PrincipalKind,
    name: String,
    tags: BTreeSet<String>,
    on_behalf_of: Option<String>,
    sandbox: Option<SandboxId>,
    process: ProcessIdentity,
    action: String,
    mode: Option<Mode>,
    state: Option<State>,
    template: Option<String>,
    tier: Option<Tier>,
    tenant: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    size: Option<Range>,
    lines: Option<Range>,
}

/// A range of numbers with both ends in it; no end means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Range {
    from: u64,
    to: Option<u64>,
}

/// How closely numbers are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// To the range in which no rule changes its mind.
    ByRules,
    /// To the very number: an extension may have looked at it.
    Exactly,
}

impl Claims {
    pub(crate) fn answers(&self, rule: &str) -> bool {
        self.answers.iter().any(|each| each == rule)
    }

    /// Why a use of the token is allowed, for people.
    pub(crate) fn reason(&self) -> String {
        match self.answers.as_slice() {
            [] => format!("{} from {}", self.id, self.decision),
            rules => format!(
                "{} from {}, in which a person answered {}",
                self.id,
                self.decision,
                rules.join(", ")
            ),
        }
    }

    /// Whether the token is for this request.
    pub(crate) fn fit(&self, facts: &Facts<'_>, subject: &Subject<'_>) -> bool {
        self.bound.fits(facts.request)
            && match &self.resources {
                Coverage::Exactly(list) => list.iter().any(|each| subject.is_on(each.as_deref())),
                Coverage::Tree(text) => match (&facts.path, Glob::parse(text, Case::Exact)) {
                    (Some(path), Ok(glob)) => glob.matches(path),
                    _ => false,
                },
            }
    }
}

impl Bound {
    /// None when the principal has no process identity, or no sandbox and is
    /// not a person: only people work outside of all sandboxes.
    pub(crate) fn of(engine: &Engine, facts: &Facts<'_>, numbers: Numbers) -> Option<Self> {
        let Request {
            principal,
            action,
            context,
            ..
        } = facts.request;
        if principal.sandbox.is_none() && principal.kind != PrincipalKind::User {
            return None;
        }
        Some(Self {
            kind: principal.kind,
            name: principal.name.clone(),
            tags: principal.tags.clone(),
            on_behalf_of: principal.on_behalf_of.clone(),
            sandbox: principal.sandbox,
            process: principal.process?,
            action: action.clone(),
            mode: context.mode,
            state: context.state,
            template: context.template.clone(),
            tier: context.tier,
            tenant: context.tenant.clone(),
            host: context.host.clone(),
            port: context.port,
            size: context
                .size
                .map(|size| Range::around(size, Field::Size, engine, facts, numbers)),
            lines: context
                .lines
                .map(|lines| Range::around(lines, Field::Lines, engine, facts, numbers)),
        })
    }

    fn fits(&self, request: &Request) -> bool {
        let Request {
            principal,
            action,
            context,
            ..
        } = request;
        principal.sandbox == self.sandbox
            && principal.process == Some(self.process)
            && *action == self.action
            && principal.kind == self.kind
            && principal.name == self.name
            && principal.tags == self.tags
            && principal.on_behalf_of == self.on_behalf_of
            && context.mode == self.mode
            && context.state == self.state
            && context.template == self.template
            && context.tier == self.tier
            && context.tenant == self.tenant
            && context.host == self.host
            && context.port == self.port
            && Range::holds(self.size, context.size)
            && Range::holds(self.lines, context.lines)
            && context.redacted.is_empty()
    }

    pub(crate) const fn sandbox(&self) -> Option<SandboxId> {
        self.sandbox
    }
}

impl Range {
    /// The numbers around this one for which every rule answers the same.
    fn around(
        number: u64,
        field: Field,
        engine: &Engine,
        facts: &Facts<'_>,
        numbers: Numbers,
    ) -> Self {
        let mut range = Self { from: 0, to: None };
        if numbers == Numbers::Exactly {
            return Self {
                from: number,
                to: Some(number),
            };
        }
        for (_, rule) in engine.rules_about(facts) {
            for comparison in comparisons(rule, field) {
                range.narrow(number, comparison);
            }
        }
        range
    }

    fn narrow(&mut self, number: u64, comparison: Comparison) {
        let edge = comparison.number;
        let (at_most, at_least) = match (comparison.operator, comparison.holds(number)) {
            (Operator::AtMost, true) | (Operator::More, false) => (Some(edge), None),
            (Operator::AtMost, false) | (Operator::More, true) => (None, edge.checked_add(1)),
            (Operator::Less, true) | (Operator::AtLeast, false) => (edge.checked_sub(1), None),
            (Operator::Less, false) | (Operator::AtLeast, true) => (None, Some(edge)),
            (Operator::Equal, true) => (Some(edge), Some(edge)),
            (Operator::Equal, false) if number < edge => (edge.checked_sub(1), None),
            (Operator::Equal, false) => (None, edge.checked_add(1)),
        };
        if let Some(most) = at_most {
            self.to = Some(self.to.map_or(most, |to| to.min(most)));
        }
        if let Some(least) = at_least {
            self.from = self.from.max(least);
        }
    }

    fn holds(range: Option<Self>, number: Option<u64>) -> bool {
        match (range, number) {
            (None, None) => true,
            (Some(range), Some(number)) => {
                number >= range.from && range.to.is_none_or(|to| number <= to)
            }
            _ => false,
        }
    }
}

/// Every comparison of a rule with this number, its constraints included.
fn comparisons(rule: &Rule, field: Field) -> Vec<Comparison> {
    let of = |condition: &Condition| match field {
        Field::Size => condition.size.clone(),
        Field::Lines => condition.lines.clone(),
        _ => None,
    };
    let limit = match field {
        Field::Size => rule.constraints.max_file_size,
        Field::Lines => rule.constraints.max_lines,
        _ => None,
    };
    let conditions = std::iter::once(&rule.when).chain(&rule.except);
    let mut found: Vec<Comparison> = conditions.filter_map(of).flatten().collect();
    found.extend(limit.map(|number| Comparison {
        operator: Operator::AtMost,
        number,
    }));
    found
}

/// Why a token cannot cover a whole tree of paths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The glob is unusable.
    #[error("`{glob}` is not a glob")]
    Glob {
        /// The glob as given.
        glob: String,
        /// What is wrong.
        #[source]
        source: GlobError,
    },
    /// The request's own path is not in the tree.
    #[error("`{glob}` does not cover the path that was asked for")]
    Elsewhere {
        /// The glob.
        glob: String,
    },
    /// A deny or review could speak about something in the tree.
    #[error("`{rule}` could object to something in `{glob}`")]
    Touched {
        /// The glob.
        glob: String,
        /// The rule, as `origin:name`.
        rule: String,
    },
    /// No single allow covers the whole tree.
    #[error("no rule allows all of `{glob}`")]
    NotAllowed {
        /// The glob.
        glob: String,
    },
}

/// Whether one allow covers the tree and nothing can object inside it.
pub(crate) fn check_tree(engine: &Engine, facts: &Facts<'_>, text: &str) -> Result<(), TreeError> {
    let shown = || text.chars().take(128).collect::<String>();
    let tree = Glob::parse(text, Case::Exact).map_err(|source| TreeError::Glob {
        glob: shown(),
        source,
    })?;
    let inside = |path: &SplitPath<'_>| tree.matches(path);
    if !facts.path.as_ref().is_some_and(inside) {
        return Err(TreeError::Elsewhere { glob: shown() });
    }
    let mut allowed = false;
    for (layer, rule) in engine.rules_about(facts) {
        match rule.effect {
            Some(Effect::Allow) => {
                allowed |= layer == Layer::Rules && allows_all(rule, facts, &tree)
            }
            Some(_) if can_touch(rule, facts, &tree) => {
                let rule = rule.label.id();
                return Err(TreeError::Touched {
                    glob: shown(),
                    rule,
                });
            }
            _ => {}
        }
    }
    match allowed {
        true => Ok(()),
        false => Err(TreeError::NotAllowed { glob: shown() }),
    }
}

fn allows_all(rule: &Rule, facts: &Facts<'_>, tree: &Glob) -> bool {
    let covered = rule.when.path.as_ref().is_none_or(|path| {
        path.exclude().is_empty() && path.include().iter().any(|glob| glob.covers(tree))
    });
    covered && rule.except.is_empty() && rule.judge(facts) == Outcome::Speaks(Effect::Allow)
}

/// Whether a restricting rule could fire in the tree; exceptions and excluded
/// paths are left out of the account, which errs towards yes.
fn can_touch(rule: &Rule, facts: &Facts<'_>, tree: &Glob) -> bool {
    if let Some(path) = &rule.when.path
        && path
            .include()
            .iter()
            .all(|glob| glob.is_disjoint_from(tree))
    {
        return false;
    }
    // All that remains is bound by the token, so this request stands for all.
    let elsewhere = Condition {
        path: None,
        ..rule.when.clone()
    };
    elsewhere.test(facts, Absent::Holds).is_ok()
}
