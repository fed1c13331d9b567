//! The tier itself: prepares programs, and runs each call in a store of its own.
//!
//! [`WasmTier::run`] runs commands on the tier's own threads, so that waiting
//! in a host call is bounded by the deadline too; [`WasmTier::call`] calls a
//! plain function on the caller's thread. The engine belongs into a sandboxed
//! worker process, never into a process that holds secrets: engines have had
//! escapes.

use std::fmt;
use std::time::{Duration, Instant};

use fluffy_base::{ByteSize, Digest};
use fluffy_policy::Permit;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use wasmtime::{Config, Engine, Store};

use crate::cache::Cache;
use crate::call::{self, CallError, Returned};
use crate::command::{Call, Command};
use crate::guest::{self, Beat, Frame, Guest};
use crate::limits::{Bounds, Limits};
use crate::program::{PrepareError, Program, Workshop};
use crate::run::{Finished, RunError, Started};
use crate::ticker::Ticker;

/// What a permit for running a program is for.
const ACTIONS: &[&str] = &["sandbox.exec", "shell.exec"];

/// The stack of a program; the fiber it runs on has room for the host beside.
const STACK: usize = 512 << 10;
const FIBER: usize = 2 << 20;

/// Threads that wait for files; a file that never answers holds one of them.
const FILE_THREADS: usize = 16;

/// How many compiled programs are kept, and of how many bytes of source.
const CACHED_PROGRAMS: usize = 64;
const CACHED_SIZE: ByteSize = ByteSize(128 << 20);

/// Prepares WebAssembly programs and runs them, bounded in everything.
pub struct WasmTier {
    engine: Engine,
    bounds: Bounds,
    workshop: Workshop,
    cache: Cache,
    ticker: Ticker,
    /// Where commands run; taken when the tier ends.
    runtime: Option<Runtime>,
    threads: Handle,
}

/// What a call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// What is left of its fuel, where it was limited.
    pub fuel_left: Option<u64>,
    /// The most memory it had.
    pub memory: ByteSize,
    /// How long it took.
    pub took: Duration,
}

/// Why the tier can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartTierError {
    /// The engine does not work on this machine.
    #[error("the WASM engine does not start on this machine")]
    Engine {
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No thread to be had.
    #[error("a thread for the WASM engine cannot be started")]
    Thread {
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl WasmTier {
    /// Starts the engine, its threads and an empty cache.
    ///
    /// # Errors
    /// The engine does not work on this machine, or no thread is to be had.
    pub fn start(bounds: Bounds) -> Result<Self, StartTierError> {
        let fails = |source: wasmtime::Error| StartTierError::Engine {
            source: source.into_boxed_dyn_error(),
        };
        let thread = |source| StartTierError::Thread { source };
        let engine = Engine::new(&configuration()).map_err(fails)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(1, usize::from))
            .max_blocking_threads(FILE_THREADS)
            .thread_name("wasm")
            .enable_time()
            .build()
            .map_err(thread)?;
        Ok(Self {
            workshop: Workshop::new(engine.clone(), bounds).map_err(fails)?,
            cache: Cache::new(CACHED_PROGRAMS, CACHED_SIZE),
            ticker: Ticker::start(engine.clone()).map_err(thread)?,
            threads: runtime.handle().clone(),
            runtime: Some(runtime),
            engine,
            bounds,
        })
    }

    /// Compiles a program, or finds it among those compiled before.
    ///
    /// Takes milliseconds to seconds and blocks; never do it on a call's way.
    ///
    /// # Errors
    /// The program is too large, invalid, or wants what is not offered.
    pub fn prepare(&self, bytes: &[u8]) -> Result<Program, PrepareError> {
        let digest = Digest::of(bytes);
        if let Some(program) = self.cache.get(digest) {
            return Ok(program);
        }
        let program = self.workshop.prepare(digest, bytes)?;
        self.cache.put(program.clone());
        Ok(program)
    }

    /// Runs a command to its end; the permit is for running something.
    ///
    /// Can be awaited on any runtime; a future that is dropped ends the command.
    ///
    /// # Errors
    /// It could not be started. A command that was started always comes back
    /// as [`Finished`], also when a limit stopped it.
    pub async fn run(
        &self,
        permit: Permit,
        program: &Program,
        command: Command,
    ) -> Result<Finished, RunError> {
        if !ACTIONS.contains(&permit.action()) {
            let action = permit.action().to_owned();
            return Err(RunError::Permit { action });
        }
        let digest = program.digest();
        let form = program.command().ok_or(RunError::NotACommand { digest })?;
        command
            .check()
            .map_err(|source| RunError::Command { source })?;
        let started = Started {
            engine: self.engine.clone(),
            frame: self.frame(command.limits, Beat::Yield),
            form: form.clone(),
            at: Instant::now(),
        };
        let running = self.ticker.run();
        let mut task = Task(self.threads.spawn(async move {
            let finished = started.finish(command).await;
            drop(running);
            finished
        }));
        let finished = (&mut task.0).await.map_err(|source| RunError::Engine {
            source: source.into(),
        })?;
        drop(permit);
        finished
    }

    /// Calls a plain function; the permit is for running something.
    ///
    /// Blocks its thread until the function returns or a limit stops it.
    ///
    /// # Errors
    /// There is no such function, or it was stopped, with the reason.
    pub fn call(
        &self,
        permit: Permit,
        program: &Program,
        call: &Call,
    ) -> Result<Returned, CallError> {
        if !ACTIONS.contains(&permit.action()) {
            let action = permit.action().to_owned();
            return Err(CallError::Permit { action });
        }
        let digest = program.digest();
        let library = program.library().ok_or(CallError::NotPlain { digest })?;
        let _running = self.ticker.run();
        let frame = self.frame(call.limits, Beat::Continue);
        let returned = call::call(&self.engine, &frame, library, call);
        drop(permit);
        returned
    }

    fn frame(&self, limits: Limits, beat: Beat) -> Frame {
        let now = Instant::now();
        Frame {
            limits,
            bounds: self.bounds,
            // A time past the clock's end is as good as a day.
            deadline: now
                .checked_add(limits.time)
                .unwrap_or_else(|| now + Duration::from_secs(86_400)),
            beat,
        }
    }
}

impl Drop for WasmTier {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting here would block, and panic inside another runtime.
            runtime.shutdown_background();
        }
    }
}

impl Usage {
    pub(crate) fn of<W>(store: &Store<Guest<W>>, limits: &Limits, at: Instant) -> Self {
        Self {
            fuel_left: guest::fuel_left(store, limits),
            memory: ByteSize(guest::memory_used(store)),
            took: at.elapsed(),
        }
    }
}

/// A command that ends when nobody waits for it any more.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for WasmTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmTier")
            .field("bounds", &self.bounds)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

pub(crate) fn configuration() -> Config {
    let mut config = Config::new();
    config.consume_fuel(true);
    config.epoch_interruption(true);
    config.max_wasm_stack(STACK);
    config.async_stack_size(FIBER);
    config.wasm_memory64(false);
    config.wasm_relaxed_simd(false);
    // A trace of frames costs time in a trap and says nothing to us.
    config.wasm_backtrace_max_frames(None);
    config
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    fn permit() -> Permit {
        fluffy_test_kit::permit("sandbox.exec", Some("wasm"))
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(30), "it never held");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_command_that_nobody_waits_for_ends() {
        let tier = WasmTier::start(Bounds::default()).unwrap();
        let spin = r#"(module (func (export "_start") (loop (br 0))))"#;
        let program = tier.prepare(&wat::parse_str(spin).unwrap()).unwrap();
        let limits = Limits {
            fuel: None,
            time: Duration::from_secs(3_600),
            ..Limits::default()
        };
        let command = Command {
            limits,
            ..Command::default()
        };
        let mut future = Box::pin(tier.run(permit(), &program, command));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(matches!(future.as_mut().poll(&mut context), Poll::Pending));
        assert_eq!(tier.ticker.running(), 1);
        drop(future);
        wait_until(|| tier.ticker.running() == 0);
    }

    #[test]
    fn a_tier_can_end_inside_a_task() {
        let outer = tokio::runtime::Builder::new_current_thread().build();
        outer.unwrap().block_on(async {
            drop(WasmTier::start(Bounds::default()).unwrap());
        });
    }
}
