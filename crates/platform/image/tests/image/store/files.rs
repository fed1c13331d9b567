//! Images of files: taken to a server's shelf, and from there to a node.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fluffy_base::Digest;
use fluffy_image::{
    BlobSource, Bring, FetchError, ImageRequest, ImageSource, Limits, Opened, Piece, Shelf, Waiting,
};
use hyper::body::Bytes;

use super::{assert_clean, content, image, noise, store};
use crate::real::skopeo;

/// A shelf as a node sees it, without the way between them.
#[derive(Debug)]
pub(super) struct Near(pub(super) Arc<Shelf>);

struct Rest(fs::File, u64);

impl BlobSource for Near {
    fn name(&self) -> &str {
        "near"
    }

    fn open(&self, _: Piece, digest: Digest, from: u64) -> Waiting<'_, Result<Opened, FetchError>> {
        Box::pin(async move {
            let none = || FetchError::NotFound {
                host: "near".to_owned(),
                what: digest.to_string(),
            };
            let file = self.0.open_blob(digest).unwrap().ok_or_else(none)?;
            Ok(Opened {
                begins: from,
                bytes: Box::new(Rest(file, from)),
            })
        })
    }
}

impl Bring for Rest {
    fn next(&mut self) -> Waiting<'_, Result<Option<Bytes>, FetchError>> {
        Box::pin(async move {
            let mut piece = vec![0; 5000];
            let read = self.0.read_at(&mut piece, self.1).unwrap();
            piece.truncate(read);
            self.1 += read as u64;
            Ok((read > 0).then(|| piece.into()))
        })
    }
}

pub(super) fn shelf(folder: &Path) -> Arc<Shelf> {
    Arc::new(Shelf::open(folder, 64 << 20).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_files_reach_a_node_and_need_their_files_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let image = image(50, 300_000);
    image.write(&at("layout"));
    let from = format!("oci:{}", at("layout").display());
    // As skopeo writes what `docker load` reads: a list, and plain layers.
    let archive = format!("docker-archive:{}", at("archive.tar").display());
    skopeo(&["copy", &from, &archive]);
    let newer = format!("oci-archive:{}", at("newer.tar").display());
    skopeo(&["copy", &from, &newer]);
    for (number, source) in [
        ImageSource::Layout(at("layout")),
        ImageSource::Archive(at("archive.tar")),
        // A whole layout in one file, as Docker writes it since version 25.
        ImageSource::Archive(at("newer.tar")),
    ]
    .into_iter()
    .enumerate()
    {
        let shelf = shelf(&at(&format!("shelf-{number}")));
        let resolved = shelf.import(&source, Limits::default()).unwrap();
        // Again changes nothing.
        assert_eq!(shelf.import(&source, Limits::default()).unwrap(), resolved);
        match source {
            ImageSource::Layout(path) => fs::rename(&path, path.with_extension("gone")).unwrap(),
            ImageSource::Archive(path) => fs::remove_file(path).unwrap(),
            ImageSource::Registry(_) => unreachable!(),
        }
        let request = ImageRequest {
            digest: resolved.platforms[0].digest,
            source: Arc::new(Near(shelf)),
            limits: None,
        };
        let node = at(&format!("node-{number}"));
        let store = store(&node);
        let pinned = store.ensure(request, "a").await.unwrap();
        assert_eq!(content(&pinned, "bin/serve"), noise(50, 300_000));
        assert_eq!(pinned.config.entrypoint, ["/bin/serve"]);
        assert_clean(&node, &store).await;
    }
}

/// Somebody who never answers.
#[derive(Debug)]
struct Away {
    left_alone: bool,
    asked: AtomicUsize,
}

impl BlobSource for Away {
    fn name(&self) -> &str {
        "away"
    }

    fn is_left_alone(&self) -> bool {
        self.left_alone
    }

    fn open(&self, _: Piece, _: Digest, _: u64) -> Waiting<'_, Result<Opened, FetchError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            Err(FetchError::Connect {
                host: "away".to_owned(),
                source: std::io::ErrorKind::ConnectionRefused.into(),
            })
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_away_is_asked_again_and_a_registry_is_left_alone() {
    for left_alone in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let away = Arc::new(Away {
            left_alone,
            asked: AtomicUsize::new(0),
        });
        let mut asked = Vec::new();
        for _ in 0..4 {
            let request = ImageRequest {
                digest: Digest::of(b"an image"),
                source: Arc::clone(&away) as Arc<dyn BlobSource>,
                limits: None,
            };
            let refused = store.ensure(request, "a").await.unwrap_err();
            assert_eq!(refused.code(), "registry_unavailable");
            asked.push(away.asked.load(Ordering::SeqCst));
        }
        let again = asked[3] > asked[2];
        assert_eq!(again, !left_alone, "{asked:?}");
    }
}

#[test]
fn a_damaged_image_is_not_taken_and_leaves_no_part_of_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    let image = image(51, 100_000);
    image.write(&layout);
    let layer = image.layers[0].to_string();
    let path = layout.join("blobs/sha256").join(&layer);
    let mut bytes = fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let shelf = shelf(&folder.path().join("shelf"));
    let source = ImageSource::Layout(layout);
    let refused = shelf.import(&source, Limits::default()).unwrap_err();
    assert_eq!(refused.code(), "image_unresolvable");
    assert!(refused.to_string().contains(&layer), "{refused}");
    assert!(shelf.open_blob(image.layers[0]).unwrap().is_none());
    let left = fs::read_dir(folder.path().join("shelf/tmp")).unwrap();
    assert_eq!(left.count(), 0);
    // And one that does not fit.
    let small = Shelf::open(&folder.path().join("small"), 50_000).unwrap();
    image.write(&folder.path().join("whole"));
    let source = ImageSource::Layout(folder.path().join("whole"));
    let refused = small.import(&source, Limits::default()).unwrap_err();
    assert_eq!(refused.code(), "unavailable", "{refused}");
    assert!(refused.to_string().contains("50000"), "{refused}");
}
