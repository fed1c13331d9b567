//! Makes an image of a folder: an OCI layout with one layer.
//!
//! The same files give the same bytes on every machine: entries are sorted,
//! belong to root and have no time, and of permissions only who may run a file
//! is kept. Follows no link, and takes nothing but files, folders and links.
//! Never writes over anything. Next: `pack/archive`.

mod archive;

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fluffy_base::{Digest, Hasher, canonical};
use serde_json::{Value, json};

use crate::document::ImageConfig;
use crate::local::{CONFIG, LAYER, MANIFEST};
use archive::Archive;

/// The most entries, as nodes take them.
const MOST_ENTRIES: u64 = 1_000_000;

/// The largest file: sizes in archives have eleven digits.
const LARGEST_FILE: u64 = (8 << 30) - 1;

/// The deepest folder.
const DEEPEST: usize = 128;

/// Why no image could be made of a folder.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Something cannot be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The image cannot be written.
    #[error("`{}` cannot be written", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An image would be a part of itself.
    #[error("`{}` is inside the folder that is packed", path.display())]
    Inside {
        /// Where it should be written.
        path: PathBuf,
    },
    /// Something has no place in an image.
    #[error("`{}` has no place in an image: {why}", path.display())]
    Entry {
        /// Which.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// No image is made for machines like this one.
    #[error("no image is made for the architecture `{0}`")]
    Architecture(&'static str),
    /// How it runs cannot be written down.
    #[error("how the image runs has no form in JSON")]
    Config,
}

/// An image that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The files, folders and links in it.
    pub entries: u64,
    /// The bytes of its layer.
    pub bytes: u64,
}

/// Makes an image of what is below `root`, as a new folder `layout`.
///
/// # Errors
/// The folder holds something else than files, folders and links, `layout` is
/// there already, or something cannot be read or written. Then `layout` may
/// be there in parts.
pub fn pack(root: &Path, layout: &Path, runs: &ImageConfig) -> Result<Packed, PackError> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(PackError::Architecture(other)),
    };
    let blobs = folder_for(root, layout)?;
    let (layer, bytes, entries) = write_layer(root, &blobs)?;
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": written(runs),
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    });
    let (config, size) = put(&blobs, &config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described(CONFIG, config, size),
        "layers": [described(LAYER, layer, bytes)],
    });
    let (digest, size) = put(&blobs, &manifest)?;
    let mut entry = described(MANIFEST, digest, size);
    if let Some(fields) = entry.as_object_mut() {
        let platform = json!({"os": "linux", "architecture": architecture});
        fields.insert("platform".to_owned(), platform);
    }
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    write_new(&layout.join("index.json"), &text(&index)?)?;
    // Last: who finds it finds the rest.
    let version = json!({"imageLayoutVersion": "1.0.0"});
    write_new(&layout.join("oci-layout"), &text(&version)?)?;
    Ok(Packed {
        digest,
        entries,
        bytes,
    })
}

/// Makes the layout's folder; gives that of its blobs.
fn folder_for(root: &Path, layout: &Path) -> Result<PathBuf, PackError> {
    let unreadable = |path: &Path, source| PackError::Read {
        path: path.to_owned(),
        source,
    };
    let whole = fs::canonicalize(root).map_err(|error| unreadable(root, error))?;
    let parent = match layout.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(|error| unreadable(parent, error))?;
    if parent.starts_with(&whole) {
        let path = layout.to_owned();
        return Err(PackError::Inside { path });
    }
    let blobs = layout.join("blobs/sha256");
    let made = fs::create_dir(layout).and_then(|()| fs::create_dir_all(&blobs));
    made.map_err(|error| unwritable(layout, error))?;
    Ok(blobs)
}

/// Writes the layer; gives its digest, its size and how much is in it.
fn write_layer(root: &Path, blobs: &Path) -> Result<(Digest, u64, u64), PackError> {
    let part = blobs.join("part");
    let file = create(&part).map_err(|error| unwritable(&part, error))?;
    let mut packing = Packing {
        archive: Archive::new(Hashed::new(BufWriter::new(file))),
        part: part.clone(),
        entries: 0,
    };
    packing.folder(root, &mut Vec::new(), 0)?;
    let entries = packing.entries;
    let ended = packing.archive.end().and_then(|mut hashed| {
        hashed.inner.flush()?;
        Ok((hashed.hasher.finish(), hashed.bytes))
    });
    let (digest, bytes) = ended.map_err(|error| unwritable(&part, error))?;
    let named = fs::rename(&part, blobs.join(digest.to_string()));
    named.map_err(|error| unwritable(&part, error))?;
    Ok((digest, bytes, entries))
}

/// A folder on its way into an archive.
struct Packing<W: Write> {
    archive: Archive<W>,
    /// The archive, for what goes wrong with it.
    part: PathBuf,
    entries: u64,
}

impl<W: Write> Packing<W> {
    /// Adds what is in a folder; `name` is that of the folder in the archive.
    fn folder(&mut self, path: &Path, name: &mut Vec<u8>, depth: usize) -> Result<(), PackError> {
        if depth > DEEPEST {
            return Err(misplaced(path, "it is in too many folders"));
        }
        let unreadable = |source| PackError::Read {
            path: path.to_owned(),
            source,
        };
        let listed = fs::read_dir(path).map_err(unreadable)?;
        let listed: io::Result<Vec<DirEntry>> = listed.collect();
        let mut listed = listed.map_err(unreadable)?;
        listed.sort_by_key(DirEntry::file_name);
        for entry in listed {
            let length = name.len();
            name.extend(entry.file_name().as_bytes());
            self.entry(&entry.path(), name, depth)?;
            name.truncate(length);
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &mut Vec<u8>, depth: usize) -> Result<(), PackError> {
        let unreadable = |source| PackError::Read {
            path: path.to_owned(),
            source,
        };
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(misplaced(path, "there are too many files"));
        }
        let own = path.file_name().unwrap_or_default().as_bytes();
        if own.starts_with(b".wh.") {
            let why = "in a layer such a name takes another file away";
            return Err(misplaced(path, why));
        }
        let kind = fs::symlink_metadata(path).map_err(unreadable)?.file_type();
        if kind.is_dir() {
            name.push(b'/');
            let added = self.archive.folder(name);
            added.map_err(|error| unwritable(&self.part, error))?;
            return self.folder(path, name, depth + 1);
        }
        if kind.is_symlink() {
            let target = fs::read_link(path).map_err(unreadable)?;
            let target = target.into_os_string().into_vec();
            let added = self.archive.link(name, &target);
            return added.map_err(|error| unwritable(&self.part, error));
        }
        if !kind.is_file() {
            return Err(misplaced(path, "it is no file, folder or link"));
        }
        self.file(path, name)
    }

    fn file(&mut self, path: &Path, name: &[u8]) -> Result<(), PackError> {
        let unreadable = |source| PackError::Read {
            path: path.to_owned(),
            source,
        };
        let mut file = open(path).map_err(unreadable)?;
        let known = file.metadata().map_err(unreadable)?;
        if !known.is_file() {
            return Err(misplaced(path, "it is no file any more"));
        }
        if known.len() > LARGEST_FILE {
            return Err(misplaced(path, "it is larger than 8 GiB"));
        }
        let runs = known.permissions().mode() & 0o111 != 0;
        let unwritable = |error| unwritable(&self.part, error);
        let begun = self.archive.file(name, known.len(), runs);
        begun.map_err(unwritable)?;
        let (mut left, mut piece) = (known.len(), vec![0; 128 << 10]);
        while left > 0 {
            let most = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            let read = piece.get_mut(..most).unwrap_or_default();
            let count = file.read(read).map_err(unreadable)?;
            let read = read.get(..count).unwrap_or_default();
            if read.is_empty() {
                return Err(misplaced(path, "it became shorter meanwhile"));
            }
            self.archive.content(read).map_err(unwritable)?;
            left -= read.len() as u64;
        }
        self.archive.pad(known.len()).map_err(unwritable)
    }
}

/// Opens a file, but no link, and nothing that would be waited for.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// A writer that knows what went through it.
struct Hashed<W> {
    inner: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hasher: Hasher::new(),
            bytes: 0,
        }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// How an image runs, as its config says it; what is empty is left out.
fn written(runs: &ImageConfig) -> Value {
    let mut fields = serde_json::Map::new();
    let lists = [
        ("Env", &runs.env),
        ("Entrypoint", &runs.entrypoint),
        ("Cmd", &runs.cmd),
    ];
    for (name, list) in lists {
        if !list.is_empty() {
            fields.insert(name.to_owned(), json!(list));
        }
    }
    let texts = [
        ("User", &runs.user),
        ("WorkingDir", &runs.workdir),
        ("StopSignal", &runs.stop_signal),
    ];
    for (name, text) in texts {
        if !text.is_empty() {
            fields.insert(name.to_owned(), json!(text));
        }
    }
    Value::Object(fields)
}

fn put(blobs: &Path, document: &Value) -> Result<(Digest, u64), PackError> {
    let text = text(document)?;
    let digest = Digest::of(text.as_bytes());
    write_new(&blobs.join(digest.to_string()), &text)?;
    Ok((digest, text.len() as u64))
}

fn text(document: &Value) -> Result<String, PackError> {
    canonical::to_string(document).map_err(|_| PackError::Config)
}

fn described(media_type: &str, digest: Digest, size: u64) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
}

fn write_new(path: &Path, text: &str) -> Result<(), PackError> {
    let written = create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| unwritable(path, error))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn unwritable(path: &Path, source: io::Error) -> PackError {
    let path = path.to_owned();
    PackError::Write { path, source }
}

fn misplaced(path: &Path, why: &'static str) -> PackError {
    let path = path.to_owned();
    PackError::Entry { path, why }
}
