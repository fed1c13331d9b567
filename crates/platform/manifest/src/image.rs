//! What a reference to an image may be: of a registry, a layout or an archive.
//!
//! Only its form; whether there is such an image is found out elsewhere.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use fluffy_base::Digest;

/// The longest reference, in bytes.
const LONGEST: usize = 512;

/// The registry that is meant where none is named.
const DOCKER_HUB: &str = "docker.io";

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// At a registry.
    Registry(ImageReference),
    /// In a folder of the OCI layout: `oci:PATH`.
    Layout(PathBuf),
    /// In a file as `docker save` writes it: `docker-archive:PATH`.
    Archive(PathBuf),
}

/// An image at a registry, with what a short form leaves out filled in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageReference {
    registry: String,
    repository: String,
    version: ImageVersion,
}

/// Which of the images of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageVersion {
    /// Whatever has the tag now.
    Tag(String),
    /// Exactly this one; a tag beside it says nothing more.
    Digest(Digest),
}

/// Why a text is no reference to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseImageError(&'static str);

impl ImageReference {
    /// The registry as people write it: a host, and its port if it has one.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository there, such as `library/nginx`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Which image of the repository.
    #[must_use]
    pub const fn version(&self) -> &ImageVersion {
        &self.version
    }
}

impl FromStr for ImageSource {
    type Err = ParseImageError;

    fn from_str(text: &str) -> Result<Self, ParseImageError> {
        if text.len() > LONGEST {
            return Err(ParseImageError("it is too long"));
        }
        type Local = fn(PathBuf) -> ImageSource;
        let local: [(&str, Local); 2] =
            [("oci:", Self::Layout), ("docker-archive:", Self::Archive)];
        for (scheme, source) in local {
            if let Some(path) = text.strip_prefix(scheme) {
                let plain = !path.is_empty() && !path.contains(char::is_control);
                return match plain {
                    true => Ok(source(path.into())),
                    false => Err(ParseImageError("a path must follow")),
                };
            }
        }
        text.parse().map(Self::Registry)
    }
}

impl FromStr for ImageReference {
    type Err = ParseImageError;

    fn from_str(text: &str) -> Result<Self, ParseImageError> {
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(read_digest(digest)?)),
            None => (text, None),
        };
        let (host, rest) = split_host(name);
        if host.is_some_and(|host| !is_host(host)) {
            return Err(ParseImageError("the registry is no host"));
        }
        let (path, tag) = match rest.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(ParseImageError("the tag is none"));
        }
        if !path.split('/').all(is_part) {
            return Err(ParseImageError("its path is none"));
        }
        let registry = match host.map(str::to_ascii_lowercase) {
            Some(host) if host != "index.docker.io" => host,
            Some(_) | None => DOCKER_HUB.to_owned(),
        };
        let repository = match registry == DOCKER_HUB && !path.contains('/') {
            true => format!("library/{path}"),
            false => path.to_owned(),
        };
        let version = match digest {
            Some(digest) => ImageVersion::Digest(digest),
            None => ImageVersion::Tag(tag.unwrap_or("latest").to_owned()),
        };
        let reference = Self {
            registry,
            repository,
            version,
        };
        // Both forms: what is left out when people write it counts as well.
        match text.len().max(reference.to_string().len()) > LONGEST {
            true => Err(ParseImageError("it is too long")),
            false => Ok(reference),
        }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (registry, repository) = (&self.registry, &self.repository);
        match &self.version {
            ImageVersion::Tag(tag) => write!(f, "{registry}/{repository}:{tag}"),
            ImageVersion::Digest(digest) => write!(f, "{registry}/{repository}@sha256:{digest}"),
        }
    }
}

fn read_digest(text: &str) -> Result<Digest, ParseImageError> {
    if text.starts_with("sha512:") {
        return Err(ParseImageError("sha512 is not supported, only sha256 is"));
    }
    let digest = text
        .strip_prefix("sha256:")
        .and_then(|hex| hex.parse().ok());
    digest.ok_or(ParseImageError(
        "a digest is `sha256:` and 64 hexadecimal digits",
    ))
}
/// The registry and the rest, as container tools tell them apart.
fn split_host(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            (Some(first), rest)
        }
        _ => (None, name),
    }
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().is_ok_and(|port| port > 0)),
        None => (host, true),
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    port && name.split('.').all(label)
}

fn is_tag(tag: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=128).contains(&tag.len()) && tag.chars().all(plain) && !tag.starts_with(['.', '-'])
}

fn is_part(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.starts_with(ends) && part.ends_with(ends) && part.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn what_a_short_form_leaves_out_is_filled_in() {
        for (text, whole) in [
            ("nginx", "docker.io/library/nginx:latest".to_owned()),
            ("nginx:1.27", "docker.io/library/nginx:1.27".to_owned()),
            (
                "docker.io/nginx",
                "docker.io/library/nginx:latest".to_owned(),
            ),
            ("index.docker.io/a/b", "docker.io/a/b:latest".to_owned()),
            ("a/b/c:v_1", "docker.io/a/b/c:v_1".to_owned()),
            ("localhost/x", "localhost/x:latest".to_owned()),
            ("GHCR.io/me/app:1", "ghcr.io/me/app:1".to_owned()),
            ("10.0.0.1:5000/x", "10.0.0.1:5000/x:latest".to_owned()),
            (
                &format!("ghcr.io/me/app:1@sha256:{HEX}"),
                format!("ghcr.io/me/app@sha256:{HEX}"),
            ),
        ] {
            let reference: ImageReference = text.parse().unwrap();
            assert_eq!(reference.to_string(), whole, "{text}");
            assert_eq!(whole.parse(), Ok(reference), "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_with_why() {
        for (text, why) in [
            ("", "its path is none"),
            ("Nginx", "its path is none"),
            ("a//b", "its path is none"),
            ("a/../b", "its path is none"),
            ("a b", "its path is none"),
            ("x?y", "its path is none"),
            ("-.example/x", "the registry is no host"),
            ("example.org:0/x", "the registry is no host"),
            (
                "user@example.org/x",
                "a digest is `sha256:` and 64 hexadecimal digits",
            ),
            ("x:", "the tag is none"),
            ("x:.a", "the tag is none"),
            (
                "x@sha256:12",
                "a digest is `sha256:` and 64 hexadecimal digits",
            ),
            ("x@sha512:12", "sha512 is not supported, only sha256 is"),
            ("oci:", "a path must follow"),
            ("docker-archive:a\nb", "a path must follow"),
            (&"a".repeat(513), "it is too long"),
            // Short enough only without `docker.io/` and `:latest`.
            (&format!("b/{}", "a".repeat(500)), "it is too long"),
        ] {
            let refused = text.parse::<ImageSource>().unwrap_err();
            assert_eq!(refused.to_string(), why, "{text}");
        }
        let local = "oci:/srv/image".parse();
        assert_eq!(local, Ok(ImageSource::Layout("/srv/image".into())));
        let local = "docker-archive:a.tar".parse();
        assert_eq!(local, Ok(ImageSource::Archive("a.tar".into())));
    }
}
