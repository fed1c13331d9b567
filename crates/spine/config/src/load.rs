//! Reads the configuration files; the only I/O of settings.
//!
//! A file that is not there is an empty layer. A file that is there and cannot
//! be read is an error, never silently skipped.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;

use crate::env::Environment;
use crate::paths::Paths;
use crate::problem::Rejected;
use crate::settings::{FileText, Flag, ProjectText, Settings, Sources};

/// The largest configuration file that is read.
pub const MAX_FILE: u64 = 1 << 20;

/// Why the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is there and cannot be read.
    #[error("cannot read `{path}`", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A pipe, a device or, in a project, a link.
    #[error("`{path}` is not a regular file", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is larger than [`MAX_FILE`].
    #[error("`{path}` is larger than 1 MiB", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not UTF-8.
    #[error("`{path}` is not UTF-8 text", path = path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The files were read, and something in them is wrong.
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

/// Loads the configuration for these places.
///
/// `reviewed` is the digest of the project's file that a person accepted, if
/// any: only then may it set more than data.
///
/// # Errors
/// A file cannot be read, or its content is wrong.
pub fn load(
    paths: &Paths,
    environment: Environment,
    flags: Vec<Flag>,
    reviewed: Option<Digest>,
) -> Result<Settings, LoadError> {
    let project = match paths.project_config() {
        Some(path) => read(&path, Links::Refused)?,
        None => None,
    };
    let sources = Sources {
        flags,
        environment,
        project: project.map(|file| ProjectText { file, reviewed }),
        user: read(&paths.config_file, Links::Followed)?,
    };
    Ok(Settings::resolve(&sources)?)
}

/// People link their own files; a repository's link could lead anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    Refused,
}

fn read(path: &Path, links: Links) -> Result<Option<FileText>, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = match links {
        Links::Followed => path.metadata(),
        Links::Refused => path.symlink_metadata(),
    };
    // Looked at before it is opened: opening a pipe would wait for a writer.
    match metadata {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => {
            let path = path.to_owned();
            return Err(LoadError::NotAFile { path });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let path = path.to_owned();
    if bytes.len() as u64 > MAX_FILE {
        return Err(LoadError::TooLarge { path });
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(FileText { path, text })),
        Err(_) => Err(LoadError::NotText { path }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Place {
        scratch: tempfile::TempDir,
        paths: Paths,
    }

    fn place() -> Place {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        for directory in ["project/.fluffy", "config/fluffy"] {
            fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        let variables = [
            ("XDG_CONFIG_HOME", at("config")),
            ("XDG_STATE_HOME", at("state")),
        ];
        let environment: Environment = variables.into_iter().collect();
        let paths = Paths::resolve(&environment, Some(Path::new(&at("project")))).unwrap();
        Place { scratch, paths }
    }

    fn load_from(place: &Place) -> Result<Settings, LoadError> {
        load(&place.paths, Environment::default(), Vec::new(), None)
    }

    #[test]
    fn files_that_are_not_there_are_empty_layers() {
        let place = place();
        let settings = load_from(&place).unwrap();
        assert_eq!(settings.values().budget.turns, 100);
        fs::write(&place.paths.config_file, "budget.turns = 7").unwrap();
        let project = place.paths.project_config().unwrap();
        fs::write(&project, "budget.turns = 5").unwrap();
        assert_eq!(load_from(&place).unwrap().values().budget.turns, 5);
        fs::write(&project, "model = 'a/b'").unwrap();
        assert!(matches!(load_from(&place), Err(LoadError::Rejected(_))));
        let reviewed = Some(Digest::of(b"model = 'a/b'"));
        let settings = load(&place.paths, Environment::default(), Vec::new(), reviewed).unwrap();
        assert_eq!(settings.values().model.as_deref(), Some("a/b"));
    }

    #[test]
    fn what_is_not_a_small_text_file_is_refused() {
        let place = place();
        let file = &place.paths.config_file;
        fs::write(file, [0xff, 0xfe]).unwrap();
        assert!(matches!(load_from(&place), Err(LoadError::NotText { .. })));
        fs::write(file, "#".repeat(1 + (1 << 20))).unwrap();
        assert!(matches!(load_from(&place), Err(LoadError::TooLarge { .. })));
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
        assert!(matches!(load_from(&place), Err(LoadError::NotAFile { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_for_the_user_and_refused_for_a_repository() {
        use std::os::unix::fs::symlink;
        let place = place();
        let target = place.scratch.path().join("dotfiles.toml");
        fs::write(&target, "budget.turns = 3").unwrap();
        symlink(&target, &place.paths.config_file).unwrap();
        assert_eq!(load_from(&place).unwrap().values().budget.turns, 3);
        symlink(&target, place.paths.project_config().unwrap()).unwrap();
        assert!(matches!(load_from(&place), Err(LoadError::NotAFile { .. })));
    }
}
