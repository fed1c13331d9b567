//! `fluffy-init`: the first process of an instance.
//!
//! One thread, one loop. It takes its config over the guest link, makes the
//! instance what the config says, runs the workload, and stays: it reaps,
//! forwards signals, carries logs and commands, and answers the node. It is
//! linked statically and needs nothing of the image. Next: `boot` has the
//! order of what happens before the workload, `life` the loop.

#[cfg(target_os = "linux")]
mod boot;
#[cfg(target_os = "linux")]
mod call;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod lines;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod redact;
#[cfg(target_os = "linux")]
mod secrets;
#[cfg(target_os = "linux")]
mod user;
#[cfg(target_os = "linux")]
mod wall;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::io::Write;
    match boot::Given::from_arguments().and_then(|given| life::Life::begin(given)?.live()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The console: there may be no link to say it over.
            let _ = writeln!(std::io::stderr(), "fluffy-init: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
