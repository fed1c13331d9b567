//! The image of containers that are made from the host: almost nothing.
//!
//! Directories to mount on and the host's own links (`/bin` to `usr/bin`); the
//! host's programs are bound over it, read-only. Its name is the digest of what
//! is in it, so an image that is there is the right one. Pure: a list in, an
//! archive out. Next: `shape` binds the host's directories.

use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_sandbox::plan::Host;

/// Directories that something is mounted on.
const DIRECTORIES: &[&str] = &[".fluffy", "dev", "etc", "home", "proc", "sys", "usr", "var"];

/// Directories for private files; runtimes give a file system in memory the
/// mode of the directory under it.
const SCRATCH: &[&str] = &["home/fluffy", "run", "tmp", "var/tmp"];

/// One block of an archive.
const BLOCK: usize = 512;

/// An image that the engine makes from an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostImage {
    /// What the engine calls it; the same content has the same name.
    pub(crate) name: String,
    /// Its files.
    pub(crate) archive: Vec<u8>,
}

impl HostImage {
    /// The image for a host that looks like this.
    pub(crate) fn new(host: &Host) -> Self {
        let mut archive = Vec::new();
        for directory in DIRECTORIES {
            archive.extend(header(Entry::Directory, Path::new(directory)));
        }
        for directory in SCRATCH {
            archive.extend(header(Entry::Scratch, Path::new(directory)));
        }
        for (inside, target) in &host.links {
            archive.extend(header(Entry::Link(target), inside));
        }
        // Two empty blocks end an archive.
        archive.resize(archive.len() + 2 * BLOCK, 0);
        let digest = Digest::of(&archive).to_string();
        let mark: String = digest
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect();
        Self {
            name: format!("localhost/fluffy-host-{mark}"),
            archive,
        }
    }
}

enum Entry<'a> {
    Directory,
    Scratch,
    Link(&'a PathBuf),
}

/// The header of one entry, as POSIX describes it; neither kind has a body.
fn header(entry: Entry<'_>, path: &Path) -> [u8; BLOCK] {
    let mut block = [0_u8; BLOCK];
    let relative = path.strip_prefix("/").unwrap_or(path);
    let (kind, mode, target) = match &entry {
        Entry::Directory => (b'5', "0000755", None),
        Entry::Scratch => (b'5', "0001777", None),
        Entry::Link(target) => (b'2', "0000777", Some(target.as_os_str())),
    };
    put(&mut block, 0, relative.as_os_str().as_encoded_bytes());
    put(&mut block, 100, mode.as_bytes());
    for number in [108, 116] {
        put(&mut block, number, b"0000000");
    }
    for number in [124, 136] {
        put(&mut block, number, b"00000000000");
    }
    put(&mut block, 156, &[kind]);
    if let Some(target) = target {
        put(&mut block, 157, target.as_encoded_bytes());
    }
    put(&mut block, 257, b"ustar\x0000");
    // The sum is taken as if its own field were spaces.
    put(&mut block, 148, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut block, 148, format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Writes bytes at an offset; what does not fit is left out.
fn put(block: &mut [u8; BLOCK], offset: usize, bytes: &[u8]) {
    for (slot, byte) in block.iter_mut().skip(offset).zip(bytes) {
        *slot = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn host() -> Host {
        Host {
            links: vec![("/bin".into(), "usr/bin".into())],
            ..Host::default()
        }
    }

    #[test]
    fn the_same_host_gives_the_same_image() {
        let image = HostImage::new(&host());
        assert_eq!(HostImage::new(&host()), image);
        assert_ne!(HostImage::new(&Host::default()).name, image.name);
        let (_, mark) = image.name.rsplit_once('-').unwrap();
        assert_eq!(mark.len(), 16, "{}", image.name);
    }

    #[test]
    fn tar_reads_the_archive() {
        let image = HostImage::new(&host());
        let mut tar = Command::new("tar")
            .args(["--list", "--verbose", "--file=-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&image.archive).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success());
        let list = String::from_utf8(output.stdout).unwrap();
        assert!(list.contains("drwxr-xr-x 0/0"), "{list}");
        let home = list.lines().find(|line| line.ends_with("home/fluffy"));
        assert!(home.unwrap().starts_with("drwxrwxrwt"), "{list}");
        assert!(list.contains("bin -> usr/bin"), "{list}");
        assert_eq!(list.lines().count(), DIRECTORIES.len() + SCRATCH.len() + 1);
    }
}
