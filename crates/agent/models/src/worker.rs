//! The model worker: the one process that holds a key and reaches a provider.
//!
//! [`serve`] is its main loop. Its input begins with the keys, which are in no
//! environment, no file and no message; then come frames of `worker/wire.rs`.
//! Turns run side by side, each can be cancelled, and when the input ends all
//! of them end. Never opens a file, and goes out only by the given proxy.
//! Next: `worker/handle.rs` for the kernel's side.

mod handle;
#[cfg(unix)]
mod process;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::SystemClock;
use fluffy_contract::model::ModelStream as _;
use fluffy_secret::SecretString;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

pub use handle::{StartWorkerError, WorkerHandle};
#[cfg(unix)]
pub use process::run;
pub use wire::{ProxySetup, Setup, SetupLink, SetupTimeouts};

use crate::client::{Client, Dialer, Direct, Egress, ProxyAddress, Roots, Timeouts};
use crate::driver::{Chain, Link};
use wire::{FromWorker, ToWorker, VERSION};

/// The most bytes of keys.
const MAX_KEYS: usize = 64 << 10;

/// The most turns at a time.
const MAX_TURNS: usize = 16;

/// Frames that may wait to be written; then turns wait.
const QUEUE: usize = 256;

/// Why the worker ended before its input did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Input or output failed.
    #[error("the kernel's connection failed")]
    Connection(#[source] io::Error),
    /// The kernel said something that is no message.
    #[error("the kernel sent what is no message: {problem}")]
    Message {
        /// What is wrong with it.
        problem: String,
    },
    /// The setup cannot be used.
    #[error("the setup cannot be used: {problem}")]
    Setup {
        /// What is wrong with it.
        problem: String,
    },
}

/// Runs the worker until its input ends.
///
/// # Errors
/// The setup cannot be used, or the kernel went away in the middle.
pub async fn serve<R, W>(mut input: R, output: W) -> Result<(), ServeError>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let keys = read_keys(&mut input).await?;
    let mut frames = wire::Reader::new(input);
    let Some(first) = frames.next().await? else {
        return Ok(());
    };
    let ToWorker::Setup(setup) = first else {
        let problem = "the first message is no setup".to_owned();
        return Err(ServeError::Message { problem });
    };
    let chain = Arc::new(prepare(setup, keys)?);
    let (out, writer) = start_writer(output);
    send(&out, &FromWorker::Ready { version: VERSION }).await;
    let mut turns: BTreeMap<u64, Running> = BTreeMap::new();
    while let Some(message) = frames.next().await? {
        turns.retain(|_, turn| !turn.0.is_finished());
        match message {
            ToWorker::Setup(_) => {
                let problem = "a second setup".to_owned();
                return Err(ServeError::Message { problem });
            }
            ToWorker::Cancel { id } => {
                turns.remove(&id);
            }
            ToWorker::Turn { id, .. } if turns.len() >= MAX_TURNS || turns.contains_key(&id) => {
                let event = wire::busy();
                send(&out, &FromWorker::Event { id, event }).await;
                send(&out, &FromWorker::End { id }).await;
            }
            ToWorker::Turn { id, turn } => {
                let stream = chain.start(*turn);
                let task = tokio::spawn(forward(id, stream, out.clone()));
                turns.insert(id, Running(task));
            }
        }
    }
    drop((turns, out));
    writer
        .await
        .map_err(|error| ServeError::Connection(io::Error::other(error)))
}

/// A turn that ends with its entry.
#[derive(Debug)]
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn forward(id: u64, mut stream: crate::driver::TurnStream, out: mpsc::Sender<Vec<u8>>) {
    while let Some(event) = stream.next().await {
        send(&out, &FromWorker::Event { id, event }).await;
    }
    send(&out, &FromWorker::End { id }).await;
}

async fn send(out: &mpsc::Sender<Vec<u8>>, message: &FromWorker) {
    // An event is smaller than a frame; and whoever reads may be gone, which
    // the input says soon.
    if let Ok(frame) = wire::encode(message) {
        let _ = out.send(frame).await;
    }
}

fn start_writer<W>(mut output: W) -> (mpsc::Sender<Vec<u8>>, JoinHandle<()>)
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (out, mut frames) = mpsc::channel::<Vec<u8>>(QUEUE);
    let writer = tokio::spawn(async move {
        while let Some(frame) = frames.recv().await {
            if output.write_all(&frame).await.is_err() || output.flush().await.is_err() {
                return;
            }
        }
    });
    (out, writer)
}

/// The keys before the first frame: their length, then one on each line.
async fn read_keys<R: AsyncRead + Unpin>(input: &mut R) -> Result<Zeroizing<Vec<u8>>, ServeError> {
    let length = input.read_u32().await.map_err(ServeError::Connection)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_KEYS {
        let problem = "the keys are too long".to_owned();
        return Err(ServeError::Message { problem });
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    input
        .read_exact(&mut bytes)
        .await
        .map_err(ServeError::Connection)?;
    Ok(bytes)
}

fn prepare(setup: Setup, keys: Zeroizing<Vec<u8>>) -> Result<Chain, ServeError> {
    let wrong = |problem: &str| ServeError::Setup {
        problem: problem.to_owned(),
    };
    if setup.version != VERSION {
        return Err(wrong("another version of the worker is wanted"));
    }
    let mut lines = keys.split(|byte| *byte == b'\n');
    let mut links = Vec::new();
    for link in setup.links {
        let key = lines.next().filter(|line| !line.is_empty());
        let key = key
            .map(|key| SecretString::from_reader(key, MAX_KEYS))
            .transpose();
        links.push(Link {
            key: key.map_err(|_| wrong("a key is no text"))?,
            settings: link.settings,
            model: link.model,
        });
    }
    if links.is_empty() {
        return Err(wrong("it names no model"));
    }
    let needs_tls = |link: &Link| link.settings.base_url.scheme() == crate::address::Scheme::Https;
    let roots = match (&setup.roots, links.iter().any(needs_tls)) {
        (Some(pem), _) => Roots::from_pem(pem).map_err(|error| wrong(&error.to_string()))?,
        (None, true) => Roots::system().map_err(|error| wrong(&error.to_string()))?,
        (None, false) => Roots::none(),
    };
    let dialer: Box<dyn Dialer> = match setup.proxy {
        ProxySetup::Tcp { address } => Box::new(Egress::new(ProxyAddress::Tcp(address))),
        ProxySetup::Unix { path } => Box::new(Egress::new(ProxyAddress::Unix(path))),
        ProxySetup::Loopback => Box::new(Direct),
    };
    let seconds = Duration::from_secs;
    let timeouts = setup
        .timeouts
        .map_or_else(Timeouts::default, |given| Timeouts {
            connect: seconds(given.connect_seconds),
            first_byte: seconds(given.first_byte_seconds),
            idle: seconds(given.idle_seconds),
        });
    let client = Client::new(dialer, roots, timeouts);
    Ok(Chain::new(links, Arc::new(client), Arc::new(SystemClock)))
}

impl From<io::Error> for ServeError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}
