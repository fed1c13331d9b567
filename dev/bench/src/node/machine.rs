//! A machine of its own for each measurement: a home, a project, and `fluffy`
//! and podman in them. Ends what it started, whatever happens.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fluffy_test_kit::{TestContext, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::image::PORT;

/// More than anything takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// What podman calls the image.
const IMAGE: &str = "localhost/fluffy-bench:1";

/// A machine on which nothing runs yet.
pub(super) struct Machine {
    context: TestContext,
}

/// Something that runs on it, and what it said when it was ready.
pub(super) struct Running {
    child: Child,
    said: Value,
}

impl Machine {
    pub(super) fn new(program: &Path) -> Result<Self> {
        let context = TestContext::new(program)?;
        Ok(Self { context })
    }

    pub(super) fn project(&self) -> PathBuf {
        self.context.project()
    }

    /// Writes the manifest; another `version` makes another release.
    pub(super) fn manifest(&self, app: &str, version: u64) -> Result<()> {
        let text = format!(
            "schema_version = \"v1\"\n[app]\nname = \"{app}\"\n[image]\nref = \"oci:image\"\n\
             [deploy]\nmin_ready_seconds = 0\n[processes.web]\n\
             command = [\"/bin/busybox\", \"httpd\", \"-f\", \"-p\", \"[::]:{PORT}\", \"-h\", \"/www\"]\n\
             resources = {{ memory = \"64MiB\", cpu = 0.1, disk = \"1GiB\" }}\nports = [{{ internal = {PORT} }}]\n\
             [processes.web.vars]\nVERSION = \"{version}\"\n"
        );
        self.context.write("fluffy.toml", &text)?;
        Ok(())
    }

    /// Runs a command to its end; what it printed.
    pub(super) fn fluffy(&self, words: &[&str]) -> Result<String> {
        let done = self.context.run(words)?;
        let failed = || format!("`fluffy {}`: {}", words.join(" "), done.stderr);
        ensure!(done.code == Some(0), "{}", failed());
        Ok(done.stdout)
    }

    /// The platform with this machine as its node.
    pub(super) fn up(&self) -> Result<Running> {
        let up = self.start(&["up", "--listen", "none"])?;
        let node = up.said.pointer("/node/id");
        ensure!(node.is_some(), "this machine runs no instances");
        Ok(up)
    }

    /// The platform alone.
    pub(super) fn up_without_node(&self) -> Result<Running> {
        let nodes = ["--no-node", "--listen-nodes", "127.0.0.1:0"];
        self.start(&[&["up", "--listen", "none"][..], &nodes].concat())
    }

    /// This machine as a node of it, in a process of its own.
    pub(super) fn node(&self, server: &Running) -> Result<Running> {
        let listening = server.said.get("listening").and_then(Value::as_array);
        let mut listening = listening.into_iter().flatten().filter_map(Value::as_str);
        let address = listening.find_map(|it| it.strip_prefix("grpc://"));
        let address = address.context("nodes are not let in")?;
        let pin = server.said.get("pin").and_then(Value::as_str);
        let made: Value =
            serde_json::from_str(&self.fluffy(&["nodes", "enroll-token", "create", "--json"])?)?;
        let token = made.pointer("/data/secret").and_then(Value::as_str);
        let file = self
            .context
            .write("token", token.context("there is no token")?)?;
        let (file, data) = (file.to_string_lossy(), self.context.home().join("node"));
        let data = data.to_string_lossy();
        let pin = pin.context("there is no pin")?;
        let enrol = ["node", "enroll", "--data", &data, "--server", address];
        let here = ["--underlay", "127.0.0.1", "--ca-pin", pin];
        self.fluffy(&[&enrol[..], &here, &["--token-file", &file]].concat())?;
        self.start(&["node", "run", "--data", &data, "--metrics", "none"])
    }

    fn start(&self, words: &[&str]) -> Result<Running> {
        let mut command = self.context.command();
        command.args(words).arg("--json").stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().context("it has no output")?;
        let mut running = Running {
            child,
            said: Value::Null,
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let why = || format!("`fluffy {}` did not start", words.join(" "));
        running.said = serde_json::from_str(&line).with_context(why)?;
        Ok(running)
    }

    fn instances(&self) -> Result<Vec<Value>> {
        let words = [
            "instances",
            "list",
            "--env",
            "dev",
            "--limit",
            "200",
            "--json",
        ];
        let list: Value = serde_json::from_str(&self.fluffy(&words)?)?;
        let items = list.get("items").and_then(Value::as_array);
        Ok(items.cloned().unwrap_or_default())
    }

    /// Waits until this many instances are ready, and no others are there.
    pub(super) fn reach(&self, wanted: usize) -> Result<()> {
        let what = format!("{wanted} instances that are ready");
        wait_for(&what, PATIENCE, || {
            let all = self.instances().ok()?;
            let ready = all.iter().filter(|it| is_ready(it)).count();
            (ready == wanted && all.len() == wanted).then_some(())
        })
    }

    /// Where all ready instances answer.
    pub(super) fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let all = self.instances()?;
        all.iter().filter(|it| is_ready(it)).map(address).collect()
    }

    /// Where the newest instance answers.
    pub(super) fn newest(&self) -> Result<SocketAddr> {
        let all = self.instances()?;
        let created = |it: &&Value| it.get("created_at").map(Value::to_string);
        let newest = all.iter().filter(|it| is_ready(it)).max_by_key(created);
        address(newest.context("no instance is ready")?)
    }
}

fn is_ready(instance: &Value) -> bool {
    instance.pointer("/observed/status") == Some(&Value::from("ready"))
}

fn address(instance: &Value) -> Result<SocketAddr> {
    let address = instance.get("overlay_ipv6").and_then(Value::as_str);
    let address: Ipv6Addr = address.context("an instance has no address")?.parse()?;
    Ok(SocketAddr::from((address, PORT)))
}

impl Running {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in good order.
    pub(super) fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        ensure!(self.child.wait()?.success(), "it did not end well");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Only after a failure: instances outlive their agent.
            for shim in shims(self.child.id()).unwrap_or_default() {
                let pid = i32::try_from(shim).ok().and_then(Pid::from_raw);
                let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The shims of an agent: one for each instance.
pub(super) fn shims(agent: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|it| it.parse::<u32>().ok()) else {
            continue;
        };
        // Processes come and go.
        let parent = field(id, "PPid:").and_then(|it| it.parse::<u32>().ok());
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        if parent == Some(agent) && String::from_utf8_lossy(&line).contains("vm-shim") {
            found.push(id);
        }
    }
    Ok(found)
}

fn field(id: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// The memory of a process that is its own and in use, in bytes.
pub(super) fn resident(id: u32) -> Result<f64> {
    let kib = field(id, "VmRSS:").with_context(|| format!("process {id} is gone"))?;
    Ok(kib.parse::<f64>()? * 1024.0)
}

/// Waits until somebody serves the page there.
pub(super) fn answers(address: SocketAddr) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if page(address).is_ok_and(|text| text.ends_with("hello\n")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("nobody answers at {address}");
}

fn page(address: SocketAddr) -> std::io::Result<String> {
    let within = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Podman with the same image in a storage of its own.
pub(super) struct Peer {
    folder: tempfile::TempDir,
}

impl Peer {
    /// Takes the image in; none where there is no podman that could.
    pub(super) fn of(layout: &Path) -> Result<Option<Self>> {
        let peer = Self {
            folder: tempfile::tempdir()?,
        };
        match peer.take_in(layout) {
            Ok(()) => Ok(Some(peer)),
            Err(error) => {
                println!("skipped: no podman beside it: {error:#}");
                Ok(None)
            }
        }
    }

    /// By an archive: podman makes a name of a layout's path, and refuses it.
    fn take_in(&self, layout: &Path) -> Result<()> {
        let archive = self.folder.path().join("archive");
        let archive = archive.to_string_lossy();
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy"]);
        skopeo.arg(format!("oci:{}", layout.display()));
        skopeo.arg(format!("docker-archive:{archive}:{IMAGE}"));
        let done = skopeo.output().context("cannot run skopeo")?;
        ensure!(done.status.success(), "skopeo copy: {done:?}");
        self.podman(&["load", "--quiet", "--input", &archive])?;
        Ok(())
    }

    /// Seconds from `podman run` to the first answer. It gets this machine's
    /// network: setting one up would take it longer.
    pub(super) fn serves(&self) -> Result<f64> {
        let free = TcpListener::bind("[::1]:0")?.local_addr()?;
        let listen = format!("[::]:{}", free.port());
        let limits = [
            "--runtime",
            "runc",
            "--ulimit=nofile=1024:1024",
            "--ulimit=nproc=1024:1024",
        ];
        let words = [
            "run",
            "--detach",
            "--rm",
            "--network",
            "host",
            "--memory",
            "64m",
        ];
        let inside = ["/bin/busybox", "httpd", "-f", "-p", &listen, "-h", "/www"];
        let begun = Instant::now();
        let id = self.podman(&[&words[..], &limits, &[IMAGE], &inside].concat())?;
        let answered = answers(free);
        let took = begun.elapsed().as_secs_f64();
        self.podman(&["rm", "--force", "--time", "0", id.trim()])?;
        answered.map(|()| took)
    }

    fn podman(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("podman");
        for (flag, name) in [("--root", "root"), ("--runroot", "run")] {
            command.arg(flag).arg(self.folder.path().join(name));
        }
        let done = command.args(words).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "podman {}: {said}", words.join(" "));
        Ok(String::from_utf8(done.stdout)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.podman(&["rmi", "--all", "--force"]);
        // It mounts this on itself, and a folder's removal stops there.
        let mounted = self.folder.path().join("root/overlay");
        let _ = Command::new("umount").arg(mounted).output();
    }
}
