//! Which provider is meant, where it is, and where its key is found.
//!
//! `provider/model`, the configuration and the variables people have set
//! already become one [`Selected`]. Plain values in, plain values out: keys
//! are named here and never read. Next: `driver::Link`, which it becomes.

use std::collections::{BTreeMap, BTreeSet};

use crate::adapter::{ProviderSettings, Wire};
use crate::address::{BaseUrl, ParseBaseUrlError};

/// The variables with addresses that are honoured.
pub const ADDRESS_VARIABLES: &[&str] = &[
    "ANTHROPIC_BASE_URL",
    "GOOGLE_GEMINI_BASE_URL",
    "OPENAI_BASE_URL",
];

/// The variables with keys that are honoured without being named.
pub const KEY_VARIABLES: &[&str] = &["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"];

/// One provider in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderConfig {
    /// Where it is.
    pub base_url: Option<String>,
    /// What it speaks.
    pub wire: Option<WireChoice>,
    /// Where its key is found.
    pub api_key: Option<KeySource>,
}

/// The formats that configuration can choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireChoice {
    /// The Responses API.
    Responses,
    /// Chat Completions.
    Chat,
}

/// Where a key is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In this variable.
    Env(String),
    /// In the system's keyring under this name.
    Keyring(String),
}

/// What is set in the environment, without any key.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// The values of [`ADDRESS_VARIABLES`].
    pub addresses: BTreeMap<String, String>,
    /// Which variables with keys are set.
    pub keys: BTreeSet<String>,
}

/// A model that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// Its provider.
    pub settings: ProviderSettings,
    /// Its name there.
    pub model: String,
    /// Where its key is; nothing if it needs none.
    pub key: Option<KeySource>,
    /// Its name in the list of prices; nothing where others set the price.
    pub priced_as: Option<String>,
}

/// Why there is no model to ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectModelError {
    /// Not `provider/model`.
    #[error("`{text}` is not a provider and its model")]
    Form {
        /// What was written, cut.
        text: String,
    },
    /// Nobody knows the provider.
    #[error("the provider `{provider}` is not known")]
    UnknownProvider {
        /// The provider.
        provider: String,
    },
    /// The address is none.
    #[error("the address of `{provider}` from {origin} cannot be used")]
    Address {
        /// The provider.
        provider: String,
        /// Where it was written.
        origin: String,
        /// What is wrong with it.
        #[source]
        source: ParseBaseUrlError,
    },
    /// There is no key for a provider on another machine.
    #[error("there is no key for `{provider}` at `{host}`")]
    NoKey {
        /// The provider.
        provider: String,
        /// The host.
        host: String,
        /// The variable that would be read.
        variable: Option<String>,
    },
    /// The provider speaks only its own format.
    #[error("`{provider}` has one format only; `wire` cannot be set for it")]
    FixedWire {
        /// The provider.
        provider: String,
    },
}

impl SelectModelError {
    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Form { .. } => {
                "write provider/model, such as openai/gpt-5.5 or ollama/qwen3".to_owned()
            }
            Self::UnknownProvider { provider } => format!(
                "use openai, anthropic, google, ollama or lmstudio, or set `base_url` in [providers.{provider}] of your own configuration"
            ),
            Self::Address { origin, .. } => format!("correct it in {origin}"),
            Self::NoKey {
                provider, variable, ..
            } => match variable {
                Some(variable) => format!("set {variable}"),
                None => format!(
                    "set `api_key = {{ env = \"NAME\" }}` in [providers.{provider}] of your own configuration"
                ),
            },
            Self::FixedWire { provider } => format!("remove `wire` from [providers.{provider}]"),
        }
    }
}

/// A provider we know.
struct Known {
    name: &'static str,
    wire: Wire,
    base_url: &'static str,
    address_variable: Option<&'static str>,
    key_variable: Option<&'static str>,
}

const KNOWN: &[Known] = &[
    Known {
        name: "anthropic",
        wire: Wire::Anthropic,
        base_url: "https://api.anthropic.com",
        address_variable: Some("ANTHROPIC_BASE_URL"),
        key_variable: Some("ANTHROPIC_API_KEY"),
    },
    Known {
        name: "google",
        wire: Wire::Gemini,
        base_url: "https://generativelanguage.googleapis.com",
        address_variable: Some("GOOGLE_GEMINI_BASE_URL"),
        key_variable: Some("GEMINI_API_KEY"),
    },
    Known {
        name: "lmstudio",
        wire: Wire::Chat,
        base_url: "http://127.0.0.1:1234/v1",
        address_variable: None,
        key_variable: None,
    },
    Known {
        name: "ollama",
        wire: Wire::Chat,
        base_url: "http://127.0.0.1:11434/v1",
        address_variable: None,
        key_variable: None,
    },
    Known {
        name: "openai",
        wire: Wire::Responses,
        base_url: "https://api.openai.com/v1",
        address_variable: Some("OPENAI_BASE_URL"),
        key_variable: Some("OPENAI_API_KEY"),
    },
];

/// Finds the model that a text means.
///
/// # Errors
/// There is none, or it cannot be reached with what is set; the error says
/// what to do.
pub fn select(
    text: &str,
    providers: &BTreeMap<String, ProviderConfig>,
    environment: &Environment,
) -> Result<Selected, SelectModelError> {
    let (provider, model) = split(text)?;
    let known = KNOWN.iter().find(|known| known.name == provider);
    let config = providers.get(provider).cloned().unwrap_or_default();
    let (address, origin) = address(provider, known, &config, environment)?;
    let base_url: BaseUrl = address
        .parse()
        .map_err(|source| SelectModelError::Address {
            provider: provider.to_owned(),
            origin,
            source,
        })?;
    let vendor = known.map(|known| known.base_url.parse::<BaseUrl>());
    let is_vendor = vendor.is_some_and(|vendor| {
        vendor.is_ok_and(|vendor| vendor.host() == base_url.host()) && !base_url.is_loopback()
    });
    let wire = match (known.map(|known| known.wire), config.wire) {
        (Some(Wire::Anthropic | Wire::Gemini), Some(_)) => {
            let provider = provider.to_owned();
            return Err(SelectModelError::FixedWire { provider });
        }
        (_, Some(WireChoice::Responses)) => Wire::Responses,
        (_, Some(WireChoice::Chat)) => Wire::Chat,
        // Servers that imitate OpenAI imitate its older interface.
        (Some(Wire::Responses), None) if !is_vendor => Wire::Chat,
        (Some(wire), None) => wire,
        (None, None) => Wire::Chat,
    };
    Ok(Selected {
        key: key(provider, known, &config, environment, &base_url)?,
        model: model.to_owned(),
        priced_as: is_vendor.then(|| format!("{provider}/{model}")),
        settings: ProviderSettings {
            provider: provider.to_owned(),
            wire,
            base_url,
        },
    })
}

fn split(text: &str) -> Result<(&str, &str), SelectModelError> {
    let wrong = || SelectModelError::Form {
        text: text.chars().take(64).collect(),
    };
    let (provider, model) = text.split_once('/').ok_or_else(wrong)?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let is_fine = !provider.is_empty()
        && provider.chars().all(allowed)
        && !model.is_empty()
        && model.chars().all(|c| c.is_ascii_graphic());
    let provider = match provider {
        "gemini" => "google",
        provider => provider,
    };
    is_fine.then_some((provider, model)).ok_or_else(wrong)
}

/// The address, and where it was written.
fn address(
    provider: &str,
    known: Option<&Known>,
    config: &ProviderConfig,
    environment: &Environment,
) -> Result<(String, String), SelectModelError> {
    if let Some(address) = &config.base_url {
        return Ok((address.clone(), format!("[providers.{provider}]")));
    }
    let Some(known) = known else {
        let provider = provider.to_owned();
        return Err(SelectModelError::UnknownProvider { provider });
    };
    let from_variable = known.address_variable.and_then(|variable| {
        let value = environment
            .addresses
            .get(variable)
            .filter(|value| !value.is_empty())?;
        Some((value.clone(), variable.to_owned()))
    });
    Ok(from_variable.unwrap_or_else(|| (known.base_url.to_owned(), "this program".to_owned())))
}

fn key(
    provider: &str,
    known: Option<&Known>,
    config: &ProviderConfig,
    environment: &Environment,
    base_url: &BaseUrl,
) -> Result<Option<KeySource>, SelectModelError> {
    let no_key = |variable: Option<&str>| SelectModelError::NoKey {
        provider: provider.to_owned(),
        host: base_url.host().to_owned(),
        variable: variable.map(str::to_owned),
    };
    let is_set = |variable: &str| environment.keys.contains(variable);
    match &config.api_key {
        Some(KeySource::Env(variable)) if !is_set(variable) && !base_url.is_loopback() => {
            Err(no_key(Some(variable)))
        }
        Some(KeySource::Env(variable)) if !is_set(variable) => Ok(None),
        Some(source) => Ok(Some(source.clone())),
        None => {
            let variable = known.and_then(|known| known.key_variable);
            match variable.filter(|variable| is_set(variable)) {
                Some(variable) => Ok(Some(KeySource::Env(variable.to_owned()))),
                None if base_url.is_loopback() => Ok(None),
                None => Err(no_key(variable)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
