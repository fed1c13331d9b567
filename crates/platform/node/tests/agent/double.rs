//! A driver whose guests are tasks of the test: they speak the real link.
//!
//! The first word of a command says what the workload does: `serve` runs until
//! it is told to end, `crash` ends at once, `stubborn` ignores being told.
//! Guests outlive agents, as real ones do; one that is hushed says nothing any
//! more.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use fluffy_contract::BoxFuture;
use fluffy_guest::link::{Event, Link, STDOUT, read_message};
use fluffy_guest::log::{Content, Record};
use fluffy_guest::message::{Happening, Hello, Phase, State, Status, Versions};
use fluffy_guest::{FromGuest, FromHost, PROTOCOL};
use fluffy_node::driver::{
    Adoption, DriverError, ExitRecord, Handle, InstanceDriver, Level, Probe, Room, StartFailure,
    StartOrder, Stats, Unavailable,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The driver; clones share their guests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Double(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    guests: BTreeMap<String, Guest>,
    /// Every start, by instance.
    started: Vec<String>,
    /// What cleans were asked for, by boot.
    cleaned: Vec<String>,
    /// What guests speak, if not what we do.
    protocol: Option<Versions>,
}

#[derive(Debug)]
struct Guest {
    instance: String,
    task: JoinHandle<()>,
    ended: watch::Sender<Option<Option<ExitRecord>>>,
    hushed: watch::Sender<bool>,
    secrets: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Double {
    /// Has an instance's guest fall silent: its links stay, and nobody answers.
    pub(crate) fn hush(&self, instance: &str) {
        let inside = self.0.lock().unwrap();
        for guest in inside.guests.values().filter(|it| it.instance == instance) {
            guest.hushed.send_replace(true);
        }
    }

    /// Has guests that start from now on speak these versions.
    pub(crate) fn speak(&self, protocol: Versions) {
        self.0.lock().unwrap().protocol = Some(protocol);
    }

    /// How often an instance was started.
    pub(crate) fn starts(&self, instance: &str) -> usize {
        let inside = self.0.lock().unwrap();
        inside.started.iter().filter(|it| *it == instance).count()
    }

    /// How many guests run.
    pub(crate) fn running(&self) -> usize {
        let inside = self.0.lock().unwrap();
        let guests = inside.guests.values();
        guests.filter(|it| it.ended.borrow().is_none()).count()
    }

    /// The secrets that an instance's guest got.
    pub(crate) fn secrets(&self, instance: &str) -> Option<Vec<u8>> {
        let inside = self.0.lock().unwrap();
        let guest = inside.guests.values().rfind(|it| it.instance == instance)?;
        guest.secrets.lock().unwrap().clone()
    }

    /// Ends a guest as a crash of its host process does.
    pub(crate) fn crash(&self, instance: &str, record: Option<ExitRecord>) {
        let inside = self.0.lock().unwrap();
        for guest in inside.guests.values().filter(|it| it.instance == instance) {
            guest.task.abort();
            guest.ended.send_replace(Some(record.clone()));
        }
    }
}

impl InstanceDriver for Double {
    fn name(&self) -> &'static str {
        "container-rootfs"
    }

    fn level(&self) -> Level {
        Level::SharedKernel
    }

    fn probe(&self) -> BoxFuture<'_, Result<Probe, Unavailable>> {
        Box::pin(async {
            Ok(Probe {
                room: Room::Disk,
                max_vcpus: 8,
                max_memory_bytes: 8 << 30,
                overhead_bytes: 0,
                detail: "a double".to_owned(),
            })
        })
    }

    fn start<'a>(&'a self, order: &'a StartOrder) -> BoxFuture<'a, Result<Handle, StartFailure>> {
        Box::pin(async {
            assert!(order.dir.is_dir() && order.run_dir.is_dir());
            let link = order.run_dir.join("link.sock");
            let _ = std::fs::remove_file(&link);
            let listener = UnixListener::bind(&link).unwrap();
            let ended = watch::Sender::new(None);
            let hushed = watch::Sender::new(false);
            let secrets = Arc::new(Mutex::new(None));
            let protocol = self.0.lock().unwrap().protocol.unwrap_or(PROTOCOL);
            let body = Body {
                protocol,
                hushed: hushed.subscribe(),
                instance: order.instance_id.clone(),
                boot: order.boot_id.clone(),
                command: Vec::new(),
                sequence: 0,
                ended: ended.clone(),
                secrets: Arc::clone(&secrets),
            };
            let task = tokio::spawn(body.live(listener));
            let mut inside = self.0.lock().unwrap();
            inside.started.push(order.instance_id.clone());
            let guest = Guest {
                instance: order.instance_id.clone(),
                task,
                ended,
                hushed,
                secrets,
            };
            inside.guests.insert(order.boot_id.clone(), guest);
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            Ok(Handle {
                driver: self.name().to_owned(),
                instance_id: order.instance_id.clone(),
                boot_id: order.boot_id.clone(),
                shim: (1, 1),
                host_boot: boot.trim().to_owned(),
                program: (0, 0),
                cgroup: String::new(),
                interface: String::new(),
                link,
                exit: PathBuf::new(),
                console: PathBuf::new(),
                own: BTreeMap::new(),
            })
        })
    }

    fn adopt<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Adoption> {
        Box::pin(async {
            let inside = self.0.lock().unwrap();
            let guest = inside.guests.get(&handle.boot_id);
            let ended = guest.map(|guest| guest.ended.borrow().clone());
            match ended {
                Some(None) => Adoption::Alive,
                Some(Some(Some(record))) => Adoption::Exited(record),
                Some(Some(None)) | None => Adoption::Lost,
            }
        })
    }

    fn ended<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Option<ExitRecord>> {
        Box::pin(async {
            let ended = {
                let inside = self.0.lock().unwrap();
                inside
                    .guests
                    .get(&handle.boot_id)
                    .map(|it| it.ended.subscribe())
            };
            let ended = ended?.wait_for(Option::is_some).await.ok()?.clone();
            ended.flatten()
        })
    }

    fn kill<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async {
            let inside = self.0.lock().unwrap();
            if let Some(guest) = inside.guests.get(&handle.boot_id) {
                guest.task.abort();
                guest.ended.send_if_modified(|ended| {
                    let alive = ended.is_none();
                    ended.get_or_insert(None);
                    alive
                });
            }
            Ok(())
        })
    }

    fn clean<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async {
            let mut inside = self.0.lock().unwrap();
            let guest = inside.guests.get(&handle.boot_id);
            assert!(
                guest.is_none_or(|it| it.ended.borrow().is_some()),
                "it runs"
            );
            inside.cleaned.push(handle.boot_id.clone());
            Ok(())
        })
    }

    fn stats<'a>(&'a self, _handle: &'a Handle) -> BoxFuture<'a, Result<Stats, DriverError>> {
        Box::pin(async { Ok(Stats::default()) })
    }

    fn sweep<'a>(&'a self, known: &'a [String]) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async {
            let inside = self.0.lock().unwrap();
            let mut swept = Vec::new();
            for guest in inside.guests.values() {
                let runs = guest.ended.borrow().is_none();
                if runs && !known.contains(&guest.instance) {
                    guest.task.abort();
                    guest.ended.send_replace(Some(None));
                    swept.push(guest.instance.clone());
                }
            }
            swept
        })
    }
}

/// Waits until nothing is to be said any more.
async fn hush(hushed: &mut watch::Receiver<bool>) {
    let _ = hushed.wait_for(|hushed| *hushed).await;
}

/// What is inside of a guest.
struct Body {
    protocol: Versions,
    hushed: watch::Receiver<bool>,
    instance: String,
    boot: String,
    command: Vec<String>,
    sequence: u64,
    ended: watch::Sender<Option<Option<ExitRecord>>>,
    secrets: Arc<Mutex<Option<Vec<u8>>>>,
}

/// What a guest does after something was heard.
enum Next {
    On,
    /// Ends with this code.
    End(i32),
}

impl Body {
    /// Lives until its workload ends; links come and go.
    async fn live(mut self, listener: UnixListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Some(code) = self.talk(stream).await {
                self.ended.send_replace(Some(Some(ExitRecord {
                    boot_id: self.boot.clone(),
                    exit_code: Some(code),
                    signal: None,
                    oom: false,
                    at_ms: 0,
                    failed: None,
                    memory_peak_bytes: 0,
                })));
                return;
            }
        }
    }

    async fn talk(&mut self, mut stream: UnixStream) -> Option<i32> {
        let mut link = Link::new();
        let hello = Hello {
            protocol: self.protocol,
            init_version: "0".to_owned(),
            instance_id: self.instance.clone(),
            boot_id: self.boot.clone(),
            kernel: String::new(),
            features: Vec::new(),
            disks: Vec::new(),
        };
        link.send(&FromGuest::Hello(hello)).unwrap();
        let mut buffer = [0; 4096];
        loop {
            let mut next = Next::On;
            while let (Next::On, Some(event)) = (&next, link.event()) {
                next = self.hear(&mut link, event);
            }
            while link.has_outgoing() {
                let written = stream.write(link.outgoing()).await.ok()?;
                link.written(written);
            }
            if let Next::End(code) = next {
                return Some(code);
            }
            let read = tokio::select! {
                read = stream.read(&mut buffer) => read,
                () = hush(&mut self.hushed) => std::future::pending().await,
            };
            match read {
                Ok(0) | Err(_) => return None,
                Ok(length) => link.feed(&buffer[..length]).unwrap(),
            }
        }
    }

    fn hear(&mut self, link: &mut Link, event: Event) -> Next {
        match event {
            Event::Secrets(secrets) => {
                *self.secrets.lock().unwrap() = Some(secrets.0.clone());
                self.begin(link)
            }
            Event::Message(message) => match read_message::<FromHost>(&message).unwrap() {
                FromHost::Config(config) => {
                    self.command = config.command.clone();
                    match config.secrets.present {
                        true => Next::On,
                        false => self.begin(link),
                    }
                }
                FromHost::StateQuery => {
                    let state = State {
                        boot_id: self.boot.clone(),
                        phase: Phase::Running,
                        generation: 1,
                        workload_pid: Some(2),
                        workload_started_mono_ms: Some(1),
                        ended: None,
                        exec_sessions: Vec::new(),
                        log_sequences: [self.sequence, 0, 0],
                    };
                    link.send(&FromGuest::State(state)).unwrap();
                    self.print(link, "still here");
                    Next::On
                }
                FromHost::Stop { .. } if self.command[0] == "stubborn" => Next::On,
                FromHost::Stop { .. } => self.exit(link, 0),
                FromHost::ExecOpen(open) => {
                    let (channel, pid) = (open.channel, 7);
                    link.send(&FromGuest::ExecOpened { channel, pid }).unwrap();
                    link.open(channel);
                    link.open(channel + 1);
                    link.send_data(channel, format!("{}\n", open.command.join(" ")).as_bytes());
                    let exit = FromGuest::ExecExit {
                        channel,
                        exit_code: Some(3),
                        signal: None,
                    };
                    link.send(&exit).unwrap();
                    Next::On
                }
                _ => Next::On,
            },
            _ => Next::On,
        }
    }

    fn begin(&mut self, link: &mut Link) -> Next {
        link.send(&FromGuest::Ack {
            config_version: "v1".to_owned(),
            generation: 1,
            config_sha256: String::new(),
        })
        .unwrap();
        self.status(link, Happening::ConfigApplied);
        self.status(link, Happening::WorkloadStarted { pid: 2 });
        self.print(link, &self.command.join(" "));
        match self.command[0].as_str() {
            "crash" => self.exit(link, 9),
            _ => Next::On,
        }
    }

    fn exit(&mut self, link: &mut Link, code: i32) -> Next {
        self.status(
            link,
            Happening::Exited {
                exit_code: Some(code),
                signal: None,
                oom: false,
                runtime_ms: 1,
            },
        );
        Next::End(code)
    }

    fn status(&self, link: &mut Link, what: Happening) {
        let status = Status { mono_ms: 1, what };
        link.send(&FromGuest::Status(status)).unwrap();
    }

    fn print(&mut self, link: &mut Link, text: &str) {
        self.sequence += 1;
        let record = Record {
            sequence: self.sequence,
            time_ms: fluffy_node::now_ms(),
            content: Content::Line {
                text: text.as_bytes().to_vec(),
                truncated: false,
            },
        };
        link.send_data(STDOUT, &record.to_bytes());
    }
}
