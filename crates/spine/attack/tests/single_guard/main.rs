//! Each attack on a whole sandbox, and on one that lacks the attack's guard.
//!
//! Inside a throwaway the first must stop it and the second must not, or the
//! guard proves nothing. This program is the test, the launcher, the init and
//! the attacker; `controls.txt` has what cannot have a control, and why.
//! Must never leave a guard out on the bare host: the launcher refuses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod aftermath;
mod inside;
mod starter;

use std::path::Path;
use std::process::{Child, Command, ExitCode};

/// The one test of this program.
const NAME: &str = "without_its_guard_an_attack_works";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = fluffy_sandbox::worker::run(&arguments) {
        return code;
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["attack", name, stage] => {
            fluffy_attack::work(name, stage).map_or(ExitCode::from(2), |()| ExitCode::SUCCESS)
        }
        [
            "start",
            time,
            weaken,
            aftermath,
            project,
            "--",
            command @ ..,
        ] => {
            let start = starter::Start {
                time,
                weaken,
                aftermath,
                project: Path::new(project),
            };
            starter::start(&start, command)
        }
        ["move-in", words @ ..] => inside::move_in(words),
        ["controls", share, names @ ..] => inside::controls(share, names),
        words => as_a_test(words),
    }
}

/// Behaves as the usual harness does, as far as `cargo test` and nextest ask.
fn as_a_test(words: &[&str]) -> ExitCode {
    if words.contains(&"--list") {
        if !words.contains(&"--ignored") {
            println!("{NAME}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&&str> = words.iter().filter(|word| !word.starts_with('-')).collect();
    if !filters.is_empty() && !filters.iter().any(|filter| NAME.contains(**filter)) {
        return ExitCode::SUCCESS;
    }
    let own = std::env::current_exe().unwrap();
    let throwaways: Vec<Child> = (0..inside::SHARES)
        .map(|share| {
            Command::new(&own)
                .args(["worker", "throwaway", "@self", "move-in"])
                .arg(share.to_string())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut code = ExitCode::SUCCESS;
    for mut throwaway in throwaways {
        let status = throwaway.wait().unwrap();
        if !status.success() {
            eprintln!("{NAME}: {status}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
