//! The hidden words that make this executable a launcher or an init.
//!
//! Looked at before anything else is set up: both must start with nothing.
//! Neither reads a configuration, a variable or a file of the caller.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use crate::guard::{Guard, Guards};

/// Runs the worker that these arguments name; nothing if they name none.
#[must_use]
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["worker", "launcher", weaken @ ..] => left_out(weaken).and_then(launcher),
        ["worker", "throwaway", ..] => {
            let command = arguments.get(2..).unwrap_or_default();
            return Some(match crate::throwaway::run(command) {
                // An exit code has no more than a byte.
                Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
                Err(error) => {
                    complain("no throwaway sandbox", &error);
                    ExitCode::from(125)
                }
            });
        }
        ["worker", "sandbox-init"] => crate::foreign::init_main(),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain("the worker ended", &error);
            ExitCode::FAILURE
        }
    })
}

/// The guards that `--weaken A --weaken B …` names.
fn left_out(words: &[&str]) -> io::Result<Guards> {
    let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    words.chunks(2).try_fold(Guards::NONE, |guards, pair| {
        let ["--weaken", name] = pair else {
            return Err(refused(
                "a launcher takes `--weaken GUARD` and no other words",
            ));
        };
        let guard = Guard::named(name).ok_or_else(|| refused("there is no such guard"))?;
        Ok(guards.with(guard))
    })
}

/// Its standard input is the socket to its client; from then on it has none.
fn launcher(weaken: Guards) -> io::Result<()> {
    let client: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    drop(null);
    crate::launcher::serve(client, weaken)
}

/// Says why a worker ends; its standard error is its caller's.
pub(crate) fn complain(what: &str, error: &io::Error) {
    // Nobody may be listening.
    let _ = writeln!(io::stderr(), "fluffy: {what}: {error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_are_left_out_by_name_and_nothing_else_is_taken() {
        assert_eq!(left_out(&[]).unwrap(), Guards::NONE);
        let two = left_out(&["--weaken", "seccomp", "--weaken", "landlock"]).unwrap();
        assert_eq!(two, Guards::NONE.with(Guard::Seccomp).with(Guard::Landlock));
        for wrong in [
            &["--weaken"][..],
            &["--weaken", "everything"],
            &["--weaken", "user-namespace"],
            &["seccomp"],
            &["--weaken", "seccomp", "landlock"],
        ] {
            assert!(left_out(wrong).is_err(), "{wrong:?}");
        }
    }
}
