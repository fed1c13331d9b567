//! What a new session is begun with: flags over configuration over defaults.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use fluffy_base::Span;
use fluffy_config::KeySource;
use fluffy_config::keys::{KEYS, Key};
use fluffy_kernel::agent::explain;
use fluffy_kernel::api::{Presence, ProviderEnvironment, Start};
use fluffy_kernel::commit::Author;
use fluffy_models::selection::{ADDRESS_VARIABLES, KEY_VARIABLES};
use fluffy_policy::word::{Mode, Tier};
use fluffy_report::{ExitCode, Report};
use fluffy_tools::budget::Resource;

use super::keyring;
use crate::args::{ModeArg, TierArg, WorkArgs};
use crate::command::{person, recordings};
use crate::failure::{self, Failure};
use crate::session::Here;

/// The longest name or address that is taken from git.
const MAX_NAME: usize = 256;

/// Everything but the task.
pub(crate) fn wanted(
    here: &Here,
    folder: &Path,
    args: &WorkArgs,
    person: Presence,
) -> Result<Start, Failure> {
    let record = match &args.record {
        Some(path) => {
            let path =
                std::path::absolute(path).map_err(|error| failure::unwritable(path, &error))?;
            // Said now, and not when the work is done.
            recordings::check_place(&path)?;
            Some(path)
        }
        None => None,
    };
    let models = models(here, &args.model)?;
    let providers = providers(here, &models);
    Ok(Start {
        task: String::new(),
        mode: args.mode.map_or(Mode::Strict, mode),
        models,
        person,
        author: author(here),
        directory: directory(here, folder),
        budget: budget(&args.budget)?,
        tier: args.tier.map(tier),
        record,
        forked_from: None,
        providers,
    })
}

/// What the person's environment says about providers, and nothing else of it,
/// with what the keyring has for these models. A key that is not to be had is
/// a problem of whoever needs it.
pub(crate) fn providers(here: &Here, models: &[String]) -> ProviderEnvironment {
    let configured = &here.settings.values().providers;
    let named = configured
        .values()
        .filter_map(|provider| match &provider.api_key {
            Some(KeySource::Env(name)) => Some(name.as_str()),
            Some(KeySource::Keyring(_)) | None => None,
        });
    let own: Vec<String> = KEYS.iter().map(Key::env_name).collect();
    let mut found = ProviderEnvironment {
        addresses: variables(ADDRESS_VARIABLES.iter().copied()),
        keys: variables(KEY_VARIABLES.iter().copied().chain(named)),
        problems: BTreeMap::new(),
        settings: variables(own.iter().map(String::as_str)),
    };
    for (provider, settings) in configured {
        let is_used = |model: &String| match model.split('/').next() {
            // The same by its other name.
            Some("gemini") => provider == "google",
            name => name == Some(provider.as_str()),
        };
        let Some(KeySource::Keyring(name)) = &settings.api_key else {
            continue;
        };
        // Asking for more than is needed would unlock more than is needed.
        if !models.iter().any(is_used) {
            continue;
        }
        match keyring::read(name) {
            Ok(key) => {
                let place = ProviderEnvironment::of_keyring(name);
                found.keys.insert(place, key.expose().clone());
            }
            Err(error) => {
                let text = format!("{}; {}", explain(&error), error.fix());
                found.problems.insert(name.clone(), text);
            }
        }
    }
    found
}

fn variables<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let set = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    let found = names.filter_map(set);
    found.filter(|(_, value)| !value.is_empty()).collect()
}

/// In whose name commits are made: git's own settings, or the user's number.
fn author(here: &Here) -> Author {
    let name = git(here, "user.name");
    let email = git(here, "user.email");
    Author {
        name: name.unwrap_or_else(person::name),
        email: email.unwrap_or_else(|| format!("{}@localhost", person::name())),
    }
}

/// One value of git's settings; reading them runs nothing of the repository.
fn git(here: &Here, key: &str) -> Option<String> {
    let root = here.paths.project_root.as_ref()?;
    let output = Command::new("git")
        .args(["config", "--get", key])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    let is_plain = (1..=MAX_NAME).contains(&text.len())
        && !text.contains(|c: char| c.is_control() || c == '<' || c == '>');
    (output.status.success() && is_plain).then(|| text.to_owned())
}

fn models(here: &Here, given: &[String]) -> Result<Vec<String>, Failure> {
    let models: Vec<String> = if given.is_empty() {
        here.settings.values().model.iter().cloned().collect()
    } else {
        given.to_vec()
    };
    if models.is_empty() {
        return Err(no_model().into());
    }
    match models.iter().find(|model| !is_name(model)) {
        Some(wrong) => Err(no_name(wrong).into()),
        None => models
            .into_iter()
            .map(|model| located(here, model))
            .collect(),
    }
}

/// A recording is named by its file, and the kernel reads only what is ours.
fn located(here: &Here, model: String) -> Result<String, Failure> {
    match model.strip_prefix("replay/") {
        Some(file) => {
            let kept = recordings::keep(here, Path::new(file))?;
            Ok(format!("replay/{}", kept.display()))
        }
        None => Ok(model),
    }
}

/// Limits by name; a time is written as in the configuration, or in seconds.
fn budget(given: &[String]) -> Result<BTreeMap<String, u64>, Failure> {
    let mut budget = BTreeMap::new();
    for one in given {
        let Some((name, value)) = one.split_once('=') else {
            return Err(no_budget(one).into());
        };
        let number = value.parse::<u64>().ok();
        let number = number.or_else(|| match Resource::named(name) {
            Some(Resource::Time) => value.parse::<Span>().ok().map(|span| span.millis / 1_000),
            _ => None,
        });
        let Some(number) = number else {
            return Err(no_budget(one).into());
        };
        budget.insert(name.to_owned(), number);
    }
    Ok(budget)
}

fn no_budget(given: &str) -> Report {
    let names = Resource::ALL.map(Resource::word).join(", ");
    Report::new(ExitCode::Usage, format!("`{given}` is no budget"))
        .code("no_budget")
        .why(format!("a budget is a name and a number: {names}"))
        .fix("write it as in --budget turns=20 or --budget wall_time=10m")
}

fn is_name(model: &str) -> bool {
    let parts = model.split_once('/');
    parts.is_some_and(|(provider, model)| !provider.is_empty() && !model.is_empty())
}

fn no_model() -> Report {
    Report::new(ExitCode::Usage, "no model is chosen")
        .code("no_model")
        .fix("name one with --model PROVIDER/MODEL, such as openai/gpt-5")
        .fix("or set FLUFFY_MODEL, or `model = \"…\"` in your ~/.config/fluffy/config.toml")
}

fn no_name(model: &str) -> Report {
    Report::new(ExitCode::Usage, format!("`{model}` does not name a model"))
        .code("no_model")
        .fix("write the provider before it, as in openai/gpt-5 or ollama/qwen3")
}

/// Where in the project the person is.
fn directory(here: &Here, folder: &Path) -> String {
    let root = here.paths.project_root.as_deref();
    let below = root.and_then(|root| folder.strip_prefix(root).ok());
    let below = below.map(|path| path.to_string_lossy().into_owned());
    below.unwrap_or_default()
}

/// The mode of this name.
pub(crate) const fn mode(mode: ModeArg) -> Mode {
    match mode {
        ModeArg::Strict => Mode::Strict,
        ModeArg::Explore => Mode::Explore,
        ModeArg::Debug => Mode::Debug,
    }
}

const fn tier(tier: TierArg) -> Tier {
    match tier {
        TierArg::Wasm => Tier::Wasm,
        TierArg::Process => Tier::Process,
        TierArg::Container => Tier::Container,
        TierArg::Microvm => Tier::Microvm,
    }
}
