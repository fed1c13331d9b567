//! Images as people make them: built by buildah, pushed to Debian's registry,
//! deployed by their reference, and run, however their programs behave.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_test_kit::{RealRegistry, wait_for};
use serde_json::Value;

use super::instances::page;
use super::real::Running;
use crate::site::Site;

/// More than any machine needs.
const LONG: Duration = Duration::from_secs(400);

/// A program that answers with what it runs on.
const PYTHON: &str = r#"
import http.server, platform, socket, sys

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        release = platform.freedesktop_os_release()["ID"]
        text = f"python {sys.version_info.major} on {release}\n".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

Server(("::", 8080), Handler).serve_forever()
"#;

/// Packages of Debian that are a root file system with Python.
const PACKAGES: &[&str] = &[
    "base-files",
    "dash",
    "libc6",
    "libexpat1",
    "zlib1g",
    "libssl3",
    "libbz2-1.0",
    "liblzma5",
    "python3-minimal",
];

/// A registry, and a `fluffy up` that may ask it.
struct Stage {
    site: Site,
    registry: RealRegistry,
    builder: Builder,
    running: Running,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Instances outlive a platform that is killed.
        self.running.leave();
    }
}

/// Builds images and pushes them, with a store of its own.
struct Builder {
    folder: PathBuf,
}

impl Builder {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let policy = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
        fs::write(folder.join("policy.json"), policy).unwrap();
        fs::copy("/bin/busybox", folder.join("busybox"))
            .expect("`cargo xtask test --only setup` installs it");
        Self { folder }
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.folder.join(name), content).unwrap();
    }

    /// Builds an image by these lines and pushes it.
    fn push(&self, lines: &str, name: &str) {
        self.write("Containerfile", lines);
        self.buildah(&[
            "build",
            "--isolation=chroot",
            "--signature-policy=policy.json",
            "--tag",
            name,
            ".",
        ]);
        self.buildah(&[
            "push",
            "--signature-policy=policy.json",
            "--tls-verify=false",
            name,
            &format!("docker://{name}"),
        ]);
    }

    fn buildah(&self, words: &[&str]) {
        let done = Command::new("buildah")
            .args(["--storage-driver=vfs", "--root=root", "--runroot=run"])
            .args(words)
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
            .env("XDG_RUNTIME_DIR", &self.folder)
            .output()
            .expect("buildah: run `cargo xtask test --only setup`");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{words:?}: {said}");
    }

    /// Packs what Debian's packages put on this machine, as `root.tar`.
    fn pack_debian(&self) {
        let python = fs::canonicalize("/usr/bin/python3").unwrap();
        let version = python.file_name().unwrap().to_str().unwrap();
        let mut packages: Vec<String> = PACKAGES.iter().map(|&name| name.to_owned()).collect();
        packages.push(format!("{version}-minimal"));
        packages.push(format!("lib{version}-minimal"));
        packages.push(format!("lib{version}-stdlib"));
        let listed = Command::new("dpkg").arg("-L").args(&packages).output();
        let listed = listed.unwrap();
        let said = String::from_utf8_lossy(&listed.stderr);
        assert!(listed.status.success(), "{said}");
        let mut files: Vec<PathBuf> = String::from_utf8(listed.stdout)
            .unwrap()
            .lines()
            .filter_map(|line| real_name(Path::new(line)))
            .collect();
        files.extend(["bin", "lib", "lib64", "sbin"].map(PathBuf::from));
        files.sort();
        files.dedup();
        let names: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
        self.write("files", &names.join("\n"));
        let packed = Command::new("tar")
            .args(["--create", "--file=root.tar", "--directory=/"])
            .args(["--no-recursion", "--ignore-failed-read", "--files-from"])
            .arg(self.folder.join("files"))
            .current_dir(&self.folder)
            .stderr(Stdio::inherit())
            .status();
        assert!(packed.unwrap().success());
    }
}

/// The name of a file below the root, by no link that leads to its folder.
fn real_name(path: &Path) -> Option<PathBuf> {
    let parent = fs::canonicalize(path.parent()?).ok()?;
    let name = parent.join(path.file_name()?);
    // Documents and what was never installed.
    if name.starts_with("/usr/share/doc") || fs::symlink_metadata(&name).is_err() {
        return None;
    }
    Some(name.strip_prefix("/").unwrap().to_owned())
}

impl Stage {
    fn set(more: &[&str]) -> Self {
        let site = Site::empty();
        let registry = RealRegistry::start(&[]).unwrap();
        let builder = Builder::new(site.context.home().join("build"));
        let mut command = site.context.command();
        command.args(["up", "--listen", "none", "--insecure-registry"]);
        command.arg(registry.host()).args(more);
        let running = Running::start(command, "runs instances as").0;
        Self {
            site,
            registry,
            builder,
            running,
        }
    }

    /// Builds and pushes an image, and writes the manifest of its app.
    fn offer(&self, app: &str, lines: &str, process: &str) {
        let name = format!("{}/{app}:v1", self.registry.host());
        self.builder.push(lines, &name);
        self.site
            .context
            .write("fluffy.toml", &manifest(app, &name, process))
            .unwrap();
        self.site.succeeds(&["apps", "create", app]);
        self.site.succeeds(&["envs", "create", "dev"]);
        let context = ["context", "set", "here", "--app", app, "--env", "dev"];
        self.site.succeeds(&context);
    }

    fn instances(&self) -> Vec<Value> {
        let list = self.site.json(0, &["instances", "list"]);
        list["items"].as_array().unwrap().clone()
    }

    /// Waits for the one instance of the app to be like this.
    fn reach(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Vec::new();
        let found = wait_for(what, LONG, || {
            last = self.instances();
            last.iter().find(|it| is_so(it)).cloned()
        });
        found.unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    fn ready(&self) -> Value {
        self.reach("a ready instance", |it| it["observed"]["status"] == "ready")
    }

    /// Takes the instances away, and waits until they are gone.
    fn leave(&self) {
        self.site.succeeds(&["scale", "web=0"]);
        wait_for("no instance", LONG, || {
            self.instances().is_empty().then_some(())
        })
        .unwrap();
    }

    /// Waits for an instance that failed for this reason.
    fn fails(&self, reason: &str) -> Value {
        self.reach(reason, |it| {
            let seen = &it["observed"];
            seen["status"] == "failed" && seen["reason_code"] == reason
        })
    }

    /// How long an instance took to end once it should.
    fn ending(&self, id: &str) -> Duration {
        let words = ["events", "list", "--types", "instance.status_changed"];
        let list = self.site.json(0, &words);
        let items = list["items"].as_array().unwrap();
        let at = |status: &str| {
            let mut own = items.iter().filter(|it| it["aggregate_id"] == id);
            let found = own.find(|it| it["payload"]["status"] == status);
            let text = found.unwrap()["payload"]["reported_at"].as_str().unwrap();
            text.parse::<Timestamp>().unwrap().as_micros()
        };
        let micros = at("stopped") - at("draining");
        Duration::from_micros(micros.try_into().unwrap())
    }

    fn logged(&self, text: &str) {
        wait_for(text, LONG, || {
            self.site.succeeds(&["logs"]).contains(text).then_some(())
        })
        .unwrap();
    }
}

fn manifest(app: &str, image: &str, process: &str) -> String {
    format!(
        r#"schema_version = "v1"
[app]
name = "{app}"
[image]
ref = "{image}"
[deploy]
min_ready_seconds = 0
[processes.web]
resources = {{ memory = "64MiB" }}
{process}
"#
    )
}

#[test]
fn images_that_buildah_made_are_pulled_and_serve() {
    let stage = Stage::set(&[]);
    // One program and a page: no shell, no library, no list of users.
    stage.builder.write("index.html", "hello from nothing\n");
    let lines = "FROM scratch\nCOPY busybox /httpd\nCOPY index.html /www/\n\
                 ENTRYPOINT [\"/httpd\", \"-f\", \"-p\", \"[::]:8080\", \"-h\", \"/www\"]\n";
    stage.offer("bare", lines, "");
    stage.site.succeeds(&["deploy"]);
    let instance = stage.ready();
    let served = page(&instance).unwrap_or_default();
    assert!(served.ends_with("hello from nothing\n"), "{served}");

    stage.builder.pack_debian();
    stage.builder.write("app.py", PYTHON);
    let lines = "FROM scratch\nADD root.tar /\nCOPY app.py /srv/\nUSER 1000:1000\n\
                 WORKDIR /srv\nENV PATH=/usr/bin:/bin\nCMD [\"python3\", \"app.py\"]\n";
    stage.offer("python", lines, "");
    stage.site.succeeds(&["deploy"]);
    let instance = stage.ready();
    let mut served = String::new();
    wait_for("what Python serves", LONG, || {
        served = page(&instance).unwrap_or_default();
        served.ends_with("python 3 on debian\n").then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {served}"));
    // As who the image says, in its own root.
    let id = instance["id"].as_str().unwrap();
    let script = "while read -r key value rest; do \
                  [ \"$key\" = Uid: ] && echo \"user $value\"; done </proc/self/status; :";
    let words = ["exec", "--no-stdin", id, "--", "/bin/sh", "-c", script];
    assert_eq!(stage.site.ends(0, &words).stdout, "user 1000\n");

    // One that listens where nobody gets through to it is not called ready.
    let lines = "FROM scratch\nCOPY busybox /httpd\n\
                 ENTRYPOINT [\"/httpd\", \"-f\", \"-p\", \"0.0.0.0:8080\"]\n";
    stage.offer(
        "old",
        lines,
        "ports = [{ name = \"http\", internal = 8080 }]",
    );
    stage.site.succeeds(&["deploy", "--no-wait"]);
    let seen = stage.reach("a reason", |it| it["observed"]["status"] == "unhealthy");
    let detail = seen["observed"]["reason_detail"].as_str();
    let detail = detail.unwrap_or_else(|| panic!("{seen}"));
    assert!(
        detail.starts_with("port 8080 listens_ipv4_only: "),
        "{detail}"
    );
}

#[test]
fn images_whose_programs_misbehave_end_as_they_should() {
    let stage = Stage::set(&[]);
    let with = |script: &str| {
        stage.builder.write("run.sh", script);
        "FROM scratch\nCOPY busybox /bin/busybox\nCOPY run.sh /run.sh\n\
         CMD [\"/bin/busybox\", \"sh\", \"/run.sh\"]\n"
    };
    // One that hears TERM and stays: it is ended when its time is over.
    let lines = with(
        "trap 'echo heard it, staying' TERM\necho up\n\
         while :; do /bin/busybox sleep 1; done\n",
    );
    stage.offer("stubborn", lines, "stop = { grace_seconds = 4 }");
    stage.site.succeeds(&["deploy"]);
    let id = stage.ready()["id"].as_str().unwrap().to_owned();
    stage.logged("up");
    stage.leave();
    let took = stage.ending(&id);
    assert!(took >= Duration::from_secs(4), "{took:?}");

    // One that forks: what it leaves to init is collected, what is its own
    // stays until it ends, and neither hinders it. Those end when it is no
    // shell any more, which would collect them.
    let lines = with(
        "n=0\nwhile [ $n -lt 40 ]; do n=$((n + 1)); (/bin/busybox sleep 0.1 &); done\n\
         n=0\nwhile [ $n -lt 20 ]; do n=$((n + 1)); /bin/busybox sleep 5 & done\n\
         exec /bin/busybox sleep 1000000\n",
    );
    stage.offer("forking", lines, "stop = { grace_seconds = 120 }");
    stage.site.succeeds(&["deploy"]);
    let instance = stage.ready();
    let id = instance["id"].as_str().unwrap();
    let count = || {
        let script = "/bin/busybox cat /proc/[0-9]*/stat";
        let words = [
            "exec",
            "--no-stdin",
            id,
            "--",
            "/bin/busybox",
            "sh",
            "-c",
            script,
        ];
        let seen = stage.site.run(&words).stdout;
        let is_dead = |line: &&str| line.contains(") Z ");
        let of_init = |line: &&str| line.contains(") Z 1 ");
        let dead: Vec<&str> = seen.lines().filter(is_dead).collect();
        (dead.len(), dead.iter().filter(|line| of_init(line)).count())
    };
    wait_for("its own dead children, and none of init", LONG, || {
        (count() == (20, 0)).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", count()));
    stage.leave();
    // It heard the signal, and needed none of its grace.
    let took = stage.ending(id);
    assert!(took < Duration::from_secs(120), "{took:?}");

    // One that takes more and more memory.
    let lines = with("a=0123456789abcdef\nwhile :; do a=$a$a; done\n");
    stage.offer("leaking", lines, "restart = { policy = \"never\" }");
    stage.site.succeeds(&["deploy", "--no-wait"]);
    let failed = stage.fails("oom_killed");
    let detail = failed["observed"]["reason_detail"].as_str();
    let detail = detail.unwrap_or_else(|| panic!("{failed}"));
    assert!(detail.contains("; limit 64 MiB, peak "), "{failed}");

    // One that comes up and ends, again and again.
    let lines = with("/bin/busybox sleep 3\nexit 3\n");
    stage.offer("crashing", lines, "restart = { backoff_seconds = 1 }");
    stage.site.succeeds(&["deploy", "--no-wait"]);
    let failed = stage.fails("crash_loop_backoff");
    assert_eq!(failed["observed"]["exit_code"], 3, "{failed}");
}

#[test]
fn where_files_cannot_be_mounted_images_run_from_folders() {
    let stage = Stage::set(&["--unfold-images"]);
    let images = |more: &[&str]| {
        let words = [&["node", "doctor", "--json"], more].concat();
        let said: Value = serde_json::from_str(&stage.site.run(&words).stdout).unwrap();
        let mut checks = said["checks"].as_array().unwrap().iter();
        checks.find(|it| it["name"] == "images").cloned().unwrap()
    };
    assert_eq!(images(&[])["verdict"], "pass");
    let unfolded = images(&["--unfold-images"]);
    assert_eq!(unfolded["verdict"], "warn");
    let detail = unfolded["detail"].as_str().unwrap();
    assert!(detail.contains("unfolded into folders"), "{detail}");
    stage.builder.write("index.html", "hello from a folder\n");
    let lines = "FROM scratch\nCOPY busybox /bin/busybox\nCOPY --chown=7:8 index.html /www/\n\
                 CMD [\"/bin/busybox\", \"httpd\", \"-f\", \"-p\", \"[::]:8080\", \"-h\", \"/www\"]\n";
    stage.offer("folded", lines, "");
    stage.site.succeeds(&["deploy"]);
    let instance = stage.ready();
    let served = page(&instance).unwrap_or_default();
    assert!(served.ends_with("hello from a folder\n"), "{served}");
    // Its owners are its own, and what it writes is not written to the image.
    let id = instance["id"].as_str().unwrap();
    let script = "busybox stat -c %u:%g /www/index.html; busybox rm /www/index.html; \
                  echo changed > /www/index.html; busybox cat /www/index.html";
    let script = script.replace("busybox", "/bin/busybox");
    let words = [
        "exec",
        "--no-stdin",
        id,
        "--",
        "/bin/busybox",
        "sh",
        "-c",
        &script,
    ];
    assert_eq!(stage.site.ends(0, &words).stdout, "7:8\nchanged\n");
    let pages = crate::site::files(&stage.site.state());
    let is_page = |file: &&PathBuf| file.ends_with("tree/www/index.html");
    let page = pages.iter().find(is_page).expect("an unfolded image");
    assert_eq!(fs::read_to_string(page).unwrap(), "hello from a folder\n");
}
