//! Hot reload: a thread that looks whether a policy file changed.
//!
//! It looks at what the files say, twice a second, rather than waiting for
//! notifications that some file systems never send. A change that does not
//! load is reported and changes nothing.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use crate::gate::{Gate, Reload};
use crate::load::LoadPolicyError;

/// How often the files are looked at.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// A running watch; dropping it ends the thread.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the gate's files and tells `notice` of every reload and of
    /// every change that could not be loaded.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        gate: &Arc<Gate>,
        every: Duration,
        notice: impl Fn(Result<(), LoadPolicyError>) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let gate = Arc::downgrade(gate);
        let look = move || {
            let mut told = None;
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(gate) = Weak::upgrade(&gate) else {
                    return;
                };
                match gate.reload_unless(told.as_ref()) {
                    Ok(Reload::Unchanged) => {}
                    Ok(Reload::Known) => continue,
                    Ok(Reload::Changed) => notice(Ok(())),
                    Err((seen, error)) => {
                        // Each broken state is tried and told of once.
                        if told != Some(seen) {
                            told = Some(seen);
                            notice(Err(*error));
                        }
                        continue;
                    }
                }
                told = None;
            }
        };
        let thread = thread::Builder::new()
            .name("policy-watch".to_owned())
            .spawn(look)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the notice is the owner's; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
