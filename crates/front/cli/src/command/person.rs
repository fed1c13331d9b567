//! The person at this terminal, as a principal and as one who answers.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Principal, PrincipalKind, ProcessIdentity};
use fluffy_report::{ExitCode, Report};
use fluffy_secret::secret::MAX_SECRET;
use fluffy_secret::{ReadSecretError, SecretString};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::session::Session;

/// The trust label of a person at the command line, for rules.
const TAG: &str = "person";
/// The most that a terminal gives of a line at once.
const MAX_LINE: usize = 4096;
/// The most that may stand around a line that counts.
const MAX_AROUND: usize = 16 * 1024;
/// How long nothing more may come until a paste is over, and how long that is
/// waited for.
const QUIET: Duration = Duration::from_millis(50);
const SETTLING: Duration = Duration::from_secs(1);

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
    asked(session, question, asks, |unseen| {
        let line = unseen.line()?;
        SecretString::from_reader(line.as_slice(), MAX_SECRET)
    })
}

/// A secret among other lines: pasted unseen at the terminal with what stands
/// around it, of which only the line that begins so is taken; or piped in.
pub(crate) fn secret_line(
    session: &Session,
    question: &str,
    beginning: &str,
    asks: Asks<'_>,
) -> Result<SecretString, Failure> {
    asked(session, question, asks, |unseen| {
        let (mut seen, mut told) = (0, false);
        loop {
            let line = unseen.line()?;
            let text = line.trim_ascii();
            if text.starts_with(beginning.as_bytes()) {
                return SecretString::from_reader(text, MAX_SECRET);
            }
            seen += line.len();
            match (line.is_empty(), seen > MAX_AROUND) {
                (true, _) => return Err(ReadSecretError::Empty),
                (false, true) => return Err(ReadSecretError::TooLong { limit: MAX_AROUND }),
                (false, false) => {}
            }
            if !(told || text.is_empty() || text.starts_with(b"#")) {
                told = true;
                session.printer.note(&format!(
                    "still waiting for the line that begins with `{beginning}`; Ctrl-D gives up"
                ));
            }
        }
    })
}

fn asked(
    session: &Session,
    question: &str,
    asks: Asks<'_>,
    typed: impl FnOnce(&Unseen) -> Result<SecretString, ReadSecretError>,
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
            // Whoever answers at once is not seen either.
            let unseen = Unseen::enter().map_err(ReadSecretError::Read);
            session.printer.ask(&format!("{question}\n"));
            unseen.and_then(|unseen| typed(&unseen))
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

    /// The next line with its end; nothing after the last one. Not by way of
    /// the buffer of standard input, where a copy would stay.
    fn line(&self) -> Result<Zeroizing<Vec<u8>>, ReadSecretError> {
        // Room for all of it at once: growing would leave copies behind.
        let mut line = Zeroizing::new(Vec::with_capacity(MAX_SECRET + MAX_LINE));
        let mut part = Zeroizing::new([0; MAX_LINE]);
        while !line.ends_with(b"\n") {
            let read = match rustix::io::read(io::stdin(), part.as_mut_slice()) {
                Err(rustix::io::Errno::INTR) => continue,
                read => read.map_err(|error| ReadSecretError::Read(error.into()))?,
            };
            if read == 0 {
                break;
            }
            if line.len() + read > MAX_SECRET {
                return Err(ReadSecretError::TooLong { limit: MAX_SECRET });
            }
            line.extend_from_slice(part.get(..read).unwrap_or_default());
        }
        Ok(line)
    }

    /// Reads away what comes right behind the last line: a paste comes in
    /// pieces.
    fn settle(&self) -> io::Result<()> {
        let limit = Instant::now() + SETTLING;
        let mut rest = Zeroizing::new([0; MAX_LINE]);
        while Instant::now() < limit {
            let stdin = io::stdin();
            let mut comes = [PollFd::new(&stdin, PollFlags::IN)];
            let quiet = Timespec::try_from(QUIET).unwrap_or_default();
            if rustix::event::poll(&mut comes, Some(&quiet))? == 0
                || rustix::io::read(&stdin, rest.as_mut_slice())? == 0
            {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // A signal, or a terminal that is gone: then there is nothing to read.
        let _ = self.settle();
        // What else was typed or pasted unseen was for us: a shell would show
        // it, run it and keep it. There is nobody to tell if this fails: the
        // terminal is what is broken.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
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
