//! The one thread that makes the engine's time pass, while anything runs.
//!
//! Compiled code looks at the engine's epoch at every loop and call; this
//! thread raises it once per tick. When nothing has run for a while it sleeps
//! without a wake-up; between calls that follow each other it does not, since
//! waking it costs more than a short call. It ends with the tier's last call,
//! and never decides that a call is over: the call's own deadline does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use wasmtime::Engine;

/// How often a running program is made to look at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// After how many ticks without a call it sleeps.
const IDLE_TICKS: u32 = 50;

/// The one thread that makes the engine's time pass.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

/// Keeps the time passing until it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    running: AtomicUsize,
    asleep: AtomicBool,
    ended: AtomicBool,
}

impl Ticker {
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wasm-ticker".into())
            .spawn(move || tick(&seen, &engine))?;
        let thread = thread.thread().clone();
        Ok(Self { shared, thread })
    }

    /// Makes the time pass for as long as the answer lives.
    pub(crate) fn run(&self) -> Running {
        // Either the thread sees the count before it sleeps, or we see that it
        // sleeps: both sides write first and look then.
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Running {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[cfg(test)]
impl Ticker {
    /// How many calls run now.
    pub(crate) fn running(&self) -> usize {
        self.shared.running.load(Ordering::SeqCst)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tick(shared: &Shared, engine: &Engine) {
    let mut idle = 0;
    loop {
        if shared.running.load(Ordering::SeqCst) > 0 {
            idle = 0;
            std::thread::sleep(TICK);
            engine.increment_epoch();
        } else if shared.ended.load(Ordering::SeqCst) {
            // A call may outlive the tier, and then still needs its ticks.
            return;
        } else if idle < IDLE_TICKS {
            idle += 1;
            std::thread::park_timeout(TICK);
        } else {
            shared.asleep.store(true, Ordering::SeqCst);
            if shared.running.load(Ordering::SeqCst) == 0 && !shared.ended.load(Ordering::SeqCst) {
                std::thread::park();
            }
            shared.asleep.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_when_nothing_runs_and_wakes_for_the_next_call() {
        let engine = Engine::new(&crate::tier::configuration()).unwrap();
        let ticker = Ticker::start(engine).unwrap();
        let until = |wanted: bool| {
            let asleep = || ticker.shared.asleep.load(Ordering::SeqCst);
            let start = std::time::Instant::now();
            while asleep() != wanted {
                assert!(start.elapsed() < Duration::from_secs(30), "it never held");
                std::thread::yield_now();
            }
        };
        for _ in 0..3 {
            until(true);
            let running = ticker.run();
            until(false);
            drop(running);
        }
        let shared = Arc::downgrade(&ticker.shared);
        drop(ticker);
        let start = std::time::Instant::now();
        while shared.upgrade().is_some() {
            assert!(start.elapsed() < Duration::from_secs(30), "it never ended");
            std::thread::yield_now();
        }
    }
}
