//! Where plugins run that are not installed: a host of their own for a command.
//!
//! A plugin that is being made runs from a copy of its folder, so that an edit
//! never reaches one that runs, with a home that is gone afterwards. Everything
//! else is as in a session: its sandbox, its grant, the policy in force and the
//! ledger.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use fluffy_ledger::Ledger;
use fluffy_plugin_host::plugins::Plugins;
use fluffy_plugin_host::shelf::{ExamineError, Placed, Record, examine};
use fluffy_plugin_host::tree;
use fluffy_policy::capability::Pattern;
use fluffy_policy::record::DecisionRecord;
use fluffy_report::ExitCode;
use tempfile::TempDir;

use super::host::Host;
use crate::command::gate::Desk;
use crate::command::ledger::OpenLedger;
use crate::failure::Failure;
use crate::session::{Here, Session};

/// The folder of benches in the state directory; short, because the paths of
/// sockets below it are.
const FOLDER: &str = "bench";

/// How many events are looked at at once.
const PAGE: usize = 500;

/// A place for plugins that are being made.
pub(super) struct Bench {
    pub(super) plugins: Plugins,
    ledger: Ledger,
    granted: Vec<String>,
    root: TempDir,
    copies: AtomicU64,
}

impl Bench {
    /// A bench on which plugins get what they declare, as far as it is granted.
    pub(super) async fn open(
        session: &Session,
        here: &Here,
        opened: &OpenLedger,
        grant: &[String],
    ) -> Result<Self, Failure> {
        let desk = Desk::open(here, opened)?;
        let root = root(&here.paths.state_dir.join(FOLDER)).map_err(|error| {
            let fix = "check that the state directory is yours and that its disk has room";
            Failure::of(ExitCode::Failure, &error, fix)
        })?;
        let project = here.paths.project_root.clone();
        let ground = Host {
            session,
            here,
            opened,
            desk: &desk,
        };
        Ok(Self {
            plugins: ground.open(root.path(), project).await?,
            ledger: opened.ledger.clone(),
            granted: granted(grant),
            root,
            copies: AtomicU64::new(0),
        })
    }

    /// A copy of a folder, ready to be started.
    pub(super) fn place(&self, folder: &Path) -> Result<Placed, ExamineError> {
        // First as its author wrote it: errors name the author's own file.
        examine(folder)?;
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let home = self.root.path().join("home");
        let files = home.join(format!("files-{number}"));
        let io = |source| ExamineError::NoManifest {
            path: home.clone(),
            source,
        };
        std::fs::create_dir_all(&home).map_err(io)?;
        tree::take(folder, Some(&files)).map_err(ExamineError::Files)?;
        let copied = examine(&files)?;
        let source = folder.display().to_string();
        Ok(Placed {
            record: Record::new(&copied, self.granted.clone(), &source),
            manifest: copied.manifest,
            files,
            home,
        })
    }

    /// Removes a copy that nothing runs from any more.
    pub(super) fn discard(&self, placed: &Placed) {
        // What stays is removed with the bench.
        let _ = std::fs::remove_dir_all(&placed.files);
    }

    /// The place of the next event.
    pub(super) fn now(&self) -> u64 {
        let _ = self.ledger.flush_blocking();
        self.ledger.head().map_or(1, |head| head.seq + 1)
    }

    /// What was decided about this plugin since then, and about running it.
    pub(super) fn decisions(&self, since: &mut u64, name: &str) -> Vec<DecisionRecord> {
        let mut found = Vec::new();
        loop {
            let events = self.ledger.read(*since, PAGE).unwrap_or_default();
            let Some(last) = events.last() else {
                return found;
            };
            *since = last.seq + 1;
            let decided = events
                .iter()
                .filter(|event| event.event_type == "policy.decision");
            let records = decided.filter_map(|event| {
                let payload = event.payload.value().ok()?;
                serde_json::from_value::<DecisionRecord>(payload.get("record")?.clone()).ok()
            });
            let is_about_it = |record: &DecisionRecord| {
                let request = &record.request;
                *request.principal.name == *name
                    || (request.action == "exec.run" && request.resource.as_deref() == Some(name))
            };
            found.extend(records.filter(is_about_it));
        }
    }
}

/// What a person grants: everything that is declared, or what they say.
pub(super) fn granted(grant: &[String]) -> Vec<String> {
    match grant {
        [] => vec!["*".to_owned()],
        some => some.to_vec(),
    }
}

/// Refuses what is no capability.
pub(super) fn check_grant(grant: &[String]) -> Result<(), Failure> {
    for text in grant {
        Pattern::parse(text).map_err(|error| {
            let fix = "write a capability such as `kv.*` or `net.connect.example.com:443`";
            Failure::of(ExitCode::Usage, &error, fix)
        })?;
    }
    Ok(())
}

/// The capability that a decision was about.
pub(super) fn capability(record: &DecisionRecord) -> String {
    match &record.request.resource {
        Some(resource) => format!("{}.{resource}", record.request.action),
        None => record.request.action.clone(),
    }
}

/// A folder of this process; those of processes that are gone go too.
fn root(benches: &Path) -> std::io::Result<TempDir> {
    std::fs::create_dir_all(benches)?;
    for entry in std::fs::read_dir(benches)?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split('-').next());
        if !owner.is_some_and(|pid| Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{}-", std::process::id());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(4).tempdir_in(benches)
}
