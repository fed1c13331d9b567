//! Starts the worker that makes a root file system, and watches over it.
//!
//! The worker gets open files and nothing else. Whatever it says is bounded
//! and believed no further than its own result; a crash, a kill or the end of
//! its time costs this one build. Next: `worker` for the other side.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_sandbox::protocol::send;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::task::spawn_blocking;

use super::EnsureError;
use super::disk::{Promise, Work};
use super::fetch::stopped;
use crate::document::Compression;
use crate::root::{Root, RootLimits};
use crate::worker::{Order, Outcome};

/// How often the size of what is made is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// The most that a worker says.
const LONGEST_OUTCOME: u64 = 64 << 10;

/// How the worker is started: this program again, with hidden words.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its words.
    pub arguments: Vec<String>,
}

/// A layer as the worker gets it.
#[derive(Debug)]
pub(super) struct LayerFile {
    pub(super) file: File,
    pub(super) compression: Compression,
    pub(super) diff_id: Digest,
}

/// Makes the root file system of an image; its file is in the result.
pub(super) async fn build(
    command: &WorkerCommand,
    (digest, limits): (Digest, RootLimits),
    layers: Vec<LayerFile>,
    (result, aside): (&Work, &Work),
    promise: &mut Promise,
) -> Result<Root, EnsureError> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut worker = Command::new(&command.program)
        .args(&command.arguments)
        .env_clear()
        // With an arena for each thread the C library reads a file of the
        // system when it gives memory back, and no file can be read any more.
        .env("MALLOC_ARENA_MAX", "1")
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (files, socket) = (
        (result.file.try_clone()?, aside.file.try_clone()?),
        ours.try_clone()?,
    );
    let told = spawn_blocking(move || tell(&socket, limits, &files, &layers)).await;
    // One that is gone already says so by what it does not say.
    let _ = told.map_err(stopped)?;
    ours.set_nonblocking(true)?;
    let mut socket = tokio::net::UnixStream::from_std(ours)?;
    let mut said = Vec::new();
    let mut listening = (&mut socket).take(LONGEST_OUTCOME);
    let mut look = tokio::time::interval(LOOK);
    let mut flushing = None;
    loop {
        tokio::select! {
            read = listening.read_buf(&mut said) => match read {
                Ok(0) => break,
                // It ended before it had read everything.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                read => { read?; }
            },
            _ = look.tick() => {
                let size = |work: &Work| work.file.metadata().map(|it| it.blocks() * 512);
                let size = size(result)? + size(aside)?;
                result.flush_ahead(&mut flushing, size);
                promise.at_least(size)?.map_err(|source| {
                    let source = source.into();
                    EnsureError::Room { digest, source }
                })?;
            }
        }
    }
    let ended = worker.wait().await?;
    let crashed = || EnsureError::Worker {
        digest,
        how: ended.to_string(),
    };
    if !ended.success() {
        return Err(crashed());
    }
    match serde_json::from_slice(&said).map_err(|_| crashed())? {
        Outcome::Made(root) => Ok(root),
        Outcome::Refused { code, why } => Err(EnsureError::Refused {
            digest,
            code: known(&code),
            why: plain(&why),
        }),
    }
}

fn tell(
    socket: &UnixStream,
    limits: RootLimits,
    (result, aside): &(File, File),
    layers: &[LayerFile],
) -> io::Result<()> {
    let begin = Order::Begin {
        limits,
        layers: layers.len(),
    };
    send(socket, &begin, &[result.as_fd(), aside.as_fd()])?;
    for layer in layers {
        let order = Order::Layer {
            compression: layer.compression,
            diff_id: layer.diff_id,
        };
        send(socket, &order, &[layer.file.as_fd()])?;
    }
    Ok(())
}

/// The codes that a worker may give.
fn known(code: &str) -> &'static str {
    let known = [
        "image_too_large",
        "image_hostile",
        "image_layer_invalid",
        "disk_full",
    ];
    let found = known.into_iter().find(|known| *known == code);
    found.unwrap_or("image_pull_failed")
}

/// Others' text, short enough and plain enough to be shown.
fn plain(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    plain.take(500).collect()
}
