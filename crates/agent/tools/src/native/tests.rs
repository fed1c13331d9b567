//! Native tools over real layers, with ripgrep's own walker as the judge.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use fluffy_layer::{HeldLayer, LayerDirectories, LayerKind, LayerStore, View};
use fluffy_test_kit::permit;
use ignore::WalkBuilder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::arguments::{AskPath, FindFiles, ListDirectory, ReadFile, SearchText, Show};

static GO_ON: AtomicBool = AtomicBool::new(false);

fn everything(_: &str) -> bool {
    true
}

fn scope() -> Scope<'static> {
    Scope {
        may_read: &everything,
        stop: &GO_ON,
    }
}

/// A project with a layer of one kind over it.
struct Stage {
    home: TempDir,
    held: HeldLayer,
}

impl Stage {
    fn new(kind: LayerKind, project: &str, layer: &str) -> Self {
        let home = TempDir::new().unwrap();
        let folder = home.path().join("project");
        std::fs::create_dir(&folder).unwrap();
        std::fs::create_dir(home.path().join("mounted")).unwrap();
        run(Command::new("sh")
            .args(["-euc", project])
            .current_dir(&folder));
        let store = LayerStore::open(&home.path().join("state")).unwrap();
        let create = permit("sandbox.create", Some("code-executor"));
        let held = store.create(create, &folder, kind).unwrap();
        let stage = Self { home, held };
        stage.in_layer(layer);
        stage
    }

    fn in_layer(&self, script: &str) {
        match self.held.prepare_mount().unwrap() {
            LayerDirectories::Copy { tree } => {
                run(Command::new("sh").args(["-euc", script]).current_dir(tree));
            }
            LayerDirectories::Overlay { upper, work } => {
                let options = format!(
                    "userxattr,volatile,lowerdir={},upperdir={},workdir={}",
                    self.home.path().join("project").display(),
                    upper.display(),
                    work.display()
                );
                let mount =
                    "mount -t overlay overlay -o \"$1\" \"$2\" && cd \"$2\" && exec sh -euc \"$3\"";
                run(Command::new("unshare")
                    .args([
                        "--user",
                        "--map-root-user",
                        "--mount",
                        "sh",
                        "-euc",
                        mount,
                        "sh",
                    ])
                    .arg(options)
                    .arg(self.home.path().join("mounted"))
                    .arg(script));
            }
        }
    }

    fn view(&self) -> View {
        self.held.view().unwrap()
    }

    /// A plain copy of what the sandbox sees.
    fn copied(&self) -> PathBuf {
        let copy = self.home.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        self.in_layer(&format!("cp -r . {}", copy.display()));
        copy
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The kinds of layer this machine can have.
fn kinds() -> Vec<LayerKind> {
    let home = TempDir::new().unwrap();
    let script =
        "mkdir l u w m && mount -t overlay overlay -o userxattr,lowerdir=l,upperdir=u,workdir=w m";
    let tried = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-euc", script])
        .current_dir(home.path())
        .output();
    if tried.is_ok_and(|output| output.status.success()) {
        return vec![LayerKind::Overlay, LayerKind::Copy];
    }
    fluffy_test_kit::record_skip(
        "native reads over layers of kind overlay",
        "this machine lets nobody mount an overlay in a user namespace",
    );
    vec![LayerKind::Copy]
}

fn search(pattern: &str) -> SearchText {
    SearchText {
        pattern: pattern.to_owned(),
        path: "/".to_owned(),
        globs: Vec::new(),
        literal: false,
        ignore_case: false,
        hidden: false,
        context: None,
        show: Show::Lines,
        limit: None,
    }
}

fn grep(view: &View, arguments: &SearchText, scope: Scope<'_>) -> String {
    let permit = permit("search.grep", Some(&arguments.path));
    search_text_output(permit, view, arguments, scope)
        .unwrap()
        .content
}

fn glob(view: &View, pattern: &str, path: &str) -> String {
    let arguments = FindFiles {
        pattern: pattern.to_owned(),
        path: path.to_owned(),
        hidden: false,
        limit: None,
    };
    find_files(permit("search.glob", Some(path)), view, &arguments, scope())
        .unwrap()
        .content
}

fn read(view: &View, path: &str, start_line: Option<u64>, line_count: Option<u64>) -> ToolOutput {
    let arguments = ReadFile {
        path: path.to_owned(),
        start_line,
        line_count,
    };
    read_file(permit("fs.read", Some(path)), view, &arguments).unwrap()
}

const PROJECT: &str = "mkdir -p src/deep target .hidden; echo 'fn one() {}' >src/a.rs; \
    echo 'fn two() {}' >src/deep/b.rs; echo 'fn built() {}' >target/c.rs; echo target >.gitignore; \
    echo 'fn hidden() {}' >.hidden/h.rs; printf 'fn bin\\0' >bin.dat; echo 'KEY=fn' >.env; \
    ln -s src/a.rs link.rs; printf 'x' >notes.txt";

#[test]
fn a_search_sees_the_layer_over_the_project() {
    for kind in kinds() {
        let stage = Stage::new(
            kind,
            PROJECT,
            "echo 'fn changed() {}' >src/a.rs; rm src/deep/b.rs; echo 'fn new() {}' >src/new.rs",
        );
        assert_eq!(
            grep(&stage.view(), &search("fn "), scope()),
            "src/a.rs\n1: fn changed() {}\nsrc/new.rs\n1: fn new() {}\n",
            "{kind:?}"
        );
        assert_eq!(glob(&stage.view(), "*.rs", "/"), "src/a.rs\nsrc/new.rs\n");
        // Its own ignore file counts, and what it takes back is found again.
        stage.in_layer("echo new.rs >src/.gitignore; echo '!target' >>.gitignore");
        assert_eq!(glob(&stage.view(), "*.rs", "/"), "src/a.rs\ntarget/c.rs\n");
        stage.in_layer("rm .gitignore; rm src/.gitignore");
        assert_eq!(
            glob(&stage.view(), "**/*.rs", "/src"),
            "src/a.rs\nsrc/new.rs\n"
        );
        assert_eq!(glob(&stage.view(), "*.rs", "/target"), "target/c.rs\n");
    }
}

#[test]
fn a_search_is_shaped_by_its_arguments() {
    let stage = Stage::new(
        LayerKind::Copy,
        PROJECT,
        "printf 'a\\nfn b\\nc\\nd\\ne\\nfn f\\n' >ctx.txt",
    );
    let view = stage.view();
    let with = |change: &dyn Fn(&mut SearchText)| {
        let mut arguments = search("fn ");
        change(&mut arguments);
        grep(&view, &arguments, scope())
    };
    assert_eq!(
        with(&|a| a.show = Show::Files),
        "ctx.txt\nsrc/a.rs\nsrc/deep/b.rs\n"
    );
    assert_eq!(
        with(&|a| a.show = Show::Counts),
        "ctx.txt: 2\nsrc/a.rs: 1\nsrc/deep/b.rs: 1\n"
    );
    assert_eq!(
        with(&|a| a.globs = vec!["*.rs".into(), "!src/deep".into()]),
        "src/a.rs\n1: fn one() {}\n"
    );
    assert!(with(&|a| a.hidden = true).contains(".hidden/h.rs\n1: fn hidden() {}\n"));
    assert_eq!(
        with(&|a| {
            a.pattern = "FN TWO".into();
            a.ignore_case = true
        }),
        "src/deep/b.rs\n1: fn two() {}\n"
    );
    assert_eq!(
        with(&|a| {
            a.pattern = "two() {".into();
            a.literal = true
        }),
        "src/deep/b.rs\n1: fn two() {}\n"
    );
    assert_eq!(
        with(&|a| a.path = "/src/a.rs".into()),
        "src/a.rs\n1: fn one() {}\n"
    );
    assert_eq!(
        with(&|a| {
            a.path = "/ctx.txt".into();
            a.context = Some(1)
        }),
        "ctx.txt\n1- a\n2: fn b\n3- c\n--\n5- e\n6: fn f\n"
    );
    let cut = with(&|a| a.limit = Some(1));
    assert_eq!(
        cut,
        "ctx.txt\n2: fn b\n(there are more: narrow the search by path, globs or pattern)\n"
    );
    assert_eq!(
        with(&|a| a.pattern = "nowhere".into()),
        "no match in 5 files\n"
    );
    assert!(with(&|a| a.pattern = "(".into()).contains("unclosed group"));
    assert!(with(&|a| a.globs = vec!["[".into()]).contains("`[` is not a glob"));
    assert_eq!(with(&|a| a.path = "/none".into()), "there is no `none`");
}

#[test]
fn what_may_not_be_read_is_not_even_hinted_at() {
    let stage = Stage::new(
        LayerKind::Copy,
        "echo 'KEY=canary' >.env; echo 'canary' >plain",
        "true",
    );
    let mut arguments = search("canary");
    arguments.hidden = true;
    let open = grep(&stage.view(), &arguments, scope());
    assert!(open.contains(".env"), "the control finds it: {open}");
    let not_env = |resource: &str| resource != "/.env";
    let closed = Scope {
        may_read: &not_env,
        stop: &GO_ON,
    };
    assert_eq!(
        grep(&stage.view(), &arguments, closed),
        "plain\n1: canary\n"
    );
}

#[test]
fn a_stopped_search_says_that_it_is_not_whole() {
    let stage = Stage::new(LayerKind::Copy, PROJECT, "true");
    let stop = AtomicBool::new(true);
    let stopped = Scope {
        may_read: &everything,
        stop: &stop,
    };
    assert!(grep(&stage.view(), &search("fn"), stopped).contains("there are more"));
}

#[test]
fn a_file_is_read_by_lines() {
    for kind in kinds() {
        let stage = Stage::new(
            kind,
            PROJECT,
            "printf 'one\\ntwo\\nthree' >t; : >empty; head -c 5000 /dev/zero | tr '\\0' x >long; \
             ln -s /etc/passwd out; mkfifo pipe; truncate -s 20M big",
        );
        let view = stage.view();
        assert_eq!(
            read(&view, "/t", None, None).content,
            "t: 3 lines\n1\tone\n2\ttwo\n3\tthree\n(no newline at the end)\n"
        );
        assert_eq!(
            read(&view, "/t", Some(2), Some(1)).content,
            "t: lines 2 to 2 of 3\n2\ttwo\n"
        );
        assert_eq!(
            read(&view, "/t", Some(9), None).content,
            "`t` has 3 lines, so there is no line 9"
        );
        assert_eq!(
            read(&view, "/empty", None, None).content,
            "`empty` is empty"
        );
        assert!(
            read(&view, "/long", None, None)
                .content
                .contains("… (3000 more characters)")
        );
        assert_eq!(
            read(&view, "/bin.dat", None, None).content,
            "`bin.dat` is binary (7 bytes) and is not shown"
        );
        for (path, expected) in [
            (
                "/out",
                "`out` is a symbolic link to `/etc/passwd`; links are not followed: read what it points to",
            ),
            ("/pipe", "`pipe` is a named pipe"),
            ("/src", "`src` is a directory: list it with `fs.list`"),
            ("/none", "there is no `none`"),
            ("/", "the project is a directory: list it with `fs.list`"),
            (
                "@host/etc/passwd",
                "`/etc/passwd` is not in the project: give paths relative to it, such as `src/lib.rs`",
            ),
        ] {
            let output = read(&view, path, None, None);
            assert_eq!(output.content, expected, "{kind:?}");
            assert_eq!(output.outcome, ToolOutcome::Failed);
        }
        assert!(
            read(&view, "/big", None, None)
                .content
                .contains("at most 16777216 are read")
        );
    }
}

#[test]
fn directories_are_listed() {
    let stage = Stage::new(LayerKind::Copy, PROJECT, "mkdir e; ln -s /etc etc");
    let list = |path: &str, depth: Option<u8>| {
        let arguments = ListDirectory {
            path: path.to_owned(),
            depth,
        };
        list_directory(permit("fs.list", Some(path)), &stage.view(), &arguments)
            .unwrap()
            .content
    };
    assert_eq!(
        list("/", None),
        ".env\n.gitignore\n.hidden/\nbin.dat\ne/\netc -> /etc\nlink.rs -> src/a.rs\nnotes.txt\nsrc/\ntarget/\n"
    );
    assert_eq!(
        list("/", Some(3)),
        ".env\n.gitignore\n.hidden/\n  h.rs\nbin.dat\ne/\netc -> /etc\nlink.rs -> src/a.rs\nnotes.txt\nsrc/\n  a.rs\n  deep/\n    b.rs\n"
    );
    assert_eq!(list("/e", None), "`e` is empty");
    assert_eq!(list("/etc", None), "`etc` is a symbolic link");
    let ask = |path: &str| {
        let arguments = AskPath {
            path: path.to_owned(),
        };
        ask_path(permit("fs.exists", Some(path)), &stage.view(), &arguments)
            .unwrap()
            .content
    };
    assert_eq!(ask("/notes.txt"), "yes: `notes.txt` is a file of 1 bytes");
    assert_eq!(ask("/src"), "yes: `src` is a directory");
    assert_eq!(ask("/etc/passwd"), "no: there is no `etc/passwd`");
}

#[test]
fn a_permit_for_something_else_is_refused() {
    let stage = Stage::new(LayerKind::Copy, PROJECT, "true");
    let view = stage.view();
    let arguments = ReadFile {
        path: "/.env".into(),
        start_line: None,
        line_count: None,
    };
    for wrong in [
        permit("fs.read", Some("/src/a.rs")),
        permit("fs.list", Some("/.env")),
    ] {
        let refused = read_file(wrong, &view, &arguments);
        assert!(matches!(refused, Err(CallToolError::WrongPermit { .. })));
    }
    let refused = search_text_output(
        permit("search.grep", Some("/src")),
        &view,
        &search("x"),
        scope(),
    );
    assert!(matches!(refused, Err(CallToolError::WrongPermit { .. })));
}

/// The files that ripgrep's own walker finds.
fn judged(root: &Path) -> BTreeSet<String> {
    let walker = WalkBuilder::new(root)
        .require_git(false)
        .git_global(false)
        .parents(false)
        .build();
    let files = walker
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_file());
    files
        .map(|entry| {
            entry
                .path()
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

fn walked(view: &View) -> BTreeSet<String> {
    let arguments = FindFiles {
        pattern: "**".into(),
        path: "/".into(),
        hidden: false,
        limit: Some(1000),
    };
    let found = find_files(permit("search.glob", Some("/")), view, &arguments, scope()).unwrap();
    let lines = found
        .content
        .lines()
        .filter(|line| !line.starts_with("no file"));
    lines.map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ripgreps_walker_finds_the_same_files(
        ignores in proptest::collection::vec(("(|d/|d/e/)", "\\.(git)?ignore", "[!/]?(a|b|\\*\\.x|d/?|e|d/e|\\*\\*/a|\\.h)"), 0..5),
        removed in proptest::collection::vec("(a|b|d/a|d/e|d|\\.h)", 0..3),
    ) {
        let project = "mkdir -p d/e .git/info; for f in a b c.x .h d/a d/b.x d/.h d/e/a d/e/c.x; do echo $f >$f; done; echo c.x >.git/info/exclude";
        let mut layer = String::from("true");
        for path in removed {
            layer.push_str(&format!("; rm -rf {path}"));
        }
        layer.push_str("; mkdir -p d/e; echo new >d/e/new");
        for (folder, name, line) in ignores {
            layer.push_str(&format!("; echo '{line}' >>{folder}{name}"));
        }
        for kind in kinds() {
            let stage = Stage::new(kind, project, &layer);
            let found = walked(&stage.view());
            prop_assert_eq!(&found, &judged(&stage.copied()), "{:?} {}", kind, layer);
        }
    }
}
