//! The one thread that makes the engine's time pass, while anything runs.
//!
//! Compiled code looks at the engine's epoch at every loop and call; this
//! thread raises it once per tick. It sleeps without a wake-up when nothing
//! runs, and ends with the tier's last call. It never decides that a call is
//! over: the call's own deadline does, at its next look.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wasmtime::Engine;

/// How often a running program is made to look at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// The one thread that makes the engine's time pass.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
}

/// Keeps the time passing until it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    ended: bool,
}

impl Ticker {
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("wasm-ticker".into())
            .spawn(move || tick(&seen, &engine))?;
        Ok(Self { shared })
    }

    /// Makes the time pass for as long as the answer lives.
    pub(crate) fn run(&self) -> Running {
        let mut state = self.shared.lock();
        state.running = state.running.saturating_add(1);
        if state.running == 1 {
            self.shared.changed.notify_all();
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
        self.shared.lock().running
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.running = state.running.saturating_sub(1);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Two plain fields, whole at any moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tick(shared: &Shared, engine: &Engine) {
    let mut state = shared.lock();
    // A call may outlive the tier; without ticks it would never look up.
    while !state.ended || state.running > 0 {
        state = match state.running {
            0 => shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            _ => {
                let waited = shared.changed.wait_timeout(state, TICK);
                let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                engine.increment_epoch();
                state
            }
        };
    }
}
