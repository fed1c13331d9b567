//! Looking for secrets: what most attempts do once they are anywhere.
//!
//! Reads are bounded. Must never know a secret, only how one starts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::outcome::Outcome;
use crate::stage::{SECRET_PREFIX, Stage};

/// How much is read of anything.
const MOST_READ: u64 = 256 * 1024;

/// Reads a file and carries off the secrets in it.
pub(crate) fn read(path: impl AsRef<Path>) -> Outcome {
    let path = path.as_ref();
    match open(path).and_then(bytes_of) {
        Ok(bytes) => found(&format!("read {}", path.display()), &bytes),
        Err(error) => Outcome::stopped(&format!("read {}", path.display()), error),
    }
}

/// Reads an open file from its start.
pub(crate) fn read_open(file: File, what: &str) -> Outcome {
    use std::io::Seek;
    let mut file = file;
    // A pipe cannot be wound back, and need not be.
    let _wound = file.rewind();
    match bytes_of(file) {
        Ok(bytes) => found(what, &bytes),
        Err(error) => Outcome::stopped(what, error),
    }
}

/// Looks through bytes that were read somehow.
pub(crate) fn found(what: &str, bytes: &[u8]) -> Outcome {
    let loot = secrets_in(bytes);
    if loot.is_empty() {
        Outcome::blocked(format!("{what}: no secret there"))
    } else {
        Outcome::looted(what, loot)
    }
}

/// Tries to change a file in every way that a path allows.
pub(crate) fn change(path: impl AsRef<Path>) -> Outcome {
    let path = path.as_ref();
    let append = OpenOptions::new()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(b"changed"));
    let mode = fs::Permissions::from_mode(0o640);
    Outcome::best([
        outcome(&format!("append to {}", path.display()), append),
        outcome("change its mode", fs::set_permissions(path, mode)),
    ])
}

/// Tries to create a file, and to leave it there.
pub(crate) fn create(path: impl AsRef<Path>, text: &str) -> Outcome {
    let path = path.as_ref();
    outcome(&format!("create {}", path.display()), fs::write(path, text))
}

/// Leaves a file in each of these folders, as far as that works.
///
/// Which are the host's own, and not those of a throwaway copy, is for the host
/// to say: it looks for them, and removes them.
pub(crate) fn plant(stage: &Stage, folders: &[&Path], text: &str) -> Outcome {
    let mut planted = Vec::new();
    let mut refusals = Vec::new();
    for folder in folders {
        let path = folder.join(stage.unique());
        match create(&path, text) {
            Outcome::Succeeded { .. } => planted.push(path.to_string_lossy().into_owned()),
            refused => refusals.push(refused),
        }
    }
    if planted.is_empty() {
        return Outcome::best(refusals);
    }
    Outcome::looted(format!("created {}", planted.join(", ")), planted)
}

/// Keeps what was taken for a while: a limit that is kept by looking from time
/// to time, and not by the kernel, promises only to see it then.
pub(crate) fn hold_still() {
    std::thread::sleep(Duration::from_secs(2));
}

/// Opens a file for writing, and writes nothing.
pub(crate) fn open_for_writing(path: &str) -> Outcome {
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    outcome(&format!("open {path} for writing"), opened)
}

/// The folders in `/proc` of all other processes it can see.
pub(crate) fn processes() -> impl Iterator<Item = PathBuf> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        (number != own).then(|| entry.path())
    })
}

/// Worked if the call did.
pub(crate) fn outcome<T>(what: &str, result: io::Result<T>) -> Outcome {
    match result {
        Ok(_) => Outcome::succeeded(what),
        Err(error) => Outcome::stopped(what, error),
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Never waits for the other end of a pipe, never takes a terminal.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

fn bytes_of(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match file.take(MOST_READ).read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}

fn secrets_in(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let ends = |c: char| !c.is_ascii_hexdigit();
    text.match_indices(SECRET_PREFIX)
        .filter_map(|(start, prefix)| {
            let rest = text.get(start + prefix.len()..)?;
            Some(format!("{prefix}{}", rest.split(ends).next()?))
        })
        .take(64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_cut_out_of_any_bytes() {
        let bytes = b"A=FLUFFY-CANARY-0123abcd\0B=\xff FLUFFY-CANARY-99 tail";
        let found = secrets_in(bytes);
        assert_eq!(found, ["FLUFFY-CANARY-0123abcd", "FLUFFY-CANARY-99"]);
        assert!(secrets_in(b"nothing").is_empty());
    }
}
