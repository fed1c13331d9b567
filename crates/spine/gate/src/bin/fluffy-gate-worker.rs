//! The script worker alone, for the tests of this crate.
//!
//! The product never ships it: `fluffy` starts itself with a hidden argument
//! and calls the same function.

use std::process::ExitCode;

fn main() -> ExitCode {
    fluffy_script::worker_main()
}
