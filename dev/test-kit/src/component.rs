//! Plugins for tests: components from text, and one compiled from Rust.
//!
//! Both are made against the published contract. A hostile plugin is written
//! as the text of its core module; the rest of the component is generated.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// A component of the world `tool-plugin` around the text of a core module.
///
/// The module exports its functions by their canonical names, such as
/// `fluffy:plugin/tool@1.0.0#execute`, its `memory` and `cabi_realloc`.
///
/// # Errors
/// The text is no module, or one that does not fit the world.
pub fn component(core: &str) -> anyhow::Result<Vec<u8>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(root().join("crates/plugin/host/wit"))?;
    let world = resolve.select_world(&[package], Some("tool-plugin"))?;
    let mut module = wat::parse_str(core)?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let mut encoder = ComponentEncoder::default().module(&module)?.validate(true);
    encoder.encode()
}

/// The sample plugin of `dev/fixtures/plugins/rust-wasm`, built where it is
/// not yet. Its dependencies are fetched by `cargo xtask test --only setup`.
///
/// # Errors
/// It cannot be built; says what its compiler said.
pub fn sample_plugin() -> anyhow::Result<Vec<u8>> {
    let target = plugin_target()?;
    let wasm = ["--offline", "--target", "wasm32-wasip2"];
    build("dev/fixtures/plugins/rust-wasm", &wasm)?;
    let built = target.join("wasm32-wasip2/release/sample_plugin.wasm");
    std::fs::read(&built).with_context(|| format!("{} is missing", built.display()))
}

/// The program that measures `extism`, built with what the registry has; for
/// benchmarks alone.
///
/// # Errors
/// It does not build.
pub fn extism_peer() -> anyhow::Result<PathBuf> {
    build("dev/fixtures/peers/extism", &[])?;
    Ok(plugin_target()?.join("release/extism-peer"))
}

/// A bare axum and SQL handler, for benchmarks alone.
///
/// # Errors
/// It does not build.
pub fn axum_peer() -> anyhow::Result<PathBuf> {
    build("dev/fixtures/peers/axum", &[])?;
    Ok(plugin_target()?.join("release/axum-peer"))
}

fn build(folder: &str, more: &[&str]) -> anyhow::Result<()> {
    let output = plugin_cargo(&root().join(folder))?
        .args(["build", "--release", "--locked", "--quiet"])
        .args(more)
        .output()?;
    ensure!(
        output.status.success(),
        "{folder} does not build; `cargo xtask test --only setup` gets what it needs:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Cargo for a plugin in this folder, as its author would run it.
///
/// # Errors
/// The running program was not built by cargo.
pub fn plugin_cargo(folder: &Path) -> anyhow::Result<Command> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", plugin_target()?)
        // Flags for our own code, as those of a coverage run, are not for it.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    Ok(command)
}

/// Where all plugins are built, so that they share what they are built from.
///
/// # Errors
/// The running program was not built by cargo.
pub fn plugin_target() -> anyhow::Result<PathBuf> {
    Ok(target_folder()?.join("fixtures"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder that the running program was built into.
fn target_folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let profile = program
        .ancestors()
        .find(|folder| folder.ends_with("debug") || folder.ends_with("release"));
    let target = profile.and_then(Path::parent);
    target
        .map(Path::to_owned)
        .with_context(|| format!("{} was not built by cargo", program.display()))
}
