//! A test that this machine cannot run says so, and is counted.
//!
//! Only for what a machine cannot have, such as hardware virtualization or a
//! user namespace that the host forbids. What is merely not installed is a
//! failure: `cargo xtask test` installs it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The variable with the file that skipped tests are written to.
pub const SKIPS_ENV: &str = "FLUFFY_TEST_SKIPS";

/// Tells `cargo xtask test` that a test did not run, and why.
///
/// The test returns right after it.
///
/// # Panics
/// The file of `xtask` cannot be written: a skip that nobody sees is a lie.
#[expect(clippy::panic, reason = "an uncounted skip would look like success")]
pub fn record_skip(test: &str, reason: &str) {
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    let Some(path) = std::env::var_os(SKIPS_ENV) else {
        let _ = write!(std::io::stderr(), "skipped {line}");
        return;
    };
    if let Err(error) = append(Path::new(&path), &line) {
        panic!("cannot write to {}: {error}", path.display());
    }
}

/// Adds one line, written at once: tests are separate processes.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_skip_is_kept() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("skips");
        append(&path, "one: no KVM\n").unwrap();
        append(&path, "two: no KVM\n").unwrap();
        let kept = std::fs::read_to_string(&path).unwrap();
        assert_eq!(kept, "one: no KVM\ntwo: no KVM\n");
        assert!(append(folder.path(), "lost\n").is_err());
    }
}
