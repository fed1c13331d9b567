//! What sandboxes wrote: kept apart, compared, undone, and merged without loss.
//!
//! A [`LayerStore`] holds layers. A layer over a project is either the upper
//! directory of an overlay or a whole copy; sandboxes write to it in turn while
//! one [`HeldLayer`] keeps everyone else away. From outside, its content is
//! hostile: nothing in it is ever followed, executed or believed.
//!
//! The way of a change: [`HeldLayer::settle`] after every command remembers
//! what the project had; [`HeldLayer::difference`] shows what the layer does;
//! [`HeldLayer::snapshot`] and [`HeldLayer::restore`] undo;
//! [`HeldLayer::plan_merge`] decides without doing ([`MergePlan::needs`] is
//! what policy is asked); [`HeldLayer::apply`] does it with a record of steps,
//! and [`HeldLayer::resume`] ends what a crash interrupted. [`HeldLayer::view`]
//! is what the session sees meanwhile, for reading.
//!
//! Start reading in `layer.rs`, then `scan.rs`, `planner.rs`, `apply.rs`. The only
//! files that touch a project are `tree.rs` (reading) and `perform.rs`.

#![forbid(unsafe_code)]

mod apply;
mod base;
mod changes;
mod copy;
mod difference;
mod duplicate;
mod error;
mod git;
mod gitconfig;
mod judge;
mod layer;
mod listing;
mod manifest;
mod moment;
mod names;
mod patch;
pub mod path;
mod perform;
pub mod permit;
mod plan;
mod planner;
mod record;
mod refusal;
mod scan;
mod settle;
mod snapshot;
mod step;
mod store;
mod submit;
mod text;
mod tree;
mod unread;
mod view;
mod write;

pub use apply::{Applied, ApplyError, MergeReport, StepTrouble};
pub use changes::{Change, ChangeKind, Changes, Shape};
pub use copy::{CopyError, Limits};
pub use difference::{Body, Difference, FileDifference, Glance, Summary};
pub use duplicate::DuplicateLayerError;
pub use error::FileError;
pub use layer::{HeldLayer, HoldLayerError, Layer, LayerDirectories, LayerState, ReadLayerError};
pub use listing::{Entry, SeenDirectory};
pub use patch::{FilePatch, HunkMismatch, ParsePatchError, Patch, PatchEffect};
pub use path::{TreePath, TreePathError};
pub use perform::Trouble;
pub use permit::WrongPermit;
pub use plan::{Conflict, ConflictKind, MergePlan, Need, PlanError};
pub use record::{LayerKind, ReadRecordError};
pub use refusal::{Reason, Refusal};
pub use snapshot::{RestoreError, Snapshot, SnapshotError};
pub use step::{Step, StepKind};
pub use store::{CreateLayerError, DropLayerError, FindLayerError, LayerStore, Listing};
pub use submit::SubmitPatchError;
pub use tree::NodeKind;
pub use unread::{FindUnreadError, MAX_LOOKED_AT, Unread, find_unread};
pub use view::{ReadViewError, Seen, Side, View};
