//! Doing what a plan says, so that a crash at any point loses nothing.
//!
//! All steps are written down and synced before the first one is done. Each is
//! checked against the project right before and right after, so it can be
//! repeated, and a change by someone else is put back and reported, never
//! overwritten. How one step is done is in [`crate::perform`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_base::id::LayerId;
use fluffy_policy::Permit;
use serde::{Deserialize, Serialize};

use crate::base::{Base, BaseIndex};
use crate::copy::remove_tree;
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, LayerState, ReadLayerError};
use crate::path::TreePath;
use crate::perform::{Outcome, Performer, Trouble};
use crate::permit::{self, WrongPermit};
use crate::plan::MergePlan;
use crate::record::{json, parse_lines};
use crate::step::{Source, Step, StepKind, Wanted};
use crate::tree::{NodeKind, Tree};
use crate::write::{make_private_directory, read_record, sync_directory, write_record};

/// What says that a merge has begun, from the layer's directory.
pub(crate) const STEPS: &str = "merge/steps.jsonl";

const FOLDER: &str = "merge";
const STEPS_FILE: &str = "steps.jsonl";
const DONE_FILE: &str = "done.jsonl";
const TEXTS: &str = "texts";
const VERSION: u32 = 1;
const LIMIT: u64 = 1 << 30;

/// How many steps are done between two syncs of directories and marks.
const CHUNK: usize = 64;

/// What became of a merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MergeReport {
    /// The layer.
    pub layer: LayerId,
    /// What is in the project now, in order.
    pub applied: Vec<Applied>,
    /// What is not, and why; it is still in the layer.
    pub troubles: Vec<StepTrouble>,
    /// Whether all of it is merged, and the layer is gone for good.
    pub retired: bool,
}

/// One step that is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Where.
    pub path: TreePath,
    /// What.
    pub kind: StepKind,
}

/// One step that was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepTrouble {
    /// Where.
    pub path: TreePath,
    /// What should have been done.
    pub kind: StepKind,
    /// Why not.
    pub trouble: Trouble,
}

/// Why a merge did not end. If it had begun, [`HeldLayer::resume`] ends it.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The permit is for something else.
    #[error(transparent)]
    Permit(#[from] WrongPermit),
    /// The plan is another layer's.
    #[error("the plan is for layer `{plan}`, not for `{layer}`")]
    OtherLayer {
        /// The plan's.
        plan: LayerId,
        /// The one at hand.
        layer: LayerId,
    },
    /// The plan has conflicts or refusals.
    #[error("the plan has {conflicts} conflicts and {refusals} refusals")]
    Blocked {
        /// How many conflicts.
        conflicts: usize,
        /// How many refusals.
        refusals: usize,
    },
    /// The project changed after the plan was made; nothing was done.
    #[error("`{path}` changed in the project after the merge was planned")]
    Outdated {
        /// Where.
        path: TreePath,
    },
    /// There is no merge to resume.
    #[error("layer `{layer}` has no merge to resume")]
    NothingToResume {
        /// The layer.
        layer: LayerId,
    },
    /// The layer or the project cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// A file could not be used, for instance because the disk is full.
    #[error(transparent)]
    File(#[from] FileError),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Merge {
        version: u32,
        layer: LayerId,
        steps: usize,
        left_out: BTreeSet<TreePath>,
    },
    Step(Step),
}

/// A merge that has begun.
struct Journal {
    folder: PathBuf,
    steps: Vec<Step>,
    left_out: BTreeSet<TreePath>,
    done: BTreeSet<usize>,
}

impl HeldLayer {
    /// Merges the layer as planned; the permit is for [`permit::MERGE`].
    ///
    /// # Errors
    /// Nothing is done if the plan is blocked or outdated. A full disk or
    /// another failure on the way leaves a merge that can be resumed.
    pub fn apply(&mut self, permit: Permit, plan: &MergePlan) -> Result<MergeReport, ApplyError> {
        permit::check(&permit, permit::MERGE)?;
        let layer = self.layer().id();
        if plan.layer != layer {
            let plan = plan.layer;
            return Err(ApplyError::OtherLayer { plan, layer });
        }
        if !plan.is_clear() {
            return Err(ApplyError::Blocked {
                conflicts: plan.conflicts.len(),
                refusals: plan.refusals.len(),
            });
        }
        self.check_open()?;
        let project = self.project()?;
        check_before(&project, &plan.steps)?;
        let journal = self.begin(plan)?;
        self.run(journal, &project)
    }

    /// Ends a merge that was interrupted; the permit is for [`permit::MERGE`].
    ///
    /// # Errors
    /// There is none, or it cannot be ended yet, for instance because the disk
    /// is still full.
    pub fn resume(&mut self, permit: Permit) -> Result<MergeReport, ApplyError> {
        permit::check(&permit, permit::MERGE)?;
        if self.layer().state() != LayerState::Merging {
            let layer = self.layer().id();
            return Err(ApplyError::NothingToResume { layer });
        }
        let project = self.project()?;
        let journal = Journal::load(&self.layer().folder().join(FOLDER))?;
        self.run(journal, &project)
    }

    /// Writes down all that will be done, durably.
    fn begin(&self, plan: &MergePlan) -> Result<Journal, FileError> {
        let folder = self.layer().folder().join(FOLDER);
        // What an earlier attempt left that never got to its first step.
        remove_tree(&folder)?;
        make_private_directory(&folder.join(TEXTS))?;
        let written = write_journal(&folder, plan);
        if written.is_err() {
            // Nothing has begun yet, so nothing is to be resumed.
            let _ = remove_tree(&folder);
        }
        written?;
        Ok(Journal {
            folder,
            steps: plan.steps.clone(),
            left_out: plan.left_out.clone(),
            done: BTreeSet::new(),
        })
    }

    fn run(&mut self, mut journal: Journal, project: &Tree) -> Result<MergeReport, ApplyError> {
        let content = self.content()?;
        let texts = journal.folder.join(TEXTS);
        let texts = Tree::open(&texts).at("open", &texts)?;
        let performer = Performer {
            layer: self.layer().id(),
            project,
            content: &content,
            texts: &texts,
        };
        let troubles = journal.perform_all(&performer)?;
        let applied: Vec<Applied> = journal
            .steps
            .iter()
            .enumerate()
            .filter(|(number, _)| journal.done.contains(number))
            .map(|(_, step)| Applied {
                path: step.path.clone(),
                kind: step.kind(),
            })
            .collect();
        let retired = troubles.is_empty() && journal.left_out.is_empty();
        if retired {
            self.retire()?;
        } else {
            self.go_on(&journal, project)?;
        }
        Ok(MergeReport {
            layer: self.layer().id(),
            applied,
            troubles,
            retired,
        })
    }

    /// Closes a merge after which something is still in the layer.
    fn go_on(&self, journal: &Journal, project: &Tree) -> Result<(), ApplyError> {
        let state = self.layer().state_folder();
        let mut index = BaseIndex::load(&state)?;
        for (number, step) in journal.steps.iter().enumerate() {
            if journal.done.contains(&number)
                && let Some(base) = base_after(project, step)?
            {
                index.entries.insert(step.path.clone(), base);
            }
        }
        index.save(&state)?;
        // The steps first: without them there is no merge to resume.
        let steps = journal.folder.join(STEPS_FILE);
        std::fs::remove_file(&steps).at("remove", &steps)?;
        sync_directory(&journal.folder)?;
        Ok(remove_tree(&journal.folder)?)
    }
}

impl Journal {
    fn load(folder: &Path) -> Result<Self, ReadLayerError> {
        let path = folder.join(STEPS_FILE);
        let damaged = || ReadLayerError::Damaged { path: path.clone() };
        let bytes = read_record(&path, LIMIT)?.ok_or_else(damaged)?;
        let mut lines = parse_lines(&bytes).ok_or_else(damaged)?.into_iter();
        let Some(Line::Merge {
            version: VERSION,
            steps: count,
            left_out,
            ..
        }) = lines.next()
        else {
            return Err(damaged());
        };
        let step = |line| match line {
            Line::Step(step) => Some(step),
            Line::Merge { .. } => None,
        };
        let steps: Vec<Step> = lines.map(step).collect::<Option<_>>().ok_or_else(damaged)?;
        if steps.len() != count {
            return Err(damaged());
        }
        Ok(Self {
            folder: folder.to_owned(),
            steps,
            left_out,
            done: read_done(&folder.join(DONE_FILE))?,
        })
    }

    /// Does every step that is not done, in order.
    fn perform_all(&mut self, performer: &Performer<'_>) -> Result<Vec<StepTrouble>, FileError> {
        let path = self.folder.join(DONE_FILE);
        let marks = File::options().create(true).append(true).open(&path);
        let mut marks = marks.at("open", &path)?;
        let mut troubles = Vec::new();
        let (mut unsynced, mut fresh) = (BTreeSet::new(), Vec::new());
        // The last state each path will have, for paths with two steps.
        let last: BTreeMap<&TreePath, &Wanted> = self
            .steps
            .iter()
            .map(|step| (&step.path, &step.after))
            .collect();
        for (number, step) in self.steps.iter().enumerate() {
            if self.done.contains(&number) {
                continue;
            }
            let finally = last.get(&step.path).copied().unwrap_or(&step.after);
            let outcome = match performer.perform(number, step, finally) {
                // Repeating it would not help, and the rest can still be done.
                Err(error) if is_denied(&error) => Outcome::Not(Trouble::Denied),
                other => other?,
            };
            match outcome {
                Outcome::Done => {
                    self.done.insert(number);
                    fresh.push(number);
                    unsynced.insert(step.path.parent());
                }
                Outcome::Not(trouble) => troubles.push(StepTrouble {
                    path: step.path.clone(),
                    kind: step.kind(),
                    trouble,
                }),
            }
            if fresh.len() >= CHUNK {
                mark_done(&mut marks, &path, performer, &mut unsynced, &mut fresh)?;
            }
        }
        mark_done(&mut marks, &path, performer, &mut unsynced, &mut fresh)?;
        Ok(troubles)
    }
}

fn is_denied(error: &FileError) -> bool {
    matches!(
        error.reason().kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Makes steps durable, and only then says that they are done.
fn mark_done(
    marks: &mut File,
    shown: &Path,
    performer: &Performer<'_>,
    unsynced: &mut BTreeSet<Option<TreePath>>,
    fresh: &mut Vec<usize>,
) -> Result<(), FileError> {
    for directory in std::mem::take(unsynced) {
        performer.sync(directory.as_ref())?;
    }
    let mut lines = Vec::new();
    for number in fresh.drain(..) {
        lines.extend(json(&number).at("write", shown)?);
    }
    marks
        .write_all(&lines)
        .and_then(|()| marks.sync_data())
        .at("write", shown)
}

/// The marks of steps; a last line cut off by a crash does not count.
fn read_done(path: &Path) -> Result<BTreeSet<usize>, FileError> {
    let bytes = read_record(path, LIMIT)?.unwrap_or_default();
    let whole = bytes.split_inclusive(|byte| *byte == b'\n');
    let number = |line: &[u8]| serde_json::from_slice(line.strip_suffix(b"\n")?).ok();
    Ok(whole.filter_map(number).collect())
}

fn write_journal(folder: &Path, plan: &MergePlan) -> Result<(), FileError> {
    let texts = folder.join(TEXTS);
    for (digest, text) in &plan.texts {
        write_record(&texts, &digest.to_string(), text.as_bytes())?;
    }
    let shown = folder.join(STEPS_FILE);
    let mut bytes = json(&Line::Merge {
        version: VERSION,
        layer: plan.layer,
        steps: plan.steps.len(),
        left_out: plan.left_out.clone(),
    })
    .at("write", &shown)?;
    for step in &plan.steps {
        bytes.extend(json(&Line::Step(step.clone())).at("write", &shown)?);
    }
    write_record(folder, STEPS_FILE, &bytes)?;
    let layer = folder.parent().unwrap_or(folder);
    sync_directory(layer)
}

/// Refuses a plan whose project has changed since.
fn check_before(project: &Tree, steps: &[Step]) -> Result<(), ApplyError> {
    let mut seen = BTreeSet::new();
    for step in steps {
        // A path's second step starts from what its first one leaves.
        if !seen.insert(&step.path) {
            continue;
        }
        let expected = step.before.is_at(project, &step.path);
        if !expected.within("read", project, &step.path)? {
            let path = step.path.clone();
            return Err(ApplyError::Outdated { path });
        }
    }
    Ok(())
}

/// What the project has after a step, as the new base; nothing if the old base
/// is still the right one to compare with.
fn base_after(project: &Tree, step: &Step) -> Result<Option<Base>, FileError> {
    let digest: Digest = match &step.after {
        // Both sides' changes: seen from the old base, the layer's are in it.
        Wanted::File {
            from: Source::Merged,
            ..
        } => return Ok(None),
        Wanted::File { digest, .. } => *digest,
        Wanted::Absent => return Ok(Some(Base::Absent)),
        Wanted::Symlink { target } => {
            let target = target.clone();
            return Ok(Some(Base::Symlink { target }));
        }
        Wanted::Directory { mode } => return Ok(Some(Base::Directory { mode: *mode })),
    };
    let node = project.node(&step.path);
    let node = node.within("read", project, &step.path)?;
    Ok(node
        .filter(|node| node.kind == NodeKind::File)
        .map(|node| Base::File {
            mode: node.mode,
            identity: node.identity,
            digest: Some(digest),
        }))
}
