//! Tools that people keep outside `/usr`: found, and shown to sandboxes
//! read-only.
//!
//! A table says which parts of a well-known directory are programs and public
//! packages; the rest, credentials above all, is never shown. What is only on
//! `PATH` is shown as narrowly as it still works. Nothing is run to find out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Directories with tools, and the variables these tools need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tools {
    /// What to show, read-only, at its own path.
    pub roots: Vec<PathBuf>,
    /// What to set, so that the tools find themselves.
    pub variables: BTreeMap<String, String>,
}

impl Tools {
    /// The tools of this `PATH` and this home.
    #[must_use]
    pub fn find(path: &[PathBuf], home: &Path) -> Self {
        let mut tools = Self::default();
        if is_plain(home) && home != Path::new("/") {
            for known in KNOWN {
                tools.add_known(known, home);
            }
        }
        for entry in path {
            if let Some(root) = path_root(entry, home)
                && root.is_dir()
            {
                tools.roots.push(root);
            }
        }
        tools.roots.sort();
        tools.roots.dedup();
        // A root inside another is shown already.
        let all = tools.roots.clone();
        tools.roots.retain(|root| {
            !all.iter()
                .any(|other| other != root && root.starts_with(other))
        });
        tools
    }

    fn add_known(&mut self, known: &Known, home: &Path) {
        let directory = home.join(known.directory);
        let before = self.roots.len();
        self.roots.extend(
            known
                .parts
                .iter()
                .map(|part| directory.join(part))
                .filter(|path| path.exists() && !holds_secrets(path)),
        );
        if self.roots.len() == before {
            return;
        }
        for (name, below) in known.variables {
            let value = if below.is_empty() {
                directory.clone()
            } else {
                directory.join(below)
            };
            if value.exists()
                && let Some(value) = value.to_str()
            {
                self.variables.insert((*name).to_owned(), value.to_owned());
            }
        }
    }
}

/// A directory of home that tools live in.
struct Known {
    directory: &'static str,
    /// What of it is shown.
    parts: &'static [&'static str],
    /// Variables, and what below the directory they name.
    variables: &'static [(&'static str, &'static str)],
}

/// In the order of names.
const KNOWN: &[Known] = &[
    Known {
        directory: ".asdf",
        parts: &[
            "bin", "installs", "lib", "libexec", "plugins", "shims", "asdf.sh",
        ],
        variables: &[("ASDF_DATA_DIR", "")],
    },
    Known {
        directory: ".bun",
        parts: &["bin", "install"],
        variables: &[("BUN_INSTALL", "")],
    },
    Known {
        // Not `credentials.toml`; `config.toml` only without secrets in it.
        directory: ".cargo",
        parts: &["bin", "config.toml", "git", "registry"],
        variables: &[("CARGO_HOME", "")],
    },
    Known {
        directory: ".deno",
        parts: &["bin"],
        variables: &[],
    },
    Known {
        directory: ".fnm",
        parts: &["aliases", "node-versions"],
        variables: &[],
    },
    Known {
        directory: ".local/share/fnm",
        parts: &["aliases", "node-versions"],
        variables: &[],
    },
    Known {
        directory: ".local/share/mise",
        parts: &["installs", "shims"],
        variables: &[("MISE_DATA_DIR", "")],
    },
    Known {
        directory: ".local/share/pipx",
        parts: &["shared", "venvs"],
        variables: &[],
    },
    Known {
        directory: ".local/share/uv",
        parts: &["python", "tools"],
        variables: &[],
    },
    Known {
        directory: ".nvm",
        parts: &["alias", "versions"],
        variables: &[],
    },
    Known {
        directory: ".pyenv",
        parts: &[
            "bin",
            "completions",
            "libexec",
            "plugins",
            "shims",
            "version",
            "versions",
        ],
        variables: &[("PYENV_ROOT", "")],
    },
    Known {
        directory: ".rbenv",
        parts: &["bin", "libexec", "plugins", "shims", "version", "versions"],
        variables: &[("RBENV_ROOT", "")],
    },
    Known {
        directory: ".rustup",
        parts: &["settings.toml", "toolchains", "update-hashes"],
        variables: &[("RUSTUP_HOME", "")],
    },
    Known {
        directory: ".sdkman",
        parts: &["candidates"],
        variables: &[
            ("JAVA_HOME", "candidates/java/current"),
            ("SDKMAN_CANDIDATES_DIR", "candidates"),
        ],
    },
    Known {
        directory: ".volta",
        parts: &["bin", "tools"],
        variables: &[("VOLTA_HOME", "")],
    },
    Known {
        directory: "go",
        parts: &["bin", "pkg/mod"],
        variables: &[("GOMODCACHE", "pkg/mod")],
    },
];

/// What is in a sandbox already, or is none of its business.
const NEVER: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp",
    "/usr", "/var/run", "/var/tmp",
];

/// Places below home that hold secrets: no root may hold one of them.
const SECRET: &[&str] = &[
    ".aws",
    ".azure",
    ".config",
    ".docker",
    ".gnupg",
    ".kube",
    ".local/share",
    ".netrc",
    ".npmrc",
    ".ssh",
    ".gem",
    ".m2",
    ".gradle",
];

/// The narrowest directory with which the programs of this entry work.
fn path_root(entry: &Path, home: &Path) -> Option<PathBuf> {
    if !is_plain(entry) || NEVER.iter().any(|never| entry.starts_with(never)) {
        return None;
    }
    // The table has said what of these is shown.
    if KNOWN
        .iter()
        .any(|known| entry.starts_with(home.join(known.directory)))
    {
        return None;
    }
    let prefix = entry
        .parent()
        .filter(|_| entry.ends_with("bin"))
        .filter(|parent| parent.join("lib").is_dir() || parent.join("libexec").is_dir())
        .filter(|parent| !is_hidden_in(parent, home) && !holds_home(parent, home));
    let root = prefix.unwrap_or(entry);
    (!holds_home(root, home)).then(|| root.to_owned())
}

/// Whether it is a directory like `~/.name`: more than tools may be in it.
fn is_hidden_in(directory: &Path, home: &Path) -> bool {
    directory.parent() == Some(home)
        && directory
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Whether showing it would show all of home, or secrets in it.
fn holds_home(directory: &Path, home: &Path) -> bool {
    home.starts_with(directory)
        || SECRET
            .iter()
            .any(|secret| home.join(secret).starts_with(directory))
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// Whether a settings file has words in it that go with secrets. What cannot
/// be read or is too long to be settings is taken for one.
fn holds_secrets(path: &Path) -> bool {
    const LONGEST: u64 = 256 * 1_024;
    let Ok(found) = fs::metadata(path) else {
        return true;
    };
    if found.is_dir() {
        return false;
    }
    if found.len() > LONGEST {
        return true;
    }
    match fs::read_to_string(path) {
        Ok(text) => {
            let text = text.to_ascii_lowercase();
            ["token", "secret", "password", "credential"]
                .iter()
                .any(|word| text.contains(word))
                || has_user_in_address(&text)
        }
        Err(_) => true,
    }
}

/// Whether an address in the text names a user, as in `https://name:word@host`.
fn has_user_in_address(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        rest.split(['/', '"', '\'', ' ', '\n'])
            .next()
            .is_some_and(|host| host.contains('@'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        /// Not in `/tmp`, which is never shown; beside the test itself.
        fn new() -> Self {
            let beside = std::env::current_exe().unwrap();
            Self(tempfile::tempdir_in(beside.parent().unwrap()).unwrap())
        }

        fn with(self, paths: &[&str]) -> Self {
            for path in paths {
                let path = self.0.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                if path.extension().is_some() {
                    fs::write(path, "").unwrap();
                } else {
                    fs::create_dir_all(path).unwrap();
                }
            }
            self
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.0.path().join(path), text).unwrap();
        }

        /// What is shown, from home; the table alone.
        fn shown(&self) -> Vec<String> {
            let tools = Tools::find(&[], self.0.path());
            let strip = |root: &PathBuf| {
                let below = root.strip_prefix(self.0.path()).unwrap();
                below.to_str().unwrap().to_owned()
            };
            tools.roots.iter().map(strip).collect()
        }
    }

    #[test]
    fn rust_is_shown_without_its_credentials() {
        let home = Home::new().with(&[
            ".cargo/bin",
            ".cargo/registry/cache",
            ".cargo/credentials.toml",
            ".cargo/config.toml",
            ".rustup/toolchains/stable",
            ".rustup/settings.toml",
        ]);
        assert_eq!(
            home.shown(),
            [
                ".cargo/bin",
                ".cargo/config.toml",
                ".cargo/registry",
                ".rustup/settings.toml",
                ".rustup/toolchains",
            ]
        );
        let tools = Tools::find(&[], home.0.path());
        let names: Vec<&String> = tools.variables.keys().collect();
        assert_eq!(names, ["CARGO_HOME", "RUSTUP_HOME"]);
        for secret in [
            "[registries.x]\ntoken = \"s\"",
            "[http]\nproxy = \"http://me:word@proxy\"",
        ] {
            home.write(".cargo/config.toml", secret);
            assert!(!home.shown().contains(&".cargo/config.toml".to_owned()));
        }
        home.write(
            ".cargo/config.toml",
            "[source.x]\nregistry = \"https://a/b@c\"",
        );
        assert!(home.shown().contains(&".cargo/config.toml".to_owned()));
    }

    #[test]
    fn an_empty_home_has_no_tools() {
        let home = Home::new().with(&[".ssh/id.pem", ".config/x", ".cargo/credentials.toml"]);
        assert_eq!(Tools::find(&[], home.0.path()), Tools::default());
        assert_eq!(Tools::find(&[], Path::new("/")), Tools::default());
        assert_eq!(Tools::find(&[], Path::new("relative")), Tools::default());
    }

    #[test]
    fn versions_of_languages_are_shown() {
        let home = Home::new().with(&[
            ".nvm/versions/node",
            ".pyenv/versions/3",
            ".sdkman/candidates/java/current",
            "go/pkg/mod",
            ".volta/bin",
        ]);
        let tools = Tools::find(&[], home.0.path());
        assert_eq!(tools.roots.len(), 5);
        let java = tools.variables.get("JAVA_HOME").unwrap();
        assert!(java.ends_with(".sdkman/candidates/java/current"));
        assert!(tools.variables.contains_key("GOMODCACHE"));
    }

    #[test]
    fn what_is_on_the_path_is_shown_as_narrowly_as_it_works() {
        let home = Home::new().with(&[
            "conda/bin",
            "conda/lib",
            ".local/bin",
            ".local/lib",
            ".local/share/keyrings",
            ".docker/bin",
            ".docker/config.json",
            ".cargo/bin",
            "plain",
            "lib",
            "bin",
        ]);
        let path = |below: &str| home.0.path().join(below);
        let root = |below: &str| path_root(&path(below), home.0.path());
        assert_eq!(root("conda/bin"), Some(path("conda")));
        assert_eq!(root(".local/bin"), Some(path(".local/bin")));
        assert_eq!(root(".docker/bin"), Some(path(".docker/bin")));
        assert_eq!(root("plain"), Some(path("plain")));
        // Its parent is home itself.
        assert_eq!(root("bin"), Some(path("bin")));
        // The table has the word.
        assert_eq!(root(".cargo/bin"), None);
        assert_eq!(root(".cargo"), None);
        for entry in ["/usr/bin", "/tmp/x", "relative", "/a/../b", "/"] {
            assert_eq!(path_root(Path::new(entry), home.0.path()), None, "{entry}");
        }
        assert_eq!(path_root(home.0.path(), home.0.path()), None);
        assert_eq!(root(".local/share"), None);
        assert_eq!(root(".local"), None);
    }

    #[test]
    fn roots_do_not_repeat_each_other() {
        let home = Home::new().with(&["x/bin", "x/lib", "x/bin/deep"]);
        let path = |below: &str| home.0.path().join(below);
        let entries = [
            path("x/bin"),
            path("x/bin/deep"),
            path("x/bin"),
            path("none"),
        ];
        let tools = Tools::find(&entries, home.0.path());
        assert_eq!(tools.roots, [path("x")]);
    }
}
