//! Typed errors of other crates as reports: what happened, why, the fix.

use std::error::Error;
use std::io;
use std::path::Path;

use fluffy_config::problem::{Place, Problem};
use fluffy_config::{LoadError, PathsError};
use fluffy_gate::{AuthorizeError, LoadPolicyError, ProposeError, ReadPinError, UpdateError};
use fluffy_ledger::export::ExportError;
use fluffy_ledger::health::OpenCheckedError;
use fluffy_ledger::key::KeyFileError;
use fluffy_ledger::proof::ProveError;
use fluffy_ledger::verify::VerifyError;
use fluffy_ledger::{Lost, OpenLedgerError, Salvage, SalvageError, StoreError, SubscriptionError};
use fluffy_policy::diagnostic::RefusedText;
use fluffy_report::{Excerpt, ExitCode, PrintError, Report, Styling};
use fluffy_script::LoadExtensionsError;

/// How many errors of one file are shown at once.
const MAX_SHOWN: usize = 10;

/// Why a command did not end with a result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell the person.
    Report(Box<Report>),
    /// The output could not be written.
    Print(PrintError),
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Self::Report(Box::new(report))
    }
}

impl From<PrintError> for Failure {
    fn from(error: PrintError) -> Self {
        Self::Print(error)
    }
}

impl Failure {
    /// All of it in one line, for a log.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Report(report) => {
                let text = report.render(usize::MAX, Styling::Plain);
                let lines: Vec<&str> = text.lines().map(str::trim).collect();
                lines.join("; ")
            }
            Self::Print(error) => error.to_string(),
        }
    }

    /// An error as it is, with one thing to do about it.
    pub(crate) fn of(exit: ExitCode, error: &dyn Error, fix: &str) -> Self {
        Report::from_error(exit, error).fix(fix).into()
    }
}

/// The folder given by `--project` is not there.
pub(crate) fn no_folder(path: &Path, error: &io::Error) -> Report {
    Report::new(
        ExitCode::NotFound,
        format!("cannot enter `{}`", path.display()),
    )
    .why(error.to_string())
    .fix("name a folder that exists with --project, or leave it out")
}

/// Our own executable cannot be found.
pub(crate) fn no_program(error: &io::Error) -> Report {
    Report::new(ExitCode::Internal, "cannot find fluffy's own program file")
        .why(error.to_string())
        .fix("start it by its full path, and mount /proc")
}

/// No threads for work that goes on at once.
pub(crate) fn no_threads(error: &io::Error) -> Report {
    Report::new(ExitCode::Transient, "cannot start a thread")
        .why(error.to_string())
        .fix("check the limits on processes (ulimit -u)")
}

/// The caller's terminal cannot be used.
pub(crate) fn no_terminal(error: &io::Error) -> Report {
    Report::new(ExitCode::Failure, "cannot use this terminal")
        .why(error.to_string())
        .fix("run it with its input or output redirected, such as `< /dev/null`")
}

/// A worker that does not exist was asked for.
pub(crate) fn unknown_worker(kind: &str) -> Report {
    Report::new(ExitCode::Usage, format!("there is no worker `{kind}`"))
        .fix("workers are started by fluffy itself; run another command")
}

/// There is no safe place for our files.
pub(crate) fn paths(error: &PathsError) -> Report {
    let fix = match error {
        PathsError::NoHome => "export HOME, or set FLUFFY_STATE_DIR to an absolute path",
        PathsError::NotAbsolute { .. } => "write the path from the root, without `..`",
        PathsError::InsideProject { .. } => "set FLUFFY_STATE_DIR to a folder outside the project",
        PathsError::OpenToOthers { .. } => "run chmod 700 on it, or choose another folder",
        PathsError::Directory { .. } => "check its owner and mode, and that the disk has room",
    };
    Report::from_error(ExitCode::Usage, error).fix(fix)
}

/// The configuration is unreadable or wrong.
pub(crate) fn config(error: &LoadError) -> Report {
    let LoadError::Rejected(rejected) = error else {
        let fix = "make it a plain text file that you can read, or remove it";
        return Report::from_error(ExitCode::Usage, error).fix(fix);
    };
    let mut report = Report::new(ExitCode::Usage, rejected.to_string()).code("invalid_config");
    for problem in &rejected.problems {
        report = add_problem(report, problem);
    }
    report
}

fn add_problem(report: Report, problem: &Problem) -> Report {
    let report = match problem.place() {
        Place::File {
            path,
            line,
            column,
            length,
            text,
        } => {
            let place = Excerpt::on_line(path.display().to_string(), text, (*line, *column));
            report.at(place.length(*length).label(problem.to_string()))
        }
        other => report.why(format!("{other}: {problem}")),
    };
    report.fix(problem.fix())
}

/// A text that somebody wrote is refused, each error at its place.
pub(crate) fn refused_text(file: &str, text: &str, refused: &RefusedText) -> Report {
    let count = refused.errors().count();
    let what = match count {
        1 => format!("`{file}` has an error"),
        count => format!("`{file}` has {count} errors"),
    };
    let mut report = Report::new(ExitCode::Usage, what).code("invalid_file");
    for error in refused.errors().take(MAX_SHOWN) {
        let at = (error.place.line as usize, error.place.column as usize);
        let width = text
            .get(error.place.offset..error.place.offset + error.place.length)
            .map_or(1, |span| {
                span.lines()
                    .next()
                    .unwrap_or_default()
                    .chars()
                    .count()
                    .max(1)
            });
        let place = Excerpt::at(file, text, at)
            .length(width)
            .label(error.what.clone());
        report = report
            .at(place)
            .why(error.why.clone())
            .fix(error.help.clone());
    }
    if count > MAX_SHOWN {
        report = report.why(format!("and {} more", count - MAX_SHOWN));
    }
    report
}

/// A policy could not be loaded. `file` is what the person named, if anything.
pub(crate) fn load_policy(error: &LoadPolicyError, file: Option<&Path>) -> Report {
    match error {
        LoadPolicyError::Refused {
            path,
            text,
            refused,
        } => {
            let named = match refused.file.as_str() {
                "organisation" | "user" => path.as_path(),
                _ => file.unwrap_or(path),
            };
            refused_text(&named.display().to_string(), text, refused)
        }
        LoadPolicyError::Pin(error) => damaged_pin(error),
        LoadPolicyError::Extensions(error) => extensions(error),
        LoadPolicyError::Read(error) => Report::from_error(ExitCode::Usage, error)
            .fix("make it a plain text file that you can read"),
    }
}

/// The reviewed copy is not what was reviewed.
pub(crate) fn damaged_pin(error: &ReadPinError) -> Report {
    Report::from_error(ExitCode::Internal, error)
        .code("damaged_policy")
        .why("what cannot be verified is refused, so nothing is allowed")
        .fix("look at who changed it before anything else")
        .fix("then review the policy and pin it again with `fluffy policy apply`")
}

/// An extension cannot be used.
pub(crate) fn extensions(error: &LoadExtensionsError) -> Report {
    let report = Report::from_error(ExitCode::Usage, error).code("invalid_extension");
    match error {
        LoadExtensionsError::Refused { extension, problem } => {
            let place = problem
                .at
                .map(|at| format!(" at line {}, column {}", at.line, at.column));
            let what = format!(
                "extension `{extension}` is refused{}",
                place.unwrap_or_default()
            );
            Report::new(ExitCode::Usage, what)
                .code("invalid_extension")
                .why(problem.what.clone())
                .why(problem.why.clone())
                .fix(problem.fix.clone())
        }
        LoadExtensionsError::TooMany { .. } => report.fix("merge some of them"),
        LoadExtensionsError::Name { .. } => report.fix("rename the file"),
        LoadExtensionsError::Duplicate { .. } => report.fix("remove one of the two"),
        LoadExtensionsError::Start { .. } => {
            report.fix("check the limits on processes (ulimit -u)")
        }
        LoadExtensionsError::Worker { .. } => {
            report.fix("the top level of the script must not loop, throw or allocate much")
        }
    }
}

/// A table names an extension that is not there.
pub(crate) fn missing_extension(path: &Path) -> Report {
    Report::new(
        ExitCode::Usage,
        format!("there is no extension `{}`", path.display()),
    )
    .fix("paths in `extensions:` are relative to the table")
}

/// The ledger cannot be opened.
pub(crate) fn open_ledger(error: &OpenLedgerError) -> Report {
    let (exit, fix) = match error {
        OpenLedgerError::Store(StoreError::Full(_)) => (
            ExitCode::Transient,
            "make room on the disk of the state directory",
        ),
        OpenLedgerError::Store(StoreError::Busy(_)) => (
            ExitCode::Transient,
            "another process is writing; try again in a moment",
        ),
        OpenLedgerError::Store(_) => (
            ExitCode::Internal,
            "see the audit guide, \"When the ledger is damaged\"",
        ),
        OpenLedgerError::Key(_) => (
            ExitCode::Internal,
            "restore the key from your backup, or run chmod 600 on it",
        ),
        OpenLedgerError::Checkpoints(_) => (
            ExitCode::Internal,
            "make the checkpoint file readable, or restore it",
        ),
        OpenLedgerError::Thread(_) => (ExitCode::Transient, "check the limits on threads"),
    };
    Report::from_error(exit, error).fix(fix)
}

/// The ledger cannot be read.
pub(crate) fn read_ledger(error: &StoreError) -> Report {
    Report::from_error(ExitCode::Internal, error)
        .fix("run `fluffy audit verify` to see what is wrong with it")
}

/// A decision could not be recorded, so it is none.
pub(crate) fn not_recorded(error: &AuthorizeError) -> Report {
    Report::from_error(ExitCode::Internal, error)
        .fix("make room on the disk of the state directory, then ask again")
}

/// `policy decide` with a policy that is not in force.
pub(crate) fn decide_needs_policy_in_force() -> Report {
    Report::new(
        ExitCode::Usage,
        "a real decision is made by the policy in force",
    )
    .why("`--policy` names a file that nobody has applied")
    .fix("use `fluffy policy explain --policy` to try a file")
}

/// A policy could not be proposed.
pub(crate) fn propose(error: &ProposeError, file: Option<&Path>) -> Report {
    match error {
        ProposeError::Invalid(error) => load_policy(error, file),
        ProposeError::History(error) => read_ledger(error),
    }
}

/// A policy could not be put in force.
pub(crate) fn update(error: &UpdateError) -> Report {
    let (exit, fix) = match error {
        UpdateError::NoProject => (
            ExitCode::NotFound,
            "run it inside a project; `fluffy init` makes one",
        ),
        UpdateError::NotPermitted(_) => (
            ExitCode::Denied,
            "look at `fluffy policy explain policy.update NAME --kind user`",
        ),
        UpdateError::NotApproved(_) => (ExitCode::Denied, "a deny cannot be answered by a person"),
        UpdateError::NotRecorded(_) | UpdateError::NotPinned(_) => (
            ExitCode::Internal,
            "make room on the disk of the state directory; the old policy holds",
        ),
        UpdateError::NotLoaded(_) => (
            ExitCode::Internal,
            "run `fluffy policy check`, correct it and apply it again",
        ),
    };
    Report::from_error(exit, error).fix(fix)
}

/// The ledger is damaged and could not be salvaged.
pub(crate) fn salvage(error: &SalvageError) -> Report {
    match error {
        SalvageError::Start(error) | SalvageError::Open(OpenCheckedError::Open(error)) => {
            open_ledger(error)
        }
        SalvageError::Open(error @ OpenCheckedError::Check(_)) => {
            Report::from_error(ExitCode::Internal, error).fix("run `fluffy audit verify`")
        }
        SalvageError::InUse { .. } => Report::from_error(ExitCode::Transient, error)
            .fix("end the other fluffy processes and try again"),
        SalvageError::Io { .. } | SalvageError::Store(_) | SalvageError::Record(_) => {
            Report::from_error(ExitCode::Internal, error)
                .fix("check that the state directory is yours and that its disk has room")
        }
    }
}

/// What a salvage did, in words.
pub(crate) fn salvaged(salvage: &Salvage) -> String {
    let lost = match &salvage.lost {
        None => "nothing was lost".to_owned(),
        Some(Lost {
            first,
            last: Some(last),
        }) => format!("events {first} to {last} are lost"),
        Some(Lost { first, last: None }) => format!("events from {first} on are lost"),
    };
    format!(
        "the ledger was damaged ({}): events up to {} were kept, {lost}; the damaged files are in \
         `{}`",
        salvage.cause,
        salvage.kept,
        salvage.aside.display()
    )
}

/// Nothing could be verified.
pub(crate) fn verify(error: &VerifyError) -> Report {
    let (exit, fix) = match error {
        VerifyError::Io { .. } => (
            ExitCode::NotFound,
            "name a file or folder that you can read",
        ),
        VerifyError::NotALedger { .. } => (
            ExitCode::Usage,
            "name a ledger's folder, its ledger.db, or an export; that of an org goes to --export",
        ),
        VerifyError::NotAnExcerpt { .. } => (
            ExitCode::Usage,
            "name a file that `fluffy orgs export` wrote; a ledger or its export goes to --ledger",
        ),
        VerifyError::Checkpoint { .. } => (
            ExitCode::Usage,
            "pass checkpoint files as fluffy wrote them, unchanged",
        ),
        VerifyError::Store(_) => (ExitCode::Transient, "try again when nothing else writes"),
        VerifyError::Archive { .. } => (
            ExitCode::Internal,
            "restore the archive from your backup; it was changed",
        ),
    };
    Report::from_error(exit, error).fix(fix)
}

/// The signing key cannot be used.
pub(crate) fn key_file(error: &KeyFileError) -> Report {
    Report::from_error(ExitCode::Internal, error)
        .fix("restore the key from your backup, run chmod 600 on it, or pass --key")
}

/// No proof could be made.
pub(crate) fn prove(error: &ProveError) -> Report {
    let (exit, fix) = match error {
        ProveError::NoSuchEvent { .. } => (ExitCode::NotFound, "`fluffy audit log` lists events"),
        ProveError::Archived { .. } => (
            ExitCode::NotFound,
            "events that were archived are proven from their archive",
        ),
        ProveError::Broken { .. } => (ExitCode::Internal, "run `fluffy audit verify`"),
        ProveError::Store(_) | ProveError::Append(_) | ProveError::Sign(_) => (
            ExitCode::Internal,
            "check that the state directory is writable and has room",
        ),
    };
    Report::from_error(exit, error).fix(fix)
}

/// An export broke off.
pub(crate) fn export(error: &ExportError) -> Report {
    Report::from_error(ExitCode::Failure, error)
        .fix("what was written has no end line and does not verify; export again")
}

/// A subscription broke off.
pub(crate) fn follow(error: &SubscriptionError) -> Report {
    Report::from_error(ExitCode::Failure, error)
        .fix("name a position with --from that `fluffy audit log` shows")
}

/// A file cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Report {
    Report::new(
        ExitCode::NotFound,
        format!("cannot read `{}`", path.display()),
    )
    .why(error.to_string())
    .fix("check the path and its mode")
}

/// A file cannot be written.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> Report {
    Report::new(
        ExitCode::Failure,
        format!("cannot write `{}`", path.display()),
    )
    .why(error.to_string())
    .fix("check that the folder exists, is yours and has room")
}
