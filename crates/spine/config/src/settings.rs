//! Resolves all layers into one set of values, with the origin of each.
//!
//! Pure: texts, variables and flags in, settings or problems out. Either
//! everything is valid or nothing is loaded. The files are read by
//! [`mod@crate::load`]; what keys exist is in [`crate::keys`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use fluffy_base::Digest;

use crate::env::{self, Environment};
use crate::file::{self, Leaf};
use crate::keys::{self, KEYS, Key, PROVIDER_KEYS, ProjectRule, REVIEWED_SECTIONS};
use crate::parse::{COMMAND, Raw, is_provider_name};
use crate::paths;
use crate::problem::{Place, Problem, Rejected};
use crate::suggest::nearest;
use crate::values::Values;

/// The configuration in force, and where each value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    values: Values,
    shown: BTreeMap<String, (String, Origin)>,
    unknown_variables: Vec<UnknownVariable>,
}

impl Settings {
    /// Resolves the layers, highest first: flags, variables, project, user,
    /// defaults.
    ///
    /// # Errors
    /// Every problem of every layer; nothing half-loads.
    pub fn resolve(sources: &Sources) -> Result<Self, Rejected> {
        let mut resolver = Resolver {
            home: paths::home(&sources.environment),
            settings: Self {
                values: Values::default(),
                shown: BTreeMap::new(),
                unknown_variables: Vec::new(),
            },
            problems: Vec::new(),
        };
        resolver.defaults();
        if let Some(user) = &sources.user {
            resolver.file(user, Trust::Owner);
        }
        if let Some(project) = &sources.project {
            resolver.file(&project.file, project.trust());
        }
        resolver.environment(&sources.environment);
        for flag in &sources.flags {
            resolver.flag(flag);
        }
        match resolver.problems {
            problems if problems.is_empty() => Ok(resolver.settings),
            problems => Err(Rejected { problems }),
        }
    }

    /// The typed values.
    #[must_use]
    pub const fn values(&self) -> &Values {
        &self.values
    }

    /// Where the value of a key came from; none if it has no value.
    #[must_use]
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.shown.get(key).map(|(_, origin)| origin)
    }

    /// Every key that has a value, by name.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.shown
            .iter()
            .map(|(key, (value, origin))| Entry { key, value, origin })
    }

    /// Variables that look like ours and mean nothing; worth a warning.
    ///
    /// Not an error as in a file: the environment is shared with other
    /// programs and other versions of this one.
    #[must_use]
    pub fn unknown_variables(&self) -> &[UnknownVariable] {
        &self.unknown_variables
    }
}

/// Everything configuration is made of.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Flags of the command line, later ones win.
    pub flags: Vec<Flag>,
    /// The environment.
    pub environment: Environment,
    /// The project's `.fluffy/config.toml`.
    pub project: Option<ProjectText>,
    /// The user's `config.toml`.
    pub user: Option<FileText>,
}

/// A flag that sets a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as written, such as `--model`.
    pub name: String,
    /// The key it sets.
    pub key: String,
    /// The value as written.
    pub value: String,
}

/// A file and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileText {
    /// Where it is.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// The project's file, and which content of it a person reviewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectText {
    /// The file.
    pub file: FileText,
    /// The digest of the content that was reviewed.
    pub reviewed: Option<Digest>,
}

impl ProjectText {
    /// A review is of these very bytes: one changed letter and it is void.
    fn trust(&self) -> Trust {
        match self.reviewed {
            Some(digest) if digest == Digest::of(self.file.text.as_bytes()) => Trust::Reviewed,
            Some(_) | None => Trust::Repository,
        }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Our own default.
    Default,
    /// The user's file.
    User {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The project's file.
    Project {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        name: String,
    },
    /// A flag of the command line.
    Flag {
        /// The flag as written.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::User { path, line } | Self::Project { path, line } => {
                write!(f, "{}:{line}", path.display())
            }
            Self::Environment { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

/// One key with its value, as shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The dotted name.
    pub key: &'a str,
    /// The value as text.
    pub value: &'a str,
    /// Where it came from.
    pub origin: &'a Origin,
}

/// A variable that starts like ours and means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// What was probably meant.
    pub nearest: Option<String>,
}

/// Whose word a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// The user's own.
    Owner,
    /// Somebody's repository.
    Repository,
    /// Somebody's repository, and a person said yes to these very bytes.
    Reviewed,
}

struct Resolver {
    home: Option<PathBuf>,
    settings: Settings,
    problems: Vec<Problem>,
}

impl Resolver {
    fn defaults(&mut self) {
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            let written = Written::new(key.default, Place::Default, Origin::Default);
            self.set(key, Raw::Text(key.default), written, Trust::Owner);
        }
    }

    fn file(&mut self, file: &FileText, trust: Trust) {
        let leaves = match file::leaves(&file.path, &file.text) {
            Ok(leaves) => leaves,
            Err(problem) => return self.problems.push(*problem),
        };
        let named: Vec<String> = leaves.iter().map(|leaf| leaf.name.clone()).collect();
        for leaf in &leaves {
            self.leaf(file, leaf, trust);
        }
        for leaf in &leaves {
            let twin = leaf.name.strip_suffix(".api_key.keyring");
            if let Some(provider) = twin.filter(|name| name.starts_with("providers."))
                && named.contains(&format!("{provider}.api_key.env"))
            {
                self.problems.push(Problem::TwoKeySources {
                    place: file::place(&file.path, &file.text, &leaf.name_at),
                    key: format!("{provider}.api_key"),
                });
            }
        }
    }

    fn leaf(&mut self, file: &FileText, leaf: &Leaf<'_>, trust: Trust) {
        let name_place = file::place(&file.path, &file.text, &leaf.name_at);
        let place = file::place(&file.path, &file.text, &leaf.value_at);
        let value = file::shown(&file.text, &leaf.value_at);
        if leaf.name == "version" {
            if value != "1" {
                let found = value;
                self.problems.push(Problem::Version { place, found });
            }
            return;
        }
        let origin = origin(&file.path, &name_place, trust);
        if let Some(key) = keys::find(&leaf.name) {
            if trust == Trust::Repository && key.project == ProjectRule::Never {
                return self.project_may_not(name_place, &leaf.name);
            }
            let written = Written::new(&value, place, origin);
            return self.set(key, Raw::Toml(&leaf.value), written, trust);
        }
        let section = leaf.name.split('.').next().unwrap_or_default();
        let reserved = section == "providers" || REVIEWED_SECTIONS.contains(&section);
        if trust == Trust::Repository && reserved {
            return self.project_may_not(name_place, &leaf.name);
        }
        if let Some(name) = file::integration_part(&leaf.name).filter(|name| is_provider_name(name))
        {
            let written = Written::new(&value, place, origin);
            return self.integration(name, leaf, written);
        }
        match file::provider_part(&leaf.name) {
            Some((provider, part)) if is_provider_name(provider) => {
                let written = Written::new(&value, place, origin);
                self.provider((provider, part), leaf, written, name_place);
            }
            _ if file::is_section(&leaf.name) => self.problems.push(Problem::Section {
                place: name_place,
                key: leaf.name.clone(),
            }),
            _ => self.unknown(name_place, &leaf.name, "", KEYS.iter().map(|key| key.name)),
        }
    }

    /// A command by name; a later layer's replaces an earlier one's.
    fn integration(&mut self, name: &str, leaf: &Leaf<'_>, written: Written) {
        let Ok(command) = Raw::Toml(&leaf.value).command() else {
            return self.problems.push(Problem::Value {
                place: written.place,
                key: leaf.name.clone(),
                value: written.value,
                expected: COMMAND.to_owned(),
            });
        };
        let shown = (command.join(" "), written.origin);
        self.settings.shown.insert(leaf.name.clone(), shown);
        let tests = &mut self.settings.values.tests.integration;
        tests.insert(name.to_owned(), command);
    }

    fn provider(
        &mut self,
        (provider, part): (&str, &str),
        leaf: &Leaf<'_>,
        written: Written,
        name_place: Place,
    ) {
        let Some(key) = PROVIDER_KEYS.iter().find(|key| key.name == part) else {
            if file::is_section(&leaf.name) {
                let key = leaf.name.clone();
                let place = name_place;
                return self.problems.push(Problem::Section { place, key });
            }
            let above = format!("providers.{provider}.");
            let known = PROVIDER_KEYS.iter().map(|key| key.name);
            return self.unknown(name_place, part, &above, known);
        };
        let entry = self.settings.values.providers.entry(provider.to_owned());
        let entry = entry.or_default();
        let text = Raw::Toml(&leaf.value).text();
        let stored = text.map_err(|_| "a text").and_then(|text| {
            (key.set)(entry, text)?;
            Ok(text)
        });
        match stored {
            Ok(text) => {
                // A later layer's key source replaces an earlier one's.
                let above = format!("providers.{provider}.api_key.");
                if leaf.name.starts_with(&above) {
                    self.settings
                        .shown
                        .retain(|name, _| !name.starts_with(&above));
                }
                let shown = (text.to_owned(), written.origin);
                self.settings.shown.insert(leaf.name.clone(), shown);
            }
            Err(expected) => self.problems.push(Problem::Value {
                place: written.place,
                key: leaf.name.clone(),
                value: written.value,
                expected: expected.to_owned(),
            }),
        }
    }

    fn environment(&mut self, environment: &Environment) {
        let variables: BTreeMap<String, &Key> =
            KEYS.iter().map(|key| (key.env_name(), key)).collect();
        let plain = |name: &str| env::VARIABLES.iter().any(|(known, _)| *known == name);
        for name in environment.own_names().filter(|name| !plain(name)) {
            let Some(key) = variables.get(name) else {
                let known = variables.keys().map(String::as_str);
                let nearest = nearest(name, known).map(str::to_owned);
                self.settings.unknown_variables.push(UnknownVariable {
                    name: name.to_owned(),
                    nearest,
                });
                continue;
            };
            let Some(value) = environment.get(name) else {
                continue;
            };
            // What is not text is shown as well as it can be, and then refused.
            let text = value.to_string_lossy();
            let name = name.to_owned();
            let place = Place::Environment { name: name.clone() };
            let written = Written::new(&text, place, Origin::Environment { name });
            let raw = Raw::Text(value.to_str().unwrap_or("\0"));
            self.set(key, raw, written, Trust::Owner);
        }
    }

    fn flag(&mut self, flag: &Flag) {
        let name = flag.name.clone();
        let place = Place::Flag { name: name.clone() };
        match keys::find(&flag.key) {
            Some(key) => {
                let written = Written::new(&flag.value, place, Origin::Flag { name });
                self.set(key, Raw::Text(&flag.value), written, Trust::Owner);
            }
            None => self.unknown(place, &flag.key, "", KEYS.iter().map(|key| key.name)),
        }
    }

    /// Sets one key, unless the value is wrong or not this layer's to set.
    fn set(&mut self, key: &Key, raw: Raw<'_>, written: Written, trust: Trust) {
        let mut values = self.settings.values.clone();
        let stored = key.kind.store(raw, self.home.as_deref(), &mut values);
        let Ok(shown) = stored else {
            return self.problems.push(Problem::Value {
                place: written.place,
                key: key.name.to_owned(),
                value: written.value,
                expected: key.kind.expected(),
            });
        };
        let downward = trust == Trust::Repository && key.project == ProjectRule::Downward;
        if downward && key.kind.is_more(&mut values, &mut self.settings.values) {
            let before = self.settings.shown.get(key.name);
            return self.problems.push(Problem::ProjectRaises {
                place: written.place,
                key: key.name.to_owned(),
                before: before.map(|(shown, _)| shown.clone()).unwrap_or_default(),
                after: shown,
            });
        }
        self.settings.values = values;
        let shown = (shown, written.origin);
        self.settings.shown.insert(key.name.to_owned(), shown);
    }

    fn project_may_not(&mut self, place: Place, key: &str) {
        let key = file::shorten(key);
        self.problems.push(Problem::ProjectMayNot { place, key });
    }

    fn unknown<'k>(
        &mut self,
        place: Place,
        key: &str,
        above: &str,
        known: impl Iterator<Item = &'k str>,
    ) {
        let nearest = nearest(key, known).map(|nearest| format!("{above}{nearest}"));
        self.problems.push(Problem::UnknownKey {
            place,
            key: file::shorten(&format!("{above}{key}")),
            nearest,
        });
    }
}

/// A value as it was written: for messages, with its place and origin.
struct Written {
    value: String,
    place: Place,
    origin: Origin,
}

impl Written {
    fn new(value: &str, place: Place, origin: Origin) -> Self {
        Self {
            value: file::shorten(value),
            place,
            origin,
        }
    }
}

fn origin(path: &Path, place: &Place, trust: Trust) -> Origin {
    let line = match place {
        Place::File { line, .. } => *line,
        Place::Environment { .. } | Place::Flag { .. } | Place::Default => 0,
    };
    let path = path.to_owned();
    match trust {
        Trust::Owner => Origin::User { path, line },
        Trust::Repository | Trust::Reviewed => Origin::Project { path, line },
    }
}

#[cfg(test)]
mod tests;
