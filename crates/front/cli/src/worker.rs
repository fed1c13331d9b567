//! The hidden words that make this executable something smaller.
//!
//! Looked at before anything is parsed, read or allocated for a command: a
//! worker starts with nothing, and most of them distrust whoever starts them.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::session::WORKER_ARGUMENTS;

/// Runs the worker that was asked for; nothing if none was.
pub(crate) fn run() -> Option<ExitCode> {
    let mut given = std::env::args_os().skip(1);
    if given.next()? != "worker" {
        return None;
    }
    // What is no text names no worker; clap will say so.
    let words: Vec<String> = std::iter::once(Ok("worker".to_owned()))
        .chain(given.map(std::ffi::OsString::into_string))
        .collect::<Result<_, _>>()
        .ok()?;
    if words == WORKER_ARGUMENTS {
        return Some(fluffy_script::worker_main());
    }
    let plain: Vec<&str> = words.iter().map(String::as_str).collect();
    if let [_, "attack", name, stage] = plain.as_slice() {
        return Some(attack(name, stage));
    }
    match plain.as_slice() {
        [_, "bootstrap", configuration, project, socket] => {
            return Some(crate::kernel::bootstrap::run(
                configuration,
                project,
                socket,
            ));
        }
        [_, "kernel", project, socket, "--engine", engine] => {
            return Some(crate::kernel::run(project, socket, engine));
        }
        ["worker", "egress"] => return Some(crate::kernel::egress::run()),
        ["worker", "tool-runner"] => return Some(tool_runner()),
        ["worker", "strip-types", name] => return Some(fluffy_script::compare_main(name)),
        ["worker", "model"] => return Some(model()),
        #[cfg(target_os = "linux")]
        ["worker", "vm-shim"] => return Some(fluffy_shim::worker_main()),
        #[cfg(target_os = "linux")]
        ["worker", "mke2fs"] => return Some(fluffy_shim::format::worker_main()),
        ["worker", "image"] => return Some(fluffy_image::worker::run()),
        ["worker", "wasm"] => return Some(fluffy_plugin_host::wasm::worker_main()),
        _ => {}
    }
    fluffy_sandbox::worker::run(&words).or_else(|| fluffy_container::worker::run(&words))
}

/// Changes files of the project it finds itself in.
fn tool_runner() -> ExitCode {
    let done = std::env::current_dir()
        .map_err(Into::into)
        .and_then(|root| fluffy_tools::runner::run(&root, io::stdin(), io::stdout()));
    ended(done.map_err(|error: fluffy_tools::runner::FrameError| error.to_string()))
}

/// Asks a model for the kernel, from inside its own sandbox.
fn model() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            let serve = fluffy_models::worker::serve(tokio::io::stdin(), tokio::io::stdout());
            runtime.block_on(serve).map_err(|error| error.to_string())
        });
    ended(done)
}

fn ended(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays one attempt of the corpus, inside whatever it is to break out of.
fn attack(name: &str, stage: &str) -> ExitCode {
    match fluffy_attack::work(name, stage) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever judges it takes the missing marker for a failure.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}
