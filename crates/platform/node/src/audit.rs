//! Whether an instance that runs is held as it should be, read from outside.
//!
//! Everything is asked of the kernel about the live processes, nothing of what
//! the agent wrote down about them. It changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fluffy_shim::cgroup::{Group, keeper_of};
use fluffy_shim::{IDS, firewall};

use crate::driver::scratch as disk;

/// The first user id of instances on the host.
pub(crate) const UID_BASE: u32 = 0x4000_0000;

/// What a process of an instance may do over what is in its own namespaces:
/// `CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE`.
const KEPT: u64 = 0b100_1111_1011;
/// Init may also take from others what they shall not have: `SETPCAP`.
const INIT: u64 = KEPT | 1 << 8;

/// Devices that an instance is shown.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// What of `/proc` and `/sys` is only to be read.
const READ_ONLY: [&str; 2] = ["/proc/sys", "/sys"];
/// What of `/proc` and `/sys` tells of the machine, or of others on it.
const HIDDEN: [&str; 7] = [
    "/proc/diskstats",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/timer_list",
    "/sys/block",
    "/sys/devices/virtual/block",
];
/// The most of a console that is kept.
const CONSOLE: u64 = 256 << 10;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What.
    pub name: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// What was found.
    pub detail: String,
}

/// Where an instance is.
#[derive(Debug, Clone)]
pub struct Audited {
    /// The control groups of the node's instances.
    pub group: String,
    /// Its id.
    pub instance: String,
    /// Where its socket is.
    pub run_dir: PathBuf,
    /// Where its console is.
    pub dir: PathBuf,
}

type Found = Result<String, String>;

/// Looks at an instance; nothing if it does not run.
#[must_use]
pub fn audit(of: &Audited) -> Option<Vec<Held>> {
    let name = format!("{}/{}", of.group, of.instance);
    let group = Group::named(&name).ok()?;
    let processes = group.processes();
    let is_init = |pid: &&u32| status(**pid, "NSpid").is_ok_and(|it| it.ends_with("\t1"));
    let init = *processes.iter().find(is_init)?;
    let shim = Group::named(&keeper_of(&name)).ok()?.first();
    let mounts = fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap_or_default();
    let mounts = Mounts::read(&mounts);
    let all: [(&'static str, Found); 14] = [
        ("own ids", own_ids(of, init)),
        ("namespaces", namespaces(&processes)),
        ("new privileges", each(&processes, no_new_privileges)),
        (
            "capabilities",
            each(&processes, |pid| capabilities(pid, init)),
        ),
        ("system calls", system_calls(&processes, init)),
        ("hidden files", hidden(&mounts)),
        ("devices", devices(init, &mounts)),
        ("root", root(&mounts)),
        ("scratch", scratch(&of.dir)),
        ("host's files", no_host_files(&mounts)),
        ("limits", limits(&group)),
        ("sockets", sockets(&of.run_dir)),
        ("console", console(&of.dir)),
        (
            "shim",
            shim.map_or_else(|| Err("it has none".to_owned()), shim_holds),
        ),
    ];
    let mut held: Vec<Held> = all.into_iter().map(of_found).collect();
    held.push(of_found(("network", network(shim.unwrap_or(init)))));
    Some(held)
}

/// Looks at one process as if it were all of an instance: a control, which
/// fails for anything that nobody holds.
#[must_use]
pub fn audit_process(pid: u32) -> Vec<Held> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mounts = Mounts::read(&mounts);
    [
        ("namespaces", namespaces(&[pid])),
        ("new privileges", no_new_privileges(pid)),
        ("capabilities", capabilities(pid, pid)),
        ("system calls", filtered(pid)),
        ("hidden files", hidden(&mounts)),
        ("devices", devices(pid, &mounts)),
        ("root", root(&mounts)),
        ("shim", shim_holds(pid)),
    ]
    .map(of_found)
    .to_vec()
}

fn of_found((name, found): (&'static str, Found)) -> Held {
    let holds = found.is_ok();
    let detail = found.unwrap_or_else(|why| why);
    Held {
        name,
        holds,
        detail,
    }
}

/// What holds for every process; the first for which it does not.
fn each(processes: &[u32], check: impl Fn(u32) -> Found) -> Found {
    let mut last = String::new();
    for pid in processes {
        // One that ended meanwhile says nothing.
        if !Path::new(&format!("/proc/{pid}/ns")).exists() {
            continue;
        }
        last = check(*pid).map_err(|why| format!("process {pid}: {why}"))?;
    }
    Ok(last)
}

fn status(pid: u32, name: &str) -> Result<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"));
    let text = text.map_err(|error| format!("it cannot be read: {error}"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(|line| line.trim().to_owned())
        .ok_or_else(|| format!("the kernel does not tell {name}"))
}

/// `0 BASE 65536`, of the reserved range, and no other instance's.
fn own_ids(of: &Audited, init: u32) -> Found {
    let base = |pid: u32, map: &str| -> Result<u32, String> {
        let text = fs::read_to_string(format!("/proc/{pid}/{map}")).unwrap_or_default();
        let numbers: Vec<u32> = text
            .split_whitespace()
            .filter_map(|it| it.parse().ok())
            .collect();
        match numbers.as_slice() {
            [0, base, IDS] => Ok(*base),
            _ => Err(format!("{map} is `{}`", text.trim())),
        }
    };
    let own = base(init, "uid_map")?;
    if base(init, "gid_map")? != own {
        return Err("its groups have another range than its users".to_owned());
    }
    if own < UID_BASE {
        return Err(format!("{own} is not of the reserved range"));
    }
    let any = Group::named(&format!("{}/any", of.group)).map_err(|error| error.to_string())?;
    for other in any.siblings().into_iter().filter(|it| *it != of.instance) {
        let first = Group::named(&format!("{}/{other}", of.group)).ok();
        let first = first.and_then(|group| group.first());
        if first.and_then(|pid| base(pid, "uid_map").ok()) == Some(own) {
            return Err(format!("{other} has the same range"));
        }
    }
    Ok(format!("{own} to {}", own + (IDS - 1)))
}

fn namespaces(processes: &[u32]) -> Found {
    const ALL: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let of = |pid: &str, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}"));
    each(processes, |pid| {
        for kind in ALL {
            let (own, host) = (of(&pid.to_string(), kind), of("self", kind));
            match (own, host) {
                (Ok(own), Ok(host)) if own != host => {}
                (Ok(_), Ok(_)) => return Err(format!("it is in the host's {kind} namespace")),
                _ => return Err(format!("its {kind} namespace cannot be read")),
            }
        }
        Ok(ALL.join(" "))
    })
}

fn no_new_privileges(pid: u32) -> Found {
    match status(pid, "NoNewPrivs")?.as_str() {
        "1" => Ok("none can be gained".to_owned()),
        _ => Err("it can gain privileges".to_owned()),
    }
}

fn capabilities(pid: u32, init: u32) -> Found {
    let most = if pid == init { INIT } else { KEPT };
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let text = status(pid, name)?;
        let has = u64::from_str_radix(&text, 16).map_err(|_| format!("{name} is `{text}`"))?;
        if has & !most != 0 {
            return Err(format!("{name} has {:x} too much", has & !most));
        }
    }
    Ok("only over its own files, users and ports".to_owned())
}

fn filtered(pid: u32) -> Found {
    match status(pid, "Seccomp")?.as_str() {
        "2" => Ok("filtered".to_owned()),
        other => Err(format!("not filtered (mode {other})")),
    }
}

/// Init itself is ours and has none; what it runs always has one.
fn system_calls(processes: &[u32], init: u32) -> Found {
    let run: Vec<u32> = processes.iter().copied().filter(|it| *it != init).collect();
    match each(&run, filtered)?.as_str() {
        "" => Ok("no workload runs yet".to_owned()),
        _ => {
            let landlock = fluffy_shim::landlock_version();
            Ok(format!(
                "filtered; Landlock {landlock}, without which init runs nothing"
            ))
        }
    }
}

/// What is mounted, by where: its kind and its options.
struct Mounts(BTreeMap<String, (String, Vec<String>)>);

impl Mounts {
    /// The last at a place is the one that is seen.
    fn read(text: &str) -> Self {
        let mut all = BTreeMap::new();
        for line in text.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let mut left = left.split(' ').skip(4);
            let (Some(place), Some(options)) = (left.next(), left.next()) else {
                continue;
            };
            let mut right = right.split(' ');
            let kind = right.next().unwrap_or_default().to_owned();
            let options = options.split(',').map(str::to_owned).collect();
            all.insert(place.to_owned(), (kind, options));
        }
        Self(all)
    }

    fn has(&self, place: &str, option: &str) -> bool {
        let found = self.0.get(place);
        found.is_some_and(|(_, options)| options.iter().any(|it| it == option))
    }
}

fn hidden(mounts: &Mounts) -> Found {
    for place in READ_ONLY {
        if !mounts.has(place, "ro") {
            return Err(format!("`{place}` can be written to"));
        }
    }
    for place in HIDDEN {
        // What this kernel does not have needs no cover.
        if Path::new(place).exists() && !mounts.0.contains_key(place) {
            return Err(format!("`{place}` is not covered"));
        }
    }
    Ok("`/proc` and `/sys` are covered or read-only".to_owned())
}

fn devices(init: u32, mounts: &Mounts) -> Found {
    let folder = format!("/proc/{init}/root/dev");
    let entries = fs::read_dir(&folder).map_err(|error| format!("`/dev`: {error}"))?;
    for entry in entries.flatten() {
        use std::os::unix::fs::FileTypeExt;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(|error| error.to_string())?;
        let is_device = kind.is_block_device() || kind.is_char_device();
        if is_device && !DEVICES.contains(&name.as_str()) {
            return Err(format!("it is shown `/dev/{name}`"));
        }
    }
    for (place, (kind, _)) in &mounts.0 {
        let own = place.strip_prefix("/dev").is_some_and(|rest| {
            let name = rest.trim_start_matches('/');
            name.is_empty() || name == "pts" || DEVICES.contains(&name)
        });
        // A cover of a file is one of the devices above.
        if !own && !mounts.has(place, "nodev") && !place.starts_with("/proc/") {
            return Err(format!("devices work in `{place}` ({kind})"));
        }
    }
    Ok(DEVICES.join(" "))
}

fn root(mounts: &Mounts) -> Found {
    match mounts.0.get("/") {
        Some((kind, _)) if kind == "overlay" => {
            if !mounts.has("/", "nosuid") {
                return Err("programs of it can change their user".to_owned());
            }
            Ok("its image, read-only, under what it writes".to_owned())
        }
        Some((kind, _)) => Err(format!("it is {kind}, not an overlay")),
        None => Err("there is none".to_owned()),
    }
}

/// What it writes to is a file of root's alone, behind a device that the file
/// is the whole of.
fn scratch(dir: &Path) -> Found {
    let Some((path, found)) = disk::found(dir) else {
        return Ok("IN MEMORY, a quarter of its own at most: see `fluffy node doctor`".to_owned());
    };
    let shown = path.display();
    let mode = found.permissions().mode() & 0o7777;
    if !found.is_file() || mode != 0o600 || found.uid() != 0 {
        let owner = found.uid();
        return Err(format!(
            "`{shown}` has mode {mode:o} and is of user {owner}"
        ));
    }
    let whole = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backed = |device: &fs::DirEntry| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == whole)
    };
    match devices.filter(backed).count() {
        1 => Ok(format!(
            "{} of {} MiB of its own disk take room",
            disk::used(&found).div_ceil(1 << 20),
            found.len() >> 20
        )),
        0 => Err(format!("`{shown}` is not what it writes to")),
        several => Err(format!("`{shown}` is the disk of {several} devices")),
    }
}

/// Nothing is mounted that is on a disk of the host.
fn no_host_files(mounts: &Mounts) -> Found {
    const MADE: [&str; 6] = ["overlay", "proc", "sysfs", "tmpfs", "devpts", "devtmpfs"];
    for (place, (kind, _)) in &mounts.0 {
        let covers =
            place.starts_with("/proc/") || DEVICES.iter().any(|it| *place == format!("/dev/{it}"));
        if !MADE.contains(&kind.as_str()) && !covers {
            return Err(format!("`{place}` is {kind}"));
        }
    }
    Ok("none is mounted".to_owned())
}

fn limits(group: &Group) -> Found {
    let limits = group.limits().map_err(|error| error.to_string())?;
    match (limits.memory_bytes, limits.pids) {
        (Some(memory), Some(pids)) => Ok(format!("{} MiB, {pids} processes", memory >> 20)),
        (None, _) => Err("its memory has no limit".to_owned()),
        (_, None) => Err("its processes have no limit".to_owned()),
    }
}

fn sockets(folder: &Path) -> Found {
    let cannot = |error: io::Error| format!("`{}`: {error}", folder.display());
    let found = fs::metadata(folder).map_err(cannot)?;
    let mode = found.permissions().mode() & 0o7777;
    match (mode, found.uid()) {
        (0o700, 0) => Ok(format!("in `{}`, root's alone", folder.display())),
        (mode, owner) => Err(format!(
            "`{}` has mode {mode:o} and is of user {owner}",
            folder.display()
        )),
    }
}

fn console(dir: &Path) -> Found {
    let size = fs::metadata(dir.join("console.log")).map_or(0, |it| it.len());
    match size <= CONSOLE {
        true => Ok(format!("{size} of at most {CONSOLE} bytes")),
        false => Err(format!("it has {size} bytes")),
    }
}

/// What holds the instance has nothing that could be taken over.
fn shim_holds(pid: u32) -> Found {
    for name in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        if status(pid, name)?.bytes().any(|digit| digit != b'0') {
            return Err(format!("{name} is not empty"));
        }
    }
    no_new_privileges(pid)?;
    Ok("without any privilege".to_owned())
}

/// The rules about packets are in force where its interface is.
fn network(shim: u32) -> Found {
    match firewall::in_force_at(shim) {
        Ok(true) => Ok("it reaches neither the host nor others".to_owned()),
        Ok(false) => Err("the rules about its packets are missing or others".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
