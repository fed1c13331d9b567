//! Why an image could not be found or fetched, for those who asked for it.
//!
//! Says what, never what another server wrote: whoever names a registry must
//! not be able to read answers of servers that only we can reach.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use fluffy_base::Digest;

use crate::local::ReadLocalError;
use crate::survey::SurveyError;

/// Why a reference does not lead to an image that could run.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// It could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// What was fetched cannot be used.
    #[error(transparent)]
    Survey(#[from] SurveyError),
    /// It is not in the file that was named.
    #[error(transparent)]
    Local(#[from] ReadLocalError),
}

impl ResolveError {
    /// The code of the problem that it is in the platform's interface.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Survey(SurveyError::TooLarge { .. }) => "image_too_large",
            Self::Survey(SurveyError::Platform { .. }) => "arch_unavailable",
            Self::Fetch(FetchError::Denied { .. } | FetchError::Realm { .. }) => {
                "image_auth_failed"
            }
            Self::Survey(_) | Self::Fetch(_) | Self::Local(_) => "image_unresolvable",
        }
    }

    /// Whether the same may work later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Fetch(error) => error.is_transient(),
            Self::Survey(_) | Self::Local(_) => false,
        }
    }

    /// How long the registry wants us to wait.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Fetch(FetchError::Busy { retry_after, .. }) => *retry_after,
            Self::Fetch(_) | Self::Survey(_) | Self::Local(_) => None,
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn fix(&self) -> &'static str {
        match self {
            Self::Fetch(error) => error.fix(),
            Self::Survey(SurveyError::TooLarge { .. }) => {
                "make the image smaller, or ask the operator to raise the limit"
            }
            Self::Survey(SurveyError::Platform { .. }) => {
                "build the image for linux/amd64, linux/arm64 or both"
            }
            Self::Survey(_) => "push the image again with a current version of its builder",
            Self::Local(ReadLocalError::Several { .. }) => {
                "write a layout or an archive with one image in it"
            }
            Self::Local(_) => "name a folder of the OCI layout, or what `docker save` wrote",
        }
    }
}

/// Why something could not be fetched from a registry.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody may connect there from here.
    #[error("`{host}` is at {address}, which is not connected to: {why}")]
    Address {
        /// The host, with its port.
        host: String,
        /// Its address.
        address: IpAddr,
        /// Why not.
        why: String,
    },
    /// Its name has no address.
    #[error("the name `{host}` has no address")]
    Name {
        /// The host, with its port.
        host: String,
        /// Why not.
        #[source]
        source: Option<io::Error>,
    },
    /// It does not answer.
    #[error("`{host}` cannot be connected to")]
    Connect {
        /// The host, with its port.
        host: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is not who it should be.
    #[error("there is no trusted TLS connection with `{host}`")]
    Tls {
        /// The host, with its port.
        host: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or what came over it is not HTTP.
    #[error("the connection with `{host}` broke")]
    Http {
        /// The host, with its port.
        host: String,
        /// Why.
        #[source]
        source: hyper::Error,
    },
    /// It said nothing for too long.
    #[error("`{host}` took longer than {} s", after.as_secs())]
    Deadline {
        /// The host, with its port.
        host: String,
        /// How long it had.
        after: Duration,
    },
    /// It has no such thing.
    #[error("the registry `{host}` has no `{what}`")]
    NotFound {
        /// The host, with its port.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// It does not give it to us.
    #[error("`{host}` does not give `{what}` to us: status {status}")]
    Denied {
        /// The host, with its port.
        host: String,
        /// What was asked for.
        what: String,
        /// Its status.
        status: u16,
    },
    /// It trusts somebody with our credential whom nobody told us to trust.
    #[error("`{host}` wants a token of `{realm}`, which is not to learn the credential for it")]
    Realm {
        /// The registry, with its port.
        host: String,
        /// Who gives out its tokens.
        realm: String,
    },
    /// It cannot answer now.
    #[error("`{host}` cannot answer now: status {status}")]
    Busy {
        /// The host, with its port.
        host: String,
        /// Its status.
        status: u16,
        /// How long it wants us to wait.
        retry_after: Option<Duration>,
    },
    /// It answers as no registry does.
    #[error("`{host}` does not answer as a registry does: {why}")]
    Answer {
        /// The host, with its port.
        host: String,
        /// What is wrong.
        why: &'static str,
    },
    /// What came is not what was asked for.
    #[error("`sha256:{digest}` came with another {what}")]
    Content {
        /// What was asked for.
        digest: Digest,
        /// What does not fit: its size or its digest.
        what: &'static str,
    },
}

/// What to do about a registry that does not give us an image.
pub(crate) const DENIED: &str = "check that repository and tag exist; for a private one have the \
     operator put a credential for the registry, as `docker login` writes it, into a file that \
     only its owner can read, and start the platform with `--registry-auth FILE`";

impl FetchError {
    /// Whether the same may work later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Http { .. }
            | Self::Deadline { .. }
            | Self::Busy { .. }
            | Self::Name { .. } => true,
            Self::Address { .. }
            | Self::Tls { .. }
            | Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Realm { .. }
            | Self::Answer { .. }
            | Self::Content { .. } => false,
        }
    }

    pub(crate) const fn fix(&self) -> &'static str {
        match self {
            Self::Address { .. } => {
                "use a registry with a public address, or have the operator list this one: \
                 `--internal-registry HOST` with TLS, `--insecure-registry HOST` without"
            }
            Self::Name { .. } | Self::Connect { .. } => {
                "check the registry in the reference, or try again later"
            }
            Self::Tls { .. } => {
                "give the registry a certificate that this machine trusts, or have the operator \
                 name who signed it: `--registry-ca FILE`"
            }
            Self::Http { .. } | Self::Deadline { .. } | Self::Busy { .. } => "try again later",
            Self::NotFound { .. } => "check repository and tag, or push the image first",
            Self::Denied { .. } => DENIED,
            Self::Realm { .. } => {
                "if that is who should give out its tokens, have the operator add \"realm\": HOST \
                 to the registry's entry in the file of `--registry-auth`"
            }
            Self::Answer { .. } | Self::Content { .. } => {
                "check that the reference names a registry, and push the image again"
            }
        }
    }
}
