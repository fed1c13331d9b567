//! Our own program inside any image: the binary, its loader, its libraries.
//!
//! Bound read-only below `/.fluffy`, and started through the loader, so it
//! works in images with another C library or none. Copied only where the
//! running file is gone or others may not read it. Next: `shape` binds them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where everything of ours is, inside.
pub(crate) const INSIDE: &str = "/.fluffy";

/// The files to bind, and how to start the program with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Files of the host and where they are seen.
    pub(crate) files: Vec<(PathBuf, PathBuf)>,
    /// The words that start the program.
    pub(crate) start: Vec<String>,
}

impl Carried {
    /// What the running program needs, with copies in `folder` where it must.
    ///
    /// # Errors
    /// The program cannot be read or copied.
    pub(crate) fn of_this_program(folder: &Path) -> io::Result<Self> {
        let program = readable_program(folder)?;
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Self::new(program, &libraries(&maps)))
    }

    fn new(program: PathBuf, libraries: &[PathBuf]) -> Self {
        let inside = Path::new(INSIDE);
        let mut files = vec![(program, inside.join("fluffy"))];
        let mut start = Vec::new();
        for library in libraries {
            let Some(name) = library.file_name() else {
                continue;
            };
            if is_loader(library) {
                files.push((library.clone(), inside.join("loader")));
                start = vec![
                    format!("{INSIDE}/loader"),
                    "--library-path".to_owned(),
                    format!("{INSIDE}/libraries"),
                ];
            } else {
                files.push((library.clone(), inside.join("libraries").join(name)));
            }
        }
        start.push(format!("{INSIDE}/fluffy"));
        Self { files, start }
    }
}

/// A file with the running program that everybody may read and run.
fn readable_program(folder: &Path) -> io::Result<PathBuf> {
    let program = fs::read_link("/proc/self/exe")?;
    let public = fs::metadata(&program).is_ok_and(|file| file.permissions().mode() & 0o5 == 0o5);
    if public {
        return Ok(program);
    }
    // Replaced by an update, or private to its owner.
    let copy = folder.join("fluffy");
    fs::copy("/proc/self/exe", &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

/// The shared objects of a process, from its memory map.
fn libraries(maps: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.split_once('/').map(|(_, rest)| format!("/{rest}")))
        .filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.contains(".so.") || name.ends_with(".so")
        })
        .map(PathBuf::from)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn is_loader(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b"ld-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5581-5582 r-xp 00000000 fe:00 1 /usr/bin/fluffy
7f01-7f02 r--p 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f02-7f03 r-xp 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f03-7f04 r--p 00000000 fe:00 3 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
7ffc-7ffd rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn the_loader_starts_the_program() {
        let carried = Carried::new("/usr/bin/fluffy".into(), &libraries(MAPS));
        assert_eq!(
            carried.start.join(" "),
            "/.fluffy/loader --library-path /.fluffy/libraries /.fluffy/fluffy"
        );
        let inside: Vec<_> = carried
            .files
            .iter()
            .map(|(_, to)| to.display().to_string())
            .collect();
        let expected = [
            "/.fluffy/fluffy",
            "/.fluffy/loader",
            "/.fluffy/libraries/libc.so.6",
        ];
        assert_eq!(inside, expected);
    }

    #[test]
    fn a_static_program_starts_itself() {
        let carried = Carried::new("/usr/bin/fluffy".into(), &[]);
        assert_eq!(carried.start, ["/.fluffy/fluffy"]);
        assert_eq!(carried.files.len(), 1);
    }

    #[test]
    fn this_program_is_found() {
        let folder = tempfile::TempDir::new().unwrap();
        let carried = Carried::of_this_program(folder.path()).unwrap();
        for (host, _) in &carried.files {
            assert!(host.is_file(), "{}", host.display());
        }
    }
}
