//! Releases: an image and a manifest become one, for good.

use fluffy_api::Operation;
use fluffy_api::types::{BlockRelease, CreateRelease, IMAGE_LIMITS};
use fluffy_base::id::ReleaseId;
use fluffy_manifest::Manifest;
use fluffy_planner::lifecycle::{Cause, ReleaseState};

use super::{Decided, Desk, at_most, missing, transition};
use crate::call::{Fact, Material, Subject};
use crate::event::{ReleaseBlocked, ReleaseCreated, ReleaseUnblocked};
use crate::refusal::{FieldProblem, Refusal};
use crate::runtime::quota::Dimension;
use crate::runtime::spec;

pub(super) fn create(desk: &Desk<'_>) -> Decided {
    let (_, app) = desk.app()?;
    let body: CreateRelease = desk.body()?;
    let manifest = read(&body.manifest)?;
    // A manifest stays in memory until its release retires, which nobody can do
    // by hand.
    let room = desk.runtime().within(app.org, Dimension::Releases, 1);
    room.map_err(|refusal| Refusal {
        fix: "wait until releases retire that nothing uses, 30 days after they were made, or ask \
              an operator for a higher quota"
            .to_owned(),
        ..refusal
    })?;
    let Material::Image(image) = &desk.request.material else {
        let why = "the image could not be looked up";
        let fix = "check the reference, and that its registry can be reached";
        return Err(Refusal::new("image_unresolvable", why, fix));
    };
    let largest = largest_image(desk);
    if image.compressed_bytes > largest {
        let why = format!("the image has {} bytes", image.compressed_bytes);
        let fix = format!("an image has at most {largest} bytes, compressed");
        return Err(Refusal::new("image_too_large", why, fix));
    }
    let digests = image.resolved_digests.iter();
    let mut usable = digests.filter(|it| {
        let digest = it.digest.strip_prefix("sha256:");
        let whole = digest.is_some_and(|it| it.parse::<fluffy_base::Digest>().is_ok());
        it.os == "linux" && spec::arch(&it.arch).is_some() && whole
    });
    if usable.next().is_none() {
        let why = "the image is not made for Linux on amd64 or arm64";
        return Err(Refusal::new(
            "arch_unavailable",
            why,
            "build it for one of these",
        ));
    }
    let id = ReleaseId::from_bits(desk.bits());
    let canonical = manifest.canonical();
    let created = ReleaseCreated {
        image_ref: image.image_ref.clone(),
        index_or_manifest_digest: image.index_or_manifest_digest.clone(),
        resolved_digests: image.resolved_digests.clone(),
        compressed_bytes: image.compressed_bytes,
        manifest_schema_version: "v1".to_owned(),
        manifest_hash: manifest.hash(),
        manifest: serde_json::from_str(&canonical).unwrap_or_default(),
    };
    Ok((
        vec![Fact::new(id, created.into())],
        Subject::of("release", id),
    ))
}

/// How many bytes an image may have, compressed.
fn largest_image(desk: &Desk<'_>) -> u64 {
    let mut kinds = IMAGE_LIMITS.iter();
    let kind = kinds.find(|kind| kind.name == "compressed_bytes");
    kind.map_or(0, |kind| desk.runtime().cluster.image_limit(kind))
}

/// The manifest, or everything that is wrong with it.
fn read(text: &str) -> Result<Manifest, Refusal> {
    Manifest::parse(text).map_err(|problems| {
        let why = match problems.as_slice() {
            [one] => one.to_string(),
            many => format!("the manifest has {} problems", many.len()),
        };
        let first = problems.first().and_then(|problem| problem.fix.clone());
        let mut refusal = Refusal::new("manifest_invalid", why, first.unwrap_or_default());
        refusal.fields = problems
            .into_iter()
            .map(|problem| FieldProblem {
                code: problem.code.as_str().to_owned(),
                field: problem.field,
                message: problem.message,
                place: Some((problem.line as u64, problem.column as u64)),
            })
            .collect();
        refusal
    })
}

pub(super) fn block(desk: &Desk<'_>) -> Decided {
    let id: ReleaseId = desk.leaf("release")?;
    let release = desk.runtime().releases.get(&id);
    let release = release.ok_or_else(|| missing("release"))?;
    let (to, body) = if desk.request.operation == Operation::BlockRelease {
        let body: BlockRelease = desk.body()?;
        at_most("reason", &body.reason, 256)?;
        let blocked = ReleaseBlocked {
            reason: body.reason,
        };
        (ReleaseState::Blocked, blocked.into())
    } else {
        (ReleaseState::Available, ReleaseUnblocked {}.into())
    };
    ReleaseState::can(Some(release.state), to, Cause::ReleaseBlock).map_err(transition)?;
    Ok((vec![Fact::new(id, body)], Subject::of("release", id)))
}
