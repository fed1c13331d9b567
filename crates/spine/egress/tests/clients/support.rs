//! A site, a proxy in front of it, and programs that know only the proxy.
//!
//! The certificate is made by `openssl`, the site by `site.py`. Everything
//! lives in one folder and ends with the stage.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_egress::{AllowList, Exchange, ProxyHandle, Record, RecordError, Settings, serve};
use fluffy_sandbox::plan::proxy_variables;
use fluffy_test_kit::wait_for;
use serde_json::Value;
use tempfile::TempDir;

/// Far beyond what anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a program did.
pub(crate) struct Ran {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) struct Stage {
    folder: TempDir,
    site: Child,
    ports: Value,
    proxy_port: u16,
    kept: Arc<Kept>,
    _proxy: ProxyHandle,
}

impl Stage {
    /// A proxy that allows `registry.test` and, of the same machine, the hosts
    /// of these names.
    pub(crate) fn start(others: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_certificate(folder.path());
        let (site, ports) = start_site(folder.path());
        let hosts = others.iter().chain(&["registry.test"]);
        let entries = hosts.flat_map(|host| {
            let entry = |port: &Value| format!("{host}:{port}=127.0.0.1");
            [entry(&ports["http"]), entry(&ports["https"])]
        });
        let list = AllowList::parse(&entries.collect::<Vec<_>>()).unwrap();
        let kept = Arc::<Kept>::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy_port = listener.local_addr().unwrap().port();
        let record = Arc::clone(&kept) as Arc<dyn Record>;
        let settings = Settings::new(SandboxId::generate(), "t", Arc::new(list), record);
        Self {
            folder,
            site,
            ports,
            proxy_port,
            kept,
            _proxy: serve(listener, settings).unwrap(),
        }
    }

    pub(crate) fn http(&self, path: &str) -> String {
        format!("http://registry.test:{}/{path}", self.ports["http"])
    }

    pub(crate) fn https(&self, path: &str) -> String {
        format!("https://registry.test:{}/{path}", self.ports["https"])
    }

    pub(crate) fn https_port(&self) -> u64 {
        self.ports["https"].as_u64().unwrap()
    }

    pub(crate) fn proxy_port(&self) -> u16 {
        self.proxy_port
    }

    /// A path in the stage's folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A file in the stage's folder.
    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// All records, once there are so many.
    pub(crate) fn records(&self, count: usize) -> Vec<Exchange> {
        let look = || {
            let records = self.kept.0.lock().unwrap();
            (records.len() >= count).then(|| records.clone())
        };
        wait_for("the requests are recorded", PATIENCE, look).unwrap()
    }

    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        self.run_in(&self.path(""), program, arguments)
    }

    /// Runs a program with a clean home and the proxy's variables.
    pub(crate) fn run_in(&self, folder: &str, program: &str, arguments: &[&str]) -> Ran {
        let certificate = self.path("certificate.pem");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env_clear();
        command.stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.path("home"));
        command.env("CARGO_HOME", self.path("cargo"));
        // The compiler that belongs to our cargo, not what a clean home has.
        command.env("RUSTC", Path::new(env!("CARGO")).with_file_name("rustc"));
        // What each of them calls the file of authorities.
        for name in [
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "PIP_CERT",
            "NODE_EXTRA_CA_CERTS",
            "CARGO_HTTP_CAINFO",
        ] {
            command.env(name, &certificate);
        }
        command.envs(proxy_variables(self.proxy_port));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            success: output.status.success(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.site.kill();
        let _ = self.site.wait();
    }
}

#[derive(Default)]
struct Kept(Mutex<Vec<Exchange>>);

impl Record for Kept {
    fn record(&self, exchange: &Exchange) -> Result<(), RecordError> {
        self.0.lock().unwrap().push(exchange.clone());
        Ok(())
    }
}

fn make_certificate(folder: &Path) {
    let output = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=registry.test"])
        .args(["-addext", "subjectAltName=DNS:registry.test,DNS:inner.test"])
        .args(["-keyout", "key.pem", "-out", "certificate.pem"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::create_dir(folder.join("home")).unwrap();
}

fn start_site(folder: &Path) -> (Child, Value) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/site.py");
    let mut site = Command::new("python3")
        .arg(script)
        .args([
            folder.join("site"),
            folder.join("certificate.pem"),
            folder.join("key.pem"),
        ])
        .env("HOME", folder.join("home"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(site.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    (site, serde_json::from_str(&line).expect("the site's ports"))
}
