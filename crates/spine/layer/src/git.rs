//! What git would run or believe after a merge.
//!
//! A repository can be anywhere in a project: nested, a submodule's, a
//! worktree's, or a bare one that only looks like a directory of files. In all
//! of them hooks, executing settings and pointers elsewhere are refused, judged
//! by what git would read afterwards and not by how it is written.

use std::collections::BTreeSet;
use std::io;

use crate::changes::Change;
use crate::error::{Explain, FileError};
use crate::gitconfig::{MAX_BYTES, Settings, parse, refused_keys, refused_modules};
use crate::judge::kind_after;
use crate::names::{folded, means_git};
use crate::path::TreePath;
use crate::refusal::{Reason, Refusal};
use crate::settle::Settled;
use crate::tree::{NodeKind, is_absent};
use crate::view::Sides;

/// What a changed path inside a git directory is to git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing that runs or leads away.
    Data,
    /// Below a directory of hooks.
    Hook,
    /// A configuration.
    Config,
    /// A file that says where something else is.
    Pointer,
}

/// Everything git would run or believe.
pub(crate) fn refusals(
    settled: &Settled,
    view: &Sides<'_>,
    changes: &[Change],
) -> Result<Vec<Refusal>, FileError> {
    let mut found = Vec::new();
    let mut lookalikes = BTreeSet::new();
    for change in changes {
        if change.path.names().any(means_git) {
            found.extend(inside(settled, view, change)?);
        } else {
            lookalikes.extend(repository_above(&change.path));
        }
        let is_modules = folded(change.path.name()) == b".gitmodules";
        if is_modules && kind_after(change) == Some(NodeKind::File) {
            found.extend(modules(settled, &change.path)?);
        }
    }
    for directory in lookalikes {
        found.extend(bare_repository(settled, view, changes, directory.as_ref())?);
    }
    Ok(found)
}

/// The role of a path, given its names below the git directory.
pub(crate) fn role(below: &[&[u8]]) -> Role {
    let Some((first, rest)) = below.split_first() else {
        return Role::Pointer;
    };
    let lower: Vec<Vec<u8>> = below.iter().map(|name| folded(name)).collect();
    let is_any = |wanted: &[u8]| lower.iter().any(|name| name == wanted);
    let last = lower.last().map_or(b"".as_slice(), Vec::as_slice);
    let is_config = matches!(last, b"config" | b"config.worktree");
    match folded(first).as_slice() {
        b"hooks" if !rest.is_empty() => Role::Hook,
        b"config" | b"config.worktree" if rest.is_empty() => Role::Config,
        b"commondir" | b"gitdir" if rest.is_empty() => Role::Pointer,
        b"objects" if last == b"alternates" || last == b"http-alternates" => Role::Pointer,
        // Whole git directories of their own, under names that anyone chooses.
        b"modules" | b"worktrees" => {
            if is_any(b"hooks") {
                Role::Hook
            } else if is_config {
                Role::Config
            } else if matches!(
                last,
                b"commondir" | b"gitdir" | b"alternates" | b"http-alternates"
            ) {
                Role::Pointer
            } else {
                Role::Data
            }
        }
        _ => Role::Data,
    }
}

fn inside(
    settled: &Settled,
    view: &Sides<'_>,
    change: &Change,
) -> Result<Option<Refusal>, FileError> {
    let names: Vec<&[u8]> = change.path.names().collect();
    let mut roots = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if means_git(name) {
            roots.push(names.get(at.saturating_add(1)..).unwrap_or_default());
        }
    }
    // A name that means `.git` can hold another one: the worst reading counts.
    let worst = roots.iter().find(|below| role(below) != Role::Data);
    match worst.or(roots.first()) {
        Some(below) => refusal_for(settled, view, change, below),
        None => Ok(None),
    }
}

fn refusal_for(
    settled: &Settled,
    view: &Sides<'_>,
    change: &Change,
    below: &[&[u8]],
) -> Result<Option<Refusal>, FileError> {
    let path = &change.path;
    let is_directory = |kind: Option<NodeKind>| kind.is_none_or(|kind| kind == NodeKind::Directory);
    let before = change.before.map(|before| before.kind);
    let after = kind_after(change);
    let refuse = |reason| Ok(Some(Refusal::new(path.clone(), reason)));
    if after == Some(NodeKind::Symlink) {
        return refuse(Reason::GitPointer);
    }
    if is_directory(before) && is_directory(after) {
        return Ok(None);
    }
    match role(below) {
        Role::Data => Ok(None),
        Role::Hook if is_new_sample(settled, change)? => Ok(None),
        Role::Hook => refuse(Reason::GitHook),
        Role::Pointer => refuse(Reason::GitPointer),
        Role::Config => {
            let old = project_config(settled, path)?;
            config_refusal(view, settled, path, old)
        }
    }
}

/// Whether this is one of the samples that come with every fresh clone. Git
/// never runs that name, and where the directory is new too, no hook of the
/// person's own can lead to it.
fn is_new_sample(settled: &Settled, change: &Change) -> Result<bool, FileError> {
    let path = &change.path;
    let is_sample = path.name().ends_with(b".sample");
    let is_new = change.before.is_none() && kind_after(change) == Some(NodeKind::File);
    let Some(directory) = path.parent().filter(|_| is_sample && is_new) else {
        return Ok(false);
    };
    let known = settled.project.node(&directory);
    let known = known.within("read", &settled.project, &directory)?;
    Ok(known.is_none() && folded(directory.name()) == b"hooks")
}

/// The refusal of a configuration, given what it said before.
fn config_refusal(
    view: &Sides<'_>,
    settled: &Settled,
    path: &TreePath,
    old: Option<Settings>,
) -> Result<Option<Refusal>, FileError> {
    let unreadable = || Refusal::new(path.clone(), Reason::GitConfigUnreadable);
    let bytes = match view.read(path, MAX_BYTES) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) if is_odd(&error) => return Ok(Some(unreadable())),
        Err(error) => return Err(error).within("read", &settled.content, path),
    };
    let (Some(old), Ok(new)) = (old, parse(&bytes)) else {
        return Ok(Some(unreadable()));
    };
    let keys = refused_keys(&old, &new);
    let shown: Vec<String> = keys.iter().take(8).map(ToString::to_string).collect();
    let refusal = Refusal::about(path.clone(), Reason::GitConfig, shown.join(", "));
    Ok((!keys.is_empty()).then_some(refusal))
}

/// What a configuration of the project says; nothing if it cannot be read.
fn project_config(settled: &Settled, path: &TreePath) -> Result<Option<Settings>, FileError> {
    match settled.project.read(path, MAX_BYTES) {
        Ok(bytes) => Ok(parse(&bytes).ok()),
        Err(error) if is_absent(&error) => Ok(Some(Settings::new())),
        Err(error) if is_odd(&error) => Ok(None),
        Err(error) => Err(error).within("read", &settled.project, path),
    }
}

fn modules(settled: &Settled, path: &TreePath) -> Result<Option<Refusal>, FileError> {
    let bytes = match settled.content.read(path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if is_odd(&error) => Vec::from([0]),
        Err(error) => return Err(error).within("read", &settled.content, path),
    };
    let Ok(settings) = parse(&bytes) else {
        let reason = Reason::GitConfigUnreadable;
        return Ok(Some(Refusal::new(path.clone(), reason)));
    };
    let keys = refused_modules(&settings);
    let shown: Vec<String> = keys.iter().take(8).map(ToString::to_string).collect();
    let refusal = Refusal::about(path.clone(), Reason::GitConfig, shown.join(", "));
    Ok((!keys.is_empty()).then_some(refusal))
}

/// Directories that the change could make look like a bare repository.
fn repository_above(path: &TreePath) -> Vec<Option<TreePath>> {
    let tells = |name: &[u8]| {
        matches!(
            folded(name).as_slice(),
            b"head"
                | b"config"
                | b"config.worktree"
                | b"commondir"
                | b"objects"
                | b"refs"
                | b"hooks"
        )
    };
    let mut found = Vec::new();
    for step in std::iter::once(path.clone()).chain(path.ancestors()) {
        if tells(step.name()) {
            found.push(step.parent());
        }
    }
    found
}

/// Judges a directory that git would take for a repository.
fn bare_repository(
    settled: &Settled,
    view: &Sides<'_>,
    changes: &[Change],
    directory: Option<&TreePath>,
) -> Result<Vec<Refusal>, FileError> {
    let mut found = Vec::new();
    let join = |name: &[u8]| TreePath::below(directory, name).ok();
    let in_view = |name: &[u8]| -> Result<bool, FileError> {
        let Some(path) = join(name) else {
            return Ok(false);
        };
        let seen = view.find(&path).within("read", &settled.project, &path)?;
        Ok(seen.is_some())
    };
    let in_project = |name: &[u8]| -> Result<bool, FileError> {
        let Some(path) = join(name) else {
            return Ok(false);
        };
        let seen = settled.project.node(&path);
        Ok(seen.within("read", &settled.project, &path)?.is_some())
    };
    if !looks_like_repository(in_view)? {
        return Ok(found);
    }
    let was_repository = looks_like_repository(in_project)?;
    for name in [b"config".as_slice(), b"config.worktree"] {
        let Some(path) = join(name) else { continue };
        let old = if was_repository {
            project_config(settled, &path)?
        } else {
            Some(Settings::new())
        };
        found.extend(config_refusal(view, settled, &path, old)?);
    }
    for change in changes {
        let Some(below) = names_below(&change.path, directory) else {
            continue;
        };
        let changes_file = [change.before, change.after]
            .iter()
            .flatten()
            .any(|shape| shape.kind != NodeKind::Directory);
        let reason = match role(&below) {
            Role::Hook => Reason::GitHook,
            Role::Pointer => Reason::GitPointer,
            Role::Data | Role::Config => continue,
        };
        if changes_file {
            found.push(Refusal::new(change.path.clone(), reason));
        }
    }
    let hooks = join(b"hooks");
    if !was_repository && in_view(b"hooks")? {
        let refusal = hooks.map(|path| Refusal::new(path, Reason::GitHook));
        found.extend(refusal);
    }
    Ok(found)
}

/// Whether git would take a directory with these names for a repository.
fn looks_like_repository(
    has: impl Fn(&[u8]) -> Result<bool, FileError>,
) -> Result<bool, FileError> {
    Ok(has(b"HEAD")? && (has(b"commondir")? || (has(b"objects")? && has(b"refs")?)))
}

/// The names of a path below a directory; nothing if it is not below it.
fn names_below<'a>(path: &'a TreePath, directory: Option<&TreePath>) -> Option<Vec<&'a [u8]>> {
    let depth = match directory {
        None => 0,
        Some(directory) if path != directory && path.is_within(directory) => directory.depth(),
        Some(_) => return None,
    };
    Some(path.names().skip(depth).collect())
}

/// Whether a file is odd in a way that its writer chose.
fn is_odd(error: &io::Error) -> bool {
    is_absent(error)
        || matches!(
            error.kind(),
            io::ErrorKind::FileTooLarge
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::IsADirectory
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(path: &str) -> Role {
        let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        role(&names)
    }

    #[test]
    fn roles_are_found_wherever_they_are() {
        for path in [
            "hooks/pre-commit",
            "HOOKS/x",
            "modules/a/hooks/x",
            "modules/refs/hooks/x",
            "modules/a/b/hooks/deep/x",
            "worktrees/w/hooks/x",
        ] {
            assert_eq!(role_of(path), Role::Hook, "{path}");
        }
        for path in ["config", "Config", "config.worktree", "modules/a/config"] {
            assert_eq!(role_of(path), Role::Config, "{path}");
        }
        for path in [
            "commondir",
            "worktrees/w/gitdir",
            "objects/info/alternates",
            "modules/a/commondir",
        ] {
            assert_eq!(role_of(path), Role::Pointer, "{path}");
        }
        for path in [
            "HEAD",
            "index",
            "refs/heads/hooks/x",
            "objects/ab/cdef",
            "logs/HEAD",
            "info/exclude",
            "hooks",
        ] {
            assert_eq!(role_of(path), Role::Data, "{path}");
        }
        assert_eq!(role(&[]), Role::Pointer);
    }
}
