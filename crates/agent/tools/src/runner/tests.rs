//! The runner in a folder of its own, honest and attacked.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::*;
use crate::paths::ProjectPaths;
use crate::registry::Registry;

fn path(text: &str) -> TreePath {
    TreePath::parse(text.as_bytes()).unwrap()
}

fn ask(root: &Path, changes: Vec<Change>) -> Answer {
    let request = Request {
        version: VERSION,
        changes,
    };
    let mut input = Vec::new();
    write_frame(&mut input, &request).unwrap();
    let mut output = Vec::new();
    run(root, input.as_slice(), &mut output).unwrap();
    read_frame(output.as_slice()).unwrap()
}

fn change(at: &str, before: Before, what: What) -> Change {
    Change {
        path: path(at),
        before,
        what,
    }
}

fn write(at: &str, before: Before, content: &str) -> Change {
    let content = content.to_owned();
    change(at, before, What::Write { content })
}

fn problem(answer: Answer) -> String {
    match answer {
        Answer::Refused { problem, .. } => problem,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn done(answer: Answer) -> Vec<Changed> {
    match answer {
        Answer::Done { changed } => changed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_are_written_replaced_and_removed() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let changed = done(ask(
        root.path(),
        vec![write("new/deep/a", Before::Absent, "one")],
    ));
    assert_eq!(changed[0].after, Some(Digest::of(b"one")));
    assert_eq!(fs::read(at("new/deep/a")).unwrap(), b"one");

    fs::set_permissions(at("new/deep/a"), fs::Permissions::from_mode(0o755)).unwrap();
    let known = Before::Content(Digest::of(b"one"));
    let changed = done(ask(root.path(), vec![write("new/deep/a", known, "two")]));
    assert_eq!(changed[0].before, Some(Digest::of(b"one")));
    let mode = fs::metadata(at("new/deep/a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "the mode stays");

    assert!(
        problem(ask(root.path(), vec![write("new/deep/a", known, "x")]))
            .contains("has changed since")
    );
    assert!(
        problem(ask(
            root.path(),
            vec![write("new/deep/a", Before::Absent, "x")]
        ))
        .contains("there already")
    );
    assert!(problem(ask(root.path(), vec![write("none", known, "x")])).contains("any more"));
    assert!(
        problem(ask(root.path(), vec![write("new", Before::Anything, "x")])).contains("directory")
    );
    assert_eq!(fs::read(at("new/deep/a")).unwrap(), b"two");

    done(ask(
        root.path(),
        vec![change("new/deep/a", Before::Anything, What::Remove)],
    ));
    assert!(!at("new/deep/a").exists());
    assert!(
        problem(ask(
            root.path(),
            vec![change("new/deep/a", Before::Anything, What::Remove)]
        ))
        .contains("no such file")
    );
    assert_eq!(
        fs::read_dir(at("new/deep")).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn a_request_is_done_whole_or_not_at_all() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("a"), "1\n").unwrap();
    let wrong = vec![
        write("b", Before::Absent, "new"),
        change(
            "a",
            Before::Anything,
            What::Replace {
                old: "2".into(),
                new: "3".into(),
                which: Which::Only,
            },
        ),
    ];
    assert!(problem(ask(root.path(), wrong)).contains("not in the file"));
    assert!(!root.path().join("b").exists());
    let twice = vec![
        write("b", Before::Absent, "1"),
        write("b", Before::Absent, "2"),
    ];
    assert!(problem(ask(root.path(), twice)).contains("twice"));
    assert!(problem(ask(root.path(), Vec::new())).contains("1 to 512"));
}

#[test]
fn a_call_becomes_a_request_and_does_what_it_says() {
    let root = TempDir::new().unwrap();
    for (name, text) in [
        ("a.rs", "one\r\ntwo\r\n"),
        ("old.rs", "x\n"),
        ("gone.rs", "g\n"),
    ] {
        fs::write(root.path().join(name), text).unwrap();
    }
    let registry = Registry::standard(ProjectPaths::new(root.path()));
    let patch = "*** Begin Patch\n*** Update File: a.rs\n@@\n one\n-two\n+2\n*** Update File: old.rs\n\
                 *** Move to: dir/new.rs\n@@\n-x\n+y\n*** Delete File: gone.rs\n*** Add File: added.rs\n+z\n*** End Patch\n";
    let arguments = serde_json::json!({"patch": patch});
    let checked = registry.check("fs.edit", &arguments).unwrap();
    let request = Request::of(&checked.call, |_| Before::Anything).unwrap();
    let changed = done(ask(root.path(), request.changes));
    assert_eq!(changed.len(), 5);
    let read = |name: &str| fs::read_to_string(root.path().join(name)).ok();
    assert_eq!(read("a.rs").as_deref(), Some("one\r\n2\r\n"));
    assert_eq!(
        (read("dir/new.rs").as_deref(), read("old.rs")),
        (Some("y\n"), None)
    );
    assert_eq!(
        (read("added.rs").as_deref(), read("gone.rs")),
        (Some("z\n"), None)
    );

    let read = registry
        .check("fs.read", &serde_json::json!({"path": "a.rs"}))
        .unwrap();
    assert_eq!(
        Request::of(&read.call, |_| Before::Anything),
        Err(MakeRequestError::OtherCall)
    );
    let outside = registry
        .check(
            "fs.write",
            &serde_json::json!({"path": "/etc/x", "content": ""}),
        )
        .unwrap();
    assert!(matches!(
        Request::of(&outside.call, |_| Before::Anything),
        Err(MakeRequestError::Path(_))
    ));
}

#[test]
fn links_lead_nowhere_and_the_control_does() {
    let (root, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let secret = outside.path().join("secret");
    fs::write(&secret, "canary").unwrap();
    symlink(outside.path(), root.path().join("folder")).unwrap();
    symlink(&secret, root.path().join("file")).unwrap();
    symlink(outside.path().join("made"), root.path().join("dangling")).unwrap();
    fs::create_dir(root.path().join("real")).unwrap();
    for at in ["folder/secret", "file", "folder/new", "dangling"] {
        for what in [
            What::Write {
                content: "evil".into(),
            },
            What::Replace {
                old: "canary".into(),
                new: "evil".into(),
                which: Which::All,
            },
        ] {
            let answer = ask(root.path(), vec![change(at, Before::Anything, what)]);
            assert!(matches!(answer, Answer::Refused { .. }), "{at}: {answer:?}");
        }
    }
    let through = ask(
        root.path(),
        vec![change("folder/secret", Before::Anything, What::Remove)],
    );
    assert!(problem(through).contains("links are not followed"));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "canary");
    // Removing a link removes the link.
    done(ask(
        root.path(),
        vec![change("file", Before::Anything, What::Remove)],
    ));
    assert_eq!(fs::read_to_string(&secret).unwrap(), "canary");
    // The control: the same request on a real directory is done.
    done(ask(
        root.path(),
        vec![write("real/secret", Before::Anything, "evil")],
    ));
    assert_eq!(
        fs::read_to_string(root.path().join("real/secret")).unwrap(),
        "evil"
    );
}

#[test]
fn a_hard_link_elsewhere_keeps_its_content() {
    let (root, outside) = (
        TempDir::new_in("/tmp").unwrap(),
        TempDir::new_in("/tmp").unwrap(),
    );
    let other = outside.path().join("other");
    fs::write(&other, "canary").unwrap();
    fs::hard_link(&other, root.path().join("mine")).unwrap();
    assert_eq!(fs::metadata(&other).unwrap().nlink(), 2);
    done(ask(
        root.path(),
        vec![write("mine", Before::Anything, "evil")],
    ));
    assert_eq!(fs::read_to_string(&other).unwrap(), "canary");
    assert_eq!(
        fs::read_to_string(root.path().join("mine")).unwrap(),
        "evil"
    );
}

#[test]
fn a_directory_that_keeps_turning_into_a_link_is_never_written_through() {
    let (root, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (flip, plain) = (root.path().join("flip"), root.path().join("plain"));
    fs::create_dir(&plain).unwrap();
    let stop = AtomicBool::new(false);
    let mut done = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(&plain, &flip);
                let _ = fs::rename(&flip, &plain);
                let _ = symlink(outside.path(), &flip);
                let _ = fs::remove_file(&flip);
            }
        });
        for round in 0..2_000 {
            let name = format!("flip/{round}");
            if let Answer::Done { .. } = ask(root.path(), vec![write(&name, Before::Anything, "x")])
            {
                done += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(done > 0, "some writes got through to the real directory");
}

#[test]
fn whatever_a_command_did_is_put_back() {
    let (root, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(outside.path().join("a"), "canary").unwrap();
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("swapped/a")).unwrap();
    fs::write(at("swapped/a/new"), "x").unwrap();
    fs::write(at("grown"), vec![0u8; 17 << 20]).unwrap();
    symlink(outside.path(), at("tests")).unwrap();
    symlink(outside.path().join("a"), at("linked")).unwrap();
    fs::write(at("kept"), "y").unwrap();
    fs::set_permissions(at("kept"), fs::Permissions::from_mode(0o755)).unwrap();
    let restore = |at: &str, bytes: &[u8], mode: Option<u32>| {
        let content = Bytes(bytes.to_vec());
        change(at, Before::Anything, What::Restore { content, mode })
    };
    let remove = |at: &str| change(at, Before::Anything, What::Remove);
    // In the order of paths, as a list of violations has them.
    let undo = vec![
        remove("grown"),
        restore("kept", b"k", None),
        restore("linked", b"\xff\x00", Some(0o600)),
        restore("swapped/a", b"was", Some(0o755)),
        remove("swapped/a/new"),
        remove("tests"),
        restore("tests/a", b"test", None),
    ];
    let changed = done(ask(root.path(), undo));
    assert_eq!(changed.len(), 7);
    for (name, content, mode) in [
        ("kept", b"k".as_slice(), 0o755),
        ("linked", b"\xff\x00", 0o600),
        ("swapped/a", b"was", 0o755),
        ("tests/a", b"test", 0o644),
    ] {
        assert_eq!(fs::read(at(name)).unwrap(), content, "{name}");
        let metadata = fs::symlink_metadata(at(name)).unwrap();
        assert!(metadata.is_file(), "{name}");
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
    }
    assert!(!at("grown").exists() && !at("tests").is_symlink());
    assert_eq!(
        fs::read_to_string(outside.path().join("a")).unwrap(),
        "canary"
    );
    // A directory that is still full is not emptied for it.
    fs::create_dir_all(at("full/x")).unwrap();
    let answer = ask(root.path(), vec![restore("full", b"", None)]);
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    assert!(at("full/x").exists());
}

#[test]
fn special_and_foreign_files_are_left_alone() {
    let root = TempDir::new().unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(
        problem(ask(root.path(), vec![write("pipe", Before::Anything, "x")]))
            .contains("no regular file")
    );
    fs::write(root.path().join("binary"), b"\xff\xfe").unwrap();
    let replace = What::Replace {
        old: "a".into(),
        new: "b".into(),
        which: Which::Only,
    };
    assert!(
        problem(ask(
            root.path(),
            vec![change("binary", Before::Anything, replace)]
        ))
        .contains("not a text file")
    );
    fs::write(root.path().join("file"), "x").unwrap();
    assert!(
        problem(ask(
            root.path(),
            vec![write("file/below", Before::Anything, "x")]
        ))
        .contains("no directory")
    );
}

#[test]
fn frames_that_are_none_are_refused() {
    let root = TempDir::new().unwrap();
    let answer = |input: &[u8]| {
        let mut output = Vec::new();
        run(root.path(), input, &mut output)
            .map(|()| read_frame::<Answer>(output.as_slice()).unwrap())
    };
    assert!(matches!(
        answer(b"\xff\xff\xff\xff"),
        Err(FrameError::TooLarge { .. })
    ));
    assert!(matches!(answer(b"\0\0\0\x09{}"), Err(FrameError::Io(_))));
    assert!(matches!(answer(b""), Err(FrameError::Io(_))));
    assert!(matches!(
        answer(b"\0\0\0\x02{}"),
        Ok(Answer::Refused { path: None, .. })
    ));
    let old = br#"{"version":9,"changes":[]}"#;
    let mut input = u32::try_from(old.len()).unwrap().to_be_bytes().to_vec();
    input.extend(old);
    assert!(problem(answer(&input).unwrap()).contains("version 9"));
    let escape =
        br#"{"version":1,"changes":[{"path":"../x","before":"anything","what":"remove"}]}"#;
    let mut input = u32::try_from(escape.len()).unwrap().to_be_bytes().to_vec();
    input.extend(escape);
    assert!(problem(answer(&input).unwrap()).contains("cannot be read"));
}
