//! Crates that promise to be portable compile for macOS and Windows.
//!
//! Only checks, never links: no linker of another system is needed.

use std::process::Command;

use anyhow::Result;

use crate::process::{capture, run};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// The crates that promise it.
const CRATES: &[&str] = &[
    "fluffy-base",
    "fluffy-config",
    "fluffy-contract",
    "fluffy-ipc",
    "fluffy-policy",
    "fluffy-report",
    "fluffy-secret",
];

/// The systems they are checked for.
const TARGETS: &[&str] = &["aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Checks the portable crates.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    for target in TARGETS {
        if capture(Command::new("rustup").args(["target", "add", target])).is_none() {
            return Ok(Outcome::Skipped(format!(
                "rustup could not add the target {target}"
            )));
        }
    }
    let mut command = workspace.cargo(&["check"]);
    for name in CRATES {
        command.args(["--package", name]);
    }
    for target in TARGETS {
        command.args(["--target", target]);
    }
    let note = format!("{} crates for {} systems", CRATES.len(), TARGETS.len());
    run(&mut command, &note)
}
