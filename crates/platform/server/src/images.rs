//! Finds the images of releases, at registries and in files of this machine.
//!
//! Registries are reached by the rules of `fluffy-image`; files only for who
//! owns this machine's platform, because a path says nothing to anybody else.

use std::sync::Arc;

use fluffy_control::Refusal;
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::ResolvedDigest;
use fluffy_egress::HostNetwork;
use fluffy_image::{
    ImageReference, ImageSource, ImportError, Options, Registries, RegistriesError, Resolved,
    Shelf, system_roots,
};
use tokio::task::spawn_blocking;

use crate::material::{FindImage, Nearness};

/// Finds images, at registries that are reached as the operator said. Images
/// of files are taken to the shelf, where nodes get them from.
#[must_use]
pub fn find_image(registries: Arc<Registries>, shelf: Option<Arc<Shelf>>) -> FindImage {
    let base = Arc::new(Options::public(Arc::new(HostNetwork), system_roots()));
    Arc::new(move |wanted| {
        let (base, registries) = (Arc::clone(&base), Arc::clone(&registries));
        let shelf = shelf.clone().filter(|_| wanted.nearness == Nearness::Local);
        Box::pin(async move {
            let base = Options {
                limits: wanted.limits,
                ..(*base).clone()
            };
            find((&base, registries), &wanted.name, shelf).await
        })
    })
}

async fn find(
    (base, registries): (&Options, Arc<Registries>),
    image: &str,
    shelf: Option<Arc<Shelf>>,
) -> Result<ResolvedImage, Refusal> {
    let source: ImageSource = image.parse().map_err(|error| {
        let why = format!("`{image}` is no reference to an image: {error}");
        let fix = "name it as in `ghcr.io/acme/web:1.2`, or by its digest";
        Refusal::new("image_unresolvable", why, fix)
    })?;
    let stopped = |_| Refusal::new("unavailable", "the server shuts down", "try again");
    let found = match (source, shelf) {
        (ImageSource::Registry(reference), _) => {
            let asked = reference.clone();
            // Read where that keeps nobody else waiting.
            let access = spawn_blocking(move || registries.access(&asked)).await;
            let access = access.map_err(stopped)?;
            let access = access.map_err(|error| unread(&reference, &error))?;
            let found = access.resolve(base, &reference).await;
            found.map_err(ImportError::from)
        }
        (_, None) => {
            let why = "files can be named only on the machine of `fluffy up`";
            let fix = "push the image to a registry and name it there";
            return Err(Refusal::new("image_unresolvable", why, fix));
        }
        (files, Some(shelf)) => {
            let limits = base.limits;
            let import = move || shelf.import(&files, limits);
            spawn_blocking(import).await.map_err(stopped)?
        }
    };
    let found = found.map_err(|error| refused(image, &error))?;
    Ok(resolved(image, &found))
}

/// Where the operator's files are, and what is wrong with them, is the
/// operator's to know.
fn unread(reference: &ImageReference, error: &RegistriesError) -> Refusal {
    let fix = error.fix();
    tracing::error!(
        error = error as &dyn std::error::Error,
        fix,
        "registries cannot be reached as the operator said"
    );
    let registry = reference.registry();
    let why = format!("the platform's credentials for `{registry}` cannot be read");
    let fix = "tell the operator: the log of the server says what is wrong with the files of \
               `--registry-auth` and `--registry-ca`";
    Refusal::new("image_auth_failed", why, fix)
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

fn refused(image: &str, error: &ImportError) -> Refusal {
    let why = format!("`{image}`: {error}");
    let refusal = Refusal::new(error.code(), why, error.fix());
    match error {
        ImportError::Resolve(error) if error.retry_after().is_some() => {
            let after = error.retry_after().unwrap_or_default();
            refusal.with("retry_after", after.as_secs())
        }
        _ => refusal,
    }
}
