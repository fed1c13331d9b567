//! A project's policy as one thing: its rules and its extensions.
//!
//! What a repository carries is outside data, so it is read without following
//! links and never beyond its limits. See `pin.rs` for the copy that counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fluffy_base::{Digest, canonical};

/// The file that holds a project's rules, beside `policy.d`.
pub const POLICY_FILE: &str = "policy.yaml";
/// The folder that holds a project's extensions.
pub const EXTENSIONS_DIR: &str = "policy.d";

/// The most bytes one policy file or extension may have.
pub const MAX_FILE: u64 = 4 << 20;
/// The most extensions one project may have.
pub const MAX_EXTENSIONS: usize = 32;

/// The rules of a project and its extensions, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The text of `policy.yaml`.
    pub policy: String,
    /// The text of each extension; the name is the file's, without `.ts`.
    pub extensions: BTreeMap<String, String>,
}

/// Why a bundle could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadBundleError {
    /// A file could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something that is not a plain file stands where one belongs.
    #[error("`{}` is not a plain file; links, pipes and devices are not followed", path.display())]
    NotAFile {
        /// Which.
        path: PathBuf,
    },
    /// A file is larger than a policy may be.
    #[error("`{}` is larger than {MAX_FILE} bytes", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A file is not UTF-8.
    #[error("`{}` is not UTF-8 text", path.display())]
    NotText {
        /// Which.
        path: PathBuf,
    },
    /// There are too many extensions.
    #[error("`{}` holds more than {MAX_EXTENSIONS} extensions", path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
    },
    /// An extension has a name that cannot be shown or stored safely.
    #[error("`{}` is not a usable name: letters, digits, `-` and `_` only", path.display())]
    Name {
        /// Which.
        path: PathBuf,
    },
}

impl Bundle {
    /// A bundle of rules alone.
    #[must_use]
    pub fn of_rules(policy: impl Into<String>) -> Self {
        Self {
            policy: policy.into(),
            extensions: BTreeMap::new(),
        }
    }

    /// What the folder holds, or nothing if it has no policy file.
    ///
    /// # Errors
    /// Anything in it that is not plain, small, well-named text.
    pub fn read(folder: &Path) -> Result<Option<Self>, ReadBundleError> {
        let Some(policy) = read_text(&folder.join(POLICY_FILE))? else {
            return Ok(None);
        };
        let extensions = read_extensions(&folder.join(EXTENSIONS_DIR))?;
        Ok(Some(Self { policy, extensions }))
    }

    /// What pins this bundle: no other rules and extensions have it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut text = String::from("{\"extensions\":{");
        for (index, (name, source)) in self.extensions.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            canonical::write_text(&mut text, name);
            text.push(':');
            canonical::write_text(&mut text, source);
        }
        text.push_str("},\"policy\":");
        canonical::write_text(&mut text, &self.policy);
        text.push('}');
        Digest::of(text.as_bytes())
    }
}

fn read_extensions(folder: &Path) -> Result<BTreeMap<String, String>, ReadBundleError> {
    let failed = |source| ReadBundleError::Read {
        path: folder.to_owned(),
        source,
    };
    // A link would bring in files that are not the project's.
    if folder.is_symlink() {
        return Err(ReadBundleError::NotAFile {
            path: folder.to_owned(),
        });
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut extensions = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "ts") {
            continue;
        }
        if extensions.len() == MAX_EXTENSIONS {
            return Err(ReadBundleError::TooMany {
                path: folder.to_owned(),
            });
        }
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .filter(|name| plain_name(name));
        let name = name
            .ok_or_else(|| ReadBundleError::Name { path: path.clone() })?
            .to_owned();
        if let Some(source) = read_text(&path)? {
            extensions.insert(name, source);
        }
    }
    Ok(extensions)
}

fn plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain)
}

/// The text of a plain file, or nothing if there is none.
///
/// # Errors
/// A link, a device, a pipe, more than [`MAX_FILE`] bytes, or bytes that are
/// not UTF-8.
pub fn read_text(path: &Path) -> Result<Option<String>, ReadBundleError> {
    let failed = |source| ReadBundleError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match open_plain(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if is_link_error(&error) => {
            return Err(ReadBundleError::NotAFile {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(ReadBundleError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ReadBundleError::TooLarge {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| ReadBundleError::NotText {
            path: path.to_owned(),
        })
}

/// Opens without following a link and without waiting for a pipe's writer.
fn open_plain(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

fn is_link_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_folder_without_a_policy_is_no_bundle() {
        assert_eq!(Bundle::read(folder().path()).unwrap(), None);
    }

    #[test]
    fn rules_and_extensions_make_one_digest() {
        let dir = folder();
        fs::write(dir.path().join("policy.yaml"), "version: 1\n").unwrap();
        let plain = Bundle::read(dir.path()).unwrap().unwrap();
        fs::create_dir(dir.path().join("policy.d")).unwrap();
        fs::write(dir.path().join("policy.d/office-hours.ts"), "export {}").unwrap();
        fs::write(dir.path().join("policy.d/README.md"), "not a script").unwrap();
        let extended = Bundle::read(dir.path()).unwrap().unwrap();
        assert_eq!(
            extended.extensions.keys().collect::<Vec<_>>(),
            ["office-hours"]
        );
        assert_ne!(plain.digest(), extended.digest());
        assert_eq!(
            extended.digest(),
            Bundle::read(dir.path()).unwrap().unwrap().digest()
        );
    }

    #[test]
    fn text_moved_between_rules_and_extension_changes_the_digest() {
        let with = |policy: &str, source: &str| Bundle {
            policy: policy.into(),
            extensions: BTreeMap::from([("a".into(), source.into())]),
        };
        assert_ne!(with("ab", "c").digest(), with("a", "bc").digest());
    }

    #[test]
    fn links_pipes_and_floods_are_refused() {
        let dir = folder();
        let policy = dir.path().join("policy.yaml");
        symlink("/etc/hostname", &policy).unwrap();
        // Control: an ordinary read follows the link.
        assert!(fs::read(&policy).is_ok());
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::NotAFile { .. })
        ));

        fs::remove_file(&policy).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &policy, rustix::fs::Mode::RWXU).unwrap();
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::NotAFile { .. })
        ));

        fs::remove_file(&policy).unwrap();
        File::create(&policy)
            .unwrap()
            .set_len(MAX_FILE + 1)
            .unwrap();
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::TooLarge { .. })
        ));

        fs::write(&policy, [0xff, 0xfe]).unwrap();
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::NotText { .. })
        ));
    }

    #[test]
    fn a_folder_of_extensions_behind_a_link_is_refused() {
        let (dir, elsewhere) = (folder(), folder());
        fs::write(dir.path().join("policy.yaml"), "version: 1\n").unwrap();
        fs::write(elsewhere.path().join("a.ts"), "export {}").unwrap();
        let link = dir.path().join("policy.d");
        symlink(elsewhere.path(), &link).unwrap();
        // Control: an ordinary listing follows the link.
        assert_eq!(fs::read_dir(&link).unwrap().count(), 1);
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::NotAFile { .. })
        ));

        fs::remove_file(&link).unwrap();
        symlink("/nowhere", &link).unwrap();
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::NotAFile { .. })
        ));
    }

    #[test]
    fn more_extensions_than_a_policy_may_have_are_refused() {
        let dir = folder();
        fs::write(dir.path().join("policy.yaml"), "version: 1\n").unwrap();
        fs::create_dir(dir.path().join("policy.d")).unwrap();
        let add = |n: usize| fs::write(dir.path().join(format!("policy.d/e{n}.ts")), "").unwrap();
        (0..MAX_EXTENSIONS).for_each(add);
        assert_eq!(
            Bundle::read(dir.path()).unwrap().unwrap().extensions.len(),
            MAX_EXTENSIONS
        );
        add(MAX_EXTENSIONS);
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::TooMany { .. })
        ));
    }

    #[test]
    fn an_extension_with_an_odd_name_is_refused() {
        let dir = folder();
        fs::write(dir.path().join("policy.yaml"), "version: 1\n").unwrap();
        fs::create_dir(dir.path().join("policy.d")).unwrap();
        fs::write(dir.path().join("policy.d/a\u{1b}[2J.ts"), "").unwrap();
        assert!(matches!(
            Bundle::read(dir.path()),
            Err(ReadBundleError::Name { .. })
        ));
    }
}
