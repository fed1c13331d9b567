//! What an app asks of the platform: `fluffy.toml`, read whole or refused.
//!
//! Pure: text in, a [`Manifest`] or every [`Problem`] with its code, line and
//! column out. One reader for the command line and the server. Never opens a
//! file, resolves a tag or knows an env. Start with [`Manifest::parse`].

#![forbid(unsafe_code)]

mod canonical;
mod document;
mod format;
mod image;
pub mod model;
mod problem;
mod process;
mod reader;
mod schema;
mod written;

pub use document::LARGEST;
pub use format::format;
pub use image::{ImageReference, ImageSource, ImageVersion, ParseImageError};
pub use model::Manifest;
pub use problem::{Code, Problem};
pub use schema::schema;
