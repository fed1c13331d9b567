//! A home and a project with the built `fluffy`, and copies of a prepared one.
//!
//! Knows where the state directory keeps what, because an attacker does.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fluffy_base::Digest;
use fluffy_test_kit::{Finished, TestContext};
use rusqlite::Connection;
use serde_json::Value;

/// A sandbox that a request can name, as real calls always do.
pub(crate) const SANDBOX: [&str; 6] = [
    "--sandbox",
    "sbx_00000000000000000000000001",
    "--size",
    "10",
    "--lines",
    "1",
];

/// Initialised, with six recorded decisions; copied, never changed.
static PREPARED: LazyLock<Saved> = LazyLock::new(|| {
    let site = Site::initialised();
    for (action, resource, code) in [
        ("fs.read", "/src/lib.rs", 0),
        ("fs.read", "/.env", 3),
        ("fs.write", "/Cargo.toml", 8),
        ("fs.write", "/src/lib.rs", 0),
        ("fs.write", "/src/main.rs", 0),
        ("net.connect", "paste.example.com:443", 3),
    ] {
        let finished = site.decide(action, resource);
        assert_eq!(finished.code, Some(code), "{}", finished.transcript());
    }
    site.save()
});

/// A site's files in memory: what a static holds is never dropped, and a
/// temporary folder would stay behind.
pub(crate) struct Saved {
    home: Vec<Entry>,
    project: Vec<Entry>,
}

/// One file or folder, by its path below the place it is copied from.
struct Entry {
    path: PathBuf,
    mode: fs::Permissions,
    /// None for a folder.
    bytes: Option<Vec<u8>>,
}

impl Saved {
    /// The files in a new home and project.
    pub(crate) fn site(&self) -> Site {
        let site = Site::empty();
        restore(&self.home, &site.context.home());
        restore(&self.project, &site.context.project());
        site
    }
}

/// One imagined user's home and project.
pub(crate) struct Site {
    pub(crate) context: TestContext,
}

impl Site {
    /// Nothing but an empty home and an empty project.
    pub(crate) fn empty() -> Self {
        let context = TestContext::new(env!("CARGO_BIN_EXE_fluffy")).unwrap();
        Self { context }
    }

    /// After `fluffy init`.
    pub(crate) fn initialised() -> Self {
        let site = Self::empty();
        site.succeeds(&["init"]);
        site
    }

    /// After `fluffy init` and six decisions: events 1 to 7.
    pub(crate) fn prepared() -> Self {
        PREPARED.site()
    }

    /// All files as they are now.
    pub(crate) fn save(&self) -> Saved {
        Saved {
            home: entries(&self.context.home()),
            project: entries(&self.context.project()),
        }
    }

    /// The same files in another home and project, as they are now.
    pub(crate) fn copy(&self) -> Self {
        self.save().site()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        self.context.run(arguments).unwrap()
    }

    /// Runs a command that must end with this code.
    pub(crate) fn ends(&self, code: i32, arguments: &[&str]) -> Finished {
        let finished = self.run(arguments);
        assert_eq!(
            finished.code,
            Some(code),
            "{arguments:?}\n{}",
            finished.transcript()
        );
        finished
    }

    /// The layers that are listed with these flags.
    pub(crate) fn layers(&self, flags: &[&str]) -> Vec<Value> {
        let words = [&["layer", "list", "--json"], flags].concat();
        let mut listed: Value = serde_json::from_str(&self.succeeds(&words)).unwrap();
        serde_json::from_value(listed["layers"].take()).unwrap()
    }

    /// Runs a command that must succeed; its standard output.
    pub(crate) fn succeeds(&self, arguments: &[&str]) -> String {
        self.ends(0, arguments).stdout
    }

    /// Runs a command with `--json`; the one value it prints.
    pub(crate) fn json(&self, code: i32, arguments: &[&str]) -> Value {
        let with_flag: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let finished = self.ends(code, &with_flag);
        serde_json::from_str(&finished.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{}", finished.transcript()))
    }

    /// Runs a command with `--json` that must fail; the error it prints.
    pub(crate) fn json_error(&self, code: i32, arguments: &[&str]) -> Value {
        let with_flag: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let finished = self.ends(code, &with_flag);
        let error: Value = serde_json::from_str(&finished.stderr)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{}", finished.transcript()));
        assert_eq!(error["error"]["exit"], code, "{error}");
        error["error"].clone()
    }

    /// Asks for a real decision of an agent in a sandbox.
    pub(crate) fn decide(&self, action: &str, resource: &str) -> Finished {
        let words = ["policy", "decide", action, resource];
        self.run(&words.into_iter().chain(SANDBOX).collect::<Vec<_>>())
    }

    /// Writes this policy into the project and applies it.
    pub(crate) fn apply(&self, policy: &str) {
        self.context.write(".fluffy/policy.yaml", policy).unwrap();
        self.succeeds(&["policy", "apply", "--yes"]);
    }

    pub(crate) fn project_file(&self, path: &str) -> PathBuf {
        self.context.project().join(path)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.context.home().join(".local/state/fluffy")
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.state().join("ledger")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.ledger().join("ledger.db")
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.state().join("checkpoints/ledger.checkpoints")
    }

    /// The folder of this project's pinned policies.
    pub(crate) fn pins(&self) -> PathBuf {
        let mut folders = fs::read_dir(self.state().join("pins")).unwrap();
        folders
            .next()
            .expect("a policy was applied")
            .unwrap()
            .path()
    }

    /// The public key that `fluffy init` prints.
    pub(crate) fn key(&self) -> String {
        let printed = self.json(0, &["init"]);
        printed["public_key"].as_str().unwrap().to_owned()
    }

    /// How many events the ledger holds.
    pub(crate) fn events(&self) -> u64 {
        self.json(0, &["audit", "verify"])["last_seq"]
            .as_u64()
            .unwrap()
    }

    /// The database, opened as whoever has its file can, without its guards.
    pub(crate) fn attacker(&self) -> Connection {
        let connection = Connection::open(self.database()).unwrap();
        connection
            .execute_batch(
                "DROP TRIGGER IF EXISTS events_are_never_updated;
                 DROP TRIGGER IF EXISTS events_are_only_pruned;
                 DROP INDEX IF EXISTS events_by_aggregate;",
            )
            .unwrap();
        connection
    }
}

/// Every file below a folder with its digest.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, Digest)> {
    let mut files: Vec<_> = files(folder)
        .into_iter()
        .map(|path| (path.clone(), Digest::of(&fs::read(path).unwrap())))
        .collect();
    files.sort();
    files
}

/// Every file below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Copies what is below a folder, with its modes.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    restore(&entries(from), to);
}

/// Everything below a folder, each folder before what is in it.
fn entries(folder: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let is_folder = path.is_dir();
            found.push(Entry {
                path: path.strip_prefix(folder).unwrap().to_owned(),
                mode: fs::metadata(&path).unwrap().permissions(),
                bytes: (!is_folder).then(|| fs::read(&path).unwrap()),
            });
            if is_folder {
                left.push(path);
            }
        }
    }
    found
}

fn restore(entries: &[Entry], to: &Path) {
    for entry in entries {
        let path = to.join(&entry.path);
        match &entry.bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::create_dir(&path).unwrap(),
        }
        fs::set_permissions(&path, entry.mode.clone()).unwrap();
    }
}
