//! The arguments of every tool, as the model sends them.
//!
//! The comments here are what the model reads in the schema. A field that does
//! not exist is an error, not ignored: a misspelt option that silently does
//! nothing is worse than a call that must be made again.

use fluffy_policy::word::{Category, Mode, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Arguments of `fs.read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// The file, relative to the project.
    pub path: String,
    /// The first line to show, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_line: Option<u64>,
    /// How many lines to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_count: Option<u64>,
}

/// Arguments of `fs.list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListDirectory {
    /// The directory, relative to the project; the project itself if left out.
    #[serde(default)]
    pub path: String,
    /// How many levels to show, 1 to 5; from 2 on without ignored files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u8>,
}

/// Arguments of `fs.exists`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AskPath {
    /// The path, relative to the project.
    pub path: String,
}

/// Arguments of `search.grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchText {
    /// A regular expression in Rust's syntax.
    pub pattern: String,
    /// The directory or file to search; the whole project if left out.
    #[serde(default)]
    pub path: String,
    /// Only files that match one of these globs, e.g. `*.rs`; `!` excludes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub globs: Vec<String>,
    /// Take the pattern as plain text.
    #[serde(default)]
    pub literal: bool,
    /// Ignore case.
    #[serde(default)]
    pub ignore_case: bool,
    /// Search hidden files too.
    #[serde(default)]
    pub hidden: bool,
    /// Lines to show around each match, up to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u8>,
    /// What to show.
    #[serde(default)]
    pub show: Show,
    /// The most matches to show, up to 1000; 200 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
}

/// Arguments of `search.glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindFiles {
    /// A glob such as `src/**/*.rs`; without a `/` it matches names at any depth.
    pub pattern: String,
    /// The directory to search; the whole project if left out.
    #[serde(default)]
    pub path: String,
    /// Find hidden files too.
    #[serde(default)]
    pub hidden: bool,
    /// The most files to show, up to 1000; 200 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
}

/// Arguments of `fs.write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// The file, relative to the project.
    pub path: String,
    /// The whole new content.
    pub content: String,
}

/// Arguments of `fs.edit`: `path`, `old` and `new`, or `patch` alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// The file, relative to the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The exact text to replace; it must be in the file once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// What to put there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// Replace every occurrence of `old`.
    #[serde(default)]
    pub replace_all: bool,
    /// Instead of the others: a patch in the `*** Begin Patch` form or a unified diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// Arguments of `fs.remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveFile {
    /// The file, relative to the project.
    pub path: String,
}

/// Arguments of `shell.exec` and `sandbox.exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// The command line, run by `sh` in the sandbox.
    pub command: String,
    /// Where to run it, relative to the project.
    #[serde(default)]
    pub directory: String,
    /// The most seconds it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

/// Arguments of `test.run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunTests {
    /// Only these tests; all of them if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<String>,
}

/// Arguments of `git.diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowDiff {
    /// Only below this path.
    #[serde(default)]
    pub path: String,
}

/// Arguments of `git.log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowLog {
    /// Only what touched this path.
    #[serde(default)]
    pub path: String,
    /// How many commits, up to 100; 20 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u8>,
}

/// Arguments of `git.commit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// The message: a short line, then an empty one and the rest.
    pub message: String,
}

/// Arguments of tools that take none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Arguments of `plan.complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletePlan {
    /// What will be done, in a sentence or two.
    pub summary: String,
    /// What kind of change it is.
    #[serde(default)]
    pub kind: PlanKind,
    /// The steps, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// The files that will change, as far as known; the result names the tests that touch them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// Arguments of `workflow.request_exemption`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestExemption {
    /// Why no test comes first.
    pub category: Category,
    /// The files it is about, relative to the project.
    pub paths: Vec<String>,
    /// Why, for the person who decides.
    pub reason: String,
}

/// Arguments of `workflow.transition`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transition {
    /// The state to move to.
    pub to: State,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// Arguments of `workflow.test_is_wrong`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestIsWrong {
    /// The names of the tests.
    pub tests: Vec<String>,
    /// What is wrong with them, for the person who decides.
    pub reason: String,
}

/// Arguments of `workflow.set_mode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetMode {
    /// The mode to switch to.
    pub mode: Mode,
    /// Why, for the person who decides.
    #[serde(default)]
    pub reason: String,
}

/// What a search shows of its matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    /// The lines.
    #[default]
    Lines,
    /// Only the names of the files.
    Files,
    /// How many there are in each file.
    Counts,
}

/// What kind of change a plan is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanKind {
    /// Behaviour is added or changed: a failing test comes first.
    #[default]
    Change,
    /// Behaviour stays: the tests are frozen and stay green.
    Refactor,
}
