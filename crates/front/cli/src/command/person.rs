//! The person at this terminal, as a principal and as one who answers.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::sync::Arc;

use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Principal, PrincipalKind, ProcessIdentity};
use fluffy_report::{ExitCode, Report};
use fluffy_secret::secret::MAX_SECRET;
use fluffy_secret::{ReadSecretError, SecretString};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::failure::Failure;
use crate::session::Session;

/// The trust label of a person at the command line, for rules.
const TAG: &str = "person";

/// Who is at the keyboard, as the system knows them.
pub(crate) fn name() -> String {
    format!("uid-{}", rustix::process::getuid().as_raw())
}

/// Asks in the terminal; nothing if there is none.
///
/// The question is talk: what goes to standard output is only the result.
pub(crate) fn prompt(session: &Session, question: &str) -> Result<Option<String>, Failure> {
    if session.json() || !io::stdin().is_terminal() {
        return Ok(None);
    }
    session.printer.ask(question);
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    Ok(read.ok().map(|_| line.trim().to_owned()))
}

/// Whether a person may be asked, by the command of these words.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asks<'a> {
    /// At a terminal.
    Allowed { words: &'a str },
    /// Only what is piped in counts.
    Never { words: &'a str },
}

/// A secret: typed unseen at the terminal, or piped in.
pub(crate) fn secret(
    session: &Session,
    question: &str,
    asks: Asks<'_>,
) -> Result<SecretString, Failure> {
    let (Asks::Allowed { words } | Asks::Never { words }) = asks;
    let pipe = format!("pipe it in: `… | {words}`");
    let read = match (io::stdin().is_terminal(), asks) {
        (true, Asks::Never { .. }) => {
            return Err(
                Report::new(ExitCode::Usage, "nobody may be asked for a secret")
                    .why("`--no-input` was given, and nothing is piped in")
                    .fix(pipe)
                    .into(),
            );
        }
        (true, Asks::Allowed { .. }) => {
            session.printer.ask(&format!("{question}\n"));
            let unseen = Unseen::enter();
            let mut line = String::new();
            let read = unseen.and_then(|_unseen| io::stdin().lock().read_line(&mut line));
            let line = SecretString::from(line);
            read.map_err(ReadSecretError::Read)
                .and_then(|_| SecretString::from_reader(line.expose().as_bytes(), MAX_SECRET))
        }
        (false, _) => SecretString::from_reader(io::stdin().lock(), MAX_SECRET),
    };
    read.map_err(|error| {
        let fix = format!("type it when you are asked, or {pipe}");
        Failure::of(ExitCode::Usage, &error, &fix)
    })
}

/// A terminal that does not show what is typed; as before when dropped.
struct Unseen {
    before: Termios,
}

impl Unseen {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &unseen)?;
        Ok(Self { before })
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // There is nobody to tell: the terminal is what is broken.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// This person, through this process, with these capabilities.
pub(crate) fn principal(capabilities: &[&str]) -> Result<Principal, Failure> {
    let everything = || vec!["*".to_owned()];
    let lists = GrantLists {
        capabilities: capabilities.iter().map(|text| (*text).to_owned()).collect(),
        deny_capabilities: Vec::new(),
        workspace: everything(),
        user: everything(),
    };
    let grant = Grant::build(&lists).map_err(|error| {
        Failure::of(
            ExitCode::Internal,
            &error,
            "please report this: the grant is our own",
        )
    })?;
    let mut principal = Principal::new(PrincipalKind::User, name(), Arc::new(grant));
    principal.tags.insert(TAG.to_owned());
    principal.process = Some(process());
    Ok(principal)
}

/// This process, as approvals are bound to it.
pub(crate) fn process() -> ProcessIdentity {
    ProcessIdentity {
        pid: std::process::id(),
        started: started(),
    }
}

/// When this process started, in the kernel's ticks since boot; a reused pid
/// has another. Where /proc is missing, 0 still binds to the pid.
fn started() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name, which may hold anything but
    // ends at the last parenthesis; the start time is the 22nd field.
    let after_name = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    after_name
        .split_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}
