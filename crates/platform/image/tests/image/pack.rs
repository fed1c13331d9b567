//! Images of folders: what others read in them, and the same bytes every time.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use fluffy_base::Digest;
use fluffy_image::document::ImageConfig;
use fluffy_image::{Limits, PackError, pack, resolve_layout};
use tempfile::TempDir;

use crate::real::skopeo;

/// A folder with all that an image can hold.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let deep = root.join("a".repeat(90)).join("b".repeat(90));
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("empty.txt"), "").unwrap();
    fs::write(root.join("block"), [b'x'; 512]).unwrap();
    fs::write(root.join("grüße\n"), "odd").unwrap();
    fs::write(deep.join("deep"), vec![7; 300_000]).unwrap();
    fs::write(root.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o4750)).unwrap();
    symlink("/run", root.join("absolute")).unwrap();
    symlink("c".repeat(150), root.join("nowhere")).unwrap();
    folder
}

fn runs() -> ImageConfig {
    ImageConfig {
        env: vec!["PATH=/bin".to_owned()],
        cmd: vec!["/run".to_owned()],
        workdir: "/empty".to_owned(),
        ..ImageConfig::default()
    }
}

fn packed(folder: &TempDir, name: &str) -> Result<(Digest, PathBuf), PackError> {
    let layout = folder.path().join(name);
    let made = pack(&folder.path().join("root"), &layout, &runs())?;
    Ok((made.digest, layout))
}

fn blobs(layout: &Path) -> Vec<String> {
    let listed = fs::read_dir(layout.join("blobs/sha256")).unwrap();
    let name = |it: fs::DirEntry| it.file_name().into_string().unwrap();
    let mut names: Vec<String> = listed.map(|it| name(it.unwrap())).collect();
    names.sort();
    names
}

#[test]
fn others_read_what_was_packed() {
    let folder = folder();
    let (digest, layout) = packed(&folder, "image").unwrap();
    let found = resolve_layout(&layout, Limits::default()).unwrap();
    assert_eq!(found.digest, digest);
    let layer = found.platforms[0].layers[0].digest;
    let layer = layout.join("blobs/sha256").join(layer.to_string());
    // skopeo reads the documents and checks every digest on its way.
    let copy = folder.path().join("copy");
    let (from, to) = (
        format!("oci:{}", layout.display()),
        format!("oci:{}:x", copy.display()),
    );
    skopeo(&["copy", &from, &to]);
    let shown = skopeo(&["inspect", "--config", &from]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["config"]["Cmd"][0], "/run");
    assert_eq!(shown["config"]["WorkingDir"], "/empty");
    // GNU's tar takes out of the layer what went into it.
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let taken = Command::new("tar")
        .args(["--extract", "--numeric-owner", "--file"])
        .arg(&layer)
        .arg("--directory")
        .arg(&out)
        .output()
        .unwrap();
    assert!(taken.status.success(), "{taken:?}");
    let same = Command::new("diff")
        .args(["--recursive", "--no-dereference"])
        .arg(folder.path().join("root"))
        .arg(&out)
        .output()
        .unwrap();
    assert!(same.status.success(), "{same:?}");
    let mode = fs::metadata(out.join("run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let (first, second) = (folder(), folder());
    let touched = second.path().join("root/run");
    fs::set_permissions(&touched, fs::Permissions::from_mode(0o700)).unwrap();
    let (digest, layout) = packed(&first, "image").unwrap();
    let (again, other) = packed(&second, "image").unwrap();
    assert_eq!(digest, again);
    assert_eq!(blobs(&layout), blobs(&other));
    // A byte more is another image.
    fs::write(touched, "#!/bin/sh\n\n").unwrap();
    assert_ne!(packed(&second, "changed").unwrap().0, digest);
}

#[test]
fn what_is_no_image_is_refused_and_nothing_is_written_over() {
    let folder = folder();
    let root = folder.path().join("root");
    packed(&folder, "image").unwrap();
    let before = blobs(&folder.path().join("image"));
    let again = packed(&folder, "image");
    assert!(matches!(again, Err(PackError::Write { .. })), "{again:?}");
    assert_eq!(blobs(&folder.path().join("image")), before);
    let inside = packed(&folder, "root/empty/image");
    assert!(
        matches!(inside, Err(PackError::Inside { .. })),
        "{inside:?}"
    );
    let missing = pack(
        &folder.path().join("none"),
        &folder.path().join("x"),
        &runs(),
    );
    assert!(
        matches!(missing, Err(PackError::Read { .. })),
        "{missing:?}"
    );

    let socket = UnixListener::bind(root.join("socket")).unwrap();
    let refused = packed(&folder, "one");
    assert!(
        matches!(refused, Err(PackError::Entry { .. })),
        "{refused:?}"
    );
    drop(socket);
    fs::remove_file(root.join("socket")).unwrap();
    fs::write(root.join(".wh.run"), "").unwrap();
    let refused = packed(&folder, "two");
    assert!(
        matches!(refused, Err(PackError::Entry { .. })),
        "{refused:?}"
    );
}
