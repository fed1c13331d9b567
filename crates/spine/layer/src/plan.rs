//! What merging a layer would do: plain data, decided in [`crate::planner`].
//!
//! A plan does nothing by itself and cannot be made up: only a held layer makes
//! one, and only [`crate::apply`] turns it into effects. Between the two, policy
//! is asked about every path, and a person may read it.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Digest;
use fluffy_base::id::LayerId;
use serde::Serialize;

use crate::difference::Summary;
use crate::error::FileError;
use crate::layer::ReadLayerError;
use crate::path::TreePath;
use crate::record::json;
use crate::refusal::Refusal;
use crate::step::Step;

/// Everything a merge would do, and what stands in its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MergePlan {
    pub(crate) layer: LayerId,
    pub(crate) steps: Vec<Step>,
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) left_out: BTreeSet<TreePath>,
    pub(crate) summary: Summary,
    /// Texts merged from both sides, by digest.
    #[serde(skip)]
    pub(crate) texts: BTreeMap<Digest, String>,
}

/// One path where the project and the layer do not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// Where.
    pub path: TreePath,
    /// Why.
    pub kind: ConflictKind,
    /// The text with markers where both sides changed it, to be read only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
}

/// Why the two sides do not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictKind {
    /// Both changed it, in ways that cannot be put together.
    BothChanged,
    /// Both added it, differently.
    BothAdded,
    /// The layer removed what the project changed.
    ChangedInProject,
    /// The layer changed what the project removed.
    RemovedInProject,
    /// The two differ, and what was there before is not known.
    BaseUnknown,
    /// Something else stands where its directory should be.
    DirectoryInTheWay,
    /// The directory to be removed holds something new.
    DirectoryNotEmpty,
}

/// One thing that policy must allow before the plan may be applied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Need {
    /// The action.
    pub action: &'static str,
    /// The path, as a rule sees it.
    pub resource: String,
}

/// Why no plan could be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The layer or the project cannot be read.
    #[error(transparent)]
    Read(#[from] ReadLayerError),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
}

impl MergePlan {
    /// The layer to be merged.
    #[must_use]
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// What would be done, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Where the two sides do not agree.
    #[must_use]
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// What is never merged.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// What stays in the layer.
    #[must_use]
    pub fn left_out(&self) -> &BTreeSet<TreePath> {
        &self.left_out
    }

    /// The layer's diff in numbers, for rules about `lines` and `files`.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Whether nothing stands in the way.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.conflicts.is_empty() && self.refusals.is_empty()
    }

    /// What policy must allow, each once.
    #[must_use]
    pub fn needs(&self) -> Vec<Need> {
        let need = |step: &Step| {
            Some(Need {
                action: step.action(),
                resource: step.path.resource()?,
            })
        };
        let needs: BTreeSet<Need> = self.steps.iter().filter_map(need).collect();
        needs.into_iter().collect()
    }

    /// What an approval of exactly this plan can be bound to.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&json(self).unwrap_or_default())
    }

    /// The same plan without these paths and all below them.
    ///
    /// They stay in the layer, which is then not retired by the merge.
    #[must_use]
    pub fn leave_out(mut self, paths: &[TreePath]) -> Self {
        let stays = |path: &TreePath| paths.iter().any(|out| path.is_within(out));
        self.steps.retain(|step| !stays(&step.path));
        self.conflicts.retain(|conflict| !stays(&conflict.path));
        self.refusals.retain(|refusal| !stays(&refusal.path));
        self.left_out.extend(paths.iter().cloned());
        self
    }
}
