//! Finds out what an image consists of, one document after the other.
//!
//! Pure: says which document it wants next, checks size and digest of what it
//! is given, and ends with a [`Resolved`]. Never fetches anything; `registry`
//! and `local` do.

use std::collections::VecDeque;

use fluffy_base::Digest;

use crate::document::{
    Config, Descriptor, Document, LARGEST_CONFIG, LARGEST_DOCUMENT, Layer, Manifest, Platform,
    ReadDocumentError,
};

/// The deepest index within an index.
const DEEPEST: usize = 3;

/// The most documents that one image may need.
const MOST_DOCUMENTS: usize = 32;

/// How much an image may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes to fetch for one platform.
    pub compressed_bytes: u64,
    /// The most layers.
    pub layers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            compressed_bytes: 10 << 30,
            layers: 128,
        }
    }
}

/// What a reference stands for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The digest of the index or manifest that was named.
    pub digest: Digest,
    /// The image for each kind of machine that can run it, by architecture.
    pub platforms: Vec<ResolvedPlatform>,
}

impl Resolved {
    /// The bytes to fetch for the largest of its platforms.
    #[must_use]
    pub fn compressed_bytes(&self) -> u64 {
        let sizes = self.platforms.iter().map(|one| one.compressed_bytes);
        sizes.max().unwrap_or_default()
    }
}

/// The image for one kind of machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPlatform {
    /// `linux`.
    pub os: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// The digest of its manifest.
    pub digest: Digest,
    /// The bytes to fetch for it: config and layers.
    pub compressed_bytes: u64,
    /// The layers, the lowest first.
    pub layers: Vec<Layer>,
}

/// Why an image is none that could run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SurveyError {
    /// A document cannot be used.
    #[error("the document `sha256:{digest}` of the image cannot be used: {why}")]
    Document {
        /// Which.
        digest: Digest,
        /// Why.
        why: ReadDocumentError,
    },
    /// What came is not what was wanted.
    #[error("`sha256:{digest}` has other content than its {what} says")]
    Content {
        /// What was wanted.
        digest: Digest,
        /// What does not fit: its size or its digest.
        what: &'static str,
    },
    /// Two documents contradict each other.
    #[error("the documents of the image `sha256:{digest}` contradict each other: {what}")]
    Contradiction {
        /// The manifest.
        digest: Digest,
        /// About what.
        what: &'static str,
    },
    /// It is not made for what nodes can be.
    #[error(
        "the image is made for {}, and nodes are linux/amd64 or linux/arm64",
        list(found)
    )]
    Platform {
        /// What it is made for.
        found: Vec<String>,
    },
    /// There is too much of it.
    #[error("the image `sha256:{digest}` has {value} {what}; the limit is {limit}")]
    TooLarge {
        /// The manifest.
        digest: Digest,
        /// How much.
        value: u64,
        /// Of what.
        what: &'static str,
        /// How much is allowed.
        limit: u64,
    },
    /// There are too many documents, or they are too large.
    #[error("the image `sha256:{digest}` is described by {what}")]
    Sprawling {
        /// The document that was too much.
        digest: Digest,
        /// What is wrong.
        what: &'static str,
    },
}

/// A document that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// An index or a manifest.
    Document(&'a Descriptor),
    /// A config, which is stored like a layer.
    Config(&'a Descriptor),
}

/// A walk over the documents of one image.
#[derive(Debug)]
pub struct Survey {
    limits: Limits,
    root: Digest,
    /// What was announced, in the order in which it is wanted.
    waiting: VecDeque<Step>,
    documents: usize,
    resolved: Vec<ResolvedPlatform>,
    /// What it is made for besides.
    other: Vec<String>,
}

#[derive(Debug)]
enum Step {
    Document {
        descriptor: Descriptor,
        depth: usize,
    },
    Config {
        descriptor: Descriptor,
        /// What the index said.
        platform: Option<Platform>,
        image: ResolvedPlatform,
    },
}

impl Survey {
    /// Begins with what a tag or digest led to.
    ///
    /// # Errors
    /// It is no document of an image, or one that asks for too much.
    pub fn begin(media_type: &str, bytes: &[u8], limits: Limits) -> Result<Self, SurveyError> {
        let root = Digest::of(bytes);
        let mut survey = Self {
            limits,
            root,
            waiting: VecDeque::new(),
            documents: 1,
            resolved: Vec::new(),
            other: Vec::new(),
        };
        match read(media_type, bytes, root)? {
            Document::Index(index) => survey.announce(index.manifests, 1)?,
            Document::Manifest(manifest) if manifest.is_image() => {
                let descriptor = Descriptor {
                    media_type: media_type.to_owned(),
                    digest: root,
                    size: 0,
                    platform: None,
                };
                survey.manifest(descriptor, manifest)?;
            }
            Document::Manifest(manifest) => {
                let media_type = manifest.config.media_type;
                let why = ReadDocumentError::MediaType { media_type };
                return Err(SurveyError::Document { digest: root, why });
            }
        }
        Ok(survey)
    }

    /// The document that is wanted next; none at the end.
    #[must_use]
    pub fn wanted(&self) -> Option<Wanted<'_>> {
        self.waiting.front().map(|step| match step {
            Step::Document { descriptor, .. } => Wanted::Document(descriptor),
            Step::Config { descriptor, .. } => Wanted::Config(descriptor),
        })
    }

    /// Takes the document that was wanted.
    ///
    /// # Errors
    /// It is not that one, or does not fit the others.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), SurveyError> {
        match self.waiting.pop_front() {
            None => Ok(()),
            Some(Step::Document { descriptor, depth }) => {
                check(&descriptor, bytes)?;
                match read(&descriptor.media_type, bytes, descriptor.digest)? {
                    Document::Index(index) => self.announce(index.manifests, depth + 1),
                    Document::Manifest(manifest) if manifest.is_image() => {
                        self.manifest(descriptor, manifest)
                    }
                    // Signatures and the like stand beside images.
                    Document::Manifest(_) => Ok(()),
                }
            }
            Some(Step::Config {
                descriptor,
                platform,
                image,
            }) => {
                check(&descriptor, bytes)?;
                let config = Config::read(bytes).map_err(|why| SurveyError::Document {
                    digest: descriptor.digest,
                    why,
                })?;
                self.config(config, platform.as_ref(), image)
            }
        }
    }

    /// What was found.
    ///
    /// # Errors
    /// No node could run it.
    pub fn finish(mut self) -> Result<Resolved, SurveyError> {
        if self.resolved.is_empty() {
            return Err(SurveyError::Platform { found: self.other });
        }
        self.resolved.sort_by(|a, b| a.arch.cmp(&b.arch));
        Ok(Resolved {
            digest: self.root,
            platforms: self.resolved,
        })
    }

    fn announce(&mut self, entries: Vec<Descriptor>, depth: usize) -> Result<(), SurveyError> {
        let mut expected: Vec<String> = Vec::new();
        for descriptor in entries {
            let is_index = descriptor.is_index();
            match &descriptor.platform {
                Some(platform) if !is_index => {
                    // Of two for the same machines the first counts.
                    let arch = platform.architecture.clone();
                    if !is_wanted(platform) || expected.contains(&arch) {
                        self.note(platform);
                        continue;
                    }
                    expected.push(arch);
                }
                Some(_) | None => {}
            }
            if is_index && depth >= DEEPEST {
                return Err(sprawling(&descriptor, "indexes in indexes in indexes"));
            }
            self.push(Step::Document { descriptor, depth })?;
        }
        Ok(())
    }

    fn manifest(&mut self, descriptor: Descriptor, manifest: Manifest) -> Result<(), SurveyError> {
        let digest = descriptor.digest;
        let too_large = |value, what, limit| SurveyError::TooLarge {
            digest,
            value,
            what,
            limit,
        };
        let (bytes, layers) = (manifest.compressed_bytes(), manifest.layers.len());
        if bytes > self.limits.compressed_bytes {
            return Err(too_large(bytes, "bytes", self.limits.compressed_bytes));
        }
        if layers > self.limits.layers {
            let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
            return Err(too_large(
                count(layers),
                "layers",
                count(self.limits.layers),
            ));
        }
        let image = ResolvedPlatform {
            os: String::new(),
            arch: String::new(),
            digest,
            compressed_bytes: bytes,
            layers: manifest.layers,
        };
        self.push(Step::Config {
            descriptor: manifest.config,
            platform: descriptor.platform,
            image,
        })
    }

    fn config(
        &mut self,
        config: Config,
        announced: Option<&Platform>,
        image: ResolvedPlatform,
    ) -> Result<(), SurveyError> {
        let Platform {
            os, architecture, ..
        } = &config.platform;
        let contradiction = |what| SurveyError::Contradiction {
            digest: image.digest,
            what,
        };
        if announced.is_some_and(|it| it.os != *os || it.architecture != *architecture) {
            return Err(contradiction("what it is made for"));
        }
        if config.diff_ids.len() != image.layers.len() {
            return Err(contradiction("how many layers it has"));
        }
        let taken = self.resolved.iter().any(|it| it.arch == *architecture);
        // The index chose among variants; a config alone may have any.
        let fits = announced.is_some() || is_wanted(&config.platform);
        match fits && !taken {
            true => self.resolved.push(ResolvedPlatform {
                os: os.clone(),
                arch: architecture.clone(),
                ..image
            }),
            false => self.note(&config.platform),
        }
        Ok(())
    }

    fn push(&mut self, step: Step) -> Result<(), SurveyError> {
        let (descriptor, most) = match &step {
            Step::Document { descriptor, .. } => (descriptor, LARGEST_DOCUMENT),
            Step::Config { descriptor, .. } => (descriptor, LARGEST_CONFIG),
        };
        self.documents += 1;
        if self.documents > MOST_DOCUMENTS {
            return Err(sprawling(descriptor, "too many documents"));
        }
        if descriptor.size > most {
            return Err(sprawling(descriptor, "a document that is too large"));
        }
        self.waiting.push_back(step);
        Ok(())
    }

    fn note(&mut self, platform: &Platform) {
        let plain = |text: &str| {
            let plain = text.chars().filter(|c| c.is_ascii_graphic());
            plain.take(20).collect::<String>()
        };
        let mut name = format!("{}/{}", plain(&platform.os), plain(&platform.architecture));
        if let Some(variant) = platform.variant.as_deref().filter(|it| !it.is_empty()) {
            name = format!("{name}/{}", plain(variant));
        }
        // `unknown/unknown` is how builders attach papers to an image.
        if self.other.len() < 8 && !self.other.contains(&name) && name != "unknown/unknown" {
            self.other.push(name);
        }
    }
}

/// Whether some node could run it, whatever processor of its kind it has.
fn is_wanted(platform: &Platform) -> bool {
    platform.os == "linux"
        && match (platform.architecture.as_str(), platform.variant.as_deref()) {
            ("amd64", variant) => matches!(variant, None | Some("" | "v1")),
            ("arm64", variant) => matches!(variant, None | Some("" | "v8")),
            _ => false,
        }
}

/// Size before digest: what is too long need not be hashed.
pub(crate) fn check(descriptor: &Descriptor, bytes: &[u8]) -> Result<(), SurveyError> {
    let digest = descriptor.digest;
    let content = |what| SurveyError::Content { digest, what };
    if u64::try_from(bytes.len()) != Ok(descriptor.size) {
        return Err(content("size"));
    }
    match Digest::of(bytes) == digest {
        true => Ok(()),
        false => Err(content("digest")),
    }
}

fn read(media_type: &str, bytes: &[u8], digest: Digest) -> Result<Document, SurveyError> {
    Document::read(media_type, bytes).map_err(|why| SurveyError::Document { digest, why })
}

fn sprawling(descriptor: &Descriptor, what: &'static str) -> SurveyError {
    SurveyError::Sprawling {
        digest: descriptor.digest,
        what,
    }
}

fn list(found: &[String]) -> String {
    match found {
        [] => "no machine at all".to_owned(),
        found => found.join(", "),
    }
}

#[cfg(test)]
mod tests;
