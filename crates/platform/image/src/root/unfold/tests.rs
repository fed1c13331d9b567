//! Files that no writer of ours wrote are unfolded as far as they make sense,
//! and never anywhere else.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::Command;

use fluffy_base::Digest;
use fluffy_test_kit::Random;

use super::unfold;
use crate::document::Compression;
use crate::root::{LayerBlob, Root, RootLimits, convert};

/// A small root file system with one of everything.
fn made(folder: &Path) -> (Vec<u8>, Root) {
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("inner/most")).unwrap();
    fs::write(tree.join("inner/most/escape"), "small").unwrap();
    fs::write(tree.join("large"), vec![7; 9_000]).unwrap();
    fs::hard_link(tree.join("large"), tree.join("inner/again")).unwrap();
    symlink("../large", tree.join("inner/link")).unwrap();
    let mut tar = Command::new("tar");
    let packed = tar.args(["--create", "--directory"]).arg(&tree).arg(".");
    let layer = packed.output().unwrap().stdout;
    let (result, aside) = (folder.join("result"), folder.join("aside"));
    let open = |path: &Path| {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        options.open(path).unwrap()
    };
    let blob = LayerBlob {
        bytes: &*layer,
        compression: Compression::None,
        diff_id: Digest::of(&layer),
    };
    let limits = RootLimits::default();
    let root = convert([blob], limits, &open(&result), &open(&aside)).unwrap();
    (fs::read(&result).unwrap(), root)
}

/// What becomes of these bytes; what is beside the folder must not change.
fn unfolded(folder: &Path, bytes: &[u8], root: &Root) -> std::io::Result<()> {
    let around = tempfile::tempdir_in(folder).unwrap();
    let (into, file) = (around.path().join("into"), around.path().join("file"));
    fs::create_dir(&into).unwrap();
    fs::write(&file, bytes).unwrap();
    let done = unfold(&File::open(&file).unwrap(), root, &into);
    assert_eq!(fs::read_dir(around.path()).unwrap().count(), 2);
    assert!(fs::read(&file).unwrap() == bytes);
    done
}

#[test]
fn a_name_that_leads_out_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, root) = made(folder.path());
    unfolded(folder.path(), &bytes, &root).unwrap();
    let at = bytes.windows(6).position(|it| it == b"escape").unwrap();
    for name in [b"../esc", b"/escap", b"..\0\0\0\0"] {
        let mut bytes = bytes.clone();
        bytes[at..at + 6].copy_from_slice(name);
        let done = unfolded(folder.path(), &bytes, &root);
        // Two dots are every folder's own, and skipped.
        assert_eq!(done.is_ok(), name.starts_with(b"..\0"), "{name:?}");
    }
    // One that is there twice, as a link and as a folder to go through.
    let mut twice = bytes.clone();
    let at = bytes.windows(4).position(|it| it == b"link").unwrap();
    twice[at..at + 4].copy_from_slice(b"most");
    assert!(unfolded(folder.path(), &twice, &root).is_err());
    // More than was said.
    let fewer = Root { inodes: 2, ..root };
    assert!(unfolded(folder.path(), &bytes, &fewer).is_err());
}

#[test]
fn changed_bytes_end_in_an_error_or_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, root) = made(folder.path());
    let (mut random, mut refused) = (Random::new(7), 0);
    let meta = bytes.len() - 4_096;
    let whole = folder.path().join("whole");
    fs::write(&whole, &bytes).unwrap();
    for _ in 0..400 {
        let mut changed = bytes.clone();
        for _ in 0..=random.below(4) {
            // Mostly where the numbers are.
            let at = match random.below(4) {
                0 => 1_024 + random.below(128),
                _ => meta as u64 + random.below(1_024),
            };
            let at = usize::try_from(at).unwrap();
            changed[at] = u8::try_from(random.below(256)).unwrap();
        }
        refused += usize::from(unfolded(folder.path(), &changed, &root).is_err());
    }
    assert!(refused > 20, "{refused}");
    let mut kept = vec![0; bytes.len()];
    let file = File::open(&whole).unwrap();
    file.read_exact_at(&mut kept, 0).unwrap();
    assert!(kept == bytes);
}
