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
    /// The part after the prefix is not what the kind has there.
    #[error("`{text}` is not a {kind} id: what follows the prefix is malformed")]
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

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": concat!("^", $prefix, "_[0-7][0-9A-HJKMNP-TV-Z]{25}$"),
                })
            }
        }
    )*};
}

typed_ids! {
    /// One app of an org.
    AppId = "app";
    /// A command parked by policy until a person answers.
    ApprovalId = "apr";
    /// What binds an instance to a node.
    AssignmentId = "asg";
    /// What binds a volume to a process type of an environment.
    AttachmentId = "vat";
    /// One start of an instance.
    BootId = "boot";
    /// One decision of the policy engine, before it has a `seq`.
    DecisionId = "dec";
    /// One roll-out of a release, a rollback or a restart.
    DeployId = "dep";
    /// One emptying of a node.
    DrainId = "drn";
    /// One token that lets one machine become a node.
    EnrollmentTokenId = "ent";
    /// One environment of an app.
    EnvId = "env";
    /// One command run in an instance for somebody.
    ExecSessionId = "exec";
    /// One grant given to a principal.
    GrantId = "grt";
    /// One running copy of a process type; stable over restarts.
    InstanceId = "inst";
    /// One public IPv4 address that an environment has.
    Ipv4Id = "ip4";
    /// One layer: what sandboxes wrote, before it is merged.
    LayerId = "lay";
    /// One ledger; named in its genesis record.
    LedgerId = "led";
    /// One person in an org.
    MemberId = "mem";
    /// One machine that runs instances.
    NodeId = "node";
    /// One tenant.
    OrgId = "org";
    /// One program with a credential of its own.
    PrincipalId = "sp";
    /// One label for grouping apps.
    ProjectId = "prj";
    /// One immutable pair of image and manifest.
    ReleaseId = "rel";
    /// One call from outside and all it causes.
    RequestId = "req";
    /// One restore of a volume's snapshot.
    RestoreId = "rst";
    /// One way from outside to a process type.
    RouteId = "rt";
    /// One isolated run.
    SandboxId = "sbx";
    /// The secrets of one environment.
    SecretBundleId = "sb";
    /// One immutable version of an environment's secrets.
    SecretVersionId = "sv";
    /// One agent session.
    SessionId = "ses";
    /// One kept state of a layer, to go back to.
    SnapshotId = "snp";
    /// One task of the scheduler.
    TaskId = "tsk";
    /// One short-lived proof of an earlier decision, or one credential.
    TokenId = "tok";
    /// One person, whatever orgs they are in.
    UserId = "usr";
    /// One disk that outlives the instance that mounts it.
    VolumeId = "vol";
    /// One backup of a volume.
    VolumeSnapshotId = "snap";
}

/// One key that data keys are wrapped with: `mk_` and eight hexadecimal digits
/// of its check value, so that a wrong key can't pass for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MasterKeyId(u32);

impl MasterKeyId {
    /// The text before the underscore.
    pub const PREFIX: &'static str = "mk";

    /// The id of the key with this check value.
    #[must_use]
    pub const fn of_check(check: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(check))
    }
}

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mk_{:08x}", self.0)
    }
}

impl fmt::Debug for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MasterKeyId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let kind = "MasterKeyId";
        let body = text
            .strip_prefix("mk_")
            .ok_or_else(|| ParseIdError::Prefix {
                text: shorten(text),
                kind,
                prefix: Self::PREFIX,
            })?;
        // Strict: one spelling per id, so ids can be compared as text.
        let bits = u32::from_str_radix(body, 16).ok().map(Self);
        bits.filter(|id| id.to_string() == text)
            .ok_or_else(|| ParseIdError::Body {
                text: shorten(text),
                kind,
            })
    }
}

impl TryFrom<String> for MasterKeyId {
    type Error = ParseIdError;

    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<MasterKeyId> for String {
    fn from(id: MasterKeyId) -> String {
        id.to_string()
    }
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
    fn a_master_key_has_its_check_value_in_its_name() {
        let id = MasterKeyId::of_check([0, 0xab, 1, 2]);
        assert_eq!(id.to_string(), "mk_00ab0102");
        assert_eq!("mk_00ab0102".parse(), Ok(id));
        for wrong in [
            "mk_",
            "mk_00AB0102",
            "mk_ab0102",
            "mk_+0ab0102",
            "sv_00ab0102",
        ] {
            assert!(wrong.parse::<MasterKeyId>().is_err(), "{wrong}");
        }
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
