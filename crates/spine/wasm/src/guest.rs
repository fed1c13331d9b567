//! The state of one call: a fresh store with its meter, fuel and deadline.
//!
//! A store is made for one call and dropped with it, so nothing a program
//! leaves in memory reaches another; only a plugin that is declared stateful
//! has its store armed again. The only things inside are what the
//! command names: see `command`.

use std::time::Instant;

use wasmtime::{Engine, Store, UpdateDeadline};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::command::{Access, Command, Directory};
use crate::limits::{Bounds, Limits};
use crate::meter::Meter;
use crate::output::Output;
use crate::stop::Stop;

/// Open files, streams and waits that a program may hold at once.
pub(crate) const HANDLES_MAX: usize = 1024;

/// The most random bytes that a program gets from one call.
pub(crate) const RANDOM_MAX: u64 = 1 << 20;

/// The most bytes that a component hands over in one call.
const HANDED_OVER_MAX: usize = 4 << 20;

/// What one call holds; `W` is its access to the system, or nothing.
pub(crate) struct Guest<W> {
    meter: Meter,
    deadline: Instant,
    pub(crate) system: W,
}

impl<W> Guest<W> {
    /// Ends the call because it asked its host too often.
    pub(crate) fn too_many_asks(&mut self, limit: u32) -> wasmtime::Error {
        self.meter.refuse(Stop::Asks { limit })
    }
}

/// What a plain function reaches of the system: nothing.
pub(crate) type Plain = Guest<()>;

/// What a command reaches of the system: what it was given.
pub(crate) type Wasi = Guest<WasiP1Ctx>;

impl WasiView for Wasi {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.system.ctx()
    }
}

impl Wasi {
    pub(crate) fn system(&mut self) -> &mut WasiP1Ctx {
        &mut self.system
    }
}

/// What a program does when its thread should look up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beat {
    /// It goes on; for calls that own their thread.
    Continue,
    /// It lets other tasks of the thread go first.
    Yield,
}

/// The limits of one call and when it has to be over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) limits: Limits,
    pub(crate) bounds: Bounds,
    pub(crate) deadline: Instant,
    pub(crate) beat: Beat,
}

impl Frame {
    /// A fresh store, armed before any of the program's code can run in it.
    pub(crate) fn store<W: Send + 'static>(
        &self,
        engine: &Engine,
        system: W,
    ) -> wasmtime::Result<Store<Guest<W>>> {
        let guest = Guest {
            meter: Meter::new(self.limits, self.bounds),
            deadline: self.deadline,
            system,
        };
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| &mut guest.meter);
        store.set_hostcall_fuel(HANDED_OVER_MAX);
        self.arm(&mut store)?;
        let beat = self.beat;
        store.epoch_deadline_callback(move |store| {
            let deadline = store.data().deadline;
            Ok(match (Instant::now() >= deadline, beat) {
                (true, _) => UpdateDeadline::Interrupt,
                (false, Beat::Continue) => UpdateDeadline::Continue(1),
                (false, Beat::Yield) => UpdateDeadline::Yield(1),
            })
        });
        Ok(store)
    }

    /// Gives a store the fuel and the time for one more call.
    pub(crate) fn arm<W>(&self, store: &mut Store<Guest<W>>) -> wasmtime::Result<()> {
        // Without a limit the counter still runs, from the top.
        store.set_fuel(self.limits.fuel.unwrap_or(u64::MAX))?;
        store.set_epoch_deadline(1);
        store.data_mut().deadline = self.deadline;
        Ok(())
    }
}

/// Why the call in this store ended with the error.
pub(crate) fn stop_of<W>(store: &Store<Guest<W>>, error: &wasmtime::Error) -> Stop {
    match store.data().meter.exceeded() {
        Some(stop) => stop.clone(),
        None => Stop::of(error),
    }
}

/// What is left of the fuel, where there was a limit.
pub(crate) fn fuel_left<W>(store: &Store<Guest<W>>, limits: &Limits) -> Option<u64> {
    limits.fuel?;
    store.get_fuel().ok()
}

/// How many bytes its memories had in the end, which is the most they had.
pub(crate) fn memory_used<W>(store: &Store<Guest<W>>) -> u64 {
    store.data().meter.memory()
}

/// A directory that could not be opened.
pub(crate) struct Unopened {
    pub(crate) directory: Directory,
    pub(crate) source: wasmtime::Error,
}

/// What the command reaches of the system.
pub(crate) fn system(command: Command, output: &Output) -> Result<WasiP1Ctx, Box<Unopened>> {
    let mut builder = WasiCtxBuilder::new();
    builder.args(&command.arguments);
    for (name, value) in &command.environment {
        builder.env(name, value);
    }
    builder.stdin(MemoryInputPipe::new(command.stdin));
    builder.stdout(output.stdout());
    builder.stderr(output.stderr());
    builder.max_random_size(RANDOM_MAX);
    // These are the defaults; said here so that no update can change them.
    builder.allow_tcp(false);
    builder.allow_udp(false);
    builder.allow_ip_name_lookup(false);
    builder.allow_blocking_current_thread(false);
    for directory in command.directories {
        let access = match directory.access {
            Access::ReadOnly => FsPerms::ReadOnly,
            Access::ReadWrite => FsPerms::ReadWrite,
        };
        if let Err(source) = builder.preopened_dir(&directory.host, &directory.guest, access) {
            return Err(Box::new(Unopened { directory, source }));
        }
    }
    let mut system = builder.build_p1();
    system.ctx().table.set_max_capacity(HANDLES_MAX);
    Ok(system)
}
