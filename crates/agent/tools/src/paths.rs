//! What a path in a call's arguments means.
//!
//! Relative paths are the project's. An absolute one is the host's: below the
//! project's folder it means the project, anywhere else it becomes `@host/…`,
//! which policy decides about like everything else. Nothing is resolved here:
//! `..` goes to policy as it is, and policy denies it.

use std::path::Path;

use fluffy_layer::TreePath;
use fluffy_policy::Permit;
use fluffy_policy::path::normalise;

/// Where the project is, as commands in its sandbox see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectPaths {
    root: String,
}

impl ProjectPaths {
    /// The paths of the project in this folder.
    #[must_use]
    pub fn new(project: &Path) -> Self {
        let root = project.to_string_lossy();
        Self {
            root: root.trim_end_matches('/').to_owned(),
        }
    }

    /// The resource that an argument names, not yet normalised.
    #[must_use]
    pub fn resource(&self, argument: &str) -> String {
        if argument.starts_with('~') {
            return format!("@host/{argument}");
        }
        if !argument.starts_with('/') {
            return format!("/{argument}");
        }
        match argument.strip_prefix(&self.root) {
            Some("") => "/".to_owned(),
            Some(below) if below.starts_with('/') && !self.root.is_empty() => below.to_owned(),
            _ => format!("@host{argument}"),
        }
    }
}

/// A resource as the model writes it: relative to the project.
#[must_use]
pub fn shown(resource: &str) -> &str {
    match resource.strip_prefix('/') {
        Some("") => ".",
        Some(below) => below,
        None => resource.strip_prefix("@host").unwrap_or(resource),
    }
}

/// The path below the project's root; nothing for the root itself.
///
/// Spelled as it was given: a file's name may be written in another form of
/// Unicode than the one that rules see.
///
/// # Errors
/// The resource is not in the project, or no path.
pub(crate) fn tree_path(resource: &str) -> Result<Option<TreePath>, NotInProject> {
    let outside = || NotInProject {
        path: shown(resource).to_owned(),
    };
    let below = resource.strip_prefix('/').ok_or_else(outside)?;
    let names = below.split('/').filter(|name| !matches!(*name, "" | "."));
    let names: Vec<&str> = names.collect();
    match names.is_empty() {
        true => Ok(None),
        false => TreePath::parse(names.join("/").as_bytes())
            .map(Some)
            .map_err(|_| outside()),
    }
}

/// A path that is none of the project's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` is not in the project: give paths relative to it, such as `src/lib.rs`")]
pub struct NotInProject {
    /// The path, as the model wrote it.
    pub path: String,
}

/// Whether a permit is for this action on this resource.
pub(crate) fn covers(permit: &Permit, action: &str, resource: &str) -> bool {
    permit.action() == action
        && normalise(resource).is_ok_and(|normal| permit.resource() == Some(&normal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_the_project_or_the_host() {
        let paths = ProjectPaths::new(Path::new("/home/me/project/"));
        for (argument, resource) in [
            ("src/lib.rs", "/src/lib.rs"),
            ("./src//lib.rs", "/./src//lib.rs"),
            ("", "/"),
            (".", "/."),
            ("@host/etc/passwd", "/@host/etc/passwd"),
            ("/home/me/project", "/"),
            ("/home/me/project/src", "/src"),
            ("/home/me/project2/src", "@host/home/me/project2/src"),
            ("/etc/passwd", "@host/etc/passwd"),
            ("~/.ssh/id_rsa", "@host/~/.ssh/id_rsa"),
            ("../other", "/../other"),
            ("/home/me/project/../x", "/../x"),
        ] {
            assert_eq!(paths.resource(argument), resource, "{argument}");
        }
        assert!(normalise(&paths.resource("../other")).is_err());
        assert!(normalise(&paths.resource("/home/me/project/../x")).is_err());
        let whole = ProjectPaths::new(Path::new("/"));
        assert_eq!(whole.resource("/etc"), "@host/etc");
    }

    #[test]
    fn only_paths_of_the_project_become_paths_of_a_tree() {
        let path = |text: &str| tree_path(text).map(|path| path.map(|path| path.to_string()));
        assert_eq!(path("/./src//lib.rs/"), Ok(Some("src/lib.rs".to_owned())));
        assert_eq!(path("/"), Ok(None));
        assert!(path("@host/etc").is_err() && path("/a/../b").is_err());
        assert_eq!(shown("/src/a"), "src/a");
        assert_eq!(shown("/"), ".");
        assert_eq!(shown("@host/etc"), "/etc");
    }

    #[test]
    fn a_permit_covers_one_action_on_one_spelling() {
        let permit = fluffy_test_kit::permit("fs.read", Some("/src/é"));
        assert!(covers(&permit, "fs.read", "/src/./e\u{301}"));
        assert!(!covers(&permit, "fs.list", "/src/é"));
        assert!(!covers(&permit, "fs.read", "/src"));
        assert!(!covers(&permit, "fs.read", "/src/../src/é"));
    }
}
