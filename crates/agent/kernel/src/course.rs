//! The workflow of one session, tied to the files of its project.
//!
//! Reads what changed, asks the pure `workflow` crate what follows, and says
//! it as refusals and evidence. Changes nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fluffy_base::Digest;
use fluffy_layer::{HeldLayer, NodeKind, ReadLayerError, TreePath, View};
use fluffy_policy::word::State;
use fluffy_tools::native::{IgnoredPaths, own_files};
use fluffy_tools::refusal::{Refusal, RefusedBy, Way};
use fluffy_tools::runner::{Before, Bytes, Change, What};
use fluffy_workflow::evidence::ChangedFile;
use fluffy_workflow::gate::{self, Write};
use fluffy_workflow::machine::{Changes, Guard, Workflow};
use fluffy_workflow::project::detect::{
    DetectError, Layout, Listing, Overrides, detect, is_wanted,
};
use fluffy_workflow::project::parts::{Class, Part};

use crate::workshop::Workshop;

/// The largest file that a session can change.
const MAX_TEXT: u64 = 8 << 20;

/// The workflow as calls meet it.
#[derive(Debug, Clone)]
pub struct Course {
    /// Where it stands.
    pub workflow: Workflow,
    /// What the project's files are.
    pub layout: std::sync::Arc<Layout>,
}

/// One file, as it was and as it is or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Which.
    pub path: TreePath,
    /// Its content in the project.
    pub project: Option<Vec<u8>>,
    /// Its content before.
    pub before: Option<Vec<u8>>,
    /// Its content after.
    pub after: Option<Vec<u8>>,
}

/// What a layer held before a command ran.
#[derive(Debug)]
pub struct Guarded(BTreeMap<TreePath, Option<Vec<u8>>>);

/// Something that a command wrote and may not have.
#[derive(Debug)]
pub struct Violation {
    /// Where.
    pub path: TreePath,
    /// How to undo it.
    pub undo: Change,
    /// Why.
    pub refusal: Box<Refusal>,
}

/// Finds out what a project's files are and how its tests run.
///
/// # Errors
/// What the project says about its tests is unusable.
pub fn survey(view: &View, overrides: &Overrides) -> Result<Layout, DetectError> {
    let files = own_files(view).unwrap_or_default();
    let mut paths = Vec::new();
    let mut contents = BTreeMap::new();
    for path in &files {
        let Some(resource) = path.resource() else {
            continue;
        };
        if is_wanted(&resource)
            && let Ok(bytes) = view.read(path, MAX_TEXT)
            && let Ok(text) = String::from_utf8(bytes)
        {
            contents.insert(resource.clone(), text);
        }
        paths.push(resource);
    }
    let listing = Listing {
        paths: &paths,
        contents: &contents,
    };
    detect(&listing, overrides)
}

impl Course {
    /// Whether a file may become this now.
    ///
    /// # Errors
    /// The workflow's refusal.
    pub fn may_write(&self, tool: &str, written: &Written) -> Result<(), Box<Refusal>> {
        let Some(resource) = written.path.resource() else {
            // Policy denies what has no name that rules could match.
            return Ok(());
        };
        let texts = [&written.project, &written.before, &written.after];
        let [project, current, after] = texts.map(|bytes| text(bytes.as_deref()));
        let write = Write {
            path: &resource,
            project: project.as_deref(),
            current: current.as_deref(),
            after: after.as_deref(),
        };
        match gate::check(&self.workflow, &self.layout, &write) {
            Ok(_) => Ok(()),
            Err(refused) => Err(Box::new(Refusal {
                resource: Some(resource.clone()),
                writable: vec![refused.writable.to_string()],
                ways: refused.ways.iter().map(|way| way_of(*way)).collect(),
                ..Refusal::without_way(
                    tool,
                    RefusedBy::Workflow {
                        mode: refused.mode,
                        state: refused.state,
                        guard: name_of(refused.guard),
                        reason: format!("it wants that {}", refused.guard.meaning()),
                    },
                )
            })),
        }
    }

    /// Whether a command may run now.
    ///
    /// # Errors
    /// The workflow's refusal.
    pub fn may_run(&self, tool: &str) -> Result<(), Box<Refusal>> {
        match self.workflow.state() {
            State::Planning
            | State::TestWriting
            | State::CodeWriting
            | State::Exploring
            | State::RetroactiveTesting => Ok(()),
            state @ (State::Idle | State::Validating | State::Reviewing | State::Committing) => {
                Err(Box::new(Refusal::without_way(
                    tool,
                    RefusedBy::Workflow {
                        mode: self.workflow.mode(),
                        state,
                        guard: "in_place".to_owned(),
                        reason: "the kernel is at work; no command runs beside it".to_owned(),
                    },
                )))
            }
        }
    }

    /// Whether something may be changed outside of all layers, where nothing
    /// can be put back.
    ///
    /// # Errors
    /// The workflow's refusal.
    pub fn may_act(&self, tool: &str) -> Result<(), Box<Refusal>> {
        match self.workflow.state() {
            state @ State::Planning => Err(Box::new(Refusal::without_way(
                tool,
                RefusedBy::Workflow {
                    mode: self.workflow.mode(),
                    state,
                    guard: "in_place".to_owned(),
                    reason: "nothing is changed while planning; plan.complete ends it".to_owned(),
                },
            ))),
            _ => self.may_run(tool),
        }
    }

    /// Paths that no command may write now, whatever it is.
    #[must_use]
    pub fn protected(&self, workshop: &Workshop) -> Vec<PathBuf> {
        vec![workshop.premises().project.join(".git")]
    }

    /// Everything the layer changes, without what the project ignores.
    ///
    /// By the project's own ignore files: what a session adds to them hides
    /// nothing. What configures the runner is never hidden.
    ///
    /// # Errors
    /// The layer cannot be read.
    pub fn written(&self, held: &HeldLayer) -> Result<Vec<Written>, ReadLayerError> {
        let view = held.view()?;
        let project = View::of_project(held.layer().project())?;
        let mut ignored = IgnoredPaths::new(&project);
        let mut found = Vec::new();
        for change in held.changes()?.list {
            let kind = change.after.or(change.before).map(|shape| shape.kind);
            let kind = kind.unwrap_or(NodeKind::File);
            let hidden = !self.configures(&change.path) && ignored.contains(&change.path, kind);
            if kind == NodeKind::Directory || hidden {
                continue;
            }
            let before = content(&project, &change.path)?;
            found.push(Written {
                project: before.clone(),
                before,
                after: content(&view, &change.path)?,
                path: change.path,
            });
        }
        Ok(found)
    }

    fn configures(&self, path: &TreePath) -> bool {
        let resource = path.resource();
        let class = resource.map(|resource| self.layout.class(&resource));
        class == Some(Class::Whole(Part::Configuration))
    }

    /// What the layer holds now, to be compared after a command.
    ///
    /// # Errors
    /// The layer cannot be read.
    pub fn guard(&self, held: &HeldLayer) -> Result<Guarded, ReadLayerError> {
        let written = self.written(held)?;
        let entries = written.into_iter().map(|one| (one.path, one.after));
        Ok(Guarded(entries.collect()))
    }

    /// What was written since, and may not have been.
    ///
    /// # Errors
    /// The layer cannot be read.
    pub fn violations(
        &self,
        held: &HeldLayer,
        before: &Guarded,
    ) -> Result<Vec<Violation>, ReadLayerError> {
        let since = self.since(held, before)?;
        let mut found = Vec::new();
        let mut rest = Vec::new();
        for written in &since {
            match self.may_write("shell.exec", written) {
                Ok(()) => rest.push(written),
                Err(refusal) => found.push(Violation {
                    undo: undo(written),
                    path: written.path.clone(),
                    refusal,
                }),
            }
        }
        // What took the place of a directory has to go before what was in it
        // can come back.
        let in_the_way = rest.into_iter().filter_map(|written| {
            let below = |one: &&Violation| one.path.ancestors().any(|path| path == written.path);
            let refusal = found.iter().find(below)?.refusal.clone();
            Some(Violation {
                undo: undo(written),
                path: written.path.clone(),
                refusal,
            })
        });
        let in_the_way: Vec<Violation> = in_the_way.collect();
        found.extend(in_the_way);
        Ok(found)
    }

    fn since(&self, held: &HeldLayer, before: &Guarded) -> Result<Vec<Written>, ReadLayerError> {
        let now = self.written(held)?;
        let still: BTreeSet<&TreePath> = now.iter().map(|one| &one.path).collect();
        // What the layer no longer changes was put back to the project's own.
        let project = View::of_project(held.layer().project())?;
        let undone = before.0.iter().filter(|(path, _)| !still.contains(path));
        let undone = undone.map(|(path, earlier)| {
            let own = content(&project, path).ok().flatten();
            Written {
                path: path.clone(),
                project: own.clone(),
                before: earlier.clone(),
                after: own,
            }
        });
        let changed = now.iter().filter_map(|one| {
            let earlier = before.0.get(&one.path);
            let earlier = earlier.map_or_else(|| one.before.clone(), Clone::clone);
            (earlier != one.after).then(|| Written {
                path: one.path.clone(),
                project: one.project.clone(),
                before: earlier,
                after: one.after.clone(),
            })
        });
        Ok(undone.chain(changed).collect())
    }
}

/// What is at a path; a link is where it points to.
fn content(view: &View, path: &TreePath) -> Result<Option<Vec<u8>>, ReadLayerError> {
    let too_odd = |_| ReadLayerError::Damaged {
        path: path.to_string().into(),
    };
    Ok(match view.look(path)?.map(|seen| seen.kind) {
        None | Some(NodeKind::Directory) => None,
        Some(NodeKind::Symlink) => Some(view.link_target(path).map_err(too_odd)?),
        Some(_) => Some(view.read(path, MAX_TEXT).map_err(too_odd)?),
    })
}

/// The files as the workflow's evidence looks at them.
#[derive(Debug)]
pub struct Texts(Vec<(String, Option<String>, Option<String>)>);

impl Texts {
    /// The texts of these files.
    #[must_use]
    pub fn of(written: &[Written]) -> Self {
        let texts = written.iter().filter_map(|one| {
            let resource = one.path.resource()?;
            Some((
                resource,
                text(one.before.as_deref()),
                text(one.after.as_deref()),
            ))
        });
        Self(texts.collect())
    }

    /// Borrowed, with what each file is.
    #[must_use]
    pub fn changed<'a>(&'a self, layout: &Layout) -> Vec<ChangedFile<'a>> {
        let file =
            |(path, before, after): &'a (String, Option<String>, Option<String>)| ChangedFile {
                path,
                class: layout.class(path),
                before: before.as_deref(),
                after: after.as_deref(),
            };
        self.0.iter().map(file).collect()
    }

    /// What they change.
    #[must_use]
    pub fn changes(&self, layout: &Layout) -> Changes {
        Changes::of(&self.changed(layout))
    }
}

/// A guard as events name it.
fn name_of(guard: Guard) -> String {
    let value = serde_json::to_value(guard).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn way_of(way: gate::Way) -> Way {
    let by = way.sentence().to_owned();
    match way {
        gate::Way::CompletePlan => Way::Transition {
            to: State::TestWriting,
            by,
        },
        gate::Way::ShowRed => Way::Transition {
            to: State::CodeWriting,
            by,
        },
        gate::Way::ReopenTests => Way::Transition {
            to: State::TestWriting,
            by,
        },
        gate::Way::RequestExemption | gate::Way::SwitchToExplore => Way::Approval { question: by },
        gate::Way::SendTask
        | gate::Way::AwaitTests
        | gate::Way::RejectMerge
        | gate::Way::AwaitCommit
        | gate::Way::Submit => Way::Correct { how: by },
    }
}

/// Bytes as the workflow sees them: what is no text is told apart by digest.
fn text(bytes: Option<&[u8]>) -> Option<String> {
    let bytes = bytes?;
    Some(match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("bytes {}", Digest::of(bytes)),
    })
}

fn undo(written: &Written) -> Change {
    let what = match &written.before {
        Some(bytes) => What::Restore {
            content: Bytes(bytes.clone()),
            mode: None,
        },
        None => What::Remove,
    };
    Change {
        path: written.path.clone(),
        before: Before::Anything,
        what,
    }
}
