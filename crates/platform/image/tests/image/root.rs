//! Root file systems made of layers: the kernel, `fsck.erofs` and umoci say
//! whether they are what the layers meant; hostile layers are refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use fluffy_base::Digest;
use fluffy_image::document::Compression;
use fluffy_image::{ConvertError, LayerBlob, Root, RootLimits, convert};
use fluffy_test_kit::{Random, record_skip};
use serde_json::json;

/// An archive in the making.
#[derive(Debug, Clone, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
}

/// One entry of it.
#[derive(Debug, Clone)]
struct Piece<'a> {
    kind: u8,
    name: &'a str,
    link: &'a str,
    content: &'a [u8],
    mode: u32,
    owner: (u32, u32),
    modified: u64,
    device: (u32, u32),
}

const fn piece<'a>(kind: u8, name: &'a str) -> Piece<'a> {
    Piece {
        kind,
        name,
        link: "",
        content: b"",
        mode: 0o644,
        owner: (0, 0),
        modified: 1_700_000_000,
        device: (0, 0),
    }
}

impl Archive {
    fn add(mut self, piece: &Piece<'_>) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, piece.name.as_bytes());
        put(100, format!("{:07o}\0", piece.mode).as_bytes());
        put(108, format!("{:07o}\0", piece.owner.0).as_bytes());
        put(116, format!("{:07o}\0", piece.owner.1).as_bytes());
        put(124, format!("{:011o}\0", piece.content.len()).as_bytes());
        put(136, format!("{:011o}\0", piece.modified).as_bytes());
        put(148, b"        ");
        put(156, &[piece.kind]);
        put(157, piece.link.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}\0", piece.device.0).as_bytes());
        put(337, format!("{:07o}\0", piece.device.1).as_bytes());
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(header);
        self.bytes.extend(piece.content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &[u8]) -> Self {
        self.add(&Piece {
            content,
            ..piece(b'0', name)
        })
    }

    fn folder(self, name: &str) -> Self {
        self.add(&Piece {
            mode: 0o755,
            ..piece(b'5', name)
        })
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.add(&Piece {
            link: target,
            mode: 0o777,
            ..piece(b'2', name)
        })
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.add(&Piece {
            link: target,
            ..piece(b'1', name)
        })
    }

    /// A header of POSIX that speaks about the next entry.
    fn records(self, records: &[(&str, &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest..).find(|all| all.to_string().len() + rest == *all);
            content.extend(format!("{} {key}=", length.unwrap()).bytes());
            content.extend(*value);
            content.push(b'\n');
        }
        self.add(&Piece {
            content: &content,
            ..piece(b'x', "records")
        })
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }
}

/// Converts layers as they are.
struct Made {
    folder: tempfile::TempDir,
    root: Result<Root, ConvertError>,
}

impl Made {
    fn path(&self) -> PathBuf {
        self.folder.path().join("root.erofs")
    }

    fn of(layers: &[Vec<u8>]) -> Self {
        Self::within(layers, RootLimits::default())
    }

    fn within(layers: &[Vec<u8>], limits: RootLimits) -> Self {
        let blobs = layers.iter().map(|layer| LayerBlob {
            bytes: &**layer,
            compression: Compression::None,
            diff_id: Digest::of(layer),
        });
        Self::from(blobs, limits)
    }

    fn from<'a>(blobs: impl IntoIterator<Item = LayerBlob<&'a [u8]>>, limits: RootLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            options.open(folder.path().join(name)).unwrap()
        };
        let root = convert(blobs, limits, &file("root.erofs"), &file("aside"));
        // Nothing else came to be, whatever names the layers had.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        Self { folder, root }
    }

    /// What `fsck.erofs` finds good and takes out of it.
    fn taken_out(&self) -> PathBuf {
        self.root.as_ref().unwrap();
        let out = self.folder.path().join("out");
        let mut check = Command::new("fsck.erofs");
        check.arg(format!("--extract={}", out.display()));
        let checked = check.arg(self.path()).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
        out
    }

    fn code(&self) -> &'static str {
        self.root.as_ref().unwrap_err().code()
    }
}

/// A file system that this machine's kernel mounted; unmounted when dropped.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn new(made: &Made) -> Option<Self> {
        made.root.as_ref().unwrap();
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if !known.contains("erofs") {
            record_skip("EROFS by the kernel", "the kernel of this machine has none");
            return None;
        }
        let at = made.folder.path().join("mounted");
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "erofs", "-o", "loop,ro"]);
        let mounted = mount.arg(made.path()).arg(&at).output().unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        Some(Self { at })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

/// Everything that can be seen of a tree.
fn seen(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let content = if kind.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if kind.is_file() {
            let content = fs::read(&path).unwrap();
            format!("{} {}", content.len(), Digest::of(&content))
        } else {
            String::new()
        };
        let times = (meta.mtime(), meta.mtime_nsec());
        let links = if kind.is_dir() { 0 } else { meta.nlink() };
        let (mode, owner) = (meta.mode(), (meta.uid(), meta.gid()));
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        all.insert(
            name.escape_ascii().to_string(),
            format!("{mode:o} {owner:?} {times:?} {links} {content}"),
        );
        if kind.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    all
}

/// What umoci makes of the same layers.
fn unpacked_by_umoci(folder: &Path, layers: &[Vec<u8>]) -> PathBuf {
    let layout = folder.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |kind: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes).to_string();
        fs::write(blobs.join(&digest), bytes).unwrap();
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        })
    };
    let ids: Vec<String> = layers
        .iter()
        .map(|layer| format!("sha256:{}", Digest::of(layer)))
        .collect();
    let config = json!({
        "os": "linux",
        "architecture": "amd64",
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": ids },
    });
    let config = put("config.v1+json", config.to_string().as_bytes());
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| put("layer.v1.tar", layer))
        .collect();
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let mut manifest = put("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "one" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    fs::write(layout.join("oci-layout"), version.to_string()).unwrap();
    let bundle = folder.join("bundle");
    let mut umoci = Command::new("umoci");
    umoci.arg("unpack").arg("--image");
    umoci.arg(format!("{}:one", layout.display())).arg(&bundle);
    let done = umoci.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    bundle.join("rootfs")
}

/// Three layers with all that layers do.
fn ordinary() -> Vec<Vec<u8>> {
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

/// Layers that no builder writes, each with what must be said of it.
fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let new = Archive::default;
    let deep = "d/".repeat(129) + "file";
    let long_path = format!("{}/x", "p".repeat(250)).repeat(17);
    let hops = (0..41).fold(new().folder("end/"), |archive, number| {
        let target = match number {
            40 => "end".to_owned(),
            number => format!("hop{}", number + 1),
        };
        archive.link(&format!("hop{number}"), &target)
    });
    let mut cut = new().file("a", &[1; 4000]).end();
    cut.truncate(2000);
    let mut wrong_sum = new().file("a", b"x").end();
    wrong_sum[0] = b'b';
    let mut negative = new().file("a", b"x").end();
    negative[124] = 0xff;
    let mut followed = new().file("a", b"x").end();
    followed.extend(new().file("b", b"y").end());
    let hostile = "image_hostile";
    let invalid = "image_layer_invalid";
    vec![
        ("leads out", new().file("../a", b"").end(), hostile),
        (
            "leads out later",
            new().file("a/../../b", b"").end(),
            hostile,
        ),
        (
            "leads out and back",
            new().file("a/../b", b"").end(),
            hostile,
        ),
        (
            "a folder that leads out",
            new().folder("a/..").end(),
            hostile,
        ),
        (
            "a link from outside",
            new().link("../a", "b").end(),
            hostile,
        ),
        (
            "another name outside",
            new().file("a", b"").hard_link("../b", "a").end(),
            hostile,
        ),
        (
            "another name of outside",
            new().hard_link("a", "../../etc/passwd").end(),
            hostile,
        ),
        (
            "another name of nothing",
            new().hard_link("a", "etc/passwd").end(),
            hostile,
        ),
        (
            "another name of itself",
            new().hard_link("a", "a").end(),
            hostile,
        ),
        (
            "another name of a folder",
            new().folder("d/").hard_link("a", "d").end(),
            hostile,
        ),
        (
            "another name of the root",
            new().hard_link("a", "/").end(),
            hostile,
        ),
        (
            "another name as the root",
            new().file("a", b"").hard_link("./", "a").end(),
            hostile,
        ),
        (
            "a file as the root",
            new().file("./", b"x").add(&piece(b'2', "/")).end(),
            hostile,
        ),
        (
            "a link as the root",
            new().link("./.", "elsewhere").end(),
            hostile,
        ),
        (
            "a link that leads nowhere",
            new().link("a", "").end(),
            hostile,
        ),
        (
            "links in a circle",
            new().link("a", "b").link("b", "a").file("a/c", b"").end(),
            hostile,
        ),
        (
            "a link to itself",
            new().link("a", "a").file("a/c", b"").end(),
            hostile,
        ),
        ("too many links", hops.file("hop0/x", b"").end(), hostile),
        (
            "a file on the way",
            new().file("a", b"").file("a/b", b"").end(),
            hostile,
        ),
        (
            "a pipe on the way",
            new().add(&piece(b'6', "a")).file("a/b", b"").end(),
            hostile,
        ),
        ("takes away nothing", new().file(".wh.", b"").end(), hostile),
        (
            "takes away itself",
            new().file("d/.wh..", b"").end(),
            hostile,
        ),
        (
            "takes away what is above",
            new().file("d/.wh...", b"").end(),
            hostile,
        ),
        (
            "takes away the root",
            new().add(&piece(b'3', "/")).end(),
            hostile,
        ),
        (
            "takes away with content",
            new().file(".wh.a", b"x").end(),
            hostile,
        ),
        (
            "takes away by a link",
            new().link(".wh.a", "b").end(),
            hostile,
        ),
        (
            "takes away by a folder",
            new().folder(".wh.a/").end(),
            hostile,
        ),
        (
            "is within what is taken away",
            new().file(".wh.a/b", b"").end(),
            hostile,
        ),
        (
            "another name that takes away",
            new().file("a", b"").hard_link(".wh.b", "a").end(),
            hostile,
        ),
        (
            "too deep",
            new()
                .records(&[("path", deep.as_bytes())])
                .file("a", b"")
                .end(),
            hostile,
        ),
        (
            "a long part",
            new()
                .records(&[("path", &[b'n'; 256])])
                .file("a", b"")
                .end(),
            hostile,
        ),
        (
            "a long path",
            new()
                .records(&[("path", long_path.as_bytes())])
                .file("a", b"")
                .end(),
            invalid,
        ),
        (
            "a zero in a name",
            new().records(&[("path", b"a\0b")]).file("a", b"").end(),
            hostile,
        ),
        (
            "a zero in a link",
            new().records(&[("linkpath", b"a\0b")]).link("a", "b").end(),
            hostile,
        ),
        (
            "large attributes",
            new()
                .records(&[("SCHILY.xattr.user.a", &[0; 65_536])])
                .file("a", b"")
                .end(),
            hostile,
        ),
        (
            "a large header",
            new()
                .records(&[("comment", &[b'c'; 1 << 20])])
                .file("a", b"")
                .end(),
            invalid,
        ),
        (
            "a folder with content",
            new()
                .add(&Piece {
                    content: b"x",
                    ..piece(b'5', "a/")
                })
                .end(),
            hostile,
        ),
        (
            "a link with content",
            new()
                .add(&Piece {
                    content: b"x",
                    link: "b",
                    ..piece(b'2', "a")
                })
                .end(),
            hostile,
        ),
        (
            "a device with content",
            new()
                .add(&Piece {
                    content: b"x",
                    ..piece(b'4', "a")
                })
                .end(),
            hostile,
        ),
        (
            "an unknown kind",
            new().add(&piece(b'V', "a")).end(),
            hostile,
        ),
        (
            "holes",
            new()
                .records(&[("GNU.sparse.major", b"1")])
                .file("a", b"")
                .end(),
            invalid,
        ),
        (
            "holes of another kind",
            new()
                .records(&[("SCHILY.realsize", b"1")])
                .file("a", b"")
                .end(),
            invalid,
        ),
        (
            "words for all files",
            new()
                .add(&Piece {
                    content: b"11 path=ab\n",
                    ..piece(b'g', "g")
                })
                .end(),
            invalid,
        ),
        (
            "a lying size",
            new().records(&[("size", b"99999")]).file("a", b"x").end(),
            invalid,
        ),
        (
            "an overflowing size",
            new()
                .records(&[("size", b"99999999999999999999")])
                .file("a", b"")
                .end(),
            invalid,
        ),
        ("a negative size", negative, invalid),
        ("a wrong sum", wrong_sum, invalid),
        ("cut off", cut, invalid),
        ("nothing at all", Vec::new(), invalid),
        ("no archive", vec![b'x'; 4096], invalid),
        ("an archive behind the archive", followed, invalid),
    ]
}

#[test]
fn hostile_layers_are_refused_by_name() {
    let all = hostile();
    assert!(all.len() >= 40);
    for (what, layer, code) in all {
        let made = Made::of(&[layer]);
        assert!(made.root.is_err(), "{what}: {:?}", made.root);
        assert_eq!(made.code(), code, "{what}: {:?}", made.root);
    }
}

#[test]
fn bombs_are_cut_off() {
    let zeros = vec![0; 8 << 20];
    let layer = Archive::default().file("zeros", &zeros).end();
    let packed = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&layer).unwrap();
        packer.finish().unwrap()
    };
    let convert = |limits: RootLimits| {
        let blob = LayerBlob {
            bytes: &*packed,
            compression: Compression::Gzip,
            diff_id: Digest::of(&layer),
        };
        Made::from([blob], limits)
    };
    let usual = RootLimits::default();
    // The control: it is a good layer if it may be one.
    convert(usual).root.unwrap();
    let expansion = RootLimits {
        unasked: 1 << 20,
        ..usual
    };
    assert_eq!(convert(expansion).code(), "image_hostile");
    let bytes = RootLimits {
        bytes: 4 << 20,
        ..usual
    };
    assert_eq!(convert(bytes).code(), "image_too_large");
    // Many small things are too many, also those that nobody named.
    let few = RootLimits {
        entries: 50,
        ..usual
    };
    let flood = (0..60).fold(Archive::default(), |archive, number| {
        archive.file(&format!("{number}"), b"")
    });
    assert_eq!(Made::within(&[flood.end()], few).code(), "image_hostile");
    let unnamed = Archive::default().file(&("d/".repeat(45) + "f"), b"");
    let unnamed = unnamed.file(&("e/".repeat(45) + "f"), b"");
    assert_eq!(Made::within(&[unnamed.end()], few).code(), "image_hostile");
}

#[test]
fn a_layer_is_what_the_config_says_or_nothing() {
    let layer = Archive::default().file("a", b"content").end();
    let other = Digest::of(b"something else");
    let blob = LayerBlob {
        bytes: &*layer,
        compression: Compression::None,
        diff_id: other,
    };
    let made = Made::from([blob], RootLimits::default());
    assert_eq!(made.code(), "image_layer_invalid");
    let packed = LayerBlob {
        bytes: &*layer,
        compression: Compression::Zstd,
        diff_id: Digest::of(&layer),
    };
    let made = Made::from([packed], RootLimits::default());
    assert_eq!(made.code(), "image_layer_invalid");
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
