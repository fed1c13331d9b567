//! Builds the real program of the tests with the `rustc` that builds us.

use std::path::{Path, PathBuf};
use std::process::Command;

use fluffy_base::Digest;

/// Both ways of building the same program.
pub(crate) const TARGETS: [&str; 2] = ["wasm32-wasip1", "wasm32-wasip2"];

/// The bytes of the probe for a target; built once per source and compiler.
pub(crate) fn probe(target: &str) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/probe.rs");
    let text = std::fs::read(&source).unwrap();
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(&compiler).arg("-vV").output().unwrap().stdout;
    let digest = Digest::of_parts(&[&text, &version]);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let built = folder.join(format!("probe-{target}-{digest}.wasm"));
    if let Ok(bytes) = std::fs::read(&built) {
        return bytes;
    }
    // Tests run side by side, so each builds in a folder of its own.
    let place = tempfile::tempdir_in(&folder).unwrap();
    let own = place.path().join("probe.wasm");
    let output = Command::new(&compiler)
        .args([
            "--edition",
            "2024",
            "-C",
            "opt-level=s",
            "-C",
            "strip=symbols",
        ])
        .args(["-C", "panic=abort", "--target", target, "-o"])
        .arg(&own)
        .arg(&source)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "the probe does not build; if the target is missing, run \
         `rustup target add {}`:\n{}",
        TARGETS.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&own, &built).unwrap();
    std::fs::read(&built).unwrap()
}
