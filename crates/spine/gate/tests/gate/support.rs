//! What all tests here need: a gate in a home of its own, requests, readers.
//!
//! Nothing is mocked: the ledger is on disk, a policy of the project is put in
//! force the way a person does it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_base::{Clock, Digest, ManualClock, Timestamp};
use fluffy_gate::{AuthorizeError, Bundle, Gate, LoadPolicyError, PinStore, PolicyPlaces};
use fluffy_ledger::{Event, Ledger, LedgerOptions, SeqRef};
use fluffy_policy::decision::TokenOutcome;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Principal, PrincipalKind, ProcessIdentity, Refusal, Request};
use fluffy_script::WorkerCommand;
use serde_json::Value;
use tempfile::TempDir;

/// Far beyond what anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// 2026-11-15T08:00:00Z.
const NOW: i64 = 1_794_729_600_000_000;

/// A home with a ledger in it and a gate in front of it.
pub(crate) struct Stage {
    pub(crate) home: TempDir,
    pub(crate) ledger: Ledger,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) gate: Arc<Gate>,
}

impl Stage {
    /// A gate with the starter policy.
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(NOW)));
        let ledger = open_ledger(home.path());
        let gate = open_gate(home.path(), &ledger, &clock).unwrap();
        Self {
            home,
            ledger,
            clock,
            gate: Arc::new(gate),
        }
    }

    /// A gate with this policy of the project in force.
    pub(crate) fn with_rules(rules: &str) -> Self {
        let stage = Self::new();
        stage.apply(Bundle::of_rules(rules));
        stage
    }

    /// Puts a policy in force, as a person does.
    pub(crate) fn apply(&self, bundle: Bundle) -> Digest {
        let proposal = self.gate.propose(bundle, 100).unwrap();
        self.gate.update(&proposal, &update_request()).unwrap()
    }

    /// Another gate on the same files, as after a restart.
    pub(crate) fn reopen(&self) -> Result<Gate, LoadPolicyError> {
        open_gate(self.home.path(), &self.ledger, &self.clock)
    }

    pub(crate) fn pins(&self) -> PinStore {
        pins(self.home.path())
    }

    pub(crate) fn organisation(&self) -> PathBuf {
        self.home.path().join("organisation.yaml")
    }

    pub(crate) fn user(&self) -> PathBuf {
        self.home.path().join("user.yaml")
    }

    /// All events, as another process would read them from the disk.
    pub(crate) fn on_disk(&self) -> Vec<Event> {
        events(&open_ledger(self.home.path()))
    }

    /// The refusal of this request.
    #[track_caller]
    pub(crate) fn refusal(&self, request: &Request) -> (Refusal, SeqRef) {
        refused(self.gate.authorize(request).map(drop))
    }
}

#[track_caller]
pub(crate) fn refused(authorized: Result<(), AuthorizeError>) -> (Refusal, SeqRef) {
    match authorized {
        Err(AuthorizeError::Refused { refusal, decision }) => (*refusal, decision),
        other => panic!("not refused: {other:?}"),
    }
}

/// What became of the token in a refused request.
pub(crate) fn token_outcome(refusal: &Refusal) -> TokenOutcome {
    refusal.decision().token().unwrap().outcome
}

pub(crate) fn open_ledger(home: &Path) -> Ledger {
    Ledger::open(&home.join("ledger"), LedgerOptions::default()).unwrap()
}

pub(crate) fn open_gate(
    home: &Path,
    ledger: &Ledger,
    clock: &Arc<ManualClock>,
) -> Result<Gate, LoadPolicyError> {
    let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
    Gate::open(places(home), ledger.clone(), clock)
}

pub(crate) fn places(home: &Path) -> PolicyPlaces {
    PolicyPlaces {
        organisation: home.join("organisation.yaml"),
        user: home.join("user.yaml"),
        pins: Some(pins(home)),
        worker: WorkerCommand {
            program: env!("CARGO_BIN_EXE_fluffy-gate-worker").into(),
            // Ignored by the worker; tells the workers of one home from others.
            args: vec![home.into()],
        },
    }
}

pub(crate) fn pins(home: &Path) -> PinStore {
    PinStore::of_project(&home.join("pins"), Path::new("/somewhere/shop"))
}

pub(crate) fn events(ledger: &Ledger) -> Vec<Event> {
    let head = ledger.head().unwrap().seq;
    let mut read: Vec<Event> = Vec::new();
    while (read.len() as u64) < head {
        read.extend(ledger.read(read.len() as u64 + 1, 1_000).unwrap());
    }
    read
}

/// The event at this position.
#[track_caller]
pub(crate) fn at(events: &[Event], seq: u64) -> &Event {
    events.iter().find(|event| event.seq == seq).unwrap()
}

pub(crate) fn payload(event: &Event) -> Value {
    event.payload.value().unwrap()
}

#[track_caller]
pub(crate) fn known(reference: &SeqRef) -> u64 {
    match reference {
        SeqRef::Known(seq) => *seq,
        SeqRef::Pending(ticket) => panic!("still pending: {ticket:?}"),
    }
}

/// A policy with one rule per entry: name, action, glob, what to do.
pub(crate) fn rules(entries: &[[&str; 4]]) -> String {
    let mut text = String::from("version: 1\ncapabilities:\n");
    for [name, action, glob, effect] in entries {
        text.push_str(&format!(
            "  - {{ name: {name}, match: {{ action: {action}, path_glob: [\"{glob}\"] }}, do: {effect} }}\n"
        ));
    }
    text
}

/// Allows `src`, denies `secret`, reviews `ci`.
pub(crate) fn three_ways() -> String {
    rules(&[
        ["source", "fs.write", "src/**", "allow"],
        ["pipelines", "fs.write", "ci/**", "require_review"],
        ["also-pipelines", "fs.write", "ci/**", "allow"],
        ["no-secrets", "fs.write", "secret/**", "deny"],
    ])
}

/// The agent in its sandbox wants to write this path.
pub(crate) fn write(path: &str) -> Request {
    Request {
        principal: Principal {
            sandbox: Some(SandboxId::from_bits(7)),
            process: Some(ProcessIdentity {
                pid: 41,
                started: 5,
            }),
            ..Principal::new(PrincipalKind::Agent, "agent", everything())
        },
        action: "fs.write".to_owned(),
        resource: Some(path.to_owned()),
        context: Context::default(),
    }
}

/// A person wants to put a policy in force.
pub(crate) fn update_request() -> Request {
    Request {
        principal: Principal {
            process: Some(ProcessIdentity {
                pid: 42,
                started: 6,
            }),
            ..Principal::new(PrincipalKind::User, "maria", everything())
        },
        action: "policy.update".to_owned(),
        resource: Some("shop".to_owned()),
        context: Context::default(),
    }
}

fn everything() -> Arc<Grant> {
    let all = || vec!["*".to_owned()];
    let lists = GrantLists {
        capabilities: all(),
        deny_capabilities: Vec::new(),
        workspace: all(),
        user: all(),
    };
    Arc::new(Grant::build(&lists).unwrap())
}

/// Writes a file whole, so that nobody reads half of it.
pub(crate) fn put(path: &Path, text: &str) {
    let temporary = path.with_extension("new");
    fs::write(&temporary, text).unwrap();
    fs::rename(&temporary, path).unwrap();
}

/// A file system of its own, in memory.
pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
}

impl SmallDisk {
    /// None if the system does not let us mount.
    pub(crate) fn mount(at: &Path, options: &str) -> Option<Self> {
        let mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs"];
        run(&mount, at).then(|| Self {
            path: at.to_owned(),
        })
    }

    /// From now on nobody writes here, root included.
    pub(crate) fn make_read_only(&self) {
        assert!(run(&["mount", "-o", "remount,ro"], &self.path));
    }

    pub(crate) fn make_writable(&self) {
        assert!(run(&["mount", "-o", "remount,rw"], &self.path));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(&["umount", "-l"], &self.path);
    }
}

fn run(command: &[&str], path: &Path) -> bool {
    let (program, arguments) = command.split_first().unwrap();
    let output = Command::new(program).args(arguments).arg(path).output();
    output.is_ok_and(|output| output.status.success())
}
