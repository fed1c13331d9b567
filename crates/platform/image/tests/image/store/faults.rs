//! Registries that break, lie, dawdle and never end; full disks; workers that
//! do not survive.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fluffy_image::{ImageRequest, PullLimits, Store, StoreLimits, WorkerCommand};
use tokio::time::timeout;

use super::{Stage, image, limits, noise, request, wait_for, worker};
use crate::root::archive::Archive;
use crate::sample::Image;
use crate::site::{Asked, Body, Reply, Site, honest};

fn layer_path(image: &Image) -> String {
    format!("/v2/app/blobs/sha256:{}", image.layers[0])
}

/// As an honest site, but for the first layer.
async fn but_for_layer(
    image: &Image,
    answer: impl Fn(&Asked, usize, &[u8]) -> Reply + Send + Sync + 'static,
) -> Site {
    let (rest, path) = (honest(image), layer_path(image));
    let layer = image.blobs[&image.layers[0]].clone();
    let count = AtomicUsize::new(0);
    Site::plain(move |asked| match asked.path == path {
        true => answer(asked, count.fetch_add(1, Ordering::SeqCst), &layer),
        false => rest(asked),
    })
    .await
}

fn asked_for_layer(site: &Site, image: &Image) -> usize {
    let path = layer_path(image);
    site.asked()
        .iter()
        .filter(|asked| asked.path == path)
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_broke_off_goes_on_where_it_stopped() {
    let image = image(20, 400_000);
    let site = but_for_layer(&image, |asked, count, layer| {
        let whole = Reply::new(200, "application/octet-stream", "");
        let from = asked.headers.get("range").map(|range| {
            let from = range
                .strip_prefix("bytes=")
                .unwrap()
                .strip_suffix('-')
                .unwrap();
            from.parse::<usize>().unwrap()
        });
        match (count, from) {
            // Half of it, and the connection ends.
            (0, None) => Reply {
                body: Body::Announced(layer.len() as u64, layer[..layer.len() / 2].to_vec()),
                ..whole
            },
            (1, Some(from)) => {
                let range = format!("bytes {from}-{}/{}", layer.len() - 1, layer.len());
                let next = &layer[from..from + 1000];
                Reply {
                    status: 206,
                    body: Body::Announced((layer.len() - from) as u64, next.to_vec()),
                    ..whole.with("content-range", range)
                }
            }
            // One that cannot do it begins anew.
            (2, Some(_)) => Reply {
                body: Body::Whole(layer.to_vec()),
                ..whole
            },
            other => panic!("{other:?}"),
        }
    })
    .await;
    let stage = Stage::with(limits(), worker());
    let wanted = request(&site.at("registry.test"), image.manifests[0]);
    stage.store.ensure(wanted, "a").await.unwrap();
    assert_eq!(asked_for_layer(&site, &image), 3);
    super::assert_clean(stage.folder.path(), &stage.store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_lies_is_not_asked_again() {
    let image = image(21, 10_000);
    type Lie = fn(&[u8]) -> Vec<u8>;
    let lies: [(&str, Lie); 4] = [
        ("another byte", |layer| {
            let mut layer = layer.to_vec();
            *layer.last_mut().unwrap() ^= 1;
            layer
        }),
        ("too short", |layer| layer[..layer.len() - 1].to_vec()),
        ("too long", |layer| [layer, b"x"].concat()),
        ("nothing", |_| Vec::new()),
    ];
    for (name, lie) in lies {
        let site = but_for_layer(&image, move |_, _, layer| {
            Reply::new(200, "application/octet-stream", lie(layer))
        })
        .await;
        let stage = Stage::with(limits(), worker());
        let refused = stage.refused(&site, image.manifests[0]).await;
        assert_eq!(refused.code(), "image_layer_invalid", "{name}: {refused}");
        assert!(
            refused.to_string().contains(&image.layers[0].to_string()),
            "{refused}"
        );
        assert_eq!(asked_for_layer(&site, &image), 1, "{name}");
        let blobs = std::fs::read_dir(stage.folder.path().join("blobs")).unwrap();
        let lied = |name: &std::ffi::OsStr| name.to_str() == Some(&image.layers[0].to_string());
        assert!(
            blobs.into_iter().all(|it| !lied(&it.unwrap().file_name())),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_never_ends_or_never_begins_costs_bounded_time_and_bytes() {
    let image = image(22, 10_000);
    let endless = but_for_layer(&image, |_, _, _| Reply {
        body: Body::Endless(vec![b'x'; 1 << 16]),
        ..Reply::new(200, "application/octet-stream", "")
    })
    .await;
    let stage = Stage::with(limits(), worker());
    let refused = stage.refused(&endless, image.manifests[0]).await;
    assert_eq!(refused.code(), "image_layer_invalid", "{refused}");
    for body in [Body::Never, Body::Pausing(b"some".to_vec())] {
        let slow = but_for_layer(&image, move |_, _, _| Reply {
            body: body.clone(),
            ..Reply::new(200, "application/octet-stream", "")
        })
        .await;
        let hasty = StoreLimits {
            pull: PullLimits {
                layer_deadline: Duration::from_secs(2),
                ..PullLimits::default()
            },
            ..limits()
        };
        let stage = Stage::with(hasty, worker());
        let refused = stage.refused(&slow, image.manifests[0]).await;
        assert_eq!(refused.code(), "image_pull_timeout", "{refused}");
        assert!(refused.to_string().contains("2 s"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_fails_five_times_is_left_alone() {
    let image = image(23, 10_000);
    let site = Site::plain(|_| Reply::new(503, "text/plain", "not now")).await;
    let stage = Stage::with(limits(), worker());
    let first = stage.refused(&site, image.manifests[0]).await;
    assert_eq!(first.code(), "registry_unavailable", "{first}");
    assert_eq!(site.asked().len(), 4, "once, and three times more");
    let second = stage.refused(&site, image.manifests[0]).await;
    assert_eq!(second.code(), "registry_unavailable", "{second}");
    assert_eq!(site.asked().len(), 5);
    let third = stage.refused(&site, image.manifests[0]).await;
    assert!(
        third.to_string().contains("the next attempt is in"),
        "{third}"
    );
    assert_eq!(site.asked().len(), 5, "nobody asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_asks_for_patience_gets_it() {
    let image = image(24, 10_000);
    let site = but_for_layer(&image, |_, count, layer| match count {
        0 => Reply::new(429, "text/plain", "").with("retry-after", "1"),
        1 => Reply::new(200, "application/octet-stream", layer),
        _ => panic!("asked again"),
    })
    .await;
    let stage = Stage::with(limits(), worker());
    let wanted = request(&site.at("registry.test"), image.manifests[0]);
    let before = std::time::Instant::now();
    stage.store.ensure(wanted, "a").await.unwrap();
    assert!(before.elapsed() >= Duration::from_secs(1));
    // More patience than there is time is not even begun.
    let site = but_for_layer(&image, |_, _, _| {
        Reply::new(429, "text/plain", "").with("retry-after", "3600")
    })
    .await;
    let stage = Stage::with(limits(), worker());
    let refusing = stage.refused(&site, image.manifests[0]);
    let refused = timeout(Duration::from_secs(120), refusing).await.unwrap();
    assert_eq!(refused.code(), "registry_unavailable", "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_no_image_is_refused_before_its_layers() {
    let image = image(25, 100_000);
    let size = image.blobs[&image.layers[0]].len() as u64;
    let site = Site::plain(honest(&image)).await;
    let mut small = limits();
    small.pull.image.compressed_bytes = size;
    let stage = Stage::with(small, worker());
    let refused = stage.refused(&site, image.manifests[0]).await;
    assert_eq!(refused.code(), "image_too_large", "{refused}");
    for named in [size.to_string(), image.manifests[0].to_string()] {
        assert!(refused.to_string().contains(&named), "{refused}");
    }
    let mut few = limits();
    few.pull.image.layers = 1;
    let stage = Stage::with(few, worker());
    let refused = stage.refused(&site, image.manifests[0]).await;
    assert_eq!(refused.code(), "image_invalid", "{refused}");
    assert_eq!(asked_for_layer(&site, &image), 0);
    // An index is no image, and neither is a layer.
    for other in [image.digest(), image.layers[1]] {
        let mut image = image.clone();
        image.manifests.push(other);
        let root = image.root.clone();
        image.blobs.insert(image.digest(), root);
        let site = Site::plain(honest(&image)).await;
        let stage = Stage::with(limits(), worker());
        let refused = stage.refused(&site, other).await;
        assert_eq!(refused.code(), "image_invalid", "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_layer_costs_its_build_and_leaves_nothing() {
    let bomb = vec![0; 3 << 20];
    let mut tight = limits();
    tight.pull.root.bytes = 1 << 20;
    for (name, layer, limits, code) in [
        (
            "escape",
            Archive::default().file("../escape", b"x"),
            limits(),
            "image_hostile",
        ),
        (
            "bomb",
            Archive::default().file("zeroes", &bomb),
            tight,
            "image_too_large",
        ),
    ] {
        let image = Image::of_layers(&[layer.end()], true);
        let site = Site::plain(honest(&image)).await;
        let stage = Stage::with(limits, worker());
        let refused = stage.refused(&site, image.manifests[0]).await;
        assert_eq!(refused.code(), code, "{name}: {refused}");
        assert!(
            refused
                .to_string()
                .contains(&image.manifests[0].to_string()),
            "{refused}"
        );
        assert_eq!(
            std::fs::read_dir(stage.folder.path().join("roots"))
                .unwrap()
                .count(),
            0
        );
        let here: Vec<_> = std::fs::read_dir(stage.folder.path()).unwrap().collect();
        assert_eq!(here.len(), 3, "{here:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_or_hangs_costs_its_build_and_leaves_nothing() {
    let image = image(26, 10_000);
    let site = Site::plain(honest(&image)).await;
    let shell = |script: &str| WorkerCommand {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
    };
    for (script, code) in [
        ("exit 3", "image_pull_failed"),
        ("kill -9 $$", "image_pull_failed"),
        // It says nothing that is understood.
        ("echo '{\"Made\":1}' >&0; exit 0", "image_pull_failed"),
        // Its own words for the reason are not taken over.
        (
            "echo '{\"Refused\":{\"code\":\"hello\",\"why\":\"x\"}}' >&0",
            "image_pull_failed",
        ),
        // It says that it made what it did not.
        (
            "echo '{\"Made\":{\"size\":7,\"inodes\":1,\"unpacked\":1,\"dropped\":0}}' >&0",
            "image_pull_failed",
        ),
    ] {
        let stage = Stage::with(limits(), shell(script));
        let refused = stage.refused(&site, image.manifests[0]).await;
        assert_eq!(refused.code(), code, "{script}: {refused}");
        assert_eq!(stage.store.cached().unwrap().len(), 0, "{script}");
    }
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("pid");
    let hang = format!("echo $$ > {}; exec sleep 100000", note.display());
    let hasty = StoreLimits {
        pull: PullLimits {
            image_deadline: Duration::from_secs(5),
            ..PullLimits::default()
        },
        ..limits()
    };
    let stage = Stage::with(hasty, shell(&hang));
    let refused = stage.refused(&site, image.manifests[0]).await;
    assert_eq!(refused.code(), "image_pull_timeout", "{refused}");
    if let Ok(pid) = std::fs::read_to_string(&note) {
        assert_ended(pid.trim()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_nobody_waits_any_more_the_build_ends() {
    let image = image(27, 10_000);
    let site = Site::plain(honest(&image)).await;
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("pid");
    let worker = WorkerCommand {
        program: "/bin/sh".into(),
        arguments: vec![
            "-c".to_owned(),
            format!("echo $$ > {}; exec sleep 100000", note.display()),
        ],
    };
    let stage = Stage::with(limits(), worker);
    let wanted = request(&site.at("registry.test"), image.manifests[0]);
    let store = stage.store.clone();
    let waiting = tokio::spawn(async move { store.ensure(wanted, "a").await });
    let started = || std::fs::read_to_string(&note).is_ok_and(|pid| pid.ends_with('\n'));
    wait_for(started).await;
    waiting.abort();
    let pid = std::fs::read_to_string(&note).unwrap();
    assert_ended(pid.trim()).await;
    let tmp = stage.folder.path().join("tmp");
    wait_for(|| std::fs::read_dir(&tmp).unwrap().count() == 0).await;
    let promised = || stage.store.usage().unwrap().promised == 0;
    wait_for(promised).await;
}

async fn assert_ended(pid: &str) {
    let path = PathBuf::from(format!("/proc/{pid}/cmdline"));
    // A process that ended and was not asked about yet has no command line.
    wait_for(|| std::fs::read(&path).unwrap_or_default().is_empty()).await;
}

/// A small file system; unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "fluffy-test"]);
        let mounted = mount.arg(folder.path()).output().unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_its_room_is_given_back() {
    let disk = Small::new(4 << 20);
    let at = disk.path().join("store");
    let store = fluffy_image::Store::open(&at, limits(), worker()).unwrap();
    // Too much from the start; the layers are not even asked for.
    let large = image(28, 3 << 20);
    let site = Site::plain(honest(&large)).await;
    let wanted = request(&site.at("registry.test"), large.manifests[0]);
    let refused = store.ensure(wanted, "a").await.unwrap_err();
    assert_eq!(refused.code(), "disk_full", "{refused}");
    assert_eq!(asked_for_layer(&site, &large), 0);
    super::assert_clean(&at, &store).await;
    // Small as it is stored, and more than the disk has when it is unpacked.
    let swelling: Vec<u8> = noise(29, 500).repeat(12_000);
    let layer = Archive::default().file("large", &swelling);
    let swelling = Image::of_layers(&[layer.end()], true);
    let site = Site::plain(honest(&swelling)).await;
    let wanted = request(&site.at("registry.test"), swelling.manifests[0]);
    let refused = store.ensure(wanted, "a").await.unwrap_err();
    assert_eq!(refused.code(), "disk_full", "{refused}");
    super::assert_clean(&at, &store).await;
    // What fits still does.
    let small = image(30, 100_000);
    let site = Site::plain(honest(&small)).await;
    let wanted = request(&site.at("registry.test"), small.manifests[0]);
    store.ensure(wanted, "a").await.unwrap();
    super::assert_clean(&at, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_images_share_the_layers_they_have_in_common() {
    let base = Archive::default().file("base", &noise(31, 200_000)).end();
    let one = Archive::default().file("one", b"1").end();
    let two = Archive::default().file("two", b"2").end();
    let first = Image::of_layers(&[base.clone(), one], true);
    let second = Image::of_layers(&[base.clone(), two, base], true);
    let mut both = first.clone();
    both.blobs.extend(second.blobs.clone());
    both.manifests.extend(second.manifests.clone());
    let site = Arc::new(Site::plain(honest(&both)).await);
    let stage = Stage::with(limits(), worker());
    let host = site.at("registry.test");
    let ensure = |digest| stage.store.ensure(request(&host, digest), "a");
    let (a, b) = tokio::join!(ensure(first.manifests[0]), ensure(second.manifests[0]));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_ne!(a.root, b.root);
    assert_eq!(asked_for_layer(&site, &first), 1);
    super::assert_clean(stage.folder.path(), &stage.store).await;
}

/// A store that would take it refuses it, or the other way round: what came
/// with the pull counts, and refusals name limit, value and digest.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_taken_by_the_limits_that_came_with_its_pull() {
    let image = image(29, 200_000);
    let site = Site::plain(honest(&image)).await;
    let (host, digest) = (site.at("registry.test"), image.manifests[0]);
    let folder = tempfile::tempdir().unwrap();
    let tight = |change: &dyn Fn(&mut PullLimits)| {
        let mut limits = PullLimits::default();
        change(&mut limits);
        limits
    };
    // By its own limits the store takes nothing.
    let mut own = limits();
    own.pull = tight(&|it| it.image.compressed_bytes = 1_000);
    let store = Store::open(folder.path(), own, worker()).unwrap();
    let ensure = async |limits: Option<PullLimits>| {
        let asked = ImageRequest {
            limits,
            ..request(&host, digest)
        };
        store.ensure(asked, "a").await
    };
    let named = format!("sha256:{digest}");
    let all: [(Option<PullLimits>, &str, &[&str]); 5] = [
        (None, "image_too_large", &["bytes; the limit is 1000"]),
        (
            Some(tight(&|it| it.image.compressed_bytes = 100_000)),
            "image_too_large",
            &["bytes; the limit is 100000"],
        ),
        (
            Some(tight(&|it| it.image.layers = 1)),
            "image_invalid",
            &["it has 2 layers; the limit is 1"],
        ),
        (
            Some(tight(&|it| it.root.bytes = 150_000)),
            "image_too_large",
            &["more bytes, unpacked, than 150000"],
        ),
        (
            Some(tight(&|it| it.root.entries = 1)),
            "image_hostile",
            &["more entries than 1"],
        ),
    ];
    for (limits, code, words) in all {
        let refused = ensure(limits).await.unwrap_err();
        let said = refused.to_string();
        assert_eq!(refused.code(), code, "{said}");
        assert!(words.iter().all(|it| said.contains(it)), "{said}");
        assert!(said.contains(&named), "{said}");
    }
    let pinned = ensure(Some(PullLimits::default())).await.unwrap();
    assert!(pinned.root.exists());
    // What is here already is not refused to who has tighter ones.
    assert_eq!(ensure(None).await.unwrap(), pinned);
}
