//! What an operator says about registries, and what that means for one image.
//!
//! [`Registries`] is what was said; [`Access`] is what follows for the registry
//! of one reference, with the credentials of that moment: files are read anew
//! each time, so that a rotated password needs no restart. A credential is in
//! memory only, and is wiped with the [`Access`] that holds it. Next: `auth`
//! for the file of credentials.

mod auth;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use fluffy_manifest::{ImageReference, ImageVersion};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

use crate::error::ResolveError;
use crate::registry::{Credential, Judge, Options, Registry};
use crate::survey::Resolved;

/// The most bytes of a file that an operator names.
const LARGEST_FILE: usize = 1 << 20;

/// What an operator says about registries.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    /// Those that are spoken to in the clear, at whatever address.
    pub insecure: BTreeSet<String>,
    /// Those that may be at an address that is not public; with TLS.
    pub internal: BTreeSet<String>,
    /// Hosts that have what registries have.
    pub mirrors: Vec<Mirror>,
    /// The file of credentials, as `docker login` writes it.
    pub credentials: Option<PathBuf>,
    /// Certificates (PEM) that are trusted beside the machine's own.
    pub authorities: Option<PathBuf>,
}

/// A host that has what a registry has; written `REGISTRY=URL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The registry, as references name it.
    pub of: String,
    /// Where it is: a host, and its port if it has one.
    pub host: String,
    /// How it is spoken to; an operator named it, so it may be anywhere.
    pub manner: Manner,
}

/// How a registry or a mirror is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// With TLS, at a public address; in the clear on this machine.
    #[default]
    Public,
    /// With TLS, at whatever address.
    Internal,
    /// In the clear, at whatever address.
    Clear,
}

/// A registry or a mirror, and who we are there.
#[derive(Debug, Default)]
pub struct Place {
    /// A host, and its port if it has one.
    pub host: String,
    /// How it is reached.
    pub manner: Manner,
    /// Who we are there.
    pub credential: Option<Credential>,
}

/// How the registry of one image is reached, as of now.
#[derive(Debug, Default)]
pub struct Access {
    /// The registry.
    pub registry: Place,
    /// Who has the same, and is asked for what a digest proves first.
    pub mirrors: Vec<Place>,
    /// Certificates (DER) that are trusted beside the machine's own.
    pub authorities: Vec<Vec<u8>>,
}

/// Why what an operator said cannot be used. Never says what is in a file.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    /// A file cannot be read.
    #[error("`{path}` cannot be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others than its owner may use a file.
    #[error("`{path}` has the mode {mode:04o} and the owner {owner}: others may {what} it")]
    Loose {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Whose it is.
        owner: u32,
        /// What others may do.
        what: &'static str,
    },
    /// A file is none of its kind.
    #[error("`{path}` is no {kind}: {why}")]
    Form {
        /// Which.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// What is said about a host cannot be used.
    #[error("the entry for `{host}` in `{path}` cannot be used: {why}")]
    Entry {
        /// Which file.
        path: PathBuf,
        /// Which entry.
        host: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The file leaves a credential to a program.
    #[error("`{path}` leaves the credential for `{host}` to a credential helper")]
    Helper {
        /// Which file.
        path: PathBuf,
        /// For whom.
        host: String,
    },
    /// A registry is to be spoken to in two ways.
    #[error("`{host}` cannot be both insecure and internal")]
    Both {
        /// Which.
        host: String,
    },
}

impl RegistriesError {
    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Read { .. } => {
                "name a file that is there and that belongs to the user of this process".to_owned()
            }
            Self::Loose { path, what, .. } => {
                let mode = if *what == "read" { "600" } else { "644" };
                let path = path.display();
                format!("make it that user's own: `chown $(id -u) {path} && chmod {mode} {path}`")
            }
            Self::Form { .. } => {
                "write it anew: credentials as `docker login` does, certificates as PEM".to_owned()
            }
            Self::Entry { host, .. } => format!(
                "write \"auths\": {{\"{host}\": {{\"auth\": BASE64}}}} with BASE64 of \
                 USER:PASSWORD, or have `docker login {host}` write it"
            ),
            Self::Helper { host, .. } => format!(
                "no helper is run: take `credsStore` and `credHelpers` out, and log in again \
                 with `docker --config DIR login {host}`"
            ),
            Self::Both { .. } => {
                "keep --internal-registry for TLS, or --insecure-registry for none".to_owned()
            }
        }
    }
}

/// Why a text names no mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write REGISTRY=URL, such as `docker.io=https://mirror.example.com`, with no path")]
pub struct ParseMirrorError;

impl FromStr for Mirror {
    type Err = ParseMirrorError;

    fn from_str(text: &str) -> Result<Self, ParseMirrorError> {
        let (of, url) = text.split_once('=').ok_or(ParseMirrorError)?;
        let (manner, host) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(host), _) => (Manner::Internal, host),
            (None, Some(host)) => (Manner::Clear, host),
            (None, None) => return Err(ParseMirrorError),
        };
        let (of, host) = (known_name(of), host.trim_end_matches('/'));
        // Both have to be hosts as references have them.
        let is_host = |host: &str| {
            let image: Result<ImageReference, _> = format!("{host}/a").parse();
            image.is_ok_and(|image| image.registry() == host)
        };
        match is_host(&of) && is_host(host) {
            true => Ok(Self {
                of,
                host: host.to_owned(),
                manner,
            }),
            false => Err(ParseMirrorError),
        }
    }
}

impl Registries {
    /// Looks at everything that was said, so that what is wrong is noticed
    /// before it is needed. Blocks.
    ///
    /// # Errors
    /// A file is missing, open to others or none of its kind.
    pub fn check(&self) -> Result<(), RegistriesError> {
        if let Some(host) = self.insecure.intersection(&self.internal).next() {
            let host = host.clone();
            return Err(RegistriesError::Both { host });
        }
        self.authorities()?;
        match &self.credentials {
            Some(path) => auth::File::read(path)?.check(),
            None => Ok(()),
        }
    }

    /// How the registry of an image is reached now. Blocks.
    ///
    /// # Errors
    /// A file can't be used any more: nothing is asked without the credential
    /// that may be in it.
    pub fn access(&self, reference: &ImageReference) -> Result<Access, RegistriesError> {
        let (registry, repository) = (reference.registry(), reference.repository());
        let known = self.credentials.as_deref();
        let known = known.map(auth::File::read).transpose()?;
        let place = |host: &str, manner| -> Result<Place, RegistriesError> {
            let credential = match &known {
                Some(file) => file.find(host, repository)?,
                None => None,
            };
            Ok(Place {
                host: host.to_owned(),
                manner,
                credential,
            })
        };
        let mirrors = self.mirrors.iter().filter(|mirror| mirror.of == registry);
        let mirrors = mirrors.map(|mirror| place(&mirror.host, mirror.manner));
        Ok(Access {
            mirrors: mirrors.collect::<Result<_, _>>()?,
            registry: place(registry, self.manner(registry))?,
            authorities: self.authorities()?,
        })
    }

    fn manner(&self, registry: &str) -> Manner {
        match (
            self.insecure.contains(registry),
            self.internal.contains(registry),
        ) {
            (true, _) => Manner::Clear,
            (false, true) => Manner::Internal,
            (false, false) => Manner::Public,
        }
    }

    fn authorities(&self) -> Result<Vec<Vec<u8>>, RegistriesError> {
        let Some(path) = &self.authorities else {
            return Ok(Vec::new());
        };
        let wrong = |why: &str| RegistriesError::Form {
            path: path.clone(),
            kind: "file of certificates",
            why: why.to_owned(),
        };
        let bytes = read_own(path, (0o022, "change"))?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let found = found.map_err(|_| wrong("it is not PEM"))?;
        match found.is_empty() {
            true => Err(wrong("it has no certificate")),
            false => Ok(found.iter().map(|it| it.to_vec()).collect()),
        }
    }
}

impl Access {
    /// Whether a credential is in it.
    #[must_use]
    pub fn has_credential(&self) -> bool {
        let mut places = self.mirrors.iter().chain([&self.registry]);
        places.any(|place| place.credential.is_some())
    }

    /// A client that reaches these, and otherwise is as `base` says.
    #[must_use]
    pub fn client(&self, base: &Options) -> Registry {
        Registry::new(self.options(base))
    }

    /// Finds what a reference stands for now: the registry is asked, and if it
    /// cannot answer, its mirrors, all within the deadline.
    ///
    /// # Errors
    /// It cannot be found, or no node could run it.
    pub async fn resolve(
        &self,
        base: &Options,
        reference: &ImageReference,
    ) -> Result<Resolved, ResolveError> {
        let mut options = self.options(base);
        let turns = u32::try_from(self.mirrors.len()).unwrap_or(u32::MAX);
        options.deadline /= turns.saturating_add(1);
        let registry = Registry::new(options);
        let credential = self.registry.credential.as_ref();
        let error = match registry.resolve(reference, credential).await {
            Err(error) if error.is_transient() => error,
            found => return found,
        };
        for mirror in &self.mirrors {
            let Some(there) = mirror.reference(reference) else {
                continue;
            };
            let found = registry.resolve(&there, mirror.credential.as_ref()).await;
            if found.is_ok() {
                return found;
            }
        }
        Err(error)
    }

    fn options(&self, base: &Options) -> Options {
        let mut options = base.clone();
        let mut listed = BTreeSet::new();
        for place in self.mirrors.iter().chain([&self.registry]) {
            let (names, port) = match place.manner {
                Manner::Public => continue,
                Manner::Internal => (&mut options.internal, ":443"),
                Manner::Clear => (&mut options.insecure, ":80"),
            };
            names.insert(place.host.clone());
            // As a judge hears of it.
            let host = place.host.strip_suffix(port).unwrap_or(&place.host);
            listed.insert(host.to_owned());
        }
        let before = Arc::clone(&options.judge);
        let judge: Judge = Arc::new(move |host, address| match listed.contains(host) {
            true => Ok(()),
            false => before(host, address),
        });
        options.judge = judge;
        let authorities = self.authorities.iter().cloned();
        // What is no certificate is trusted by nobody.
        options
            .roots
            .add_parsable_certificates(authorities.map(CertificateDer::from));
        options
    }
}

impl Place {
    /// The same image here.
    pub(crate) fn reference(&self, image: &ImageReference) -> Option<ImageReference> {
        let (host, repository) = (&self.host, image.repository());
        let version = match image.version() {
            ImageVersion::Tag(tag) => format!(":{tag}"),
            ImageVersion::Digest(digest) => format!("@sha256:{digest}"),
        };
        format!("{host}/{repository}{version}").parse().ok()
    }
}

/// A registry as references name it; that of Docker has more names.
fn known_name(host: &str) -> String {
    match host.to_ascii_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        host => host.to_owned(),
    }
}

/// Reads a file that is the user's own or root's, and whose mode lets nobody
/// else do what is forbidden. What is read is wiped.
fn read_own(
    path: &Path,
    (forbidden, what): (u32, &'static str),
) -> Result<Zeroizing<Vec<u8>>, RegistriesError> {
    let failed = |source| RegistriesError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    // Of the file that was opened: its name may be another's by now.
    let about = file.metadata().map_err(failed)?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    let (mode, owner) = (about.mode() & 0o7777, about.uid());
    if mode & forbidden != 0 || !owners.contains(&owner) {
        return Err(RegistriesError::Loose {
            path: path.to_owned(),
            mode,
            owner,
            what,
        });
    }
    // Taken at once: growing would leave copies behind.
    let mut bytes = Zeroizing::new(vec![0; LARGEST_FILE + 1]);
    let mut length = 0;
    while let Some(free) = bytes.get_mut(length..).filter(|free| !free.is_empty()) {
        match file.read(free) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if length > LARGEST_FILE {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    bytes.truncate(length);
    Ok(bytes)
}
