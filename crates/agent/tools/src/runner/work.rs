//! One request: everything worked out first, then done.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use fluffy_base::Digest;
use fluffy_layer::TreePath;
use rustix::io::Errno;

use super::files::{Content, NEW_MODE, Root, Seen};
use super::{Answer, Before, Change, Changed, Request, What};
use crate::edit::{self, Landed};

const NO_FILE: &str = "there is no such file";

/// The most changes of one request.
const MAX_CHANGES: usize = 512;

/// Does a request.
pub(super) fn perform(root: &Path, request: Request) -> Answer {
    let root = match Root::open(root) {
        Ok(root) => root,
        Err(error) => return refused(None, format!("the project cannot be opened: {error}")),
    };
    if request.changes.is_empty() || request.changes.len() > MAX_CHANGES {
        return refused(None, format!("a request has 1 to {MAX_CHANGES} changes"));
    }
    let mut touched = BTreeSet::new();
    let mut steps = Vec::new();
    for change in request.changes {
        let path = change.path.clone();
        match step(&root, change) {
            Ok(step) => {
                for path in step.paths() {
                    if !touched.insert(path.clone()) {
                        let problem = "it is changed twice by one request".to_owned();
                        return refused(Some(path.clone()), problem);
                    }
                }
                steps.push(step);
            }
            Err(problem) => return refused(Some(path), problem),
        }
    }
    // What goes makes room for what comes; what is deep goes before what is above.
    steps.sort_by(|a, b| match (a.is_removal(), b.is_removal()) {
        (true, true) => b.path.cmp(&a.path),
        (one, other) => other.cmp(&one),
    });
    let mut changed = Vec::new();
    for step in steps {
        let path = step.path.clone();
        if let Err((path, error)) = step
            .perform(&root, &mut changed)
            .map_err(|error| (path, error))
        {
            let problem = explain(&error);
            return match changed.is_empty() {
                true => refused(Some(path), problem),
                false => Answer::Broken {
                    changed,
                    path,
                    problem,
                },
            };
        }
    }
    Answer::Done { changed }
}

fn refused(path: Option<TreePath>, problem: String) -> Answer {
    Answer::Refused { path, problem }
}

/// A change that fits.
struct Step {
    path: TreePath,
    /// What is there now; nothing if nothing is, or a link that only goes.
    before: Option<Content>,
    target: Target,
}

enum Target {
    Write {
        text: String,
        landed: Vec<Landed>,
    },
    Move {
        to: TreePath,
        text: String,
        landed: Vec<Landed>,
    },
    Remove,
    Restore {
        bytes: Vec<u8>,
        mode: Option<u32>,
    },
}

fn step(root: &Root, change: Change) -> Result<Step, String> {
    let Change { path, before, what } = change;
    let content = match (&what, before) {
        // Whatever is there, it is looked at when its turn comes.
        (What::Restore { .. }, _) => None,
        (What::Remove, Before::Anything) => match removable(root, &path)? {
            Some(content) => Some(content),
            None => return Ok(Step::removal(path)),
        },
        _ => present(root, &path)?,
    };
    check_before(before, content.as_ref())?;
    let target = target(root, what, content.as_ref())?;
    Ok(Step {
        path,
        before: content,
        target,
    })
}

/// What a change makes of the content that is there.
fn target(root: &Root, what: What, content: Option<&Content>) -> Result<Target, String> {
    let landed = Vec::new();
    Ok(match what {
        What::Write { content: text } => Target::Write { text, landed },
        What::Restore { content, mode } => Target::Restore {
            bytes: content.0,
            mode,
        },
        What::Remove => match content {
            Some(_) => Target::Remove,
            None => return Err(NO_FILE.to_owned()),
        },
        What::Replace { old, new, which } => {
            let replaced = edit::replace(text_of(content)?, &old, &new, which);
            let text = replaced.map_err(|error| error.to_string())?.text;
            Target::Write { text, landed }
        }
        What::Patch { move_to, hunks } => {
            let applied = edit::apply(text_of(content)?, &hunks);
            let applied = applied.map_err(|error| error.to_string())?;
            let (text, landed) = (applied.text, applied.landed);
            match move_to {
                None => Target::Write { text, landed },
                Some(to) => match root.look(&to).map_err(|error| explain(&error))? {
                    Seen::Nothing => Target::Move { to, text, landed },
                    _ => return Err(format!("`{to}` is there already")),
                },
            }
        }
    })
}

/// The regular file at a path, or nothing.
fn present(root: &Root, path: &TreePath) -> Result<Option<Content>, String> {
    match root.look(path).map_err(|error| explain(&error))? {
        Seen::Nothing => Ok(None),
        Seen::File => root.read(path).map(Some).map_err(|error| explain(&error)),
        Seen::Directory => Err("it is a directory".to_owned()),
        Seen::Link => Err("it is a symbolic link, and links are not followed".to_owned()),
        Seen::Special => Err("it is no regular file".to_owned()),
    }
}

/// The file that goes; nothing for what goes without being read.
fn removable(root: &Root, path: &TreePath) -> Result<Option<Content>, String> {
    match root.look(path).map_err(|error| explain(&error))? {
        Seen::Link | Seen::Special => Ok(None),
        Seen::Nothing => Err(NO_FILE.to_owned()),
        Seen::Directory => Err("it is a directory".to_owned()),
        Seen::File => match root.read(path) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
            read => read.map(Some).map_err(|error| explain(&error)),
        },
    }
}

fn check_before(before: Before, content: Option<&Content>) -> Result<(), String> {
    match (before, content) {
        (Before::Anything, _) | (Before::Absent, None) => Ok(()),
        (Before::Absent, Some(_)) => Err("it is there already".to_owned()),
        (Before::Content(_), None) => Err("there is no such file any more".to_owned()),
        (Before::Content(expected), Some(content)) => {
            match Digest::of(&content.bytes) == expected {
                true => Ok(()),
                false => Err("it has changed since it was read: read it again".to_owned()),
            }
        }
    }
}

fn text_of(content: Option<&Content>) -> Result<&str, String> {
    let content = content.ok_or(NO_FILE)?;
    std::str::from_utf8(&content.bytes).map_err(|_| "it is not a text file".to_owned())
}

impl Step {
    /// Something goes whose content does not matter.
    fn removal(path: TreePath) -> Self {
        Self {
            path,
            before: None,
            target: Target::Remove,
        }
    }

    fn is_removal(&self) -> bool {
        matches!(self.target, Target::Remove)
    }

    fn paths(&self) -> impl Iterator<Item = &TreePath> {
        let moved = match &self.target {
            Target::Move { to, .. } => Some(to),
            Target::Write { .. } | Target::Remove | Target::Restore { .. } => None,
        };
        std::iter::once(&self.path).chain(moved)
    }

    fn perform(self, root: &Root, changed: &mut Vec<Changed>) -> io::Result<()> {
        let Self {
            path,
            before,
            target,
        } = self;
        let digest = before.as_ref().map(|content| Digest::of(&content.bytes));
        let mode = before.as_ref().map_or(NEW_MODE, |content| content.mode);
        match target {
            Target::Write { text, landed } => {
                root.write(&path, text.as_bytes(), before.as_ref(), mode)?;
                changed.push(written(path, digest, text.as_bytes(), landed));
            }
            Target::Move { to, text, landed } => {
                root.write(&to, text.as_bytes(), None, mode)?;
                changed.push(written(to, None, text.as_bytes(), landed));
                root.remove(&path, before.as_ref())?;
                changed.push(gone(path, digest));
            }
            Target::Remove => {
                root.remove(&path, before.as_ref())?;
                changed.push(gone(path, digest));
            }
            Target::Restore { bytes, mode } => {
                root.clear(&path)?;
                let mode = mode.map(|mode| mode & 0o777);
                root.put(&path, &bytes, mode)?;
                changed.push(written(path, None, &bytes, Vec::new()));
            }
        }
        Ok(())
    }
}

fn written(path: TreePath, before: Option<Digest>, bytes: &[u8], landed: Vec<Landed>) -> Changed {
    Changed {
        path,
        before,
        after: Some(Digest::of(bytes)),
        size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        landed,
    }
}

const fn gone(path: TreePath, before: Option<Digest>) -> Changed {
    Changed {
        path,
        before,
        after: None,
        size: 0,
        landed: Vec::new(),
    }
}

/// The system's errors that a model can do something about, in words.
fn explain(error: &io::Error) -> String {
    let known = error.raw_os_error().map(Errno::from_raw_os_error);
    match known {
        Some(Errno::LOOP) => "a symbolic link is on the way, and links are not followed".to_owned(),
        Some(Errno::NOTDIR) => {
            "a part of the path is no directory; links are not followed".to_owned()
        }
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => "it is read-only here".to_owned(),
        Some(Errno::EXIST) => "it is there already".to_owned(),
        Some(Errno::XDEV) => "the path leads out of the project".to_owned(),
        _ => error.to_string(),
    }
}
