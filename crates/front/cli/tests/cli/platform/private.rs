//! Private registries, as operators have them: a password, TLS by an authority
//! of their own, a private address, mirrors. The password is the operator's
//! file's and the registry's to know, and nobody else's.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_test_kit::{RealRegistry, wait_for};
use serde_json::Value;
use tempfile::TempDir;

use super::hidden::found;
use super::lived::layer;
use super::real::Running;
use super::stage::write_image;
use crate::site::Site;

/// More than any machine needs.
const LONG: Duration = Duration::from_secs(400);

/// Is nowhere else on this machine, not even in a test's own command line.
const PASSWORD: &str = "registry-canary-7c1fe0";

/// As `htpasswd -B -C 4` writes it for that password.
const USER: &str = "me:$2b$04$P7bqZYJUuX7L9vWu0SKgx.8bHhitGwDT66rFrWpmO4bi21G.AFfG.\n";

/// What operators keep, outside of what `fluffy` keeps.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("users"), USER).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes the file of credentials anew, as a program that rotates it does.
    fn log_in(&self, name: &str, (host, password): (&str, &str), mode: u32) -> String {
        let auth = STANDARD.encode(format!("me:{password}"));
        let text = format!(r#"{{"auths": {{"{host}": {{"auth": "{auth}"}}}}}}"#);
        let next = self.path("next");
        fs::write(&next, text).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(&next, self.path(name)).unwrap();
        self.text(name)
    }

    /// A registry with TLS that wants to know who asks.
    fn registry(&self) -> RealRegistry {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs::write(self.path("ca.pem"), made.cert.pem()).unwrap();
        fs::write(self.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
        RealRegistry::start(&[
            ("REGISTRY_AUTH", "htpasswd"),
            ("REGISTRY_AUTH_HTPASSWD_REALM", "here"),
            ("REGISTRY_AUTH_HTPASSWD_PATH", &self.text("users")),
            ("REGISTRY_HTTP_TLS_CERTIFICATE", &self.text("ca.pem")),
            ("REGISTRY_HTTP_TLS_KEY", &self.text("key.pem")),
        ])
        .unwrap()
    }
}

/// Pushes an image as it is; the password is in a file, if there is one.
fn push(from: &Path, to: &str, login: Option<&str>) {
    let (from, to) = (format!("oci:{}", from.display()), format!("docker://{to}"));
    let mut command = Command::new("skopeo");
    command.args(["copy", "--dest-tls-verify=false", "--preserve-digests"]);
    command.args(["--insecure-policy"]);
    if let Some(login) = login {
        command.args(["--dest-authfile", login]);
    }
    let done = command.args([from, to]).output();
    let done = done.expect("skopeo: run `cargo xtask test --only setup`");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}

/// The manifest of an app with this image.
fn offer(site: &Site, image: &str) {
    let manifest = format!(
        r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "{image}"
[deploy]
min_ready_seconds = 0
[processes.web]
command = ["/bin/sh", "-c", "while true; do sleep 1; done"]
resources = {{ memory = "64MiB" }}
stop = {{ grace_seconds = 1 }}
"#
    );
    site.context.write("fluffy.toml", &manifest).unwrap();
}

fn prepare(site: &Site) {
    site.succeeds(&["apps", "create", "hello"]);
    site.succeeds(&["envs", "create", "dev"]);
    site.succeeds(&["context", "set", "here", "--env", "dev"]);
}

/// An image of one layer with a shell, and another one for each number.
fn image(site: &Site, number: u8) -> PathBuf {
    let folder = site.context.home().join(format!("image-{number}"));
    let mut layer = layer(&site.context.home());
    // A longer end of the archive: only its digest is another.
    layer.resize(layer.len() + 512 * usize::from(number), 0);
    write_image(&folder, &layer);
    folder
}

/// Ends what runs when the test does, with its instances.
struct Platform<'a> {
    site: &'a Site,
    running: Running,
}

impl<'a> Platform<'a> {
    fn start(site: &'a Site, more: &[&str]) -> Self {
        let mut command = site.context.command();
        command.args(["up", "--listen", "none"]).args(more);
        let running = Running::start(command, "runs instances as").0;
        Self { site, running }
    }

    /// Waits for an instance like this.
    fn reach(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = wait_for(what, LONG, || {
            last = self.site.json(0, &["instances", "list"]);
            let mut all = last["items"].as_array().unwrap().iter();
            all.find(|it| is_so(&it["observed"])).cloned()
        });
        found.unwrap_or_else(|error| panic!("{error}: {last}"))
    }

    fn ready(&self) -> Value {
        self.reach("a ready instance", |seen| seen["status"] == "ready")
    }
}

impl Drop for Platform<'_> {
    fn drop(&mut self) {
        self.running.leave();
    }
}

/// What is on record about the registry's credential.
fn delivered(site: &Site) -> Vec<(String, String)> {
    let words = ["events", "audit", "--types", "authz.decided"];
    let list = site.json(0, &[&words[..], &["--limit", "200"]].concat());
    let items = list["items"].as_array().unwrap().iter();
    let decisions = items.map(|it| &it["event"]["payload"]);
    let ours = decisions.filter(|it| it["capability"] == "registry.credential");
    let text = |it: &Value, name: &str| it[name].as_str().unwrap().to_owned();
    ours.map(|it| (text(it, "resource_id"), text(it, "outcome")))
        .collect()
}

#[test]
fn a_private_image_runs_with_its_credential_which_is_nowhere_else() {
    let (site, desk) = (Site::empty(), Desk::new());
    let registry = desk.registry();
    let host = registry.host();
    let right = desk.log_in("right.json", (host, PASSWORD), 0o600);
    let name = |tag: &str| format!("{host}/team/app:{tag}");
    push(&image(&site, 1), &name("v1"), Some(&right));
    push(&image(&site, 2), &name("v2"), Some(&right));
    let (ca, auth) = (desk.text("ca.pem"), desk.text("auth.json"));
    let reach = ["--internal-registry", host, "--registry-ca", &ca];
    let denied = |site: &Site| {
        let error = site.json_error(2, &["deploy"]);
        assert_eq!(error["code"], "image_auth_failed", "{error}");
        let fix = error["fix"][0].as_str().unwrap();
        assert!(fix.contains("--registry-auth"), "{error}");
    };

    // Without a credential, which is what the fix is about.
    offer(&site, &name("v1"));
    let platform = Platform::start(&site, &reach);
    prepare(&site);
    denied(&site);
    drop(platform);
    // A file that others can read is not used.
    desk.log_in("auth.json", (host, PASSWORD), 0o640);
    let words = [
        &["up", "--listen", "none"],
        &reach[..],
        &["--registry-auth", &auth],
    ]
    .concat();
    let error = site.json_error(2, &words);
    assert!(
        error["fix"][0].as_str().unwrap().contains("chmod 600"),
        "{error}"
    );
    // With another password, and then, without a restart, with the right one.
    desk.log_in("auth.json", (host, "another"), 0o600);
    let words = [&reach[..], &["--registry-auth", &auth]].concat();
    let platform = Platform::start(&site, &words);
    denied(&site);
    assert_eq!(delivered(&site), []);
    desk.log_in("auth.json", (host, PASSWORD), 0o600);
    site.succeeds(&["deploy"]);
    platform.ready();
    let once = [(host.to_owned(), "allow".to_owned())];
    assert_eq!(delivered(&site), once);
    // What is here already needs no credential, and nobody asks for one.
    site.succeeds(&["scale", "web=2"]);
    site.succeeds(&["scale", "web=1"]);
    assert_eq!(delivered(&site), once);

    // Changed between the server's look and the node's.
    offer(&site, &name("v2"));
    let release = site.json(0, &["releases", "create"]);
    let release = release["data"]["id"].as_str().unwrap();
    desk.log_in("auth.json", (host, "another"), 0o600);
    site.succeeds(&["deploy", "--release", release, "--no-wait"]);
    let failed = wait_for("a refused pull", LONG, || {
        let words = ["events", "list", "--types", "instance.status_changed"];
        let list = site.json(0, &[&words[..], &["--limit", "200"]].concat());
        let mut all = list["items"].as_array().unwrap().iter();
        let is_it = |it: &&Value| it["payload"]["reason_code"] == "image_auth_failed";
        all.find(is_it).cloned()
    });
    let failed = failed.unwrap();
    let detail = failed["payload"]["reason_detail"].as_str().unwrap();
    assert!(detail.contains("--registry-auth"), "{detail}");

    // The control: a file that holds it in one of these places is found.
    let planted = site.state().join("planted");
    fs::copy(&right, &planted).unwrap();
    let encoded = STANDARD.encode(format!("me:{PASSWORD}"));
    assert_eq!(found(&site, &encoded), std::slice::from_ref(&planted));
    fs::remove_file(&planted).unwrap();
    let nowhere = |when: &str| {
        for word in [PASSWORD, encoded.as_str()] {
            assert_eq!(found(&site, word), Vec::<PathBuf>::new(), "{when}");
        }
        let logs = site.run(&["logs", "--tail", "10000"]);
        assert!(!logs.stdout.contains(PASSWORD));
    };
    nowhere("while it runs");
    drop(platform);
    nowhere("after its end");
}

/// A mirror that has something else for every question; how often it was asked.
fn liar() -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                line.clear();
            }
            count.fetch_add(1, Ordering::SeqCst);
            let kind = "application/vnd.oci.image.manifest.v1+json";
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 4\r\n\
                 connection: close\r\n\r\nlies"
            );
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    (address, asked)
}

#[test]
fn a_mirror_stands_in_for_a_registry_that_is_down_and_is_believed_by_digest_alone() {
    let site = Site::empty();
    let registry = RealRegistry::start(&[]).unwrap();
    let mirror = RealRegistry::start(&[]).unwrap();
    let (liar, asked) = liar();
    let host = registry.host().to_owned();
    let image = image(&site, 1);
    for host in [&host, mirror.host()] {
        push(&image, &format!("{host}/app:v1"), None);
    }
    offer(&site, &format!("{host}/app:v1"));
    let mirrors = [
        format!("{host}=http://{liar}"),
        format!("{host}=http://{}", mirror.host()),
    ];
    let [first, second] = &mirrors;
    let platform = Platform::start(
        &site,
        &[
            "--insecure-registry",
            &host,
            "--registry-mirror",
            first,
            "--registry-mirror",
            second,
        ],
    );
    prepare(&site);
    let listed = site.json(0, &["releases", "create"]);
    let digest = listed["data"]["image_digest"].clone();
    // From here on only its mirrors are there, and the first of them lies.
    drop(registry);
    site.succeeds(&["deploy"]);
    let instance = platform.ready();
    assert!(asked.load(Ordering::SeqCst) > 0, "the control");
    let release = instance["release_id"].as_str().unwrap();
    let release = site.json(0, &["releases", "describe", release]);
    assert_eq!(release["data"]["image_digest"], digest, "{release}");
}
