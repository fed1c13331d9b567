//! The launcher, the init and the WASM worker alone, for the tests of this crate.
//!
//! The product never ships it: `fluffy` starts itself with the same hidden
//! words and calls the same functions.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["worker", "wasm"] {
        return fluffy_plugin_host::wasm::worker_main();
    }
    fluffy_sandbox::worker::run(&arguments).unwrap_or(ExitCode::from(2))
}
