//! A project, a store and permits; commands that write as a sandbox would.
//!
//! Never holds expectations: those belong into the tests themselves.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fluffy_layer::{
    HeldLayer, LayerDirectories, LayerKind, LayerStore, MergePlan, MergeReport, TreePath,
    permit as permits,
};
use fluffy_policy::Permit;
pub(crate) use fluffy_test_kit::permit;
use tempfile::TempDir;

/// A project and a store that are gone after the test.
pub(crate) struct Stage {
    home: TempDir,
    pub(crate) store: LayerStore,
}

impl Stage {
    /// A stage whose project the script fills.
    pub(crate) fn new(script: &str) -> Self {
        Self::within(TempDir::new().unwrap(), script)
    }

    /// The same in a directory that is there already.
    pub(crate) fn within(home: TempDir, script: &str) -> Self {
        fs::create_dir(home.path().join("project")).unwrap();
        fs::create_dir(home.path().join("mounted")).unwrap();
        let store = LayerStore::open(&home.path().join("state")).unwrap();
        let stage = Self { home, store };
        stage.in_project(script);
        stage
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.home.path().join("project")
    }

    pub(crate) fn create(&self, kind: LayerKind) -> HeldLayer {
        let created = self.store.create(
            permit(permits::CREATE, Some("code-executor")),
            &self.project(),
            kind,
        );
        created.unwrap()
    }

    /// Changes the project itself, as a person would.
    pub(crate) fn in_project(&self, script: &str) {
        run(Command::new("sh")
            .args(["-euc", script])
            .current_dir(self.project()));
    }

    /// Changes the layer, as a command in a sandbox would, and settles it.
    pub(crate) fn in_layer(&self, held: &HeldLayer, script: &str) {
        self.in_layer_unsettled(held, script);
        held.settle().unwrap();
    }

    pub(crate) fn in_layer_unsettled(&self, held: &HeldLayer, script: &str) {
        match held.prepare_mount().unwrap() {
            LayerDirectories::Copy { tree } => {
                run(Command::new("sh").args(["-euc", script]).current_dir(tree));
            }
            LayerDirectories::Overlay { upper, work } => {
                let mounted = self.home.path().join("mounted");
                let options = format!(
                    "userxattr,volatile,lowerdir={},upperdir={},workdir={}",
                    self.project().display(),
                    upper.display(),
                    work.display()
                );
                let mount = "mount -t overlay overlay -o \"$1\" \"$2\" && cd \"$2\" && \
                             exec sh -euc \"$3\"";
                run(Command::new("unshare")
                    .args([
                        "--user",
                        "--map-root-user",
                        "--mount",
                        "sh",
                        "-euc",
                        mount,
                        "sh",
                    ])
                    .arg(options)
                    .arg(mounted)
                    .arg(script));
            }
        }
    }

    /// What is in the project, with modes: the whole truth for a test.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        files_in(&self.project())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Some tests, and the kernel, leave directories that cannot be entered.
        let home = self.home.path();
        let _ = Command::new("chmod")
            .args(["-R", "u+rwX"])
            .arg(home)
            .output();
    }
}

/// The kinds of layer this machine can have.
pub(crate) fn kinds() -> Vec<LayerKind> {
    if can_overlay() {
        vec![LayerKind::Overlay, LayerKind::Copy]
    } else {
        fluffy_test_kit::record_skip(
            "layers of kind overlay",
            "this machine lets nobody mount an overlay in a user namespace",
        );
        vec![LayerKind::Copy]
    }
}

pub(crate) fn can_overlay() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let home = TempDir::new().unwrap();
        let script = "mkdir l u w m && mount -t overlay overlay \
                      -o userxattr,lowerdir=l,upperdir=u,workdir=w m";
        let status = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-euc", script])
            .current_dir(home.path())
            .output();
        status.is_ok_and(|output| output.status.success())
    })
}

/// Every path below a directory with its kind, mode and content.
pub(crate) fn files_in(root: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mode = metadata.permissions().mode() & 0o777;
            let shown = if metadata.is_dir() {
                open.push(path);
                format!("directory {mode:o}")
            } else if metadata.is_symlink() {
                format!("link {}", fs::read_link(&path).unwrap().display())
            } else {
                let content = fs::read(&path).unwrap();
                format!("{mode:o} {}", content.escape_ascii())
            };
            files.insert(name, shown);
        }
    }
    files
}

pub(crate) fn merge_permit() -> Permit {
    permit(permits::MERGE, None)
}

/// Plans and applies, expecting nothing in the way.
pub(crate) fn merge(mut held: HeldLayer) -> MergeReport {
    let plan = clear_plan(&held);
    held.apply(merge_permit(), &plan).unwrap()
}

pub(crate) fn clear_plan(held: &HeldLayer) -> MergePlan {
    let plan = held.plan_merge().unwrap();
    assert!(
        plan.is_clear(),
        "{:#?}\n{:#?}",
        plan.conflicts(),
        plan.refusals()
    );
    plan
}

pub(crate) fn path(text: &str) -> TreePath {
    TreePath::parse(text.as_bytes()).unwrap()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
