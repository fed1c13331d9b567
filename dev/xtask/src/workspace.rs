//! What cargo knows about this workspace.
//!
//! Reads `cargo metadata` once; the checks work on these plain values, so
//! their tests can make up a workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The part of `cargo metadata` that the checks need.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Workspace {
    /// The folder of the workspace.
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    /// The members.
    pub(crate) packages: Vec<Package>,
}

/// One member of the workspace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    /// Its name, such as `fluffy-base`.
    pub(crate) name: String,
    /// Its `Cargo.toml`.
    pub(crate) manifest_path: PathBuf,
    /// What it depends on, in all kinds.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One edge from a package.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    /// The package it points to.
    pub(crate) name: String,
    /// `dev`, `build` or nothing for an ordinary one.
    pub(crate) kind: Option<String>,
    /// The folder, when it is a member and not from a registry.
    pub(crate) path: Option<PathBuf>,
}

impl Workspace {
    /// Asks cargo about the workspace this program belongs to.
    pub(crate) fn load() -> Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("cargo metadata printed something else")
    }

    /// A cargo command in the workspace's folder.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo();
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// Builds everything with the features that tests have: one package alone
    /// has fewer, and most dependencies would be built once more.
    pub(crate) fn build_as_tests_do(&self) -> Command {
        self.cargo(&["build", "--quiet", "--workspace", "--all-targets"])
    }

    /// All files below the folder with this ending, sorted.
    ///
    /// Hidden folders and folders of built things are not entered.
    pub(crate) fn files(&self, folder: &str, ending: &str) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        collect(&self.root.join(folder), ending, &mut files)?;
        files.sort();
        Ok(files)
    }

    /// A path as people write it, from the workspace's folder.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.root).unwrap_or(path);
        path.display().to_string()
    }
}

/// The cargo that started us, so that one toolchain does everything.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo told us of ourselves: build scripts that look at such names,
    // as that of `ring` does, would run anew, and all that needs them.
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
    command
}

fn collect(folder: &Path, ending: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry
            .file_type()
            .with_context(|| format!("cannot look at {}", path.display()))?;
        let built = name == "target" || name.starts_with("target-");
        if kind.is_dir() && !name.starts_with('.') && !built {
            collect(&path, ending, files)?;
        } else if kind.is_file() && name.ends_with(ending) {
            files.push(path);
        }
    }
    Ok(())
}
