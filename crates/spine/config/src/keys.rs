//! The registry of configuration keys, in alphabetical order.
//!
//! A key exists if and only if it is here: name, type, default, meaning, and
//! whether a project may set it. Help, reference, schema, environment names
//! and the checks of files all come from this list. To add a key: a field in
//! [`crate::values`], an entry here.

use std::path::PathBuf;

use fluffy_base::{ByteSize, Span};

use crate::values::{ColorMode, ProcessEngine, Provider, Values};

/// One configuration key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The dotted name, as in `ledger.path`.
    pub name: &'static str,
    /// What values it takes, and where they are kept.
    pub kind: Kind,
    /// The default as a person would write it; empty means none.
    pub default: &'static str,
    /// One line for the reference.
    pub meaning: &'static str,
    /// Whether a file in a repository may set it.
    pub project: ProjectRule,
}

impl Key {
    /// The environment variable of this key, as in `FLUFFY_LEDGER_PATH`.
    #[must_use]
    pub fn env_name(&self) -> String {
        let name = self.name.replace('.', "_").to_ascii_uppercase();
        format!("{}{name}", crate::env::PREFIX)
    }
}

/// Whether configuration that comes with a repository may set a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectRule {
    /// It is data about the project.
    May,
    /// Only to a smaller value than the user's.
    Downward,
    /// Not before a person reviewed the file.
    Never,
}

/// What values a key takes, with the field that keeps them.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// When to use colour.
    Color(fn(&mut Values) -> &mut ColorMode),
    /// A program and its arguments.
    Command(fn(&mut Values) -> &mut Option<Vec<String>>),
    /// A whole number within limits, both included.
    Count {
        /// The smallest value.
        least: u64,
        /// The largest value.
        most: u64,
        /// Where it is kept.
        field: fn(&mut Values) -> &mut u64,
    },
    /// What isolates on the process tier.
    Engine(fn(&mut Values) -> &mut ProcessEngine),
    /// A path inside the project, relative to it.
    Inside(fn(&mut Values) -> &mut Option<String>),
    /// `provider/model`.
    Model(fn(&mut Values) -> &mut Option<String>),
    /// An absolute path.
    Path(fn(&mut Values) -> &mut Option<PathBuf>),
    /// A list of absolute paths.
    Paths(fn(&mut Values) -> &mut Vec<PathBuf>),
    /// Patterns of capabilities.
    Patterns(fn(&mut Values) -> &mut Vec<String>),
    /// A number of bytes with a unit.
    Size(fn(&mut Values) -> &mut ByteSize),
    /// Identities in channels, each as `channel:identity`.
    Speakers(fn(&mut Values) -> &mut Vec<String>),
    /// A duration with a unit.
    Time(fn(&mut Values) -> &mut Span),
}

/// Every key, except those of providers.
pub const KEYS: &[Key] = &[
    Key {
        name: "budget.cost_cents",
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
            field: |values| &mut values.budget.cost_cents,
        },
        default: "500",
        meaning: "money an agent task may spend on models, in US cents",
        project: ProjectRule::Downward,
    },
    Key {
        name: "budget.subagent_depth",
        kind: Kind::Count {
            least: 0,
            most: 8,
            field: |values| &mut values.budget.subagent_depth,
        },
        default: "2",
        meaning: "how deep subagents may start subagents",
        project: ProjectRule::Downward,
    },
    Key {
        name: "budget.tokens",
        kind: Kind::Count {
            least: 1,
            most: 1_000_000_000,
            field: |values| &mut values.budget.tokens,
        },
        default: "2000000",
        meaning: "tokens an agent task may use, in and out",
        project: ProjectRule::Downward,
    },
    Key {
        name: "budget.tool_calls",
        kind: Kind::Count {
            least: 1,
            most: 10_000,
            field: |values| &mut values.budget.tool_calls,
        },
        default: "50",
        meaning: "tool calls in one turn of the model",
        project: ProjectRule::Downward,
    },
    Key {
        name: "budget.turns",
        kind: Kind::Count {
            least: 1,
            most: 10_000,
            field: |values| &mut values.budget.turns,
        },
        default: "100",
        meaning: "turns of the model in one agent task",
        project: ProjectRule::Downward,
    },
    Key {
        name: "budget.wall_time",
        kind: Kind::Time(|values| &mut values.budget.wall_time),
        default: "1h",
        meaning: "time an agent task may take from start to end",
        project: ProjectRule::Downward,
    },
    Key {
        name: "channels.approvers",
        kind: Kind::Speakers(|values| &mut values.channels.approvers),
        default: "",
        meaning: "who may answer the agent's questions through a channel, as `channel:identity`",
        project: ProjectRule::Never,
    },
    Key {
        name: "channels.senders",
        kind: Kind::Speakers(|values| &mut values.channels.senders),
        default: "",
        meaning: "who may give work through a channel, as `channel:identity`",
        project: ProjectRule::Never,
    },
    Key {
        name: "ledger.path",
        kind: Kind::Path(|values| &mut values.ledger.path),
        default: "",
        meaning: "the ledger's directory, if not the one in the state directory",
        project: ProjectRule::Never,
    },
    Key {
        name: "ledger.retention_days",
        kind: Kind::Count {
            least: 1,
            most: 36_500,
            field: |values| &mut values.ledger.retention_days,
        },
        default: "90",
        meaning: "days of the agent's events that are kept",
        project: ProjectRule::Never,
    },
    Key {
        name: "ledger.retention_size",
        kind: Kind::Size(|values| &mut values.ledger.retention_size),
        default: "1GiB",
        meaning: "size of the agent's events that are kept",
        project: ProjectRule::Never,
    },
    Key {
        name: "ledger.witness",
        kind: Kind::Paths(|values| &mut values.ledger.witness),
        default: "",
        meaning: "files that get a copy of every checkpoint",
        project: ProjectRule::Never,
    },
    Key {
        name: "model",
        kind: Kind::Model(|values| &mut values.model),
        default: "",
        meaning: "which model answers, as `provider/model`",
        project: ProjectRule::Never,
    },
    Key {
        name: "plugins.allow",
        kind: Kind::Patterns(|values| &mut values.plugins.allow),
        default: "*",
        meaning: "what plugins can have at most, as patterns of capabilities; a project only narrows it",
        project: ProjectRule::Downward,
    },
    Key {
        name: "policy.trial_last",
        kind: Kind::Count {
            least: 1,
            most: 1_000_000,
            field: |values| &mut values.policy.trial_last,
        },
        default: "100",
        meaning: "how many recorded decisions a new policy is tried on",
        project: ProjectRule::Never,
    },
    Key {
        name: "sandbox.engine",
        kind: Kind::Engine(|values| &mut values.sandbox.engine),
        default: "native",
        meaning: "what isolates the agent's tools: native, bwrap, or reduced (Landlock and seccomp alone, and no model can be reached: for `fluffy replay`)",
        project: ProjectRule::Never,
    },
    Key {
        name: "tasks.age",
        kind: Kind::Time(|values| &mut values.tasks.age),
        default: "30s",
        meaning: "after how long waiting work of a session becomes one level more urgent",
        project: ProjectRule::Never,
    },
    Key {
        name: "tasks.models",
        kind: Kind::Count {
            least: 1,
            most: 64,
            field: |values| &mut values.tasks.models,
        },
        default: "2",
        meaning: "models that a project's sessions ask at once",
        project: ProjectRule::Never,
    },
    Key {
        name: "tasks.tests",
        kind: Kind::Count {
            least: 1,
            most: 64,
            field: |values| &mut values.tasks.tests,
        },
        default: "2",
        meaning: "test runs of a project's sessions at once",
        project: ProjectRule::Never,
    },
    Key {
        name: "tasks.total",
        kind: Kind::Count {
            least: 1,
            most: 64,
            field: |values| &mut values.tasks.total,
        },
        default: "4",
        meaning: "everything that a project's sessions do at once, other tools not counted",
        project: ProjectRule::Never,
    },
    Key {
        name: "tests.command",
        kind: Kind::Command(|values| &mut values.tests.command),
        default: "",
        meaning: "program and arguments that run the tests, if not the detected ones",
        project: ProjectRule::May,
    },
    Key {
        name: "tests.coverage.command",
        kind: Kind::Command(|values| &mut values.tests.coverage.command),
        default: "",
        meaning: "program and arguments that run the tests and write a report of their coverage",
        project: ProjectRule::May,
    },
    Key {
        name: "tests.coverage.report",
        kind: Kind::Inside(|values| &mut values.tests.coverage.report),
        default: "",
        meaning: "where that report is, in lcov, Cobertura or istanbul's summary",
        project: ProjectRule::May,
    },
    Key {
        name: "ui.color",
        kind: Kind::Color(|values| &mut values.ui.color),
        default: "auto",
        meaning: "when to use colour: auto, always or never",
        project: ProjectRule::Never,
    },
];

/// One key below `providers.<name>`; only for the user's own file.
#[derive(Debug, Clone, Copy)]
pub struct ProviderKey {
    /// The name below the provider, as in `api_key.env`.
    pub name: &'static str,
    /// One line for the reference.
    pub meaning: &'static str,
    /// Takes the value, or says what was expected instead.
    pub(crate) set: fn(&mut Provider, &str) -> Result<(), &'static str>,
}

/// Every key of a provider.
pub const PROVIDER_KEYS: &[ProviderKey] = &[
    ProviderKey {
        name: "api_key.env",
        meaning: "the environment variable that holds the API key",
        set: crate::parse::provider_key_env,
    },
    ProviderKey {
        name: "api_key.keyring",
        meaning: "the entry of the system's keyring that holds the API key",
        set: crate::parse::provider_key_keyring,
    },
    ProviderKey {
        name: "base_url",
        meaning: "the server to talk to, if not the vendor's",
        set: crate::parse::provider_base_url,
    },
    ProviderKey {
        name: "wire",
        meaning: "the interface it speaks: responses or chat",
        set: crate::parse::provider_wire,
    },
];

/// Sections that only a reviewed file of a project may ever have.
///
/// They are not keys of this version; named here so that a repository that
/// brings one is told why it is refused and not only that it is unknown.
pub(crate) const REVIEWED_SECTIONS: &[&str] = &["network", "plugins", "rules"];

/// The key of this exact name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_in_order_and_without_duplicates() {
        assert!(KEYS.is_sorted_by(|a, b| a.name < b.name));
        assert!(PROVIDER_KEYS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn a_project_may_only_bring_data() {
        let may: Vec<_> = KEYS
            .iter()
            .filter(|key| key.project != ProjectRule::Never)
            .map(|key| key.name.split('.').next().unwrap_or_default())
            .collect();
        assert!(
            may.iter()
                .all(|section| ["budget", "plugins", "tests"].contains(section))
        );
    }

    #[test]
    fn no_two_keys_share_a_variable() {
        let names: std::collections::BTreeSet<_> = KEYS.iter().map(Key::env_name).collect();
        assert_eq!(names.len(), KEYS.len());
        assert!(names.contains("FLUFFY_LEDGER_RETENTION_DAYS"));
        let plain = crate::env::VARIABLES.iter().map(|(name, _)| *name);
        assert!(plain.into_iter().all(|name| !names.contains(name)));
    }
}
