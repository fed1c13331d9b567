//! `fluffy up` with instances of a busybox image, for tests that look closely.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;
use serde_json::Value;

use super::real::Running;
use super::stage::write_image;
use crate::site::Site;

/// More than any machine needs.
pub(super) const LONG: Duration = Duration::from_secs(180);

/// A platform of one machine, and an app on it.
pub(super) struct Lived {
    // Ended before its files go.
    pub(super) running: Option<Running>,
    pub(super) site: Site,
}

impl Lived {
    /// With this manifest in place, and nothing deployed yet.
    pub(super) fn start(manifest: &str) -> Self {
        let site = Site::empty();
        let image = site.context.project().join("image");
        write_image(&image, &layer(&site.context.home()));
        site.context.write("fluffy.toml", manifest).unwrap();
        let mut lived = Self {
            running: None,
            site,
        };
        lived.up();
        lived.site.succeeds(&["apps", "create", "hello"]);
        lived.site.succeeds(&["envs", "create", "dev"]);
        lived
            .site
            .succeeds(&["context", "set", "here", "--env", "dev"]);
        lived
    }

    /// Starts the platform; again, if it was killed.
    pub(super) fn up(&mut self) {
        let mut command = self.site.context.command();
        command.args(["up", "--listen", "none"]);
        self.running = Some(Running::start(command, "runs instances as").0);
    }

    pub(super) fn kill(&mut self) {
        self.running.take().unwrap().kill();
    }

    /// Ends it in good order, with all that runs.
    pub(super) fn end(&mut self) {
        self.running.take().unwrap().end();
    }

    /// The process of the platform.
    pub(super) fn pid(&self) -> u32 {
        self.running.as_ref().unwrap().pid()
    }

    /// Where everything of the platform is.
    pub(super) fn folder(&self) -> PathBuf {
        self.site.state().join("up")
    }

    pub(super) fn instances(&self) -> Vec<Value> {
        let list = self.site.json(0, &["instances", "list"]);
        list["items"].as_array().unwrap().clone()
    }

    /// The ids of exactly so many instances, when all of them are ready.
    pub(super) fn ready(&self, wanted: usize) -> Vec<String> {
        let what = format!("{wanted} instances that are ready, and no other");
        let found = wait_for(&what, LONG, || {
            let all = self.instances();
            let is_ready = |it: &Value| it["observed"]["status"] == "ready";
            (all.len() == wanted && all.iter().all(is_ready)).then_some(all)
        });
        let found = found.unwrap_or_else(|error| panic!("{error}: {:?}", self.instances()));
        let ids = found.iter().map(|it| it["id"].as_str().unwrap().to_owned());
        ids.collect()
    }

    /// What a command in an instance says.
    pub(super) fn exec(&self, code: i32, instance: &str, script: &str) -> String {
        let line = [
            "exec",
            "--no-stdin",
            instance,
            "--",
            "/bin/sh",
            "-c",
            script,
        ];
        self.site.ends(code, &line).stdout
    }

    /// The first process of an instance, as this machine counts.
    pub(super) fn init_of(&self, instance: &str) -> u32 {
        let is_init = |folder: &PathBuf| {
            let words = fs::read(folder.join("cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            words.next() == Some(b"fluffy-init") && words.any(|word| word == instance.as_bytes())
        };
        let found = processes().into_iter().find(is_init);
        let found = found.unwrap_or_else(|| panic!("{instance} has no init"));
        found
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap()
    }
}

/// The folders of all processes of this machine.
pub(super) fn processes() -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let is_number = |path: &PathBuf| {
        let name = path.file_name().unwrap().as_encoded_bytes();
        name.iter().all(u8::is_ascii_digit)
    };
    all.map(|entry| entry.path()).filter(is_number).collect()
}

/// A layer with a shell and all that comes with it.
pub(super) fn layer(folder: &Path) -> Vec<u8> {
    let root = folder.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    let busybox = fs::read("/bin/busybox").expect("`cargo xtask test --only setup` installs it");
    fs::write(root.join("bin/busybox"), busybox).unwrap();
    for name in [
        "cat", "cut", "echo", "false", "grep", "head", "httpd", "id", "kill", "ls", "md5sum",
        "mkdir", "printf", "rm", "sh", "sleep", "stat", "tail", "test", "touch", "tr", "true",
        "wc", "yes",
    ] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let packed = Command::new("tar")
        .args(["--create", "--owner=0", "--group=0", "--mode=a+rx"])
        .arg("--directory")
        .arg(&root)
        .arg(".")
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(packed.status.success());
    fs::remove_dir_all(&root).unwrap();
    packed.stdout
}
