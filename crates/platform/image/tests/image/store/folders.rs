//! Root file systems as folders, for machines that cannot mount files.

use std::fs;
use std::path::Path;

use fluffy_image::{RootForm, Store, StoreLimits};

use super::{assert_clean, damage, image, limits, request, worker};
use crate::root::judge::{Made, Mounted, seen};
use crate::root::ordinary;
use crate::sample::Image;
use crate::site::{Site, honest};

fn folders(folder: &Path, limits: StoreLimits) -> Store {
    let form = RootForm::Folder;
    Store::open(folder, StoreLimits { form, ..limits }, worker()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_holds_what_the_kernel_finds_in_the_file() {
    let layers = ordinary();
    let image = Image::of_layers(&layers, true);
    let site = Site::plain(honest(&image)).await;
    let (host, digest) = (site.at("registry.test"), image.manifests[0]);
    let folder = tempfile::tempdir().unwrap();
    let store = folders(folder.path(), limits());
    let pinned = store.ensure(request(&host, digest), "a").await.unwrap();
    assert!(pinned.root.is_dir());
    assert_clean(folder.path(), &store).await;
    if let Some(mounted) = Mounted::new(&Made::of(&layers)) {
        assert_eq!(seen(&pinned.root), seen(&mounted.at));
    }
    // It counts, is found again, and a change in it is seen.
    let usage = store.usage().unwrap();
    assert!(usage.bytes > pinned.about.size, "{usage:?}");
    drop((store, site));
    fs::create_dir_all(folder.path().join("tmp/left/over")).unwrap();
    fs::create_dir_all(folder.path().join("roots/half.folder/tree")).unwrap();
    let store = folders(folder.path(), limits());
    assert!(!folder.path().join("roots/half.folder").exists());
    let again = store.ensure(request(&host, digest), "b").await.unwrap();
    assert_eq!(again, pinned);
    assert_clean(folder.path(), &store).await;
    damage(&pinned.root.join("a-block"));
    assert_eq!(store.verify().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_go_when_there_are_too_many() {
    let images = [image(70, 2 << 20), image(71, 2 << 20)];
    let mut everything = Image::default();
    for image in &images {
        everything.blobs.extend(image.blobs.clone());
        everything.manifests.extend(image.manifests.clone());
    }
    let site = Site::plain(honest(&everything)).await;
    let host = site.at("registry.test");
    let folder = tempfile::tempdir().unwrap();
    let quota = 12 << 20;
    let store = folders(folder.path(), StoreLimits { quota, ..limits() });
    let [first, second] = images.map(|image| request(&host, image.manifests[0]));
    let first = store.ensure(first, "one").await.unwrap();
    store.release("one");
    let second = store.ensure(second, "two").await.unwrap();
    assert!(!first.root.exists() && second.root.is_dir());
    assert_clean(folder.path(), &store).await;
    assert!(store.usage().unwrap().bytes <= quota);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_lost_a_part_is_named_and_made_again() {
    let image = image(72, 50_000);
    let site = Site::plain(honest(&image)).await;
    let (host, digest) = (site.at("registry.test"), image.manifests[0]);
    let folder = tempfile::tempdir().unwrap();
    let store = folders(folder.path(), limits());
    let pinned = store.ensure(request(&host, digest), "a").await.unwrap();
    let place = pinned.root.parent().unwrap().to_owned();
    let damaged = || {
        let damaged = store.verify().unwrap().into_iter();
        damaged.map(|it| it.path).collect::<Vec<_>>()
    };
    // Its files are gone, and not what is beside them.
    fs::remove_dir_all(&pinned.root).unwrap();
    assert_eq!(damaged(), std::slice::from_ref(&place));
    let again = store.ensure(request(&host, digest), "a").await.unwrap();
    assert_eq!(again, pinned);
    assert_clean(folder.path(), &store).await;
    // As if the disk had been full when it was described.
    fs::remove_file(place.with_extension("json")).unwrap();
    let again = store.ensure(request(&host, digest), "a").await.unwrap();
    assert_eq!(again, pinned);
    assert_clean(folder.path(), &store).await;
    // Whoever removes what is named removes all of it.
    damage(&pinned.root.join("bin/serve"));
    assert_eq!(damaged(), [place]);
}
