//! The layer's tree, before a container gets it.
//!
//! Everything in it was written by a sandbox: no link in it is followed, and
//! none decides what is mounted. Next: `creation`.

use std::path::Path;

use fluffy_sandbox::failure::{refused, system};
use fluffy_sandbox::plan::{Mount, settle_hidden};
use fluffy_sandbox::protocol::Failure;
use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Leaves out what is not there; refuses what a link could lead elsewhere.
pub(crate) fn settled(late: Vec<Mount>) -> Result<Vec<Mount>, Failure> {
    let hidden = settle_hidden(late);
    let late = hidden.map_err(|error| {
        let why = format!("{error}: {}", error.source);
        refused("the sandbox", &why)
    })?;
    let tree = late.iter().find_map(|mount| match mount {
        Mount::Writable { host, inside } | Mount::ReadOnly { host, inside } => {
            Some((host.clone(), inside.clone()))
        }
        _ => None,
    });
    let Some((host, project)) = tree else {
        return Ok(late);
    };
    let place = |inside: &Path| {
        let relative = inside.strip_prefix(&project).unwrap_or(Path::new("."));
        is_plain(&host, relative)
    };
    let mut kept = Vec::new();
    for mount in late {
        match &mount {
            Mount::Protect { inside } => {
                if place(inside)? {
                    kept.push(mount);
                }
            }
            Mount::OnlyWritable { parts, .. } => {
                for part in parts {
                    if !place(part)? {
                        let why = format!("`{}` does not exist", part.display());
                        return Err(refused("the sandbox", &why));
                    }
                }
                kept.push(mount);
            }
            _ => kept.push(mount),
        }
    }
    Ok(kept)
}

/// Whether a path below a folder is there; refused if a link is on the way.
fn is_plain(folder: &Path, relative: &Path) -> Result<bool, Failure> {
    let relative = match relative.as_os_str().is_empty() {
        true => Path::new("."),
        false => relative,
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(folder, flags | OFlags::DIRECTORY, Mode::empty()).and_then(|folder| {
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            rustix::fs::openat2(&folder, relative, flags, Mode::empty(), beneath)
        });
    match opened {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::XDEV) => {
            let why = format!("`{}` is behind a symbolic link", relative.display());
            Err(refused("the sandbox", &why))
        }
        Err(error) => Err(system("look at the layer", &error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    fn late(tree: &Path, more: Vec<Mount>) -> Vec<Mount> {
        let project = Mount::Writable {
            host: tree.to_owned(),
            inside: "/project".into(),
        };
        std::iter::once(project).chain(more).collect()
    }

    fn protect(inside: &str) -> Mount {
        Mount::Protect {
            inside: inside.into(),
        }
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        let tree = tempfile::TempDir::new().unwrap();
        fs::create_dir(tree.path().join(".git")).unwrap();
        let mounts = late(
            tree.path(),
            vec![protect("/project/.git"), protect("/project/none")],
        );
        let kept = settled(mounts).unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[1], protect("/project/.git"));
        let opened = Mount::OnlyWritable {
            inside: "/project".into(),
            parts: vec![PathBuf::from("/project/none")],
        };
        let failure = settled(late(tree.path(), vec![opened])).unwrap_err();
        assert!(failure.why.contains("does not exist"), "{failure:?}");
    }

    #[test]
    fn a_link_anywhere_on_the_way_is_refused() {
        let tree = tempfile::TempDir::new().unwrap();
        symlink("/etc", tree.path().join("link")).unwrap();
        symlink("..", tree.path().join("up")).unwrap();
        for inside in ["/project/link", "/project/link/passwd", "/project/up/x"] {
            let failure = settled(late(tree.path(), vec![protect(inside)])).unwrap_err();
            assert!(
                failure.why.contains("symbolic link"),
                "{inside}: {failure:?}"
            );
        }
    }
}
