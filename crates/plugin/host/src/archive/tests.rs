//! Archives as people pack them, and as nobody should.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};

use super::*;

/// One entry of a `.tar`: its header field by field, and its content.
#[derive(Clone)]
struct Piece {
    name: Vec<u8>,
    mode: u32,
    kind: u8,
    link: String,
    content: Vec<u8>,
}

fn file(name: &str, content: &str) -> Piece {
    Piece {
        name: name.as_bytes().to_vec(),
        mode: 0o644,
        kind: b'0',
        link: String::new(),
        content: content.as_bytes().to_vec(),
    }
}

fn link(name: &str, target: &str) -> Piece {
    Piece {
        kind: b'2',
        link: target.to_owned(),
        ..file(name, "")
    }
}

fn of_kind(name: &str, kind: u8) -> Piece {
    Piece {
        kind,
        ..file(name, "")
    }
}

fn header(piece: &Piece, size: u64) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &piece.name[..piece.name.len().min(100)]);
    put(100, format!("{:07o}\0", piece.mode).as_bytes());
    put(124, format!("{size:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, &[piece.kind]);
    put(157, piece.link.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

fn tar(pieces: &[Piece]) -> Vec<u8> {
    let mut tar = Vec::new();
    for piece in pieces {
        // A name that fits no header has one of its own before it.
        let long = (piece.name.len() > 100).then(|| Piece {
            content: [&*piece.name, b"\0"].concat(),
            ..of_kind("././@LongLink", b'L')
        });
        for piece in long.iter().chain([piece]) {
            tar.extend(header(piece, piece.content.len() as u64));
            tar.extend(&piece.content);
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
    }
    tar.extend([0; 1024]);
    tar
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A `.zip` of these; `mode` has the kind in it.
fn zip(pieces: &[Piece]) -> Vec<u8> {
    let (mut all, mut directory) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::best());
        deflated.write_all(&piece.content).unwrap();
        let packed = deflated.finish().unwrap();
        let mut sum = flate2::Crc::new();
        sum.update(&piece.content);
        let mut common = vec![8, 0, 0, 0, 0, 0];
        common.extend(sum.sum().to_le_bytes());
        common.extend(u32::try_from(packed.len()).unwrap().to_le_bytes());
        common.extend(u32::try_from(piece.content.len()).unwrap().to_le_bytes());
        common.extend(u16::try_from(piece.name.len()).unwrap().to_le_bytes());
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x03\x14\x00\x00\x00");
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((piece.mode << 16).to_le_bytes());
        directory.extend(u32::try_from(all.len()).unwrap().to_le_bytes());
        directory.extend(&piece.name);
        all.extend(b"PK\x03\x04\x14\x00\x00\x00");
        all.extend(&common);
        all.extend(&piece.name);
        all.extend(&packed);
    }
    let start = u32::try_from(all.len()).unwrap();
    let count = u16::try_from(pieces.len()).unwrap().to_le_bytes();
    all.extend(&directory);
    all.extend(b"PK\x05\x06\x00\x00\x00\x00");
    all.extend(count);
    all.extend(count);
    all.extend(u32::try_from(directory.len()).unwrap().to_le_bytes());
    all.extend(start.to_le_bytes());
    all.extend([0, 0]);
    all
}

/// What comes of an archive, in a folder beside a file that must stay.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("into")).unwrap();
        std::fs::write(folder.path().join("kept"), "kept").unwrap();
        Self { folder }
    }

    fn unpack(&self, bytes: &[u8]) -> Result<PathBuf, UnpackError> {
        let archive = self.folder.path().join("archive");
        std::fs::write(&archive, bytes).unwrap();
        unpack(&archive, &self.folder.path().join("into"))
    }

    /// Whether nothing but the archive and the folder is beside the file.
    fn is_as_it_was(&self) -> bool {
        let names = std::fs::read_dir(self.folder.path()).unwrap().count();
        let kept = std::fs::read_to_string(self.folder.path().join("kept"));
        names == 3 && kept.unwrap() == "kept"
    }
}

/// Both forms of the same pieces, and why they are refused.
fn refusals(pieces: &[Piece]) -> [String; 2] {
    let as_zip = |piece: &Piece| {
        let kind = match piece.kind {
            b'2' => 0o120_000,
            b'3' => 0o020_000,
            b'4' => 0o060_000,
            b'6' => 0o010_000,
            _ => 0o100_000,
        };
        let mut piece = piece.clone();
        piece.mode |= kind;
        if piece.kind == b'2' {
            piece.content = piece.link.clone().into_bytes();
        }
        piece
    };
    let zipped: Vec<Piece> = pieces.iter().map(as_zip).collect();
    [gzip(&tar(pieces)), zip(&zipped)].map(|bytes| {
        let place = Place::new();
        let why = match place.unpack(&bytes) {
            Ok(_) => "it is taken".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(place.is_as_it_was(), "{why}");
        why
    })
}

#[test]
fn what_no_plugin_may_bring_is_refused_by_name() {
    let setuid = Piece {
        mode: 0o4755,
        ..file("run", "x")
    };
    let long = "a/".repeat(65) + "b";
    let latin = Piece {
        name: b"caf\xe9".to_vec(),
        ..file("", "")
    };
    for (pieces, what) in [
        (vec![file("../kept", "x")], "leads out of the plugin"),
        (vec![file("a/../../kept", "x")], "leads out of the plugin"),
        (vec![file("/tmp/kept", "x")], "leads out of the plugin"),
        (vec![file("a//b", "x")], "has a name with an empty part"),
        (vec![file("a/./b", "x")], "has a name with an empty part"),
        (vec![file("a\\..\\b", "x")], "no letter anywhere"),
        (vec![file("a\nb", "x")], "no letter anywhere"),
        (vec![latin], "has a name that is no text"),
        (vec![file(&long, "x")], "is too deep"),
        (vec![file(&"a".repeat(256), "x")], "too long"),
        (vec![link("out", "/etc/passwd")], "leads out of the plugin"),
        (vec![link("out", "../kept")], "leads out of the plugin"),
        (
            vec![link("a/up", ".."), link("a/out", "up/../kept")],
            "leads out of the plugin",
        ),
        (
            vec![link("out", "in"), file("out/kept", "x")],
            "below what is no directory",
        ),
        (vec![file("a", "x"), file("a/b", "y")], "no directory"),
        (vec![file("a", "x"), file("a", "y")], "is in it twice"),
        (vec![file("a", "x"), link("a", "b")], "is in it twice"),
        (vec![file("Run", "x"), file("run", "y")], "upper and lower"),
        (vec![file("A/b", "x"), file("a/c", "y")], "upper and lower"),
        (vec![of_kind("dev", b'3')], "is a device"),
        (vec![of_kind("dev", b'4')], "is a device"),
        (vec![of_kind("pipe", b'6')], "is a pipe"),
        (vec![setuid], "would run as another user"),
    ] {
        for why in refusals(&pieces) {
            assert!(why.contains(what), "{what}: {why}");
        }
    }
    // The control: the same pieces without what is wrong with them.
    let good = [file("a/b", "x"), link("a/c", "b"), file("run", "y")];
    assert_eq!(refusals(&good), ["it is taken"; 2]);
    let hard = gzip(&tar(&[of_kind("a", b'1')]));
    let why = Place::new().unpack(&hard).unwrap_err().to_string();
    assert_eq!(why, "`a` is a hard link");
}

#[test]
fn bombs_end_while_they_go_off() {
    // 17 MiB of zeroes become some 20 KiB.
    let zeroes = "\0".repeat(17 << 20);
    for why in refusals(&[file("a", &zeroes)]) {
        assert_eq!(why, "it has more than 200 times its own size in it");
    }
    let many: Vec<Piece> = (0..=500).map(|at| file(&format!("f{at}"), "")).collect();
    for why in refusals(&many) {
        assert_eq!(why, "it has more than 500 files");
    }
    // More than it says, and less.
    let mut lies = tar(&[file("a", "content")]);
    lies[124..135].copy_from_slice(b"77777777777");
    let sum: u32 = (0..512)
        .map(|at| match at {
            148..156 => 32,
            at => u32::from(lies[at]),
        })
        .sum();
    lies[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let why = Place::new().unpack(&gzip(&lies)).unwrap_err().to_string();
    assert!(why.contains("ends too early"), "{why}");
}

#[test]
fn what_is_cut_off_changed_or_unclear_is_refused() {
    let whole = [
        gzip(&tar(&[file("a", "content")])),
        zip(&[file("a", "content")]),
    ];
    for bytes in &whole {
        assert!(Place::new().unpack(bytes).is_ok());
        for end in 0..bytes.len() {
            let cut = Place::new().unpack(&bytes[..end]);
            assert!(cut.is_err(), "{end} of {}", bytes.len());
        }
    }
    // A `.zip` whose entry calls itself something else than its directory.
    let mut two_faced = zip(&[file("a", "content")]);
    two_faced[30] = b'b';
    let why = Place::new().unpack(&two_faced).unwrap_err().to_string();
    assert_eq!(why, "`a` is described in two ways");
    // Two entries over the same bytes.
    let mut doubled = zip(&[file("a", "x"), file("b", "x")]);
    let second = doubled.windows(4).rposition(|some| some == b"PK\x01\x02");
    let second = second.unwrap() + 42;
    doubled[second..second + 4].copy_from_slice(&[0; 4]);
    let why = Place::new().unpack(&doubled).unwrap_err().to_string();
    assert!(
        why.contains("over another") || why.contains("two ways"),
        "{why}"
    );
    // Changed content, encryption, a second end, something after the end.
    let mut changed = zip(&[file("a", "content")]);
    let at = changed
        .windows(4)
        .position(|some| some == b"PK\x01\x02")
        .unwrap();
    changed[at + 8] |= 1;
    let why = Place::new().unpack(&changed).unwrap_err().to_string();
    assert_eq!(why, "`a` is encrypted");
    let mut ends = zip(&[file("a", "content")]);
    let end = ends[ends.len() - 22..].to_vec();
    let at = ends.len() - 2;
    ends[at..].copy_from_slice(&22_u16.to_le_bytes());
    ends.extend(end);
    let why = Place::new().unpack(&ends).unwrap_err().to_string();
    assert!(why.contains("broken"), "{why}");
    let mut more = tar(&[file("a", "content")]);
    more.extend(tar(&[file("b", "content")]));
    let why = Place::new().unpack(&gzip(&more)).unwrap_err().to_string();
    assert!(why.contains("something follows its end"), "{why}");
    for nothing in [b"".as_slice(), b"PK", b"name: plugin"] {
        let why = Place::new().unpack(nothing).unwrap_err().to_string();
        assert_eq!(why, "it is neither a `.tar.gz` nor a `.zip`");
    }
}

/// What the usual programs pack is unpacked to the same files.
#[test]
fn archives_of_usual_programs_are_unpacked() {
    let source = tempfile::tempdir().unwrap();
    let long = "a-rather-long-name-of-a-folder/".repeat(5);
    let below = |name: &str| source.path().join("in/words-1.0").join(name);
    std::fs::create_dir_all(below(&long)).unwrap();
    std::fs::write(below("plugin.yaml"), "name: words").unwrap();
    std::fs::write(below(&format!("{long}grüße.txt")), "text".repeat(10_000)).unwrap();
    std::fs::write(below("run"), "#!/bin/sh").unwrap();
    std::fs::set_permissions(below("run"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("run", below("again")).unwrap();
    let python = "import sys, shutil; shutil.make_archive(sys.argv[1], sys.argv[2], '.')";
    let tar = |format: &str, name: &str| {
        let words = ["--format", format, "-czf", name, "words-1.0"];
        ("tar", words.map(str::to_owned).to_vec())
    };
    let pack = |kind: &str, name: &str| {
        let words = ["-c", python, name, kind];
        ("python3", words.map(str::to_owned).to_vec())
    };
    for (name, (program, words)) in [
        ("gnu.tar.gz", tar("gnu", "../gnu.tar.gz")),
        ("pax.tar.gz", tar("pax", "../pax.tar.gz")),
        ("made.zip", pack("zip", "../made")),
    ] {
        let mut packing = Command::new(program);
        let packed = packing
            .args(&words)
            .current_dir(source.path().join("in"))
            .status();
        assert!(packed.unwrap().success(), "{name}");
        let place = Place::new();
        let archive = source.path().join(name);
        let found = unpack(&archive, &place.folder.path().join("into"));
        std::fs::remove_file(&archive).unwrap();
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = |name: &str| std::fs::read_to_string(found.join(name)).unwrap();
        assert_eq!(read("plugin.yaml"), "name: words", "{name}");
        assert_eq!(read(&format!("{long}grüße.txt")).len(), 40_000);
        let run = std::fs::metadata(found.join("run")).unwrap();
        assert_eq!(run.permissions().mode() & 0o777, 0o755, "{name}");
        assert_eq!(read("again"), "#!/bin/sh", "{name}");
    }
}
