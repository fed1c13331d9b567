//! The registry of typed ids: `prefix_` + ULID, never reused.
//!
//! Every entity has its own type, so that a sandbox id can never be passed
//! where a session id is meant. Add new kinds in alphabetical order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseIdError {
    /// The text does not start with the kind's prefix.
    #[error("`{text}` is not a {kind} id: it must start with `{prefix}_`")]
    Prefix {
        /// What was given.
        text: String,
        /// The kind that was wanted.
        kind: &'static str,
        /// Its prefix.
        prefix: &'static str,
    },
    /// The part after the prefix is not a ULID.
    #[error("`{text}` is not a {kind} id: 26 characters of base 32 must follow the prefix")]
    Body {
        /// What was given.
        text: String,
        /// The kind that was wanted.
        kind: &'static str,
    },
}

macro_rules! typed_ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Ulid);

        impl $name {
            /// The text before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// A fresh id from the system's clock and randomness.
            #[must_use]
            pub fn generate() -> Self {
                let millis = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
                Self(random_ulid(millis))
            }

            /// The id made of exactly these bits, for tests and recordings.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(Ulid(bits))
            }

            /// The id as bits, which say the same as its text.
            #[must_use]
            pub const fn to_bits(self) -> u128 {
                self.0.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let body = text.strip_prefix(concat!($prefix, "_")).ok_or_else(|| {
                    ParseIdError::Prefix {
                        text: shorten(text),
                        kind: stringify!($name),
                        prefix: $prefix,
                    }
                })?;
                // Strict: one spelling per id, so ids can be compared as text.
                Ulid::from_string(body)
                    .ok()
                    .filter(|ulid| ulid.to_string() == body)
                    .map(Self)
                    .ok_or_else(|| ParseIdError::Body {
                        text: shorten(text),
                        kind: stringify!($name),
                    })
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;

            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    )*};
}

typed_ids! {
    /// A command parked by policy until a person answers.
    ApprovalId = "apr";
    /// One decision of the policy engine, before it has a `seq`.
    DecisionId = "dec";
    /// One layer: what sandboxes wrote, before it is merged.
    LayerId = "lay";
    /// One ledger; named in its genesis record.
    LedgerId = "led";
    /// One call from outside and all it causes.
    RequestId = "req";
    /// One isolated run.
    SandboxId = "sbx";
    /// One agent session.
    SessionId = "ses";
    /// One kept state of a layer, to go back to.
    SnapshotId = "snp";
    /// One task of the scheduler.
    TaskId = "tsk";
    /// One short-lived proof of an earlier decision.
    TokenId = "tok";
}

fn random_ulid(millis: u64) -> Ulid {
    let mut bytes = [0u8; 16];
    // Without randomness no id is safe to hand out; the operating system
    // guarantees it after boot, so this cannot fail in a running program.
    if getrandom::fill(&mut bytes).is_err() {
        std::process::abort();
    }
    Ulid::from_parts(millis, u128::from_be_bytes(bytes))
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_json() {
        let id = SandboxId::generate();
        assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<SandboxId>(&json).unwrap(), id);
    }

    #[test]
    fn another_kind_is_refused_by_name() {
        let session = SessionId::from_bits(7).to_string();
        let error = session.parse::<SandboxId>().unwrap_err();
        assert!(
            error.to_string().contains("must start with `sbx_`"),
            "{error}"
        );
    }

    #[test]
    fn each_id_has_one_spelling() {
        let lower = SessionId::from_bits(u128::MAX >> 8)
            .to_string()
            .to_lowercase();
        assert!(lower.parse::<SessionId>().is_err());
        assert!("ses_".parse::<SessionId>().is_err());
        assert!("ses_01".parse::<SessionId>().is_err());
    }
}
