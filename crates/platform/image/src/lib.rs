//! Finds images at registries and in files, and believes only their digests.
//!
//! A reference becomes the digests of what would run on each kind of machine
//! ([`Resolved`]), and a blob is streamed and checked ([`Blob`]). Everything
//! is bounded in size and time, and connections go only where a [`Judge`]
//! lets them. Layers become one read-only root file system ([`convert`]), and are
//! never unpacked into folders. A node keeps what it made in a [`Store`]. A
//! folder becomes an image with [`pack`]. Never keeps a credential: what an
//! operator says about registries ([`Registries`]) is read when it is needed.
//! Start with [`Registry`]; `survey` has the rules, `document` the formats.

#![forbid(unsafe_code)]

mod access;
pub mod document;
mod error;
mod local;
mod pack;
mod registry;
mod root;
mod shelf;
mod store;
mod survey;
pub mod worker;

pub use access::{Access, Manner, Mirror, ParseMirrorError, Place, Registries, RegistriesError};
pub use error::{FetchError, ResolveError};
pub use fluffy_manifest::{ImageReference, ImageSource, ImageVersion, ParseImageError};
pub use hyper::body::Bytes;
pub use local::{ReadLocalError, resolve_archive, resolve_layout};
pub use pack::{PackError, Packed, pack};
pub use registry::{
    Blob, Credential, Judge, Options, Proof, Registry, public_or_listed, system_roots,
};
pub use root::{ConvertError, LayerBlob, Root, RootLimits, convert};
pub use shelf::{ImportError, Shelf};
pub use store::{
    BlobSource, Bring, Damaged, EnsureError, ImageRequest, Opened, Piece, Pinned, PullLimits,
    Repository, RoomError, RootForm, Store, StoreLimits, Tally, Usage, Waiting, WorkerCommand,
};
pub use survey::{Limits, Resolved, ResolvedPlatform, Survey, SurveyError, Wanted};
