//! What `bwrap` is told: word for word, with hostile names, and for real.

use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use fluffy_base::ByteSize;
use proptest::prelude::*;

use super::*;
use crate::plan::{Engine, sample};

fn plan(mounts: Vec<Mount>, late: Vec<Mount>) -> Plan {
    Plan {
        mounts,
        late,
        ..sample::plan(Engine::Bwrap)
    }
}

fn read_only(path: &str) -> Mount {
    Mount::ReadOnly {
        host: path.into(),
        inside: path.into(),
    }
}

fn tree(inside: &str) -> Mount {
    Mount::Writable {
        host: "/layers/one".into(),
        inside: inside.into(),
    }
}

/// The options between what holds for every sandbox and the program.
fn options(mounts: Vec<Mount>, late: Vec<Mount>) -> Result<Vec<String>, BwrapError> {
    let arguments = arguments(&plan(mounts, late), Path::new("/opt/fluffy"))?;
    let words: Vec<String> = arguments
        .list
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (head, end) = (NAMESPACES.len() + 4, words.len() - TAIL.split(' ').count());
    assert_eq!(words[end..].join(" "), TAIL);
    Ok(words[head..end].to_vec())
}

/// What follows the last mount.
const TAIL: &str = "--ro-bind /opt/fluffy /run/fluffy-init --remount-ro / --chdir / -- \
                    /run/fluffy-init worker sandbox-init";

#[test]
fn every_sandbox_has_all_namespaces_no_capability_and_dies_with_the_launcher() {
    let arguments = arguments(&plan(vec![], vec![]), Path::new("/opt/fluffy")).unwrap();
    let words: Vec<_> = arguments.list.iter().map(|w| w.to_str().unwrap()).collect();
    assert_eq!(
        words.join(" "),
        "--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts \
         --unshare-cgroup --hostname sandbox --die-with-parent --new-session --as-pid-1 \
         --clearenv --cap-drop ALL --uid 1000 --gid 1000 --ro-bind /opt/fluffy \
         /run/fluffy-init --remount-ro / --chdir / -- /run/fluffy-init worker sandbox-init"
    );
    assert!(arguments.files.is_empty());
}

#[test]
fn each_kind_of_mount_has_its_words() {
    let mounts = vec![
        read_only("/usr"),
        Mount::Link {
            inside: "/bin".into(),
            target: "usr/bin".into(),
        },
        Mount::Directory {
            inside: "/srv".into(),
        },
        Mount::File {
            inside: "/etc/passwd".into(),
            content: "one".to_owned(),
        },
        Mount::File {
            inside: "/etc/group".into(),
            content: "two".to_owned(),
        },
        Mount::Devices,
        Mount::Processes,
        Mount::Scratch {
            inside: "/tmp".into(),
            size: ByteSize(4096),
            inodes: 10,
        },
    ];
    let late = vec![
        tree("/work"),
        Mount::OnlyWritable {
            inside: "/work".into(),
            parts: vec!["/work/src".into()],
        },
        Mount::Protect {
            inside: "/work/.git/hooks".into(),
        },
    ];
    assert_eq!(
        options(mounts, late).unwrap().join(" "),
        "--ro-bind /usr /usr --symlink usr/bin /bin --dir /srv --ro-bind-data 4 /etc/passwd \
         --ro-bind-data 5 /etc/group --dev /dev --proc /proc --size 4096 --tmpfs /tmp \
         --bind /layers/one /work --ro-bind /layers/one /work --bind /layers/one/src /work/src \
         --ro-bind-try /layers/one/.git/hooks /work/.git/hooks"
    );
}

#[test]
fn hostile_names_stay_one_argument() {
    let hostile = [
        "/--bind / /host",
        "/a b",
        "/a\nb",
        "/a\"b",
        "/a'b",
        "/a\\b",
        "/$(id)",
        "/*",
        "/-",
    ];
    for path in hostile {
        let words = options(vec![read_only(path)], vec![]).unwrap();
        assert_eq!(words, ["--ro-bind", path, path]);
    }
    // No text at all, but a name all the same.
    let odd = PathBuf::from(OsString::from_vec(b"/a\xff\xfeb".to_vec()));
    let mount = Mount::ReadOnly {
        host: odd.clone(),
        inside: odd.clone(),
    };
    let given = arguments(&plan(vec![mount], vec![]), Path::new("/opt/fluffy")).unwrap();
    assert_eq!(given.list.iter().filter(|word| **word == odd).count(), 2);
}

#[test]
fn what_could_be_misread_is_refused() {
    for path in [
        "", "a", "-", "--bind", "./a", "/a/../b", "/a/./b", "/a//b", "/a/", "/a\0b",
    ] {
        let refused = options(vec![read_only(path)], vec![]);
        assert!(matches!(refused, Err(BwrapError::Path { .. })), "{path:?}");
        let program = arguments(&plan(vec![], vec![]), Path::new(path));
        assert!(matches!(program, Err(BwrapError::Path { .. })), "{path:?}");
    }
    for target in ["", "-x", "--bind", "a\0b"] {
        let link = Mount::Link {
            inside: "/bin".into(),
            target: target.into(),
        };
        let refused = options(vec![link], vec![]);
        assert!(
            matches!(refused, Err(BwrapError::Target { .. })),
            "{target:?}"
        );
    }
}

#[test]
fn what_bwrap_cannot_do_is_refused() {
    let overlay = Mount::Overlay {
        lower: "/work".into(),
        upper: "/layers/one/upper".into(),
        work: "/layers/one/work".into(),
        inside: "/work".into(),
    };
    let refused = options(vec![], vec![overlay]);
    assert!(matches!(refused, Err(BwrapError::Overlay { .. })));
    let protect = Mount::Protect {
        inside: "/other/file".into(),
    };
    let refused = options(vec![], vec![tree("/work"), protect]);
    assert!(matches!(refused, Err(BwrapError::Nowhere { .. })));
    let parts = Mount::OnlyWritable {
        inside: "/work".into(),
        parts: vec!["/usr".into()],
    };
    let refused = options(vec![read_only("/usr")], vec![tree("/work"), parts]);
    assert!(matches!(refused, Err(BwrapError::Nowhere { .. })));
    let many = (0..5_000).map(|n| read_only(&format!("/{n}"))).collect();
    assert_eq!(
        arguments(&plan(many, vec![]), Path::new("/opt/fluffy")),
        Err(BwrapError::TooMany)
    );
}

/// How many arguments each option takes, in `bwrap`'s own grammar.
fn arity(option: &str) -> usize {
    match option {
        "--ro-bind" | "--bind" | "--ro-bind-try" | "--ro-bind-data" | "--symlink" => 2,
        "--dir" | "--dev" | "--proc" | "--tmpfs" | "--size" => 1,
        other => panic!("nothing asks for `{other}`"),
    }
}

fn any_path() -> impl Strategy<Value = String> {
    let word = "(--(bind|ro-bind|dev|share-net)|-|--|[ a\"'\\\\()$\n\t;=*~é]{1,6}|\\.git|x)";
    prop::collection::vec(word, 1..4).prop_map(|words| format!("/{}", words.join("/")))
}

fn any_mount() -> impl Strategy<Value = Mount> {
    prop_oneof![
        (any_path(), any_path()).prop_map(|(host, inside)| Mount::ReadOnly {
            host: host.into(),
            inside: inside.into(),
        }),
        (any_path(), any_path()).prop_map(|(host, inside)| Mount::Writable {
            host: host.into(),
            inside: inside.into(),
        }),
        any_path().prop_map(|inside| Mount::Directory {
            inside: inside.into()
        }),
        any_path().prop_map(|inside| Mount::Protect {
            inside: inside.into()
        }),
        (any_path(), ".{0,8}").prop_map(|(inside, content)| Mount::File {
            inside: inside.into(),
            content,
        }),
        (any_path(), "[-a/.]{1,8}").prop_map(|(inside, target)| Mount::Link {
            inside: inside.into(),
            target: target.into(),
        }),
        any_path().prop_map(|inside| Mount::Scratch {
            inside: inside.into(),
            size: ByteSize(1),
            inodes: 1,
        }),
        Just(Mount::Devices),
        Just(Mount::Processes),
    ]
}

proptest! {
    /// Read back with `bwrap`'s own grammar, there is one option per mount, in
    /// order, and writing is possible only where the plan says so.
    #[test]
    fn no_rule_that_the_plan_did_not_ask_for(
        mounts in prop::collection::vec(any_mount(), 0..8),
    ) {
        let Ok(words) = options(mounts.clone(), vec![]) else {
            return Ok(());
        };
        let mut words = words.iter();
        let mut mounts = mounts.iter();
        while let Some(option) = words.next() {
            let values: Vec<&String> = words.by_ref().take(arity(option)).collect();
            if option == "--size" {
                continue;
            }
            let mount = mounts.next().unwrap();
            let last = Path::new(values.last().unwrap());
            let asked = match (option.as_str(), mount) {
                ("--ro-bind", Mount::ReadOnly { host, inside })
                | ("--bind", Mount::Writable { host, inside }) => {
                    host == Path::new(values[0]) && inside == last
                }
                ("--symlink", Mount::Link { inside, target }) => {
                    target == Path::new(values[0]) && inside == last
                }
                ("--ro-bind-try", Mount::Protect { inside })
                | ("--ro-bind-data", Mount::File { inside, .. })
                | ("--dir", Mount::Directory { inside })
                | ("--tmpfs", Mount::Scratch { inside, .. }) => inside == last,
                ("--dev", Mount::Devices) | ("--proc", Mount::Processes) => true,
                _ => false,
            };
            prop_assert!(asked, "{} {:?} for {:?}", option, values, mount);
        }
        prop_assert!(mounts.next().is_none());
    }
}

#[test]
fn hidden_paths_are_covered_by_what_cannot_be_opened() {
    let hide = |inside: &str, kind| Mount::Hide {
        inside: inside.into(),
        kind,
    };
    let pin = Mount::Pin {
        inside: "/work/a".into(),
    };
    let late = vec![
        tree("/work"),
        pin,
        hide("/work/a/key", HiddenKind::File),
        hide("/work/keys", HiddenKind::Directory),
    ];
    assert_eq!(
        options(vec![], late).unwrap().join(" "),
        "--bind /layers/one /work --bind /layers/one/a /work/a --ro-bind /dev/null /work/a/key \
         --perms 0000 --tmpfs /work/keys --remount-ro /work/keys"
    );
    let unseen = vec![tree("/work"), hide("/work/key", HiddenKind::Unseen)];
    assert!(matches!(
        options(vec![], unseen),
        Err(BwrapError::Nowhere { .. })
    ));
}

/// The real `bwrap` takes the words, and the sandbox is what they say.
#[test]
fn the_real_bwrap_builds_it() {
    let Some(bwrap) = crate::foreign::find_bwrap() else {
        fluffy_test_kit::record_skip("bwrap", "bubblewrap is not installed");
        return;
    };
    let ground = tempfile::tempdir().unwrap();
    let layer = ground.path().join("layer one");
    for folder in ["src", "docs", "kept"] {
        std::fs::create_dir_all(layer.join(folder)).unwrap();
    }
    let passwd = ground.path().join("content");
    std::fs::write(&passwd, "fluffy:x:1000:1000::/:/bin/sh\n").unwrap();
    let script = ground.path().join("init");
    std::fs::write(&script, INSIDE_SCRIPT).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    let given = arguments(&real_plan(&layer), &script).unwrap();
    assert_eq!(given.files, ["fluffy:x:1000:1000::/:/bin/sh\n"]);
    // The shell only opens descriptor 4; the words pass through untouched.
    let output = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" \"$@\" 4<\"$CONTENT\""])
        .arg(bwrap)
        .args(&given.list)
        .env("CONTENT", &passwd)
        .env("LEAKED", "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said,
        "pid 1\nuser 1000\nhost sandbox\ncaps 0000000000000000\nvariable \npasswd fluffy\n\
         root no\ndocs no\nkept no\nsrc yes\ntmp yes\n",
        "{errors}"
    );
    assert!(layer.join("src/new").exists());
    assert!(!layer.join("docs/new").exists() && !layer.join("kept/new").exists());
}

/// Says what it sees; each `no` is a write that failed.
const INSIDE_SCRIPT: &str = r#"#!/bin/sh
echo pid $$
echo user $(id -u)
echo host $(uname -n)
echo caps $(sed -n 's/^CapEff:\t//p' /proc/self/status)
echo "variable $LEAKED"
echo passwd $(cut -d: -f1 /etc/passwd)
try() { if (: > "$2") 2>/dev/null; then echo "$1" yes; else echo "$1" no; fi; }
try root /new
try docs "/work place/docs/new"
try kept "/work place/kept/new"
try src "/work place/src/new"
try tmp /tmp/new
"#;

fn real_plan(layer: &Path) -> Plan {
    let mut mounts = vec![read_only("/usr")];
    for name in ["bin", "lib", "lib64", "sbin"] {
        let inside = Path::new("/").join(name);
        match std::fs::read_link(&inside) {
            Ok(target) => mounts.push(Mount::Link { inside, target }),
            Err(_) if inside.exists() => mounts.push(read_only(inside.to_str().unwrap())),
            Err(_) => {}
        }
    }
    mounts.push(Mount::File {
        inside: "/etc/passwd".into(),
        content: "fluffy:x:1000:1000::/:/bin/sh\n".to_owned(),
    });
    mounts.extend([Mount::Devices, Mount::Processes]);
    for inside in ["/tmp", "/run"] {
        mounts.push(Mount::Scratch {
            inside: inside.into(),
            size: ByteSize(1 << 20),
            inodes: 100,
        });
    }
    let project = PathBuf::from("/work place");
    let late = vec![
        Mount::Writable {
            host: layer.to_owned(),
            inside: project.clone(),
        },
        Mount::OnlyWritable {
            inside: project.clone(),
            parts: vec![project.join("src"), project.join("kept")],
        },
        Mount::Protect {
            inside: project.join("kept"),
        },
        Mount::Protect {
            inside: project.join("missing"),
        },
    ];
    plan(mounts, late)
}
