//! Images in files of this machine: OCI layouts, and what `docker save` wrote.
//!
//! Reads only below the folder or inside the archive, and follows no link:
//! names in an image are digests, or plain names in a list. Only whoever may
//! read the file anyway asks for this. Next: `local/files`.

mod files;

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fluffy_base::{Digest, canonical};
use serde::Deserialize;
use serde_json::json;

use crate::document::{Config, Descriptor, Document, LARGEST_CONFIG, LARGEST_DOCUMENT};
use crate::error::ResolveError;
use crate::survey::{Limits, Resolved, Survey, Wanted, check};

use files::{Files, is_compressed};

/// The media types of what is made of an old archive, and of an index.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Why an image of this machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadLocalError {
    /// It cannot be read.
    #[error("`{path}` cannot be read")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is something else.
    #[error("`{path}` is no image that can be read: {why}")]
    Form {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// Something is missing.
    #[error("`{path}` has no `{name}`")]
    Missing {
        /// The layout or archive.
        path: PathBuf,
        /// What it should have.
        name: String,
    },
    /// Something is larger than it may be.
    #[error("`{name}` in `{path}` is larger than {most} bytes")]
    TooLarge {
        /// The layout or archive.
        path: PathBuf,
        /// What is.
        name: String,
        /// How large it may be.
        most: u64,
    },
    /// It holds more than one image, and nothing says which is meant.
    #[error("`{path}` holds {count} images")]
    Several {
        /// The layout or archive.
        path: PathBuf,
        /// How many.
        count: usize,
    },
}

/// An image that was found, and where its parts are.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) resolved: Resolved,
    files: Files,
    /// What is made here of an old archive: its manifest, and the names of
    /// files by digest.
    made: Option<Made>,
}

#[derive(Debug)]
struct Made {
    manifest: Vec<u8>,
    names: HashMap<Digest, String>,
}

/// A part of an image: a document or a layer.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Where it is; empty for what is made here.
    pub(crate) name: String,
}

/// Finds what the image in a folder of the OCI layout is made of.
///
/// # Errors
/// There is none, or no node could run it.
pub fn resolve_layout(path: &Path, limits: Limits) -> Result<Resolved, ResolveError> {
    Ok(find_layout(path, limits)?.resolved)
}

/// Finds what the image in a file of `docker save` is made of.
///
/// # Errors
/// There is none, or no node could run it.
pub fn resolve_archive(path: &Path, limits: Limits) -> Result<Resolved, ResolveError> {
    Ok(find_archive(path, limits)?.resolved)
}

pub(crate) fn find_layout(path: &Path, limits: Limits) -> Result<Found, ResolveError> {
    let files = Files::folder(path)?;
    Ok(Found {
        resolved: layout(&files, limits)?,
        files,
        made: None,
    })
}

pub(crate) fn find_archive(path: &Path, limits: Limits) -> Result<Found, ResolveError> {
    let files = Files::archive(path)?;
    let (resolved, made) = match files.size("oci-layout")? {
        Some(_) => (layout(&files, limits)?, None),
        // As it was before Docker 25, and as skopeo writes it.
        None => {
            let (resolved, made) = listed(&files, limits)?;
            (resolved, Some(made))
        }
    };
    Ok(Found {
        resolved,
        files,
        made,
    })
}

impl Found {
    /// Everything that a node needs to run it, each once.
    pub(crate) fn parts(&self) -> Result<Vec<Part>, ResolveError> {
        let mut parts = Vec::new();
        for platform in &self.resolved.platforms {
            let manifest = match &self.made {
                Some(made) => made.manifest.clone(),
                None => self
                    .files
                    .read(&blob_name(&platform.digest), LARGEST_DOCUMENT)?,
            };
            let read = Document::read_manifest(&manifest);
            let read = read.map_err(|_| self.files.form("its manifest cannot be read"))?;
            let size = u64::try_from(manifest.len()).unwrap_or(u64::MAX);
            parts.push(self.part(platform.digest, size));
            parts.push(self.part(read.config.digest, read.config.size));
            let layers = platform.layers.iter();
            parts.extend(layers.map(|layer| self.part(layer.digest, layer.size)));
        }
        let mut seen = HashSet::new();
        parts.retain(|part| seen.insert(part.digest));
        Ok(parts)
    }

    /// The bytes of a part.
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn Read + '_>, ResolveError> {
        match (&self.made, name) {
            (Some(made), "") => Ok(Box::new(io::Cursor::new(&made.manifest))),
            (_, name) => Ok(self.files.stream(name)?),
        }
    }

    fn part(&self, digest: Digest, size: u64) -> Part {
        let name = match &self.made {
            Some(made) => made.names.get(&digest).cloned().unwrap_or_default(),
            None => blob_name(&digest),
        };
        Part { digest, size, name }
    }
}

fn layout(files: &Files, limits: Limits) -> Result<Resolved, ResolveError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        image_layout_version: String,
    }
    let version = files.read("oci-layout", LARGEST_DOCUMENT)?;
    let version: Option<Version> = serde_json::from_slice(&version).ok();
    if version.is_none_or(|version| version.image_layout_version != "1.0.0") {
        return Err(files
            .form("its `oci-layout` names no version that is known")
            .into());
    }
    let index = files.read("index.json", LARGEST_DOCUMENT)?;
    let Ok(Document::Index(entries)) = Document::read(INDEX, &index) else {
        return Err(files.form("its `index.json` is no index").into());
    };
    match entries.manifests.as_slice() {
        [only] => {
            let bytes = read_blob(files, only, LARGEST_DOCUMENT)?;
            check(only, &bytes)?;
            walk(files, Survey::begin(&only.media_type, &bytes, limits)?)
        }
        // Together they are one image only if each is for other machines.
        several if are_platforms(several) => walk(files, Survey::begin(INDEX, &index, limits)?),
        several => Err(ReadLocalError::Several {
            path: files.path().to_owned(),
            count: several.len(),
        }
        .into()),
    }
}

fn are_platforms(entries: &[Descriptor]) -> bool {
    entries.iter().enumerate().all(|(place, entry)| {
        let before = entries.iter().take(place);
        entry.platform.is_some() && before.into_iter().all(|it| it.platform != entry.platform)
    }) && !entries.is_empty()
}

fn walk(files: &Files, mut survey: Survey) -> Result<Resolved, ResolveError> {
    while let Some(wanted) = survey.wanted() {
        let bytes = match wanted {
            Wanted::Document(descriptor) => read_blob(files, descriptor, LARGEST_DOCUMENT)?,
            Wanted::Config(descriptor) => read_blob(files, descriptor, LARGEST_CONFIG)?,
        };
        survey.take(&bytes)?;
    }
    let resolved = survey.finish()?;
    // Their content is checked when they are read: that takes longer than
    // finding an image may.
    for layer in resolved.platforms.iter().flat_map(|it| &it.layers) {
        let name = blob_name(&layer.digest);
        match files.size(&name)? {
            Some(size) if size == layer.size => {}
            Some(_) => return Err(files.form("a layer has another size than it should").into()),
            None => return Err(files.missing(&name).into()),
        }
    }
    Ok(resolved)
}

fn read_blob(files: &Files, descriptor: &Descriptor, most: u64) -> Result<Vec<u8>, ReadLocalError> {
    files.read(&blob_name(&descriptor.digest), most)
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{digest}")
}

/// An old archive: a list of files, of which a manifest is made here.
fn listed(files: &Files, limits: Limits) -> Result<(Resolved, Made), ResolveError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Listed {
        config: String,
        layers: Vec<String>,
    }
    let list = files.read("manifest.json", LARGEST_DOCUMENT)?;
    let list: Vec<Listed> = serde_json::from_slice(&list)
        .map_err(|_| files.form("its `manifest.json` is no list of images"))?;
    let [image] = list.as_slice() else {
        let (path, count) = (files.path().to_owned(), list.len());
        return Err(ReadLocalError::Several { path, count }.into());
    };
    let bytes = files.read(&image.config, LARGEST_CONFIG)?;
    let config = Config::read(&bytes).map_err(|_| files.form("its config cannot be read"))?;
    if config.diff_ids.len() != image.layers.len() {
        return Err(files.form("its config has another number of layers").into());
    }
    let mut sizes: HashMap<Digest, u64> = HashMap::new();
    let mut names = HashMap::from([(Digest::of(&bytes), image.config.clone())]);
    let mut layers = Vec::new();
    for (digest, name) in config.diff_ids.iter().zip(&image.layers) {
        // One that is there twice may be a link the second time.
        let size = match sizes.get(digest) {
            Some(size) => *size,
            None => layer_size(files, name)?,
        };
        sizes.insert(*digest, size);
        names.entry(*digest).or_insert_with(|| name.clone());
        let digest = format!("sha256:{digest}");
        layers.push(json!({"mediaType": LAYER, "digest": digest, "size": size}));
    }
    let digest = format!("sha256:{}", Digest::of(&bytes));
    let config = json!({"mediaType": CONFIG, "digest": digest, "size": bytes.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers,
    });
    let manifest =
        canonical::to_string(&manifest).map_err(|_| files.form("its layers have no size"))?;
    let mut survey = Survey::begin(MANIFEST, manifest.as_bytes(), limits)?;
    survey.take(&bytes)?;
    let made = Made {
        manifest: manifest.into_bytes(),
        names,
    };
    Ok((survey.finish()?, made))
}

/// The size of a layer as the config means it: not compressed.
fn layer_size(files: &Files, name: &str) -> Result<u64, ReadLocalError> {
    let size = files.size(name)?.ok_or_else(|| files.missing(name))?;
    match is_compressed(&files.begins(name)?) {
        true => Err(files.form("its layers are compressed, which only the OCI layout can say")),
        false => Ok(size),
    }
}
