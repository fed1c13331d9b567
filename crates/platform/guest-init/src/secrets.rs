//! The file of secrets: written once, whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluffy_guest::config::{SECRETS_PATH, Secrets};
use rustix::mount::{MountFlags, mount, mount_remount};

use crate::redact::Redactor;
use crate::user::Identity;

const DIRECTORY: &str = "/run/secrets";

/// Writes the file: a file system of its own, temporary name, mode, owner,
/// fsync, rename, and then nothing there can be changed any more.
pub(crate) fn write(bytes: &[u8], secrets: &Secrets, identity: &Identity) -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(
        "tmpfs",
        DIRECTORY,
        "tmpfs",
        safe,
        c"size=1m,mode=0755,nr_inodes=16",
    )?;
    let temporary = Path::new(DIRECTORY).join(".platform.env");
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    let mode = if secrets.mode == "0440" { 0o440 } else { 0o400 };
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    let uid = secrets.uid.unwrap_or(identity.uid);
    let gid = secrets.gid.unwrap_or(identity.gid);
    fchown(&file, Some(uid), Some(gid))?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, SECRETS_PATH)?;
    mount_remount(DIRECTORY, safe | MountFlags::RDONLY, c"")?;
    Ok(())
}

/// What lines are freed of.
pub(crate) fn redactor(bytes: &[u8]) -> Redactor {
    let entries: Vec<(String, Vec<u8>)> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.starts_with(b"#"))
        .filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            let (key, value) = line.split_at_checked(at)?;
            let value = value.get(1..)?;
            let value = value.strip_suffix(b"\r").unwrap_or(value);
            let value = match value.strip_prefix(b"base64:") {
                Some(encoded) => STANDARD.decode(encoded).ok()?,
                None => value.to_vec(),
            };
            Some((String::from_utf8_lossy(key).into_owned(), value))
        })
        .collect();
    Redactor::new(
        entries
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_the_canonical_form() {
        let file = b"# FLUFFY_SECRETS_V1\nA=longenough=1\nB=base64:aHVudGVyMgpodW50ZXIz\n";
        let redactor = redactor(file);
        let masked = |line: &[u8]| String::from_utf8(redactor.mask(line, 100)).unwrap();
        assert_eq!(masked(b"x longenough=1"), "x [redacted:A]");
        // The value in the file is base64 of two short lines.
        assert_eq!(masked(b"aHVudGVyMgpodW50ZXIz"), "[redacted:B]");
    }
}
