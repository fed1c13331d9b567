//! Targets for the platform: what tenants write, and what registries send.

use fluffy_base::Digest;
use fluffy_guest::link::{Event, MAX_MESSAGE, WINDOW, read_message};
use fluffy_guest::{FromGuest, FromHost, GuestConfig, Link};
use fluffy_image::document::{Compression, Config, Document};
use fluffy_image::{
    ImageReference, ImageSource, LayerBlob, Limits, RootLimits, Survey, Wanted, convert,
};
use fluffy_manifest::{LARGEST, Manifest, format};
use fluffy_tar::read_entry;
use fluffy_vault::{Custody, Share};

use crate::as_text;

/// A manifest is read or refused at a place; what is read has one form.
pub(crate) fn manifest(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    if let Ok(formed) = format(text) {
        assert_eq!(format(&formed).as_ref(), Ok(&formed));
        let hash = |text| Manifest::parse(text).map(|manifest| manifest.hash());
        // Indentation can make it too large.
        if formed.len() <= LARGEST {
            assert_eq!(hash(&formed).ok(), hash(text).ok());
        }
    }
    match Manifest::parse(text) {
        Ok(manifest) => {
            assert!(!manifest.canonical().is_empty());
            assert!(!manifest.processes.is_empty());
            for (name, process) in &manifest.processes {
                let most = if process.mounts.is_empty() { 100 } else { 1 };
                assert!(
                    process.replicas <= most && process.scaling.max <= most,
                    "{name}"
                );
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let lines = text.split('\n').count();
            for problem in problems {
                assert!(problem.line <= lines && problem.column > 0, "{problem}");
            }
        }
    }
}

/// A reference is itself when it is shown whole, and fits into a request.
pub(crate) fn image_reference(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let Ok(ImageSource::Registry(reference)) = text.parse() else {
        return;
    };
    let whole = reference.to_string();
    assert_eq!(whole.parse::<ImageReference>().as_ref(), Ok(&reference));
    assert!(
        whole
            .chars()
            .all(|c| c.is_ascii_graphic() && !"%?#\\".contains(c))
    );
    let mut parts = reference.repository().split('/');
    assert!(parts.all(|part| !part.is_empty() && part != "." && part != ".."));
}

/// The first byte chooses the media type; what follows are documents, divided
/// by zeros, each given to whoever wants one: the walk ends within its bounds.
pub(crate) fn image_document(bytes: &[u8]) {
    const TYPES: [&str; 4] = [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ];
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let Some(media_type) = TYPES.get(usize::from(*first) % TYPES.len()) else {
        return;
    };
    let mut documents = rest.split(|byte| *byte == 0);
    let root = documents.next().unwrap_or_default();
    let _ = Config::read(root);
    if let Ok(Document::Manifest(manifest)) = Document::read(media_type, root) {
        let layers = manifest.layers.iter().map(|layer| layer.size);
        assert!(manifest.compressed_bytes() >= layers.max().unwrap_or_default());
    }
    let Ok(mut survey) = Survey::begin(media_type, root, Limits::default()) else {
        return;
    };
    let mut steps = 0;
    while let Some(Wanted::Document(wanted) | Wanted::Config(wanted)) = survey.wanted() {
        steps += 1;
        assert!(steps <= 32, "the walk never ends");
        let digest = wanted.digest;
        let given = documents.next().unwrap_or_default();
        if survey.take(given).is_ok() {
            assert_eq!(Digest::of(given), digest);
        } else {
            return;
        }
    }
    if let Ok(resolved) = survey.finish() {
        assert!(!resolved.platforms.is_empty() && resolved.platforms.len() <= 2);
        assert!(resolved.compressed_bytes() <= Limits::default().compressed_bytes);
    }
}

/// Entries are read one after the other, and each moves on.
pub(crate) fn tar(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(entry)) = read_entry(&mut rest) {
        assert_eq!((entry.size % 512 + entry.padding()) % 512, 0);
        assert!(entry.name.len() <= 64 << 10 && entry.mode <= 0o7777);
        let skip = entry.size.saturating_add(entry.padding());
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        rest = rest.get(skip..).unwrap_or_default();
    }
}

/// The first byte says where the second layer begins, in blocks of an archive;
/// what comes of both stays within the limits.
pub(crate) fn image_layers(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let middle = (usize::from(*first) * 512).min(rest.len());
    let (lower, upper) = rest.split_at(middle);
    let layers = [lower, upper].into_iter().filter(|layer| !layer.is_empty());
    let blobs = layers.map(|layer| LayerBlob {
        bytes: layer,
        compression: Compression::None,
        diff_id: Digest::of(layer),
    });
    let limits = RootLimits {
        bytes: 1 << 20,
        entries: 200,
        ..RootLimits::default()
    };
    let (Ok(result), Ok(aside)) = (tempfile::tempfile(), tempfile::tempfile()) else {
        return;
    };
    if let Ok(root) = convert(blobs, limits, &result, &aside) {
        assert!(root.size % 4_096 == 0 && root.unpacked <= limits.bytes);
        assert!(root.inodes <= limits.entries + 1);
    }
}

/// What a guest sends: the same events however it is divided, never more of
/// them than there was credit for, and messages that are read or refused.
pub(crate) fn guest_link(bytes: &[u8]) {
    let whole = events(bytes, bytes.len().max(1));
    let divided = events(bytes, 7);
    assert_eq!(whole, divided);
    let mut lines = fluffy_guest::log::Reader::default();
    let mut taken = 0;
    for event in whole.0 {
        match event {
            Event::Message(message) => {
                assert!(message.len() <= MAX_MESSAGE);
                let _ = read_message::<FromGuest>(&message);
                let _ = read_message::<FromHost>(&message);
                let _ = GuestConfig::read(&message);
            }
            Event::Data { bytes, .. } => {
                taken += bytes.len();
                assert!(taken <= 3 * WINDOW);
                lines.feed(&bytes);
                while let Ok(Some((record, _))) = lines.record() {
                    assert!(record.to_bytes().len() <= WINDOW);
                }
            }
            _ => {}
        }
    }
}

fn events(bytes: &[u8], size: usize) -> (Vec<Event>, bool) {
    let mut link = Link::new();
    let mut events = Vec::new();
    for piece in bytes.chunks(size) {
        let fed = link.feed(piece);
        events.extend(std::iter::from_fn(|| link.event()));
        if fed.is_err() {
            return (events, true);
        }
    }
    (events, false)
}

/// A share is itself when it is shown, and never the key by itself.
pub(crate) fn share(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let Ok(share) = text.parse::<Share>() else {
        return;
    };
    let shown = share.expose();
    assert!(text.contains(shown.as_str()));
    let again = shown.parse::<Share>();
    assert!(again.is_ok_and(|again| *again.expose() == *shown));
    assert!(share.index() <= share.total() && share.needed() <= share.total());
    assert!(Custody::combine(&[share]).is_err());
}
