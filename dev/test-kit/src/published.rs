//! What other people published, above all servers of the Model Context
//! Protocol, fetched from registries at fixed versions and used unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// From npm: these speak the protocol of 2025-11-25.
const NODE: [&str; 2] = [
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
];

/// From PyPI: these speak the protocol of 2026-07-28.
const PYTHON: [&str; 2] = ["mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19"];

/// What calls an API by its document, in every way that this allows and in
/// some that it does not.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// The compiler that plugins in TypeScript are made with.
const TYPESCRIPT: &str = "typescript@7.0.2";

/// Published servers, each set in a folder that can be moved.
#[derive(Debug, Clone)]
pub struct PublishedServers {
    folder: PathBuf,
}

impl PublishedServers {
    /// Those that [`fetch`](Self::fetch) put below cargo's target folder.
    #[must_use]
    pub fn fetched(target: &Path) -> Option<Self> {
        let folder = target.join("mcp-servers");
        let is_whole = std::fs::read_to_string(folder.join("versions"))
            .is_ok_and(|versions| versions == wanted());
        is_whole.then_some(Self { folder })
    }

    /// Fetches them; does nothing where they are there.
    ///
    /// # Errors
    /// When npm or pip is missing, or a registry does not answer.
    pub fn fetch(target: &Path) -> Result<Self> {
        if let Some(servers) = Self::fetched(target) {
            return Ok(servers);
        }
        let folder = target.join("mcp-servers");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).context("cannot remove the old servers")?;
        }
        let (node, python) = (folder.join("node"), folder.join("python"));
        let typescript = folder.join("typescript");
        let schemathesis = folder.join("schemathesis");
        for made in [&node, &python, &typescript, &schemathesis] {
            std::fs::create_dir_all(made)
                .with_context(|| format!("cannot make {}", made.display()))?;
        }
        let install = ["install", "--ignore-scripts", "--no-audit", "--no-fund"];
        for (place, packages) in [(&node, &NODE[..]), (&typescript, &[TYPESCRIPT])] {
            let mut npm = Command::new("npm");
            npm.args(install).arg("--prefix").arg(place).args(packages);
            run(&mut npm)?;
        }
        // The Python that sandboxes see.
        for (place, packages) in [(&python, &PYTHON[..]), (&schemathesis, &[SCHEMATHESIS])] {
            let mut pip = Command::new("/usr/bin/python3");
            pip.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:"])
                .arg("--target")
                .arg(place)
                .args(packages);
            run(&mut pip)?;
        }
        std::fs::write(folder.join("versions"), wanted()).context("cannot write")?;
        Ok(Self { folder })
    }

    /// The folder with `node_modules`.
    #[must_use]
    pub fn node(&self) -> PathBuf {
        self.folder.join("node")
    }

    /// The folder whose `node_modules` have the compiler of TypeScript.
    #[must_use]
    pub fn typescript(&self) -> PathBuf {
        self.folder.join("typescript")
    }

    /// The command that starts schemathesis.
    #[must_use]
    pub fn schemathesis(&self) -> Command {
        let folder = self.folder.join("schemathesis");
        let mut command = Command::new("/usr/bin/python3");
        command
            .arg(folder.join("bin/schemathesis"))
            .env("PYTHONPATH", folder);
        command
    }

    /// The folder with Python's packages.
    #[must_use]
    pub fn python(&self) -> PathBuf {
        self.folder.join("python")
    }
}

fn wanted() -> String {
    let tools = [TYPESCRIPT, SCHEMATHESIS];
    let all: Vec<&str> = NODE.into_iter().chain(PYTHON).chain(tools).collect();
    all.join("\n")
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.output().with_context(|| format!("{command:?}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{command:?} failed: {}", said.trim());
    }
    Ok(())
}
