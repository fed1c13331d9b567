//! The same image at several repositories: nobody has to bear what another's
//! does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fluffy_base::Digest;
use fluffy_image::{
    BlobSource, Bring, Bytes, FetchError, ImageRequest, Opened, Piece, RootForm, StoreLimits,
    Waiting,
};
use tokio::sync::Semaphore;

use super::{Stage, assert_clean, image, limits, request, wait_for, worker};
use crate::sample::Image;
use crate::site::{Site, honest};

/// Somebody's repository that says all about an image, and denies its layers
/// as soon as it may.
#[derive(Debug)]
struct Stranger {
    registry: String,
    image: Image,
    asked: AtomicBool,
    may_deny: Semaphore,
}

struct Whole(Option<Bytes>);

impl BlobSource for Stranger {
    fn name(&self) -> &str {
        &self.registry
    }

    fn repository(&self) -> String {
        format!("{}/stranger", self.registry)
    }

    fn open(&self, _: Piece, digest: Digest, _: u64) -> Waiting<'_, Result<Opened, FetchError>> {
        Box::pin(async move {
            if self.image.layers.contains(&digest) {
                self.asked.store(true, Ordering::SeqCst);
                let _ = self.may_deny.acquire().await;
                return Err(FetchError::Denied {
                    host: self.registry.clone(),
                    what: digest.to_string(),
                    status: 403,
                });
            }
            let document = self.image.blobs[&digest].clone();
            Ok(Opened {
                begins: 0,
                bytes: Box::new(Whole(Some(document.into()))),
            })
        })
    }
}

impl Bring for Whole {
    fn next(&mut self) -> Waiting<'_, Result<Option<Bytes>, FetchError>> {
        let whole = self.0.take();
        Box::pin(async move { Ok(whole) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_of_a_strangers_repository_is_the_strangers() {
    let image = image(32, 50_000);
    let site = Site::plain(honest(&image)).await;
    let (host, digest) = (site.at("registry.test"), image.manifests[0]);
    let stranger = Arc::new(Stranger {
        // The same registry: both have a place there.
        registry: host.clone(),
        image,
        asked: AtomicBool::new(false),
        may_deny: Semaphore::new(0),
    });
    let stage = Stage::with(limits(), worker());
    let ensure = |wanted: ImageRequest, owner: &'static str| {
        let store = stage.store.clone();
        tokio::spawn(async move { store.ensure(wanted, owner).await })
    };
    let theirs = ImageRequest {
        digest,
        source: Arc::clone(&stranger) as Arc<dyn BlobSource>,
        limits: None,
    };
    let theirs = ensure(theirs, "theirs");
    wait_for(|| stranger.asked.load(Ordering::SeqCst)).await;
    // While the stranger's is at its layers, ours begins, and asks by itself.
    let ours = ensure(request(&host, digest), "ours");
    wait_for(|| !site.asked().is_empty()).await;
    stranger.may_deny.add_permits(1);
    let refused = theirs.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), "image_auth_failed", "{refused}");
    ours.await.unwrap().unwrap();
    assert_clean(stage.folder.path(), &stage.store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_repositories_at_once_make_one_root() {
    let image = image(33, 1 << 20);
    let digest = image.manifests[0];
    let (first, second) = (
        Site::plain(honest(&image)).await,
        Site::plain(honest(&image)).await,
    );
    for form in [RootForm::File, RootForm::Folder] {
        let stage = Stage::with(StoreLimits { form, ..limits() }, worker());
        let ensure = |site: &Site, owner: &'static str| {
            let wanted = request(&site.at("registry.test"), digest);
            stage.store.ensure(wanted, owner)
        };
        let (one, two) = tokio::join!(ensure(&first, "one"), ensure(&second, "two"));
        assert_eq!(one.unwrap(), two.unwrap(), "{form:?}");
        assert_clean(stage.folder.path(), &stage.store).await;
    }
}
