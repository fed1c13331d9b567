//! Finds images at registries and in files, and believes only their digests.
//!
//! A reference becomes the digests of what would run on each kind of machine
//! ([`Resolved`]), and a blob is streamed and checked ([`Blob`]). Everything
//! is bounded in size and time, and connections go only where a [`Judge`]
//! lets them. Layers become one read-only root file system ([`convert`]), and are
//! never unpacked into folders. Never keeps a credential. Start with
//! [`Registry`]; `survey` has the rules, `document` the formats.

#![forbid(unsafe_code)]

pub mod document;
mod error;
mod local;
mod registry;
mod root;
mod survey;

pub use error::{FetchError, ResolveError};
pub use fluffy_manifest::{ImageReference, ImageSource, ImageVersion, ParseImageError};
pub use local::{ReadLocalError, resolve_archive, resolve_layout};
pub use registry::{Blob, Credential, Judge, Options, Registry, public_or_listed, system_roots};
pub use root::{ConvertError, LayerBlob, Root, RootLimits, convert};
pub use survey::{Limits, Resolved, ResolvedPlatform, Survey, SurveyError, Wanted};
