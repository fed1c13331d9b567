//! Requests without a pause through a route, and a list of those that failed.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fluffy_test_kit::wait_for;

/// A page that is there at once.
pub(super) const PAGE: &str = "/";
/// One that takes a second.
pub(super) const SLOW: &str = "/cgi-bin/slow";
/// One that says which instance answers.
pub(super) const WHO: &str = "/cgi-bin/who";
/// One that says which instance answers, and then never ends.
pub(super) const STREAM: &str = "/cgi-bin/stream";

/// How long any answer may take on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a connection and asks for a page.
pub(super) fn ask(address: &str, path: &str) -> Result<TcpStream, String> {
    let address: SocketAddr = address.parse().unwrap();
    let failed = |step: &str| {
        let step = step.to_owned();
        move |error: std::io::Error| format!("{step}: {error}")
    };
    let stream = TcpStream::connect_timeout(&address, PATIENCE);
    let mut stream = stream.map_err(failed("connect"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .map_err(failed("write"))?;
    Ok(stream)
}

/// A page, whole, or what went wrong.
pub(super) fn get(address: &str, path: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut stream = ask(address, path)?;
    let read = stream.read_to_string(&mut text);
    read.map_err(|error| format!("read: {error}"))?;
    let parts = text.split_once("\r\n\r\n");
    match parts {
        Some((head, body)) if head.contains(" 200 ") && body.ends_with('\n') => Ok(body.to_owned()),
        _ => Err(format!("half an answer: {text:?}")),
    }
}

/// Many who ask until they are told to stop.
pub(super) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: AtomicU64,
    failed: Mutex<Vec<String>>,
}

/// What came of it.
pub(super) struct Requests {
    pub(super) done: u64,
    pub(super) failed: Vec<String>,
    pub(super) elapsed: Duration,
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, failed, .. } = self;
        let elapsed = self.elapsed.as_secs_f64();
        write!(
            f,
            "{done} requests in {elapsed:.1} s, {} failed",
            failed.len()
        )
    }
}

impl Load {
    /// So many who ask for what is there at once, and for what takes a while.
    pub(super) fn start(address: &str, quick: usize, slow: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let began = Instant::now();
        let thread = |path: &'static str| {
            let (shared, address) = (Arc::clone(&shared), address.to_owned());
            std::thread::spawn(move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    match get(&address, path) {
                        Ok(_) => {
                            shared.done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let at = began.elapsed().as_secs_f64();
                            let line = format!("{at:.1} s, {path}: {error}");
                            shared.failed.lock().unwrap().push(line);
                        }
                    }
                    // Others need the machine, too.
                    std::thread::sleep(Duration::from_millis(20));
                }
            })
        };
        let quick = (0..quick).map(|_| thread(PAGE));
        let threads = quick.chain((0..slow).map(|_| thread(SLOW))).collect();
        Self { shared, threads }
    }

    /// Waits until so many more were answered.
    pub(super) fn more(&self, count: u64) {
        let done = || self.shared.done.load(Ordering::Relaxed);
        let until = done() + count;
        let reached = || (done() >= until).then_some(());
        wait_for("more requests to be answered", PATIENCE, reached).unwrap();
    }

    /// How many failed so far.
    pub(super) fn failures(&self) -> usize {
        self.shared.failed.lock().unwrap().len()
    }

    pub(super) fn stop(mut self, began: Instant) -> Requests {
        self.halt();
        Requests {
            done: self.shared.done.load(Ordering::Relaxed),
            failed: std::mem::take(&mut self.shared.failed.lock().unwrap()),
            elapsed: began.elapsed(),
        }
    }

    fn halt(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has counted what it saw.
            let _ = thread.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.halt();
    }
}
