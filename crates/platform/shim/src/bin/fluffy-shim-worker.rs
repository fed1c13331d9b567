//! The shim alone, for tests; people have it as `fluffy worker vm-shim`, and
//! what makes file systems as `fluffy worker mke2fs`.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("mke2fs") => fluffy_shim::format::worker_main(),
        _ => fluffy_shim::worker_main(),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
