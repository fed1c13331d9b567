//! What the model is told along with a result: which tests touch a file.
//!
//! Told once for each file: when the session has not changed it yet. Told or
//! not follows from the layer alone, so a session that is resumed or played
//! again says the same.

use std::borrow::Cow;
use std::sync::Arc;

use fluffy_contract::tool::{ToolOutcome, ToolOutput};
use fluffy_layer::{TreePath, View};
use fluffy_policy::path::normalise;
use fluffy_policy::word::State;
use fluffy_tools::call::Call;
use fluffy_tools::registry::Checked;

use super::Router;
use crate::touching::{Look, is_source};

/// The largest file that is compared with the project's own.
const MAX_FILE: u64 = 8 << 20;

impl Router<'_> {
    /// The tests that touch these files, as a text for the model.
    pub(crate) async fn touching(&self, changing: &[String]) -> String {
        let normal = |path: &String| normalise(path).ok().map(Cow::into_owned);
        let changing: Vec<String> = changing.iter().filter_map(normal).collect();
        if changing.is_empty() {
            return String::new();
        }
        let Ok(view) = self.held.view() else {
            return String::new();
        };
        let unreached = changing
            .iter()
            .filter(|path| self.unreached.contains(*path));
        let unreached: Vec<String> = unreached.cloned().collect();
        let look = Look {
            view,
            unreached,
            tests: Arc::clone(self.tests),
            layout: Arc::clone(&self.course.layout),
            desk: self.desk.clone(),
            context: self.context.clone(),
        };
        // Many files are read; that must not hold up anybody else.
        let told = tokio::task::spawn_blocking(move || look.tell(&changing)).await;
        told.unwrap_or_default()
    }

    /// Source that a call is about to change and the session has not yet.
    pub(super) fn first_changes(&self, checked: &Checked) -> Vec<String> {
        let changes = matches!(
            checked.call,
            Call::Write(_) | Call::Replace(_) | Call::Patch(_) | Call::Remove(_)
        );
        let writes = matches!(
            self.course.workflow.state(),
            State::CodeWriting | State::Exploring
        );
        if !changes || !writes {
            return Vec::new();
        }
        let (Ok(view), Ok(project)) = (
            self.held.view(),
            View::of_project(self.held.layer().project()),
        ) else {
            return Vec::new();
        };
        let first = |resource: &&String| {
            let path = TreePath::parse(resource.trim_start_matches('/').as_bytes());
            let is_same = |path: TreePath| {
                view.read(&path, MAX_FILE).ok() == project.read(&path, MAX_FILE).ok()
            };
            is_source(&self.course.layout, resource) && path.is_ok_and(is_same)
        };
        let needs = checked.plan.needs.iter();
        let mut found: Vec<String> = needs
            .filter_map(|need| need.resource.as_ref())
            .filter(first)
            .cloned()
            .collect();
        found.sort();
        found.dedup();
        found
    }

    /// What a call that was made has to say beyond its result.
    pub(super) async fn beyond(&self, output: &ToolOutput, first: &[String]) -> String {
        match output.outcome {
            ToolOutcome::Done => self.touching(first).await,
            ToolOutcome::Failed => String::new(),
        }
    }
}
