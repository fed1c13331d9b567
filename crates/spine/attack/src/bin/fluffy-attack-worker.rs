//! The worker as a program of its own, for this crate's tests.
//!
//! The product runs the same code as `fluffy worker attack`. Must never do
//! more than hand its two arguments to `fluffy_attack::work`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(stage)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(2);
    };
    match fluffy_attack::work(&name, &stage) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(2),
    }
}
