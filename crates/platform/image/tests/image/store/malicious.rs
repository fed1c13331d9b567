//! Malicious images, through every door that an image has: a registry, a
//! layout, an archive. Each is refused by its name, nothing of it is left, and
//! nothing but the store was ever touched.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_image::{BlobSource, ImageRequest, ImageSource, Limits, Store, StoreLimits};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::files::Near;
use super::{assert_clean, image, limits, noise, request, worker};
use crate::root::archive::Archive;
use crate::root::hostile::hostile;
use crate::sample::Image;
use crate::site::{Asked, Body, Reply, Site, honest};

const BYTES: &str = "application/octet-stream";

/// How an image reaches a node.
enum Door {
    /// A registry that answers so.
    Registry(Box<dyn Fn(&Asked) -> Reply + Send + Sync>),
    /// A folder, by way of the server.
    Layout,
    /// A file as `docker save` writes it, by way of the server.
    Archive,
}

struct Case {
    what: String,
    image: Image,
    door: Door,
    limits: StoreLimits,
    code: &'static str,
}

impl Case {
    /// An image at an honest registry.
    fn new(what: &str, image: Image, code: &'static str) -> Self {
        let answer = honest(&image);
        Self {
            what: what.to_owned(),
            image,
            door: Door::Registry(Box::new(answer)),
            limits: limits(),
            code,
        }
    }

    /// An honest image at a registry that answers so for its first layer.
    fn layer(
        what: &str,
        code: &'static str,
        answer: impl Fn(&Asked, &[u8]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let layer = Archive::default().file("a", &noise(60, 20_000));
        let image = Image::of_layers(&[layer.end()], true);
        let (rest, digest) = (honest(&image), image.layers[0]);
        let layer = image.blobs[&digest].clone();
        let end = format!("/blobs/sha256:{digest}");
        let mut case = Self::new(what, image, code);
        case.door = Door::Registry(Box::new(move |asked| match asked.path.ends_with(&end) {
            true => answer(asked, &layer),
            false => rest(asked),
        }));
        case
    }

    fn within(mut self, limits: StoreLimits) -> Self {
        self.limits = limits;
        self
    }

    /// What becomes of it, and everything around the store before and after.
    async fn run(self) -> Outcome {
        let around = tempfile::tempdir().unwrap();
        fs::write(around.path().join("canary"), "as it was").unwrap();
        // A store from where a few steps up lead to the canary.
        let at = around.path().join("one/two/store");
        let store = Store::open(&at, self.limits, worker()).unwrap();
        let digest = self.image.manifests[0];
        let (request, site) = match self.door {
            Door::Registry(answer) => {
                let site = Site::plain(answer).await;
                (request(&site.at("registry.test"), digest), Some(site))
            }
            Door::Layout => {
                let layout = around.path().join("layout");
                self.image.write(&layout);
                (shelved(around.path(), &ImageSource::Layout(layout)), None)
            }
            Door::Archive => {
                let file = around.path().join("image.tar");
                fs::write(&file, saved(&self.image)).unwrap();
                (shelved(around.path(), &ImageSource::Archive(file)), None)
            }
        };
        let before = everything(around.path());
        let refused = store.ensure(request, "owner").await.err();
        assert_clean(&at, &store).await;
        drop(site);
        Outcome {
            code: refused.as_ref().map(fluffy_image::EnsureError::code),
            said: format!("{refused:?}"),
            bytes: store.usage().unwrap().bytes,
            is_untouched: everything(around.path()) == before,
        }
    }
}

struct Outcome {
    code: Option<&'static str>,
    said: String,
    /// What the store holds afterwards.
    bytes: u64,
    /// Whether all is as it was, in the store and around it.
    is_untouched: bool,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (said, bytes) = (&self.said, self.bytes);
        write!(f, "{said}; {bytes} bytes; untouched: {}", self.is_untouched)
    }
}

/// An image of a file, as a node gets it from the server.
fn shelved(around: &Path, source: &ImageSource) -> ImageRequest {
    let shelf = super::files::shelf(&around.join("shelf"));
    let resolved = shelf.import(source, Limits::default()).unwrap();
    let source: Arc<dyn BlobSource> = Arc::new(Near(shelf));
    ImageRequest {
        digest: resolved.platforms[0].digest,
        source,
        limits: None,
    }
}

/// An image of plain layers as `docker save` wrote it before version 25.
fn saved(image: &Image) -> Vec<u8> {
    let config = &image.blobs[&image.configs[0]];
    let names: Vec<String> = (0..image.layers.len())
        .map(|number| format!("{number}/layer.tar"))
        .collect();
    let list = json!([{"Config": "config.json", "RepoTags": ["app:v1"], "Layers": names}]);
    let list = list.to_string();
    let mut archive = Archive::default()
        .file("manifest.json", list.as_bytes())
        .file("config.json", config);
    for (name, layer) in names.iter().zip(&image.layers) {
        archive = archive.file(name, &image.blobs[layer]);
    }
    archive.end()
}

/// All there is below a folder, and what it is.
fn everything(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let mut what = format!("{:o} {} {}", about.mode(), about.uid(), about.gid());
        if about.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        } else if about.is_file() {
            what = format!("{what} {}", Digest::of(&fs::read(&path).unwrap()));
        }
        all.insert(path.display().to_string(), what);
    }
    all
}

/// An image whose manifest says something else.
fn with_manifest(mut image: Image, change: impl FnOnce(&mut Value)) -> Image {
    let mut manifest = serde_json::from_slice(&image.blobs[&image.manifests[0]]).unwrap();
    change(&mut manifest);
    with_document(&mut image, manifest.to_string().into_bytes());
    image
}

/// An image whose manifest is these bytes.
fn with_document(image: &mut Image, bytes: Vec<u8>) {
    image.manifests[0] = Digest::of(&bytes);
    image.blobs.insert(image.manifests[0], bytes);
}

/// An image whose config says something else.
fn with_config(mut image: Image, change: impl FnOnce(&mut Value)) -> Image {
    let mut config = serde_json::from_slice(&image.blobs[&image.configs[0]]).unwrap();
    change(&mut config);
    let bytes = config.to_string().into_bytes();
    let (digest, size) = (Digest::of(&bytes), bytes.len());
    image.configs[0] = digest;
    image.blobs.insert(digest, bytes);
    with_manifest(image, |manifest| {
        manifest["config"]["digest"] = json!(format!("sha256:{digest}"));
        manifest["config"]["size"] = json!(size);
    })
}

/// An image with one layer of these bytes, which are said to unpack to that.
fn packed(bytes: Vec<u8>, media_type: &str, unpacked: &[u8]) -> Image {
    let image = Image::of_layers(&[unpacked.to_vec()], false);
    let (digest, size) = (Digest::of(&bytes), bytes.len());
    let mut image = with_manifest(image, |manifest| {
        manifest["layers"][0] = json!({
            "mediaType": format!("application/vnd.oci.image.layer.v1.tar{media_type}"),
            "digest": format!("sha256:{digest}"), "size": size,
        });
    });
    image.layers = vec![digest];
    image.blobs.insert(digest, bytes);
    image
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn good() -> Image {
    image(61, 5_000)
}

/// Layers that lie, each through each door in turn.
fn layers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, (what, layer, code)) in hostile().into_iter().enumerate() {
        // On top of a good one, as an attacker would hide it.
        let base = Archive::default().folder("a/").file("base", b"good").end();
        let image = match number % 2 {
            0 => Image::of_layers(&[base, layer], false),
            _ => Image::of_layers(&[layer], false),
        };
        let mut case = Case::new(what, image, code);
        case.door = match number % 3 {
            0 => Door::Layout,
            // A file without content is no part of an archive.
            1 if what != "nothing at all" => Door::Archive,
            _ => case.door,
        };
        cases.push(case);
    }
    cases
}

/// Bombs, and streams that are not what they are said to be.
fn streams() -> Vec<Case> {
    let zeros = Archive::default().file("zeros", &vec![0; 2 << 20]).end();
    let small = Archive::default().file("a", b"small").end();
    let mut expansion = limits();
    expansion.pull.root.unasked = 1 << 18;
    let mut bytes = limits();
    bytes.pull.root.bytes = 1 << 20;
    let mut entries = limits();
    entries.pull.root.entries = 50;
    let flood = (0..60).fold(Archive::default(), |archive, number| {
        archive.file(&format!("{number}"), b"")
    });
    let zstd = zstd::encode_all(&*zeros, 1).unwrap();
    let mut cut = gzip(&small);
    cut.truncate(cut.len() - 9);
    let mut wrong_sum = gzip(&small);
    let sum = wrong_sum.len() - 8;
    wrong_sum[sum] ^= 1;
    let trailing = [gzip(&small), b"more".to_vec()].concat();
    let invalid = "image_layer_invalid";
    let room = StoreLimits {
        quota: 1 << 20,
        ..limits()
    };
    vec![
        Case::new(
            "a bomb of gzip",
            packed(gzip(&zeros), "+gzip", &zeros),
            "image_hostile",
        )
        .within(expansion),
        Case::new(
            "a bomb of zstd",
            packed(zstd.clone(), "+zstd", &zeros),
            "image_hostile",
        )
        .within(expansion),
        Case::new(
            "more than an image may be",
            packed(gzip(&zeros), "+gzip", &zeros),
            "image_too_large",
        )
        .within(bytes),
        Case::new(
            "more than an image may be, in two layers",
            Image::of_layers(&[small.clone(), zeros.clone()], true),
            "image_too_large",
        )
        .within(bytes),
        Case::new(
            "a flood of empty files",
            Image::of_layers(&[flood.end()], true),
            "image_hostile",
        )
        .within(entries),
        Case::new(
            "more than there is room for",
            Image::of_layers(
                &[Archive::default().file("a", &noise(62, 1 << 20)).end()],
                true,
            ),
            "disk_full",
        )
        .within(room),
        Case::new(
            "gzip that ends early",
            packed(cut, "+gzip", &small),
            invalid,
        ),
        Case::new(
            "gzip with a wrong sum",
            packed(wrong_sum, "+gzip", &small),
            invalid,
        ),
        Case::new(
            "gzip with something behind it",
            packed(trailing, "+gzip", &small),
            invalid,
        ),
        Case::new(
            "gzip that is none",
            packed(small.clone(), "+gzip", &small),
            invalid,
        ),
        Case::new(
            "zstd that is none",
            packed(small.clone(), "+zstd", &small),
            invalid,
        ),
        Case::new(
            "zstd that ends early",
            packed(zstd[..zstd.len() - 3].to_vec(), "+zstd", &zeros),
            invalid,
        ),
        Case::new(
            "gzip that is said to be plain",
            packed(gzip(&small), "", &small),
            invalid,
        ),
        Case::new(
            "another content than the config says",
            packed(gzip(&small), "+gzip", &zeros),
            invalid,
        ),
    ]
}

/// Documents that lie.
fn documents() -> Vec<Case> {
    let invalid = "image_invalid";
    let manifest = |what: &str, code, change: fn(&mut Value)| {
        Case::new(what, with_manifest(good(), change), code)
    };
    let config =
        |what: &str, change: fn(&mut Value)| Case::new(what, with_config(good(), change), invalid);
    let bytes = |what: &str, bytes: Vec<u8>| {
        let mut image = good();
        with_document(&mut image, bytes);
        Case::new(what, image, invalid)
    };
    vec![
        manifest("a digest that is a path", invalid, |it| {
            it["layers"][0]["digest"] = json!("sha256:../../../etc/passwd");
        }),
        manifest("a digest of another kind", invalid, |it| {
            it["layers"][0]["digest"] = json!("md5:d41d8cd98f00b204e9800998ecf8427e");
        }),
        manifest("a negative size", invalid, |it| {
            it["layers"][0]["size"] = json!(-1);
        }),
        manifest("sizes that overflow", "image_too_large", |it| {
            it["layers"][0]["size"] = json!(u64::MAX);
            it["layers"][1]["size"] = json!(u64::MAX);
        }),
        manifest("a size that is too small", "image_layer_invalid", |it| {
            it["layers"][0]["size"] = json!(1);
        }),
        manifest("a size that is too large", "image_layer_invalid", |it| {
            it["layers"][0]["size"] = json!(1 << 20);
        }),
        manifest("too many layers", invalid, |it| {
            let layer = it["layers"][0].clone();
            it["layers"] = json!(vec![layer; 129]);
        }),
        manifest("a layer of an unknown kind", invalid, |it| {
            it["layers"][0]["mediaType"] = json!("application/x-sh");
        }),
        manifest("a config that is none", invalid, |it| {
            it["config"]["mediaType"] = json!("application/x-sh");
        }),
        manifest("a config that is too large", invalid, |it| {
            it["config"]["size"] = json!(9 << 20);
        }),
        manifest("an index and an image at once", invalid, |it| {
            it["manifests"] = json!([]);
        }),
        manifest("another version", invalid, |it| {
            it["schemaVersion"] = json!(1);
        }),
        config("fewer layers than there are", |it| {
            it["rootfs"]["diff_ids"].as_array_mut().unwrap().pop();
        }),
        config("digests of layers that are paths", |it| {
            it["rootfs"]["diff_ids"][0] = json!("sha256:/etc/shadow");
        }),
        config("an environment that is none", |it| {
            it["config"]["Env"] = json!({"PATH": "/bin"});
        }),
        bytes("no document", b"#!/bin/sh\nrm -rf /\n".to_vec()),
        bytes("a deep document", "[".repeat(100_000).into_bytes()),
        bytes("a large document", vec![b' '; (4 << 20) + 1]),
    ]
}

/// Registries that lie about honest images.
fn registries() -> Vec<Case> {
    let invalid = "image_layer_invalid";
    let mut hasty = limits();
    hasty.pull.layer_deadline = Duration::from_secs(2);
    let with = |body| Reply {
        body,
        ..Reply::new(200, BYTES, "")
    };
    let mut another_manifest = Case::new("another manifest", good(), invalid);
    let other = image(63, 100);
    let other = other.blobs[&other.manifests[0]].clone();
    another_manifest.door = Door::Registry(Box::new(move |_| {
        Reply::new(200, crate::sample::MANIFEST, other.clone())
    }));
    let mut endless_manifest = Case::new("an endless manifest", good(), "image_invalid");
    endless_manifest.door = Door::Registry(Box::new(move |_| Reply {
        body: Body::Endless(vec![b' '; 1 << 16]),
        ..Reply::new(200, crate::sample::MANIFEST, "")
    }));
    let mut everywhere = Case::new("redirects in a circle", good(), "image_pull_failed");
    everywhere.door = Door::Registry(Box::new(|asked| Reply::to(asked.path.clone())));
    vec![
        another_manifest,
        endless_manifest,
        everywhere,
        Case::layer("another byte", invalid, |_, layer| {
            let mut layer = layer.to_vec();
            *layer.last_mut().unwrap() ^= 1;
            Reply::new(200, BYTES, layer)
        }),
        Case::layer("a byte too many", invalid, |_, layer| {
            Reply::new(200, BYTES, [layer, b"x"].concat())
        }),
        Case::layer("a byte too few", invalid, |_, layer| {
            Reply::new(200, BYTES, &layer[1..])
        }),
        Case::layer("no layer", invalid, |_, _| Reply::new(200, BYTES, "")),
        Case::layer("a page of errors", invalid, |_, _| {
            Reply::new(200, "text/html", "<html>not found</html>")
        }),
        Case::layer("an endless layer", invalid, move |_, _| {
            with(Body::Endless(vec![b'x'; 1 << 16]))
        }),
        Case::layer("a layer of any length", invalid, |_, _| Reply {
            body: Body::Announced(u64::MAX >> 1, vec![b'x'; 100_000]),
            ..Reply::new(200, BYTES, "")
        }),
        Case::layer(
            "a part that nobody asked for",
            "image_pull_failed",
            |_, layer| Reply {
                status: 206,
                ..Reply::new(200, BYTES, layer)
                    .with("content-range", format!("bytes 7-{0}/{0}", layer.len()))
            },
        ),
        Case::layer("a layer that never begins", "image_pull_timeout", |_, _| {
            Reply {
                body: Body::Never,
                ..Reply::new(200, BYTES, "")
            }
        })
        .within(hasty),
        Case::layer("a layer that stops", "image_pull_timeout", |_, layer| {
            Reply {
                body: Body::Pausing(layer[..10].to_vec()),
                ..Reply::new(200, BYTES, "")
            }
        })
        .within(hasty),
        Case::layer("no right to it", "image_auth_failed", |_, _| {
            Reply::new(403, "text/plain", "")
        }),
        Case::layer("a layer that is gone", "image_pull_failed", |_, _| {
            Reply::new(404, "text/plain", "")
        }),
        Case::layer("at a cloud's own address", "image_pull_failed", |_, _| {
            Reply::to("http://169.254.169.254/latest/meta-data/")
        }),
        Case::layer("in a file of this machine", "image_pull_failed", |_, _| {
            Reply::to("file:///etc/passwd")
        }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn malicious_images_are_refused_by_name_and_leave_nothing() {
    let mut cases = layers();
    cases.extend(streams());
    cases.extend(documents());
    cases.extend(registries());
    assert!(cases.len() >= 90, "{}", cases.len());
    let mut wrong = Vec::new();
    for (what, code, outcome) in outcomes(cases).await {
        if outcome.code != Some(code) || outcome.bytes != 0 || !outcome.is_untouched {
            wrong.push(format!("{what}: not {code}: {outcome}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs cases, some at a time.
async fn outcomes(cases: Vec<Case>) -> Vec<(String, &'static str, Outcome)> {
    let turns = Arc::new(Semaphore::new(8));
    let mut running = JoinSet::new();
    for case in cases {
        let turns = Arc::clone(&turns);
        running.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            (case.what.clone(), case.code, case.run().await)
        });
    }
    running.join_all().await
}

/// The controls: what is refused is the malice, and not the door.
#[tokio::test(flavor = "multi_thread")]
async fn honest_twins_of_malicious_images_are_taken() {
    let layer = Archive::default().file("a", b"x").file("b", &[0; 5000]);
    let honest = || Image::of_layers(&[layer.clone().end()], false);
    for door in [None, Some(Door::Layout), Some(Door::Archive)] {
        let mut case = Case::new("honest", honest(), "");
        case.door = door.unwrap_or(case.door);
        let outcome = case.run().await;
        assert_eq!(outcome.code, None, "{outcome}");
        // It would be seen if something were there.
        assert!(outcome.bytes > 0 && !outcome.is_untouched, "{outcome}");
    }
    // Where nobody counts, the bombs go off.
    let mut bombs = streams();
    bombs.truncate(6);
    bombs.iter_mut().for_each(|case| case.limits = limits());
    for (what, _, outcome) in outcomes(bombs).await {
        assert_eq!(outcome.code, None, "{what}: {outcome}");
    }
}

/// The control of what leads out: whoever follows its names writes there.
#[test]
fn a_layer_that_leads_out_does_so_where_nobody_looks() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (what, layer, _) = hostile().swap_remove(0);
    assert_eq!(what, "leads out");
    fs::write(folder.path().join("layer.tar"), layer).unwrap();
    let done = Command::new("tar")
        .args(["--extract", "--absolute-names", "--file", "../layer.tar"])
        .current_dir(&inner)
        .status();
    assert!(done.unwrap().success());
    assert!(folder.path().join("a").exists());
}
