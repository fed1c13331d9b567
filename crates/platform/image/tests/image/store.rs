//! The store of a node: what it fetches, makes, keeps and lets go.

mod faults;
mod files;
mod folders;
mod kills;
mod malicious;
mod strangers;
mod walls;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_base::Digest;
use fluffy_image::{
    Access, BlobSource, Credential, EnsureError, ImageReference, ImageRequest, Pinned, Proof,
    Registries, Registry, Repository, Store, StoreLimits, WorkerCommand,
};
use fluffy_test_kit::{Random, RealRegistry};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::real::push;
use crate::root::archive::Archive;
use crate::sample::Image;
use crate::site::{Asked, Body, Reply, Site, honest, options};

const QUOTA: u64 = 256 << 20;

fn worker() -> WorkerCommand {
    WorkerCommand {
        program: env!("CARGO_BIN_EXE_fluffy-image-worker").into(),
        arguments: Vec::new(),
    }
}

/// With short pauses, and time enough for a busy machine.
fn limits() -> StoreLimits {
    StoreLimits {
        pauses: [Duration::from_millis(5); 3],
        ..StoreLimits::with_quota(QUOTA)
    }
}

fn store(folder: &Path) -> Store {
    Store::open(folder, limits(), worker()).unwrap()
}

/// An image at a registry of this machine.
fn request(host: &str, digest: Digest) -> ImageRequest {
    request_with(host, digest, None, &[])
}

fn request_with(
    host: &str,
    digest: Digest,
    credential: Option<Credential>,
    mirrors: &[String],
) -> ImageRequest {
    let mut listed = vec![host.to_owned()];
    listed.extend_from_slice(mirrors);
    let mut options = options(&listed);
    options.insecure = listed.into_iter().collect();
    options.idle = Duration::from_secs(60);
    let reference: ImageReference = format!("{host}/app@sha256:{digest}").parse().unwrap();
    let registry = Arc::new(Registry::new(options));
    let source: Arc<dyn BlobSource> =
        Arc::new(Repository::new(registry, reference, credential, mirrors));
    ImageRequest {
        digest,
        source,
        limits: None,
    }
}

/// Bytes that no packer makes smaller.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        noise.extend_from_slice(&random.next().to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

fn image(seed: u64, bytes: usize) -> Image {
    let base = Archive::default()
        .folder("bin/")
        .file("bin/serve", &noise(seed, bytes));
    let upper = Archive::default().file("etc/name", format!("{seed}").as_bytes());
    Image::of_layers(&[base.end(), upper.end()], true)
}

/// Nothing is left of work. What was interrupted ends in a moment of its own.
async fn assert_clean(folder: &Path, store: &Store) {
    let tmp = folder.join("tmp");
    let none = || fs::read_dir(&tmp).unwrap().count() == 0;
    wait_for(|| none() && store.usage().unwrap().promised == 0).await;
    assert_eq!(store.verify().unwrap(), []);
}

async fn wait_for(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(120), waiting).await.unwrap();
}

fn content(pinned: &Pinned, name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut check = Command::new("fsck.erofs");
    check.arg(format!("--extract={}", out.display()));
    let checked = check.arg(&pinned.root).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    fs::read(out.join(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_real_registry_becomes_a_root_that_outlives_it() {
    let registry = RealRegistry::start(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = image(1, 3 << 20);
    image.write(&folder.path().join("layout"));
    let name = format!("{}/app:v1", registry.host());
    push(
        &folder.path().join("layout"),
        &name,
        &["--all", "--preserve-digests"],
    );
    let (at, digest) = (folder.path().join("store"), image.manifests[0]);
    let first = store(&at);
    let host = registry.host().to_owned();
    let pinned = first.ensure(request(&host, digest), "one").await.unwrap();
    assert_eq!(content(&pinned, "bin/serve"), noise(1, 3 << 20));
    assert_eq!(content(&pinned, "etc/name"), b"1");
    assert_eq!(pinned.config.entrypoint, ["/bin/serve"]);
    assert_eq!(pinned.config.env, ["PATH=/bin", "A=b"]);
    assert_eq!(
        (pinned.config.user.as_str(), pinned.config.workdir.as_str()),
        ("12:34", "/srv")
    );
    assert_eq!(pinned.config.stop_signal, "SIGINT");
    assert!(pinned.config.cmd.is_empty());
    let mode = fs::metadata(&pinned.root).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o400);
    assert_clean(&at, &first).await;
    // Without its registry, and after a restart.
    drop((registry, first));
    let second = store(&at);
    assert_eq!(
        second.cached().unwrap().into_iter().collect::<Vec<_>>(),
        [digest]
    );
    let again = second.ensure(request(&host, digest), "two").await.unwrap();
    assert_eq!(again, pinned);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry_with_a_password_gives_layers_only_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    let hash = "$2b$04$P7bqZYJUuX7L9vWu0SKgx.g5WzISqFNdg4uyi99wVLWGyG/4GpZ56";
    fs::write(&users, format!("me:{hash}\n")).unwrap();
    let registry = RealRegistry::start(&[
        ("REGISTRY_AUTH", "htpasswd"),
        ("REGISTRY_AUTH_HTPASSWD_REALM", "here"),
        ("REGISTRY_AUTH_HTPASSWD_PATH", users.to_str().unwrap()),
    ])
    .unwrap();
    let image = image(2, 10_000);
    image.write(&folder.path().join("layout"));
    let name = format!("{}/app:v1", registry.host());
    let more = [
        "--all",
        "--preserve-digests",
        "--dest-creds",
        "me:marked-password",
    ];
    push(&folder.path().join("layout"), &name, &more);
    let (at, digest) = (folder.path().join("store"), image.manifests[0]);
    let store = store(&at);
    let refused = store
        .ensure(request(registry.host(), digest), "a")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "image_auth_failed", "{refused}");
    let credential = Credential {
        proof: Proof::Password {
            user: "me".to_owned(),
            password: "marked-password".to_owned().into(),
        },
        realm: None,
    };
    let with = request_with(registry.host(), digest, Some(credential), &[]);
    store.ensure(with, "a").await.unwrap();
    assert_clean(&at, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_is_asked_first_and_its_failures_cost_nothing() {
    let image = image(3, 50_000);
    let origin = Site::plain(honest(&image)).await;
    let mirror = Site::plain(honest(&image)).await;
    let host = origin.at("registry.test");
    let digest = image.manifests[0];
    let folder = tempfile::tempdir().unwrap();
    let first = store(&folder.path().join("a"));
    let mirrors = [mirror.at("mirror.test")];
    let credential = || {
        Some(Credential {
            proof: Proof::Password {
                user: "me".to_owned(),
                password: "marked-password".to_owned().into(),
            },
            realm: None,
        })
    };
    let wanted = request_with(&host, digest, credential(), &mirrors);
    first.ensure(wanted, "a").await.unwrap();
    assert_eq!((origin.asked().len(), mirror.asked().len()), (0, 4));
    let told = mirror.asked();
    assert!(
        told.iter()
            .all(|it| !it.headers.contains_key("authorization"))
    );
    drop(mirror);
    let second = store(&folder.path().join("b"));
    let wanted = request_with(&host, digest, credential(), &mirrors);
    second.ensure(wanted, "a").await.unwrap();
    assert_eq!(origin.asked().len(), 4);
}

/// The ways in which a mirror can be worse than none, about manifests or blobs.
fn lies(
    image: &Image,
    kind: &'static str,
) -> Vec<(
    &'static str,
    impl Fn(&Asked) -> Reply + Send + Sync + 'static,
)> {
    type Change = fn(Vec<u8>) -> Body;
    let changes: [(&str, Change); 4] = [
        ("another byte", |mut bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            Body::Whole(bytes)
        }),
        ("too little", |mut bytes| {
            bytes.pop();
            Body::Whole(bytes)
        }),
        ("too much", |mut bytes| {
            bytes.push(0);
            Body::Whole(bytes)
        }),
        ("half of it, and the end", |bytes| {
            let half = vec![7; bytes.len() / 2];
            Body::Announced(bytes.len() as u64, half)
        }),
    ];
    let lie = |(name, change): (&'static str, Change)| {
        let honest = honest(image);
        let reply = move |asked: &Asked| {
            let mut reply = honest(asked);
            if asked.path.contains(kind)
                && let Body::Whole(bytes) = reply.body
            {
                reply.body = change(bytes);
            }
            reply
        };
        (name, reply)
    };
    changes.into_iter().map(lie).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_lies_is_not_believed_and_the_registry_is_asked() {
    let image = image(5, 50_000);
    let folder = tempfile::tempdir().unwrap();
    let all = ["/manifests/", "/blobs/"].map(|kind| lies(&image, kind));
    for (number, (name, lie)) in all.into_iter().flatten().enumerate() {
        let origin = Site::plain(honest(&image)).await;
        let mirror = Site::plain(lie).await;
        let (host, digest) = (origin.at("registry.test"), image.manifests[0]);
        let mirrors = [mirror.at("mirror.test")];
        let at = folder.path().join(number.to_string());
        let store = store(&at);
        let wanted = request_with(&host, digest, None, &mirrors);
        store
            .ensure(wanted, "a")
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!mirror.asked().is_empty(), "{name}: the control");
        assert_clean(&at, &store).await;
        // Where it is alone there is no image, rather than another.
        drop(origin);
        let at = folder.path().join(format!("{number}-alone"));
        let store = self::store(&at);
        let wanted = request_with(&host, digest, None, &mirrors);
        let refused = store.ensure(wanted, "a").await.unwrap_err();
        assert_eq!(refused.code(), "registry_unavailable", "{name}: {refused}");
        assert_eq!(store.cached().unwrap().len(), 0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_is_reached_as_the_operator_says() {
    let image = image(6, 50_000);
    let guarded = |user: &'static str| {
        let honest = honest(&image);
        move |asked: &Asked| {
            let own = format!(
                "Basic {}",
                STANDARD.encode(format!("{user}:marked-password"))
            );
            match asked.headers.get("authorization") == Some(&own) {
                true => honest(asked),
                false => {
                    Reply::new(401, "text/plain", "").with("www-authenticate", r#"Basic realm="x""#)
                }
            }
        }
    };
    let origin = Site::plain(guarded("origin")).await;
    let mirror = Site::plain(guarded("mirror")).await;
    let (host, other) = (origin.at("registry.test"), mirror.at("mirror.test"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.json");
    let entry = |user: &str| STANDARD.encode(format!("{user}:marked-password"));
    let text = format!(
        r#"{{"auths": {{"{host}": {{"auth": "{}"}}, "{other}": {{"auth": "{}"}}}}}}"#,
        entry("origin"),
        entry("mirror")
    );
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let registries = Registries {
        insecure: [host.clone()].into(),
        mirrors: vec![format!("{host}=http://{other}").parse().unwrap()],
        credentials: Some(file.clone()),
        ..Registries::default()
    };
    let reference: ImageReference = format!("{host}/app:v1").parse().unwrap();
    let base = options(&[]);
    // The control: whoever says nothing may not even connect.
    let nothing = Registries::default().access(&reference).unwrap();
    nothing.resolve(&base, &reference).await.unwrap_err();
    let access = || registries.access(&reference).unwrap();
    let resolved = access().resolve(&base, &reference).await.unwrap();
    assert!(mirror.asked().is_empty(), "a tag is the registry's to say");
    let wanted = |access: Access| ImageRequest {
        digest: image.manifests[0],
        source: Arc::new(Repository::reached(access, &base, reference.clone())),
        limits: None,
    };
    let before = origin.asked().len();
    let first = store(&folder.path().join("a"));
    first.ensure(wanted(access()), "a").await.unwrap();
    assert!(!mirror.asked().is_empty());
    assert_eq!(
        origin.asked().len(),
        before,
        "a mirror has its own credential"
    );
    // While the registry is down its mirror says what a tag stands for.
    drop(origin);
    let again = access().resolve(&base, &reference).await.unwrap();
    assert_eq!(again, resolved);
    // What cannot be read any more is an error, never nobody's credential.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    registries.access(&reference).unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_want_the_same_share_one_result() {
    let image = image(4, 1 << 20);
    let site = Site::plain(honest(&image)).await;
    let (host, digest) = (site.at("registry.test"), image.manifests[0]);
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (store, wanted) = (store.clone(), request(&host, digest));
        waiting.spawn(async move { store.ensure(wanted, &format!("owner-{number}")).await });
    }
    let mut roots = Vec::new();
    while let Some(ended) = waiting.join_next().await {
        roots.push(ended.unwrap().unwrap());
    }
    assert!(roots.windows(2).all(|pair| pair[0] == pair[1]));
    // Manifest, config and two layers, once each.
    assert_eq!(site.asked().len(), 4);
    assert_clean(folder.path(), &store).await;
    // Some may have come after it was made.
    let tally = store.tally();
    assert_eq!(tally.hits + tally.misses, 8, "{tally:?}");
    assert!(tally.misses > 0, "{tally:?}");
    assert_eq!(tally.conversions.len(), 1);
    let again = store.ensure(request(&host, digest), "owner-0").await;
    assert_eq!(again.unwrap(), roots[0]);
    let tally = store.tally();
    assert_eq!((tally.hits, tally.misses), (1, 0));
    assert!(tally.conversions.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_needs_goes_first_and_what_is_pinned_stays() {
    let images: Vec<Image> = (10..14).map(|seed| image(seed, 2 << 20)).collect();
    let mut everything = Image::default();
    for image in &images {
        everything.blobs.extend(image.blobs.clone());
        everything.manifests.extend(image.manifests.clone());
    }
    let site = Site::plain(honest(&everything)).await;
    let host = site.at("registry.test");
    let folder = tempfile::tempdir().unwrap();
    // One takes 4 MiB, half of it for its layers, and 8.8 MiB while it is made.
    let quota = 12 << 20;
    let tight = StoreLimits { quota, ..limits() };
    let store = Store::open(folder.path(), tight, worker()).unwrap();
    let ensure = async |number: usize, owner: &str| {
        let wanted = request(&host, images[number].manifests[0]);
        store.ensure(wanted, owner).await
    };
    let pinned = ensure(0, "kept").await.unwrap();
    let loose = ensure(1, "gone").await.unwrap();
    assert!(pinned.root.exists() && loose.root.exists());
    store.release("gone");
    ensure(2, "third").await.unwrap();
    assert!(pinned.root.exists() && !loose.root.exists());
    // Of what is left nothing can go; the promise ends with the failure.
    let refused = ensure(3, "fourth").await.unwrap_err();
    assert_eq!(refused.code(), "disk_full", "{refused}");
    assert!(
        refused.to_string().contains(&quota.to_string()),
        "{refused}"
    );
    assert_clean(folder.path(), &store).await;
    store.release("third");
    ensure(3, "fourth").await.unwrap();
    assert!(pinned.root.exists());
    assert!(store.usage().unwrap().bytes <= quota);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_for_an_image_that_fits_in_no_way() {
    let (small, large) = (image(15, 1 << 20), image(16, 4 << 20));
    let mut both = small.clone();
    both.blobs.extend(large.blobs.clone());
    both.manifests.extend(large.manifests.clone());
    let site = Site::plain(honest(&both)).await;
    let host = site.at("registry.test");
    let folder = tempfile::tempdir().unwrap();
    // The large one takes 17.6 MiB while it is made.
    let quota = 12 << 20;
    let tight = StoreLimits { quota, ..limits() };
    let store = Store::open(folder.path(), tight, worker()).unwrap();
    let wanted = request(&host, small.manifests[0]);
    let loose = store.ensure(wanted, "one").await.unwrap();
    store.release("one");
    let wanted = request(&host, large.manifests[0]);
    let refused = store.ensure(wanted, "two").await.unwrap_err();
    assert_eq!(refused.code(), "disk_full", "{refused}");
    assert!(loose.root.exists());
    assert_eq!(store.usage().unwrap().evicted, 0);
    assert_clean(folder.path(), &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_byte_is_found_and_a_damaged_layer_is_fetched_again() {
    let image = image(5, 100_000);
    let site = Site::plain(honest(&image)).await;
    let (host, digest) = (site.at("registry.test"), image.manifests[0]);
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let pinned = store.ensure(request(&host, digest), "a").await.unwrap();
    assert_eq!(store.verify().unwrap(), []);
    damage(&pinned.root);
    let found = store.verify().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, pinned.root);
    fs::remove_file(&pinned.root).unwrap();
    let layer = folder
        .path()
        .join("blobs")
        .join(image.layers[0].to_string());
    damage(&layer);
    let refused = store.ensure(request(&host, digest), "a").await.unwrap_err();
    assert_eq!(refused.code(), "image_layer_invalid", "{refused}");
    let again = store.ensure(request(&host, digest), "a").await.unwrap();
    assert_eq!(again.about, pinned.about);
    assert_clean(folder.path(), &store).await;
}

fn damage(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A folder and a store in it that asks a site.
struct Stage {
    folder: TempDir,
    store: Store,
}

impl Stage {
    fn with(limits: StoreLimits, worker: WorkerCommand) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), limits, worker).unwrap();
        Self { folder, store }
    }

    async fn refused(&self, site: &Site, digest: Digest) -> EnsureError {
        let wanted = request(&site.at("registry.test"), digest);
        let refused = self.store.ensure(wanted, "a").await.unwrap_err();
        assert_clean(self.folder.path(), &self.store).await;
        refused
    }
}
