//! Installed plugins: their files, what a person granted, and what they keep.
//!
//! One folder each below the folder of plugins. A record says which files were
//! reviewed, by their digest; it appears by rename, so a crash leaves the old
//! one or the new one. What differs from its record does not start. Next:
//! `plugins` runs what is here.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fluffy_base::{Clock as _, Digest, SystemClock, Timestamp};
use fluffy_contract::tool::ForeignTool;
use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::identity::{FileFact, Pin, told_digest};
use fluffy_plugin_core::manifest::FILE;
use fluffy_policy::Permit;
use fluffy_policy::action::is_plugin_name;
use fluffy_policy::diagnostic::RefusedText;
use serde::{Deserialize, Serialize};

use crate::tree::{self, TakeTreeError};
use crate::wasm::CompiledCache;

/// The largest manifest.
const MAX_MANIFEST: u64 = 256 << 10;

/// All installed plugins of this user.
#[derive(Debug, Clone)]
pub struct Shelf {
    root: PathBuf,
}

/// What was decided when a plugin was installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The version of this form: 1.
    pub v: u32,
    /// The plugin as it was reviewed: its manifest and all its files.
    pub pin: Pin,
    /// What the person granted, as patterns of capabilities.
    pub granted: Vec<String>,
    /// The tools that were shown to the person, by the digest of what they say.
    pub tools: BTreeMap<String, Digest>,
    /// Where it came from, for people.
    pub source: String,
    /// When.
    pub installed: Timestamp,
    /// How often a person asked for it to be started anew.
    #[serde(default)]
    pub reloads: u64,
    /// Why it does not run, if it shall not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
}

/// A directory that could be installed.
#[derive(Debug, Clone)]
pub struct Examined {
    /// What it declares.
    pub manifest: Manifest,
    /// Its manifest and all its files.
    pub pin: Pin,
}

impl Record {
    /// What is written down when a person said yes.
    #[must_use]
    pub fn new(examined: &Examined, granted: Vec<String>, source: &str) -> Self {
        Self {
            v: VERSION,
            pin: examined.pin.clone(),
            granted,
            tools: BTreeMap::new(),
            source: source.to_owned(),
            installed: SystemClock.now(),
            reloads: 0,
            disabled: None,
        }
    }
}

/// An installed plugin that is as it was reviewed.
#[derive(Debug, Clone)]
pub struct Placed {
    /// What was decided.
    pub record: Record,
    /// What it declares.
    pub manifest: Manifest,
    /// Where its files are.
    pub files: PathBuf,
    /// Where it keeps things.
    pub home: PathBuf,
}

/// Why a directory is no plugin, or not the one that was reviewed.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// There is no such plugin.
    #[error("no plugin `{name}` is installed")]
    NotInstalled {
        /// What was asked for.
        name: String,
    },
    /// There is no manifest, or nobody can read it.
    #[error("`{}` cannot be read", path.display())]
    NoManifest {
        /// Where it was looked for.
        path: PathBuf,
        /// Why it cannot be read.
        #[source]
        source: io::Error,
    },
    /// The manifest is refused.
    #[error("its manifest is refused")]
    Manifest {
        /// Which file.
        path: PathBuf,
        /// Everything that is wrong with it.
        #[source]
        source: RefusedText,
    },
    /// Its files cannot be taken.
    #[error("its files cannot be taken")]
    Files(#[source] TakeTreeError),
    /// It is not what was reviewed.
    #[error("its files are not those that were reviewed")]
    Changed,
    /// Its record cannot be read.
    #[error("its record cannot be used: {what}")]
    Record {
        /// Why.
        what: String,
    },
}

/// Why something on the shelf could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeShelfError {
    /// It is no plugin, or another one.
    #[error(transparent)]
    Examine(#[from] ExamineError),
    /// The permit is for something else.
    #[error("the permit is for `{permitted}`, and this needs `{needed}`")]
    Permit {
        /// What is permitted.
        permitted: String,
        /// What would be needed.
        needed: String,
    },
    /// The disk says no.
    #[error("`{}` cannot be written", path.display())]
    File {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What becomes of what a plugin kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belongings {
    /// It stays for the next installation.
    Keep,
    /// It goes too.
    Remove,
}

/// What is on the shelf under one name.
#[derive(Debug)]
pub struct Found {
    /// The name of its folder.
    pub name: String,
    /// The plugin, or why it is rejected.
    pub placed: Result<Placed, ExamineError>,
}

/// Looks at a directory that could be installed.
///
/// # Errors
/// It is no plugin.
pub fn examine(source: &Path) -> Result<Examined, ExamineError> {
    taken(source, None)
}

impl Shelf {
    /// The shelf in this folder, which is made where it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(root: &Path) -> io::Result<Self> {
        private(&root.join(INSTALLED))?;
        let shelf = Self {
            root: root.canonicalize()?,
        };
        shelf.sweep();
        Ok(shelf)
    }

    /// Removes the meeting folders of processes that are gone.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(self.root.join(MEETINGS)) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.split('-').next());
            let is_there = owner.is_some_and(|pid| Path::new("/proc").join(pid).exists());
            if !is_there {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Everything that is installed, in the order of names.
    ///
    /// # Errors
    /// The folder cannot be read; one plugin never hides another.
    pub fn list(&self) -> io::Result<Vec<Found>> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| self.look(name)).collect())
    }

    /// The names of all folders, in order.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.root.join(INSTALLED))? {
            let name = entry?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// What is in one folder, unless it only holds what was kept.
    pub(crate) fn look(&self, name: String) -> Option<Found> {
        let placed = self.find(&name);
        let is_left = matches!(placed, Err(ExamineError::NotInstalled { .. }));
        (!is_left).then_some(Found { name, placed })
    }

    /// One installed plugin, if it still is what was reviewed.
    ///
    /// # Errors
    /// It is not there, or not what was reviewed.
    pub fn find(&self, name: &str) -> Result<Placed, ExamineError> {
        let record = self.record(name)?;
        let home = self.home(name);
        let files = files(&home, record.pin.digest);
        let examined = examine(&files)?;
        if examined.pin.digest != record.pin.digest || examined.manifest.name != name {
            return Err(ExamineError::Changed);
        }
        Ok(Placed {
            record,
            manifest: examined.manifest,
            files,
            home,
        })
    }

    /// What was decided about a plugin.
    ///
    /// # Errors
    /// It is not there, or its record is none.
    pub fn record(&self, name: &str) -> Result<Record, ExamineError> {
        let broken = |what: String| ExamineError::Record { what };
        if !is_plugin_name(name) {
            return Err(broken("the folder's name is no plugin's".to_owned()));
        }
        let text = match std::fs::read_to_string(self.home(name).join(RECORD)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ExamineError::NotInstalled {
                    name: name.to_owned(),
                });
            }
            Err(error) => return Err(broken(error.to_string())),
        };
        let record: Record =
            serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        match record.v == VERSION && record.pin.name == name {
            true => Ok(record),
            false => Err(broken("it is of another version or plugin".to_owned())),
        }
    }

    /// Copies a plugin here and writes what was decided about it. What ran
    /// before keeps its files until [`Shelf::tidy`].
    ///
    /// # Errors
    /// It is not what was examined, or the disk says no.
    pub fn install(
        &self,
        permit: Permit,
        source: &Path,
        record: &Record,
    ) -> Result<Placed, ChangeShelfError> {
        permitted(&permit, "plugins.install", &record.pin.name)?;
        let home = self.home(&record.pin.name);
        private(&home).map_err(|source| file(&home, source))?;
        let place = files(&home, record.pin.digest);
        if place.exists() {
            // Left by a crash, or the same again: only a whole one is kept.
            std::fs::remove_dir_all(&place).map_err(|source| file(&place, source))?;
        }
        let copied = taken(source, Some(&place));
        let copied = match copied {
            Ok(copied) if copied.pin.digest == record.pin.digest => copied,
            other => {
                let _ = std::fs::remove_dir_all(&place);
                return Err(other.err().unwrap_or(ExamineError::Changed).into());
            }
        };
        self.write(record)?;
        Ok(Placed {
            record: record.clone(),
            manifest: copied.manifest,
            files: place,
            home,
        })
    }

    /// Writes down which tools the person was shown.
    ///
    /// # Errors
    /// It is not there, or the disk says no.
    pub fn pin_tools(
        &self,
        permit: Permit,
        name: &str,
        tools: &[ForeignTool],
    ) -> Result<(), ChangeShelfError> {
        permitted(&permit, "plugins.install", name)?;
        let mut record = self.record(name)?;
        let pins = tools.iter().map(|tool| (tool.name.clone(), pin_of(tool)));
        record.tools = pins.collect();
        record.disabled = None;
        self.write(&record)
    }

    /// Switches a plugin off, with the reason, or on.
    ///
    /// # Errors
    /// It is not there, or the disk says no.
    pub fn switch(
        &self,
        permit: Permit,
        name: &str,
        disabled: Option<String>,
    ) -> Result<(), ChangeShelfError> {
        let action = match disabled {
            Some(_) => "plugins.disable",
            None => "plugins.enable",
        };
        permitted(&permit, action, name)?;
        let mut record = self.record(name)?;
        record.disabled = disabled;
        self.write(&record)
    }

    /// Asks for a plugin to be started anew: whoever runs it sees another
    /// record.
    ///
    /// # Errors
    /// It is not what was reviewed, or the disk says no.
    pub fn reload(&self, permit: Permit, name: &str) -> Result<(), ChangeShelfError> {
        permitted(&permit, "plugins.reload", name)?;
        self.find(name)?;
        self.touch(name)
    }

    /// Makes the record another one, which whoever runs the plugin notices.
    pub(crate) fn touch(&self, name: &str) -> Result<(), ChangeShelfError> {
        let mut record = self.record(name)?;
        record.reloads = record.reloads.saturating_add(1);
        self.write(&record)
    }

    /// Removes a plugin, its files and what was decided about it.
    ///
    /// # Errors
    /// It is not there, or the disk says no.
    pub fn remove(
        &self,
        permit: Permit,
        name: &str,
        belongings: Belongings,
    ) -> Result<(), ChangeShelfError> {
        permitted(&permit, "plugins.remove", name)?;
        self.record(name)?;
        let home = self.home(name);
        let record = home.join(RECORD);
        std::fs::remove_file(&record).map_err(|source| file(&record, source))?;
        match belongings {
            Belongings::Keep => self.tidy(name),
            Belongings::Remove => {
                std::fs::remove_dir_all(&home).map_err(|source| file(&home, source))?;
            }
        }
        Ok(())
    }

    /// Removes files of a plugin that its record does not name.
    pub fn tidy(&self, name: &str) {
        let wanted = self.record(name).ok().map(|record| record.pin.digest);
        let wanted = wanted.map(|digest| files(&self.home(name), digest));
        let Ok(entries) = std::fs::read_dir(self.home(name)) else {
            return;
        };
        for entry in entries.flatten() {
            let is_files = entry.file_name().to_string_lossy().starts_with(FILES);
            if is_files && Some(entry.path()) != wanted {
                // Whatever stays is removed the next time.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The folder of all plugins, which no sandbox is shown.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a plugin.
    #[must_use]
    pub fn home(&self, name: &str) -> PathBuf {
        self.root.join(INSTALLED).join(name)
    }

    /// A new empty folder for sockets, with a short path.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn meeting(&self) -> io::Result<Meeting> {
        let folder = self.root.join(MEETINGS);
        private(&folder)?;
        for number in 0..=u32::MAX {
            let path = folder.join(format!("{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Meeting { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// What modules were compiled to; without it each start compiles anew.
    pub(crate) fn compiled(&self) -> Option<CompiledCache> {
        CompiledCache::open(&self.root.join("compiled")).ok()
    }

    fn write(&self, record: &Record) -> Result<(), ChangeShelfError> {
        let path = self.home(&record.pin.name).join(RECORD);
        let new = path.with_extension("new");
        let write = || {
            let mut out = std::fs::File::create(&new)?;
            out.write_all(&serde_json::to_vec_pretty(record)?)?;
            out.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|source| file(&path, source))
    }
}

/// A folder where a plugin's sockets are met; removed when it is dropped.
#[derive(Debug)]
pub struct Meeting {
    path: PathBuf,
}

impl Meeting {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a tool says about itself, as one digest: any difference counts.
#[must_use]
pub fn pin_of(tool: &ForeignTool) -> Digest {
    told_digest(&tool.name, &tool.summary, &tool.parameters)
}

const INSTALLED: &str = "installed";
const MEETINGS: &str = "m";
const RECORD: &str = "record.json";
const FILES: &str = "files-";
const VERSION: u32 = 1;

fn files(home: &Path, digest: Digest) -> PathBuf {
    let digest = digest.to_string();
    home.join(format!("{FILES}{}", digest.get(..16).unwrap_or_default()))
}

fn taken(source: &Path, copy_to: Option<&Path>) -> Result<Examined, ExamineError> {
    let (manifest, text) = read_manifest(source)?;
    let entries = tree::take(source, copy_to).map_err(ExamineError::Files)?;
    // What was read must be what was hashed, whatever happened in between.
    let digest = Digest::of(text.as_bytes());
    let is_it = |entry: &tree::Entry| entry.path == FILE && entry.digest == digest;
    if !entries.iter().any(is_it) {
        return Err(ExamineError::Changed);
    }
    let files = entries.into_iter().map(|entry| {
        let mode = match entry.kind {
            tree::EntryKind::File => 0o644,
            tree::EntryKind::Program => 0o755,
            tree::EntryKind::Link => 0o120_777,
        };
        let digest = entry.digest;
        (entry.path, FileFact { mode, digest })
    });
    let pin = Pin::of(&manifest, &text, files.collect());
    Ok(Examined { manifest, pin })
}

/// The manifest of a directory, and its text.
fn read_manifest(source: &Path) -> Result<(Manifest, String), ExamineError> {
    let path = source.join(FILE);
    let missing = |source| ExamineError::NoManifest {
        path: path.clone(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(&path).map_err(missing)?;
    let most = MAX_MANIFEST.saturating_add(1);
    file.take(most).read_to_string(&mut text).map_err(missing)?;
    if u64::try_from(text.len()).is_ok_and(|length| length == most) {
        let error = io::Error::new(io::ErrorKind::FileTooLarge, "it is too large");
        return Err(missing(error));
    }
    match Manifest::parse(&text) {
        Ok(manifest) => Ok((manifest, text)),
        Err(source) => Err(ExamineError::Manifest { path, source }),
    }
}

pub(crate) fn permitted(permit: &Permit, action: &str, name: &str) -> Result<(), ChangeShelfError> {
    let needed = format!("{action}.{name}");
    match permit.capability().as_str() == needed {
        true => Ok(()),
        false => Err(ChangeShelfError::Permit {
            permitted: permit.capability().to_string(),
            needed,
        }),
    }
}

fn private(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)
}

fn file(path: &Path, source: io::Error) -> ChangeShelfError {
    ChangeShelfError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
