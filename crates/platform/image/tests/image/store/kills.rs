//! Killed at any point, a store leaves nothing that is not whole.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_test_kit::{Random, RealRegistry};

use super::{image, request, store};
use crate::real::push;

/// The variable that makes a process of this test the one that is killed.
const TOLD: &str = "FLUFFY_TEST_STORE";

/// Does nothing, unless it was started by the test below: then it ensures
/// images until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_is_killed() {
    let Ok(told) = std::env::var(TOLD) else {
        return;
    };
    let words: Vec<&str> = told.split(' ').collect();
    let [folder, host, digests @ ..] = words.as_slice() else {
        panic!("{told}");
    };
    let store = store(Path::new(folder));
    for digest in digests {
        let digest: Digest = digest.parse().unwrap();
        store
            .ensure(request(host, digest), digest.to_string().as_str())
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_point_leaves_no_part_of_anything() {
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let registry = RealRegistry::start(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut told = format!(
        "{} {}",
        folder.path().join("store").display(),
        registry.host()
    );
    let mut digests = Vec::new();
    for number in 0..3 {
        let image = image(40 + number, 4 << 20);
        let layout = folder.path().join(format!("layout-{number}"));
        image.write(&layout);
        let name = format!("{}/app:v{number}", registry.host());
        push(&layout, &name, &["--all", "--preserve-digests"]);
        told.push_str(&format!(" {}", image.manifests[0]));
        digests.push(image.manifests[0]);
    }
    let at = folder.path().join("store");
    let (mut with_rests, mut with_blobs, mut killed) = (0, 0, 0);
    for _ in 0..24 {
        let _ = std::fs::remove_dir_all(&at);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["store::kills::the_one_that_is_killed", "--exact"])
            .env(TOLD, &told)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From when it works, at a moment within what the work takes.
        let mut patience = 6_000;
        while !at.join("tmp").exists() && patience > 0 {
            patience -= 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        let rests = std::fs::read_dir(at.join("tmp")).unwrap().count();
        with_rests += u32::from(rests > 0);
        // What has its name is whole, before anybody cleans up.
        for entry in std::fs::read_dir(at.join("blobs")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(Digest::of(&bytes).to_string(), name, "seed {seed}");
            with_blobs += 1;
        }
        let store = store(&at);
        super::assert_clean(&at, &store).await;
        for digest in store.cached().unwrap() {
            assert!(digests.contains(&digest));
        }
    }
    println!("{killed} killed, {with_rests} with rests, {with_blobs} blobs seen");
    assert!(
        killed > 0 && with_rests > 0 && with_blobs > 0,
        "it kills at the wrong moments"
    );
    // And after all that everything works.
    let store = store(&at);
    for digest in digests {
        store
            .ensure(request(registry.host(), digest), "a")
            .await
            .unwrap();
    }
}
