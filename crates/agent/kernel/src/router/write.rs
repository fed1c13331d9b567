//! Changes of files: worked out here, judged, and made inside a sandbox.
//!
//! The workflow looks at what a file would become, not at what the call is
//! named. A command can write anything, so what it wrote is looked at after it
//! ended, and what it may not have written is put back.

use fluffy_base::Digest;
use fluffy_contract::isolation::{Command, Exit};
use fluffy_contract::tool::{Need, ToolOutcome, ToolOutput};
use fluffy_layer::{HeldLayer, TreePath, View};
use fluffy_policy::Permit;
use fluffy_tools::edit;
use fluffy_tools::refusal::{Refusal, RefusedBy};
use fluffy_tools::registry::Checked;
use fluffy_tools::runner::{
    self, ARGUMENTS, Answer, Before, Bytes, Change, Changed, Request, What, read_frame, write_frame,
};

use super::{RouteError, Router, Sizes, failed};
use crate::course::{Guarded, Written};
use crate::workshop::Booth;

/// The largest file that is changed as text.
const MAX_FILE: u64 = 16 << 20;

impl Router<'_> {
    /// A call that changes files.
    pub(super) async fn write(&self, checked: &Checked) -> Result<ToolOutput, RouteError> {
        let view = match self.held.view() {
            Ok(view) => view,
            Err(error) => return Ok(failed(error.to_string())),
        };
        let project = match View::of_project(self.held.layer().project()) {
            Ok(project) => project,
            Err(error) => return Ok(failed(error.to_string())),
        };
        let known = |path: &TreePath| match view.read(path, MAX_FILE) {
            Ok(bytes) => Before::Content(Digest::of(&bytes)),
            Err(_) => Before::Anything,
        };
        let request = match Request::of(&checked.call, known) {
            Ok(request) => request,
            Err(error) => {
                // Policy has the word about what is not the project's.
                drop(self.all(self.desk, checked).await?);
                return Ok(failed(error.to_string()));
            }
        };
        let mut sizes = Sizes::new();
        for change in &request.changes {
            match written(&view, &project, change) {
                Ok(all) => {
                    for one in all {
                        self.course
                            .may_write(&checked.tool, &one)
                            .map_err(RouteError::Refused)?;
                        let after = one.after.unwrap_or_default();
                        let lines = after.iter().filter(|byte| **byte == b'\n').count();
                        let size = (after.len() as u64, lines as u64);
                        sizes.extend(one.path.resource().map(|path| (path, size)));
                    }
                }
                Err(problem) => return Ok(failed(problem)),
            }
        }
        let booth = self.open(&checked.tool, Vec::new()).await?;
        let desk = self.desk.inside(booth.id());
        let done = match self.all_sized(&desk, checked, &sizes).await {
            Ok(permit) => self.in_booth(&booth, permit, &request).await,
            Err(refused) => Err(refused),
        };
        // Our own program ran in it and has ended.
        booth.close_soon();
        done
    }

    async fn in_booth(
        &self,
        booth: &Booth,
        permit: Permit,
        request: &Request,
    ) -> Result<ToolOutput, RouteError> {
        let command = match self.runner() {
            Ok(command) => command,
            Err(error) => return Ok(failed(error)),
        };
        let mut input = Vec::new();
        if let Err(error) = write_frame(&mut input, request) {
            return Ok(failed(error.to_string()));
        }
        let finished = match booth.run(permit, command, &input).await {
            Ok(finished) => finished,
            Err(error) => return Ok(failed(error.to_string())),
        };
        match read_frame::<Answer>(finished.stdout.as_slice()) {
            Ok(answer) => Ok(told(answer)),
            Err(_) => {
                let said = String::from_utf8_lossy(&finished.stderr);
                let end = match finished.exit {
                    Exit::Code { code } => format!("exit code {code}"),
                    other => format!("{other:?}"),
                };
                Ok(failed(format!("the change was not made ({end}): {said}")))
            }
        }
    }

    /// Puts files into a layer as they are in the session's own.
    pub(crate) async fn fill(
        &self,
        layer: &HeldLayer,
        written: &[Written],
    ) -> Result<(), RouteError> {
        const TOOL: &str = "test.run";
        let need = |action: &str| Need {
            action: action.to_owned(),
            resource: None,
        };
        let wrong = |reason: String| -> RouteError {
            Refusal::without_way(TOOL, RefusedBy::Sandbox { reason }).into()
        };
        let view = self.held.view().map_err(|error| wrong(error.to_string()))?;
        // A few at a time: a message has a limit.
        for some in written.chunks(8) {
            let changes = some.iter().map(|one| Change {
                path: one.path.clone(),
                before: Before::Anything,
                what: match &one.after {
                    None => What::Remove,
                    Some(bytes) => What::Restore {
                        content: Bytes(bytes.clone()),
                        mode: mode(&view, &one.path),
                    },
                },
            });
            let request = Request {
                version: runner::VERSION,
                changes: changes.collect(),
            };
            let booth = self.open_over(TOOL, layer, Vec::new()).await?;
            let desk = self.desk.inside(booth.id());
            let done = match self.permit(&desk, TOOL, &need("test.run")).await {
                Ok(permit) => self.in_booth(&booth, permit, &request).await,
                Err(refused) => Err(refused),
            };
            booth.close().await;
            let done = done?;
            if done.outcome == ToolOutcome::Failed {
                return Err(wrong(done.content));
            }
        }
        Ok(())
    }

    fn runner(&self) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let own = own.to_string_lossy().into_owned();
        let words = std::iter::once(own).chain(ARGUMENTS.map(str::to_owned));
        Ok(Command::new(words))
    }

    /// Takes back what a command may not have written, and says so.
    pub(crate) async fn put_back(
        &self,
        checked: &Checked,
        before: &Guarded,
        output: ToolOutput,
    ) -> Result<ToolOutput, RouteError> {
        let tool = checked.tool.as_str();
        let wrong = self.course.violations(self.held, before);
        let wrong = wrong.map_err(|error| super::refused_by_layer(tool, &error))?;
        if wrong.is_empty() {
            return Ok(output);
        }
        let changes = wrong.iter().map(|one| one.undo.clone()).collect();
        let request = Request {
            version: runner::VERSION,
            changes,
        };
        let booth = self.open(tool, Vec::new()).await?;
        let permit = self.all(&self.desk.inside(booth.id()), checked).await;
        let undone = match permit {
            Ok(permit) => self.in_booth(&booth, permit, &request).await,
            Err(refused) => Err(refused),
        };
        booth.close().await;
        let undone = undone?;
        let paths: Vec<String> = wrong.iter().map(|one| one.path.to_string()).collect();
        let reason = match undone.outcome {
            ToolOutcome::Done => format!("it wrote {}, which was put back", paths.join(", ")),
            ToolOutcome::Failed => {
                let paths = paths.join(", ");
                format!(
                    "it wrote {paths}, which could not be put back: {}",
                    undone.content
                )
            }
        };
        let first = wrong.into_iter().next().map(|one| one.refusal);
        let refusal = first.map_or_else(
            || {
                let reason = reason.clone();
                Refusal::without_way(tool, RefusedBy::Sandbox { reason })
            },
            |refusal| *refusal,
        );
        let text = format!(
            "{}\n{reason}.\nWhat the command printed:\n{}",
            refusal.for_model(),
            output.content
        );
        Ok(failed(text))
    }
}

/// The permissions of a file, as far as a project has any.
fn mode(view: &View, path: &TreePath) -> Option<u32> {
    let seen = view.look(path).ok()??;
    Some(seen.mode & 0o777)
}

/// What a change makes of its file, or of two where one is moved.
fn written(view: &View, project: &View, change: &Change) -> Result<Vec<Written>, String> {
    let before = view.read(&change.path, MAX_FILE).ok();
    let text = || match &before {
        Some(bytes) => {
            String::from_utf8(bytes.clone()).map_err(|_| format!("`{}` is no text", change.path))
        }
        None => Err(format!("there is no `{}`", change.path)),
    };
    let here = |after: Option<Vec<u8>>| Written {
        path: change.path.clone(),
        project: project.read(&change.path, MAX_FILE).ok(),
        before: before.clone(),
        after,
    };
    Ok(match &change.what {
        What::Write { content } => vec![here(Some(content.clone().into_bytes()))],
        What::Remove => vec![here(None)],
        What::Restore { content, .. } => vec![here(Some(content.0.clone()))],
        What::Replace { old, new, which } => {
            let replaced = edit::replace(&text()?, old, new, *which);
            let replaced = replaced.map_err(|error| error.to_string())?;
            vec![here(Some(replaced.text.into_bytes()))]
        }
        What::Patch { move_to, hunks } => {
            let applied = edit::apply(&text()?, hunks).map_err(|error| error.to_string())?;
            let after = applied.text.into_bytes();
            match move_to {
                None => vec![here(Some(after))],
                Some(target) => vec![
                    here(None),
                    Written {
                        path: target.clone(),
                        project: project.read(target, MAX_FILE).ok(),
                        before: view.read(target, MAX_FILE).ok(),
                        after: Some(after),
                    },
                ],
            }
        }
    })
}

fn told(answer: Answer) -> ToolOutput {
    let line = |changed: &Changed| {
        let what = match (&changed.before, &changed.after) {
            (None, Some(_)) => "created",
            (Some(_), None) => "removed",
            _ => "changed",
        };
        format!("{what} {} ({} bytes)\n", changed.path, changed.size)
    };
    match answer {
        Answer::Done { changed } => ToolOutput {
            content: changed.iter().map(line).collect(),
            outcome: ToolOutcome::Done,
        },
        Answer::Refused { problem, .. } => failed(problem),
        Answer::Broken {
            changed,
            path,
            problem,
        } => {
            let done: String = changed.iter().map(line).collect();
            failed(format!("{done}then `{path}` failed: {problem}"))
        }
    }
}
