//! The process that unpacks layers: hostile bytes are read here, nowhere else.
//!
//! It is handed open files over its standard input, gives up everything else,
//! and only then reads the first byte of a layer: no path, no socket, no other
//! process, a gibibyte of memory, the least share of the processor. It ends
//! when whoever started it does. Next: `store/build` for the other side.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};

use fluffy_base::Digest;
use fluffy_sandbox::own::{ConfineError, renounce_files};
use fluffy_sandbox::protocol::receive;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, getuid, nice, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::document::Compression;
use crate::root::{Ahead, LayerBlob, Root, RootLimits, Unpacking, convert_unpacked};

/// What a worker may map beyond its own program.
const MEMORY: u64 = 1 << 30;

/// Who it is if it was started by root: nobody.
const NOBODY: u32 = 65_534;

/// What a result may be larger than the layers it is made of: inodes, names
/// and the ends of blocks.
const OVERHEAD: u64 = 8 << 30;

/// What a worker is told, with files: the result and one aside for the first,
/// the layer's own for each of the others.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// How much there may be, and how many layers follow.
    Begin { limits: RootLimits, layers: usize },
    /// One layer, the lowest first.
    Layer {
        compression: Compression,
        diff_id: Digest,
    },
}

/// What a worker says at its end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The result is whole.
    Made(Root),
    /// There is none.
    Refused {
        /// The reason that an instance shows.
        code: String,
        /// Why, for people.
        why: String,
    },
}

/// Why a worker did not even begin.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("the standard input is no socket with an order")]
    Order,
    #[error("cannot talk to who started it")]
    Talk(#[from] io::Error),
    #[error("cannot give up what it does not need: {what}")]
    Limit {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot give up files")]
    Files(#[from] ConfineError),
}

/// Makes one root file system of what comes over the standard input.
#[must_use]
pub fn run() -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever started it sees that it ended without an outcome.
        Err(_) => ExitCode::FAILURE,
    }
}

fn work() -> Result<(), WorkError> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (limits, result, aside, layers) = read_order(&socket)?;
    let size = own_size().map_err(|source| WorkError::Limit {
        what: "memory",
        source,
    })?;
    leave()?;
    let layers = unpack_ahead(layers)?;
    confine(&socket, size, limits.bytes)?;
    // From here on the other thread works, too.
    let layers = layers.start();
    let made = convert_unpacked(layers, limits, &result, &aside);
    let outcome = match made {
        Ok(root) => Outcome::Made(root),
        Err(error) => Outcome::Refused {
            code: error.code().to_owned(),
            why: chain(&error),
        },
    };
    let outcome = serde_json::to_vec(&outcome).map_err(io::Error::other)?;
    (&socket).write_all(&outcome)?;
    Ok(())
}

type Ordered = (RootLimits, File, File, Vec<LayerBlob<File>>);

fn read_order(socket: &UnixStream) -> Result<Ordered, WorkError> {
    let Some((Order::Begin { limits, layers }, files)) = receive(socket)? else {
        return Err(WorkError::Order);
    };
    let [result, aside] = <[OwnedFd; 2]>::try_from(files).map_err(|_| WorkError::Order)?;
    let mut blobs = Vec::new();
    for _ in 0..layers {
        let next = receive(socket)?;
        let Some((
            Order::Layer {
                compression,
                diff_id,
            },
            files,
        )) = next
        else {
            return Err(WorkError::Order);
        };
        let [bytes] = <[OwnedFd; 1]>::try_from(files).map_err(|_| WorkError::Order)?;
        blobs.push(LayerBlob {
            bytes: File::from(bytes),
            compression,
            diff_id,
        });
    }
    Ok((limits, result.into(), aside.into(), blobs))
}

/// A thread that unpacks, as soon as it may.
struct Waiting {
    go: Sender<()>,
    layers: Vec<(Ahead, Digest)>,
}

impl Waiting {
    fn start(self) -> Vec<(Ahead, Digest)> {
        // It waits for this and nothing else.
        let _ = self.go.send(());
        self.layers
    }
}

/// Has layers unpacked one after the other on a thread of its own, which is
/// there before the last walls are and works only behind them.
fn unpack_ahead(layers: Vec<LayerBlob<File>>) -> io::Result<Waiting> {
    let (mut ends, mut aheads) = (Vec::new(), Vec::new());
    for layer in layers {
        let (end, ahead) = Ahead::new();
        aheads.push((ahead, layer.diff_id));
        ends.push((end, layer.bytes, layer.compression));
    }
    let (go, may_go) = channel();
    let work = move || {
        if may_go.recv().is_ok() {
            for (end, bytes, compression) in ends {
                end.unpack(Unpacking::new(bytes, compression));
            }
        }
    };
    std::thread::Builder::new().spawn(work)?;
    Ok(Waiting { go, layers: aheads })
}

/// Leaves root and every file that is not open. While there is one thread:
/// others get what it has left.
fn leave() -> Result<(), WorkError> {
    // Whoever started it may be among the last to go; this is among the first.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    become_nobody()?;
    limit(
        "dumps",
        set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    // About half of what anybody else gets: instances come first, and images
    // on a busy machine come at all.
    limit("processor", nice(3).map(drop))?;
    Ok(renounce_files()?)
}

/// Gives up everything else but what is open and `socket`, whose other end is
/// who started it; at most `bytes` and a little go into one file. `size` is
/// what was mapped at the beginning.
fn confine(socket: &UnixStream, size: u64, bytes: u64) -> Result<(), WorkError> {
    end_with(socket)?;
    for (what, resource, most) in [
        ("core size", Resource::Core, 0),
        ("file size", Resource::Fsize, bytes.saturating_add(OVERHEAD)),
        ("locked memory", Resource::Memlock, 0),
        ("processes", Resource::Nproc, 0),
        ("address space", Resource::As, size.saturating_add(MEMORY)),
        // Last: from here on nothing can be opened.
        ("open files", Resource::Nofile, 0),
    ] {
        let most = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        limit(what, setrlimit(resource, most))?;
    }
    fluffy_sandbox::seccomp::seal().map_err(|source| WorkError::Limit {
        what: "system calls",
        source,
    })
}

fn limit(what: &'static str, done: rustix::io::Result<()>) -> Result<(), WorkError> {
    done.map_err(|error| WorkError::Limit {
        what,
        source: error.into(),
    })
}

/// Leaves root, and with it every capability.
fn become_nobody() -> Result<(), WorkError> {
    if getuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let left = set_thread_groups(&[])
            .and_then(|()| set_thread_res_gid(group, group, group))
            .and_then(|()| set_thread_res_uid(user, user, user));
        match left {
            // A user namespace without that id: root there keeps its number.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            left => limit("its user", left)?,
        }
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    limit("capabilities", set_capabilities(None, none))
}

/// Ends the process when the other end of its socket is gone.
fn end_with(socket: &UnixStream) -> io::Result<()> {
    let mut socket = socket.try_clone()?;
    let watch = move || {
        // Nothing is sent any more, so this returns only at the end.
        let _ = socket.read(&mut [0]);
        #[expect(clippy::exit, reason = "nobody is left to hear of the rest")]
        std::process::exit(1)
    };
    std::thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(watch)?;
    Ok(())
}

/// How much this process has mapped already, in bytes.
fn own_size() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').next().and_then(|pages| pages.parse().ok());
    let pages: u64 = pages.ok_or(io::ErrorKind::InvalidData)?;
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
    Ok(pages.saturating_mul(page))
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// For tests of the walls, which attack from inside: puts them up as a real
/// worker does, with a socket whose other end stays open.
///
/// # Errors
/// They cannot be put up.
#[doc(hidden)]
pub fn put_walls_up(bytes: u64) -> io::Result<UnixStream> {
    let (ours, other) = UnixStream::pair()?;
    let size = own_size()?;
    let walled = leave().and_then(|()| confine(&ours, size, bytes));
    walled.map_err(|error| io::Error::other(chain(&error)))?;
    Ok(other)
}
