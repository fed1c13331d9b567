//! Images as the agent needs them: a root file system and what the image says.
//!
//! The agent asks by functions, so that tests give their own; the product's
//! are those of the image store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::join::nodes;
use fluffy_api::node::v1;
use fluffy_api::types::IMAGE_LIMITS;
use fluffy_base::Digest;
use fluffy_contract::BoxFuture;
use fluffy_image::{
    Access, BlobSource, Bring, Credential, FetchError, ImageReference, ImageRequest, ImageSource,
    Manner, Opened, Options, Piece, Place, Proof, PullLimits, Repository, RootForm, Store, Tally,
    Waiting,
};
use fluffy_planner::reason::FailureReason;
use prost::bytes::Bytes;
use tokio::sync::{OnceCell, watch};
use tonic::{Code, Status, Streaming};

pub use fluffy_image::document::ImageConfig;

use crate::decide::Failure;

/// The server as who has images that were deployed from files, and knows how
/// registries are reached for an instance.
#[derive(Debug, Clone)]
pub struct Shelf {
    pub(crate) node_id: String,
    pub(crate) instance_id: String,
    pub(crate) generation: u64,
    pub(crate) channel: watch::Receiver<Option<Channel>>,
}

/// Makes an image ready for an instance, and keeps it until it is released.
pub type Ensure = Arc<
    dyn Fn(v1::Image, String, Shelf) -> BoxFuture<'static, Result<(PathBuf, ImageConfig), Failure>>
        + Send
        + Sync,
>;

/// Does something for an instance with an image.
pub type Note = Arc<dyn Fn(&v1::Image, &str) + Send + Sync>;

/// What there is of images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stock {
    /// Bytes of images and their layers.
    pub bytes: u64,
    /// Bytes that are promised to builds.
    pub promised: u64,
    /// Bytes that there may be.
    pub quota: u64,
    /// How many went for others, ever.
    pub evicted: u64,
    /// What was asked for and done since the last time.
    pub tally: Tally,
    /// The digests of images that need not be fetched.
    pub images: Vec<String>,
}

/// What is done about what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tidying {
    /// Nothing: not everybody has said yet what they need.
    Look,
    /// What nobody needs goes, if there is too much of it.
    LetGo,
}

/// Says what there is, after something was done about it.
pub type Tidy = Arc<dyn Fn(Tidying) -> std::io::Result<Stock> + Send + Sync>;

/// Where images come from.
#[derive(Clone)]
pub struct Images {
    /// Makes one ready.
    pub ensure: Ensure,
    /// Keeps one for an instance that has it from an earlier life.
    pub pin: Note,
    /// Lets go of one.
    pub release: Note,
    /// Keeps the store small enough; may take long.
    pub tidy: Tidy,
}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Images")
    }
}

impl Images {
    /// Those of a store, fetched from registries as the server says, and
    /// otherwise as these options say.
    #[must_use]
    pub fn of_store(store: Store, options: Options) -> Self {
        let options = Arc::new(options);
        let store = Arc::new(store);
        let (pinning, releasing) = (Arc::clone(&store), Arc::clone(&store));
        let tidied = Arc::clone(&store);
        let ensure: Ensure = Arc::new(move |image, owner, shelf| {
            let (store, options) = (Arc::clone(&store), Arc::clone(&options));
            Box::pin(async move {
                let request = request(&image, options, shelf)?;
                let pinned = store.ensure(request, &owner).await.map_err(|error| {
                    let reason = FailureReason::parse(error.code());
                    let reason = reason.unwrap_or(FailureReason::ImagePullFailed);
                    Failure::new(reason, format!("{error}; {}", error.fix()))
                })?;
                Ok((pinned.root, pinned.config))
            })
        });
        Self {
            ensure,
            pin: Arc::new(move |image, owner| {
                if let Some(digest) = digest(&image.resolved_digest) {
                    pinning.pin(owner, digest);
                }
            }),
            release: Arc::new(move |_, owner| releasing.release(owner)),
            tidy: Arc::new(move |tidying| {
                if tidying == Tidying::LetGo {
                    tidied.collect()?;
                }
                let usage = tidied.usage()?;
                let images = tidied.cached()?.into_iter();
                Ok(Stock {
                    bytes: usage.bytes,
                    promised: usage.promised,
                    quota: usage.quota,
                    evicted: usage.evicted,
                    tally: tidied.tally(),
                    images: images.map(|digest| format!("sha256:{digest}")).collect(),
                })
            }),
        }
    }
}

/// What images are on this machine's disk, and why if it is not the usual;
/// `unfold` if somebody wants folders anyway.
#[must_use]
pub fn image_form(unfold: bool) -> (RootForm, Option<String>) {
    if unfold {
        return (RootForm::Folder, Some("that is asked for".to_owned()));
    }
    match fluffy_shim::probe_files() {
        Ok(()) => (RootForm::File, None),
        Err((what, fix)) => (RootForm::Folder, Some(format!("{what}; {fix}"))),
    }
}

fn digest(text: &str) -> Option<Digest> {
    text.strip_prefix("sha256:")?.parse().ok()
}

/// Pulled by its digest and nothing else.
fn request(
    image: &v1::Image,
    options: Arc<Options>,
    shelf: Shelf,
) -> Result<ImageRequest, Failure> {
    let unusable = |detail: String| Failure::new(FailureReason::ImageInvalid, detail);
    let digest = digest(&image.resolved_digest)
        .ok_or_else(|| unusable(format!("`{}` is no digest", image.resolved_digest)))?;
    let source: ImageSource = (image.r#ref.parse())
        .map_err(|error| unusable(format!("`{}` is no reference: {error}", image.r#ref)))?;
    let source: Arc<dyn BlobSource> = match source {
        ImageSource::Registry(reference) => Arc::new(AsTold::new(reference, options, shelf)),
        // The server took them when they were deployed.
        ImageSource::Layout(_) | ImageSource::Archive(_) => Arc::new(shelf),
    };
    let limits = Some(limits(image.limits.as_ref()));
    Ok(ImageRequest {
        digest,
        source,
        limits,
    })
}

/// What the plan says of how much an image may be, never above what this
/// version of a node can bear.
fn limits(told: Option<&v1::ImageLimits>) -> PullLimits {
    let mut limits = PullLimits::default();
    let Some(told) = told else { return limits };
    for kind in IMAGE_LIMITS {
        let said = match kind.name {
            "compressed_bytes" => told.compressed_bytes,
            "unpacked_bytes" => told.unpacked_bytes,
            "layers" => told.layers,
            "entries" => told.entries,
            "expansion" => told.expansion,
            "layer_seconds" => told.layer_seconds,
            "image_seconds" => told.image_seconds,
            _ => 0,
        };
        if said == 0 {
            continue;
        }
        let limit = said.min(kind.ceiling);
        match kind.name {
            "compressed_bytes" => limits.image.compressed_bytes = limit,
            "unpacked_bytes" => limits.root.bytes = limit,
            "layers" => limits.image.layers = usize::try_from(limit).unwrap_or(usize::MAX),
            "entries" => limits.root.entries = limit,
            "expansion" => limits.root.expansion = limit,
            "layer_seconds" => limits.layer_deadline = Duration::from_secs(limit),
            "image_seconds" => limits.image_deadline = Duration::from_secs(limit),
            _ => {}
        }
    }
    limits
}

/// A registry that is reached as the server says, who is asked when something
/// has to be fetched, once for each pull; what it said goes with the pull.
#[derive(Debug)]
struct AsTold {
    reference: ImageReference,
    options: Arc<Options>,
    shelf: Shelf,
    told: OnceCell<Repository>,
}

impl AsTold {
    fn new(reference: ImageReference, options: Arc<Options>, shelf: Shelf) -> Self {
        Self {
            reference,
            options,
            shelf,
            told: OnceCell::new(),
        }
    }

    fn reached(&self, access: Access) -> Repository {
        Repository::reached(access, &self.options, self.reference.clone())
    }

    async fn ask(&self) -> Result<Repository, Status> {
        let current = self.shelf.channel.borrow().clone();
        let channel = current.ok_or_else(|| Status::unavailable("no server is connected"))?;
        let request = v1::RegistryAccessRequest {
            node_id: self.shelf.node_id.clone(),
            instance_id: self.shelf.instance_id.clone(),
            generation: self.shelf.generation,
        };
        let asked = nodes(&channel).get_registry_access(request).await;
        match asked {
            Ok(told) => Ok(self.reached(access(told.into_inner(), &self.reference))),
            // A server of before: it has nothing to say.
            Err(status) if status.code() == Code::Unimplemented => {
                Ok(self.reached(Access::default()))
            }
            Err(status) => Err(status),
        }
    }

    /// Without the server: what is public can be had all the same, and of
    /// everything else nobody knows yet.
    async fn open_untold(
        &self,
        (piece, digest, from): (Piece, Digest, u64),
        status: &Status,
    ) -> Result<Opened, FetchError> {
        let host = self.reference.registry().to_owned();
        if status.code() == Code::PermissionDenied {
            return Err(FetchError::Denied {
                host: SERVER.to_owned(),
                what: host,
                status: 403,
            });
        }
        let public = self.reached(Access::default());
        let opened = public.open(piece, digest, from).await;
        opened.map_err(|error| match error.is_transient() {
            true => error,
            false => FetchError::Connect {
                host: SERVER.to_owned(),
                source: std::io::Error::other(format!(
                    "how `{host}` is reached is not known: {}",
                    status.message()
                )),
            },
        })
    }
}

impl BlobSource for AsTold {
    fn name(&self) -> &str {
        self.reference.registry()
    }

    fn repository(&self) -> String {
        let reference = &self.reference;
        format!("{}/{}", reference.registry(), reference.repository())
    }

    fn open(
        &self,
        piece: Piece,
        digest: Digest,
        from: u64,
    ) -> Waiting<'_, Result<Opened, FetchError>> {
        Box::pin(async move {
            match self.told.get_or_try_init(|| self.ask()).await {
                Ok(repository) => repository.open(piece, digest, from).await,
                Err(status) => self.open_untold((piece, digest, from), &status).await,
            }
        })
    }

    fn doubt(&self, digest: Digest) -> bool {
        self.told.get().is_some_and(|told| told.doubt(digest))
    }
}

/// What the server said; its credentials are moved, not copied, to where they
/// are wiped.
fn access(told: v1::RegistryAccess, reference: &ImageReference) -> Access {
    let mut registry = told.registry.map(place).unwrap_or_default();
    // Whatever was said is about this registry and no other.
    if registry.host != reference.registry() {
        registry = Place::default();
    }
    Access {
        registry,
        mirrors: told.mirrors.into_iter().map(place).collect(),
        authorities: told.authorities,
    }
}

fn place(told: v1::RegistryPlace) -> Place {
    let manner = match told.manner() {
        v1::RegistryManner::Unspecified => Manner::Public,
        v1::RegistryManner::Internal => Manner::Internal,
        v1::RegistryManner::Clear => Manner::Clear,
    };
    let credential = told.credential.map(|it| Credential {
        proof: match it.identity_token.is_empty() {
            true => Proof::Password {
                user: it.user,
                password: it.password.into(),
            },
            false => Proof::Identity(it.identity_token.into()),
        },
        realm: Some(it.realm).filter(|realm| !realm.is_empty()),
    });
    Place {
        host: told.host,
        manner,
        credential,
    }
}

/// What the server is called where a registry would be named.
const SERVER: &str = "server";

impl BlobSource for Shelf {
    fn name(&self) -> &str {
        SERVER
    }

    fn is_left_alone(&self) -> bool {
        false
    }

    fn open(&self, _: Piece, digest: Digest, from: u64) -> Waiting<'_, Result<Opened, FetchError>> {
        let current = self.channel.borrow().clone();
        let request = v1::BlobRequest {
            node_id: self.node_id.clone(),
            digest: format!("sha256:{digest}"),
            from,
        };
        Box::pin(async move {
            let away = || Status::unavailable("no server is connected");
            let channel = current.ok_or_else(away).map_err(|it| failed(&it, digest))?;
            let pieces = nodes(&channel).get_blob(request).await;
            let pieces = pieces.map_err(|status| failed(&status, digest))?;
            Ok(Opened {
                begins: from,
                bytes: Box::new(Pieces(pieces.into_inner(), digest)),
            })
        })
    }
}

/// A blob as it comes.
struct Pieces(Streaming<v1::BlobPiece>, Digest);

impl Bring for Pieces {
    fn next(&mut self) -> Waiting<'_, Result<Option<Bytes>, FetchError>> {
        Box::pin(async move {
            let piece = self.0.message().await;
            let piece = piece.map_err(|status| failed(&status, self.1))?;
            Ok(piece.map(|piece| piece.bytes.into()))
        })
    }
}

fn failed(status: &Status, digest: Digest) -> FetchError {
    let host = SERVER.to_owned();
    match status.code() {
        Code::NotFound => FetchError::NotFound {
            host,
            what: format!("sha256:{digest}"),
        },
        _ => FetchError::Connect {
            host,
            source: std::io::Error::other(status.message().to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use fluffy_image::{Limits, RootLimits};

    use super::*;

    fn usual(name: &str) -> u64 {
        let mut all = IMAGE_LIMITS.iter();
        all.find(|kind| kind.name == name).unwrap().usual
    }

    #[test]
    fn what_is_usual_is_what_the_store_takes() {
        let seconds = |name| Duration::from_secs(usual(name));
        let listed = PullLimits {
            image: Limits {
                compressed_bytes: usual("compressed_bytes"),
                layers: usize::try_from(usual("layers")).unwrap(),
            },
            root: RootLimits {
                bytes: usual("unpacked_bytes"),
                entries: usual("entries"),
                expansion: usual("expansion"),
                ..RootLimits::default()
            },
            layer_deadline: seconds("layer_seconds"),
            image_deadline: seconds("image_seconds"),
        };
        assert_eq!(listed, PullLimits::default());
        assert_eq!(limits(None), listed);
        assert_eq!(limits(Some(&v1::ImageLimits::default())), listed);
    }

    #[test]
    fn what_a_plan_says_is_taken_up_to_the_ceiling() {
        let said = v1::ImageLimits {
            compressed_bytes: 20 << 30,
            layers: 300,
            entries: u64::MAX,
            unpacked_bytes: u64::MAX,
            expansion: u64::MAX,
            layer_seconds: u64::MAX,
            image_seconds: 7,
        };
        let taken = limits(Some(&said));
        assert_eq!(taken.image.compressed_bytes, 20 << 30);
        assert_eq!(taken.image.layers, 300);
        assert_eq!(taken.root.entries, 2_000_000);
        assert_eq!(taken.root.bytes, 1 << 40);
        assert_eq!(taken.root.expansion, 10_000);
        assert_eq!(taken.layer_deadline, Duration::from_secs(6 * 3600));
        assert_eq!(taken.image_deadline, Duration::from_secs(7));
    }
}
