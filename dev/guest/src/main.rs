//! The program that runs inside guests: tries limits and says what it found.
//!
//! Says facts, one JSON object a line, and judges nothing: the test that
//! booted the guest does. Also the launcher of its own sandboxes. Never run on
//! a machine that matters: it ends processes and makes control groups. Next:
//! `limits` and `instances` for what is tried, `tests/limits.rs` for what is
//! expected.

mod groups;
mod instances;
mod limits;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// The ordinary user of a guest.
const USER: u32 = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = fluffy_sandbox::worker::run(&arguments) {
        return code;
    }
    match perform(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The serial line is the only way out, and `{` marks facts.
            let _ = std::io::Write::write_all(
                &mut std::io::stdout(),
                format!("fluffy-foreign-kernel: {error:#}\n").as_bytes(),
            );
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["as-user", rest @ ..] => {
            let own = std::env::current_exe().context("cannot find itself")?;
            let error = Command::new(own).args(rest).uid(USER).gid(USER).exec();
            Err(error).context("cannot become an ordinary user")
        }
        ["limits", place] => tokio::runtime::Builder::new_multi_thread()
            // Somebody must collect a dead launcher while we wait.
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot make a runtime")?
            .block_on(limits::try_all(place)),
        ["instances"] => instances::try_all(),
        _ => bail!("the words are `limits PLACE`, `instances` and `as-user WORDS`"),
    }
}
