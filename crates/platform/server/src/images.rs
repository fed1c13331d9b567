//! Finds the images of releases, at registries and in files of this machine.
//!
//! Registries are reached by the rules of `fluffy-image`; files only for who
//! owns this machine's platform, because a path says nothing to anybody else.

use std::collections::BTreeSet;
use std::sync::Arc;

use fluffy_control::Refusal;
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::ResolvedDigest;
use fluffy_egress::HostNetwork;
use fluffy_image::{
    ImageSource, Limits, Options, Registry, ResolveError, Resolved, public_or_listed, system_roots,
};
use tokio::task::spawn_blocking;

use crate::material::{FindImage, Nearness};

/// Finds images; `insecure` are registries that are spoken to in the clear,
/// at whatever address, because the operator said so.
#[must_use]
pub fn find_image(insecure: BTreeSet<String>) -> FindImage {
    let mut options = Options::public(Arc::new(HostNetwork), system_roots());
    options.judge = public_or_listed(insecure.clone());
    options.insecure = insecure;
    let registry = Arc::new(Registry::new(options));
    Arc::new(move |image, nearness| {
        let registry = Arc::clone(&registry);
        Box::pin(async move { find(&registry, &image, nearness).await })
    })
}

async fn find(
    registry: &Registry,
    image: &str,
    nearness: Nearness,
) -> Result<ResolvedImage, Refusal> {
    let source: ImageSource = image.parse().map_err(|error| {
        let why = format!("`{image}` is no reference to an image: {error}");
        let fix = "name it as in `ghcr.io/acme/web:1.2`, or by its digest";
        Refusal::new("image_unresolvable", why, fix)
    })?;
    let found = match source {
        ImageSource::Registry(reference) => registry.resolve(&reference, None).await,
        ImageSource::Layout(_) | ImageSource::Archive(_) if nearness == Nearness::Remote => {
            let why = "files can be named only on the machine of `fluffy up`";
            let fix = "push the image to a registry and name it there";
            return Err(Refusal::new("image_unresolvable", why, fix));
        }
        ImageSource::Layout(path) => {
            read(move || fluffy_image::resolve_layout(&path, Limits::default())).await?
        }
        ImageSource::Archive(path) => {
            read(move || fluffy_image::resolve_archive(&path, Limits::default())).await?
        }
    };
    let found = found.map_err(|error| refused(image, &error))?;
    Ok(resolved(image, &found))
}

/// Reads files where that keeps nobody else waiting.
async fn read(
    work: impl FnOnce() -> Result<Resolved, ResolveError> + Send + 'static,
) -> Result<Result<Resolved, ResolveError>, Refusal> {
    let done = spawn_blocking(work).await;
    done.map_err(|_| Refusal::new("unavailable", "the server shuts down", "try again"))
}

fn resolved(image: &str, found: &Resolved) -> ResolvedImage {
    let digests = found.platforms.iter().map(|one| ResolvedDigest {
        os: one.os.clone(),
        arch: one.arch.clone(),
        digest: format!("sha256:{}", one.digest),
    });
    ResolvedImage {
        image_ref: image.to_owned(),
        index_or_manifest_digest: format!("sha256:{}", found.digest),
        resolved_digests: digests.collect(),
        compressed_bytes: found.compressed_bytes(),
    }
}

fn refused(image: &str, error: &ResolveError) -> Refusal {
    let why = format!("`{image}`: {error}");
    let mut refusal = Refusal::new(error.code(), why, error.fix());
    if let Some(after) = error.retry_after() {
        refusal = refusal.with("retry_after", after.as_secs());
    }
    refusal
}
