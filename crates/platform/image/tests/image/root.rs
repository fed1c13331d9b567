//! Root file systems made of layers: the kernel, `fsck.erofs` and umoci say
//! whether they are what the layers meant.

pub(crate) mod archive;
pub(crate) mod hostile;
pub(crate) mod judge;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use fluffy_base::Digest;
use fluffy_image::document::Compression;
use fluffy_image::{LayerBlob, RootLimits};
use fluffy_test_kit::Random;

use archive::{Archive, Piece, piece};
use judge::{Made, Mounted, seen, unpacked_by_umoci};

/// Three layers with all that layers do.
pub(crate) fn ordinary() -> Vec<Vec<u8>> {
    let long = "n".repeat(200);
    let large: Vec<u8> = (0..70_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut many = Archive::default().folder("many/");
    for number in 0..900 {
        let name = format!("many/{number:04}-a-name-of-some-length");
        many = many.file(&name, name.as_bytes());
    }
    let base = Archive::default()
        .folder("./")
        .folder("bin/")
        .add(&Piece {
            content: &large,
            mode: 0o4755,
            owner: (12, 34),
            ..piece(b'0', "bin/large")
        })
        .file("small", b"a few bytes")
        .file("empty", b"")
        .file("just-below", &[b'x'; 2047])
        .file("just-above", &[b'y'; 2048])
        .file("a-block", &[b'z'; 4096])
        .link("usr", "bin")
        .link("absolute", "/bin/../../bin")
        .hard_link("bin/second", "bin/large")
        .hard_link("linked", "small")
        .add(&piece(b'6', "pipe"))
        .folder("etc/")
        .link("etc/absolute", "/bin")
        .file("etc/kept", b"kept")
        .file("etc/gone", b"gone")
        .folder("opaque/")
        .file("opaque/lower", b"lower")
        .folder("swapped/")
        .file("swapped/inside", b"inside")
        .records(&[
            ("path", long.as_bytes()),
            ("uid", b"70000"),
            ("mtime", b"1600000000.5"),
        ])
        .file("short", b"long name");
    let upper = Archive::default()
        .folder("./")
        .folder("bin/")
        // Through a link of the layer below.
        .file("usr/through", b"through")
        .file("absolute/also", &[7; 5000])
        .folder("etc/")
        .file("etc/absolute/deep", b"deep")
        .file("etc/.wh.gone", b"")
        .file("small", b"other bytes")
        .folder("opaque/")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/upper", b"upper")
        .file("swapped", b"now a file");
    vec![base.end(), many.end(), upper.end()]
}

#[test]
fn layers_become_what_the_kernel_and_others_read() {
    let layers = ordinary();
    let made = Made::of(&layers);
    let root = *made.root.as_ref().unwrap();
    assert_eq!(root.size, fs::metadata(made.path()).unwrap().len());
    assert_eq!(root.dropped, 0);
    let others = tempfile::tempdir().unwrap();
    let theirs = seen(&unpacked_by_umoci(others.path(), &layers));
    assert!(theirs.len() > 900, "{theirs:?}");
    let Some(mounted) = Mounted::new(&made) else {
        return;
    };
    let ours = seen(&mounted.at);
    for (name, what) in &theirs {
        // They set the times of folders when they are done with them.
        if !what.starts_with("40") {
            assert_eq!(ours.get(name), Some(what), "{name}");
        }
    }
    let names = |all: &BTreeMap<String, String>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs));
    assert_eq!(ours.len() as u64, root.inodes + 1, "one file has two names");
}

#[test]
fn a_second_reader_agrees() {
    let made = Made::of(&ordinary());
    let out = made.taken_out();
    assert_eq!(fs::read(out.join("small")).unwrap(), b"other bytes");
    assert_eq!(fs::read(out.join("linked")).unwrap(), b"a few bytes");
    assert_eq!(fs::read(out.join("bin/through")).unwrap(), b"through");
    assert_eq!(fs::read(out.join("bin/deep")).unwrap(), b"deep");
    assert!(!out.join("etc/gone").exists() && !out.join("opaque/lower").exists());
    assert_eq!(fs::read_dir(out.join("many")).unwrap().count(), 900);
    // The control: it does look.
    let file = File::options().write(true).open(made.path()).unwrap();
    let end = fs::metadata(made.path()).unwrap().len();
    file.write_all_at(&[0xff; 4096], end - 8192).unwrap();
    let mut check = Command::new("fsck.erofs");
    let checked = check.arg("--extract").arg(made.path()).output().unwrap();
    assert!(!checked.status.success());
}

#[test]
fn the_same_layers_give_the_same_bytes_however_they_are_packed() {
    let layers = ordinary();
    let plain = fs::read(Made::of(&layers).path()).unwrap();
    let ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
    let gzip = |bytes: &Vec<u8>| {
        // In two members, as some builders write.
        let (one, two) = bytes.split_at(bytes.len() / 2);
        let pack = |part: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(part).unwrap();
            packer.finish().unwrap()
        };
        [pack(one), pack(two)].concat()
    };
    let zstd = |bytes: &Vec<u8>| {
        let (one, two) = bytes.split_at(bytes.len() / 2);
        let pack = |part: &[u8]| zstd::encode_all(part, 1).unwrap();
        [pack(one), pack(two)].concat()
    };
    for (compression, packed) in [
        (
            Compression::Gzip,
            layers.iter().map(gzip).collect::<Vec<_>>(),
        ),
        (Compression::Zstd, layers.iter().map(zstd).collect()),
    ] {
        let blobs = packed.iter().zip(&ids).map(|(bytes, id)| LayerBlob {
            bytes: &**bytes,
            compression,
            diff_id: *id,
        });
        let made = Made::from(blobs, RootLimits::default());
        assert!(fs::read(made.path()).unwrap() == plain, "{compression:?}");
    }
}

#[test]
fn attributes_that_matter_in_a_guest_survive() {
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let large = vec![b'v'; 9_000];
    let layer = Archive::default()
        .records(&[
            ("SCHILY.xattr.security.capability", capability),
            ("SCHILY.xattr.user.color", b"blue"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.security.selinux", b"none"),
        ])
        .file("ping", b"small, beside its attributes")
        .records(&[("SCHILY.xattr.user.large", &large)])
        .file("much", b"small, without room beside it");
    let made = Made::of(&[layer.end()]);
    made.taken_out();
    let Some(mounted) = Mounted::new(&made) else {
        return;
    };
    let attribute = |file: &str, name: &str| {
        let mut value = vec![0; 16 << 10];
        let size = rustix::fs::getxattr(mounted.at.join(file), name, &mut value[..]);
        size.map(|size| value[..size].to_vec())
    };
    assert_eq!(
        attribute("ping", "security.capability").unwrap(),
        capability
    );
    assert_eq!(attribute("ping", "user.color").unwrap(), b"blue");
    assert_eq!(attribute("much", "user.large").unwrap(), large);
    assert!(attribute("ping", "trusted.overlay.opaque").is_err());
    assert!(attribute("ping", "security.selinux").is_err());
    let content = fs::read(mounted.at.join("much")).unwrap();
    assert_eq!(content, b"small, without room beside it");
}

#[test]
fn what_a_layer_brings_outlives_what_it_takes_away() {
    let lower = Archive::default().folder("a/").file("a/old", b"1");
    let lower = lower.file("b", b"old").end();
    // In both orders.
    let after = Archive::default().file("a/new", b"2").file(".wh.a", b"");
    let before = Archive::default().file(".wh.a", b"").file("a/new", b"2");
    for upper in [after, before] {
        let upper = upper
            .add(&piece(b'3', "b"))
            .file("c/.wh.nothing", b"")
            .end();
        let out = Made::of(&[lower.clone(), upper]);
        let out = out.taken_out();
        assert!(!out.join("a/old").exists() && out.join("a/new").exists());
        assert!(!out.join("b").exists() && out.join("c").is_dir());
    }
}

#[test]
fn devices_are_left_out_and_counted() {
    let device = |kind, name| Piece {
        device: (1, 3),
        ..piece(kind, name)
    };
    let layer = Archive::default()
        .add(&device(b'3', "null"))
        .add(&device(b'4', "disk"))
        .file("kept", b"");
    let made = Made::of(&[layer.end()]);
    assert_eq!(made.root.as_ref().unwrap().dropped, 2);
    assert_eq!(fs::read_dir(made.taken_out()).unwrap().count(), 1);
}

#[test]
fn what_a_later_layer_replaces_takes_no_room() {
    let large = |byte: u8| vec![byte; 8 << 20];
    let one = Archive::default().file("a", &large(1)).end();
    let two = Archive::default().file("a", &large(2)).end();
    let blocks = |layers: &[Vec<u8>]| {
        let made = Made::of(layers);
        let meta = fs::metadata(made.path()).unwrap();
        meta.blocks() * 512
    };
    let (both, single) = (blocks(&[one.clone(), two]), blocks(&[one]));
    assert!(both < single + (1 << 20), "{both} {single}");
}

#[test]
fn random_layers_mean_what_umoci_takes_them_for() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let layers: Vec<Vec<u8>> = (0..3).map(|_| random_layer(&mut random)).collect();
        let made = Made::of(&layers);
        if let Err(error) = &made.root {
            panic!("seed {seed}: {error}");
        }
        let others = tempfile::tempdir().unwrap();
        let theirs = unpacked_by_umoci(others.path(), &layers);
        let contents = |root: &Path| -> BTreeMap<String, String> {
            let mut all = seen(root);
            // Only what and whose; times of folders differ.
            for what in all.values_mut() {
                let mut words = what.split_whitespace();
                let kind = words.next().unwrap_or_default();
                let last = words.next_back().unwrap_or_default();
                *what = match kind.starts_with("40") {
                    true => kind.to_owned(),
                    false => format!("{kind} {last}"),
                };
            }
            all
        };
        assert_eq!(
            contents(&made.taken_out()),
            contents(&theirs),
            "seed {seed}"
        );
    }
}

/// A layer of folders, files and what takes some away, as builders write it.
fn random_layer(random: &mut Random) -> Vec<u8> {
    let mut archive = Archive::default().folder("./");
    for folder in ["a", "b", "a/c"] {
        if folder == "a/c" || random.below(3) > 0 {
            let parent = folder.split('/').next().unwrap();
            if parent != folder {
                archive = archive.folder(&format!("{parent}/"));
            }
            archive = archive.folder(&format!("{folder}/"));
            if random.below(4) == 0 {
                archive = archive.file(&format!("{folder}/.wh..wh..opq"), b"");
            }
            for name in ["x", "y", "z"] {
                let path = format!("{folder}/{name}");
                archive = match random.below(6) {
                    0 => archive.file(&format!("{folder}/.wh.{name}"), b""),
                    1 => archive.link(&path, "../b/x"),
                    2 => {
                        let size = usize::try_from(random.below(9_000)).unwrap();
                        archive.file(&path, &vec![b'f'; size])
                    }
                    3 => archive
                        .file(&path, b"two names")
                        .hard_link(&format!("{path}-too"), &path),
                    _ => archive,
                };
            }
        }
    }
    archive.end()
}
