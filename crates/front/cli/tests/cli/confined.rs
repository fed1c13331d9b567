//! `fluffy` inside a container that nobody opened up for it: plain Docker, and
//! Podman of an ordinary user. It says what is in its way and how to change
//! that, the change it names is enough, and what it offers instead works.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fluffy_test_kit::{EngineKind, TestEngine, record_skip};
use serde_json::Value;
use tempfile::TempDir;

const WARNING: &str = "warning: reduced isolation: no namespaces of its own, only Landlock, \
    seccomp and limits; it runs as you, and can change modes and times of your files\n";

#[test]
fn in_plain_docker_it_says_what_to_change_and_that_is_enough() {
    let Some(engine) = Engine::open(EngineKind::Docker) else {
        return;
    };
    engine.assert_obstacle(
        "namespaces cannot be made",
        "the engine of this container forbids it (Operation not permitted (os error 1))",
        "start the container with `--security-opt seccomp=unconfined \
         --security-opt apparmor=unconfined --security-opt systempaths=unconfined`",
    );
    assert_eq!(
        engine.refusal(),
        "error: tier `process` is not to be had here: namespaces cannot be made\n\
         \u{20} why: the engine of this container forbids it (Operation not permitted (os\n\
         \u{20}      error 1))\n\
         \u{20} fix: start the container with `--security-opt seccomp=unconfined\n\
         \u{20}      --security-opt apparmor=unconfined --security-opt systempaths=unconfined`\n\
         \u{20} fix: or take less: `--engine reduced` works here\n"
    );
    engine.assert_both_ways_out();
}

#[test]
fn in_rootless_podman_it_says_what_to_change_and_that_is_enough() {
    let Some(engine) = Engine::open(EngineKind::RootlessPodman) else {
        return;
    };
    engine.assert_obstacle(
        "`/proc` cannot be mounted in a namespace",
        "the engine of this container hides parts of its own `/proc` \
         (Operation not permitted (os error 1))",
        "start the container with `--security-opt unmask=ALL`",
    );
    assert_eq!(
        engine.refusal(),
        "error: tier `process` is not to be had here: `/proc` cannot be mounted in a\n\
         \u{20}      namespace\n\
         \u{20} why: the engine of this container hides parts of its own `/proc` (Operation\n\
         \u{20}      not permitted (os error 1))\n\
         \u{20} fix: start the container with `--security-opt unmask=ALL`\n\
         \u{20} fix: or take less: `--engine reduced` works here\n"
    );
    engine.assert_both_ways_out();
}

/// An engine with an image that has what `fluffy` needs, and a shell.
struct Engine {
    socket: PathBuf,
    image: String,
    folder: TempDir,
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Engine {
    fn open(kind: EngineKind) -> Option<Self> {
        let socket = match kind.for_tests().unwrap() {
            TestEngine::At(socket) => socket,
            TestEngine::Impossible(reason) => {
                record_skip(&format!("fluffy inside {}", kind.name()), &reason);
                return None;
            }
        };
        let folder = TempDir::with_prefix_in("fluffy-in-", "/tmp").unwrap();
        let everybody = || fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), everybody()).unwrap();
        // The engine's user must be able to read it, wherever it was built.
        let program = folder.path().join("fluffy");
        fs::copy(env!("CARGO_BIN_EXE_fluffy"), &program).unwrap();
        fs::set_permissions(&program, everybody()).unwrap();
        let engine = Self {
            socket,
            image: format!("localhost/fluffy-inside-{}", std::process::id()),
            folder,
        };
        engine.make_image();
        Some(engine)
    }

    /// The libraries of `fluffy`, busybox, and a project.
    fn make_image(&self) {
        let root = self.folder.path().join("root");
        for name in [
            "bin",
            "etc",
            "home/project",
            "root",
            "run",
            "usr/bin",
            "var",
        ] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::create_dir(root.join("tmp")).unwrap();
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        let program = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
        let program = program.into_iter().find(|path| path.exists());
        let program = program.expect("busybox-static is missing; `cargo xtask test` installs it");
        fs::copy(program, root.join("bin/busybox")).unwrap();
        for name in ["id", "sh", "true"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        for library in libraries(&self.folder.path().join("fluffy")) {
            let inside = root.join(library.strip_prefix("/").unwrap());
            fs::create_dir_all(inside.parent().unwrap()).unwrap();
            fs::copy(&library, inside).unwrap();
        }
        let mut tar = Command::new("tar")
            .args(["--create", "--directory"])
            .arg(&root)
            .arg(".")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let archive = tar.stdout.take().unwrap();
        let imported = self
            .docker()
            .args(["import", "-", &self.image])
            .stdin(archive)
            .output();
        let imported = imported.unwrap();
        assert!(tar.wait().unwrap().success());
        assert!(imported.status.success(), "{imported:?}");
    }

    fn docker(&self) -> Command {
        let mut docker = Command::new("docker");
        docker
            .arg("--host")
            .arg(format!("unix://{}", self.socket.display()));
        docker
    }

    /// Runs `fluffy` in a container with these options of the engine.
    fn fluffy(&self, options: &[&str], words: &[&str]) -> Ended {
        let program = self.folder.path().join("fluffy");
        let bind = format!("{}:/usr/local/bin/fluffy:ro", program.display());
        let name = format!("fluffy-inside-{}", std::process::id());
        // Without network, because not every machine has one for containers.
        let output = self
            .docker()
            .args(["run", "--network=none", "--workdir=/home/project"])
            .args(["--name", &name, "--volume", &bind])
            .args(options)
            .args([&self.image, "fluffy"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        // Docker's command does not always get the code out of a Podman.
        let code = ["inspect", "--format={{.State.ExitCode}}", &name];
        let code = self.docker().args(code).output().unwrap();
        let removed = self.docker().args(["rm", "--force", &name]).output();
        assert!(removed.unwrap().status.success());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended {
            code: text(code.stdout).trim().parse().ok(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// What `doctor` says of the native engine.
    fn native(&self) -> Value {
        let doctor = self.fluffy(&[], &["doctor", "--json"]);
        assert_eq!(doctor.code, Some(1), "{}{}", doctor.stdout, doctor.stderr);
        let report: Value = serde_json::from_str(&doctor.stdout).unwrap();
        assert_eq!(report["default_works"], false, "{report:#}");
        let tiers = report["tiers"].as_array().unwrap();
        let reduced = tiers.iter().find(|line| line["engine"] == "reduced");
        assert_eq!(reduced.unwrap()["works"], true, "{report:#}");
        let native = tiers.iter().find(|line| line["engine"] == "native");
        native.unwrap().clone()
    }

    fn assert_obstacle(&self, what: &str, why: &str, fix: &str) {
        let native = self.native();
        assert_eq!(native["what"], what);
        assert_eq!(native["why"], why);
        assert_eq!(native["fix"], fix);
    }

    /// What `sandbox run` says instead of running anything.
    fn refusal(&self) -> String {
        let refused = self.fluffy(&[], &["sandbox", "run", "--", "true"]);
        assert_eq!(refused.code, Some(125), "{}", refused.stderr);
        assert_eq!(refused.stdout, "");
        refused.stderr
    }

    /// The fix of `doctor` taken at its word, and the weaker way it offers.
    fn assert_both_ways_out(&self) {
        let native = self.native();
        let fix = native["fix"].as_str().unwrap().split('`').nth(1).unwrap();
        let options: Vec<&str> = fix.split(' ').collect();
        let whole = self.fluffy(&options, &["sandbox", "run", "--", "id", "-u"]);
        assert_eq!(whole.code, Some(0), "{options:?}: {}", whole.stderr);
        assert_eq!(whole.stdout, "1000\n", "{options:?}");
        assert!(!whole.stderr.contains("reduced"), "{}", whole.stderr);
        let words = ["sandbox", "run", "--engine", "reduced", "--", "id", "-u"];
        let reduced = self.fluffy(&[], &words);
        assert_eq!(reduced.code, Some(0), "{}", reduced.stderr);
        assert_eq!(reduced.stdout, "0\n");
        assert!(reduced.stderr.starts_with(WARNING), "{}", reduced.stderr);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Its owner removes the whole engine anyway.
        let _ = self.docker().args(["rmi", "--force", &self.image]).output();
    }
}

/// What the loader would load for a program, the loader itself included.
fn libraries(program: &Path) -> BTreeSet<PathBuf> {
    let listed = Command::new(program)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}
