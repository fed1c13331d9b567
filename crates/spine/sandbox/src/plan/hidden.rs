//! Paths of the project that a sandbox may not open, and how they stay so.
//!
//! Each is covered by a mount of its own, after everything else, so nothing
//! inside can take it away. A layer that is a copy could lose one by moving a
//! directory above it: those directories become mounts too. Never leaves out
//! silently what it cannot cover. Next: `sys::linux::mounts`, `bwrap`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use fluffy_contract::isolation::{LayerMount, SandboxSpec};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use super::{Engine, HiddenKind, Mount, PlanError, normal};

/// The most paths that one sandbox hides.
pub const MAX_HIDDEN: usize = 1_000;

/// Why hidden paths cannot be covered.
#[derive(Debug, thiserror::Error)]
#[error("cannot look at `{}`, which is to be hidden", path.display())]
pub struct SettleError {
    /// Which, inside.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Finds out what the hidden paths of a plan are, for engines that must be told
/// beforehand; what is not there is left out.
///
/// # Errors
/// A link is on the way to one, or it cannot be looked at.
pub fn settle_hidden(late: Vec<Mount>) -> Result<Vec<Mount>, SettleError> {
    let tree = late.iter().find_map(|mount| match mount {
        Mount::Writable { host, inside } | Mount::ReadOnly { host, inside } => {
            Some((host.clone(), inside.clone()))
        }
        _ => None,
    });
    // Without a project only what is shown at its own path can be hidden.
    let (host, project) = tree.unwrap_or_else(|| ("/".into(), "/".into()));
    let seen = |inside: &Path| {
        let below = inside.strip_prefix(&project).unwrap_or(inside);
        look(&host, below).map_err(|source| SettleError {
            path: inside.to_owned(),
            source,
        })
    };
    let mut settled = Vec::with_capacity(late.len());
    for mount in late {
        match &mount {
            Mount::Pin { inside } => {
                if seen(inside)? == Some(HiddenKind::Directory) {
                    settled.push(mount);
                }
            }
            Mount::Hide { inside, .. } => {
                if let Some(kind) = seen(inside)? {
                    let inside = inside.clone();
                    settled.push(Mount::Hide { inside, kind });
                }
            }
            _ => settled.push(mount),
        }
    }
    Ok(settled)
}

/// Refuses what is to be shown by a path that leads through a link: it could
/// lead out of the project, or of a plugin's folder.
///
/// # Errors
/// The first such path, or one that cannot be looked at.
pub fn refuse_links(spec: &SandboxSpec) -> Result<(), PlanError> {
    let plugin = spec.plugin.iter();
    let folders = plugin.flat_map(|plugin| {
        let written = plugin.data.iter().chain(&plugin.meeting);
        std::iter::once(&plugin.files).chain(written)
    });
    for path in spec.read.iter().chain(folders) {
        let below = path.strip_prefix("/").unwrap_or(path);
        if look(Path::new("/"), below).is_err() {
            return Err(PlanError::Link { path: path.clone() });
        }
    }
    Ok(())
}

/// What is at a path below a directory; follows no link, not even the last.
///
/// # Errors
/// It is a link, one is on the way, or the system refuses to say.
pub(crate) fn look(directory: &Path, below: &Path) -> io::Result<Option<HiddenKind>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = rustix::fs::openat2(&directory, below, flags, Mode::empty(), beneath);
    let opened = match opened {
        Ok(opened) => opened,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    Ok(Some(match kind {
        FileType::Directory => HiddenKind::Directory,
        _ => HiddenKind::File,
    }))
}

/// Refuses what cannot be hidden.
pub(super) fn check(spec: &SandboxSpec, engine: Engine) -> Result<(), PlanError> {
    let found = spec.hidden.len();
    if found > MAX_HIDDEN {
        return Err(PlanError::TooManyHidden { found });
    }
    for path in &spec.hidden {
        normal(path)?;
        // The whole of what is shown is hidden by not naming it.
        let inside = |shown: &PathBuf| path.starts_with(shown) && path != shown;
        let mut shown = match &spec.project {
            Some(project) => std::slice::from_ref(project).iter(),
            None => spec.read.iter(),
        };
        if !shown.any(inside) {
            return Err(PlanError::Outside { path: path.clone() });
        }
    }
    match (engine, spec.hidden.first()) {
        (Engine::Reduced, Some(path)) => Err(PlanError::CannotHide { path: path.clone() }),
        _ => Ok(()),
    }
}

/// The writable directories above hidden paths, outermost first.
///
/// An overlay refuses to move what comes from the project by itself.
pub(super) fn pins(spec: &SandboxSpec) -> Vec<Mount> {
    let (Some(project), Some(LayerMount::Tree { .. })) = (&spec.project, &spec.layer) else {
        return Vec::new();
    };
    let writable = |path: &Path| {
        let open = |part: &PathBuf| path.starts_with(part) && path != part;
        spec.writable.is_empty() || spec.writable.iter().any(open)
    };
    let above = outermost(spec).flat_map(|path| {
        let ancestors = path.ancestors().skip(1);
        ancestors.take_while(|one| *one != project)
    });
    // In the order of paths a directory comes before what is in it.
    let above: BTreeSet<&Path> = above.filter(|path| writable(path)).collect();
    let pin = |path: &Path| Mount::Pin {
        inside: path.to_owned(),
    };
    above.into_iter().map(pin).collect()
}

/// What covers the hidden paths.
pub(super) fn covers(spec: &SandboxSpec) -> impl Iterator<Item = Mount> {
    outermost(spec).map(|path| Mount::Hide {
        inside: path.clone(),
        kind: HiddenKind::Unseen,
    })
}

/// The hidden paths that are not in a hidden directory.
fn outermost(spec: &SandboxSpec) -> impl Iterator<Item = &PathBuf> {
    let all: BTreeSet<&Path> = spec.hidden.iter().map(PathBuf::as_path).collect();
    let covered = move |path: &Path| path.ancestors().skip(1).any(|above| all.contains(above));
    spec.hidden.iter().filter(move |path| !covered(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(hidden: &[&str]) -> SandboxSpec {
        SandboxSpec {
            project: Some("/work".into()),
            layer: Some(LayerMount::Tree {
                tree: "/layers/one/tree".into(),
            }),
            hidden: hidden.iter().map(PathBuf::from).collect(),
            ..SandboxSpec::default()
        }
    }

    fn pinned(spec: &SandboxSpec) -> Vec<String> {
        let inside = |mount: Mount| mount.inside().unwrap().display().to_string();
        pins(spec).into_iter().map(inside).collect()
    }

    #[test]
    fn only_parts_of_the_project_can_be_hidden_and_not_too_many() {
        for outside in ["/work", "/", "/workshop/x", "/etc/passwd"] {
            let refused = check(&spec(&[outside]), Engine::Native);
            assert!(
                matches!(refused, Err(PlanError::Outside { .. })),
                "{outside}: {refused:?}"
            );
        }
        for odd in ["/work/../etc", "work/x", "/work/./x", "/work//x"] {
            let refused = check(&spec(&[odd]), Engine::Native);
            assert!(matches!(refused, Err(PlanError::NotNormal { .. })), "{odd}");
        }
        let without_project = SandboxSpec {
            project: None,
            layer: None,
            ..spec(&["/work/.env"])
        };
        assert!(check(&without_project, Engine::Native).is_err());
        let shown = SandboxSpec {
            read: vec!["/work/docs".into()],
            hidden: vec!["/work/docs/.env".into()],
            ..without_project.clone()
        };
        assert_eq!(check(&shown, Engine::Native), Ok(()));
        let itself = SandboxSpec {
            hidden: vec!["/work/docs".into()],
            ..shown
        };
        assert!(check(&itself, Engine::Native).is_err());
        let mut many = spec(&[]);
        many.hidden = (0..MAX_HIDDEN)
            .map(|n| format!("/work/{n}").into())
            .collect();
        assert_eq!(check(&many, Engine::Native), Ok(()));
        many.hidden.push("/work/one-more".into());
        let found = MAX_HIDDEN + 1;
        let refused = check(&many, Engine::Native);
        assert_eq!(refused, Err(PlanError::TooManyHidden { found }));
    }

    #[test]
    fn reduced_isolation_refuses_what_it_cannot_hide() {
        assert_eq!(check(&spec(&[]), Engine::Reduced), Ok(()));
        let refused = check(&spec(&["/work/.env"]), Engine::Reduced);
        assert!(matches!(refused, Err(PlanError::CannotHide { .. })));
    }

    #[test]
    fn writable_directories_of_a_copy_stay_where_they_are() {
        let mut one = spec(&["/work/a/b/secret", "/work/a/key", "/work/.env"]);
        assert_eq!(pinned(&one), ["/work/a", "/work/a/b"]);
        let covered = spec(&["/work/a/b/secret", "/work/a"]);
        assert!(pinned(&covered).is_empty(), "a mount already");
        assert_eq!(covers(&covered).count(), 1);
        one.writable = vec!["/work/a/b".into()];
        assert!(pinned(&one).is_empty(), "the part is a mount already");
        one.writable = vec!["/work/a".into()];
        assert_eq!(pinned(&one), ["/work/a/b"]);
        one.layer = None;
        assert!(pinned(&one).is_empty(), "nothing can be moved");
    }

    #[test]
    fn what_is_there_is_found_without_following_links() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("a/b")).unwrap();
        std::fs::write(tree.path().join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("a", tree.path().join("link")).unwrap();
        let late = |more: &str| {
            let hide = Mount::Hide {
                inside: Path::new("/work").join(more),
                kind: HiddenKind::Unseen,
            };
            let project = Mount::Writable {
                host: tree.path().to_owned(),
                inside: "/work".into(),
            };
            settle_hidden(vec![project, hide])
        };
        for (name, kind) in [
            ("a/file", Some(HiddenKind::File)),
            ("a/b", Some(HiddenKind::Directory)),
            ("none", None),
            ("a/file/below", None),
        ] {
            let settled = late(name).unwrap();
            let found = settled.get(1).map(|mount| match mount {
                Mount::Hide { kind, .. } => *kind,
                other => panic!("{other:?}"),
            });
            assert_eq!(found, kind, "{name}");
        }
        for name in ["link", "link/file"] {
            assert!(late(name).is_err(), "{name}");
        }
    }
}
