//! What a session may not read, found once, so that its commands cannot either.
//!
//! Policy is asked for `fs.read` of every file of the project, ignored ones
//! too; what it does not allow is hidden in every sandbox of the session. Git's
//! own data is left out: what was committed is in it anyway. Decides nothing
//! itself, and never gives half a list: what cannot be looked at to its end, or
//! not be hidden, is an error. Next: `workshop` takes the list.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fluffy_layer::{
    FileError, FindUnreadError, HeldLayer, LayerKind, MAX_LOOKED_AT, ReadLayerError, TreePath,
    Unread, View, find_unread,
};
use fluffy_sandbox::plan::MAX_HIDDEN;

use crate::workshop::{Mounts, Premises};

/// The paths of a project that no command of a session may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    paths: Vec<PathBuf>,
    entries: usize,
}

impl Hidden {
    /// The paths, each as it is seen inside.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// How many files and directories policy was asked about.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }
}

/// Why nobody can say what has to be hidden, or nothing can hide it.
#[derive(Debug, thiserror::Error)]
pub enum FindHiddenError {
    /// Not all of it could be asked about.
    #[error(transparent)]
    Unread(#[from] FindUnreadError),
    /// A sandbox can only hide so many.
    #[error("policy keeps {found} paths of the project unread, and {MAX_HIDDEN} can be hidden")]
    TooManyHidden {
        /// How many there are.
        found: usize,
    },
    /// Its name cannot be said.
    #[error("policy keeps `{path}` unread, and a name that is no text cannot be hidden")]
    Unnameable {
        /// Which.
        path: TreePath,
    },
    /// Reduced isolation mounts nothing.
    #[error("policy keeps `{path}` unread, and reduced isolation cannot hide it from commands")]
    NothingHides {
        /// The first of them.
        path: TreePath,
    },
    /// The layer cannot be read.
    #[error(transparent)]
    Layer(#[from] ReadLayerError),
    /// The project cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
}

impl FindHiddenError {
    /// What a person can do about it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Unread(FindUnreadError::TooManyEntries { .. }) => {
                "work in a part of the project, or remove build output"
            }
            Self::TooManyHidden { .. } => {
                "move them into a directory that policy denies as a whole, or allow reading some"
            }
            Self::Unnameable { .. } => "rename it, or allow reading it in the policy",
            Self::NothingHides { .. } => {
                "move it out of the project, allow reading it in the policy, or see \
                 `fluffy doctor` for stronger isolation"
            }
            Self::Layer(_) | Self::Unread(FindUnreadError::Read(_)) | Self::File(_) => {
                "make the project readable"
            }
        }
    }
}

/// Asks about every file of a layer's project whether it may be read; the paths
/// are as the premises name the project.
///
/// # Errors
/// Not all could be asked about, or something cannot be hidden.
pub fn find_hidden(
    held: &HeldLayer,
    premises: &Premises,
    may_read: &dyn Fn(&str) -> bool,
) -> Result<Hidden, FindHiddenError> {
    let project = View::of_project(held.layer().project())?;
    let copy = match held.layer().kind() {
        LayerKind::Copy => Some(held.view()?),
        LayerKind::Overlay => None,
    };
    let unread = find_unread(&project, copy.as_ref(), MAX_LOOKED_AT, may_read)?;
    conclude(&unread, &premises.project, premises.mounts)
}

/// The list, if all of it can be hidden.
fn conclude(unread: &Unread, root: &Path, mounts: Mounts) -> Result<Hidden, FindHiddenError> {
    let found: Vec<&TreePath> = unread.paths().collect();
    if let (Mounts::No, Some(path)) = (mounts, found.first()) {
        let path = (*path).clone();
        return Err(FindHiddenError::NothingHides { path });
    }
    if found.len() > MAX_HIDDEN {
        let found = found.len();
        return Err(FindHiddenError::TooManyHidden { found });
    }
    let paths = found.iter().map(|path| named(root, path));
    Ok(Hidden {
        paths: paths.collect::<Result<_, _>>()?,
        entries: unread.entries(),
    })
}

fn named(root: &Path, path: &TreePath) -> Result<PathBuf, FindHiddenError> {
    match OsStr::from_bytes(path.as_bytes()).to_str() {
        Some(text) => Ok(root.join(text)),
        None => Err(FindHiddenError::Unnameable { path: path.clone() }),
    }
}

#[cfg(test)]
mod tests;
