//! `fluffy up` with this machine as its node: what is deployed runs, for real.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;
use serde_json::Value;

use super::real::Running;
use super::stage::write_image;
use crate::site::Site;

/// More than any machine needs.
pub(super) const LONG: Duration = Duration::from_secs(120);

const MANIFEST: &str = r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 0
[processes.web]
command = ["/bin/busybox", "httpd", "-f", "-v", "-p", "[::]:8080", "-h", "/www"]
resources = { memory = "64MiB" }
"#;

/// A layer with a shell and a page.
pub(super) fn layer(folder: &Path) -> Vec<u8> {
    let root = folder.join("root");
    for part in ["bin", "www/cgi-bin"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    let busybox = fs::read("/bin/busybox").expect("`cargo xtask test --only setup` installs it");
    fs::write(root.join("bin/busybox"), busybox).unwrap();
    fs::write(root.join("www/index.html"), "hello from an instance\n").unwrap();
    symlink("busybox", root.join("bin/sh")).unwrap();
    for (name, work) in [
        ("slow", "/bin/busybox sleep 1; echo whole"),
        ("who", "/bin/busybox hostname"),
        (
            "stream",
            "/bin/busybox hostname; while echo more; do /bin/busybox sleep 1; done",
        ),
    ] {
        let script = format!("#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\n{work}\n");
        fs::write(root.join("www/cgi-bin").join(name), script).unwrap();
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
    packed.stdout
}

pub(super) fn up(site: &Site) -> Running {
    let mut command = site.context.command();
    command.args(["up", "--listen", "none"]);
    Running::start(command, "runs instances as").0
}

/// Every instance that is ready, as it is described.
pub(super) fn ready(site: &Site) -> Vec<Value> {
    let list = site.json(0, &["instances", "list"]);
    let items = list["items"].as_array().unwrap().iter();
    let ready = items.filter(|it| it["observed"]["status"] == "ready");
    ready.cloned().collect()
}

pub(super) fn reach(site: &Site, wanted: usize) -> Vec<Value> {
    let what = format!("{wanted} instances that are ready, and no other");
    wait_for(&what, LONG, || {
        let list = site.json(0, &["instances", "list"]);
        let ready = ready(site);
        let all = list["items"].as_array().unwrap().len();
        (ready.len() == wanted && all == wanted).then_some(ready)
    })
    .unwrap()
}

/// What an instance serves at its own address.
pub(super) fn page(instance: &Value) -> Option<String> {
    let address: Ipv6Addr = instance["overlay_ipv6"].as_str()?.parse().ok()?;
    let within = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&(address, 8080).into(), within).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn serves(instance: &Value) -> bool {
    page(instance).is_some_and(|text| text.ends_with("hello from an instance\n"))
}

#[test]
fn what_is_deployed_runs_here_and_outlives_the_platform() {
    let site = Site::empty();
    let image = site.context.project().join("image");
    write_image(&image, &layer(&site.context.home()));
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let running = up(&site);
    site.succeeds(&["apps", "create", "hello"]);
    site.succeeds(&["envs", "create", "dev"]);
    site.succeeds(&["context", "set", "here", "--env", "dev"]);
    site.succeeds(&["deploy"]);
    let [first] = reach(&site, 1).try_into().unwrap();
    assert_eq!(first["isolation"]["level"], "shared-kernel");
    assert!(serves(&first), "{first}: {:?}", page(&first));
    wait_for("the line of the request", LONG, || {
        let said = site.succeeds(&["logs"]);
        said.contains("response:200").then_some(())
    })
    .unwrap();

    let id = first["id"].as_str().unwrap();
    let exec = |code, words: &[&str]| {
        let line = [&["exec", "--no-stdin", id, "--"], words].concat();
        site.ends(code, &line).stdout
    };
    assert_eq!(
        exec(0, &["/bin/busybox", "cat", "/www/index.html"]),
        "hello from an instance\n"
    );
    assert_eq!(exec(7, &["/bin/sh", "-c", "exit 7"]), "");
    // It sees its own processes and no file of this machine.
    let seen = exec(0, &["/bin/busybox", "ps"]);
    assert!(seen.lines().count() < 8, "{seen}");
    let home = site.context.home().display().to_string();
    exec(1, &["/bin/busybox", "ls", &home]);

    site.succeeds(&["scale", "web=3"]);
    let three = reach(&site, 3);
    assert!(three.iter().all(serves));
    site.succeeds(&["scale", "web=1"]);
    let [left] = reach(&site, 1).try_into().unwrap();

    // One that is gone is still read.
    let mut gone = three.iter().map(|it| it["id"].as_str().unwrap());
    let gone = gone.find(|id| left["id"] != *id).unwrap();
    let printed = |more: &[&str]| {
        let words = [&["logs", "--instance", gone], more].concat();
        let shown = site.json(0, &words);
        shown["data"]["items"].as_array().unwrap().clone()
    };
    let answered = |it: &Value| it["line"].as_str().unwrap().contains("response:200");
    let before = wait_for("the lines of one that is gone", LONG, || {
        let lines = printed(&[]);
        lines.iter().any(answered).then_some(lines)
    })
    .unwrap();
    let stream = before.iter().find(|it| answered(it)).unwrap()["stream"].clone();
    for name in ["stdout", "stderr"] {
        let lines = printed(&["--stream", name]);
        assert_eq!(lines.iter().any(answered), stream == name, "{lines:?}");
    }

    // Killed, not ended: nothing that runs may notice.
    running.kill();
    assert!(serves(&left));
    let running = up(&site);
    let after = printed(&[]);
    assert!(
        before.iter().all(|line| after.contains(line)),
        "{before:?} and then {after:?}"
    );
    let [again] = reach(&site, 1).try_into().unwrap();
    assert_eq!(again["observed"]["boot_id"], left["observed"]["boot_id"]);
    assert!(serves(&again));

    // Ended in good order it takes all of it along.
    running.end();
    assert_eq!(page(&again), None);
}
