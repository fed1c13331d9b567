//! Secrets of environments: what they look like, and how they are kept.
//!
//! [`Bundle`] reads and writes the canonical file; [`seal`] keeps it under a
//! data key of its own, which a [`MasterKey`] wraps; [`Keyring`] holds the
//! master keys, which never meet the database; [`shares`] splits them among
//! people. Nothing here sends or logs anything, and no error says a value.

#![forbid(unsafe_code)]

pub mod file;
pub mod key;
pub mod seal;
pub mod shares;

pub use file::{Bundle, ReadBundleError};
pub use key::{Keyring, LoadKeyError, MasterKey};
pub use seal::{About, OpenError, Sealed};
pub use shares::{CombineError, Custody, ReadShareError, Share, SplitError};
