//! Makes one read-only root file system (EROFS) of an image's layers.
//!
//! Layers are applied to a tree in memory, lowest first; what files hold goes
//! into the result as it passes, and what describes them last. No name of an
//! archive ever becomes a path of this machine. The same layers give the same
//! bytes. Start with [`convert`]; `tree` has the rules of layers, `erofs` the
//! format.

mod erofs;
mod stream;
mod tree;
mod unfold;

use std::fs::File;
use std::io::{self, Read};

use fluffy_base::Digest;
use fluffy_tar::{Entry, Kind, ReadTarError, read_entry};
use serde::{Deserialize, Serialize};

use crate::document::Compression;
use erofs::{Store, Written};
use stream::Stream;
pub(crate) use stream::{Ahead, Unpack, Unpacking};
use tree::{Body, Meta, Tree};
pub(crate) use unfold::{digest_of_folder, unfold};

/// How much an image may be once it is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootLimits {
    /// The most bytes of all layers, unpacked.
    pub bytes: u64,
    /// The most entries of all layers.
    pub entries: u64,
    /// How many times larger a layer may become, after its first bytes.
    pub expansion: u64,
    /// The first bytes, of which no such thing is asked.
    pub unasked: u64,
}

impl Default for RootLimits {
    fn default() -> Self {
        Self {
            bytes: 50 << 30,
            entries: 1_000_000,
            expansion: 200,
            unasked: 64 << 20,
        }
    }
}

/// A layer to be applied.
#[derive(Debug)]
pub struct LayerBlob<R> {
    /// Its bytes as they are stored, already known to be those of its digest.
    pub bytes: R,
    /// How they are compressed.
    pub compression: Compression,
    /// The digest of what they unpack to, as the image's config says.
    pub diff_id: Digest,
}

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The bytes of the result.
    pub size: u64,
    /// The files, folders and links in it.
    pub inodes: u64,
    /// The bytes of the layers, unpacked.
    pub unpacked: u64,
    /// What was left out because no guest may have it: devices and sockets.
    pub dropped: u64,
}

/// Why no root file system could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// An entry tries what no builder of images does.
    #[error("layer {layer} of the image is hostile at `{name}`: {what}")]
    Hostile {
        /// Which layer, from the lowest.
        layer: usize,
        /// Which entry.
        name: String,
        /// What it tries.
        what: &'static str,
    },
    /// There is too much of it.
    #[error("layer {layer} of the image has more {what} than {limit}")]
    Limit {
        /// Which layer, from the lowest.
        layer: usize,
        /// Of what.
        what: &'static str,
        /// How much is allowed.
        limit: u64,
    },
    /// A layer cannot be unpacked.
    #[error("layer {layer} of the image cannot be unpacked")]
    Broken {
        /// Which layer, from the lowest.
        layer: usize,
        /// Why.
        #[source]
        source: ReadTarError,
    },
    /// A layer is not what the image's config says.
    #[error("layer {layer} of the image has other content than its config says")]
    Content {
        /// Which layer, from the lowest.
        layer: usize,
    },
    /// The result cannot be written here.
    #[error("the root file system cannot be written")]
    Write(#[source] io::Error),
}

impl ConvertError {
    /// The reason that an instance shows.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Limit { what, .. } if *what == stream::BYTES => "image_too_large",
            Self::Hostile { .. } | Self::Limit { .. } => "image_hostile",
            Self::Broken { .. } | Self::Content { .. } => "image_layer_invalid",
            Self::Write(error) if error.kind() == io::ErrorKind::StorageFull => "disk_full",
            Self::Write(_) => "image_pull_failed",
        }
    }
}

/// Makes the root file system of these layers, the lowest first.
///
/// `result` and `aside` are empty files that can be written; `aside` holds
/// small content while it waits for its place and is worthless afterwards.
/// That the result reaches the disk is for who keeps it.
///
/// # Errors
/// A layer is hostile, broken or too large, or a file cannot be written; what
/// is in the files then is worthless.
pub fn convert<R: Read>(
    layers: impl IntoIterator<Item = LayerBlob<R>>,
    limits: RootLimits,
    result: &File,
    aside: &File,
) -> Result<Root, ConvertError> {
    let layers = layers.into_iter().map(|layer| {
        (
            Unpacking::new(layer.bytes, layer.compression),
            layer.diff_id,
        )
    });
    convert_unpacked(layers, limits, result, aside)
}

/// The same with layers that come unpacked, each with its digest.
pub(crate) fn convert_unpacked<U: Unpack>(
    layers: impl IntoIterator<Item = (U, Digest)>,
    limits: RootLimits,
    result: &File,
    aside: &File,
) -> Result<Root, ConvertError> {
    let mut build = Build {
        tree: Tree::new(usize::try_from(limits.entries).unwrap_or(usize::MAX)),
        store: Store::new(result, aside),
        limits,
        unpacked: 0,
        entries: 0,
        dropped: 0,
    };
    for (number, layer) in layers.into_iter().enumerate() {
        build.apply(number, layer)?;
    }
    let written = build.store.finish(&build.tree);
    let Written { size, inodes } = written.map_err(ConvertError::Write)?;
    Ok(Root {
        size,
        inodes,
        unpacked: build.unpacked,
        dropped: build.dropped,
    })
}

struct Build<'a> {
    tree: Tree,
    store: Store<'a>,
    limits: RootLimits,
    unpacked: u64,
    entries: u64,
    dropped: u64,
}

impl Build<'_> {
    fn apply<U: Unpack>(
        &mut self,
        layer: usize,
        (unpacked, diff_id): (U, Digest),
    ) -> Result<(), ConvertError> {
        self.tree.begin_layer();
        let left = self.limits.bytes.saturating_sub(self.unpacked);
        let mut stream = Stream::new(unpacked, left, &self.limits);
        let applied = self.entries(layer, &mut stream);
        let applied = applied.and_then(|()| stream.drain().map_err(|e| Wrong::Tar(e.into())));
        if let Err(wrong) = applied {
            // A reader that met its limit says so better than who read it.
            return Err(match (stream.limit_met(), wrong) {
                (Some(what), _) => ConvertError::Limit {
                    layer,
                    what,
                    limit: match what {
                        stream::BYTES => self.limits.bytes,
                        _ => self.limits.expansion,
                    },
                },
                (None, Wrong::Tar(source)) => ConvertError::Broken { layer, source },
                (None, Wrong::Convert(error)) => error,
            });
        }
        let (unpacked, digest) = stream.finish();
        self.unpacked += unpacked;
        match digest == diff_id {
            true => Ok(()),
            false => Err(ConvertError::Content { layer }),
        }
    }

    fn entries<U: Unpack>(&mut self, layer: usize, stream: &mut Stream<U>) -> Result<(), Wrong> {
        while let Some(entry) = read_entry(stream)? {
            self.entries += 1;
            if self.entries > self.limits.entries {
                return Err(Wrong::Convert(ConvertError::Limit {
                    layer,
                    what: "entries",
                    limit: self.limits.entries,
                }));
            }
            let hostile = |what| {
                Wrong::Convert(ConvertError::Hostile {
                    layer,
                    name: entry.name.escape_ascii().to_string(),
                    what,
                })
            };
            let body = self.body(&entry, stream)?.map_err(hostile)?;
            match (body, entry.kind) {
                (Some(body), _) => {
                    let meta = Meta::of(&entry).map_err(hostile)?;
                    self.tree.put(&entry.name, meta, body).map_err(hostile)?;
                }
                (None, Kind::HardLink) => {
                    self.tree.link(&entry.name, &entry.link).map_err(hostile)?;
                }
                (None, Kind::ByteDevice { number: (0, 0) }) => {
                    self.tree.remove_lower(&entry.name).map_err(hostile)?;
                }
                (None, _) => self.dropped += 1,
            }
            for content in self.tree.take_freed() {
                self.store.forget(content).map_err(write)?;
            }
        }
        Ok(())
    }

    /// What an entry brings; none if it is no thing of its own. What files
    /// hold is taken from the stream.
    fn body<U: Unpack>(
        &mut self,
        entry: &Entry,
        stream: &mut Stream<U>,
    ) -> Result<Result<Option<Body>, &'static str>, Wrong> {
        if entry.size > 0 && entry.kind != Kind::File {
            return Ok(Err("it has content, and is no file"));
        }
        Ok(match entry.kind {
            Kind::File => {
                let content = self.store.take(stream, entry.size)?;
                stream.skip(entry.padding())?;
                Ok(Some(Body::File(content)))
            }
            Kind::Directory => Ok(Some(Body::Folder(Default::default()))),
            Kind::Link => Ok(Some(Body::Link(entry.link.clone()))),
            Kind::Pipe => Ok(Some(Body::Pipe)),
            Kind::HardLink | Kind::ByteDevice { .. } | Kind::BlockDevice => Ok(None),
            Kind::Other => Err("it is of no kind that is known"),
        })
    }
}

/// What went wrong within a layer.
enum Wrong {
    Tar(ReadTarError),
    Convert(ConvertError),
}

impl From<ReadTarError> for Wrong {
    fn from(error: ReadTarError) -> Self {
        Self::Tar(error)
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        Self::Tar(error.into())
    }
}

fn write(error: io::Error) -> Wrong {
    Wrong::Convert(ConvertError::Write(error))
}
