//! The tool runner: a small program that changes files from inside a sandbox.
//!
//! `fluffy worker tool-runner` calls [`run`]: one framed request comes in, is
//! done, and is answered. Every change is worked out before the first one is
//! made; a file is replaced as a whole, by rename, and only if it is what the
//! request says it is. Paths are resolved by the kernel beneath the project,
//! without following any link. The sandbox is the boundary; this only sees to
//! it that an honest call does what it says.

mod files;
mod work;

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fluffy_base::Digest;
use fluffy_layer::TreePath;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::arguments::{RemoveFile, WriteFile};
use crate::call::{Call, ReplaceInFile};
use crate::edit::{FileChange, FileChangeKind, Hunk, Landed, Which};
use crate::paths::{NotInProject, tree_path};

/// The words that make `fluffy` a tool runner.
pub const ARGUMENTS: [&str; 2] = ["worker", "tool-runner"];

/// The version of the two messages.
pub const VERSION: u32 = 1;

/// The largest frame, as everywhere in the product.
pub const MAX_FRAME: usize = 16 << 20;

/// What the runner is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Always [`VERSION`].
    pub version: u32,
    /// The changes; all of them or, if one does not fit, none.
    pub changes: Vec<Change>,
}

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The file.
    pub path: TreePath,
    /// What must be there.
    pub before: Before,
    /// What becomes of it.
    pub what: What,
}

/// What must be at a path before it is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// Any regular file, or nothing.
    Anything,
    /// Nothing.
    Absent,
    /// A file with this content.
    Content(Digest),
}

/// What becomes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum What {
    /// This is its whole content.
    Write {
        /// The content.
        content: String,
    },
    /// One text in it becomes another.
    Replace {
        /// What is replaced.
        old: String,
        /// By what.
        new: String,
        /// How often.
        which: Which,
    },
    /// Hunks of a patch are applied to it, and it may get another name.
    Patch {
        /// Where it goes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        move_to: Option<TreePath>,
        /// The hunks.
        hunks: Vec<Hunk>,
    },
    /// It goes; a link or special file only if anything may be there.
    Remove,
    /// It becomes what it was, whatever took its place, but for a full directory.
    ///
    /// Only the kernel asks for this, to undo what a command may not have done.
    /// It is looked at when its turn comes, after all that goes.
    Restore {
        /// The content.
        content: Bytes,
        /// The permissions; those of the file that is there, if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
}

/// Content that need not be text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let decoded = BASE64_STANDARD.decode(text);
        decoded.map(Self).map_err(serde::de::Error::custom)
    }
}

/// What the runner says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Everything was done.
    Done {
        /// One for each path that changed.
        changed: Vec<Changed>,
    },
    /// Nothing was done.
    Refused {
        /// Where it did not fit; nothing if the request itself is wrong.
        path: Option<TreePath>,
        /// Why not, for the model.
        problem: String,
    },
    /// The system failed in the middle: these were done, the rest was not.
    Broken {
        /// What was done.
        changed: Vec<Changed>,
        /// Where it failed.
        path: TreePath,
        /// How.
        problem: String,
    },
}

/// A path that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Which.
    pub path: TreePath,
    /// What was there; nothing if nothing was.
    pub before: Option<Digest>,
    /// What is there; nothing if nothing is.
    pub after: Option<Digest>,
    /// How many bytes are there.
    pub size: u64,
    /// Where the hunks of a patch landed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub landed: Vec<Landed>,
}

/// Why a call is no request to the runner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MakeRequestError {
    /// The call changes no files by itself.
    #[error("this call is not one that changes files")]
    OtherCall,
    /// A path is not the project's.
    #[error(transparent)]
    Path(#[from] NotInProject),
    /// The project itself is no file.
    #[error("the project's directory cannot be changed as a file")]
    Root,
}

/// Why a frame could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It is larger than any frame.
    #[error("the frame has {length} bytes, more than {MAX_FRAME}")]
    TooLarge {
        /// How large.
        length: u64,
    },
    /// It is not what was expected.
    #[error("the frame holds something else than expected")]
    Malformed(#[source] serde_json::Error),
    /// It could not be read or written.
    #[error("the frame could not be exchanged")]
    Io(#[from] io::Error),
}

impl Request {
    /// The request for a call; `before` says what is known to be at a path.
    ///
    /// # Errors
    /// The call is another one, or names what is not in the project.
    pub fn of(call: &Call, before: impl Fn(&TreePath) -> Before) -> Result<Self, MakeRequestError> {
        let single = |path: &str, what: What| -> Result<Vec<Change>, MakeRequestError> {
            let path = file(path)?;
            let before = before(&path);
            Ok(vec![Change { path, before, what }])
        };
        let changes = match call {
            Call::Write(WriteFile { path, content }) => {
                let content = content.clone();
                single(path, What::Write { content })?
            }
            Call::Replace(ReplaceInFile {
                path,
                old,
                new,
                which,
            }) => {
                let (old, new, which) = (old.clone(), new.clone(), *which);
                single(path, What::Replace { old, new, which })?
            }
            Call::Remove(RemoveFile { path }) => single(path, What::Remove)?,
            Call::Patch(changes) => {
                let change = |change| of_patch(change, &before);
                changes.iter().map(change).collect::<Result<_, _>>()?
            }
            _ => return Err(MakeRequestError::OtherCall),
        };
        Ok(Self {
            version: VERSION,
            changes,
        })
    }
}

fn of_patch(
    change: &FileChange,
    before: impl Fn(&TreePath) -> Before,
) -> Result<Change, MakeRequestError> {
    let path = file(&change.path)?;
    let known = before(&path);
    let (before, what) = match &change.kind {
        FileChangeKind::Create { content } => {
            let content = content.clone();
            (Before::Absent, What::Write { content })
        }
        FileChangeKind::Delete => (known, What::Remove),
        FileChangeKind::Update { move_to, hunks } => {
            let move_to = move_to.as_deref().map(file).transpose()?;
            let hunks = hunks.clone();
            (known, What::Patch { move_to, hunks })
        }
    };
    Ok(Change { path, before, what })
}

fn file(resource: &str) -> Result<TreePath, MakeRequestError> {
    tree_path(resource)?.ok_or(MakeRequestError::Root)
}

/// The whole program: the project is the current directory.
#[must_use]
pub fn worker_main() -> ExitCode {
    match run(Path::new("."), io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be listening.
            let _ = writeln!(io::stderr(), "fluffy: the tool runner ended: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does one request and answers it; the root is the project.
///
/// # Errors
/// The request could not be read, or the answer not be written.
pub fn run(root: &Path, input: impl Read, output: impl Write) -> Result<(), FrameError> {
    let answer = match read_frame::<Request>(input) {
        Ok(request) if request.version == VERSION => work::perform(root, request),
        Ok(request) => Answer::Refused {
            path: None,
            problem: format!("version {} is not version {VERSION}", request.version),
        },
        Err(FrameError::Malformed(error)) => Answer::Refused {
            path: None,
            problem: format!("the request cannot be read: {error}"),
        },
        Err(other) => return Err(other),
    };
    write_frame(output, &answer)
}

/// Writes one message: four bytes of length, then JSON.
///
/// # Errors
/// It is too large, or the stream is gone.
pub fn write_frame(mut output: impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    let body = serde_json::to_vec(message).map_err(FrameError::Malformed)?;
    let too_large = |length: usize| FrameError::TooLarge {
        length: u64::try_from(length).unwrap_or(u64::MAX),
    };
    let length = u32::try_from(body.len()).map_err(|_| too_large(body.len()))?;
    if body.len() > MAX_FRAME {
        return Err(too_large(body.len()));
    }
    output.write_all(&length.to_be_bytes())?;
    output.write_all(&body)?;
    Ok(output.flush()?)
}

/// Reads one message; a longer one is refused before it is read.
///
/// # Errors
/// It is too large, malformed or cut off.
pub fn read_frame<T: DeserializeOwned>(mut input: impl Read) -> Result<T, FrameError> {
    let mut length = [0u8; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    let within = usize::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_FRAME);
    let Some(within) = within else {
        let length = u64::from(length);
        return Err(FrameError::TooLarge { length });
    };
    let mut body = vec![0u8; within];
    input.read_exact(&mut body)?;
    serde_json::from_slice(&body).map_err(FrameError::Malformed)
}

#[cfg(test)]
mod tests;
