//! `container-rootfs`: an instance in namespaces of the host's own kernel.
//!
//! What makes and holds it is a process of its own, the shim (`fluffy-shim`),
//! which outlives the agent; here it is started, found again and ended. The
//! kernel is shared, so this is for development: every place that names it
//! says so.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_contract::BoxFuture;
use fluffy_shim::cgroup::Group;
use fluffy_shim::{Order, Word, firewall, watch};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::scratch::{self, Scratch};
use super::{
    Adoption, DriverError, ExitRecord, Guarded, Handle, InstanceDriver, Level, Probe, Room,
    StartFailure, StartOrder, Stats, Unavailable, connections,
};

/// Its name in plans and facts.
pub const NAME: &str = "container-rootfs";
/// Where the groups of instances are, unless somebody says otherwise.
pub const GROUP: &str = "fluffy/instances";

/// Memory that an instance costs beside its own: init and what it keeps.
const OVERHEAD: u64 = 16 << 20;
/// Where the handle of an instance says which file its scratch disk is.
const SCRATCH: &str = "scratch";
/// How long a shim has to say whether it could.
const START: Duration = Duration::from_secs(60);
/// How long a shim has to write down an end that it saw.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// When it is looked again whether a shim is there, if that could not be seen.
const AGAIN: Duration = Duration::from_secs(1);

/// The driver.
#[derive(Debug, Clone)]
pub struct Rootfs {
    program: PathBuf,
    arguments: Vec<String>,
    group: String,
    scratch: Option<Arc<Scratch>>,
}

impl Rootfs {
    /// A driver whose shims are this program with these arguments, and whose
    /// instances have their control groups below `group`. Nodes that share a
    /// machine need groups of their own.
    #[must_use]
    pub fn new(program: PathBuf, arguments: Vec<String>, group: &str) -> Self {
        Self {
            program,
            arguments,
            group: group.to_owned(),
            scratch: None,
        }
    }

    /// The same, whose instances write to disks that are files of the node,
    /// as long as this machine can have those.
    #[must_use]
    pub fn with_scratch(self, scratch: Scratch) -> Self {
        Self {
            scratch: Some(Arc::new(scratch)),
            ..self
        }
    }

    /// Where what instances write goes, as this machine was last found.
    async fn room(&self) -> Room {
        let found = match &self.scratch {
            Some(scratch) => scratch.probe().await,
            None => Err(Unavailable {
                reason: "no folder was given for scratch disks".to_owned(),
                fix: "give one".to_owned(),
            }),
        };
        match found {
            Ok(()) => Room::Disk,
            Err(why) => Room::Memory(why),
        }
    }

    /// The disk of one instance, if this machine can have it.
    async fn disk(&self, order: &StartOrder) -> Result<Option<PathBuf>, StartFailure> {
        let Some(scratch) = &self.scratch else {
            return Ok(None);
        };
        if !scratch.is_usable().await {
            return Ok(None);
        }
        let made = scratch.make(&order.dir, order.disk_bytes).await;
        made.map(Some).map_err(|error| StartFailure {
            code: error.code(),
            detail: format!("scratch: {}", scratch::chain(&error)),
        })
    }

    fn group_of(&self, instance: &str) -> String {
        format!("{}/{instance}", self.group)
    }

    /// The host's end of an instance's network, by a name that fits.
    fn interface_of(&self, instance: &str) -> String {
        let digest = Digest::of_parts(&[self.group.as_bytes(), instance.as_bytes()]);
        let hex: String = digest
            .to_string()
            .chars()
            .rev()
            .filter(char::is_ascii_hexdigit)
            .take(11)
            .collect();
        format!("{}{hex}", firewall::PREFIX)
    }

    fn order(&self, order: &StartOrder) -> Order {
        Order {
            instance: order.instance_id.clone(),
            boot: order.boot_id.clone(),
            dir: order.dir.clone(),
            link: order.run_dir.join("link"),
            root: order.root.clone(),
            uid_base: order.uid_base,
            memory_bytes: order.memory_bytes.saturating_add(OVERHEAD),
            disk_bytes: order.disk_bytes,
            scratch: None,
            cpu_millis: order.cpu_millis,
            pids: order.pids,
            group: self.group_of(&order.instance_id),
            interface: self.interface_of(&order.instance_id),
            address: order.network.address,
            gateway: order.network.gateway,
            mac: order.network.mac,
            mtu: order.network.mtu,
        }
    }

    async fn run(&self, wanted: &StartOrder) -> Result<Handle, StartFailure> {
        let failed = |step: &str| {
            let step = step.to_owned();
            move |error: io::Error| StartFailure {
                code: "container_start_failed",
                detail: format!("cannot {step}: {error}"),
            }
        };
        if !is_plain(&wanted.instance_id) {
            let error = io::Error::other("its id is no name");
            return Err(failed("name the instance")(error));
        }
        let mut order = self.order(wanted);
        // What an earlier start of it may have left.
        clean(&order).await.map_err(failed("clean up"))?;
        let _ = std::fs::remove_file(order.exit_file());
        order.scratch = self.disk(wanted).await?;
        let shim = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut shim = match shim {
            Ok(shim) => shim,
            Err(error) => {
                let _ = clean(&order).await;
                return Err(failed("start the shim")(error));
            }
        };
        let pid = shim
            .id()
            .ok_or_else(|| failed("see the shim")(io::ErrorKind::NotFound.into()))?;
        let text = serde_json::to_vec(&order).map_err(|error| failed("order")(error.into()))?;
        let said = async {
            if let Some(mut input) = shim.stdin.take() {
                input.write_all(&text).await?;
            }
            let mut line = String::new();
            if let Some(output) = shim.stdout.take() {
                BufReader::new(output).read_line(&mut line).await?;
            }
            io::Result::Ok(line)
        };
        let said = tokio::time::timeout(START, said).await;
        let word = said
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .and_then(|line| serde_json::from_str(&line).map_err(io::Error::from));
        let failure = match word {
            Ok(Word::Ready) => match handle(&order, pid) {
                // From here on it is nobody's child that must be waited for:
                // tokio collects it when it ends.
                Ok(handle) => return Ok(handle),
                Err(error) => failed("see the shim")(error),
            },
            Ok(Word::Failed(failure)) => StartFailure {
                code: code(&failure.code),
                detail: failure.detail,
            },
            Err(error) => failed("hear from the shim")(error),
        };
        let _ = shim.kill().await;
        let _ = clean(&order).await;
        Err(failure)
    }

    /// What it left when it ended, if it is of this start.
    fn record(handle: &Handle) -> Option<ExitRecord> {
        let bytes = std::fs::read(&handle.exit).ok()?;
        let record: ExitRecord = serde_json::from_slice(&bytes).ok()?;
        (record.boot_id == handle.boot_id).then_some(record)
    }

    fn is_alive(handle: &Handle) -> io::Result<bool> {
        let (pid, start) = handle.shim;
        Ok(watch::host_boot()? == handle.host_boot
            && watch::start_of(pid)? == Some(start)
            && watch::program(pid) == Some(handle.program))
    }

    /// Waits until what holds it has ended.
    async fn over(handle: &Handle) -> io::Result<()> {
        let (pid, start) = handle.shim;
        // A pid of another boot of the machine is another process.
        match watch::host_boot()? == handle.host_boot {
            true => watch::ended(pid, start).await,
            false => Ok(()),
        }
    }

    async fn end(handle: &Handle) -> io::Result<()> {
        let (pid, start) = handle.shim;
        let group = handle.cgroup.clone();
        // Whoever has its number now may be somebody else.
        let is_alive = Self::is_alive(handle)?;
        tokio::task::spawn_blocking(move || Group::named(&group)?.kill())
            .await
            .map_err(io::Error::other)??;
        if !is_alive {
            return Ok(());
        }
        // With init gone it writes down how, and ends by itself.
        match tokio::time::timeout(LAST_WORDS, watch::ended(pid, start)).await {
            Ok(ended) => ended,
            Err(_) => {
                watch::kill(pid, start)?;
                watch::ended(pid, start).await
            }
        }
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn code(said: &str) -> &'static str {
    match said {
        "rootfs_build_failed" => "rootfs_build_failed",
        "network_setup_failed" => "network_setup_failed",
        _ => "container_start_failed",
    }
}

fn handle(order: &Order, pid: u32) -> io::Result<Handle> {
    let gone = || io::Error::other("it ended at once");
    Ok(Handle {
        driver: NAME.to_owned(),
        instance_id: order.instance.clone(),
        boot_id: order.boot.clone(),
        shim: (pid, watch::started(pid).ok_or_else(gone)?),
        host_boot: watch::host_boot()?,
        program: watch::program(pid).ok_or_else(gone)?,
        cgroup: order.group.clone(),
        interface: order.interface.clone(),
        link: order.link.clone(),
        exit: order.exit_file(),
        console: order.console_file(),
        own: order
            .scratch
            .iter()
            .map(|file| (SCRATCH.to_owned(), file.display().to_string()))
            .collect(),
    })
}

async fn clean(order: &Order) -> io::Result<()> {
    let link = Some(order.link.clone());
    remove(order.group.clone(), order.interface.clone(), link).await?;
    // Its last process is gone, and with that whoever wrote to it.
    order.scratch.as_deref().map_or(Ok(()), scratch::remove)
}

async fn remove(group: String, interface: String, link: Option<PathBuf>) -> io::Result<()> {
    tokio::task::spawn_blocking(move || fluffy_shim::clean(&group, &interface, link.as_deref()))
        .await
        .map_err(io::Error::other)?
}

fn cannot(what: &str) -> impl FnOnce(io::Error) -> DriverError {
    let what = what.to_owned();
    move |source| DriverError { what, source }
}

impl InstanceDriver for Rootfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn level(&self) -> Level {
        Level::SharedKernel
    }

    fn probe(&self) -> BoxFuture<'_, Result<Probe, Unavailable>> {
        Box::pin(async {
            let probed = tokio::task::spawn_blocking(fluffy_shim::probe).await;
            let refused = |(reason, fix)| Unavailable { reason, fix };
            probed
                .map_err(|error| refused((error.to_string(), String::new())))?
                .map_err(refused)?;
            let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
            Ok(Probe {
                max_vcpus: processors,
                max_memory_bytes: memory(),
                overhead_bytes: OVERHEAD,
                room: self.room().await,
                detail: "user, mount, pid, net, ipc, uts and cgroup namespaces; SHARED KERNEL"
                    .to_owned(),
            })
        })
    }

    fn start<'a>(&'a self, order: &'a StartOrder) -> BoxFuture<'a, Result<Handle, StartFailure>> {
        Box::pin(self.run(order))
    }

    fn adopt<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Adoption> {
        Box::pin(async move {
            // One that cannot be seen for want of descriptors is not gone.
            let is_alive = loop {
                match Self::is_alive(handle) {
                    Ok(is_alive) => break is_alive,
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            };
            if is_alive && Self::record(handle).is_none() {
                return Adoption::Alive;
            }
            // A shim that has seen the end is about to end itself.
            let _ = Self::end(handle).await;
            match Self::record(handle) {
                Some(record) => Adoption::Exited(record),
                None => Adoption::Lost,
            }
        })
    }

    fn ended<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Option<ExitRecord>> {
        Box::pin(async move {
            // That it cannot be watched is no end of it.
            while Self::over(handle).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
            Self::record(handle)
        })
    }

    fn kill<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move { Self::end(handle).await.map_err(cannot("end the instance")) })
    }

    fn clean<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let Handle {
                cgroup,
                interface,
                link,
                own,
                ..
            } = handle.clone();
            let removed = remove(cgroup, interface, Some(link)).await;
            let disk = own.get(SCRATCH).map(PathBuf::from);
            let removed = removed.and_then(|()| disk.map_or(Ok(()), |it| scratch::remove(&it)));
            removed.map_err(cannot("remove what the instance left"))
        })
    }

    fn stats<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Result<Stats, DriverError>> {
        Box::pin(async move {
            let group = Group::named(&handle.cgroup);
            let used = group.and_then(|group| Ok((group.usage()?, group.out_of_memory())));
            let (usage, oom_kills) = used.map_err(cannot("read what the instance uses"))?;
            Ok(Stats {
                memory_bytes: usage.memory_bytes,
                memory_peak_bytes: usage.memory_peak_bytes,
                cpu_usec: usage.cpu_usec,
                processes: usage.processes,
                oom_kills,
            })
        })
    }

    fn connections<'a>(&'a self, handle: &'a Handle) -> BoxFuture<'a, Option<u64>> {
        Box::pin(async move {
            let group = Group::named(&handle.cgroup).ok()?;
            connections::of_any(&group.processes())
        })
    }

    fn unreached<'a>(
        &'a self,
        handle: &'a Handle,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let first = Group::named(&handle.cgroup).ok()?.first()?;
            connections::unreached(first, ports)
        })
    }

    fn guard(&self) -> BoxFuture<'_, Result<Guarded, DriverError>> {
        Box::pin(async {
            let looked = tokio::task::spawn_blocking(|| {
                let found = firewall::ensure()?;
                let dropped = firewall::dropped()?;
                Ok(Guarded {
                    was_wrong: found == firewall::Found::Wrong,
                    dropped: vec![
                        ("spoof", dropped.spoofed),
                        ("host", dropped.host),
                        ("forward", dropped.through),
                    ],
                })
            });
            let looked = looked.await.unwrap_or_else(|it| Err(io::Error::other(it)));
            looked.map_err(cannot("keep instances apart"))
        })
    }

    fn sweep<'a>(&'a self, known: &'a [String]) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async move {
            let Ok(any) = Group::named(&self.group_of("any")) else {
                return Vec::new();
            };
            let known: BTreeSet<&String> = known.iter().collect();
            let mut removed = Vec::new();
            for name in any.siblings() {
                if known.contains(&name) || !is_plain(&name) {
                    continue;
                }
                let (group, interface) = (self.group_of(&name), self.interface_of(&name));
                // Its socket is in a directory that the agent removes.
                if remove(group, interface, None).await.is_ok() {
                    removed.push(format!("instance {name}"));
                }
            }
            removed
        })
    }
}

fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
