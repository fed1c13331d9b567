//! The arguments for `bwrap`, for real: what a plugin finds inside, beside the
//! same program without them.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::manifest::Execution;
use fluffy_plugin_core::profile::{self, BwrapProfile, Kind, Places, Seccomp, System};
use fluffy_sandbox::seccomp::{Architecture, Filter};
use fluffy_sandbox::template::Profile;

/// What the plugin tries; each line is a word and what came of it.
const PROGRAM: &str = r#"#!/bin/sh
cd "$(dirname "$0")/../.." || exit 1
say() { printf '%s %s\n' "$1" "$2"; }
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then say "$name" yes; else say "$name" no; fi; }
try read-docs cat work/docs/guide
try read-private cat work/docs/private/key
try list-private ls work/docs/private
try read-token cat work/docs/token
try read-source cat work/src/secret
try list-workspace ls work/src
try read-state cat state/secret
try write-docs touch work/docs/new
try write-own touch plugins/probe/new
try write-data touch data/probe/new
try write-meeting touch meet/probe/new
try new-namespace unshare --user true
say interfaces "$(tail -n +3 /proc/net/dev | wc -l)"
say secret "${MARKED_SECRET:-none}"
say filter "$(grep '^Seccomp:' /proc/self/status | tr -dc 0-9)"
say privileges "$(grep '^CapEff:' /proc/self/status | cut -f2)"
"#;

const MANIFEST: &str = r#"
name: probe
version: 1.0.0
type: tool
engine: "*"
api: 1
capabilities: [ "fs.read./docs/*", "fs.write.@data/*" ]
execution:
  tier: process
  command: [ ./probe ]
  protocol: mcp
  sandbox: { filesystem: { read_allow: [ "/docs/*" ], read_deny: [ "/docs/private/*", "/docs/token" ], write_allow: [ "@data/*" ] } }
"#;

struct Scene {
    root: tempfile::TempDir,
    places: Places,
    execution: Execution,
}

fn kind(path: &Path) -> Option<Kind> {
    let found = fs::symlink_metadata(path).ok()?.file_type();
    Some(match (found.is_dir(), found.is_symlink()) {
        (true, _) => Kind::Directory,
        (_, true) => Kind::Link {
            target: fs::read_link(path).unwrap(),
        },
        _ => Kind::File,
    })
}

fn scene() -> Scene {
    // A hostile name on the way, since paths are data.
    let root = tempfile::Builder::new()
        .prefix("-- \"(a\n")
        .tempdir()
        .unwrap();
    let top = root.path().canonicalize().unwrap();
    for (file, content) in [
        ("work/docs/guide", "x"),
        ("work/docs/private/key", "x"),
        ("work/docs/token", "x"),
        ("work/src/secret", "x"),
        ("state/secret", "x"),
        ("data/probe/old", "x"),
        ("meet/probe/old", "x"),
        ("plugins/probe/probe", PROGRAM),
    ] {
        let path = top.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
    }
    let program = top.join("plugins/probe/probe");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let execution = Manifest::parse(MANIFEST).unwrap().execution.unwrap();
    let workspace = top.join("work");
    let looks = profile::looks_at(&execution, System::Linux, Some(&workspace));
    let present = looks
        .into_iter()
        .filter_map(|path| Some((path.clone(), kind(&path)?)));
    let places = Places {
        files: top.join("plugins/probe"),
        data: top.join("data/probe"),
        meeting: top.join("meet/probe"),
        workspace: Some(workspace),
        proxy_port: 3128,
        present: present.collect(),
    };
    Scene {
        root,
        places,
        execution,
    }
}

impl Scene {
    fn profile(&self) -> BwrapProfile {
        profile::bwrap(&self.execution, &self.places).unwrap()
    }

    /// Runs `bwrap` with this filter as descriptor 3.
    fn run(&self, filter: &[u8]) -> Output {
        let file: PathBuf = self.root.path().join("filter");
        fs::write(&file, filter).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec bwrap \"$@\" 3<\"$0\""])
            .arg(&file);
        command.args(self.profile().arguments);
        command.env("MARKED_SECRET", "leaked").output().unwrap()
    }
}

fn compiled(seccomp: Seccomp) -> Vec<u8> {
    let profile = match seccomp {
        Seccomp::Standard => Profile::Standard,
        Seccomp::StandardNet => Profile::StandardNet,
    };
    Filter::compile(profile, Architecture::native())
        .unwrap()
        .to_bytes()
}

fn answers(output: &Output) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let answers: BTreeMap<_, _> = lines
        .map(|(word, answer)| (word.to_owned(), answer.to_owned()))
        .collect();
    assert_eq!(answers.len(), 16, "{output:?}");
    answers
}

#[test]
fn a_plugin_finds_what_it_asked_for_and_nothing_else() {
    let scene = scene();
    let inside = answers(&scene.run(&compiled(scene.profile().seccomp)));
    for (word, answer) in [
        ("read-docs", "yes"),
        ("write-data", "yes"),
        ("write-meeting", "yes"),
        ("read-private", "no"),
        ("list-private", "no"),
        ("read-token", "no"),
        ("read-source", "no"),
        ("list-workspace", "no"),
        ("read-state", "no"),
        ("write-docs", "no"),
        ("write-own", "no"),
        ("new-namespace", "no"),
        ("interfaces", "1"),
        ("secret", "none"),
        ("filter", "2"),
        ("privileges", "0000000000000000"),
    ] {
        assert_eq!(inside[word], answer, "{word}");
    }
    // The control: without the profile the same program gets at all of it.
    let bare = Command::new(scene.places.files.join("probe"))
        .env("MARKED_SECRET", "leaked")
        .output();
    let bare = answers(&bare.unwrap());
    for word in [
        "read-private",
        "read-token",
        "read-source",
        "read-state",
        "write-docs",
        "write-own",
    ] {
        assert_eq!(bare[word], "yes", "{word}");
    }
    assert_eq!(bare["secret"], "leaked");
}

#[test]
fn the_filter_is_what_keeps_namespaces_away() {
    // One instruction: allow everything.
    let open = [
        0x06u16.to_ne_bytes().as_slice(),
        &[0, 0],
        &0x7fff_0000u32.to_ne_bytes(),
    ]
    .concat();
    let scene = scene();
    assert_eq!(answers(&scene.run(&open))["new-namespace"], "yes");
    assert_eq!(
        answers(&scene.run(&compiled(Seccomp::StandardNet)))["new-namespace"],
        "no"
    );
}

#[test]
fn without_its_filter_nothing_starts() {
    let scene = scene();
    let output = Command::new("bwrap")
        .args(scene.profile().arguments)
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(!scene.places.data.join("new").exists());
    let empty = scene.run(b"not a filter");
    assert!(!empty.status.success() && empty.stdout.is_empty());
}
