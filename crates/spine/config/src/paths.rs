//! Where our own files live: outside every project, for this user only.
//!
//! The ledger, keys and pins are the record of what an agent did, so nothing
//! an agent can write may hold them. A state directory inside the project, by
//! name or through a link, is refused.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::env::{self, Environment};
use crate::settings::Settings;

/// The organisation's policy, which can only narrow.
const ORG_POLICY: &str = "/etc/fluffy/policy.yaml";

/// Why there is no safe place for our files.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// Neither a home directory nor an explicit place is known.
    #[error("no home directory is known; set HOME or FLUFFY_STATE_DIR")]
    NoHome,
    /// The place is relative or has `..` in it.
    #[error("`{path}` must be an absolute path without `..`", path = path.display())]
    NotAbsolute {
        /// The path as given.
        path: PathBuf,
    },
    /// An agent at work in the project could write it.
    #[error(
        "`{path}` is inside the project `{project}`, where an agent could change it",
        path = path.display(), project = project.display()
    )]
    InsideProject {
        /// The place.
        path: PathBuf,
        /// The project.
        project: PathBuf,
    },
    /// Other users of the machine can enter it.
    #[error("`{path}` is open to other users; run `chmod 700` on it", path = path.display())]
    OpenToOthers {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be made or looked at.
    #[error("cannot use the directory `{path}`", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// The places of all our files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The user's configuration, `config.toml`.
    pub config_file: PathBuf,
    /// The user's own policy, which adds to every project.
    pub user_policy: PathBuf,
    /// The organisation's policy, which can only narrow.
    pub org_policy: PathBuf,
    /// Everything we keep.
    pub state_dir: PathBuf,
    /// Signing keys.
    pub keys_dir: PathBuf,
    /// Signed checkpoints of the ledger.
    pub checkpoints_dir: PathBuf,
    /// Reviewed copies of projects' policies and configurations.
    pub pins_dir: PathBuf,
    /// Installed plugins, and what they keep.
    pub plugins_dir: PathBuf,
    /// The project, if the command is run in one.
    pub project_root: Option<PathBuf>,
    default_ledger_dir: PathBuf,
}

impl Paths {
    /// Finds all places for this environment and project; creates nothing.
    ///
    /// # Errors
    /// There is no home, a path is relative, or it lies inside the project.
    pub fn resolve(
        environment: &Environment,
        project_root: Option<&Path>,
    ) -> Result<Self, PathsError> {
        let home = home(environment);
        let base = |variable: &str, below_home: &str| {
            // The XDG rules say that a relative path there is to be ignored.
            let set = environment.get(variable).map(PathBuf::from);
            let set = set.filter(|path| path.is_absolute());
            set.or_else(|| home.as_ref().map(|home| home.join(below_home)))
                .ok_or(PathsError::NoHome)
        };
        let state_dir = match environment.get(env::FLUFFY_STATE_DIR) {
            Some(path) => explicit(path)?,
            None => base(env::XDG_STATE_HOME, ".local/state")?.join("fluffy"),
        };
        let config_dir = base(env::XDG_CONFIG_HOME, ".config")?.join("fluffy");
        let paths = Self {
            config_file: config_dir.join("config.toml"),
            user_policy: config_dir.join("policy.yaml"),
            org_policy: PathBuf::from(ORG_POLICY),
            keys_dir: state_dir.join("keys"),
            checkpoints_dir: state_dir.join("checkpoints"),
            pins_dir: state_dir.join("pins"),
            plugins_dir: state_dir.join("plugins"),
            default_ledger_dir: state_dir.join("ledger"),
            state_dir,
            project_root: project_root.map(Path::to_owned),
        };
        paths.check_outside_project(&paths.state_dir)?;
        Ok(paths)
    }

    /// The ledger's directory, by `ledger.path` or in the state directory.
    ///
    /// # Errors
    /// The configured directory lies inside the project.
    pub fn ledger_dir(&self, settings: &Settings) -> Result<PathBuf, PathsError> {
        match &settings.values().ledger.path {
            Some(path) => {
                self.check_outside_project(path)?;
                Ok(path.clone())
            }
            None => Ok(self.default_ledger_dir.clone()),
        }
    }

    /// The project's `.fluffy/config.toml`, if there is a project.
    #[must_use]
    pub fn project_config(&self) -> Option<PathBuf> {
        let root = self.project_root.as_ref()?;
        Some(root.join(crate::project::DIRECTORY).join("config.toml"))
    }

    /// Makes the state directories, for this user only.
    ///
    /// # Errors
    /// One cannot be made, leads into the project, or is open to other users.
    pub fn create(&self) -> Result<(), PathsError> {
        for directory in [
            &self.state_dir,
            &self.default_ledger_dir,
            &self.keys_dir,
            &self.checkpoints_dir,
            &self.pins_dir,
            &self.plugins_dir,
        ] {
            create_private(directory)?;
            // Again, now that it exists: a link may lead anywhere.
            self.check_outside_project(directory)?;
        }
        Ok(())
    }

    fn check_outside_project(&self, path: &Path) -> Result<(), PathsError> {
        let Some(project) = &self.project_root else {
            return Ok(());
        };
        let inside = path.starts_with(project) || real(path)?.starts_with(real(project)?);
        if inside {
            return Err(PathsError::InsideProject {
                path: path.to_owned(),
                project: project.clone(),
            });
        }
        Ok(())
    }
}

/// The user's home directory.
pub(crate) fn home(environment: &Environment) -> Option<PathBuf> {
    [env::HOME, env::USERPROFILE]
        .into_iter()
        .filter_map(|name| environment.get(name).map(PathBuf::from))
        .find(|path| path.is_absolute())
}

fn explicit(path: &OsStr) -> Result<PathBuf, PathsError> {
    let path = PathBuf::from(path);
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if climbs || !path.is_absolute() {
        return Err(PathsError::NotAbsolute { path });
    }
    Ok(path)
}

/// The path with all links followed, as far as it exists.
fn real(path: &Path) -> Result<PathBuf, PathsError> {
    for existing in path.ancestors() {
        match existing.canonicalize() {
            Ok(found) => {
                let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
                return Ok(found.join(rest));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let path = existing.to_owned();
                return Err(PathsError::Directory { path, source });
            }
        }
    }
    Ok(path.to_owned())
}

fn create_private(directory: &Path) -> Result<(), PathsError> {
    let failed = |source| PathsError::Directory {
        path: directory.to_owned(),
        source,
    };
    private_builder().create(directory).map_err(failed)?;
    let metadata = directory.metadata().map_err(failed)?;
    if is_open_to_others(&metadata) {
        let path = directory.to_owned();
        return Err(PathsError::OpenToOthers { path });
    }
    Ok(())
}

#[cfg(unix)]
fn private_builder() -> std::fs::DirBuilder {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

#[cfg(unix)]
fn is_open_to_others(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o077 != 0
}

/// Elsewhere the user's profile is private by the system's own rules.
#[cfg(not(unix))]
fn private_builder() -> std::fs::DirBuilder {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    builder
}

#[cfg(not(unix))]
fn is_open_to_others(_: &std::fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::{Flag, Sources};

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().copied().collect()
    }

    #[test]
    fn places_follow_the_xdg_rules() {
        let paths = Paths::resolve(&environment(&[("HOME", "/home/me")]), None).unwrap();
        assert_eq!(
            paths.config_file,
            Path::new("/home/me/.config/fluffy/config.toml")
        );
        assert_eq!(paths.state_dir, Path::new("/home/me/.local/state/fluffy"));
        assert_eq!(paths.org_policy, Path::new("/etc/fluffy/policy.yaml"));
        let xdg = [
            ("HOME", "/home/me"),
            ("XDG_STATE_HOME", "/s"),
            ("XDG_CONFIG_HOME", "relative"),
        ];
        let paths = Paths::resolve(&environment(&xdg), None).unwrap();
        assert_eq!(paths.keys_dir, Path::new("/s/fluffy/keys"));
        assert_eq!(
            paths.user_policy,
            Path::new("/home/me/.config/fluffy/policy.yaml")
        );
        let ours = [
            ("HOME", "/home/me"),
            ("XDG_STATE_HOME", "/s"),
            ("FLUFFY_STATE_DIR", "/f"),
        ];
        let paths = Paths::resolve(&environment(&ours), None).unwrap();
        assert_eq!(paths.state_dir, Path::new("/f"));
    }

    #[test]
    fn no_home_and_no_relative_place() {
        let none = Paths::resolve(&environment(&[]), None).unwrap_err();
        assert!(matches!(none, PathsError::NoHome));
        for bad in ["state", "/a/../b"] {
            let variables = [("HOME", "/home/me"), ("FLUFFY_STATE_DIR", bad)];
            let error = Paths::resolve(&environment(&variables), None).unwrap_err();
            assert!(matches!(error, PathsError::NotAbsolute { .. }), "{bad}");
        }
    }

    #[test]
    fn state_is_never_inside_the_project() {
        let scratch = tempfile::tempdir().unwrap();
        let project = scratch.path().join("project");
        fs::create_dir(&project).unwrap();
        let inside = project.join("state");
        let variables = [
            ("HOME", "/home/me"),
            ("FLUFFY_STATE_DIR", inside.to_str().unwrap()),
        ];
        let error = Paths::resolve(&environment(&variables), Some(&project)).unwrap_err();
        assert!(matches!(error, PathsError::InsideProject { .. }));
        // A project whose name only begins the same is another directory.
        let beside = scratch.path().join("project-state");
        let variables = [
            ("HOME", "/home/me"),
            ("FLUFFY_STATE_DIR", beside.to_str().unwrap()),
        ];
        let paths = Paths::resolve(&environment(&variables), Some(&project)).unwrap();
        let sources = Sources {
            flags: vec![Flag {
                name: "--ledger".to_owned(),
                key: "ledger.path".to_owned(),
                value: project.join("ledger").to_str().unwrap().to_owned(),
            }],
            ..Sources::default()
        };
        let settings = Settings::resolve(&sources).unwrap();
        let error = paths.ledger_dir(&settings).unwrap_err();
        assert!(matches!(error, PathsError::InsideProject { .. }));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_into_the_project_is_refused_too() {
        let scratch = tempfile::tempdir().unwrap();
        let project = scratch.path().join("project");
        fs::create_dir_all(project.join("hidden")).unwrap();
        let link = scratch.path().join("state");
        std::os::unix::fs::symlink(project.join("hidden"), &link).unwrap();
        for state in [link.clone(), link.join("below")] {
            let variables = [
                ("HOME", "/home/me"),
                ("FLUFFY_STATE_DIR", state.to_str().unwrap()),
            ];
            let error = Paths::resolve(&environment(&variables), Some(&project)).unwrap_err();
            assert!(matches!(error, PathsError::InsideProject { .. }));
        }
    }

    #[cfg(unix)]
    #[test]
    fn directories_are_private_or_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("a/state");
        let variables = [
            ("HOME", "/home/me"),
            ("FLUFFY_STATE_DIR", state.to_str().unwrap()),
        ];
        let paths = Paths::resolve(&environment(&variables), None).unwrap();
        paths.create().unwrap();
        paths.create().unwrap();
        for directory in [&paths.state_dir, &paths.keys_dir, &paths.pins_dir] {
            let mode = directory.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        fs::set_permissions(&paths.keys_dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(
            paths.create(),
            Err(PathsError::OpenToOthers { .. })
        ));
    }
}
