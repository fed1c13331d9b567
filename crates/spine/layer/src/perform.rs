//! One step of a merge, done in the project.
//!
//! New content is whole and synced under a name of its own before it takes the
//! place of the old by one exchange; what came out is checked, and put back if
//! it is not what the plan saw. So whatever else writes to the project at the
//! same time, nothing of it is overwritten. Never follows a link.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use fluffy_base::id::LayerId;
use rustix::fs::{
    AtFlags, Mode, RenameFlags, fchmod, fsync, mkdirat, renameat, renameat_with, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use serde::Serialize;

use crate::error::{Explain, FileError};
use crate::path::{TreePath, unescape};
use crate::step::{Seen, Source, Step, StepKind, Wanted, is_same_after_rename};
use crate::tree::{NodeKind, Tree, digest_of, is_absent};
use crate::write::{copy_content, create_in};

/// How the names of files on their way into a project begin.
pub(crate) const RESERVED: &str = ".fluffy-lay_";

/// Does steps in one project, from one layer.
pub(crate) struct Performer<'a> {
    pub(crate) layer: LayerId,
    pub(crate) project: &'a Tree,
    pub(crate) content: &'a Tree,
    /// Merged texts, named by their digest.
    pub(crate) texts: &'a Tree,
}

/// What became of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The project has what the step wants.
    Done,
    /// It has not, and is unchanged there.
    Not(Trouble),
}

/// Why a step was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// The project has something else there than when the merge was planned.
    ProjectChanged,
    /// The layer has something else there than when the merge was planned.
    LayerChanged,
    /// The directory it belongs into is gone or is none.
    NoDirectory,
    /// The directory to be removed is not empty.
    NotEmpty,
    /// The operating system does not let us change it.
    Denied,
    /// The project changed, and what it had is kept beside it under this name.
    Kept {
        /// The path in the project.
        path: TreePath,
    },
}

/// The two names under which a step prepares its result.
struct Names {
    /// While it is written.
    part: TreePath,
    /// Once it is whole; after an exchange, what came out of the project.
    ready: TreePath,
}

const CHANGED: Result<Outcome, FileError> = Ok(Outcome::Not(Trouble::ProjectChanged));
const DONE: Result<Outcome, FileError> = Ok(Outcome::Done);

impl Performer<'_> {
    /// Does a step, or finds that it is done, or why it cannot be.
    ///
    /// `finally` is what the last step for the same path wants.
    pub(crate) fn perform(
        &self,
        number: usize,
        step: &Step,
        finally: &Wanted,
    ) -> Result<Outcome, FileError> {
        let path = &step.path;
        let parent = match self.project.parent_of(path) {
            Ok(parent) => parent,
            Err(error) if is_absent(&error) => {
                // What should go went with its directory.
                return match step.after {
                    Wanted::Absent => DONE,
                    _ => Ok(Outcome::Not(Trouble::NoDirectory)),
                };
            }
            Err(error) => return Err(error).within("open", self.project, path),
        };
        let names = self.names(number, path)?;
        if let Some(trouble) = self.recover(step, &names, &parent)? {
            return Ok(Outcome::Not(trouble));
        }
        let is_at = |wanted: &Wanted| {
            wanted
                .is_at(self.project, path)
                .within("read", self.project, path)
        };
        if is_at(&step.after)? || (*finally != step.after && is_at(finally)?) {
            return DONE;
        }
        let before = step.before.is_at(self.project, path);
        if !before.within("read", self.project, path)? {
            return CHANGED;
        }
        match step.kind() {
            StepKind::Remove => self.remove(step, &names, &parent),
            StepKind::RemoveDirectory => self.remove_directory(step, &parent),
            StepKind::MakeDirectory => self.make_directory(step, &parent),
            StepKind::Write => self.write(step, &names, &parent),
            StepKind::Link => self.link(step, &names, &parent),
            StepKind::Mode => self.change_mode(step),
        }
    }

    /// Makes the names in a directory of the project durable.
    pub(crate) fn sync(&self, directory: Option<&TreePath>) -> Result<(), FileError> {
        match self.project.directory(directory) {
            Ok(opened) => fsync(&opened).at("sync", &self.project.shown(directory)),
            // Removed by a later step, or by someone: nothing to make durable.
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(error).at("sync", &self.project.shown(directory)),
        }
    }

    fn write(&self, step: &Step, names: &Names, parent: &OwnedFd) -> Result<Outcome, FileError> {
        let Wanted::File { digest, mode, from } = &step.after else {
            return CHANGED;
        };
        let path = &step.path;
        let source = match from {
            Source::Merged => {
                let text = TreePath::parse(digest.to_string().as_bytes());
                text.map_err(io::Error::other)
                    .and_then(|text| self.texts.file(&text))
            }
            Source::Layer | Source::Project => self.content.file(path),
        };
        let source = match source {
            Ok((source, _)) => source,
            Err(error) if is_swapped(&error) => return Ok(Outcome::Not(Trouble::LayerChanged)),
            Err(error) => return Err(error).within("read", self.content, path),
        };
        let part = create_in(parent, names.part.name(), 0o600);
        let mut part = part.within("write", self.project, &names.part)?;
        let prepared = prepare(&source, &mut part, *mode);
        let is_whole = matches!(&prepared, Ok(found) if found == digest);
        if !is_whole {
            // Nothing of ours stays behind, above all on a full disk.
            let _ = unlinkat(parent, names.part.name(), AtFlags::empty());
            prepared.within("write", self.project, &names.part)?;
            return Ok(Outcome::Not(Trouble::LayerChanged));
        }
        renameat(parent, names.part.name(), parent, names.ready.name()).within(
            "write",
            self.project,
            &names.ready,
        )?;
        self.swap_in(step, names, parent)
    }

    fn link(&self, step: &Step, names: &Names, parent: &OwnedFd) -> Result<Outcome, FileError> {
        let Wanted::Symlink { target } = &step.after else {
            return CHANGED;
        };
        let target = unescape(target).unwrap_or_default();
        symlinkat(&*target, parent, names.ready.name()).within(
            "write",
            self.project,
            &names.ready,
        )?;
        self.swap_in(step, names, parent)
    }

    /// Puts what is ready into its place, unless something else is there.
    fn swap_in(&self, step: &Step, names: &Names, parent: &OwnedFd) -> Result<Outcome, FileError> {
        let (ready, name) = (names.ready.name(), step.path.name());
        let fail = |result: Result<(), Errno>| result.within("replace", self.project, &step.path);
        if step.before == Seen::Absent {
            return match renameat_with(parent, ready, parent, name, RenameFlags::NOREPLACE) {
                Ok(()) => DONE,
                Err(Errno::EXIST) => {
                    fail(unlinkat(parent, ready, AtFlags::empty()))?;
                    CHANGED
                }
                Err(Errno::INVAL) => {
                    fail(renameat(parent, ready, parent, name))?;
                    DONE
                }
                Err(error) => {
                    fail(Err(error))?;
                    CHANGED
                }
            };
        }
        match renameat_with(parent, ready, parent, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // Removed since it was looked at.
            Err(Errno::NOENT) => {
                fail(unlinkat(parent, ready, AtFlags::empty()))?;
                return CHANGED;
            }
            Err(Errno::INVAL) => {
                // No exchange on this file system: looked at a moment ago.
                fail(renameat(parent, ready, parent, name))?;
                return DONE;
            }
            Err(error) => fail(Err(error))?,
        }
        if self.is_before(step, &names.ready)? {
            fail(unlinkat(parent, ready, AtFlags::empty()))?;
            return DONE;
        }
        self.put_back(names, parent, step)
    }

    /// Undoes an exchange that took out something unexpected.
    fn put_back(&self, names: &Names, parent: &OwnedFd, step: &Step) -> Result<Outcome, FileError> {
        let (ready, name) = (names.ready.name(), step.path.name());
        renameat_with(parent, ready, parent, name, RenameFlags::EXCHANGE).within(
            "put back",
            self.project,
            &step.path,
        )?;
        // Ours again, unless someone wrote to the new file at once.
        let ours = step.after.is_at(self.project, &names.ready);
        if ours.within("read", self.project, &names.ready)? {
            unlinkat(parent, ready, AtFlags::empty()).within(
                "remove",
                self.project,
                &names.ready,
            )?;
            return CHANGED;
        }
        let path = names.ready.clone();
        Ok(Outcome::Not(Trouble::Kept { path }))
    }

    fn remove(&self, step: &Step, names: &Names, parent: &OwnedFd) -> Result<Outcome, FileError> {
        let (ready, name) = (names.ready.name(), step.path.name());
        let fail = |result: Result<(), Errno>| result.within("remove", self.project, &step.path);
        match renameat_with(parent, name, parent, ready, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return DONE,
            Err(Errno::INVAL) => {
                fail(unlinkat(parent, name, AtFlags::empty()))?;
                return DONE;
            }
            Err(error) => fail(Err(error))?,
        }
        if self.is_before(step, &names.ready)? {
            fail(unlinkat(parent, ready, AtFlags::empty()))?;
            return DONE;
        }
        self.rename_back(step, names, parent)
    }

    fn rename_back(
        &self,
        step: &Step,
        names: &Names,
        parent: &OwnedFd,
    ) -> Result<Outcome, FileError> {
        let (ready, name) = (names.ready.name(), step.path.name());
        match renameat_with(parent, ready, parent, name, RenameFlags::NOREPLACE) {
            Ok(()) => CHANGED,
            Err(Errno::EXIST) => {
                let path = names.ready.clone();
                Ok(Outcome::Not(Trouble::Kept { path }))
            }
            Err(error) => {
                Err(error).within("put back", self.project, &step.path)?;
                CHANGED
            }
        }
    }

    fn remove_directory(&self, step: &Step, parent: &OwnedFd) -> Result<Outcome, FileError> {
        match unlinkat(parent, step.path.name(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => DONE,
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Outcome::Not(Trouble::NotEmpty)),
            Err(Errno::NOTDIR) => CHANGED,
            Err(error) => Err(error).within("remove", self.project, &step.path),
        }
    }

    fn make_directory(&self, step: &Step, parent: &OwnedFd) -> Result<Outcome, FileError> {
        let Wanted::Directory { mode } = step.after else {
            return CHANGED;
        };
        let path = &step.path;
        match mkdirat(parent, path.name(), Mode::from_raw_mode(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return CHANGED,
            Err(error) => return Err(error).within("make", self.project, path),
        }
        let made = self.project.directory(Some(path));
        let made = made.within("make", self.project, path)?;
        self.set_mode(&made, path, mode)?;
        DONE
    }

    fn change_mode(&self, step: &Step) -> Result<Outcome, FileError> {
        let path = &step.path;
        let (mode, opened) = match &step.after {
            Wanted::Directory { mode } => (*mode, self.project.directory(Some(path))),
            Wanted::File { mode, .. } => {
                let file = self.project.file(path);
                (*mode, file.map(|(file, _)| OwnedFd::from(file)))
            }
            Wanted::Absent | Wanted::Symlink { .. } => return CHANGED,
        };
        match opened {
            Ok(opened) => {
                self.set_mode(&opened, path, mode)?;
                DONE
            }
            Err(error) if is_swapped(&error) => CHANGED,
            Err(error) => Err(error).within("open", self.project, path),
        }
    }

    /// Sets permissions; what a directory inherited besides them stays.
    fn set_mode(&self, opened: &OwnedFd, path: &TreePath, mode: u32) -> Result<(), FileError> {
        let stat = rustix::fs::fstat(opened).within("open", self.project, path)?;
        let special = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => stat.st_mode & 0o7000,
            _ => 0,
        };
        fchmod(opened, Mode::from_raw_mode(mode | special)).within(
            "change the mode of",
            self.project,
            path,
        )
    }

    /// Brings the two names of a step that a crash interrupted to an end.
    fn recover(
        &self,
        step: &Step,
        names: &Names,
        parent: &OwnedFd,
    ) -> Result<Option<Trouble>, FileError> {
        match unlinkat(parent, names.part.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => Err(error).within("remove", self.project, &names.part)?,
        }
        let found = self.project.node(&names.ready);
        if found.within("read", self.project, &names.ready)?.is_none() {
            return Ok(None);
        }
        let ours = step.after.is_at(self.project, &names.ready);
        let is_ours =
            step.after != Wanted::Absent && ours.within("read", self.project, &names.ready)?;
        if is_ours || self.is_before(step, &names.ready)? {
            // Not used yet, or taken out as it should be: not needed any more.
            unlinkat(parent, names.ready.name(), AtFlags::empty()).within(
                "remove",
                self.project,
                &names.ready,
            )?;
            return Ok(None);
        }
        let done = step.after.is_at(self.project, &step.path);
        let outcome = match (done.within("read", self.project, &step.path)?, &step.after) {
            (true, Wanted::Absent) => self.rename_back(step, names, parent)?,
            (true, _) => self.put_back(names, parent, step)?,
            (false, _) => Outcome::Not(Trouble::Kept {
                path: names.ready.clone(),
            }),
        };
        Ok(match outcome {
            Outcome::Done => None,
            Outcome::Not(trouble) => Some(trouble),
        })
    }

    /// Whether what was taken out of the project is what the plan saw there.
    fn is_before(&self, step: &Step, taken: &TreePath) -> Result<bool, FileError> {
        let found = match &step.before {
            Seen::Unread { identity } => self.project.node(taken).map(|node| {
                node.is_some_and(|node| {
                    node.kind == NodeKind::File && is_same_after_rename(identity, &node)
                })
            }),
            before => before.is_at(self.project, taken),
        };
        found.within("read", self.project, taken)
    }

    fn names(&self, number: usize, path: &TreePath) -> Result<Names, FileError> {
        let parent = path.parent();
        let name = |end: &str| {
            // An id starts with `lay_`, so the name starts as reserved.
            let name = format!(".fluffy-{}-{number}.{end}", self.layer);
            TreePath::below(parent.as_ref(), name.as_bytes())
                .map_err(io::Error::other)
                .within("write beside", self.project, path)
        };
        Ok(Names {
            part: name("part")?,
            ready: name("new")?,
        })
    }
}

/// Fills, closes and syncs a new file; gives the digest of what is in it.
fn prepare(source: &File, part: &mut File, mode: u32) -> io::Result<fluffy_base::Digest> {
    use std::io::Seek;

    copy_content(source, part)?;
    part.rewind()?;
    let digest = digest_of(&*part)?;
    fchmod(&*part, Mode::from_raw_mode(mode))?;
    part.sync_all()?;
    Ok(digest)
}

/// Whether something else is there than a regular file.
fn is_swapped(error: &io::Error) -> bool {
    is_absent(error) || error.kind() == io::ErrorKind::InvalidInput
}
