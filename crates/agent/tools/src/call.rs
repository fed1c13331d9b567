//! One call that fits its schema, and what it would do.
//!
//! Its paths are resources already (`/src/lib.rs`, `@host/etc/passwd`): what an
//! argument meant is settled once, in [`crate::paths`]. The kernel matches on
//! this to run a call; nothing here runs anything.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::ToolSource;
use fluffy_contract::tool::{Access, Area, CallPlan, Effect, Need, Touch};
use serde_json::Value;

use crate::arguments::{
    AskPath, Commit, CompletePlan, FindFiles, ListDirectory, ReadFile, RemoveFile,
    RequestExemption, RunCommand, RunTests, SearchText, SetMode, ShowDiff, ShowLog, TestIsWrong,
    Transition, WriteFile,
};
use crate::edit::{FileChange, FileChangeKind};

/// A call, ready to be decided about.
#[derive(Debug, Clone)]
pub enum Call {
    /// `fs.read`
    Read(ReadFile),
    /// `fs.list`
    List(ListDirectory),
    /// `fs.exists`
    Exists(AskPath),
    /// `search.grep`
    Grep(SearchText),
    /// `search.glob`
    Glob(FindFiles),
    /// `fs.write`
    Write(WriteFile),
    /// `fs.edit` with an exact replacement
    Replace(ReplaceInFile),
    /// `fs.edit` with a patch
    Patch(Vec<FileChange>),
    /// `fs.remove`
    Remove(RemoveFile),
    /// `shell.exec`
    Shell(RunCommand),
    /// `sandbox.exec`
    Debug(RunCommand),
    /// `test.run`
    Test(RunTests),
    /// `git.status`
    GitStatus,
    /// `git.diff`
    GitDiff(ShowDiff),
    /// `git.log`
    GitLog(ShowLog),
    /// `git.commit`
    GitCommit(Commit),
    /// `plan.complete`
    CompletePlan(CompletePlan),
    /// `workflow.request_exemption`
    RequestExemption(RequestExemption),
    /// `workflow.transition`
    Transition(Transition),
    /// `workflow.test_is_wrong`
    TestIsWrong(TestIsWrong),
    /// `workflow.set_mode`
    SetMode(SetMode),
    /// A tool of a plugin or a server
    Foreign(Box<ForeignCall>),
}

/// An exact replacement in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaceInFile {
    /// The file.
    pub path: String,
    /// What is replaced.
    pub old: String,
    /// By what.
    pub new: String,
    /// Whether it may be there once or is replaced everywhere.
    pub which: crate::edit::Which,
}

/// A call of a tool that somebody else brought.
#[derive(Clone)]
pub struct ForeignCall {
    /// Who brought it.
    pub source: Arc<dyn ToolSource>,
    /// What it is called there.
    pub tool: String,
    /// What policy calls it: `plugin.<source>.<verb>`.
    pub action: String,
    /// What it does to the world.
    pub effect: Effect,
    /// How long it may take.
    pub timeout: Duration,
    /// Its arguments, which fit its schema.
    pub arguments: Value,
}

impl fmt::Debug for ForeignCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignCall")
            .field("action", &self.action)
            .finish_non_exhaustive()
    }
}

/// The template in which commands run.
const TEMPLATE: &str = "code-executor";

impl Call {
    /// What must be allowed and what it touches. Nobody's word counts: of a
    /// foreign tool it follows from its name.
    pub(crate) fn plan(&self) -> CallPlan {
        match self {
            Self::Read(read) => reading("fs.read", &read.path),
            Self::List(list) => reading("fs.list", &list.path),
            Self::Exists(ask) => reading("fs.exists", &ask.path),
            Self::Grep(search) => reading("search.grep", &search.path),
            Self::Glob(find) => reading("search.glob", &find.path),
            Self::Write(write) => writing([("fs.write", write.path.as_str())]),
            Self::Replace(replace) => writing([("fs.edit", replace.path.as_str())]),
            Self::Patch(changes) => writing(changes.iter().flat_map(of_change)),
            Self::Remove(remove) => writing([("fs.remove", remove.path.as_str())]),
            Self::Shell(_) => anywhere(Access::Write, "shell.exec", None),
            Self::Debug(_) => anywhere(Access::Write, "sandbox.exec", Some(TEMPLATE)),
            Self::Test(_) => anywhere(Access::Write, "test.run", None),
            Self::GitStatus => anywhere(Access::Read, "git.status", None),
            Self::GitDiff(_) => anywhere(Access::Read, "git.diff", None),
            Self::GitLog(_) => anywhere(Access::Read, "git.log", None),
            Self::GitCommit(_) => anywhere(Access::Write, "git.commit", None),
            // Steps of the workflow decide what the calls after them may do.
            Self::CompletePlan(_) => anywhere(Access::Write, "plan.complete", None),
            Self::RequestExemption(request) => anywhere(
                Access::Write,
                "workflow.request_exemption",
                Some(request.category.as_str()),
            ),
            Self::Transition(transition) => anywhere(
                Access::Write,
                "workflow.transition",
                Some(transition.to.as_str()),
            ),
            Self::TestIsWrong(_) => {
                anywhere(Access::Write, "workflow.transition", Some("test_writing"))
            }
            Self::SetMode(set) => anywhere(Access::Write, "session.mode", Some(set.mode.as_str())),
            Self::Foreign(call) => match call.effect {
                // It sees no file of the project.
                Effect::Reads => CallPlan {
                    needs: vec![need(&call.action, None)],
                    touches: Vec::new(),
                },
                Effect::Acts => anywhere(Access::Write, &call.action, None),
            },
        }
    }
}

/// The actions that one file of a patch needs.
fn of_change(change: &FileChange) -> Vec<(&'static str, &str)> {
    let path = change.path.as_str();
    match &change.kind {
        FileChangeKind::Create { .. } => vec![("fs.write", path)],
        FileChangeKind::Delete => vec![("fs.remove", path)],
        FileChangeKind::Update { move_to, .. } => match move_to {
            // The old name goes, and what was in it can be read at the new one.
            Some(to) => vec![("fs.read", path), ("fs.remove", path), ("fs.write", to)],
            None => vec![("fs.edit", path)],
        },
    }
}

fn reading(action: &str, path: &str) -> CallPlan {
    CallPlan {
        needs: vec![need(action, Some(path))],
        touches: vec![touch(Access::Read, Area::Below(path.to_owned()))],
    }
}

fn writing<'a>(needs: impl IntoIterator<Item = (&'static str, &'a str)>) -> CallPlan {
    let (mut list, mut touches) = (Vec::new(), Vec::new());
    for (action, path) in needs {
        list.push(need(action, Some(path)));
        touches.push(touch(Access::Write, Area::Below(path.to_owned())));
    }
    CallPlan {
        needs: list,
        touches,
    }
}

fn anywhere(access: Access, action: &str, resource: Option<&str>) -> CallPlan {
    CallPlan {
        needs: vec![need(action, resource)],
        touches: vec![touch(access, Area::Everything)],
    }
}

fn need(action: &str, resource: Option<&str>) -> Need {
    Need {
        action: action.to_owned(),
        resource: resource.map(str::to_owned),
    }
}

const fn touch(access: Access, area: Area) -> Touch {
    Touch { access, area }
}
