//! One instance of a tiny image, from its start to its last trace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv6Addr;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fluffy_guest::GuestConfig;
use fluffy_guest::host::{Connection, Events, GuestEvent, LogStream, Options, open};
use fluffy_guest::log::Content;
use fluffy_guest::message::Happening;
use fluffy_shim::cgroup::Group;
use fluffy_shim::{Ended, Order, Word};
use tokio::net::UnixStream;

use crate::image::image;

/// Longer than anything takes on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// An instance that a shim holds.
pub(crate) struct Instance {
    pub(crate) order: Order,
    pub(crate) shim: Child,
    _folder: tempfile::TempDir,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Instance {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut Order)) -> Self {
        let (instance, word) = Self::try_start(change);
        assert_eq!(word, Word::Ready);
        instance
    }

    /// With a disk of so many bytes for what it writes.
    pub(crate) fn start_on_disk(bytes: u64, change: impl FnOnce(&mut Order)) -> Self {
        Self::start_with(|order| {
            order.scratch = Some(disk(&order.dir, bytes));
            change(order);
        })
    }

    pub(crate) fn try_start(change: impl FnOnce(&mut Order)) -> (Self, Word) {
        Self::try_start_by(change, |_| {})
    }

    /// Starts it by a shim that somebody prepares, before it is spawned.
    pub(crate) fn try_start_by(
        change: impl FnOnce(&mut Order),
        prepare: impl FnOnce(&mut Command),
    ) -> (Self, Word) {
        let folder = tempfile::tempdir().unwrap();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let root = folder.path().join("root.erofs");
        image(&root);
        let [high, low] = [(pid >> 16) as u16, (pid & 0xffff) as u16];
        let mut order = Order {
            instance: format!("inst_{pid}_{number}"),
            boot: format!("boot_{pid}_{number}"),
            dir: folder.path().to_owned(),
            link: folder.path().join("link"),
            root,
            uid_base: 0x2000_0000 + number * 65_536,
            memory_bytes: 256 << 20,
            disk_bytes: 1 << 30,
            scratch: None,
            cpu_millis: 1_000,
            pids: 256,
            // A parent of its own, which goes when the instance does.
            group: format!("fluffy-test-{pid}-{number}/inst"),
            interface: format!("fwt-{pid:x}-{number:x}"),
            address: Ipv6Addr::new(0xfd7e, 0x57, high, low, 0, 0, 0, number as u16 + 2),
            gateway: "fe80::1".parse().unwrap(),
            mac: [2, 1, 2, 3, 4, number as u8],
            mtu: 1_420,
        };
        change(&mut order);
        let mut shim = Command::new(env!("CARGO_BIN_EXE_fluffy-shim-worker"));
        shim.stdin(Stdio::piped()).stdout(Stdio::piped());
        prepare(&mut shim);
        let mut shim = shim.spawn().unwrap();
        let mut input = shim.stdin.take().unwrap();
        input
            .write_all(&serde_json::to_vec(&order).unwrap())
            .unwrap();
        drop(input);
        let mut line = String::new();
        BufReader::new(shim.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let word = serde_json::from_str(&line).unwrap();
        let instance = Self {
            order,
            shim,
            _folder: folder,
        };
        (instance, word)
    }

    pub(crate) fn group(&self) -> Group {
        Group::named(&self.order.group).unwrap()
    }

    pub(crate) fn config(&self, script: &str) -> GuestConfig {
        let config = serde_json::json!({
            "type": "config", "config_version": "v1", "instance_id": self.order.instance,
            "generation": 1, "root": {"lower": {"serial": "fw-root", "fs": "erofs"}},
            "command": ["sh", "-c", script],
            "network": {"overlay_ipv6": self.order.address, "gateway_ipv6": "fe80::1",
                        "hostname": "web-1"},
            "secrets": {"present": false}, "exec": {"enabled": true, "max_sessions": 4},
            "stop": {"signal": "TERM", "grace_seconds": 60},
        });
        GuestConfig::read(config.to_string().as_bytes()).unwrap()
    }

    pub(crate) async fn connect(&self) -> (Connection, Watched) {
        let stream = UnixStream::connect(&self.order.link).await.unwrap();
        let options = Options {
            handshake: PATIENCE,
            ..Options::default()
        };
        let (hello, connection, events) = open(stream, options).await.unwrap();
        assert_eq!(hello.instance_id, self.order.instance);
        assert_eq!(hello.boot_id, self.order.boot);
        (connection, Watched::new(events))
    }

    /// Runs a script from start to end.
    pub(crate) async fn run(&self, script: &str) -> Run {
        let config = self.config(script);
        self.run_config(config, None).await
    }

    pub(crate) async fn run_config(&self, config: GuestConfig, secrets: Option<Vec<u8>>) -> Run {
        let (connection, mut watched) = self.connect().await;
        connection.configure(config, secrets).await.unwrap();
        let end = watched.until_the_end().await;
        Run {
            end,
            out: watched.text(LogStream::Stdout),
            err: watched.text(LogStream::Stderr),
        }
    }

    /// What the shim wrote down, when it did.
    pub(crate) async fn exit_file(&mut self) -> Ended {
        self.shim_ended().await;
        serde_json::from_slice(&fs::read(self.order.exit_file()).unwrap()).unwrap()
    }

    pub(crate) async fn shim_ended(&mut self) {
        wait_for("the end of the shim", || {
            self.shim.try_wait().unwrap().is_some()
        })
        .await;
    }
}

/// A file in this folder with an unused file system.
pub(crate) fn disk(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("scratch.img");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .unwrap();
    file.set_len(bytes).unwrap();
    let nobody = Some(fluffy_shim::format::NOBODY);
    fchown(&file, nobody, nobody).unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_fluffy-shim-worker"))
        .arg("mke2fs")
        .stdin(file.try_clone().unwrap())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    fchown(&file, Some(0), Some(0)).unwrap();
    path
}

/// The loop devices of a file, as the host sees them.
pub(crate) fn loop_devices(file: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let of = |device: &fs::DirEntry| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|path| path.trim() == file.to_str().unwrap())
    };
    let named = |device: fs::DirEntry| device.file_name().into_string().unwrap();
    devices.filter(of).map(named).collect()
}

/// Waits for a condition, not for a time.
pub(crate) async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let by = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < by, "still no {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.shim.kill();
        let _ = self.shim.wait();
        let order = &self.order;
        let cleaned = fluffy_shim::clean(&order.group, &order.interface, Some(&order.link));
        if let Some(parent) = order.group.split('/').next() {
            let _ = Group::named(parent).and_then(|group| group.remove());
            let keepers = fluffy_shim::cgroup::keepers_of(parent);
            let _ = Group::named(&keepers).and_then(|group| group.remove());
        }
        if !std::thread::panicking() {
            cleaned.unwrap();
        }
    }
}

/// How a script ran.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) end: Happening,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn code(&self) -> Option<i32> {
        match &self.end {
            Happening::Exited { exit_code, .. } => *exit_code,
            other => panic!("{other:?}: {}", self.err),
        }
    }

    pub(crate) fn failure(&self) -> &str {
        match &self.end {
            Happening::Failed { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }
}

/// What an instance said.
pub(crate) struct Watched {
    events: Events,
    pub(crate) lines: BTreeMap<&'static str, Vec<String>>,
    pub(crate) happenings: Vec<Happening>,
}

impl Watched {
    fn new(events: Events) -> Self {
        Self {
            events,
            lines: BTreeMap::new(),
            happenings: Vec::new(),
        }
    }

    /// Takes what comes until the condition holds; panics if the link ends.
    pub(crate) async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            let event = tokio::time::timeout(PATIENCE, self.events.next()).await;
            let event = event.unwrap_or_else(|_| panic!("no {what}: {:?}", self.lines));
            match event.unwrap_or(GuestEvent::Lost(fluffy_guest::host::LinkLost::Closed)) {
                GuestEvent::Status(status) => self.happenings.push(status.what),
                GuestEvent::Stats(_) => {}
                GuestEvent::Log { stream, record } => {
                    let line = match record.content {
                        Content::Line { text, .. } => String::from_utf8_lossy(&text).into_owned(),
                        Content::Gap { dropped } => format!("gap of {dropped}"),
                    };
                    self.lines.entry(name(stream)).or_default().push(line);
                }
                GuestEvent::Lost(lost) => {
                    panic!("no {what}, {lost}: {:?} {:?}", self.happenings, self.lines)
                }
            }
        }
    }

    pub(crate) async fn until_line(&mut self, line: &str) {
        let has = |watched: &Self| watched.lines.values().flatten().any(|one| one == line);
        self.until(&format!("line `{line}`"), has).await;
    }

    pub(crate) async fn until_the_end(&mut self) -> Happening {
        let is_end =
            |one: &&Happening| matches!(one, Happening::Exited { .. } | Happening::Failed { .. });
        self.until("end", |watched| {
            watched.happenings.iter().any(|one| is_end(&one))
        })
        .await;
        self.happenings.iter().find(is_end).cloned().unwrap()
    }

    pub(crate) fn text(&self, stream: LogStream) -> String {
        self.lines
            .get(name(stream))
            .map(|lines| lines.join("\n"))
            .unwrap_or_default()
    }

    /// Goes on listening, so that commands do.
    pub(crate) fn keep(mut self) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { while self.events.next().await.is_some() {} })
    }
}

fn name(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Stdout => "out",
        LogStream::Stderr => "err",
        LogStream::Init => "init",
    }
}

/// A path of the host that no instance may see, with something in it.
pub(crate) fn canary() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("canary");
    fs::write(&path, "of the host").unwrap();
    (folder, path)
}
