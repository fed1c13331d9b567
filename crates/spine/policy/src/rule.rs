//! One rule: when it applies, what it says, and the judging of one request.
//!
//! Judging is the heart of the semantics and has no side effects: fields are
//! ANDed, values ORed, `except` turns a rule into a pass, an unmet constraint
//! makes an allow abstain. Finding the rules worth judging is the job of
//! `index.rs`; what several rules mean together is for
//! [`crate::engine`].

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::ActionSet;
use crate::glob::GlobSet;
use crate::host::HostPattern;
use crate::request::Field;
use crate::subject::Facts;
use crate::word::{Mode, State, Tier};

/// What a rule says when it applies.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It permits, unless something else objects.
    Allow,
    /// A person must look first.
    RequireReview,
    /// It refuses, finally.
    Deny,
}

impl Effect {
    /// The effect as it is written in a policy.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::RequireReview => "require_review",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a rule comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Compiled in.
    Builtin,
    /// The organisation's file, which can only narrow.
    Organisation,
    /// The user's own file.
    User,
    /// The reviewed copy of the project's file.
    Project,
    /// The starter or platform policy that comes with the product.
    Shipped,
    /// An extension.
    Extension,
    /// The engine itself: grants, tokens, malformed requests.
    Engine,
}

impl Origin {
    /// The origin's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Organisation => "organisation",
            Self::User => "user",
            Self::Project => "project",
            Self::Shipped => "shipped",
            Self::Extension => "extension",
            Self::Engine => "engine",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What identifies a rule to people and in recordings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// Where it comes from.
    pub origin: Origin,
    /// Its name, unique within its origin.
    pub name: String,
    /// Why it says what it says; may be empty.
    pub reason: String,
    /// Its line in its file, from 1; 0 where there is no file.
    pub line: u32,
}

impl Label {
    /// The label of the engine's own voice.
    pub(crate) fn of_engine(name: &str, reason: String) -> Arc<Self> {
        Arc::new(Self {
            origin: Origin::Engine,
            name: name.to_owned(),
            reason,
            line: 0,
        })
    }

    /// `origin:name`, unique in an engine.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}:{}", self.origin, self.name)
    }
}

/// One statement of a policy, compiled.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) label: Arc<Label>,
    /// None for `do: pass`.
    pub(crate) effect: Option<Effect>,
    pub(crate) when: Condition,
    pub(crate) except: Vec<Condition>,
    pub(crate) constraints: Constraints,
}

/// Conditions on the fields of a request; those that are none always hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Condition {
    pub(crate) actions: Option<ActionSet>,
    pub(crate) path: Option<GlobSet>,
    pub(crate) host: Option<Vec<HostPattern>>,
    pub(crate) caller: Option<Vec<String>>,
    pub(crate) caller_tag: Option<Vec<String>>,
    pub(crate) mode: Option<Vec<Mode>>,
    pub(crate) state: Option<Vec<State>>,
    pub(crate) template: Option<Vec<String>>,
    pub(crate) tier: Option<Vec<Tier>>,
    pub(crate) tenant: Option<Vec<String>>,
    pub(crate) size: Option<Vec<Comparison>>,
    pub(crate) lines: Option<Vec<Comparison>>,
}

/// What must hold besides for an allow to count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Constraints {
    pub(crate) require_sandbox: bool,
    pub(crate) max_file_size: Option<u64>,
    pub(crate) max_lines: Option<u64>,
    pub(crate) min_tier: Option<Tier>,
}

/// A comparison with a number, such as `> 100KiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) operator: Operator,
    pub(crate) number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
}

impl Comparison {
    pub(crate) fn holds(self, number: u64) -> bool {
        match self.operator {
            Operator::Less => number < self.number,
            Operator::AtMost => number <= self.number,
            Operator::Equal => number == self.number,
            Operator::AtLeast => number >= self.number,
            Operator::More => number > self.number,
        }
    }
}

/// What a rule came to for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Speaks(Effect),
    /// `do: pass`.
    Passes,
    NotMatched(Miss),
    /// By the exception at this position.
    Excepted(usize),
    Unmet(&'static str),
}

/// Which condition did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    Action,
    Field(Field),
}

/// What a condition on a field that the request does not have comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    Holds,
    Fails,
}

impl Rule {
    /// What this rule says about a request.
    pub(crate) fn judge(&self, facts: &Facts<'_>) -> Outcome {
        // What is not known must not help the caller: it fires what restricts
        // and silences what permits, through the exceptions too.
        let restricts = matches!(self.effect, Some(Effect::Deny | Effect::RequireReview));
        let (absent, absent_in_except) = match restricts {
            true => (Absent::Holds, Absent::Fails),
            false => (Absent::Fails, Absent::Holds),
        };
        if let Err(miss) = self.when.test(facts, absent) {
            return Outcome::NotMatched(miss);
        }
        let hit = |except: &Condition| except.test(facts, absent_in_except).is_ok();
        if let Some(position) = self.except.iter().position(hit) {
            return Outcome::Excepted(position);
        }
        match self.effect {
            None => Outcome::Passes,
            Some(Effect::Allow) => match self.constraints.unmet(facts) {
                Some(name) => Outcome::Unmet(name),
                None => Outcome::Speaks(Effect::Allow),
            },
            Some(effect) => Outcome::Speaks(effect),
        }
    }

    pub(crate) fn restricts(&self) -> bool {
        matches!(self.effect, Some(Effect::Deny | Effect::RequireReview))
    }

    /// Whether the outcome can depend on this field.
    pub(crate) fn looks_at(&self, field: Field) -> bool {
        let constrained = match field {
            Field::Size => self.constraints.max_file_size.is_some(),
            Field::Lines => self.constraints.max_lines.is_some(),
            Field::Tier => self.constraints.min_tier.is_some(),
            _ => false,
        };
        constrained
            || self.when.looks_at(field)
            || self.except.iter().any(|except| except.looks_at(field))
    }

    /// Whether the rule could be about this action at all.
    pub(crate) fn is_about(&self, facts: &Facts<'_>) -> bool {
        self.when
            .actions
            .as_ref()
            .is_none_or(|set| set.contains(facts.action))
    }
}

impl Condition {
    /// Whether every condition holds, or the first that does not.
    pub(crate) fn test(&self, facts: &Facts<'_>, absent: Absent) -> Result<(), Miss> {
        if !self
            .actions
            .as_ref()
            .is_none_or(|set| set.contains(facts.action))
        {
            return Err(Miss::Action);
        }
        for field in Field::ALL {
            let holds = match self.field_holds(field, facts) {
                Some(holds) => holds,
                None => absent == Absent::Holds,
            };
            if !holds {
                return Err(Miss::Field(field));
            }
        }
        Ok(())
    }

    /// Whether the condition on a field holds; `None` when the request does not
    /// have the field.
    fn field_holds(&self, field: Field, facts: &Facts<'_>) -> Option<bool> {
        let request = facts.request;
        let context = &request.context;
        match field {
            Field::Path => match (&self.path, &facts.path) {
                (None, _) => Some(true),
                (Some(globs), Some(path)) => Some(globs.matches_split(path)),
                // Without a path a rule about paths never matches.
                (Some(_), None) => Some(false),
            },
            Field::Host => match &self.host {
                None => Some(true),
                Some(patterns) => host_holds(patterns, facts),
            },
            Field::Caller => one_of(self.caller.as_deref(), Some(&request.principal.name)),
            Field::CallerTag => match &self.caller_tag {
                None => Some(true),
                Some(tags) => Some(tags.iter().any(|tag| request.principal.tags.contains(tag))),
            },
            Field::Mode => one_of(self.mode.as_deref(), context.mode.as_ref()),
            Field::State => one_of(self.state.as_deref(), context.state.as_ref()),
            Field::Template => one_of(self.template.as_deref(), context.template.as_ref()),
            Field::Tier => one_of(self.tier.as_deref(), context.tier.as_ref()),
            Field::Tenant => one_of(self.tenant.as_deref(), context.tenant.as_ref()),
            Field::Size => compares(self.size.as_deref(), context.size),
            Field::Lines => compares(self.lines.as_deref(), context.lines),
        }
    }

    pub(crate) fn looks_at(&self, field: Field) -> bool {
        match field {
            Field::Path => self.path.is_some(),
            Field::Host => self.host.is_some(),
            Field::Caller => self.caller.is_some(),
            Field::CallerTag => self.caller_tag.is_some(),
            Field::Mode => self.mode.is_some(),
            Field::State => self.state.is_some(),
            Field::Template => self.template.is_some(),
            Field::Tier => self.tier.is_some(),
            Field::Tenant => self.tenant.is_some(),
            Field::Size => self.size.is_some(),
            Field::Lines => self.lines.is_some(),
        }
    }
}

fn one_of<T: PartialEq>(wanted: Option<&[T]>, actual: Option<&T>) -> Option<bool> {
    match (wanted, actual) {
        (None, _) => Some(true),
        (Some([]), _) => Some(false),
        (Some(wanted), Some(actual)) => Some(wanted.contains(actual)),
        (Some(_), None) => None,
    }
}

fn compares(wanted: Option<&[Comparison]>, actual: Option<u64>) -> Option<bool> {
    match (wanted, actual) {
        (None, _) => Some(true),
        (Some([]), _) => Some(false),
        (Some(wanted), Some(actual)) => Some(wanted.iter().any(|each| each.holds(actual))),
        (Some(_), None) => None,
    }
}

fn host_holds(patterns: &[HostPattern], facts: &Facts<'_>) -> Option<bool> {
    if patterns.is_empty() {
        return Some(false);
    }
    let host = facts.host?;
    let mut unsure = false;
    for pattern in patterns.iter().filter(|pattern| pattern.matches_host(host)) {
        match (pattern.port(), facts.port) {
            (None, _) => return Some(true),
            (Some(wanted), Some(actual)) if wanted == actual => return Some(true),
            (Some(_), Some(_)) => {}
            (Some(_), None) => unsure = true,
        }
    }
    if unsure { None } else { Some(false) }
}

impl Constraints {
    /// The name of the first constraint that is not met.
    fn unmet(&self, facts: &Facts<'_>) -> Option<&'static str> {
        let request = facts.request;
        let context = &request.context;
        let within = |limit: Option<u64>, actual: Option<u64>| match (limit, actual) {
            (None, _) => true,
            (Some(limit), Some(actual)) => actual <= limit,
            (Some(_), None) => false,
        };
        if self.require_sandbox && request.principal.sandbox.is_none() {
            return Some("require_sandbox");
        }
        if !within(self.max_file_size, context.size) {
            return Some("max_file_size");
        }
        if !within(self.max_lines, context.lines) {
            return Some("max_lines");
        }
        match (self.min_tier, context.tier) {
            (Some(least), Some(tier)) if tier >= least => None,
            (Some(_), _) => Some("min_tier"),
            (None, _) => None,
        }
    }
}
