//! What is configured when a session is made, whatever it was when the kernel
//! started: its files as they are then, and the variables of who asks.

use std::collections::BTreeMap;

use fluffy_config::Environment;
use fluffy_ipc::{ErrorCode, Failure as Refused};
use fluffy_kernel::api::ProviderEnvironment;
use fluffy_models::selection;
use fluffy_tools::budget::{Limits, Lowered, Resource};
use fluffy_workflow::project::detect::{CommandOverride, CoverageCommand, Overrides};
use fluffy_workflow::results::Format;

use super::Maker;

/// What of it one session needs.
pub(super) struct Configured {
    pub(super) providers: BTreeMap<String, selection::ProviderConfig>,
    pub(super) overrides: Overrides,
    pub(super) limits: Limits,
    /// What plugins can have here at most.
    pub(super) plugins: Vec<String>,
}

impl Maker {
    /// What is configured now, for whoever has these variables.
    pub(super) fn configured(&self, asks: &ProviderEnvironment) -> Result<Configured, Refused> {
        let variables: Environment = asks.settings.iter().collect();
        let settings = fluffy_config::load(&self.paths, variables, Vec::new(), None);
        let settings = settings.map_err(|error| {
            let why = fluffy_kernel::agent::explain(&error);
            Refused::new(ErrorCode::InvalidParams, why)
        })?;
        let values = settings.values();
        Ok(Configured {
            providers: values.providers.iter().map(provider).collect(),
            overrides: overrides(&values.tests),
            limits: limits(&values.budget),
            plugins: values.plugins.allow.clone(),
        })
    }
}

fn provider(
    (name, config): (&String, &fluffy_config::Provider),
) -> (String, selection::ProviderConfig) {
    let wire = config.wire.map(|wire| match wire {
        fluffy_config::Wire::Responses => selection::WireChoice::Responses,
        fluffy_config::Wire::Chat => selection::WireChoice::Chat,
    });
    let key = config.api_key.as_ref().map(|key| match key {
        fluffy_config::KeySource::Env(name) => selection::KeySource::Env(name.clone()),
        fluffy_config::KeySource::Keyring(name) => selection::KeySource::Keyring(name.clone()),
    });
    let config = selection::ProviderConfig {
        base_url: config.base_url.clone(),
        wire,
        api_key: key,
    };
    (name.clone(), config)
}

fn overrides(tests: &fluffy_config::Tests) -> Overrides {
    let written = |command: &Vec<String>| CommandOverride {
        command: command.clone(),
        format: Format::Auto,
        directory: "/".to_owned(),
    };
    let integration = tests.integration.iter();
    let integration = integration.map(|(name, command)| (name.clone(), written(command)));
    let (command, report) = (&tests.coverage.command, &tests.coverage.report);
    let says = command.is_some() || report.is_some();
    // Half of it is refused where it is used.
    let coverage = says.then(|| CoverageCommand {
        command: command.clone().unwrap_or_default(),
        report: report.clone().unwrap_or_default(),
    });
    Overrides {
        commands: tests.command.iter().map(written).collect(),
        integration: integration.collect(),
        coverage,
        ..Overrides::default()
    }
}

fn limits(budget: &fluffy_config::Budget) -> Limits {
    Limits {
        calls_per_turn: budget.tool_calls,
        turns: budget.turns,
        tokens: budget.tokens,
        money: budget.cost_cents.saturating_mul(10_000),
        time: budget.wall_time,
        depth: budget.subagent_depth,
    }
}

/// The configured limits, with what a person wants lower.
pub(super) fn lowered(limits: Limits, wishes: &BTreeMap<String, u64>) -> Result<Lowered, String> {
    let mut named = Vec::new();
    for (name, wish) in wishes {
        let Some(resource) = Resource::named(name) else {
            let all = Resource::ALL.map(Resource::word).join(", ");
            return Err(format!("there is no budget `{name}`; there are {all}"));
        };
        named.push((resource, wish.saturating_mul(resource.unit())));
    }
    Ok(limits.lowered(&named))
}
