//! A refused call as a value: what, by whom, what is open, and the way on.
//!
//! Made where the refusal was decided, never guessed from a command's output.
//! One rendering for the model, which must be able to act on it, and one for
//! people, who want to know who said no.

use std::fmt::Write as _;

use fluffy_policy::decision::Verdict;
use fluffy_policy::rule::Effect;
use fluffy_policy::word::{Mode, State};
use fluffy_policy::{Decision, decision};
use serde::{Deserialize, Serialize};

use crate::budget::BudgetExhausted;
use crate::paths::shown;
use crate::registry::CheckCallError;

/// A call that was not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The tool that was called.
    pub tool: String,
    /// The action that was refused; nothing if it never came so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// What it would have acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Who refused it, and why.
    pub by: RefusedBy,
    /// What may be written now: globs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<String>,
    /// Which tools can be called now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub available: Vec<String>,
    /// What would allow it; nothing if nothing does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
}

/// The gate that refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "gate", rename_all = "snake_case")]
pub enum RefusedBy {
    /// The call does not fit its schema.
    Schema {
        /// What is wrong with it.
        problem: String,
    },
    /// The workflow does not allow it in this state.
    Workflow {
        /// The session's mode.
        mode: Mode,
        /// The workflow's state.
        state: State,
        /// The guard that failed.
        guard: String,
        /// What it wants.
        reason: String,
    },
    /// Policy denies it, or wants a person to look.
    Policy {
        /// Which of the two.
        verdict: Verdict,
        /// The rules that said so.
        rules: Vec<RuleVoice>,
    },
    /// A budget is used up.
    Budget {
        /// Which.
        exhausted: BudgetExhausted,
    },
    /// A person looked, and said no.
    Person {
        /// What they said.
        reason: String,
    },
    /// There is no sandbox for it; it never runs outside of one.
    Sandbox {
        /// Why not.
        reason: String,
    },
}

/// A rule that spoke.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleVoice {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub origin: String,
    /// What it says.
    pub reason: String,
}

/// Something that would allow the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum Way {
    /// Other arguments.
    Correct {
        /// Which.
        how: String,
    },
    /// Another state of the workflow.
    Transition {
        /// Which.
        to: State,
        /// What has to be done to get there.
        by: String,
    },
    /// A person's approval.
    Approval {
        /// What they are asked.
        question: String,
    },
    /// A grant that the session does not have.
    Grant {
        /// The capability.
        capability: String,
    },
    /// More of a budget, or another turn.
    Budget {
        /// How.
        how: String,
    },
}

impl Refusal {
    /// A call that does not fit.
    #[must_use]
    pub fn of_check(tool: &str, error: &CheckCallError) -> Self {
        let how = "call it again with other arguments".to_owned();
        let problem = error.to_string();
        Self::new(tool, RefusedBy::Schema { problem }, Way::Correct { how })
    }

    /// A call that policy did not allow.
    #[must_use]
    pub fn of_decision(tool: &str, decision: &Decision) -> Self {
        let decisive = match decision.verdict() {
            Verdict::Allow => Effect::Allow,
            Verdict::Deny => Effect::Deny,
            Verdict::RequireReview => Effect::RequireReview,
        };
        let spoke = decision.spoke().iter();
        let decisive: Vec<_> = spoke.filter(|voice| voice.effect == decisive).collect();
        let rules = decisive.iter().map(|voice| RuleVoice {
            name: voice.label.name.clone(),
            origin: voice.label.origin.to_string(),
            reason: voice.label.reason.clone(),
        });
        let capability = match decision.resource() {
            Some(resource) => format!("{}.{resource}", decision.action()),
            None => decision.action().to_owned(),
        };
        let beyond_grant = decisive
            .iter()
            .any(|voice| voice.layer == decision::Layer::Grants);
        let way = match decision.verdict() {
            Verdict::RequireReview => Some(Way::Approval {
                question: format!("may it use `{capability}`?"),
            }),
            Verdict::Deny if beyond_grant => Some(Way::Grant { capability }),
            // A deny is final: no approval answers it.
            Verdict::Deny | Verdict::Allow => None,
        };
        Self {
            action: Some(decision.action().to_owned()),
            resource: decision.resource().map(str::to_owned),
            ways: way.into_iter().collect(),
            ..Self::without_way(
                tool,
                RefusedBy::Policy {
                    verdict: decision.verdict(),
                    rules: rules.collect(),
                },
            )
        }
    }

    /// A call for which a budget is used up.
    #[must_use]
    pub fn of_budget(tool: &str, exhausted: BudgetExhausted) -> Self {
        let how = exhausted.how_to_go_on();
        Self::new(tool, RefusedBy::Budget { exhausted }, Way::Budget { how })
    }

    /// A refusal with the one way on.
    #[must_use]
    pub fn new(tool: &str, by: RefusedBy, way: Way) -> Self {
        Self {
            ways: vec![way],
            ..Self::without_way(tool, by)
        }
    }

    /// A refusal that nothing can change.
    #[must_use]
    pub fn without_way(tool: &str, by: RefusedBy) -> Self {
        Self {
            tool: tool.chars().take(128).collect(),
            action: None,
            resource: None,
            by,
            writable: Vec::new(),
            available: Vec::new(),
            ways: Vec::new(),
        }
    }

    /// For the model: every fact it needs to do something else.
    #[must_use]
    pub fn for_model(&self) -> String {
        let mut text = format!("REFUSED: {}\n", self.subject());
        let _ = writeln!(text, "by: {}", self.by.describe());
        for (what, list) in [
            ("writable now", &self.writable),
            ("tools now", &self.available),
        ] {
            if !list.is_empty() {
                let _ = writeln!(text, "{what}: {}", list.join(", "));
            }
        }
        match self.ways.is_empty() {
            true => text.push_str("nothing allows this: do something else\n"),
            false => {
                for way in &self.ways {
                    let _ = writeln!(text, "to go on: {}", way.describe());
                }
            }
        }
        text
    }

    /// For people: one line that says what, who and why.
    #[must_use]
    pub fn for_people(&self) -> String {
        format!("{} was refused by {}", self.subject(), self.by.describe())
    }

    fn subject(&self) -> String {
        match (&self.action, &self.resource) {
            (_, Some(resource)) => format!("{} on `{}`", self.tool, shown(resource)),
            (_, None) => self.tool.clone(),
        }
    }
}

impl RefusedBy {
    fn describe(&self) -> String {
        match self {
            Self::Schema { problem } => format!("the tool's schema: {problem}"),
            Self::Workflow {
                mode,
                state,
                guard,
                reason,
            } => format!("the workflow's guard `{guard}` ({mode}, {state}): {reason}"),
            Self::Policy { verdict, rules } => {
                let rules: Vec<String> = rules.iter().map(RuleVoice::describe).collect();
                let rules = match rules.is_empty() {
                    true => "no rule allows it".to_owned(),
                    false => rules.join("; "),
                };
                match verdict {
                    Verdict::RequireReview => format!("policy, until a person approves: {rules}"),
                    Verdict::Deny | Verdict::Allow => format!("policy: {rules}"),
                }
            }
            Self::Budget { exhausted } => exhausted.to_string(),
            Self::Person { reason } if reason.is_empty() => "a person".to_owned(),
            Self::Person { reason } => format!("a person: {reason}"),
            Self::Sandbox { reason } => format!("the sandbox: {reason}"),
        }
    }
}

impl RuleVoice {
    fn describe(&self) -> String {
        let Self {
            name,
            origin,
            reason,
        } = self;
        match reason.is_empty() {
            true => format!("rule `{name}` ({origin})"),
            false => format!("rule `{name}` ({origin}): {reason}"),
        }
    }
}

impl Way {
    fn describe(&self) -> String {
        match self {
            Self::Correct { how } | Self::Budget { how } => how.clone(),
            Self::Transition { to, by } => format!("move to `{to}`: {by}"),
            Self::Approval { question } => format!("a person is asked: {question}"),
            Self::Grant { capability } => {
                format!("the session would need a grant for `{capability}`")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fluffy_base::Timestamp;
    use fluffy_policy::extension::NoExtensions;
    use fluffy_policy::grant::{Grant, GrantLists};
    use fluffy_policy::{Context, Engine, Principal, PrincipalKind, Request, Sources};

    use super::*;

    fn decide(rules: &str, capabilities: &str, resource: &str) -> Decision {
        let rules = format!("version: 1\ncapabilities:\n{rules}");
        let sources = Sources {
            project: Some(&rules),
            ..Sources::default()
        };
        let all = || vec!["*".to_owned()];
        let grant = Grant::build(&GrantLists {
            capabilities: vec![capabilities.to_owned()],
            deny_capabilities: vec![],
            workspace: all(),
            user: all(),
        });
        let request = Request {
            principal: Principal::new(PrincipalKind::Agent, "agent", Arc::new(grant.unwrap())),
            action: "fs.write".into(),
            resource: Some(resource.into()),
            context: Context::default(),
        };
        let engine = Engine::load(&sources, 1).unwrap();
        engine.evaluate(&request, Timestamp::from_micros(0), &NoExtensions)
    }

    const RULES: &str = "  - { name: all, match: { action: fs.write }, do: allow }\n\
         \x20 - { name: no-env, match: { action: fs.write, path_glob: [.env] }, do: deny, reason: Secrets stay }\n\
         \x20 - { name: build, match: { action: fs.write, path_glob: [Makefile] }, do: require_review, reason: It runs }\n";

    #[test]
    fn a_denied_call_names_the_rule_and_offers_nothing() {
        let refusal = Refusal::of_decision("fs.write", &decide(RULES, "*", "/.env"));
        assert_eq!(
            refusal.for_model(),
            "REFUSED: fs.write on `.env`\nby: policy: rule `no-env` (project): Secrets stay\nnothing \
             allows this: do something else\n"
        );
        assert_eq!(
            refusal.for_people(),
            "fs.write on `.env` was refused by policy: rule `no-env` (project): Secrets stay"
        );
    }

    #[test]
    fn a_reviewed_call_waits_for_a_person_and_a_ceiling_names_the_grant() {
        let refusal = Refusal::of_decision("fs.write", &decide(RULES, "*", "/Makefile"));
        assert_eq!(
            refusal.ways,
            [Way::Approval {
                question: "may it use `fs.write./Makefile`?".to_owned()
            }]
        );
        let refusal = Refusal::of_decision("fs.write", &decide(RULES, "fs.read.*", "/a"));
        assert_eq!(
            refusal.ways,
            [Way::Grant {
                capability: "fs.write./a".to_owned()
            }]
        );
        let silent = decide(
            "  - { name: r, match: { action: fs.read }, do: allow }\n",
            "*",
            "/a",
        );
        let refusal = Refusal::of_decision("fs.write", &silent);
        assert!(refusal.ways.is_empty());
        assert!(
            refusal.for_model().contains("by: policy"),
            "{}",
            refusal.for_model()
        );
    }

    #[test]
    fn the_workflow_says_what_is_open_and_how_to_get_on() {
        let refusal = Refusal {
            action: Some("fs.write".to_owned()),
            resource: Some("/src/lib.rs".to_owned()),
            writable: vec!["tests/**".to_owned()],
            available: vec!["test.run".to_owned()],
            ..Refusal::new(
                "fs.write",
                RefusedBy::Workflow {
                    mode: Mode::Strict,
                    state: State::TestWriting,
                    guard: "red".to_owned(),
                    reason: "no new test has failed yet".to_owned(),
                },
                Way::Transition {
                    to: State::CodeWriting,
                    by: "run a new test that fails with `test.run`".to_owned(),
                },
            )
        };
        assert_eq!(
            refusal.for_model(),
            "REFUSED: fs.write on `src/lib.rs`\nby: the workflow's guard `red` (strict, \
             test_writing): no new test has failed yet\nwritable now: tests/**\ntools now: \
             test.run\nto go on: move to `code_writing`: run a new test that fails with `test.run`\n"
        );
        let text = serde_json::to_string(&refusal).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap(), refusal);
    }

    #[test]
    fn schema_and_budget_say_how_to_go_on() {
        let unknown = CheckCallError::UnknownTool {
            name: "x".to_owned(),
            nearest: None,
        };
        let text = Refusal::of_check("x", &unknown).for_model();
        assert!(
            text.contains("there is no tool `x`") && text.contains("to go on"),
            "{text}"
        );
        let exhausted = BudgetExhausted {
            which: crate::budget::Resource::Turns,
            used: 3,
            limit: 2,
        };
        let text = Refusal::of_budget("fs.read", exhausted).for_model();
        assert!(
            text.contains("3 of 2") && text.contains("`turns`"),
            "{text}"
        );
    }
}
