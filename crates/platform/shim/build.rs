//! Builds `fluffy-init` as it travels: linked statically, small, inside the
//! one binary. A cargo of its own does it, because what is built for a guest
//! takes other flags than what is built for this machine.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "a build that cannot go on stops"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where"));
    let embedded = out.join("fluffy-init");
    let platform = here.parent().expect("crates/platform");
    for watched in [
        "guest/src",
        "guest/Cargo.toml",
        "guest-init/src",
        "guest-init/Cargo.toml",
    ] {
        println!(
            "cargo::rerun-if-changed={}",
            platform.join(watched).display()
        );
    }
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        std::fs::write(&embedded, b"").expect("cannot write what is embedded");
        return;
    }
    let target = env::var("TARGET").expect("cargo says for what");
    let folder = out.join("init");
    build(&platform.join("guest-init/Cargo.toml"), &target, &folder);
    let built = folder.join(&target).join("release/fluffy-init");
    std::fs::copy(&built, &embedded).expect("cannot copy what was built");
}

fn build(manifest: &Path, target: &str, folder: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo says who it is"));
    // Nothing of the outer build's flags, wrappers and profile may show.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let of_build = (text.starts_with("CARGO") && text != "CARGO_HOME")
            || text.starts_with("RUSTC")
            || text.starts_with("RUSTFLAGS")
            || text == "RUSTDOCFLAGS"
            || text == "LLVM_PROFILE_FILE";
        if of_build {
            cargo.env_remove(&name);
        }
    }
    let status = cargo
        .args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "--manifest-path",
        ])
        .arg(manifest)
        .args(["--target", target, "--target-dir"])
        .arg(folder)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "z")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .status()
        .expect("cannot start cargo");
    assert!(status.success(), "fluffy-init was not built");
}
