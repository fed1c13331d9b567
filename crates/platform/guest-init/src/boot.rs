//! What happens before the workload, in order (the boot contract).
//!
//! 1. Whoever made this process mounted the root, `/proc`, `/sys`, `/dev`,
//!    `/run` and `/tmp`, and made the network: see `fluffy-shim`. A virtual
//!    machine has nobody who could; what only it needs comes with it.
//! 2. `life` takes config and secrets over the link and acknowledges them.
//! 3. [`apply`]: name, files of the network, secrets; then what the rest of
//!    life does not need is given up.
//! 4. `life` runs `prestart`, and then the workload.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fluffy_guest::GuestConfig;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::call;
use crate::process::{self, KEPT, NotStarted};
use crate::user::Identity;

/// What this process was started with.
pub(crate) struct Given {
    /// Where the node connects.
    pub(crate) listener: OwnedFd,
    /// Where the end is reported, for whoever reaps this process.
    pub(crate) report: OwnedFd,
    /// The filter for processes of the workload.
    pub(crate) filter: Option<Vec<u8>>,
    /// Which instance.
    pub(crate) instance: String,
    /// Which start of it.
    pub(crate) boot: String,
}

impl Given {
    /// `fluffy-init LISTENER REPORT FILTER INSTANCE BOOT`: three numbers of
    /// descriptors (`-` for no filter) and two names.
    pub(crate) fn from_arguments() -> io::Result<Self> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [listener, report, filter, instance, boot] = words.as_slice() else {
            return Err(io::Error::other(
                "this is started by `fluffy`, not by people",
            ));
        };
        let descriptor = |word: &String| {
            let number = word.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
            call::inherited(number)
        };
        let filter = match filter.as_str() {
            "-" => None,
            _ => Some(read_filter(descriptor(filter)?)?),
        };
        Ok(Self {
            listener: descriptor(listener)?,
            report: descriptor(report)?,
            filter,
            instance: instance.clone(),
            boot: boot.clone(),
        })
    }
}

fn read_filter(file: OwnedFd) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let mut file = fs::File::from(file);
    let mut program = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut program)?;
    if program.is_empty() {
        return Err(io::Error::other("the filter is empty"));
    }
    Ok(program)
}

/// Whose kernel the instance runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// A machine of its own.
    Own,
    /// The host's: every wall there is stands between them.
    Shared,
}

impl Given {
    /// Whoever gives a filter shares a kernel.
    pub(crate) fn kernel(&self) -> Kernel {
        match self.filter {
            Some(_) => Kernel::Shared,
            None => Kernel::Own,
        }
    }
}

/// Makes the instance what its config says.
pub(crate) fn apply(
    config: &GuestConfig,
    identity: &Identity,
    secrets: Option<&[u8]>,
    kernel: Kernel,
) -> Result<(), NotStarted> {
    network_files(config)
        .map_err(|error| NotStarted::new("net_config_failed", error.to_string()))?;
    if !config.mounts.is_empty() {
        return Err(NotStarted::new("disk_missing", "this guest has no disks"));
    }
    if let Some(secrets) = secrets {
        crate::secrets::write(secrets, &config.secrets, identity)
            .map_err(|error| NotStarted::new("secrets_write_failed", error.to_string()))?;
    }
    // Where there is no such directory, it is made as if the image had it.
    if config.workdir != "/" {
        let _ = fs::create_dir_all(&config.workdir);
    }
    give_up().map_err(|error| NotStarted::new("config_invalid", error.to_string()))?;
    match kernel {
        Kernel::Own => Ok(()),
        Kernel::Shared => crate::wall::raise()
            .map_err(|error| NotStarted::new("config_invalid", format!("Landlock: {error}"))),
    }
}

fn network_files(config: &GuestConfig) -> io::Result<()> {
    let network = &config.network;
    let name = match network.hostname.as_str() {
        "" => "instance",
        name => name,
    };
    rustix::system::sethostname(name.as_bytes())?;
    let mut hosts = format!(
        "127.0.0.1 localhost\n::1 localhost ip6-localhost\n{} {name}\n",
        network.overlay_ipv6
    );
    for (name, address) in &network.hosts {
        hosts.push_str(&format!("{address} {name}\n"));
    }
    let mut resolv = String::new();
    for server in &network.dns {
        resolv.push_str(&format!("nameserver {server}\n"));
    }
    if !network.search.is_empty() {
        resolv.push_str(&format!("search {}\n", network.search.join(" ")));
    }
    // An image may have anything at this place.
    if !fs::symlink_metadata("/etc").is_ok_and(|etc| etc.is_dir()) {
        let _ = fs::remove_file("/etc");
        fs::create_dir("/etc")?;
    }
    replace("/etc/hostname", &format!("{name}\n"))?;
    replace("/etc/hosts", &hosts)?;
    replace("/etc/resolv.conf", &resolv)
}

/// Whatever an image has there, a link too, goes.
fn replace(path: &str, text: &str) -> io::Result<()> {
    let place = Path::new(path);
    let _ = fs::remove_file(place);
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(place)?;
    file.write_all(text.as_bytes())
}

/// From here on no mount, no name and no interface is changed any more. What
/// is left over what workloads get is the right to take that from them.
fn give_up() -> io::Result<()> {
    let has = rustix::thread::capabilities(None)?.permitted;
    process::lower_bounds(KEPT)?;
    let kept = has & (KEPT | CapabilitySet::SETPCAP);
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}
