//! The contexts of a person: which server, org, app and env are meant.
//!
//! `contexts.toml` lies beside `config.toml` and is written by us; it holds no
//! secret. What a context is logged in with is in the state directory, for
//! this user only, is used for the server it was given by and no other, and is
//! changed only by who holds its lock.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fluffy_base::Digest;
use fluffy_config::Paths;
use fluffy_report::{ExitCode, Report};
use fluffy_secret::SecretString;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::failure::{self, Failure};

/// How long another command may take that changes a login.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How often is looked whether a login is free.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

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
    last_seq: u64,
    #[serde(default)]
    epoch: u64,
}

impl Login {
    /// What is held for a context and this server; empty if nothing is.
    pub(crate) fn read(paths: &Paths, context: &str, server: &str) -> Self {
        let held = Self::read_file(&login_file(paths, context, server));
        held.unwrap_or_else(|| Self {
            server: server.to_owned(),
            ..Self::default()
        })
    }

    fn read_file(path: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
    }

    /// Keeps it, for this user only. Only who holds the lock knows that
    /// nothing is lost by that.
    pub(crate) fn write(&self, lock: &LoginLock<'_>) -> Result<(), Failure> {
        let path = login_file(lock.paths, lock.context, &self.server);
        let text = serde_json::to_vec(self).unwrap_or_default();
        replace(&path, &text).map_err(|error| failure::unwritable(&path, &error).into())
    }

    /// Forgets what is held for this server.
    pub(crate) fn remove(lock: &LoginLock<'_>, server: &str) -> Result<(), Failure> {
        let path = login_file(lock.paths, lock.context, server);
        match Self::read_file(&path) {
            Some(held) if held.server != server => Ok(()),
            _ => remove_file(&path),
        }
    }

    /// Forgets what is held for a context, whatever the server.
    pub(crate) fn remove_all(lock: &LoginLock<'_>) -> Result<(), Failure> {
        let folder = folder(lock.paths);
        let own = format!("{}.json", lock.context);
        let beside = format!("{}@", lock.context);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == own || name.starts_with(&beside) {
                remove_file(&entry.path())?;
            }
        }
        Ok(())
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

    /// The epoch and the number of the last event of this person's own writes.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.epoch, self.last_seq)
    }

    /// Takes note of the last event of this person's own writes.
    pub(crate) fn saw(&mut self, seen: (u64, u64)) {
        (self.epoch, self.last_seq) = seen;
    }
}

/// The right to change what a context is logged in with: one command at a
/// time, so that no two send the same refresh token, and none writes over what
/// another has just got. The system takes it back when its holder ends.
pub(crate) struct LoginLock<'a> {
    paths: &'a Paths,
    context: &'a str,
    _file: File,
}

impl<'a> LoginLock<'a> {
    /// Takes it, unless somebody has it.
    pub(crate) fn take(paths: &'a Paths, context: &'a str) -> Result<Option<Self>, Failure> {
        paths.create().map_err(|error| failure::paths(&error))?;
        let path = folder(paths).join(format!("{context}.lock"));
        let open = || {
            fs::create_dir_all(folder(paths))?;
            let mut options = fs::OpenOptions::new();
            options.create(true).truncate(false).write(true).open(&path)
        };
        let file = open().map_err(|error| failure::unwritable(&path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self {
                paths,
                context,
                _file: file,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failure::unwritable(&path, &error).into()),
        }
    }

    /// Takes it as soon as nobody has it; not at all after so long.
    pub(crate) fn wait(
        paths: &'a Paths,
        context: &'a str,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let began = Instant::now();
        loop {
            if let Some(lock) = Self::take(paths, context)? {
                return Ok(lock);
            }
            if began.elapsed() >= patience {
                let what = format!("the login of `{context}` is in use");
                return Err(Report::new(ExitCode::Transient, what)
                    .code("login_busy")
                    .why("another command has been changing it for a while")
                    .fix("try again when that command has ended")
                    .into());
            }
            std::thread::sleep(LOOK);
        }
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

fn folder(paths: &Paths) -> PathBuf {
    paths.state_dir.join("logins")
}

/// The file of a context, or one beside it where that one is another server's:
/// no login is ever written over by that of somewhere else.
///
/// Names are checked before they come here, so none leads elsewhere, and none
/// holds an `@`.
fn login_file(paths: &Paths, context: &str, server: &str) -> PathBuf {
    let own = folder(paths).join(format!("{context}.json"));
    let held = Login::read_file(&own);
    if held.as_ref().is_some_and(|held| held.server == server) {
        return own;
    }
    let digest = Digest::of(server.as_bytes()).to_string();
    let digest = digest.rsplit(':').next().unwrap_or_default();
    let short = digest.get(..16).unwrap_or(digest);
    let beside = folder(paths).join(format!("{context}@{short}.json"));
    match held.is_some() || beside.exists() {
        true => beside,
        false => own,
    }
}

fn remove_file(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failure::unwritable(path, &error).into())
        }
        _ => Ok(()),
    }
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
