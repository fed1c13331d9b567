//! Round trips over our IPC beside bare ping-pong on a unix socket.
//!
//! Both carry the same bytes between two threads of one process, in turns.
//! The reference has no identity, no JSON and no multiplexing: the ratio is
//! the price of those.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use fluffy_ipc::message::v1::encode_request;
use fluffy_ipc::{ApiRange, Client, Hello, Listener, RequestId, Server};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::figure::{Bar, Figure, Samples, Show};

const METHOD: &str = "ping";
const ROUNDS: usize = 100;
const CALLS_PER_ROUND: usize = 100;

/// The median round trip that agent.md asks for, in seconds.
const BAR: f64 = 100e-6;

/// Round trips of a small and of a large payload.
///
/// # Errors
/// A socket or a thread could not be made.
pub(crate) fn run() -> Result<Vec<Figure>> {
    [
        (64, ROUNDS, Bar::Under(BAR)),
        (64 << 10, ROUNDS / 10, Bar::Inform),
    ]
    .into_iter()
    .map(|(size, rounds, bar)| round_trip(size, rounds, bar))
    .collect()
}

fn round_trip(size: usize, rounds: usize, bar: Bar) -> Result<Figure> {
    let payload = "x".repeat(size);
    let ours = Ours::start()?;
    let mut reference = Reference::start(&payload)?;
    let mut times = (Vec::new(), Vec::new());
    // The first round of each warms up and is not counted.
    for round in 0..=rounds {
        for _ in 0..CALLS_PER_ROUND {
            let start = Instant::now();
            ours.call(&payload)?;
            if round > 0 {
                times.0.push(start.elapsed().as_secs_f64());
            }
        }
        for _ in 0..CALLS_PER_ROUND {
            let start = Instant::now();
            reference.call()?;
            if round > 0 {
                times.1.push(start.elapsed().as_secs_f64());
            }
        }
    }
    ours.stop()?;
    reference.stop()?;
    Ok(Figure {
        what: format!("ipc round trip, {size} bytes each way"),
        ours: Samples::new(times.0, Show::Time),
        reference: Some(("bare unix socket".into(), Samples::new(times.1, Show::Time))),
        bar,
    })
}

/// Our server on a thread of its own, our client on this one.
struct Ours {
    client: Client,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<()>>,
    _directory: tempfile::TempDir,
}

impl Ours {
    fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("run/bench.sock");
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let place = path.clone();
        let server = std::thread::spawn(move || serve(&place, stopped, || ready.send(()).is_ok()));
        // An error here is a server that ended; connecting says why.
        let _ = is_ready.recv();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let hello = Hello::new("bench", "1", 1);
        let client = runtime.block_on(Client::connect(&path, hello))?;
        Ok(Self {
            client,
            runtime,
            stop,
            server,
            _directory: directory,
        })
    }

    fn call(&self, payload: &str) -> Result<()> {
        let echo: String = self.runtime.block_on(self.client.call(METHOD, payload))?;
        anyhow::ensure!(echo.len() == payload.len(), "the echo is of another length");
        Ok(())
    }

    fn stop(self) -> Result<()> {
        drop(self.client);
        drop(self.stop);
        self.server.join().ok().context("the server panicked")?
    }
}

fn serve(path: &Path, stopped: oneshot::Receiver<()>, ready: impl FnOnce() -> bool) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = Listener::bind(path)?;
        ready();
        Server::new("bench", ApiRange::current_and_previous(1))
            .method(METHOD, |_, text: String| async move { Ok(text) })
            .serve(listener, async { drop(stopped.await) })
            .await?;
        Ok(())
    })
}

/// The same bytes, thrown back and forth by two blocking threads.
struct Reference {
    stream: UnixStream,
    request: Vec<u8>,
    echo: Vec<u8>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Reference {
    fn start(payload: &str) -> Result<Self> {
        let request = encode_request(RequestId(1), METHOD, payload)?;
        let (stream, mut other) = UnixStream::pair()?;
        let mut buffer = vec![0; request.len()];
        let server = std::thread::spawn(move || {
            loop {
                match other.read_exact(&mut buffer) {
                    Ok(()) => other.write_all(&buffer)?,
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
        });
        Ok(Self {
            echo: vec![0; request.len()],
            stream,
            request,
            server,
        })
    }

    fn call(&mut self) -> Result<()> {
        self.stream.write_all(&self.request)?;
        self.stream.read_exact(&mut self.echo)?;
        Ok(())
    }

    fn stop(self) -> Result<()> {
        drop(self.stream);
        let ended = self.server.join().ok().context("the reference panicked")?;
        Ok(ended?)
    }
}
