//! The contexts of a person: which server, org, app and env are meant.
//!
//! `contexts.toml` lies beside `config.toml` and is written by us; it holds no
//! secret. What a context is logged in with is in the state directory, for
//! this user only, and is used for the server it was given by and no other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use fluffy_config::Paths;
use fluffy_report::{ExitCode, Report};
use fluffy_secret::SecretString;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::failure::{self, Failure};

/// Every context, and which one is current.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

/// What a context says; what it does not say is asked elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) org: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) env: Option<String>,
}

impl Contexts {
    /// The contexts of this person; none if there is no file.
    pub(crate) fn read(paths: &Paths) -> Result<Self, Failure> {
        let path = file(paths);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failure::unreadable(&path, &error).into()),
        };
        toml::from_str(&text).map_err(|error| {
            Report::new(
                ExitCode::Usage,
                format!("`{}` cannot be read", path.display()),
            )
            .why(error.message().to_owned())
            .fix("correct it, or remove it and run `fluffy context set` again")
            .into()
        })
    }

    /// Puts the contexts in the place of those before.
    pub(crate) fn write(&self, paths: &Paths) -> Result<(), Failure> {
        let path = file(paths);
        let text = toml::to_string(self).unwrap_or_default();
        replace(&path, text.as_bytes()).map_err(|error| failure::unwritable(&path, &error).into())
    }

    /// The context of that name.
    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            Report::new(ExitCode::NotFound, format!("there is no context `{name}`"))
                .fix("`fluffy context list` shows them; `fluffy context set` makes one")
                .into()
        })
    }
}

/// What a context is logged in with, and what it last saw.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Login {
    /// The server that all of this is about.
    pub(crate) server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    /// The last event of this person's own writes, and its epoch.
    #[serde(default)]
    pub(crate) last_seq: u64,
    #[serde(default)]
    pub(crate) epoch: u64,
}

impl Login {
    /// What is held for a context and this server; empty if nothing is.
    pub(crate) fn read(paths: &Paths, context: &str, server: &str) -> Self {
        let text = fs::read_to_string(login_file(paths, context)).unwrap_or_default();
        let held: Self = serde_json::from_str(&text).unwrap_or_default();
        if held.server == server {
            return held;
        }
        Self {
            server: server.to_owned(),
            ..Self::default()
        }
    }

    /// Keeps it, for this user only.
    pub(crate) fn write(&self, paths: &Paths, context: &str) -> Result<(), Failure> {
        paths.create().map_err(|error| failure::paths(&error))?;
        let path = login_file(paths, context);
        let text = serde_json::to_vec(self).unwrap_or_default();
        replace(&path, &text).map_err(|error| failure::unwritable(&path, &error).into())
    }

    /// Forgets it.
    pub(crate) fn remove(paths: &Paths, context: &str) -> Result<(), Failure> {
        let path = login_file(paths, context);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failure::unwritable(&path, &error).into())
            }
            _ => Ok(()),
        }
    }

    /// What proves who calls.
    pub(crate) fn access_token(&self) -> Option<SecretString> {
        self.access_token.clone().map(SecretString::from)
    }

    /// What gets the next access token.
    pub(crate) fn refresh_token(&self) -> Option<SecretString> {
        self.refresh_token.clone().map(SecretString::from)
    }

    /// Takes new tokens in the place of the old ones.
    pub(crate) fn set_tokens(&mut self, access: Option<String>, refresh: Option<String>) {
        self.access_token = access;
        self.refresh_token = refresh;
    }
}

/// Whether a text can name a context, and a file.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        return Ok(());
    }
    let what = format!("`{name}` cannot be the name of a context");
    let fix = "use up to 64 lower-case letters, digits, `-` and `_`";
    Err(Report::new(ExitCode::Usage, what).fix(fix).into())
}

fn file(paths: &Paths) -> PathBuf {
    paths.config_file.with_file_name("contexts.toml")
}

/// Names are checked before they come here, so none leads elsewhere.
fn login_file(paths: &Paths, context: &str) -> PathBuf {
    paths
        .state_dir
        .join("logins")
        .join(format!("{context}.json"))
}

/// Writes beside and renames, so that nobody reads half a file; only this user
/// can read it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut beside = NamedTempFile::new_in(folder)?;
    beside.write_all(bytes)?;
    beside.persist(path).map_err(|error| error.error)?;
    Ok(())
}
