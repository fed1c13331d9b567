//! What a session sees through a view is what its sandbox sees.

use std::collections::BTreeMap;
use std::fs;

use fluffy_base::Digest;
use fluffy_layer::{LayerDirectories, LayerKind, NodeKind, ReadViewError, Side, TreePath, View};
use proptest::prelude::*;

use crate::support::{Stage, kinds, path};

const PROJECT: &str = "mkdir -p src/deep/er docs empty; echo one >src/a; echo two >src/b; \
                       echo three >src/deep/c; echo four >src/deep/er/d; echo doc >docs/d; \
                       ln -s a src/link; ln -s /etc etc; echo x >top; mkfifo pipe";

/// Scripts that leave every mark an overlay knows.
const SCRIPTS: &[&str] = &[
    "true",
    "echo more >>src/a; echo new >src/new; mkdir -p x/y/z; echo z >x/y/z/f",
    "rm src/a; rm -r docs; rm top",
    "rm -r src; mkdir src; echo uno >src/a",
    "rm -r src; mkdir -p src/deep; echo e >src/deep/e",
    "rm -r docs; echo file >docs",
    "rm top; mkdir top; echo in >top/in",
    "rm src/link; mkdir src/link; echo f >src/link/f; rm etc; mkdir etc; echo p >etc/passwd",
    "rm -r src/deep; ln -s /etc src/deep",
    "mv src moved; mv docs/d docs/e; mkdir src; touch src/empty",
    "chmod 700 src; touch src/zero; : >src/a; mkfifo src/fifo",
    "rm -r src/deep/er; mkdir -p src/deep/er/er; mv src/deep src/deeper; mkdir src/deep",
];

/// Every path that a view shows, with its kind and the digest of its content.
fn seen(view: &View) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut open = vec![view.directory(None).unwrap()];
    while let Some(directory) = open.pop() {
        for entry in view.list(&directory).unwrap() {
            let path = TreePath::below(directory.path(), &entry.name).unwrap();
            let looked = view.look(&path).unwrap().unwrap();
            assert_eq!((looked.kind, looked.side), (entry.kind, entry.side));
            let shown = match entry.kind {
                NodeKind::Directory => {
                    let entered = view.enter(&directory, &entry).unwrap().unwrap();
                    assert_eq!(view.directory(Some(&path)).unwrap(), entered);
                    open.push(entered);
                    "d".to_owned()
                }
                NodeKind::File => {
                    let bytes = view.read(&path, 1000).unwrap();
                    format!("f {}", Digest::of(&bytes))
                }
                NodeKind::Symlink => {
                    let target = view.link_target(&path).unwrap();
                    format!("l {}", String::from_utf8(target).unwrap())
                }
                NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => "p".to_owned(),
            };
            seen.insert(path.to_string(), shown);
        }
    }
    seen
}

/// The same as a command in the sandbox finds it.
fn found(stage: &Stage, kind: LayerKind, script: &str) -> (BTreeMap<String, String>, View) {
    let held = stage.create(kind);
    let list = stage.home().join("found");
    let look = format!(
        "{script}; find . -mindepth 1 \\( -type d -printf '%P\\td\\n' \\) -o \\( -type l -printf '%P\\tl %l\\n' \\) \
         -o \\( -type p -printf '%P\\tp\\n' \\) >{list}; find . -type f -exec sha256sum {{}} + | \
         sed -E 's|^([0-9a-f]+)  \\./(.*)$|\\2\\tf \\1|' >>{list}",
        list = list.display()
    );
    stage.in_layer(&held, &look);
    let text = fs::read_to_string(list).unwrap();
    let lines = text.lines().map(|line| line.split_once('\t').unwrap());
    let found = lines
        .map(|(path, shown)| (path.to_owned(), shown.to_owned()))
        .collect();
    (found, held.view().unwrap())
}

#[test]
fn a_view_shows_what_the_sandbox_sees() {
    for kind in kinds() {
        for script in SCRIPTS {
            let stage = Stage::new(PROJECT);
            let (mut found, view) = found(&stage, kind, script);
            if kind == LayerKind::Copy {
                // Special files of the project are not copied.
                found.remove("pipe");
            }
            assert!(!found.is_empty());
            assert_eq!(seen(&view), found, "{kind:?}: {script}");
        }
    }
}

/// One command that may fail, on few names, so that they meet often.
fn operation() -> impl Strategy<Value = String> {
    let name = "(src|docs|top|x)(/(a|b|deep|link))?(/(c|er))?";
    prop_oneof![
        3 => name.prop_map(|path| format!("rm -rf {path}")),
        3 => name.prop_map(|path| format!("mkdir -p {path}")),
        // Who opens a pipe for writing waits for a reader, and here is none.
        3 => (name, "[a-z]{0,3}")
            .prop_map(|(path, text)| format!("test -p {path} || printf '{text}' >{path}")),
        2 => (name, name).prop_map(|(from, to)| format!("mv -T {from} {to}")),
        1 => (name, "(a|/etc|\\.\\./\\.\\.)").prop_map(|(path, to)| format!("ln -s {to} {path}")),
        1 => name.prop_map(|path| format!("mkfifo {path}")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_view_shows_what_the_sandbox_sees_whatever_was_done(
        operations in proptest::collection::vec(operation(), 1..12),
    ) {
        let quiet = |operation: String| format!("({operation}) 2>/dev/null || true");
        let script = operations.into_iter().map(quiet).collect::<Vec<_>>().join("; ");
        for kind in kinds() {
            let stage = Stage::new("mkdir -p src/deep/er docs; echo 1 >src/a; echo 2 >src/b; \
                                    echo 3 >src/deep/c; echo 4 >docs/a; echo 5 >top");
            let (found, view) = found(&stage, kind, &script);
            prop_assert_eq!(seen(&view), found, "{:?}: {}", kind, script);
        }
    }
}

#[test]
fn a_deletion_that_is_marked_by_an_attribute_is_one() {
    let stage = Stage::new(PROJECT);
    if !kinds().contains(&LayerKind::Overlay) {
        return;
    }
    let held = stage.create(LayerKind::Overlay);
    stage.in_layer(&held, "touch src/a; : >src/b");
    let LayerDirectories::Overlay { upper, .. } = held.layer().directories() else {
        panic!("an overlay was asked for");
    };
    let mark = upper.join("src/deep");
    fs::create_dir(&mark).unwrap();
    let file = fs::File::create(mark.join("c")).unwrap();
    rustix::fs::fsetxattr(
        &file,
        "user.overlay.whiteout",
        b"y",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    let view = held.view().unwrap();
    let seen = seen(&view);
    assert!(!seen.contains_key("src/deep/c"), "{seen:?}");
    assert!(seen.contains_key("src/deep/er/d"));
    // The control: an empty file without the mark is one.
    assert_eq!(view.read(&path("src/b"), 10).unwrap(), b"");
}

#[test]
fn the_project_alone_is_seen_without_a_layer() {
    let stage = Stage::new(PROJECT);
    let view = View::of_project(&stage.project()).unwrap();
    assert_eq!(view.read(&path("src/a"), 10).unwrap(), b"one\n");
    assert_eq!(
        view.look(&path("src/a")).unwrap().unwrap().side,
        Side::Project
    );
    assert_eq!(view.look(&path("src/none")).unwrap(), None);
    assert!(seen(&view).contains_key("src/deep/er/d"));
}

#[test]
fn nothing_leads_out_and_nothing_special_is_opened() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        fs::write(stage.home().join("secret"), "canary").unwrap();
        let held = stage.create(kind);
        let secret = stage.home().join("secret");
        stage.in_layer(
            &held,
            &format!(
                "ln -s {secret} direct; ln -s {home} folder; ln -s ../../secret up; mkfifo fifo; \
                 cp {secret} control; mkdir -m 0 closed",
                secret = secret.display(),
                home = stage.home().display(),
            ),
        );
        let view = held.view().unwrap();
        for name in ["direct", "up", "etc"] {
            let read = view.read(&path(name), 100);
            assert!(
                matches!(
                    read,
                    Err(ReadViewError::Kind {
                        kind: NodeKind::Symlink,
                        ..
                    })
                ),
                "{name}: {read:?}"
            );
        }
        for name in ["folder/secret", "etc/passwd", "src/a/b", "none"] {
            let read = view.read(&path(name), 100);
            assert!(
                matches!(read, Err(ReadViewError::Absent { .. })),
                "{name}: {read:?}"
            );
            assert_eq!(view.look(&path(name)).unwrap(), None, "{name}");
        }
        assert!(matches!(
            view.directory(Some(&path("folder"))),
            Err(ReadViewError::Kind { .. })
        ));
        assert!(matches!(
            view.open(&path("fifo")),
            Err(ReadViewError::Kind {
                kind: NodeKind::Fifo,
                ..
            })
        ));
        assert!(matches!(
            view.read(&path("control"), 5),
            Err(ReadViewError::TooLarge {
                size: 6,
                limit: 5,
                ..
            })
        ));
        // The control: the same bytes in a plain file are read.
        assert_eq!(view.read(&path("control"), 6).unwrap(), b"canary");
        assert!(view.list(&view.directory(None).unwrap()).unwrap().len() > 5);
    }
}

#[test]
fn a_directory_swapped_for_a_link_is_never_entered() {
    for kind in kinds() {
        let stage = Stage::new("mkdir inner; echo safe >inner/secret");
        fs::create_dir(stage.home().join("outside")).unwrap();
        fs::write(stage.home().join("outside/secret"), "canary").unwrap();
        let held = stage.create(kind);
        stage.in_layer(&held, "echo mine >inner/secret");
        let view = held.view().unwrap();
        let root = view.directory(None).unwrap();
        let entries = view.list(&root).unwrap();
        let inner = entries.iter().find(|entry| *entry.name == *b"inner");
        let inner = view.enter(&root, inner.unwrap()).unwrap().unwrap();
        assert_eq!(view.list(&inner).unwrap().len(), 1);
        stage.in_layer_unsettled(
            &held,
            &format!(
                "rm -r inner; ln -s {}/outside inner",
                stage.home().display()
            ),
        );
        // What was found before now leads elsewhere, and is not followed.
        assert!(matches!(
            view.open_listed(&path("inner/secret"), Side::Layer),
            Err(ReadViewError::Absent { .. })
        ));
        let listed = view.list(&inner).unwrap();
        assert!(
            listed.iter().all(|entry| entry.side == Side::Project),
            "{listed:?}"
        );
    }
}
