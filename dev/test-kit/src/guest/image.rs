//! The file system of a guest: an archive that the kernel unpacks into memory.
//!
//! Written here, in the one format the kernel reads, because few machines have
//! a program for it. Programs bring the libraries that the loader names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// A file system that a guest starts with; all files belong to root.
#[derive(Debug, Default)]
pub struct GuestImage {
    archive: Vec<u8>,
    entries: u32,
    there: BTreeSet<PathBuf>,
}

impl GuestImage {
    /// One with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory, and those above it.
    ///
    /// # Errors
    /// When the archive is too large for its format.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        let path = Path::new(path);
        if path.parent().is_none() || !self.there.insert(path.to_owned()) {
            return Ok(());
        }
        self.above(path)?;
        self.entry(path, DIRECTORY | 0o755, &[])
    }

    /// Adds a link.
    ///
    /// # Errors
    /// When the archive is too large for its format.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.place(Path::new(path), LINK | 0o777, target.as_bytes())
    }

    /// Adds a file that may be executed.
    ///
    /// # Errors
    /// When the archive is too large for its format.
    pub fn script(&mut self, path: &str, text: &str) -> Result<()> {
        self.place(Path::new(path), FILE | 0o755, text.as_bytes())
    }

    /// Adds a program of the host, without what only debuggers read, and the
    /// libraries it is linked with, at their own places below `/usr`.
    ///
    /// # Errors
    /// When it cannot be read, or a library of it is missing.
    pub fn program(&mut self, path: &str, host: &Path) -> Result<()> {
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        let small = folder.path().join("program");
        let mut strip = Command::new("strip");
        strip.arg("--strip-debug").arg("-o").arg(&small).arg(host);
        capture(&mut strip)?;
        for library in libraries(host)? {
            self.library(&library)?;
        }
        let content = std::fs::read(&small).context("cannot read what strip wrote")?;
        self.place(Path::new(path), FILE | 0o755, &content)
    }

    fn library(&mut self, path: &Path) -> Result<()> {
        let told = || format!("cannot read {}", path.display());
        // `/lib` is a link to `usr/lib` here as in most systems.
        let folder = path.parent().unwrap_or(path);
        let folder = std::fs::canonicalize(folder).with_context(told)?;
        let inside = folder.join(path.file_name().unwrap_or_default());
        let content = std::fs::read(path).with_context(told)?;
        self.place(&inside, FILE | 0o755, &content)
    }

    /// The whole archive.
    #[must_use]
    pub fn archive(&self) -> Vec<u8> {
        let mut whole = Self {
            archive: self.archive.clone(),
            entries: self.entries,
            there: BTreeSet::new(),
        };
        // Without content nothing can be too large.
        let _ = whole.entry(Path::new("/TRAILER!!!"), 0, &[]);
        whole.archive
    }

    fn above(&mut self, path: &Path) -> Result<()> {
        match path.parent().and_then(Path::to_str) {
            Some(parent) => self.directory(parent),
            None => Ok(()),
        }
    }

    /// The first with a name stays.
    fn place(&mut self, path: &Path, mode: u32, content: &[u8]) -> Result<()> {
        if !self.there.insert(path.to_owned()) {
            return Ok(());
        }
        self.above(path)?;
        self.entry(path, mode, content)
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) -> Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str();
        let name = [name.as_encoded_bytes(), b"\0"].concat();
        let size = u32::try_from(content.len()).context("a file is too large for an image")?;
        let length = u32::try_from(name.len()).context("a name is too long for an image")?;
        self.entries += 1;
        // Number, mode, user, group, links, time, size, four of devices, length
        // of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0];
        self.archive.extend(b"070701");
        for field in fields {
            self.archive.extend(format!("{field:08x}").as_bytes());
        }
        self.archive.extend(&name);
        self.pad();
        self.archive.extend(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.archive
            .resize(self.archive.len().next_multiple_of(4), 0);
    }
}

/// The libraries that a program is linked with; none for a static one.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .context("cannot run ldd")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    if said.contains("not a dynamic executable") || said.contains("statically linked") {
        return Ok(Vec::new());
    }
    if !output.status.success() || said.contains("not found") {
        bail!("{} cannot be used in a guest: {said}", program.display());
    }
    Ok(named_libraries(&said))
}

/// The paths in what `ldd` says.
fn named_libraries(said: &str) -> Vec<PathBuf> {
    said.split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

fn capture(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_holds_every_entry_once_and_its_folders_first() {
        let mut image = GuestImage::new();
        image.script("/usr/bin/one", "hello").unwrap();
        image.script("/usr/bin/one", "other").unwrap();
        image.link("/bin", "usr/bin").unwrap();
        let archive = String::from_utf8(image.archive()).unwrap();
        let names: Vec<&str> = [
            "usr\0",
            "usr/bin\0",
            "usr/bin/one\0",
            "bin\0",
            "TRAILER!!!\0",
        ]
        .into_iter()
        .filter(|name| archive.matches(*name).count() > 0)
        .collect();
        assert_eq!(names.len(), 5);
        assert_eq!(archive.matches("070701").count(), 5);
        assert!(archive.contains("hello") && !archive.contains("other"));
        assert_eq!(archive.len() % 4, 0);
        // The mode of a file and its length, as the kernel reads them.
        assert!(archive.contains("07070100000003000081ed"));
        assert!(archive.contains("00000005"));
    }

    #[test]
    fn libraries_are_taken_from_the_loaders_words() {
        let said = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(named_libraries(said), expected.map(PathBuf::from));
    }
}
