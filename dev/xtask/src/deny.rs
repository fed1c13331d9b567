//! Licences, bans and sources of all dependencies, with cargo-deny.
//!
//! Builds cargo-deny once into the user's cache when it is not installed: it
//! is not on PyPI or in Debian in a version that reads our lock file, and its
//! debug build takes under a minute. Never fetches a database of advisories.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::output;
use crate::process::{capture, find_program, run};
use crate::step::Outcome;
use crate::workspace::{Workspace, cargo};

/// The version that is built; an installed one may be newer.
const VERSION: &str = "0.20.2";

/// Checks licences, bans and sources; needs no network.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let program = find_or_build()?;
    let kinds = ["bans", "licenses", "sources"];
    let mut command = deny(workspace, &program);
    run(
        command
            .args(["check", "--hide-inclusion-graph"])
            .args(kinds),
        "licences, bans and sources are fine",
    )
}

/// Checks advisories where a database of them is on this machine.
pub(crate) fn check_advisories(workspace: &Workspace) -> Result<Outcome> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(home_folder()?.join(".cargo")));
    let databases = home.map(|home| home.join("advisory-dbs"));
    let Some(folder) = databases.filter(|folder| folder.is_dir()) else {
        return Ok(Outcome::Skipped(
            "no advisory database on this machine; `cargo deny fetch db` brings one".to_owned(),
        ));
    };
    let program = find_or_build()?;
    run(
        deny(workspace, &program).args(["check", "--disable-fetch", "advisories"]),
        &format!("nothing in {}", folder.display()),
    )
}

fn deny(workspace: &Workspace, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--workspace", "--all-features"])
        .current_dir(&workspace.root);
    command
}

fn find_or_build() -> Result<PathBuf> {
    if let Some(program) = find_program("cargo-deny") {
        return Ok(program);
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(home_folder()?.join(".cache")));
    let cache = cache.context("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = cache.join(format!("fluffy-xtask/cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if capture(Command::new(&program).arg("--version")).is_some() {
        return Ok(program);
    }
    output::line(&format!(
        "building cargo-deny {VERSION} in {}",
        folder.display()
    ));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let mut install = cargo();
    install
        .args(["install", "cargo-deny", "--version", VERSION, "--locked"])
        // A debug build is fast enough for us and ready in a fraction of the time.
        .args(["--debug", "--quiet", "--root"])
        .arg(&folder)
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_TARGET_DIR", folder.join("target"))
        // Outside of our folder: cargo must not read our configuration.
        .current_dir(&folder);
    let outcome = run(&mut install, "")?;
    // Half a gigabyte that is never needed again.
    let _ = std::fs::remove_dir_all(folder.join("target"));
    match outcome {
        Outcome::Failed(reason) => anyhow::bail!(
            "cannot build cargo-deny ({reason}); install it: cargo install cargo-deny --locked"
        ),
        _ => Ok(program),
    }
}

fn home_folder() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}
