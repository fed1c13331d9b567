//! A patch that a tool submits, written into the layer.
//!
//! All files are read and all hunks matched before the first one is written;
//! each file is then replaced as a whole. Writes exactly what a sandbox would
//! have written: an overlay that is not mounted may be changed from outside.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use fluffy_policy::Permit;
use rustix::fs::{
    AtFlags, FileType, Mode, XattrFlags, fchmod, fsetxattr, mkdirat, mknodat, renameat, unlinkat,
};

use crate::copy::Limits;
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, ReadLayerError};
use crate::patch::{FilePatch, HunkMismatch, Patch, PatchEffect};
use crate::path::TreePath;
use crate::permit::{WrongPermit, covers};
use crate::plan::Need;
use crate::record::LayerKind;
use crate::scan::OPAQUE;
use crate::tree::{NodeKind, Tree};
use crate::view::{Side, Sides};
use crate::write::create_in;

/// Why a patch was not taken; the layer is unchanged unless a file failed.
#[derive(Debug, thiserror::Error)]
pub enum SubmitPatchError {
    /// No permit is for this file.
    #[error("no permit for `{action}` on `{path}` was given")]
    NotPermitted {
        /// What is needed.
        action: &'static str,
        /// Where.
        path: TreePath,
    },
    /// A permit is for something that the patch does not do.
    #[error(transparent)]
    Permit(#[from] WrongPermit),
    /// A hunk does not match.
    #[error(transparent)]
    Hunk(#[from] HunkMismatch),
    /// The patch creates what is there.
    #[error("the patch creates `{path}`, which is there already")]
    Exists {
        /// Where.
        path: TreePath,
    },
    /// The patch changes what is no text file.
    #[error("the patch changes `{path}`, which is no text file here")]
    NoText {
        /// Where.
        path: TreePath,
    },
    /// The patch deletes a file and leaves something of it.
    #[error("the patch deletes `{path}`, but not all of its lines")]
    NotAllDeleted {
        /// Where.
        path: TreePath,
    },
    /// A directory that it needs is something else.
    #[error("`{path}` is not a directory")]
    NoDirectory {
        /// Where.
        path: TreePath,
    },
    /// The layer or the project cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a file becomes.
struct Patched {
    path: TreePath,
    /// Nothing means that it goes.
    content: Option<(String, u32)>,
}

impl Patch {
    /// What policy must allow before the patch may be submitted.
    ///
    /// A file whose name no rule could name is left out, and is refused when
    /// the patch is submitted.
    #[must_use]
    pub fn needs(&self) -> Vec<Need> {
        let need = |file: &FilePatch| {
            Some(Need {
                action: actions(file.effect).first().copied()?,
                resource: file.path.resource()?,
            })
        };
        self.files().iter().filter_map(need).collect()
    }
}

impl HeldLayer {
    /// Writes a patch into the layer, with one permit for each of its files.
    ///
    /// # Errors
    /// A permit is missing or too many, or a hunk does not match exactly.
    pub fn submit_patch(
        &self,
        permits: Vec<Permit>,
        patch: &Patch,
    ) -> Result<(), SubmitPatchError> {
        check_permits(&permits, patch)?;
        self.check_open()?;
        let (content, project) = (self.content()?, self.project()?);
        let view = Sides::new(self, &content, &project);
        let limits = self.layer().limits;
        let mut results = Vec::new();
        for file in patch.files() {
            results.push(result_of(file, &view, &project, &limits)?);
        }
        let state = self.layer().state_folder();
        let writer = Writer {
            kind: self.layer().kind(),
            state: Tree::open(&state).at("open", &state)?,
            content: &content,
            project: &project,
            view: &view,
        };
        for result in results {
            match result.content {
                Some((text, mode)) => writer.put(&result.path, &text, mode)?,
                None => writer.remove(&result.path)?,
            }
        }
        drop(permits);
        Ok(self.settle()?)
    }
}

/// The actions of which one must be permitted for a file of a patch.
const fn actions(effect: PatchEffect) -> &'static [&'static str] {
    match effect {
        PatchEffect::Create => &["fs.write"],
        PatchEffect::Edit => &["fs.edit", "fs.write"],
        PatchEffect::Delete => &["fs.remove"],
    }
}

/// One permit for each file, and none besides.
fn check_permits(permits: &[Permit], patch: &Patch) -> Result<(), SubmitPatchError> {
    let covered = |file: &FilePatch, permit: &Permit| {
        let resource = file.path.resource();
        resource.is_some_and(|resource| covers(permit, actions(file.effect), &resource))
    };
    for file in patch.files() {
        if !permits.iter().any(|permit| covered(file, permit)) {
            return Err(SubmitPatchError::NotPermitted {
                action: actions(file.effect).first().copied().unwrap_or_default(),
                path: file.path.clone(),
            });
        }
    }
    for permit in permits {
        if !patch.files().iter().any(|file| covered(file, permit)) {
            let needed = "a file of the patch".to_owned();
            return Err(crate::permit::wrong(permit, needed).into());
        }
    }
    Ok(())
}

fn result_of(
    file: &FilePatch,
    view: &Sides<'_>,
    project: &Tree,
    limits: &Limits,
) -> Result<Patched, SubmitPatchError> {
    let path = file.path.clone();
    let found = view.find(&path).within("read", project, &path)?;
    let (before, mode) = match (found, file.effect) {
        (None, PatchEffect::Create) => (String::new(), 0o644),
        (Some(_), PatchEffect::Create) => return Err(SubmitPatchError::Exists { path }),
        (Some((_, node)), _) if node.kind == NodeKind::File => {
            let bytes = view
                .read(&path, limits.text)
                .within("read", project, &path)?;
            let text = String::from_utf8(bytes.unwrap_or_default());
            let Ok(text) = text else {
                return Err(SubmitPatchError::NoText { path });
            };
            (text, node.permissions())
        }
        _ => return Err(SubmitPatchError::NoText { path }),
    };
    let after = file.apply(&before)?;
    let mode = match file.executable {
        None => mode,
        // Whoever may read may then also run.
        Some(true) => mode | (mode & 0o444) >> 2,
        Some(false) => mode & !0o111,
    };
    let content = match file.effect {
        PatchEffect::Delete if !after.is_empty() => {
            return Err(SubmitPatchError::NotAllDeleted { path });
        }
        PatchEffect::Delete => None,
        PatchEffect::Create | PatchEffect::Edit => Some((after, mode)),
    };
    Ok(Patched { path, content })
}

struct Writer<'a> {
    kind: LayerKind,
    /// Where files are made before they take their place; never mounted.
    state: Tree,
    content: &'a Tree,
    project: &'a Tree,
    view: &'a Sides<'a>,
}

const TEMPORARY: &[u8] = b".patched";

impl Writer<'_> {
    fn put(&self, path: &TreePath, text: &str, mode: u32) -> Result<(), SubmitPatchError> {
        let parent = self.parent(path)?;
        self.clear()?;
        let made = create_in(self.state.root(), TEMPORARY, mode)
            .and_then(|mut file: File| file.write_all(text.as_bytes()));
        made.within("write", self.content, path)?;
        Ok(self.place(&parent, path)?)
    }

    fn remove(&self, path: &TreePath) -> Result<(), SubmitPatchError> {
        let is_below = self.kind == LayerKind::Overlay
            && self
                .project
                .node(path)
                .within("read", self.project, path)?
                .is_some();
        let parent = self.parent(path)?;
        if is_below {
            self.clear()?;
            let mode = Mode::from_raw_mode(0o600);
            mknodat(
                self.state.root(),
                TEMPORARY,
                FileType::CharacterDevice,
                mode,
                0,
            )
            .within("remove", self.content, path)?;
            return Ok(self.place(&parent, path)?);
        }
        unlinkat(&parent, path.name(), AtFlags::empty()).within("remove", self.content, path)?;
        Ok(())
    }

    fn place(&self, parent: &OwnedFd, path: &TreePath) -> Result<(), FileError> {
        renameat(self.state.root(), TEMPORARY, parent, path.name()).within(
            "write",
            self.content,
            path,
        )
    }

    fn clear(&self) -> Result<(), FileError> {
        match unlinkat(self.state.root(), TEMPORARY, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error).at("prepare", &self.state.shown(None)),
        }
    }

    /// The directory for a path, in the layer, made as a sandbox would.
    fn parent(&self, path: &TreePath) -> Result<OwnedFd, SubmitPatchError> {
        let mut above: Vec<TreePath> = path.ancestors().collect();
        above.reverse();
        for directory in above {
            match self
                .view
                .find(&directory)
                .within("read", self.content, &directory)?
            {
                Some((_, node)) if node.kind != NodeKind::Directory => {
                    return Err(SubmitPatchError::NoDirectory { path: directory });
                }
                Some((Side::Layer, _)) => {}
                Some((Side::Project, node)) => self.make(&directory, node.permissions())?,
                None => self.make_new(&directory)?,
            }
        }
        Ok(self
            .content
            .parent_of(path)
            .within("open", self.content, path)?)
    }

    fn make(&self, directory: &TreePath, mode: u32) -> Result<(), FileError> {
        let made = || -> io::Result<()> {
            let parent = self.content.parent_of(directory)?;
            mkdirat(&parent, directory.name(), Mode::from_raw_mode(0o700))?;
            let opened = self.content.directory(Some(directory))?;
            fchmod(&opened, Mode::from_raw_mode(mode | 0o700))?;
            Ok(())
        };
        made().within("make", self.content, directory)
    }

    /// A directory that nobody sees yet, perhaps in the place of a deleted one.
    fn make_new(&self, directory: &TreePath) -> Result<(), FileError> {
        let deleted = self.content.node(directory);
        let deleted = deleted.within("read", self.content, directory)?.is_some();
        if deleted {
            let parent = self.content.parent_of(directory);
            let parent = parent.within("make", self.content, directory)?;
            unlinkat(&parent, directory.name(), AtFlags::empty()).within(
                "make",
                self.content,
                directory,
            )?;
        }
        self.make(directory, 0o755)?;
        if deleted {
            let opened = self.content.directory(Some(directory));
            let opened = opened.within("make", self.content, directory)?;
            fsetxattr(&opened, OPAQUE, b"y", XattrFlags::empty()).within(
                "make",
                self.content,
                directory,
            )?;
        }
        Ok(())
    }
}
