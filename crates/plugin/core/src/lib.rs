//! What a plugin is and may become, without touching any.
//!
//! A pure core: texts, facts and times go in, values come out. It reads no
//! file and no clock, starts nothing and decides nothing about permissions;
//! policy does that for every call. Start with [`manifest`].

#![forbid(unsafe_code)]

pub mod identity;
pub mod lifecycle;
pub mod manifest;
pub mod profile;
pub mod resolve;
pub mod tier;
pub mod words;

pub use manifest::Manifest;
