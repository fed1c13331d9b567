//! Making plugins: `fluffy plugin new`, and what its projects are worth.
//!
//! Every template is made, built and tested as its README says, with the
//! toolchain of its language and without a network, and keeps the contract.

mod contract;
mod develop;

use std::path::{Path, PathBuf};
use std::process::Command;

use fluffy_test_kit::{PublishedServers, plugin_cargo, plugin_target};

use crate::site::{Site, files};

/// A project in a site of its own.
struct Made {
    site: Site,
    folder: PathBuf,
}

impl Made {
    fn new(language: &str) -> Self {
        let site = Site::initialised();
        site.succeeds(&["plugin", "new", "--lang", language, "words"]);
        let folder = site.project_file("words");
        Self { site, folder }
    }

    /// Keeps the contract in every respect.
    fn keeps_the_contract(&self) {
        assert_eq!(contract::broken(&self.site, "words/plugin"), [""; 0]);
    }

    /// Runs a command of a toolchain in the project.
    fn runs(&self, program: &str, words: &[&str]) {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).args(words);
        succeeds(command.env("GOPROXY", "off").env("GOFLAGS", ""));
    }
}

fn succeeds(command: &mut Command) {
    let shown = format!("{command:?}");
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{shown}\n{said}");
}

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let site = Site::empty();
    for name in ["Words", "w", "a/b", "..", "wörter"] {
        let words = ["plugin", "new", "--lang", "go", name];
        let error = site.json_error(2, &words);
        assert!(error["what"].as_str().unwrap().contains(name), "{error}");
        assert!(error["fix"].to_string().contains("word-count"), "{error}");
    }
    let unknown = site.ends(2, &["plugin", "new", "--lang", "cobol", "words"]);
    assert!(unknown.stderr.contains("python"), "{}", unknown.stderr);
    site.context.write("words/mine.txt", "mine").unwrap();
    let there = site.json_error(2, &["plugin", "new", "--lang", "go", "words"]);
    assert!(there["what"].as_str().unwrap().contains("there already"));
    let nowhere = [
        "plugin",
        "new",
        "--lang",
        "go",
        "words",
        "--dir",
        "a/b/words",
    ];
    site.json_error(1, &nowhere);
    let left = files(&site.context.project());
    assert_eq!(left, [site.project_file("words/mine.txt")]);
    // Control: in a place of its own it is written.
    let made = site.json(0, &["plugin", "new", "--lang", "go", "words", "--dir", "w"]);
    assert_eq!(made["plugin"], "words");
    for file in made["files"].as_array().unwrap() {
        let path = site.project_file("w").join(file.as_str().unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("{{name}}"), "{}", path.display());
    }
}

#[test]
fn a_new_plugin_in_python_works() {
    let made = Made::new("python");
    made.runs("/usr/bin/python3", &["-m", "unittest", "discover", "tests"]);
    made.keeps_the_contract();
}

#[test]
fn a_new_plugin_in_go_works() {
    let made = Made::new("go");
    made.runs("go", &["vet", "./..."]);
    made.runs("go", &["test", "./..."]);
    made.runs("go", &["build", "-o", "plugin/server", "."]);
    made.keeps_the_contract();
}

#[test]
fn a_new_plugin_in_typescript_works() {
    let made = Made::new("ts");
    let fetched = PublishedServers::fetched(target());
    let fetched = fetched.expect("`cargo xtask test --only setup` fetches the compiler");
    let modules = fetched.typescript().join("node_modules");
    std::os::unix::fs::symlink(modules, made.folder.join("node_modules")).unwrap();
    made.runs("npm", &["test"]);
    made.keeps_the_contract();
}

#[test]
fn a_new_plugin_in_rust_works() {
    let made = Made::new("rust");
    let cargo = |words: &[&str]| {
        let mut command = plugin_cargo(&made.folder).unwrap();
        succeeds(command.args(words).args(["--locked", "--offline"]));
    };
    cargo(&["test"]);
    cargo(&["build", "--release", "--target", "wasm32-wasip2"]);
    let built = plugin_target()
        .unwrap()
        .join("wasm32-wasip2/release/plugin.wasm");
    std::fs::copy(built, made.folder.join("plugin/plugin.wasm")).unwrap();
    made.keeps_the_contract();
    // What was not granted is denied, and shown; control: what was is allowed.
    let note = [
        "plugin",
        "dev",
        "words/plugin",
        "--call",
        "note",
        r#"{"text":"a"}"#,
    ];
    let allowed = made.site.succeeds(&note);
    assert!(allowed.contains("allow    kv.set.note"), "{allowed}");
    let denied = made
        .site
        .ends(1, &[&note[..], &["--grant", "log.write"]].concat());
    assert!(
        denied.stdout.contains("deny     kv.get.note (grant)"),
        "{}",
        denied.stdout
    );
    // What it does not declare it is denied, and told of.
    let manifest = made.folder.join("plugin/plugin.yaml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let text = text
        .replace("[ \"kv.*\" ]", "[]")
        .replace("effect: acts", "effect: reads");
    std::fs::write(&manifest, text).unwrap();
    let broken = contract::findings(&made.site, 1, "words/plugin");
    assert_eq!(contract::names(&broken, "broken"), ["undeclared"]);
    assert!(broken.to_string().contains("kv.get.note"), "{broken}");
}
