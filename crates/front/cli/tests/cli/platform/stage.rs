//! The real server with a simulated node, and somebody who types at a terminal.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_api::node::{EnrolmentToken, v1};
use fluffy_base::Digest;
use fluffy_node_sim::{Behaviour, Enrolling, Home, Node, Setup, enrol};
use fluffy_test_kit::wait_for;
use serde_json::{Value, json};

use super::real::Running;
use crate::site::Site;

/// More than any machine needs.
const LONG: Duration = Duration::from_secs(120);

/// A site where `fluffy up` has a node, and an image is at hand.
pub(super) struct Stage {
    pub(super) site: Site,
    /// The image, as a manifest names it.
    pub(super) image: String,
    _node: tokio::runtime::Runtime,
    pub(super) running: Running,
}

impl Stage {
    pub(super) fn set() -> Self {
        let site = Site::empty();
        let mut command = site.context.command();
        command.args(["up", "--listen", "none", "--no-node", "--json"]);
        command.args(["--listen-nodes", "127.0.0.1:0"]);
        let (running, said) = Running::start(command, "\n");
        let started: Value = serde_json::from_str(&said).unwrap();
        let node = join(&site, &started);
        let image = site.context.home().join("image");
        // An archive of nothing.
        write_image(&image, &[0; 1024]);
        Self {
            site,
            image: format!("oci:{}", image.display()),
            _node: node,
            running,
        }
    }
}

/// Enrols a simulated node and has it run beside the test.
fn join(site: &Site, started: &Value) -> tokio::runtime::Runtime {
    let token = site.json(0, &["nodes", "enroll-token", "create"]);
    let token = token["data"]["secret"].as_str().unwrap();
    let listening = started["listening"].as_array().unwrap();
    let mut addresses = listening.iter().filter_map(Value::as_str);
    let address = addresses.find_map(|it| it.strip_prefix("grpc://127.0.0.1:"));
    let server = ("localhost".to_owned(), address.unwrap().parse().unwrap());
    let pin: Digest = started["pin"].as_str().unwrap().parse().unwrap();
    let facts = v1::Facts {
        failed_checks: Vec::new(),
        arch: "amd64".to_owned(),
        drivers: vec![v1::Driver {
            name: "microvm-firecracker".to_owned(),
            level: "microvm".to_owned(),
            max_vcpus: 32,
            max_memory_bytes: 64 << 30,
        }],
        labels: Default::default(),
        agent_version: "1.0.0".to_owned(),
    };
    let setup = Setup {
        host: server.0.clone(),
        ports: vec![server.1],
        facts: facts.clone(),
        capacity: v1::Capacity {
            cpu_cores: 16,
            memory_bytes: 64 << 30,
            disk_bytes: 1 << 40,
            cached_images: Vec::new(),
        },
        heartbeat: Some(Duration::from_millis(500)),
    };
    let enrolling = Enrolling {
        server,
        pin,
        token: EnrolmentToken::parse(token).unwrap(),
        role: v1::Role::Worker,
        underlay: Some([127, 0, 0, 1].into()),
        facts,
        former_node_id: String::new(),
        fingerprint: Vec::new(),
    };
    let home = Home::open(&site.context.home().join("node")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let credentials = runtime.block_on(enrol(&enrolling)).unwrap();
    home.keep_credentials(&credentials).unwrap();
    let (node, _handle) = Node::new(setup, home, credentials, Behaviour::default()).unwrap();
    runtime.spawn(async move {
        // The handle lives as long as the node.
        let _handle = _handle;
        node.run().await
    });
    runtime
}

/// Writes an image of one layer as a folder of the OCI layout.
pub(super) fn write_image(folder: &Path, layer: &[u8]) {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |kind: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs::write(blobs.join(digest.to_string()), bytes).unwrap();
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"), "size": bytes.len(),
        })
    };
    let config = json!({
        "os": "linux", "architecture": "amd64", "config": {"Cmd": ["/bin/true"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", Digest::of(layer))]},
    });
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put("config.v1+json", config.to_string().as_bytes()),
        "layers": [put("layer.v1.tar", layer)],
    });
    let mut entry = put("manifest.v1+json", manifest.to_string().as_bytes());
    entry["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    fs::write(folder.join("index.json"), index.to_string()).unwrap();
    let version = json!({"imageLayoutVersion": "1.0.0"});
    fs::write(folder.join("oci-layout"), version.to_string()).unwrap();
}

/// Somebody who types at a terminal and looks at the screen.
pub(super) struct Typist {
    child: Child,
    screen: Arc<Mutex<String>>,
}

impl Typist {
    pub(super) fn start(site: &Site, script: &str) -> Self {
        let inner = site.context.command();
        let program = inner.get_program().to_str().unwrap();
        let file = site.context.home().join("typed.sh");
        fs::write(&file, script.replace("@fluffy", program)).unwrap();
        let variables = inner.get_envs();
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command"])
            .arg(format!("sh {}", file.display()))
            .arg(site.context.home().join("typed"))
            .env_clear()
            .envs(variables.filter_map(|(name, value)| Some((name, value?))))
            .env("TERM", "xterm")
            .current_dir(site.context.project())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                shown.lock().unwrap().push_str(&text);
            }
        });
        Self { child, screen }
    }

    /// Waits until the screen shows this, then types that once.
    pub(super) fn answer(&mut self, wanted: &str, line: &str) {
        self.until("", wanted);
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
    }

    /// Types it, again from time to time, until the screen shows what it should.
    pub(super) fn until(&mut self, line: &str, wanted: &str) {
        let mut looks = 0;
        let seen = wait_for(wanted, LONG, || {
            if looks % 200 == 0 {
                // It may have ended by what was typed before.
                let _ = self
                    .child
                    .stdin
                    .as_mut()
                    .unwrap()
                    .write_all(line.as_bytes());
            }
            looks += 1;
            self.screen.lock().unwrap().contains(wanted).then_some(())
        });
        seen.unwrap_or_else(|error| panic!("{error}: {}", self.screen.lock().unwrap()));
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
