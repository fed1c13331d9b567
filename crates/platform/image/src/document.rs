//! The documents of an image: index, manifest and config, read strictly.
//!
//! Bytes in, values out; both of OCI and of Docker. What a document says
//! about others is checked by whoever fetches them (`survey`). Never follows
//! the `urls` of a layer, and takes no media type that it does not know.

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

/// The largest index or manifest.
pub const LARGEST_DOCUMENT: u64 = 4 << 20;

/// The largest config.
pub const LARGEST_CONFIG: u64 = 8 << 20;

/// The most entries of an index, and the most layers that are read at all.
const MOST_ENTRIES: usize = 1_024;

/// The media types of indexes.
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// The media types of manifests.
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// The media types of configs.
const CONFIGS: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];

/// What to ask a registry for, as an `Accept` header.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// What a tag or a digest leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// One image for each of several platforms.
    Index(Index),
    /// One image.
    Manifest(Manifest),
}

/// Images by platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its entries, in order.
    pub manifests: Vec<Descriptor>,
}

/// One image: its config and its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The config.
    pub config: Descriptor,
    /// The layers, the lowest first.
    pub layers: Vec<Layer>,
}

/// What a document says about another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// What it runs on, in an index.
    pub platform: Option<Platform>,
}

/// What an image runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Such as `linux`.
    pub os: String,
    /// Such as `amd64`.
    pub architecture: String,
    /// Such as `v8`.
    #[serde(default)]
    pub variant: Option<String>,
}

/// One layer: a tar archive, perhaps compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Its digest as it is stored.
    pub digest: Digest,
    /// Its size as it is stored.
    pub size: u64,
    /// How it is compressed.
    pub compression: Compression,
}

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Not at all.
    None,
    /// As gzip.
    Gzip,
    /// As Zstandard.
    Zstd,
}

/// What a config says about its image, as far as it is needed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What it runs on.
    pub platform: Platform,
    /// The digests of the layers as unpacked, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// How an image says that it runs, where nobody says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Variables, each `NAME=value`.
    pub env: Vec<String>,
    /// What runs.
    pub entrypoint: Vec<String>,
    /// Its arguments, or what runs if there is no entrypoint.
    pub cmd: Vec<String>,
    /// As whom, such as `1000:1000` or `app`; empty for root.
    pub user: String,
    /// Where; empty for the root folder.
    pub workdir: String,
    /// What asks it to end, such as `SIGTERM`; empty for that.
    pub stop_signal: String,
}

impl ImageConfig {
    /// Reads it from an image's config.
    ///
    /// # Errors
    /// It is none.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadDocumentError> {
        let raw: RawRunnable =
            serde_json::from_slice(bytes).map_err(|_| ReadDocumentError::Form)?;
        let raw = raw.config.unwrap_or_default();
        Ok(Self {
            env: raw.env.unwrap_or_default(),
            entrypoint: raw.entrypoint.unwrap_or_default(),
            cmd: raw.cmd.unwrap_or_default(),
            user: raw.user.unwrap_or_default(),
            workdir: raw.working_dir.unwrap_or_default(),
            stop_signal: raw.stop_signal.unwrap_or_default(),
        })
    }
}

/// Why bytes are no document of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadDocumentError {
    /// It cannot be read.
    #[error("it is no JSON of the expected form")]
    Form,
    /// What it is, is not supported.
    #[error("its media type `{media_type}` is not supported")]
    MediaType {
        /// Its media type, or that of a part.
        media_type: String,
    },
    /// It was announced as something else.
    #[error("it says that it is `{own}` and was announced as `{announced}`")]
    Announced {
        /// What it says itself.
        own: String,
        /// What was said about it.
        announced: String,
    },
    /// It has the parts of an index and of a manifest.
    #[error("it is an index and a manifest at once, or neither")]
    Ambiguous,
    /// A digest in it is none that is supported.
    #[error("its digest `{digest}` is not `sha256:` and 64 hexadecimal digits")]
    Digest {
        /// The digest.
        digest: String,
    },
    /// It has too many parts.
    #[error("it has more than {MOST_ENTRIES} parts")]
    TooMany,
}

impl Document {
    /// Reads a manifest whose digest is known already, as what it says it is.
    ///
    /// # Errors
    /// It is none, or nothing that is supported.
    pub fn read_manifest(bytes: &[u8]) -> Result<Manifest, ReadDocumentError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Named {
            #[serde(default)]
            media_type: Option<String>,
        }
        let named: Named = serde_json::from_slice(bytes).map_err(|_| ReadDocumentError::Form)?;
        // Only OCI's own may leave it out.
        let [oci, _] = MANIFESTS;
        let media_type = named.media_type.unwrap_or_else(|| oci.to_owned());
        match Self::read(&media_type, bytes)? {
            Self::Manifest(manifest) if manifest.is_image() => Ok(manifest),
            Self::Manifest(manifest) => Err(unsupported(&manifest.config.media_type)),
            Self::Index(_) => Err(unsupported(&media_type)),
        }
    }

    /// Reads what was announced as `media_type`.
    ///
    /// # Errors
    /// It is something else, or nothing that is supported.
    pub fn read(media_type: &str, bytes: &[u8]) -> Result<Self, ReadDocumentError> {
        // What comes behind a semicolon is about the encoding of text.
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        let is_index = INDEXES.contains(&media_type);
        if !is_index && !MANIFESTS.contains(&media_type) {
            return Err(unsupported(media_type));
        }
        let raw: RawDocument =
            serde_json::from_slice(bytes).map_err(|_| ReadDocumentError::Form)?;
        if raw.schema_version != 2 {
            return Err(ReadDocumentError::Form);
        }
        match raw.media_type {
            Some(own) if own != media_type => {
                return Err(ReadDocumentError::Announced {
                    own: shorten(&own),
                    announced: media_type.to_owned(),
                });
            }
            Some(_) | None => {}
        }
        match (is_index, raw.manifests, raw.config, raw.layers) {
            (true, Some(manifests), None, None) => Ok(Self::Index(Index {
                manifests: all(manifests)?,
            })),
            (false, None, Some(config), Some(layers)) => {
                let layers = all(layers)?;
                Ok(Self::Manifest(Manifest {
                    config: config.read()?,
                    layers: layers.into_iter().map(layer).collect::<Result<_, _>>()?,
                }))
            }
            _ => Err(ReadDocumentError::Ambiguous),
        }
    }
}

impl Manifest {
    /// The bytes that have to be fetched for it: config and layers.
    #[must_use]
    pub fn compressed_bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.size);
        layers.fold(self.config.size, u64::saturating_add)
    }

    /// Whether it is an image: other things have manifests, too.
    #[must_use]
    pub fn is_image(&self) -> bool {
        CONFIGS.contains(&self.config.media_type.as_str())
    }
}

impl Descriptor {
    /// Whether it leads to another index.
    #[must_use]
    pub fn is_index(&self) -> bool {
        INDEXES.contains(&self.media_type.as_str())
    }
}

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// It is none, or its digests are not supported.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadDocumentError> {
        let raw: RawConfig = serde_json::from_slice(bytes).map_err(|_| ReadDocumentError::Form)?;
        if raw.rootfs.kind != "layers" {
            return Err(ReadDocumentError::Form);
        }
        let digests = raw.rootfs.diff_ids.iter().map(|text| read_digest(text));
        Ok(Self {
            diff_ids: digests.collect::<Result<_, _>>()?,
            platform: Platform {
                os: raw.os,
                architecture: raw.architecture,
                variant: raw.variant,
            },
        })
    }
}

/// Both kinds at once: a document that is both must not be taken for either.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<Vec<RawDescriptor>>,
    #[serde(default)]
    config: Option<RawDescriptor>,
    #[serde(default)]
    layers: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct RawConfig {
    os: String,
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
    rootfs: RawRoot,
}

#[derive(Deserialize)]
struct RawRunnable {
    #[serde(default)]
    config: Option<RawRun>,
}

/// Builders write `null` for what there is none of.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawRun {
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    working_dir: Option<String>,
    #[serde(default)]
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RawRoot {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl RawDescriptor {
    fn read(self) -> Result<Descriptor, ReadDocumentError> {
        Ok(Descriptor {
            digest: read_digest(&self.digest)?,
            media_type: self.media_type,
            size: self.size,
            platform: self.platform,
        })
    }
}

fn all(raw: Vec<RawDescriptor>) -> Result<Vec<Descriptor>, ReadDocumentError> {
    if raw.len() > MOST_ENTRIES {
        return Err(ReadDocumentError::TooMany);
    }
    raw.into_iter().map(RawDescriptor::read).collect()
}

/// Layers that must not be distributed are layers, too; from where else they
/// could be had is not looked at.
fn layer(descriptor: Descriptor) -> Result<Layer, ReadDocumentError> {
    let media_type = descriptor.media_type.as_str();
    let suffix = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ]
    .iter()
    .find_map(|prefix| media_type.strip_prefix(prefix));
    let compression = match suffix {
        Some("") => Compression::None,
        Some("+gzip" | ".gzip") => Compression::Gzip,
        Some("+zstd" | ".zstd") => Compression::Zstd,
        Some(_) | None => return Err(unsupported(media_type)),
    };
    Ok(Layer {
        digest: descriptor.digest,
        size: descriptor.size,
        compression,
    })
}

fn read_digest(text: &str) -> Result<Digest, ReadDocumentError> {
    let digest = text
        .strip_prefix("sha256:")
        .and_then(|hex| hex.parse().ok());
    digest.ok_or_else(|| ReadDocumentError::Digest {
        digest: shorten(text),
    })
}

fn unsupported(media_type: &str) -> ReadDocumentError {
    ReadDocumentError::MediaType {
        media_type: shorten(media_type),
    }
}

/// Others' text, short enough and plain enough to be shown.
fn shorten(text: &str) -> String {
    let plain = text.chars().filter(|c| c.is_ascii_graphic());
    plain.take(100).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn descriptor(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": DIGEST, "size": 7})
    }

    fn manifest(layer: &str) -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": MANIFESTS[0],
            "config": descriptor(CONFIGS[0]),
            "layers": [descriptor(layer)],
        })
    }

    fn read(media_type: &str, document: &Value) -> Result<Document, ReadDocumentError> {
        Document::read(media_type, document.to_string().as_bytes())
    }

    #[test]
    fn each_kind_of_layer_is_known_and_no_other() {
        use Compression::{Gzip, None, Zstd};
        for (media_type, expected) in [
            ("application/vnd.oci.image.layer.v1.tar", Some(None)),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Some(Zstd)),
            (
                "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
                Some(Gzip),
            ),
            (
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
                Some(Gzip),
            ),
            (
                "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
                Some(Gzip),
            ),
            (
                "application/vnd.oci.image.layer.v1.tar+encrypted",
                Option::None,
            ),
            ("application/vnd.in-toto+json", Option::None),
        ] {
            let found = match read(MANIFESTS[0], &manifest(media_type)) {
                Ok(Document::Manifest(manifest)) => Some(manifest.layers[0].compression),
                Ok(Document::Index(_)) => unreachable!("it is a manifest"),
                Err(error) => {
                    let media_type = media_type.to_owned();
                    assert_eq!(error, ReadDocumentError::MediaType { media_type });
                    Option::None
                }
            };
            assert_eq!(found, expected, "{media_type}");
        }
    }

    #[test]
    fn a_document_is_what_it_was_announced_as() {
        let plain = manifest("application/vnd.oci.image.layer.v1.tar");
        assert!(read(&format!("{}; charset=utf-8", MANIFESTS[0]), &plain).is_ok());
        assert!(matches!(
            read(MANIFESTS[1], &plain),
            Err(ReadDocumentError::Announced { .. })
        ));
        let mut silent = plain.clone();
        silent.as_object_mut().unwrap().remove("mediaType");
        assert!(read(MANIFESTS[1], &silent).is_ok());
        // An index for one reader and a manifest for another: CVE-2021-41190.
        silent["manifests"] = json!([]);
        for media_type in MANIFESTS.into_iter().chain(INDEXES) {
            let both = read(media_type, &silent);
            assert_eq!(both, Err(ReadDocumentError::Ambiguous), "{media_type}");
        }
        assert!(matches!(
            read(
                "application/vnd.docker.distribution.manifest.v1+prettyjws",
                &plain
            ),
            Err(ReadDocumentError::MediaType { .. })
        ));
        let twice = plain.to_string().replacen('{', r#"{"layers":[],"#, 1);
        let twice = Document::read(MANIFESTS[0], twice.as_bytes());
        assert_eq!(twice, Err(ReadDocumentError::Form));
    }

    #[test]
    fn digests_are_sha256_and_parts_are_counted() {
        let mut strange = manifest("application/vnd.oci.image.layer.v1.tar");
        strange["config"]["digest"] = json!("sha512:00");
        let digest = "sha512:00".to_owned();
        assert_eq!(
            read(MANIFESTS[0], &strange),
            Err(ReadDocumentError::Digest { digest })
        );
        let many = |count| {
            let entries = vec![descriptor(MANIFESTS[0]); count];
            read(
                INDEXES[1],
                &json!({"schemaVersion": 2, "manifests": entries}),
            )
        };
        assert!(many(MOST_ENTRIES).is_ok());
        assert_eq!(many(MOST_ENTRIES + 1), Err(ReadDocumentError::TooMany));
    }

    #[test]
    fn sizes_cannot_overflow() {
        let mut huge = manifest("application/vnd.oci.image.layer.v1.tar");
        huge["layers"][0]["size"] = json!(u64::MAX);
        let Ok(Document::Manifest(huge)) = read(MANIFESTS[0], &huge) else {
            unreachable!("it is a manifest");
        };
        assert_eq!(huge.compressed_bytes(), u64::MAX);
        let negative = manifest("application/vnd.oci.image.layer.v1.tar");
        let negative = negative.to_string().replace(":7", ":-7");
        let negative = Document::read(MANIFESTS[0], negative.as_bytes());
        assert_eq!(negative, Err(ReadDocumentError::Form));
    }
}
