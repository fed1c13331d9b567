//! The file of credentials, in the form of `docker login`.
//!
//! `auths` has an entry for each registry, or for a part of one: the longest
//! that fits is used. An entry has `auth`, or `username` and `password`, or
//! `identitytoken`; ours may have a `realm` too, the host that gives out the
//! registry's tokens if it is another one. No helper program is ever run, and
//! what an entry says is never shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::{RegistriesError, known_name, read_own};
use crate::registry::{Credential, Proof};

/// A file of credentials that was read.
pub(super) struct File {
    path: PathBuf,
    content: Content,
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credsStore")]
    store: String,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: Text,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: Text,
    #[serde(default)]
    identitytoken: Text,
    #[serde(default)]
    realm: Option<String>,
}

/// A text that is wiped.
#[derive(Default)]
struct Text(Zeroizing<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self(Zeroizing::new(text)))
    }
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, RegistriesError> {
        let bytes = read_own(path, (0o077, "read"))?;
        // What is wrong is said by its place: the text may be a password.
        let content = serde_json::from_slice(&bytes).map_err(|error| RegistriesError::Form {
            path: path.to_owned(),
            kind: "file of credentials",
            why: format!("line {}, column {}", error.line(), error.column()),
        })?;
        Ok(Self {
            path: path.to_owned(),
            content,
        })
    }

    /// Whether every entry can be used.
    pub(super) fn check(&self) -> Result<(), RegistriesError> {
        for (name, entry) in &self.content.auths {
            let credential = self.credential(name, entry)?;
            if credential.is_none() && self.is_helped(name) {
                return Err(self.helper(name));
            }
        }
        match self.content.helpers.keys().next() {
            Some(host) => Err(self.helper(host)),
            None => Ok(()),
        }
    }

    /// Who we are to a repository of a registry; nobody in particular if
    /// nothing is said.
    pub(super) fn find(
        &self,
        registry: &str,
        repository: &str,
    ) -> Result<Option<Credential>, RegistriesError> {
        let fitting = self.content.auths.iter().filter_map(|(name, entry)| {
            let (host, part) = place(name);
            let inside = repository.strip_prefix(&part);
            let inside = inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            let fits = part.is_empty() || inside;
            (host == registry && fits).then_some((part.len(), name, entry))
        });
        let found = match fitting.max_by_key(|(length, ..)| *length) {
            Some((_, name, entry)) => self.credential(name, entry)?,
            None => None,
        };
        match found.is_none() && self.is_helped(registry) {
            true => Err(self.helper(registry)),
            false => Ok(found),
        }
    }

    /// Whether docker would ask a program about a registry: one that is named
    /// for it, or one for all, which leaves an entry without content.
    fn is_helped(&self, name: &str) -> bool {
        let (wanted, _) = place(name);
        let is_it = |name: &String| place(name).0 == wanted;
        let kept_elsewhere = !self.content.store.is_empty();
        self.content.helpers.keys().any(is_it)
            || kept_elsewhere && self.content.auths.keys().any(is_it)
    }

    fn helper(&self, host: &str) -> RegistriesError {
        RegistriesError::Helper {
            path: self.path.clone(),
            host: place(host).0,
        }
    }

    fn credential(&self, name: &str, entry: &Entry) -> Result<Option<Credential>, RegistriesError> {
        let wrong = |why| RegistriesError::Entry {
            path: self.path.clone(),
            host: name.to_owned(),
            why,
        };
        let realm = entry.realm.clone();
        let copy = |text: &str| text.to_owned().into();
        if !entry.identitytoken.0.is_empty() {
            let proof = Proof::Identity(copy(&entry.identitytoken.0));
            return Ok(Some(Credential { proof, realm }));
        }
        let proof = match (entry.auth.0.as_str(), entry.username.as_str()) {
            ("", "") => return Ok(None),
            ("", _) if entry.password.0.is_empty() => {
                return Err(wrong("there is a name and no password"));
            }
            ("", user) => Proof::Password {
                user: user.to_owned(),
                password: copy(&entry.password.0),
            },
            (auth, _) => {
                let pair = STANDARD.decode(auth.trim());
                let pair = Zeroizing::new(pair.map_err(|_| wrong("`auth` is not Base64"))?);
                let pair = std::str::from_utf8(&pair).map_err(|_| wrong("`auth` is not text"))?;
                let (user, password) = pair
                    .split_once(':')
                    .ok_or_else(|| wrong("`auth` is not USER:PASSWORD"))?;
                Proof::Password {
                    user: user.to_owned(),
                    password: copy(password.trim_end_matches('\0')),
                }
            }
        };
        Ok(Some(Credential { proof, realm }))
    }
}

/// The registry that an entry is for, and the part of it.
fn place(name: &str) -> (String, String) {
    let name = name.trim_start_matches("https://");
    let name = name.trim_start_matches("http://");
    let (host, part) = name.split_once('/').unwrap_or((name, ""));
    let part = match part.trim_matches('/') {
        // The paths of the protocols.
        "v1" | "v2" => "",
        part => part,
    };
    (known_name(host), part.to_owned())
}
