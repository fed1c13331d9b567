//! Attack 78: ways out of a granted directory, and ways to write where only
//! reading is granted; each with its control.
//!
//! The control of a read-only directory is the same one granted for writing;
//! of a path outside, the same file inside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod kit;

use std::fs;
use std::path::Path;
use std::time::Duration;

use fluffy_wasm::{
    Access, Command, Directory, Ended, Finished, Limits, Program, RunError, Stop, WasmTier,
};
use kit::probe::{TARGETS, probe};
use kit::{patient, permit, program, run, tier, wait};
use tempfile::TempDir;

/// A directory to grant, beside a file that nobody grants.
struct Ground {
    root: TempDir,
}

impl Ground {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("granted")).unwrap();
        fs::create_dir(root.path().join("granted/folder")).unwrap();
        fs::write(root.path().join("granted/file"), "inside").unwrap();
        fs::write(root.path().join("granted/other"), "another").unwrap();
        fs::write(root.path().join("secret"), "outside").unwrap();
        let ground = Self { root };
        let secret = ground.root.path().join("secret");
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, ground.granted().join(name)).unwrap();
        };
        link(&secret, "absolute");
        link(Path::new("../secret"), "relative");
        link(Path::new("/"), "everything");
        link(Path::new("file"), "harmless");
        ground
    }

    fn granted(&self) -> std::path::PathBuf {
        self.root.path().join("granted")
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.granted().join(name)).unwrap_or_default()
    }

    fn directory(&self, access: Access) -> Directory {
        Directory {
            host: self.granted(),
            guest: "/d".into(),
            access,
        }
    }
}

struct Probe {
    tier: WasmTier,
    program: Program,
}

impl Probe {
    fn of(target: &str) -> Self {
        let tier = tier();
        let program = tier.prepare(&probe(target)).unwrap();
        Self { tier, program }
    }

    fn attempt(&self, arguments: &str, directories: Vec<Directory>) -> Finished {
        let words = format!("probe {arguments}");
        let command = Command {
            arguments: words.split(' ').map(str::to_owned).collect(),
            directories,
            limits: patient(),
            ..Command::default()
        };
        run(&self.tier, &self.program, command)
    }

    fn works(&self, arguments: &str, directories: Vec<Directory>) -> bool {
        let finished = self.attempt(arguments, directories);
        match finished.ended {
            Ended::Exit { code } => code == 0,
            Ended::Stopped(stop) => panic!("{arguments}: {stop}"),
        }
    }
}

#[test]
fn files_are_as_granted_on_preview_1() {
    as_granted(&Probe::of(TARGETS[0]));
}

#[test]
fn files_are_as_granted_on_preview_2() {
    as_granted(&Probe::of(TARGETS[1]));
}

fn as_granted(probe: &Probe) {
    without_a_grant_there_are_no_files(probe);
    paths_do_not_leave_the_directory(probe);
    what_is_read_only_stays_as_it_is(probe);
    nothing_is_moved_from_one_grant_into_another(probe);
}

fn without_a_grant_there_are_no_files(probe: &Probe) {
    let ground = Ground::new();
    let file = ground.granted().join("file");
    for path in ["/etc/passwd", "/", ".", &file.display().to_string()] {
        assert!(!probe.works(&format!("read {path}"), vec![]), "{path}");
    }
}

fn paths_do_not_leave_the_directory(probe: &Probe) {
    let ground = Ground::new();
    let outside = [
        "/d/../secret",
        "/d/folder/../../secret",
        "/d/absolute",
        "/d/relative",
        "/d/everything/etc/passwd",
        "/d//../../../../../../etc/passwd",
        "/etc/passwd",
    ];
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let granted = || vec![ground.directory(access)];
        for path in outside {
            assert!(!probe.works(&format!("read {path}"), granted()), "{path}");
            assert!(!probe.works(&format!("write {path}"), granted()), "{path}");
            // A symlink itself may get a second name; what it leads to may not.
            probe.works(&format!("link {path} /d/stolen"), granted());
            assert!(!probe.works("read /d/stolen", granted()), "{path}");
        }
        // Controls: the same detours that stay inside.
        for path in ["/d/file", "/d/folder/../file", "/d/harmless"] {
            let finished = probe.attempt(&format!("read {path}"), granted());
            assert_eq!(finished.stdout, b"inside\n", "{path}");
        }
    }
    let secret = fs::read_to_string(ground.root.path().join("secret")).unwrap();
    assert_eq!(secret, "outside");
}

fn what_is_read_only_stays_as_it_is(probe: &Probe) {
    let changes = [
        "write /d/file",
        "write /d/fresh",
        "rename /d/other /d/file",
        "rename /d/file /d/moved",
        "link /d/other /d/linked",
        "remove /d/file",
        "make /d/made",
    ];
    for change in changes {
        let ground = Ground::new();
        let before = listing(&ground);
        let read_only = vec![ground.directory(Access::ReadOnly)];
        assert!(!probe.works(change, read_only), "{change}");
        assert_eq!(listing(&ground), before, "{change}");
        // Control: granted for writing it works, and changes something.
        let writable = vec![ground.directory(Access::ReadWrite)];
        assert!(probe.works(change, writable), "{change}");
        assert_ne!(listing(&ground), before, "{change}");
    }
}

/// RUSTSEC-2026-0188: a writable directory beside a read-only one must not
/// become a way to write into it, or to get its files under a writable name.
fn nothing_is_moved_from_one_grant_into_another(probe: &Probe) {
    for change in [
        "rename /w/mine /d/file",
        "rename /d/file /w/mine",
        "link /d/file /w/linked",
        "link /w/mine /d/linked",
    ] {
        let (ground, own) = (Ground::new(), tempfile::tempdir().unwrap());
        fs::write(own.path().join("mine"), "mine").unwrap();
        let before = listing(&ground);
        let grants = |access| {
            let writable = Directory {
                host: own.path().to_owned(),
                guest: "/w".into(),
                access: Access::ReadWrite,
            };
            vec![ground.directory(access), writable]
        };
        assert!(!probe.works(change, grants(Access::ReadOnly)), "{change}");
        assert_eq!(listing(&ground), before, "{change}");
        assert!(!own.path().join("linked").exists(), "{change}");
        // Control: both granted for writing, and it works.
        assert!(probe.works(change, grants(Access::ReadWrite)), "{change}");
    }
}

/// Names, kinds, links and contents of all that is in the directory.
fn listing(ground: &Ground) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut all: Vec<String> = fs::read_dir(ground.granted())
        .unwrap()
        .map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = ground.granted().join(&name);
            let meta = fs::symlink_metadata(path).unwrap();
            let text = ground.text(&name);
            format!("{name} {:?} {} {text}", meta.file_type(), meta.nlink())
        })
        .collect();
    all.sort();
    all
}

/// Opens `file` to cut it to nothing, and exits with the answer's number.
fn truncating(rights: u32) -> String {
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "path_open" (func $open
            (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1) (data (i32.const 100) "file")
        (func (export "_start") (call $exit (call $open
            (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 4) (i32.const 8)
            (i64.const {rights}) (i64.const 0) (i32.const 0) (i32.const 0)))))"#
    )
}

/// RUSTSEC-2026-0149: truncating while opening only for reading.
#[test]
fn opening_does_not_truncate_what_is_read_only() {
    let tier = tier();
    let (read, both) = (2, 2 | 64);
    for rights in [read, both] {
        let ground = Ground::new();
        let program = program(&tier, &truncating(rights));
        let command = |access| Command {
            directories: vec![ground.directory(access)],
            limits: patient(),
            ..Command::default()
        };
        let finished = run(&tier, &program, command(Access::ReadOnly));
        assert_ne!(finished.ended, Ended::Exit { code: 0 }, "{rights}");
        assert_eq!(ground.text("file"), "inside", "{rights}");
        if rights == both {
            // Control: granted for writing it is cut.
            let finished = run(&tier, &program, command(Access::ReadWrite));
            assert_eq!(finished.ended, Ended::Exit { code: 0 });
            assert_eq!(ground.text("file"), "");
        }
    }
}

/// Opens `file` for reading, and exits with the answer's number.
const OPENING: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open" (func $open
        (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1) (data (i32.const 100) "file")
    (func (export "_start") (call $exit (call $open
        (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 4) (i32.const 0)
        (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 0)))))"#;

#[test]
fn a_file_that_never_answers_does_not_outlast_the_deadline() {
    let tier = tier();
    let program = program(&tier, OPENING);
    let ground = Ground::new();
    let command = |limits| Command {
        directories: vec![ground.directory(Access::ReadOnly)],
        limits,
        ..Command::default()
    };
    // Control: an ordinary file opens.
    let finished = run(&tier, &program, command(patient()));
    assert_eq!(finished.ended, Ended::Exit { code: 0 });
    let file = ground.granted().join("file");
    fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let short = Limits {
        time: Duration::from_millis(200),
        ..patient()
    };
    let finished = run(&tier, &program, command(short));
    assert_eq!(finished.ended, Ended::Stopped(Stop::Deadline));
}

/// Opens `file` this many times without closing it; exits with 0 if all were.
fn hoarding(times: u32) -> String {
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "path_open" (func $open
            (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1) (data (i32.const 100) "file")
        (func (export "_start") (local $n i32)
            (loop
                (if (call $open
                        (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 4) (i32.const 0)
                        (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 0))
                    (then (call $exit (i32.const 1))))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get $n) (i32.const {times}))))))"#
    )
}

/// RUSTSEC-2026-0020: handles of the host that are never given back.
#[test]
fn open_files_are_bounded() {
    let tier = tier();
    let ground = Ground::new();
    let ended = |times| {
        let command = Command {
            directories: vec![ground.directory(Access::ReadOnly)],
            limits: patient(),
            ..Command::default()
        };
        run(&tier, &program(&tier, &hoarding(times)), command).ended
    };
    assert_ne!(ended(2_000), Ended::Exit { code: 0 });
    // Control: as many as may be.
    assert_eq!(ended(500), Ended::Exit { code: 0 });
}

#[test]
fn a_directory_that_is_not_there_is_named_in_the_error() {
    let tier = tier();
    let program = program(&tier, OPENING);
    let missing = Directory {
        host: "/nowhere/at/all".into(),
        guest: "/d".into(),
        access: Access::ReadOnly,
    };
    let command = Command {
        directories: vec![missing],
        ..Command::default()
    };
    let error = wait(tier.run(permit(), &program, command)).unwrap_err();
    assert!(matches!(error, RunError::Directory { .. }));
    assert_eq!(
        error.to_string(),
        "the directory `/nowhere/at/all` cannot be opened for the program"
    );
}
