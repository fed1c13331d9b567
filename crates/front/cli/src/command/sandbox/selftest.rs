//! `fluffy sandbox selftest`: the corpus of escapes, tried on this machine.
//!
//! Each attack is played inside a sandbox that `fluffy sandbox run` makes, as
//! anybody would, with a state directory of its own. Must never call an attack
//! stopped that did not happen: `fluffy_attack` judges, this only shows.

use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fluffy_attack::{
    Attack, CommandSubject, DockerRun, Egress, Ended, Isolated, Limits, Ran, Reason,
    Report as Corpus, RunTrialError, Subject, Trial, Verdict, Word, all, run_all,
};
use fluffy_policy::word::Tier;
use fluffy_report::{Cell, Column, ExitCode, Report, Table, Tone};
use serde_json::{Value, json};

use super::{containers, user};
use crate::args::{EngineArg, SelftestArgs, TierArg};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;

/// How long a launcher may take to be gone after its client.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// Plays the corpus and shows the table.
pub(super) fn run(session: &Session, args: &SelftestArgs) -> Outcome {
    let attacks = chosen(args)?;
    let scratch = scratch(session)?;
    let state = scratch.path().join("state");
    let ours = subjects(args, &state)?;
    let peers = if args.compare {
        peers(session)?
    } else {
        Vec::new()
    };
    let mut subjects: Vec<&dyn Subject> = ours.iter().map(|subject| subject as _).collect();
    subjects.extend(peers.iter().map(AsRef::as_ref));
    let mut progress = Progress::new(session, attacks.len() * subjects.len());
    let report = run_all(
        &attacks,
        &subjects,
        scratch.path(),
        |attack, subject, verdict| {
            progress.step(attack, subject, verdict);
        },
    );
    progress.clear();
    show(session, &report, &ours)
}

/// Where canaries are laid: a place of the user's own. A sandbox has files of
/// its own in the usual one for temporary files, which would prove nothing.
fn scratch(session: &Session) -> Result<tempfile::TempDir, Failure> {
    let base = &session.here()?.paths.state_dir;
    // Private, as everybody else who makes it would have it.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(base)
        .and_then(|()| {
            tempfile::Builder::new()
                .prefix("selftest-")
                .tempdir_in(base)
        })
        .map_err(|error| failure::unwritable(base, &error).into())
}

/// What else isolates on this machine, as people use it.
fn peers(session: &Session) -> Result<Vec<Box<dyn Subject>>, Failure> {
    let worker = worker()?;
    let bubblewrap = CommandSubject::bubblewrap(&worker).map(|peer| Box::new(peer) as _);
    let docker = DockerRun::start(&worker, None).map(|peer| Box::new(peer) as _);
    let mut peers = Vec::new();
    let mut missing = Vec::new();
    for peer in [bubblewrap, docker] {
        match peer {
            Ok(peer) => peers.push(peer),
            Err(error) => missing.push(error),
        }
    }
    match missing.first() {
        Some(error) if peers.is_empty() => Err(Failure::of(
            ExitCode::NotFound,
            error,
            "install one: `apt-get install bubblewrap`, or Docker",
        )),
        _ => {
            for error in &missing {
                session.printer.note(&format!("not compared with: {error}"));
            }
            Ok(peers)
        }
    }
}

/// The attacks that were asked for, in the order of the corpus.
fn chosen(args: &SelftestArgs) -> Result<Vec<&'static Attack>, Failure> {
    let wanted = |attack: &&'static Attack| {
        args.only.is_empty()
            || args
                .only
                .iter()
                .any(|name| *name == attack.name || *name == attack.family.to_string())
    };
    let attacks: Vec<&'static Attack> = all().filter(wanted).collect();
    if attacks.is_empty() {
        return Err(
            Report::new(ExitCode::NotFound, "no attack has such a name or family")
                .fix("leave `--only` out to see all of them")
                .into(),
        );
    }
    Ok(attacks)
}

/// The tiers of this machine that are to be tried.
fn subjects(args: &SelftestArgs, state: &Path) -> Result<Vec<OwnSubject>, Failure> {
    match args.tier {
        Some(tier @ (TierArg::Wasm | TierArg::Microvm)) => Err(Report::new(
            ExitCode::Usage,
            "the corpus is for tiers that run programs here",
        )
        .why(match tier {
            TierArg::Microvm => "there are no microVMs yet",
            _ => "a WebAssembly module cannot make a system call at all",
        })
        .fix("use `--tier process` or `--tier container`")
        .into()),
        Some(TierArg::Process) => Ok(vec![own(TierArg::Process, args.engine, state)?]),
        Some(TierArg::Container) => Ok(vec![own(TierArg::Container, None, state)?]),
        None => {
            let mut subjects = vec![own(TierArg::Process, args.engine, state)?];
            if fluffy_container::address::find(&containers(), user()).is_ok() {
                subjects.push(own(TierArg::Container, None, state)?);
            }
            Ok(subjects)
        }
    }
}

/// This program as the attacker's half. Every sandbox has directories for
/// temporary files of its own: from there an attack would seem to get at us.
fn worker() -> Result<Vec<String>, Failure> {
    let program = std::env::current_exe().map_err(|error| failure::no_program(&error))?;
    if ["/tmp", "/var/tmp", "/run"]
        .iter()
        .any(|own| program.starts_with(own))
    {
        let what = format!("`{}` is among temporary files", program.display());
        return Err(Report::new(ExitCode::Usage, what)
            .why("a sandbox has such files of its own, so attacks on this one show nothing")
            .fix("install it elsewhere, such as ~/.cargo/bin or /usr/local/bin")
            .into());
    }
    let program = program.to_string_lossy().into_owned();
    Ok(vec![program, "worker".to_owned(), "attack".to_owned()])
}

/// `fluffy sandbox run` of one tier.
fn own(tier: TierArg, engine: Option<EngineArg>, state: &Path) -> Result<OwnSubject, Failure> {
    let (tier, name) = match tier {
        TierArg::Container => (Tier::Container, "container"),
        TierArg::Wasm | TierArg::Process | TierArg::Microvm => (Tier::Process, "process"),
    };
    let engine = engine.map(|engine| match engine {
        EngineArg::Native => "native",
        EngineArg::Bwrap => "bwrap",
        EngineArg::Reduced => "reduced",
    });
    let shown = engine.map_or_else(|| name.to_owned(), |engine| format!("{name}/{engine}"));
    let worker = worker()?;
    let program = worker.first().cloned().unwrap_or_default();
    // The user's own policy and ledger have nothing to do with this.
    let mut words: Vec<Word> = [
        "env".to_owned(),
        format!("FLUFFY_STATE_DIR={}", state.display()),
        format!("XDG_CONFIG_HOME={}", state.join("config").display()),
        program,
        "sandbox".to_owned(),
        "run".to_owned(),
        "--json".to_owned(),
        "--trial".to_owned(),
        "--tier".to_owned(),
        name.to_owned(),
        "--output".to_owned(),
        Limits::TRIAL.output.to_string(),
    ]
    .map(Word::Text)
    .to_vec();
    if let Some(engine) = engine {
        words.extend(["--engine", engine].map(|word| Word::Text(word.to_owned())));
    }
    words.push(Word::Aftermath(
        vec!["--merge".to_owned()],
        vec!["--discard".to_owned()],
    ));
    words.push(Word::Allow(vec!["--allow".to_owned()]));
    words.push(Word::Text("--".to_owned()));
    words.extend(worker.into_iter().map(Word::Text));
    words.push(Word::Arguments);
    Ok(OwnSubject {
        command: CommandSubject {
            name: shown,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tier,
            limits: Limits::TRIAL,
            words,
            // Without a network of its own there is no way to a proxy either.
            egress: match engine {
                Some("reduced") => Egress::None,
                _ => Egress::Proxy,
            },
            ending,
            isolation: Isolated::Yes,
            emptied: vec![launchers(state)],
        },
    })
}

fn launchers(state: &Path) -> PathBuf {
    state.join("sandboxes").join("launchers")
}

/// How the command inside ended, from the last line that the run wrote.
fn ending(ran: &Ran) -> Ended {
    let said = [&ran.errors, &ran.output]
        .into_iter()
        .find_map(|bytes| last_object(bytes));
    let exit = said.as_ref().and_then(|said| said.get("exit"));
    let number = |name: &str| {
        let number = exit?.get(name)?.as_i64()?;
        i32::try_from(number).ok()
    };
    match exit.and_then(|exit| exit.get("type")?.as_str()) {
        Some("code") => number("code").map_or(ran.ended, |code| Ended::Code { code }),
        Some("signal") => number("signal").map_or(ran.ended, |signal| Ended::Signal { signal }),
        Some("limit") => exit
            .and_then(|exit| reason(exit.get("limit")?.as_str()?))
            .map_or(ran.ended, |reason| Ended::Limit { reason }),
        _ => ran.ended,
    }
}

/// The last line of these bytes that is one of our own objects.
fn last_object(bytes: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(bytes);
    text.lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok())
        .find(|value| value.get("sandbox").is_some() && value.get("exit").is_some())
}

fn reason(limit: &str) -> Option<Reason> {
    Some(match limit {
        "time" => Reason::Time,
        "memory" => Reason::Memory,
        "pids" => Reason::Pids,
        "output" => Reason::Output,
        "disk" => Reason::Disk,
        _ => return None,
    })
}

/// A tier of ours, which needs a moment to have removed everything.
#[derive(Debug)]
struct OwnSubject {
    command: CommandSubject,
}

impl Subject for OwnSubject {
    fn name(&self) -> &str {
        self.command.name()
    }

    fn version(&self) -> &str {
        self.command.version()
    }

    fn tier(&self) -> Tier {
        self.command.tier()
    }

    fn limits(&self) -> Limits {
        self.command.limits()
    }

    fn lacks(&self, attack: &Attack) -> Option<String> {
        self.command.lacks(attack)
    }

    fn run(&self, trial: &Trial<'_>) -> Result<Ran, RunTrialError> {
        self.command.run(trial)
    }

    fn leftovers(&self) -> Vec<String> {
        let deadline = Instant::now() + AFTERWARDS;
        loop {
            let left = self.command.leftovers();
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A line that says how far it is, where somebody looks.
struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    fn new(session: &Session, total: usize) -> Self {
        Self {
            total,
            done: 0,
            shown: io::stderr().is_terminal() && !session.json(),
        }
    }

    fn step(&mut self, attack: &Attack, subject: &dyn Subject, verdict: &Verdict) {
        self.done += 1;
        if self.shown {
            let (done, total) = (self.done, self.total);
            let text = format!(
                "\r\x1b[K[{done}/{total}] {} on {}: {}",
                attack.name,
                subject.name(),
                word(verdict)
            );
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_all(text.as_bytes());
            let _ = stderr.flush();
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Stopped { .. } => "stopped",
        Verdict::Escaped { .. } => "ESCAPED",
        Verdict::NotApplicable { .. } => "–",
        Verdict::Broken { .. } => "broken",
    }
}

fn show(session: &Session, report: &Corpus, ours: &[OwnSubject]) -> Outcome {
    let tallies = report.tallies();
    let bad = ours.iter().any(|subject| {
        tallies
            .get(subject.name())
            .is_some_and(|tally| tally.escaped + tally.broken > 0)
    });
    let exit = if bad {
        ExitCode::Failure
    } else {
        ExitCode::Success
    };
    if session.json() {
        session
            .printer
            .json(&json!({"report": report, "tallies": tallies}))?;
        return Ok(exit);
    }
    session.printer.table(&table(report))?;
    for row in &report.rows {
        for cell in &row.cells {
            if let Verdict::Escaped { how } | Verdict::Broken { why: how } = &cell.verdict {
                session.printer.data(&format!(
                    "{}: {} {}: {how}",
                    cell.subject,
                    row.attack,
                    word(&cell.verdict)
                ))?;
            }
        }
    }
    for subject in &report.subjects {
        let (name, version) = (&subject.name, &subject.version);
        let tally = tallies.get(name).copied().unwrap_or_default();
        session.printer.data(&format!(
            "{name} ({version}): {} stopped, {} escaped, {} broken, {} not applicable",
            tally.stopped, tally.escaped, tally.broken, tally.not_applicable
        ))?;
    }
    Ok(exit)
}

fn table(report: &Corpus) -> Table {
    let mut columns = vec![
        Column::new("FAMILY"),
        Column::new("ATTACK"),
        Column::new("GUARD"),
    ];
    columns.extend(
        report
            .subjects
            .iter()
            .map(|subject| Column::new(subject.name.to_uppercase())),
    );
    let mut table = Table::new(columns);
    for row in &report.rows {
        let mut cells = vec![
            Cell::new(row.family.to_string()),
            Cell::new(row.attack),
            Cell::new(row.guard.to_string()),
        ];
        cells.extend(row.cells.iter().map(|cell| {
            let tone = match cell.verdict {
                Verdict::Stopped { .. } => Tone::Good,
                Verdict::Escaped { .. } | Verdict::Broken { .. } => Tone::Bad,
                Verdict::NotApplicable { .. } => Tone::Dim,
            };
            Cell::new(word(&cell.verdict)).tone(tone)
        }));
        table.row(cells);
    }
    table
}
