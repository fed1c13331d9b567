//! Archives as an attacker writes them, and their extraction inside.
//!
//! Writes plain `ustar` headers by hand, since honest tools refuse to. Must
//! never be used to read an archive.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::outcome::Outcome;

/// One entry of an archive.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// Its name, which may point anywhere.
    pub(crate) name: &'a str,
    /// What it is.
    pub(crate) kind: Kind<'a>,
    /// Its mode.
    pub(crate) mode: u32,
}

/// What an entry is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind<'a> {
    /// A file with this text.
    File(&'a str),
    /// A symbolic link to this path.
    Symlink(&'a str),
    /// A second name for this path.
    HardLink(&'a str),
    /// A block device with these numbers.
    Device(u32, u32),
}

/// Has `tar` extract these entries here, as trusting as it can be.
pub(crate) fn extract(entries: &[Entry<'_>]) -> Outcome {
    let mut bytes = Vec::new();
    for entry in entries {
        write_entry(&mut bytes, entry);
    }
    bytes.extend([0; 1024]);
    let child = Command::new("tar")
        .args([
            "--extract",
            "--absolute-names",
            "--preserve-permissions",
            "--file",
            "-",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Outcome::unavailable("there is no `tar` inside");
        }
        Err(error) => return Outcome::stopped("start tar", error),
    };
    if let Some(mut input) = child.stdin.take()
        && let Err(error) = input.write_all(&bytes)
    {
        return Outcome::stopped("write to tar", error);
    }
    match child.wait_with_output() {
        Ok(output) if output.status.success() => Outcome::succeeded("tar extracted it"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Outcome::blocked(text.lines().next().unwrap_or_default().to_owned())
        }
        Err(error) => Outcome::stopped("wait for tar", error),
    }
}

fn write_entry(bytes: &mut Vec<u8>, entry: &Entry<'_>) {
    let (kind, link, text) = match entry.kind {
        Kind::File(text) => (b'0', "", text),
        Kind::HardLink(link) => (b'1', link, ""),
        Kind::Symlink(link) => (b'2', link, ""),
        Kind::Device(..) => (b'4', "", ""),
    };
    let (major, minor) = match entry.kind {
        Kind::Device(major, minor) => (major, minor),
        Kind::File(_) | Kind::HardLink(_) | Kind::Symlink(_) => (0, 0),
    };
    let mut header = Vec::with_capacity(512);
    field(&mut header, entry.name.as_bytes(), 100);
    for (number, width) in [(entry.mode, 8), (0, 8), (0, 8)] {
        octal(&mut header, number, width);
    }
    octal(
        &mut header,
        u32::try_from(text.len()).unwrap_or_default(),
        12,
    );
    octal(&mut header, 0, 12);
    // The checksum counts itself as eight spaces.
    header.extend([b' '; 8]);
    header.push(kind);
    field(&mut header, link.as_bytes(), 100);
    header.extend(b"ustar\x0000");
    header.extend([0; 64]);
    octal(&mut header, major, 8);
    octal(&mut header, minor, 8);
    header.resize(512, 0);
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    let spelled = format!("{sum:06o}\0 ");
    header.splice(148..156, spelled.bytes());
    bytes.extend(header);
    bytes.extend(text.bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
}

fn field(header: &mut Vec<u8>, text: &[u8], width: usize) {
    header.extend(text.iter().copied().chain(std::iter::repeat(0)).take(width));
}

fn octal(header: &mut Vec<u8>, number: u32, width: usize) {
    header.extend(format!("{number:0digits$o}\0", digits = width - 1).bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_understands_what_we_write() {
        let mut bytes = Vec::new();
        let entries = [
            Entry {
                name: "../up",
                kind: Kind::File("text"),
                mode: 0o644,
            },
            Entry {
                name: "link",
                kind: Kind::Symlink("/etc"),
                mode: 0o777,
            },
        ];
        for entry in &entries {
            write_entry(&mut bytes, entry);
        }
        bytes.extend([0; 1024]);
        let mut tar = Command::new("tar")
            .args(["-tvPf", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("../up") && text.contains("link -> /etc"),
            "{text}"
        );
    }
}
