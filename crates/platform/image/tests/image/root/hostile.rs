//! Layers that no builder writes.

use std::io::Write as _;

use fluffy_base::Digest;
use fluffy_image::document::Compression;
use fluffy_image::{LayerBlob, RootLimits};

use super::archive::{Archive, Piece, piece};
use super::judge::Made;

/// Layers that no builder writes, each with what must be said of it.
pub(crate) fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
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
