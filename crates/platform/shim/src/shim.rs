//! The shim itself: makes an instance, waits for its end, writes it down.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use fluffy_guest::message::{Happening, Status};
use fluffy_sandbox::seccomp::{Architecture, Filter};
use fluffy_sandbox::template::Profile;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::cgroup::{self, Group, Limits};
use crate::inside::{self, Descriptors};
use crate::root::Room;
use crate::{Ended, Failure, IDS, INIT, Order, Word, call, firewall, network, root};

/// The longest order.
const MAX_ORDER: u64 = 64 << 10;
/// How much of the console is kept.
const CONSOLE: usize = 256 << 10;
/// How soon an instance goes when the host has no memory left: as a sandbox.
const OOM_SCORE: &str = "500";
/// The oldest Landlock that init takes for its wall.
const LANDLOCK: i64 = 2;

/// `fluffy worker vm-shim`: takes an [`Order`] from its input, says a [`Word`]
/// on its output, and then holds the instance until it ends.
#[must_use]
pub fn worker_main() -> ExitCode {
    let order = match read_order() {
        Ok(order) => order,
        Err(error) => {
            say(&Word::Failed(failed("read the order")(error)));
            return ExitCode::FAILURE;
        }
    };
    match Held::begin(&order) {
        Err(failure) => {
            undo(&order);
            say(&Word::Failed(failure));
            ExitCode::FAILURE
        }
        Ok(held) => {
            say(&Word::Ready);
            match held.until_the_end(&order) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn read_order() -> io::Result<Order> {
    let mut bytes = Vec::new();
    io::stdin().take(MAX_ORDER).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

/// Whoever started it may be gone already; then nobody has to hear it.
fn say(word: &Word) {
    if let Ok(mut line) = serde_json::to_vec(word) {
        line.push(b'\n');
        let _ = io::stdout().write_all(&line);
        let _ = io::stdout().flush();
    }
}

fn failed(step: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure {
        code: "container_start_failed".to_owned(),
        detail: format!("cannot {step}: {error}"),
    }
}

/// Takes back what a start that failed has made.
fn undo(order: &Order) {
    if let Ok(group) = Group::named(&order.group) {
        let _ = group.kill();
        let _ = group.remove();
    }
    let _ = network::remove(&order.interface);
    let _ = fs::remove_file(&order.link);
}

/// An instance that runs.
struct Held {
    pid: Pid,
    pidfd: OwnedFd,
    group: Group,
    console: OwnedFd,
    report: OwnedFd,
}

impl Held {
    fn begin(order: &Order) -> Result<Self, Failure> {
        // Its own session: what ends the agent does not end it.
        let _ = rustix::process::setsid();
        rustix::process::chdir("/").map_err(|error| failed("leave its folder")(error.into()))?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        // And its own control group: what ends a service ends all of its group.
        Group::named(&cgroup::keeper_of(&order.group))
            .and_then(|keeper| {
                keeper.create_without_limits()?;
                keeper.add(rustix::process::getpid())
            })
            .map_err(failed("leave the agent's control group"))?;
        let group = Group::named(&order.group).map_err(failed("find control groups"))?;
        let limits = Limits {
            memory_bytes: order.memory_bytes,
            cpu_millis: order.cpu_millis,
            pids: order.pids,
        };
        group
            .create(&limits)
            .map_err(failed("make its control group"))?;
        let (given, console, report) = descriptors(order).map_err(failed("open what init gets"))?;
        let (here, there) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| failed("make a socket")(error.into()))?;
        match call::fork(call::NAMESPACES).map_err(failed("make namespaces"))? {
            call::Forked::Child => {
                drop((here, console, report));
                child(order, &there, given)
            }
            call::Forked::Parent(pid, pidfd) => {
                drop((there, given));
                let held = Self {
                    pid,
                    pidfd,
                    group,
                    console,
                    report,
                };
                match held.furnish(order, &here) {
                    Ok(()) => Ok(held),
                    Err(failure) => {
                        held.end();
                        Err(failure)
                    }
                }
            }
        }
    }

    /// Gives the child what only the host can: ids, limits, network, root.
    fn furnish(&self, order: &Order, socket: &OwnedFd) -> Result<(), Failure> {
        let pid = self.pid.as_raw_nonzero();
        for map in ["uid_map", "gid_map"] {
            let line = format!("0 {} {IDS}\n", order.uid_base);
            fs::write(format!("/proc/{pid}/{map}"), line).map_err(failed("map its user ids"))?;
        }
        self.group
            .add(self.pid)
            .map_err(failed("put it into its control group"))?;
        // Under memory pressure the host lets instances go before anything of
        // its own; all that it starts has this too, and cannot lower it.
        fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE)
            .map_err(failed("say that it goes first"))?;
        network::outside(order, pid.get()).map_err(|error| Failure {
            code: "network_setup_failed".to_owned(),
            detail: format!("cannot connect the instance: {error}"),
        })?;
        let namespace = File::open(format!("/proc/{pid}/ns/user"));
        let namespace = namespace.map_err(failed("open its namespace"))?.into();
        let room = match &order.scratch {
            Some(file) => Room::Disk(file),
            None => Room::Memory(order.disk_bytes.min(order.memory_bytes / 4).max(1 << 20)),
        };
        let system = root::make(&order.root, &namespace, order.uid_base, room);
        let system = system.map_err(|(step, error)| Failure {
            code: "rootfs_build_failed".to_owned(),
            detail: format!("cannot {step}: {error}"),
        })?;
        send(socket, &system).map_err(failed("hand the root over"))?;
        drop(system);
        // It becomes init, which closes the socket, or says why not.
        let mut answer = [0; 4_096];
        let (length, _) = rustix::net::recv(socket, &mut answer, RecvFlags::empty())
            .map_err(|error| failed("hear from init")(error.into()))?;
        match answer.get(..length).unwrap_or_default() {
            [] if is_alive(&self.pidfd) => Ok(()),
            [] => Err(failed("start init")(io::Error::other("it ended at once"))),
            said => Err(serde_json::from_slice(said)
                .unwrap_or_else(|error| failed("hear from init")(error.into()))),
        }
    }

    fn end(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
    }

    /// Waits until init ended, and writes down how.
    fn until_the_end(self, order: &Order) -> io::Result<()> {
        be_nobody()?;
        let mut console = Console::open(order)?;
        let mut report = Vec::new();
        let mut open = [true, true];
        loop {
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            let streams = [&self.console, &self.report];
            for (stream, open) in streams.iter().zip(open) {
                let flags = if open {
                    PollFlags::IN
                } else {
                    PollFlags::empty()
                };
                fds.push(PollFd::new(*stream, flags));
            }
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut buffer = [0; 8_192];
            for (number, stream) in streams.iter().enumerate() {
                while open.get(number) == Some(&true) && ready.get(number + 1) == Some(&true) {
                    match rustix::io::read(*stream, &mut buffer) {
                        Ok(0) => {
                            if let Some(open) = open.get_mut(number) {
                                *open = false;
                            }
                        }
                        Ok(length) => {
                            let bytes = buffer.get(..length).unwrap_or_default();
                            if number == 0 {
                                console.take(bytes)?;
                            } else if report.len() < 64 << 10 {
                                report.extend_from_slice(bytes);
                            }
                        }
                        Err(_) => break,
                    }
                }
            }
            // All that was written before the end is read first.
            let more = open
                .iter()
                .zip(ready.iter().skip(1))
                .any(|(open, ready)| *open && *ready);
            if ready.first() == Some(&true) && !more {
                break;
            }
        }
        let status = rustix::process::waitpid(Some(self.pid), WaitOptions::empty())?;
        let status = status.map(|(_, status)| status);
        let mut ended = ended(order, status, &report, self.group.out_of_memory());
        let used = self.group.usage();
        ended.memory_peak_bytes = used.map_or(0, |used| used.memory_peak_bytes);
        write_end(order, &ended)
    }
}

/// How it ended, by its own word or by what the kernel says.
fn ended(order: &Order, status: Option<WaitStatus>, report: &[u8], oom_kills: u64) -> Ended {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut ended = Ended {
        boot_id: order.boot.clone(),
        exit_code: None,
        signal: None,
        oom: oom_kills > 0,
        at_ms: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
        failed: None,
        memory_peak_bytes: 0,
    };
    match serde_json::from_slice::<Option<Status>>(report) {
        Ok(Some(Status {
            what: Happening::Exited {
                exit_code, signal, ..
            },
            ..
        })) => (ended.exit_code, ended.signal) = (exit_code, signal),
        Ok(Some(Status {
            what: Happening::Failed { code, detail },
            ..
        })) => ended.failed = Some(format!("{code}: {detail}")),
        // Init itself was ended, or is broken.
        _ => {
            ended.exit_code = status.and_then(WaitStatus::exit_status);
            ended.signal = status.and_then(WaitStatus::terminating_signal);
        }
    }
    ended
}

/// Temporary name, fsync, rename: it is there whole or not at all.
fn write_end(order: &Order, ended: &Ended) -> io::Result<()> {
    let file = order.exit_file();
    let temporary = file.with_extension("json.new");
    let mut written = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    written.write_all(&serde_json::to_vec(ended).map_err(io::Error::other)?)?;
    written.sync_all()?;
    fs::rename(&temporary, &file)?;
    File::open(&order.dir)?.sync_all()
}

/// The last words on the console, in a file of bounded size.
struct Console {
    file: File,
    written: usize,
    kept: Vec<u8>,
}

impl Console {
    fn open(order: &Order) -> io::Result<Self> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(order.console_file())?;
        Ok(Self {
            file,
            written: 0,
            kept: Vec::new(),
        })
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        use std::io::Seek;
        self.kept.extend_from_slice(bytes);
        if self.written + bytes.len() <= CONSOLE {
            self.written += bytes.len();
            return self.file.write_all(bytes);
        }
        // The newer half stays.
        let old = self.kept.len().saturating_sub(CONSOLE / 2);
        self.kept.drain(..old);
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&self.kept)?;
        self.written = self.kept.len();
        Ok(())
    }
}

/// All that is left to do needs no privilege.
fn be_nobody() -> io::Result<()> {
    let nothing = inside::nothing()?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// What init is started with, and the near ends of console and report.
fn descriptors(order: &Order) -> io::Result<(Descriptors, OwnedFd, OwnedFd)> {
    let _ = fs::remove_file(&order.link);
    let listener = UnixListener::bind(&order.link)?;
    fs::set_permissions(&order.link, fs::Permissions::from_mode(0o600))?;
    let (console, far_console) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (report, far_report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    for near in [&console, &report] {
        rustix::io::ioctl_fionbio(near, true)?;
    }
    let filter = Filter::compile(Profile::StandardNet, Architecture::native());
    let filter = filter.map_err(io::Error::other)?.to_bytes();
    let given = Descriptors {
        nothing: inside::nothing()?,
        console: far_console,
        listener: listener.into(),
        report: far_report,
        filter: sealed("fluffy-filter", &filter)?,
        program: sealed("fluffy-init", INIT)?,
    };
    Ok((given, console, report))
}

/// A file in memory that nobody can change any more.
fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    File::from(fd.try_clone()?).write_all(bytes)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    // A descriptor that can only be read.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    Ok(rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The child: waits for its root and becomes init.
fn child(order: &Order, socket: &OwnedFd, given: Descriptors) -> ! {
    let failure = match receive(socket) {
        Ok(system) => inside::become_init(order, system, given),
        Err(error) => failed("take the root over")(error),
    };
    let text = serde_json::to_vec(&failure).unwrap_or_default();
    let text = text.get(..4_096).unwrap_or(&text);
    let _ = rustix::net::send(socket, text, SendFlags::empty());
    call::exit_now(1)
}

fn send(socket: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let bytes = [io::IoSlice::new(b"r")];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Whether a process has not ended.
fn is_alive(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
}

/// Removes what an instance left outside its folder, whatever ended it: its
/// namespaces, mounts and devices went with its last process.
///
/// # Errors
/// When something stays.
pub fn clean(group: &str, interface: &str, link: Option<&Path>) -> io::Result<()> {
    let keeper = Group::named(&cgroup::keeper_of(group))?;
    let group = Group::named(group)?;
    group.kill()?;
    keeper.kill()?;
    group.remove()?;
    keeper.remove()?;
    network::remove(interface)?;
    match link.map_or(Ok(()), fs::remove_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn has_file_system(kind: &str) -> bool {
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let mut kinds = kinds.lines();
    kinds.any(|line| line.trim_start_matches("nodev").trim() == kind)
}

/// Whether this machine mounts an image that is one file; where it does not,
/// images are unfolded into folders.
///
/// # Errors
/// What is missing for it, and what helps.
pub fn probe_files() -> Result<(), (String, String)> {
    let fix = |module: &str| format!("load the kernel's module: modprobe {module}");
    if !has_file_system("erofs") {
        let what = "the kernel has no file system `erofs`".to_owned();
        return Err((what, fix("erofs")));
    }
    match Path::new("/dev/loop-control").exists() {
        true => Ok(()),
        false => Err(("`/dev/loop-control` is missing".to_owned(), fix("loop"))),
    }
}

/// Whether this machine mounts this file, with an ext4 file system, as a disk;
/// it is let go of at once.
///
/// # Errors
/// What is missing for it, and what helps.
pub fn probe_disk(file: &File) -> Result<(), (String, String)> {
    let fix = |module: &str| format!("load the kernel's module: modprobe {module}");
    if !Path::new("/dev/loop-control").exists() {
        return Err(("`/dev/loop-control` is missing".to_owned(), fix("loop")));
    }
    let mounted = root::open_disk(file).map(drop);
    mounted.map_err(|error| match has_file_system("ext4") {
        true => (
            format!("a file with ext4 cannot be mounted: {error}"),
            "let the agent use loop devices (a container or a security module may forbid them)"
                .to_owned(),
        ),
        false => (
            "the kernel has no file system `ext4`".to_owned(),
            fix("ext4"),
        ),
    })
}

/// Whether this machine can hold instances: what it lacks, and what helps.
///
/// # Errors
/// The first thing that is missing.
pub fn probe() -> Result<(), (String, String)> {
    let missing = |what: &str, fix: &str| Err((what.to_owned(), fix.to_owned()));
    if !rustix::process::geteuid().is_root() {
        return missing("it is not run by root", "run it as root");
    }
    if let Err(error) = Group::named("fluffy") {
        return missing(&error.to_string(), "mount cgroups, version 2 if possible");
    }
    if !has_file_system("overlay") {
        let fix = "load the kernel's module: modprobe overlay";
        return missing("the kernel has no file system `overlay`", fix);
    }
    for (path, fix) in [
        ("/proc/self/ns/user", "use a kernel with user namespaces"),
        ("/proc/sys/net/ipv6", "switch IPv6 on in the kernel"),
    ] {
        if !Path::new(path).exists() {
            return missing(&format!("`{path}` is missing"), fix);
        }
    }
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    if most.trim() == "0" {
        let fix = "sysctl user.max_user_namespaces=10000";
        return missing("user namespaces are switched off", fix);
    }
    if call::landlock_version() < LANDLOCK {
        let what = "the kernel has no Landlock, or an old one (Linux 5.19 is needed)";
        return missing(
            what,
            "add `landlock` to the `lsm=` words of the kernel's command line",
        );
    }
    if let Err(error) = firewall::probe() {
        let fix = "load the kernel's modules: modprobe -a nf_tables nft_fib_inet nft_ct";
        return missing(&error.to_string(), fix);
    }
    // The namespaces themselves, for real.
    match call::fork(call::NAMESPACES) {
        Ok(call::Forked::Child) => call::exit_now(0),
        Ok(call::Forked::Parent(pid, _)) => {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            Ok(())
        }
        Err(error) => missing(
            &format!("namespaces cannot be made: {error}"),
            "allow user namespaces (container, AppArmor or sysctl may forbid them)",
        ),
    }
}
