//! The built `fluffy` in a clean home.
//!
//! Never reads or writes the home of the person who runs the tests: the
//! environment of the child is built from nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// What snapshots must not depend on: ids, hashes, times and durations.
const FILTERS: &[(&str, &str)] = &[
    (r"\b([a-z]{2,4})_[0-9A-HJKMNP-TV-Z]{26}\b", "${1}_[ULID]"),
    (r"\b(sha256:)?[0-9a-f]{64}\b", "${1}[HASH]"),
    (
        r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:?\d{2})?",
        "[TIME]",
    ),
    (r"\b\d+(\.\d+)?\s?(ns|µs|us|ms|s)\b", "[DURATION]"),
];

/// A fresh home and project, and the program that is tested in them.
#[derive(Debug)]
pub struct TestContext {
    root: TempDir,
    program: PathBuf,
    variables: Vec<(String, String)>,
}

/// What a finished command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Everything on standard output.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
}

impl TestContext {
    /// A clean home and project for this program.
    ///
    /// Call it with `env!("CARGO_BIN_EXE_fluffy")`, which cargo gives to the
    /// tests of the crate that has the binary.
    ///
    /// # Errors
    /// The temporary folders cannot be made.
    pub fn new(program: impl Into<PathBuf>) -> Result<Self> {
        let root =
            TempDir::with_prefix("fluffy-test-").context("cannot make a temporary folder")?;
        let context = Self {
            root,
            program: program.into(),
            variables: Vec::new(),
        };
        for folder in [context.home(), context.project(), context.path("tmp")] {
            std::fs::create_dir(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(context)
    }

    /// The home folder of the imagined user.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// The project folder, where commands run.
    #[must_use]
    pub fn project(&self) -> PathBuf {
        self.path("project")
    }

    /// Sets a variable for all later commands.
    pub fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file of the project, with the folders it needs.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &str, text: &str) -> Result<PathBuf> {
        let file = self.project().join(path);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// The program in the project folder, ready for arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.project())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home())
            .env("TMPDIR", self.path("tmp"))
            .env("XDG_CONFIG_HOME", self.home().join(".config"))
            .env("XDG_STATE_HOME", self.home().join(".local/state"))
            .env("XDG_CACHE_HOME", self.home().join(".cache"))
            .env("XDG_DATA_HOME", self.home().join(".local/share"))
            .env("XDG_RUNTIME_DIR", self.path("tmp"))
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            .env("COLUMNS", "80")
            .env("NO_COLOR", "1")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs the program and returns what it left behind.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        let output = self
            .command()
            .args(arguments)
            .output()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Patterns and replacements that make output the same in every run.
    ///
    /// Give each to `insta::Settings::add_filter`, then `bind` the settings.
    #[must_use]
    pub fn filters(&self) -> Vec<(String, String)> {
        let mut places = vec![
            (self.project(), "[PROJECT]"),
            (self.home(), "[HOME]"),
            (self.root.path().to_owned(), "[ROOT]"),
        ];
        // macOS reaches its temporary folder through a link.
        if let Ok(real) = self.root.path().canonicalize() {
            places.push((real, "[ROOT]"));
        }
        let places = places
            .into_iter()
            .map(|(path, name)| (escape(&path.to_string_lossy()), name.to_owned()));
        let fixed = FILTERS
            .iter()
            .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
        places.chain(fixed).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.root.path()).join(name)
    }
}

impl Finished {
    /// Exit code, output and errors as one text, for a snapshot.
    #[must_use]
    pub fn transcript(&self) -> String {
        let code = self
            .code
            .map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        format!(
            "exit: {code}\n--- stdout\n{}--- stderr\n{}",
            self.stdout, self.stderr
        )
    }
}

/// The regular expression that matches exactly this text.
fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let special = c.is_ascii_punctuation() && !matches!(c, '/' | '_');
            special.then_some('\\').into_iter().chain([c])
        })
        .collect()
}
