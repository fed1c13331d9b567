//! Deciding what a merge does, path by path, from three sides.
//!
//! What the project had (the base), what it has now, and what the layer has.
//! Where only the layer changed something, its side is taken; where both did,
//! texts are merged line by line; what cannot be merged or known is a conflict.
//! Reads only.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Digest;
use fluffy_base::id::LayerId;

use crate::base::{Base, BaseTexts};
use crate::changes::{Change, changes_of};
use crate::copy::Limits;
use crate::difference::{Summary, difference_of, new_text, old_text};
use crate::error::{Explain, FileError};
use crate::judge::refusals;
use crate::layer::{HeldLayer, ReadLayerError};
use crate::names::{folded, means_git};
use crate::path::{TreePath, escape};
use crate::plan::{Conflict, ConflictKind, MergePlan, PlanError};
use crate::refusal::{Reason, Refusal};
use crate::scan::{is_other_mount, scan};
use crate::settle::Settled;
use crate::step::{Seen, Source, Step, StepKind, Wanted};
use crate::text::{Effort, Merged, three_way};
use crate::tree::{Node, NodeKind, Tree};
use crate::view::Sides;

impl HeldLayer {
    /// Decides what merging the layer would do.
    ///
    /// # Errors
    /// The layer or the project cannot be read, or is larger than the limits.
    pub fn plan_merge(&self) -> Result<MergePlan, PlanError> {
        self.check_open()?;
        let settled = self.settled()?;
        let changes = changes_of(&settled)?.list;
        let view = Sides::new(self, &settled.content, &settled.project);
        let limits = self.layer().limits;
        let refusals = refusals(&settled, &view, &changes, &limits)?;
        let refused = refusals
            .iter()
            .map(|refusal| refusal.path.clone())
            .collect();
        let mut planner = Planner {
            settled: &settled,
            base_texts: BaseTexts::of_layer(self.layer().folder()),
            limits,
            refused,
            steps: Vec::new(),
            conflicts: Vec::new(),
            refusals,
            texts: BTreeMap::new(),
            effort: Effort::new(),
        };
        for change in &changes {
            planner.decide(change)?;
        }
        planner.check_directories()?;
        let summary = difference_of(self, &settled)?.summary;
        // What was judged must be what was planned, whoever had other ideas.
        let later = scan(self, &settled.project)?;
        if !settled.scan.is_same_layer(&later) {
            let layer = self.layer().id();
            return Err(ReadLayerError::Changing { layer }.into());
        }
        Ok(planner.finish(self.layer().id(), summary))
    }
}

struct Planner<'a> {
    settled: &'a Settled,
    base_texts: BaseTexts,
    limits: Limits,
    refused: BTreeSet<TreePath>,
    steps: Vec<Step>,
    conflicts: Vec<Conflict>,
    refusals: Vec<Refusal>,
    texts: BTreeMap<Digest, String>,
    effort: Effort,
}

/// One side of a path: what is there, as far as a merge cares.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Absent,
    File { digest: Digest, mode: u32 },
    Symlink { target: String },
    Directory { mode: u32 },
    Special,
}

impl Planner<'_> {
    fn decide(&mut self, change: &Change) -> Result<(), FileError> {
        let path = &change.path;
        if self.refused.contains(path) {
            return Ok(());
        }
        let base = self.settled.index.entries.get(path);
        let base = base.cloned().unwrap_or(Base::Unknown);
        if change.after.is_none() {
            return self.decide_removal(path, &base);
        }
        let layer = match self.side(&self.settled.content, path) {
            Ok(side) => side,
            Err(error) if error.reason().kind() == std::io::ErrorKind::PermissionDenied => {
                self.refusals
                    .push(Refusal::new(path.clone(), Reason::Unreadable));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let project = self.side(&self.settled.project, path)?;
        let layer = layer.without_new_openness(&project);
        if layer == project {
            return Ok(());
        }
        match (&base, &layer, &project) {
            (Base::Unknown, Side::Directory { .. }, Side::Absent) => {
                self.push(path, Seen::Absent, &layer);
            }
            (Base::Unknown, ..) => self.conflict(path, ConflictKind::BaseUnknown),
            (_, Side::File { .. }, Side::File { .. }) => {
                self.decide_files(path, &base, &layer, &project)?
            }
            (_, Side::Directory { mode: new }, Side::Directory { mode: now }) => {
                match merged_mode(mode_of(&base), *now, *new) {
                    Some(mode) => self.push(
                        path,
                        Seen::Directory { mode: *now },
                        &Side::Directory { mode },
                    ),
                    None => self.conflict(path, ConflictKind::BothChanged),
                }
            }
            (Base::Absent, Side::Directory { .. }, Side::Absent) => {
                self.push(path, Seen::Absent, &layer)
            }
            _ if self.is_base(&base, path, &project)? => self.replace(path, &project, &layer)?,
            (Base::Absent, ..) => self.conflict(path, ConflictKind::BothAdded),
            (_, _, Side::Absent) => self.conflict(path, ConflictKind::RemovedInProject),
            _ => self.conflict(path, ConflictKind::BothChanged),
        }
        Ok(())
    }

    fn decide_removal(&mut self, path: &TreePath, base: &Base) -> Result<(), FileError> {
        let node = match self.settled.project.node(path) {
            Ok(node) => node,
            Err(error) if is_other_mount(&error) => None,
            Err(error) => return Err(error).within("read", &self.settled.project, path),
        };
        let Some(node) = node else {
            return Ok(());
        };
        let same = match (base, node.kind) {
            (Base::Directory { .. }, NodeKind::Directory) => {
                let mode = node.permissions();
                self.push(path, Seen::Directory { mode }, &Side::Absent);
                return Ok(());
            }
            (
                Base::File {
                    identity, digest, ..
                },
                NodeKind::File,
            ) => *identity == node.identity || self.is_digest(*digest, path)?,
            (Base::Symlink { .. }, NodeKind::Symlink) => {
                let now = self.side(&self.settled.project, path)?;
                self.is_base(base, path, &now)?
            }
            _ => false,
        };
        match (base, same, node.kind) {
            (_, true, NodeKind::Symlink) => {
                let now = self.side(&self.settled.project, path)?;
                if let Some(seen) = now.seen() {
                    self.push(path, seen, &Side::Absent);
                }
            }
            (_, true, _) => {
                let identity = node.identity;
                self.push(path, Seen::Unread { identity }, &Side::Absent);
            }
            (Base::Unknown, ..) => self.conflict(path, ConflictKind::BaseUnknown),
            _ => self.conflict(path, ConflictKind::ChangedInProject),
        }
        Ok(())
    }

    /// Both sides have a file: content and permissions are merged apart.
    fn decide_files(
        &mut self,
        path: &TreePath,
        base: &Base,
        layer: &Side,
        project: &Side,
    ) -> Result<(), FileError> {
        let (
            Side::File {
                digest: new,
                mode: new_mode,
            },
            Side::File {
                digest: now,
                mode: now_mode,
            },
        ) = (layer, project)
        else {
            return Ok(());
        };
        if *base == Base::Absent && new != now {
            self.conflict(path, ConflictKind::BothAdded);
            return Ok(());
        }
        let Some(mode) = merged_mode(mode_of(base), *now_mode, *new_mode) else {
            self.conflict(path, ConflictKind::BothChanged);
            return Ok(());
        };
        let before = Seen::File {
            digest: *now,
            mode: *now_mode,
        };
        let is_now_base = match base {
            Base::File {
                identity, digest, ..
            } => *digest == Some(*now) || self.has_identity(path, identity)?,
            _ => false,
        };
        let is_new_base = matches!(base, Base::File { digest: Some(old), .. } if old == new);
        if new == now || is_new_base {
            if mode != *now_mode {
                let (digest, from) = (*now, Source::Project);
                let after = Wanted::File { digest, mode, from };
                self.step(path, before, after);
            }
        } else if is_now_base {
            let (digest, from) = (*new, Source::Layer);
            let after = Wanted::File { digest, mode, from };
            self.step(path, before, after);
        } else {
            self.merge_texts(path, base, before, mode);
        }
        Ok(())
    }

    fn merge_texts(&mut self, path: &TreePath, base: &Base, before: Seen, mode: u32) {
        if self.is_for_git(path) {
            // Judged as each side wrote it, which says nothing of a mixture.
            self.conflict(path, ConflictKind::BothChanged);
            return;
        }
        let limit = self.limits.text;
        let old = old_text(self.settled, &self.base_texts, limit, path, base);
        let new = new_text(self.settled, limit, path);
        let now = self.settled.project.read(path, limit).ok();
        let now = now.and_then(|bytes| String::from_utf8(bytes).ok());
        let (Some(old), Some(new), Some(now)) = (old, new, now) else {
            self.conflict(path, ConflictKind::BothChanged);
            return;
        };
        // What was read must be what the step will look for.
        let is_seen =
            matches!(&before, Seen::File { digest, .. } if *digest == Digest::of(now.as_bytes()));
        match three_way(&old, &now, &new, &mut self.effort) {
            Merged::Clean(text) if is_seen => {
                let digest = Digest::of(text.as_bytes());
                if matches!(&before, Seen::File { digest: now, mode: old } if *now == digest && *old == mode)
                {
                    // The project has the layer's changes already.
                    return;
                }
                self.texts.insert(digest, text);
                let from = Source::Merged;
                self.step(path, before, Wanted::File { digest, mode, from });
            }
            Merged::Clean(_) => self.conflict(path, ConflictKind::BothChanged),
            Merged::Conflicts { shown, .. } => self.conflicts.push(Conflict {
                path: path.clone(),
                kind: ConflictKind::BothChanged,
                shown: Some(shown),
            }),
        }
    }

    /// Whether git reads the file for itself.
    fn is_for_git(&self, path: &TreePath) -> bool {
        let name = folded(path.name());
        let is_config = name == b"config" || name == b"config.worktree";
        let in_repository = || {
            let head = TreePath::below(path.parent().as_ref(), b"HEAD");
            head.is_ok_and(|head| !matches!(self.settled.project.node(&head), Ok(None)))
        };
        path.names().any(means_git) || name == b".gitmodules" || (is_config && in_repository())
    }

    /// Puts the layer's side in the place of the project's.
    fn replace(&mut self, path: &TreePath, project: &Side, layer: &Side) -> Result<(), FileError> {
        let is_directory = |side: &Side| matches!(side, Side::Directory { .. });
        let Some(seen) = project.seen() else {
            self.conflict(path, ConflictKind::BothChanged);
            return Ok(());
        };
        if *project != Side::Absent && is_directory(project) != is_directory(layer) {
            self.push(path, seen, &Side::Absent);
            self.push(path, Seen::Absent, layer);
        } else {
            self.push(path, seen, layer);
        }
        Ok(())
    }

    /// Missing directories are made, and removed ones must end up empty.
    fn check_directories(&mut self) -> Result<(), FileError> {
        let made: BTreeSet<TreePath> = self.paths_of(StepKind::MakeDirectory);
        let mut missing = BTreeMap::new();
        let mut blocked = Vec::new();
        for step in &self.steps {
            if step.after == Wanted::Absent {
                continue;
            }
            for directory in step.path.ancestors() {
                if made.contains(&directory) || missing.contains_key(&directory) {
                    continue;
                }
                let node = self.settled.project.node(&directory);
                let node = node.within("read", &self.settled.project, &directory)?;
                match node.map(|node| node.kind) {
                    Some(NodeKind::Directory) => break,
                    Some(_) => {
                        blocked.push(step.path.clone());
                        break;
                    }
                    None => {
                        let mode = self.layer_mode(&directory)?;
                        missing.insert(directory, mode);
                    }
                }
            }
        }
        for (path, mode) in missing {
            self.step(&path, Seen::Absent, Wanted::Directory { mode });
        }
        for path in blocked {
            self.steps.retain(|step| step.path != path);
            self.conflict(&path, ConflictKind::DirectoryInTheWay);
        }
        self.check_removed_directories()
    }

    fn check_removed_directories(&mut self) -> Result<(), FileError> {
        let removed: BTreeSet<TreePath> = self
            .steps
            .iter()
            .filter(|step| step.after == Wanted::Absent)
            .map(|step| step.path.clone())
            .collect();
        let mut full = BTreeSet::new();
        for directory in self.paths_of(StepKind::RemoveDirectory) {
            let names = self.settled.project.names(Some(&directory));
            let names = names.within("read", &self.settled.project, &directory)?;
            let stays = |name: &[u8]| {
                TreePath::below(Some(&directory), name).is_ok_and(|path| !removed.contains(&path))
            };
            if names.iter().any(|name| stays(name)) {
                full.insert(directory);
            }
        }
        for path in full {
            self.steps.retain(|step| step.path != path);
            self.conflict(&path, ConflictKind::DirectoryNotEmpty);
        }
        Ok(())
    }

    fn finish(mut self, layer: LayerId, summary: Summary) -> MergePlan {
        let order = |step: &Step| {
            let depth = i64::try_from(step.path.depth()).unwrap_or(0);
            match step.kind() {
                // From the bottom up when removing and closing, else downwards.
                kind @ (StepKind::RemoveDirectory | StepKind::Mode) => (kind, -depth),
                kind => (kind, depth),
            }
        };
        self.steps
            .sort_by(|a, b| (order(a), &a.path).cmp(&(order(b), &b.path)));
        self.conflicts.sort_by(|a, b| a.path.cmp(&b.path));
        self.refusals.sort_by(|a, b| a.path.cmp(&b.path));
        MergePlan {
            layer,
            steps: self.steps,
            conflicts: self.conflicts,
            refusals: self.refusals,
            left_out: BTreeSet::new(),
            summary,
            texts: self.texts,
        }
    }

    fn paths_of(&self, kind: StepKind) -> BTreeSet<TreePath> {
        let steps = self.steps.iter().filter(|step| step.kind() == kind);
        steps.map(|step| step.path.clone()).collect()
    }

    fn layer_mode(&self, directory: &TreePath) -> Result<u32, FileError> {
        let node = self.settled.content.node(directory);
        let node = node.within("read", &self.settled.content, directory)?;
        Ok(node.map_or(0o755, |node| closed(node.permissions(), 0)))
    }

    fn push(&mut self, path: &TreePath, before: Seen, after: &Side) {
        let after = match after {
            Side::Absent | Side::Special => Wanted::Absent,
            Side::File { digest, mode } => Wanted::File {
                digest: *digest,
                mode: *mode,
                from: Source::Layer,
            },
            Side::Symlink { target } => Wanted::Symlink {
                target: target.clone(),
            },
            Side::Directory { mode } => Wanted::Directory { mode: *mode },
        };
        self.step(path, before, after);
    }

    fn step(&mut self, path: &TreePath, before: Seen, after: Wanted) {
        if let (Seen::Absent, Wanted::Directory { mode }) = (&before, &after)
            && mode & 0o700 != 0o700
        {
            // Filled first and closed last, or nothing could be put into it.
            let (open, closed) = (mode | 0o700, *mode);
            self.step(path, before, Wanted::Directory { mode: open });
            let after = Wanted::Directory { mode: closed };
            self.step(path, Seen::Directory { mode: open }, after);
            return;
        }
        self.steps.push(Step {
            path: path.clone(),
            before,
            after,
        });
    }

    fn conflict(&mut self, path: &TreePath, kind: ConflictKind) {
        self.conflicts.push(Conflict {
            path: path.clone(),
            kind,
            shown: None,
        });
    }

    fn side(&self, tree: &Tree, path: &TreePath) -> Result<Side, FileError> {
        let node = match tree.node(path) {
            Ok(Some(node)) => node,
            Ok(None) => return Ok(Side::Absent),
            Err(error) if is_other_mount(&error) => return Ok(Side::Special),
            Err(error) => return Err(error).within("read", tree, path),
        };
        side_of(tree, path, &node).within("read", tree, path)
    }

    /// Whether the project's side is what it was before the layer.
    fn is_base(&self, base: &Base, path: &TreePath, project: &Side) -> Result<bool, FileError> {
        match (base, project) {
            (Base::Absent, Side::Absent) => Ok(true),
            (Base::Directory { .. }, Side::Directory { .. }) => Ok(true),
            (Base::Symlink { target: old }, Side::Symlink { target: now }) => Ok(old == now),
            (
                Base::File {
                    identity, digest, ..
                },
                Side::File { digest: now, .. },
            ) => Ok(*digest == Some(*now) || self.has_identity(path, identity)?),
            _ => Ok(false),
        }
    }

    fn has_identity(
        &self,
        path: &TreePath,
        identity: &crate::tree::Identity,
    ) -> Result<bool, FileError> {
        let node = self.settled.project.node(path);
        let node = node.within("read", &self.settled.project, path)?;
        Ok(node.is_some_and(|node| node.identity == *identity))
    }

    fn is_digest(&self, digest: Option<Digest>, path: &TreePath) -> Result<bool, FileError> {
        let Some(digest) = digest else {
            return Ok(false);
        };
        let found = self.settled.project.digest(path);
        let (found, _) = found.within("read", &self.settled.project, path)?;
        Ok(found == digest)
    }
}

impl Side {
    /// As a step's expectation; nothing for what no step touches.
    fn seen(&self) -> Option<Seen> {
        match self {
            Self::Absent => Some(Seen::Absent),
            Self::File { digest, mode } => Some(Seen::File {
                digest: *digest,
                mode: *mode,
            }),
            Self::Symlink { target } => Some(Seen::Symlink {
                target: target.clone(),
            }),
            Self::Directory { mode } => Some(Seen::Directory { mode: *mode }),
            Self::Special => None,
        }
    }

    /// Without the right for everyone to write, unless the project has it.
    fn without_new_openness(self, project: &Self) -> Self {
        let now = match project {
            Self::File { mode, .. } | Self::Directory { mode } => *mode,
            _ => 0,
        };
        match self {
            Self::File { digest, mode } => Self::File {
                digest,
                mode: closed(mode, now),
            },
            Self::Directory { mode } => Self::Directory {
                mode: closed(mode, now),
            },
            other => other,
        }
    }
}

fn side_of(tree: &Tree, path: &TreePath, node: &Node) -> std::io::Result<Side> {
    Ok(match node.kind {
        NodeKind::File => {
            let (digest, node) = tree.digest(path)?;
            Side::File {
                digest,
                mode: node.permissions(),
            }
        }
        NodeKind::Directory => Side::Directory {
            mode: node.permissions(),
        },
        NodeKind::Symlink => Side::Symlink {
            target: escape(&tree.link_target(path)?),
        },
        NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => Side::Special,
    })
}

const fn closed(mode: u32, now: u32) -> u32 {
    mode & 0o777 & !(0o002 & !now)
}

fn mode_of(base: &Base) -> Option<u32> {
    match base {
        Base::File { mode, .. } | Base::Directory { mode } => Some(mode & 0o777),
        _ => None,
    }
}

/// The permissions after both sides' changes; nothing if they disagree.
fn merged_mode(base: Option<u32>, now: u32, new: u32) -> Option<u32> {
    match base {
        _ if now == new => Some(now),
        Some(base) if base == new => Some(now),
        Some(base) if base == now => Some(new),
        _ => None,
    }
}
