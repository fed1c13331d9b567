//! The shim alone, for tests; people have it as `fluffy worker vm-shim`.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    fluffy_shim::worker_main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
