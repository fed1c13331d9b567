//! The settings of installed plugins: what a person set, secrets encrypted.
//!
//! One file per plugin beside its record. Its secrets are sealed with a key
//! that lies in the folder of all plugins and that no sandbox is shown, for
//! this plugin alone. Nothing here prints, lists or logs a secret. Next:
//! `plugins/ground` hands settings over, `guarded` takes secrets out of what a
//! plugin says.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::manifest::settings::{SettingProblem, Sight};
use fluffy_policy::Permit;
use fluffy_secret::{RedactError, Redactor, SecretBytes, SecretString};
use rustix::fs::RenameFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::private;
use crate::sealed::{KEY_SIZE, SealError, SealingKey};
use crate::shelf::{ChangeShelfError, Shelf, permitted};

/// Where they are, in a plugin's folder.
const FILE: &str = "settings";

/// The key of all plugins' secrets.
const KEY: &str = "key";

/// The largest file.
const MAX_FILE: usize = 4 << 20;

const VERSION: u32 = 1;

/// Lines of a secret that are taken out of what a plugin says on their own.
const MIN_LINE: usize = 16;

/// What a person set for one plugin.
#[derive(Debug, Default)]
pub struct Set {
    /// What everybody may see.
    pub open: Map<String, Value>,
    /// What only the plugin sees.
    pub secret: BTreeMap<String, SecretString>,
}

/// One change of a plugin's settings.
#[derive(Debug)]
pub enum Change {
    /// This value from now on.
    Open {
        /// Of which setting.
        name: String,
        /// The value.
        value: Value,
    },
    /// This secret from now on.
    Secret {
        /// Of which setting.
        name: String,
        /// The value.
        value: SecretString,
    },
    /// Its default again, or nothing.
    Unset {
        /// Which setting.
        name: String,
    },
}

/// Why settings cannot be used. Never shows one.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A plugin cannot do without it.
    #[error("it needs the setting {}", names.join(", "))]
    Missing {
        /// Which, each in backticks.
        names: Vec<String>,
    },
    /// What was set is no value, for this version of the plugin.
    #[error("its setting `{name}` cannot be used")]
    Value {
        /// Which setting.
        name: String,
        /// Why not.
        #[source]
        source: SettingProblem,
    },
    /// The file cannot be read or written, or is none.
    #[error("`{}` cannot be used as settings", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its secrets cannot be opened or sealed.
    #[error("its secrets cannot be used")]
    Sealed(#[from] SealError),
    /// A secret could not be taken out of what the plugin says.
    #[error("its setting `{name}` is no secret that can be kept")]
    NoSecret {
        /// Which.
        name: String,
        /// Why not.
        #[source]
        source: RedactError,
    },
}

impl SettingsError {
    /// What to do about it, for people.
    #[must_use]
    pub fn fix(&self, plugin: &str) -> String {
        match self {
            Self::Missing { .. } | Self::Value { .. } | Self::NoSecret { .. } => {
                format!("`fluffy plugin config {plugin}` shows its settings and how to set them")
            }
            Self::File { .. } => {
                "check that the state directory is yours and that its disk has room".to_owned()
            }
            Self::Sealed(_) => {
                "set its secrets again: `fluffy plugin config NAME --secret KEY`".to_owned()
            }
        }
    }
}

/// Why settings were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    /// They cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The plugin is not there, or the permit is for something else.
    #[error(transparent)]
    Shelf(#[from] ChangeShelfError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    v: u32,
    open: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
}

impl Set {
    /// Everything that is set, secrets included: for the plugin alone.
    #[must_use]
    pub fn whole(&self) -> Map<String, Value> {
        let mut whole = self.open.clone();
        for (name, secret) in &self.secret {
            whole.insert(name.clone(), Value::String(secret.expose().clone()));
        }
        whole
    }

    /// What the plugin gets: checked, and with defaults.
    ///
    /// # Errors
    /// One is missing, or not a value for this version of the plugin.
    pub fn resolved(&self, manifest: &Manifest) -> Result<Map<String, Value>, SettingsError> {
        let whole = self.whole();
        let missing = manifest.settings.missing(&whole);
        if !missing.is_empty() {
            let names = missing.iter().map(|(name, _)| format!("`{name}`"));
            let names = names.collect();
            return Err(SettingsError::Missing { names });
        }
        let resolved = manifest.settings.resolved(&whole);
        for (name, value) in &resolved {
            if let Some(setting) = manifest.settings.all.get(name) {
                setting
                    .check(value)
                    .map_err(|source| SettingsError::Value {
                        name: name.clone(),
                        source,
                    })?;
            }
        }
        Ok(resolved)
    }

    /// Takes the secrets out of text; nothing where there are none.
    ///
    /// # Errors
    /// One is too short to be told from other text.
    pub fn redactor(&self) -> Result<Option<Redactor>, SettingsError> {
        let mut redactor = Redactor::of_values();
        for (name, secret) in &self.secret {
            let no_secret = |source| SettingsError::NoSecret {
                name: name.clone(),
                source,
            };
            let mut register = |text: &str| redactor.register(SecretString::from(text.to_owned()));
            register(secret.expose()).map_err(no_secret)?;
            // A log has lines, and so have keys; what stands around one is in
            // many texts.
            let lines = secret.expose().lines();
            for line in lines.filter(|line| line.len() >= MIN_LINE && !line.starts_with("-----")) {
                register(line).map_err(no_secret)?;
            }
        }
        Ok((!self.secret.is_empty()).then_some(redactor))
    }
}

impl Shelf {
    /// What a person set for a plugin.
    ///
    /// # Errors
    /// The file is none, or its secrets cannot be opened.
    pub fn settings(&self, name: &str) -> Result<Set, SettingsError> {
        let path = self.home(name).join(FILE);
        let Some(stored) = read(&self.home(name)).map_err(|source| file(&path, source))? else {
            return Ok(Set::default());
        };
        let secret = match &stored.sealed {
            Some(sealed) => self.unsealed(name, sealed)?,
            None => BTreeMap::new(),
        };
        Ok(Set {
            open: stored.open,
            secret,
        })
    }

    /// Changes settings of a plugin; whoever runs it starts it anew.
    ///
    /// # Errors
    /// The plugin is not there, or the disk says no.
    pub fn configure(
        &self,
        permit: Permit,
        name: &str,
        changes: Vec<Change>,
    ) -> Result<(), ConfigureError> {
        permitted(&permit, "plugins.config", name)?;
        self.record(name).map_err(ChangeShelfError::from)?;
        let mut set = self.settings(name)?;
        for change in changes {
            match change {
                Change::Open { name, value } => {
                    set.secret.remove(&name);
                    set.open.insert(name, value);
                }
                Change::Secret { name, value } => {
                    set.open.remove(&name);
                    set.secret.insert(name, value);
                }
                Change::Unset { name } => {
                    set.open.remove(&name);
                    set.secret.remove(&name);
                }
            }
        }
        // Only what can be kept out of a plugin's words is kept at all.
        set.redactor()?;
        let stored = Stored {
            v: VERSION,
            sealed: match set.secret.is_empty() {
                true => None,
                false => Some(self.sealed(name, &set.secret)?),
            },
            open: set.open,
        };
        let path = self.home(name).join(FILE);
        write(&self.home(name), &stored).map_err(|source| file(&path, source))?;
        self.touch(name)?;
        Ok(())
    }

    fn sealed(
        &self,
        name: &str,
        secrets: &BTreeMap<String, SecretString>,
    ) -> Result<String, SettingsError> {
        let texts: BTreeMap<&str, &str> = secrets
            .iter()
            .map(|(name, secret)| (name.as_str(), secret.expose().as_str()))
            .collect();
        let path = self.home(name).join(FILE);
        let bytes = serde_json::to_vec(&texts).map_err(|error| file(&path, error.into()))?;
        let sealed = self
            .key()?
            .seal(&purpose(name), &SecretBytes::from(bytes))?;
        Ok(STANDARD.encode(sealed))
    }

    fn unsealed(
        &self,
        name: &str,
        sealed: &str,
    ) -> Result<BTreeMap<String, SecretString>, SettingsError> {
        let bytes = STANDARD.decode(sealed).map_err(|_| SealError::NotOurs)?;
        let opened = self.key()?.open(&purpose(name), &bytes)?;
        let texts: BTreeMap<String, String> =
            serde_json::from_slice(opened.expose()).map_err(|_| SealError::NotOurs)?;
        let secrets = texts.into_iter();
        Ok(secrets
            .map(|(name, text)| (name, SecretString::from(text)))
            .collect())
    }

    /// The key of all secrets, made where there is none. One that cannot be
    /// read is never replaced: what it sealed would be lost.
    fn key(&self) -> Result<SealingKey, SettingsError> {
        let path = self.root().join(KEY);
        let fails = |source| file(&path, source);
        let folder = private::open(self.root()).map_err(fails)?;
        let known = || private::read(&folder, KEY, KEY_SIZE).map(SecretBytes::from);
        let bytes = match known() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let fresh = SealingKey::fresh()?;
                let new = RenameFlags::NOREPLACE;
                match private::write(&folder, KEY, &[fresh.expose()], new) {
                    Ok(()) => fresh,
                    // Another process was first.
                    Err(_) => known().map_err(fails)?,
                }
            }
            known => known.map_err(fails)?,
        };
        Ok(SealingKey::new(&bytes)?)
    }
}

/// How a setting of a plugin is set, for people.
#[must_use]
pub fn how_to_set(plugin: &str, name: &str, sight: Sight) -> String {
    match sight {
        Sight::Open => format!("fluffy plugin config {plugin} {name}=VALUE"),
        Sight::Secret => format!("fluffy plugin config {plugin} --secret {name}"),
    }
}

fn purpose(name: &str) -> String {
    format!("fluffy settings of plugin {name} v{VERSION}")
}

fn read(home: &Path) -> io::Result<Option<Stored>> {
    let bytes = match private::open(home).and_then(|home| private::read(&home, FILE, MAX_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    let stored: Stored = serde_json::from_slice(&bytes)?;
    match stored.v == VERSION {
        true => Ok(Some(stored)),
        false => Err(io::Error::other("they are of another version")),
    }
}

fn write(home: &Path, stored: &Stored) -> io::Result<()> {
    let bytes = serde_json::to_vec_pretty(stored)?;
    let home = private::open(home)?;
    private::write(&home, FILE, &[&bytes], RenameFlags::empty())
}

fn file(path: &Path, source: io::Error) -> SettingsError {
    SettingsError::File {
        path: path.to_owned(),
        source,
    }
}
