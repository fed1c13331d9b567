//! Secrets that cannot be printed, and text without secrets.
//!
//! [`Secret`] holds a value that only [`Secret::expose`] shows; [`Redactor`]
//! takes known values and known shapes out of text before it reaches the
//! ledger or a model. Nothing here stores, sends or logs anything. Start with
//! [`secret`]; the list of shapes is in [`shapes`].

#![forbid(unsafe_code)]

pub mod redactor;
pub mod secret;
pub mod shapes;

pub use redactor::{RedactError, Redacted, Redactor};
pub use secret::{ReadSecretError, Secret, SecretBytes, SecretString};
