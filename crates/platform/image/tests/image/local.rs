//! Layouts and archives, written by skopeo, by tar, and by somebody hostile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use fluffy_base::Digest;
use fluffy_image::{
    Limits, ReadLocalError, ResolveError, Resolved, SurveyError, resolve_archive, resolve_layout,
};
use tempfile::TempDir;

use crate::real::skopeo;
use crate::sample::{Image, header};

fn layout(path: &Path) -> Result<Resolved, ResolveError> {
    resolve_layout(path, Limits::default())
}

fn archive(path: &Path) -> Result<Resolved, ResolveError> {
    resolve_archive(path, Limits::default())
}

/// A folder with an image for two architectures in it.
fn written() -> (TempDir, Image) {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::new(&["amd64", "arm64"]);
    image.write(folder.path());
    (folder, image)
}

fn blob(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join("blobs/sha256").join(digest.to_string())
}

/// A tar archive of these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    [entries(files), vec![0; 1024]].concat()
}

/// The same without its end.
fn entries(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, content) in files {
        all.extend(header(name, b'0', content.len() as u64));
        all.extend(*content);
        all.resize(all.len().next_multiple_of(512), 0);
    }
    all
}

fn of_bytes(bytes: &[u8]) -> Result<Resolved, ResolveError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.tar");
    fs::write(&path, bytes).unwrap();
    archive(&path)
}

#[test]
fn a_layout_is_found_whoever_wrote_it() {
    let (folder, image) = written();
    let resolved = layout(folder.path()).unwrap();
    assert_eq!(resolved.digest, image.digest());
    let found: Vec<_> = resolved
        .platforms
        .iter()
        .map(|it| (it.arch.as_str(), it.digest))
        .collect();
    assert_eq!(
        found,
        [("amd64", image.manifests[0]), ("arm64", image.manifests[1])]
    );
    let copy = folder.path().join("copy");
    let (from, to) = (
        format!("oci:{}", folder.path().display()),
        format!("oci:{}", copy.display()),
    );
    skopeo(&["copy", "--all", "--preserve-digests", &from, &to]);
    assert_eq!(layout(&copy).unwrap(), resolved);
    // The same in one file, as Docker has written it since version 25.
    let file = folder.path().join("image.tar");
    let packed = Command::new("tar")
        .arg("-cf")
        .arg(&file)
        .arg("-C")
        .arg(&copy)
        .arg(".")
        .status();
    assert!(packed.unwrap().success());
    assert_eq!(archive(&file).unwrap(), resolved);
    // One entry for each architecture, without an index of their own.
    let index = String::from_utf8(image.root.clone()).unwrap();
    fs::write(folder.path().join("index.json"), &index).unwrap();
    assert_eq!(layout(folder.path()).unwrap(), resolved);
    // Two for the same are two images, of which none is meant.
    fs::write(
        folder.path().join("index.json"),
        index.replace("amd64", "arm64"),
    )
    .unwrap();
    let refused = layout(folder.path()).unwrap_err();
    assert!(refused.to_string().ends_with("holds 2 images"), "{refused}");
}

#[test]
fn an_archive_of_the_old_form_gets_a_manifest() {
    let (folder, image) = written();
    let from = format!("oci:{}", folder.path().display());
    let mut found = Vec::new();
    for name in ["one.tar", "other.tar"] {
        let file = folder.path().join(name);
        let to = format!("docker-archive:{}:app:{name}", file.display());
        skopeo(&["copy", "--override-arch", "arm64", &from, &to]);
        found.push(archive(&file).unwrap());
    }
    let [platform] = found[0].platforms.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(
        (platform.os.as_str(), platform.arch.as_str()),
        ("linux", "arm64")
    );
    assert_eq!(platform.layers[0].digest, image.layers[1]);
    assert_eq!(platform.digest, found[0].digest);
    // What it is depends on what is in it, not on how it was called.
    assert_eq!(found[0], found[1]);
}

#[test]
fn no_link_leads_out_of_a_layout() {
    for place in ["index.json", "blobs", "blobs/sha256", "config", "layer"] {
        let (folder, image) = written();
        let inside = match place {
            "config" => blob(folder.path(), &image.configs[0]),
            "layer" => blob(folder.path(), &image.layers[0]),
            place => folder.path().join(place),
        };
        assert!(layout(folder.path()).is_ok(), "{place}: the control");
        let outside = tempfile::tempdir().unwrap();
        let moved = outside.path().join("moved");
        fs::rename(&inside, &moved).unwrap();
        symlink(&moved, &inside).unwrap();
        let refused = layout(folder.path());
        let missing = matches!(
            refused,
            Err(ResolveError::Local(ReadLocalError::Missing { .. }))
        );
        assert!(missing, "{place}: {refused:?}");
    }
}

#[test]
fn what_is_in_a_layout_is_checked_like_a_registry() {
    let (folder, image) = written();
    let config = blob(folder.path(), &image.configs[0]);
    let content = fs::read(&config).unwrap();
    fs::write(
        &config,
        String::from_utf8(content.clone())
            .unwrap()
            .replace("true", "evil"),
    )
    .unwrap();
    let refused = layout(folder.path());
    let Err(ResolveError::Survey(SurveyError::Content { what, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(what, "digest");
    fs::write(&config, content).unwrap();
    let layer = blob(folder.path(), &image.layers[1]);
    fs::write(&layer, "short").unwrap();
    let refused = layout(folder.path()).unwrap_err().to_string();
    assert!(
        refused.ends_with("a layer has another size than it should"),
        "{refused}"
    );
    fs::remove_file(&layer).unwrap();
    let refused = layout(folder.path()).unwrap_err().to_string();
    assert!(refused.contains(&image.layers[1].to_string()), "{refused}");
    // A pipe is not waited for, and nothing larger than it may be is read.
    let index = folder.path().join("index.json");
    fs::remove_file(&index).unwrap();
    let made = Command::new("mkfifo").arg(&index).status().unwrap();
    assert!(made.success());
    assert!(matches!(
        layout(folder.path()),
        Err(ResolveError::Local(ReadLocalError::Missing { .. }))
    ));
    fs::remove_file(&index).unwrap();
    fs::File::create(&index).unwrap().set_len(16 << 20).unwrap();
    let refused = layout(folder.path());
    assert!(matches!(
        refused,
        Err(ResolveError::Local(ReadLocalError::TooLarge { .. }))
    ));
    fs::remove_file(folder.path().join("oci-layout")).unwrap();
    assert!(
        layout(folder.path())
            .unwrap_err()
            .to_string()
            .ends_with("has no `oci-layout`")
    );
    let nowhere = layout(&folder.path().join("nowhere")).unwrap_err();
    assert_eq!(nowhere.code(), "image_unresolvable");
}

#[test]
fn a_hostile_archive_is_refused_and_reaches_nothing_outside() {
    let image = Image::new(&["amd64"]);
    let config = &image.blobs[&image.configs[0]];
    let layer = &image.blobs[&image.layers[0]];
    let list = |config: &str, layer: &str| {
        format!(r#"[{{"Config":"{config}","RepoTags":null,"Layers":["{layer}"]}}]"#)
    };
    let plain = list("c.json", "l.tar");
    let good = tar(&[
        ("manifest.json", plain.as_bytes()),
        ("c.json", config),
        ("l.tar", layer),
    ]);
    assert!(of_bytes(&good).is_ok());
    let outside = list("../../../../../../etc/passwd", "l.tar");
    let absolute = list("c.json", "/etc/passwd");
    let zipped = [&[0x1f, 0x8b, 8, 0][..], layer].concat();
    let two = format!("[{0},{0}]", plain.trim_matches(['[', ']']));
    let many: Vec<String> = (0..10_001).map(|number| number.to_string()).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let unlinked = entries(&[("manifest.json", plain.as_bytes()), ("c.json", config)]);
    let linked = [unlinked, header("l.tar", b'2', 0), vec![0; 1024]].concat();
    let long = [entries(&[("a", b"b")]), header("l.tar", b'0', 4 << 30)].concat();
    for (bytes, why) in [
        (
            tar(&[("manifest.json", outside.as_bytes()), ("l.tar", layer)]),
            "etc/passwd",
        ),
        (
            tar(&[("manifest.json", absolute.as_bytes()), ("c.json", config)]),
            "has no `/etc/passwd`",
        ),
        (linked, "has no `l.tar`"),
        (
            tar(&[
                ("manifest.json", plain.as_bytes()),
                ("c.json", config),
                ("l.tar", &zipped),
            ]),
            "its layers are compressed, which only the OCI layout can say",
        ),
        (tar(&[("manifest.json", two.as_bytes())]), "holds 2 images"),
        (
            tar(&[("a", b"1"), ("a", b"2")]),
            "it has two files of one name",
        ),
        (tar(&many), "it has too many files"),
        (long, "it ends too early"),
        (good[..good.len() - 1024].to_vec(), "it ends too early"),
        (tar(&[("readme", b"hello")]), "has no `manifest.json`"),
        (
            b"\x1f\x8b\x08 a compressed archive".repeat(40),
            "it is compressed; unpack it first",
        ),
        (Vec::new(), "it ends too early"),
    ] {
        let refused = of_bytes(&bytes).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused} and not {why}");
        assert_eq!(refused.code(), "image_unresolvable");
        assert!(!refused.fix().is_empty());
    }
}
