//! Every escape that the sandboxes of tools stop, tried from inside an
//! instance: it has the same walls, and may not be weaker than they.
//!
//! This program is the test and, copied into an image, the attacker. That the
//! attacks work where nothing stops them is shown in `fluffy-attack`.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    clippy::print_stderr,
    dead_code,
    missing_docs,
    reason = "tests"
)]

#[path = "../instance/image.rs"]
mod image;
#[path = "../instance/kit.rs"]
mod kit;
mod subject;

use std::path::Path;
use std::process::ExitCode;

use fluffy_attack::{Verdict, all, run_all};

use crate::subject::{InInstance, User};

/// A test by its name, and whether it holds.
type Named = (&'static str, fn() -> bool);

/// The tests of this program.
const TESTS: [Named; 2] = [
    (
        "a_user_of_an_instance_stays_in_it",
        a_user_of_an_instance_stays_in_it,
    ),
    (
        "user_0_of_an_instance_stays_in_it",
        user_0_of_an_instance_stays_in_it,
    ),
];

fn a_user_of_an_instance_stays_in_it() -> bool {
    stays(User::App)
}

fn user_0_of_an_instance_stays_in_it() -> bool {
    stays(User::Root)
}

/// What the user 0 of an instance may do inside it, and only there.
const OF_ROOT: [&str; 2] = ["become-root", "capabilities"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["attack", name, stage] = words.as_slice() {
        return fluffy_attack::work(name, stage).map_or(ExitCode::from(2), |()| ExitCode::SUCCESS);
    }
    as_tests(&words)
}

/// Behaves as the usual harness does, as far as `cargo test` and nextest ask.
fn as_tests(words: &[&str]) -> ExitCode {
    let listed = words.contains(&"--list");
    let filters: Vec<&&str> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let mut code = ExitCode::SUCCESS;
    for (name, holds) in TESTS {
        if listed {
            if !words.contains(&"--ignored") {
                println!("{name}: test");
            }
        } else if (filters.is_empty() || filters.iter().any(|filter| name.contains(**filter)))
            && !holds()
        {
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Whether nothing of the corpus gets out.
fn stays(user: User) -> bool {
    // Not among temporary files, which an instance has of its own.
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let subject = InInstance::new(user);
    let attacks: Vec<_> = all().collect();
    let mut stopped = 0;
    let mut wrong = 0;
    run_all(&attacks, &[&subject], base, |attack, _, verdict| {
        let permitted = user == User::Root && OF_ROOT.contains(&attack.name);
        match verdict {
            Verdict::Stopped { .. } => stopped += 1,
            Verdict::NotApplicable { .. } => {}
            Verdict::Escaped { .. } if permitted => {}
            Verdict::Escaped { .. } | Verdict::Broken { .. } => wrong += 1,
        }
        println!(
            "{:24} {:16} {}",
            attack.name,
            verdict.name(),
            verdict.because()
        );
    });
    println!("{stopped} of {} stopped", attacks.len());
    // Where almost nothing could be tried, nothing was shown.
    wrong == 0 && stopped > attacks.len() / 2
}
