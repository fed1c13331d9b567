//! The diff of a layer, as people and `git apply` read it.
//!
//! Texts as unified diffs, the rest named with its size. Bounded as a whole:
//! what would be too much is named as too large, and counts all the same.

use std::fmt;

use serde::Serialize;

use crate::base::{Base, BaseTexts};
use crate::changes::{Change, ChangeKind, base_or_project, changes_of};
use crate::error::{Explain, FileError};
use crate::layer::{HeldLayer, ReadLayerError};
use crate::path::{TreePath, unescape};
use crate::refusal::Refusal;
use crate::settle::Settled;
use crate::text::{Effort, is_text, unified};
use crate::tree::NodeKind;

/// The most bytes of diff text in all.
const MAX_TOTAL: usize = 64 << 20;

/// How many bytes of an unpatchable file count as one line.
const BYTES_PER_LINE: u64 = 64;

/// The diff of a whole layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Sorted by path.
    pub files: Vec<FileDifference>,
    /// What could not be read.
    pub problems: Vec<Refusal>,
    /// All of it in numbers.
    pub summary: Summary,
}

/// The diff of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDifference {
    /// What changed.
    pub change: Change,
    /// How it is shown.
    pub body: Body,
}

/// How a change is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Body {
    /// Hunks of a unified diff: patch mode.
    Text {
        /// The hunks; empty where only the name or the mode changed.
        hunks: String,
        /// Lines that are new.
        added: usize,
        /// Lines that are gone.
        removed: usize,
    },
    /// No text, or too much of it: whole-file mode.
    Whole {
        /// Whether it is only too large for a diff.
        too_large: bool,
    },
    /// Where a link pointed and points; escaped.
    Link {
        /// Before.
        before: Option<String>,
        /// After.
        after: Option<String>,
    },
    /// Nothing but the kind and mode.
    Bare,
}

/// A layer in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Changed paths that are not directories.
    pub files: usize,
    /// Lines that are new.
    pub added: usize,
    /// Lines that are gone.
    pub removed: usize,
    /// Files that are not shown as text.
    pub whole: usize,
    /// What a policy's `lines` counts: lines, and 64 bytes of anything else.
    pub weight: u64,
}

impl HeldLayer {
    /// The diff of the layer.
    ///
    /// # Errors
    /// As [`HeldLayer::changes`].
    pub fn difference(&self) -> Result<Difference, ReadLayerError> {
        self.check_open()?;
        let settled = self.settled()?;
        Ok(difference_of(self, &settled)?)
    }

    /// Another pair of eyes, for looking while the holder works.
    ///
    /// # Errors
    /// The lock cannot be shared: too many open files.
    pub fn glance(&self) -> Result<Glance, FileError> {
        Ok(Glance(self.shared()?))
    }
}

/// Looks at a layer that somebody else works on, and notes nothing.
#[derive(Debug)]
pub struct Glance(HeldLayer);

impl Glance {
    /// The diff of the layer as it is now.
    ///
    /// # Errors
    /// As [`HeldLayer::changes`]; most likely that it is being written to.
    pub fn difference(&self) -> Result<Difference, ReadLayerError> {
        self.0.check_open()?;
        let (settled, _) = self.0.looked_at()?;
        Ok(difference_of(&self.0, &settled)?)
    }
}

impl Difference {
    /// The same without these paths and all below them.
    #[must_use]
    pub fn without(mut self, paths: &[TreePath]) -> Self {
        let stays = |path: &TreePath| paths.iter().any(|out| path.is_within(out));
        self.files.retain(|file| !stays(&file.change.path));
        self.summary = Summary::default();
        for file in &self.files {
            self.summary.count(&file.change, &file.body);
        }
        self
    }
}

/// The diff of a layer that was just looked through.
pub(crate) fn difference_of(held: &HeldLayer, settled: &Settled) -> Result<Difference, FileError> {
    let changes = changes_of(settled)?;
    let texts = BaseTexts::of_layer(held.layer().folder());
    let limit = held.layer().limits.text;
    let mut summary = Summary::default();
    let mut total = 0usize;
    let mut effort = Effort::new();
    let mut files = Vec::new();
    for change in changes.list {
        let body = if total > MAX_TOTAL {
            Body::Whole { too_large: true }
        } else {
            body_of(settled, &texts, limit, &change, &mut effort)?
        };
        if let Body::Text { hunks, .. } = &body {
            total = total.saturating_add(hunks.len());
        }
        summary.count(&change, &body);
        files.push(FileDifference { change, body });
    }
    Ok(Difference {
        files,
        problems: changes.problems,
        summary,
    })
}

/// The text that was at a path before, if it was text and is still known.
pub(crate) fn old_text(
    settled: &Settled,
    texts: &BaseTexts,
    limit: u64,
    path: &TreePath,
    base: &Base,
) -> Option<String> {
    let Base::File {
        identity, digest, ..
    } = base
    else {
        return None;
    };
    let kept = digest.and_then(|digest| texts.get(digest, limit));
    let bytes = kept.or_else(|| {
        // Not kept, but still there: the project has it unchanged.
        let now = settled.project.node(path).ok()??;
        let bytes = settled.project.read(path, limit).ok()?;
        (now.identity == *identity).then_some(bytes)
    })?;
    text_of(bytes)
}

/// The text that the layer has at a path, if it is text.
pub(crate) fn new_text(settled: &Settled, limit: u64, path: &TreePath) -> Option<String> {
    text_of(settled.content.read(path, limit).ok()?)
}

fn text_of(bytes: Vec<u8>) -> Option<String> {
    is_text(&bytes)
        .then(|| String::from_utf8(bytes).ok())
        .flatten()
}

fn body_of(
    settled: &Settled,
    texts: &BaseTexts,
    limit: u64,
    change: &Change,
    effort: &mut Effort,
) -> Result<Body, FileError> {
    let path = &change.path;
    let base = base_or_project(settled, path)?;
    let kind_of = |shape: Option<crate::changes::Shape>| shape.map(|shape| shape.kind);
    let (old_kind, new_kind) = (kind_of(change.before), kind_of(change.after));
    if old_kind == Some(NodeKind::Symlink) || new_kind == Some(NodeKind::Symlink) {
        let before = match base {
            Base::Symlink { target } => Some(target),
            _ => None,
        };
        let after = match new_kind {
            Some(NodeKind::Symlink) => {
                let target = settled.content.link_target(path);
                let target = target.within("read", &settled.content, path)?;
                Some(crate::path::escape(&target))
            }
            _ => None,
        };
        return Ok(Body::Link { before, after });
    }
    if old_kind != Some(NodeKind::File) && new_kind != Some(NodeKind::File) {
        return Ok(Body::Bare);
    }
    if change.kind == ChangeKind::Mode {
        return Ok(Body::Text {
            hunks: String::new(),
            added: 0,
            removed: 0,
        });
    }
    let size = |shape: Option<crate::changes::Shape>| shape.map_or(0, |shape| shape.size);
    if size(change.before).max(size(change.after)) > limit {
        return Ok(Body::Whole { too_large: true });
    }
    let old = match old_kind {
        Some(NodeKind::File) => old_text(settled, texts, limit, path, &base),
        _ => Some(String::new()),
    };
    let new = match new_kind {
        Some(NodeKind::File) => new_text(settled, limit, path),
        _ => Some(String::new()),
    };
    let (Some(old), Some(new)) = (old, new) else {
        return Ok(Body::Whole { too_large: false });
    };
    let hunks = unified(&old, &new, effort);
    Ok(Body::Text {
        hunks: hunks.text,
        added: hunks.added,
        removed: hunks.removed,
    })
}

impl Summary {
    fn count(&mut self, change: &Change, body: &Body) {
        let shape = change.after.or(change.before);
        if shape.is_none_or(|shape| shape.kind != NodeKind::Directory) {
            self.files = self.files.saturating_add(1);
        }
        let weight = match body {
            Body::Text { added, removed, .. } => {
                self.added = self.added.saturating_add(*added);
                self.removed = self.removed.saturating_add(*removed);
                u64::try_from(added.saturating_add(*removed)).unwrap_or(u64::MAX)
            }
            Body::Whole { .. } => {
                self.whole = self.whole.saturating_add(1);
                shape.map_or(0, |shape| shape.size / BYTES_PER_LINE)
            }
            Body::Link { .. } => 1,
            Body::Bare => 0,
        };
        // A file that changes is never free, whatever is shown of it.
        let least = u64::from(!matches!(body, Body::Bare));
        self.weight = self.weight.saturating_add(weight.max(least));
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            files,
            added,
            removed,
            whole,
            ..
        } = self;
        let plural = if *files == 1 { "" } else { "s" };
        write!(f, "{files} file{plural} changed, +{added} −{removed} lines")?;
        if *whole > 0 {
            write!(f, ", {whole} not shown as text")?;
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            write!(f, "{file}")?;
        }
        Ok(())
    }
}

impl fmt::Display for FileDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = &self.change;
        let is_directory = |shape: Option<crate::changes::Shape>| {
            shape.is_none_or(|shape| shape.kind == NodeKind::Directory)
        };
        if is_directory(change.before) && is_directory(change.after) {
            // Git knows no directories; the files in them speak for them.
            return Ok(());
        }
        let (old, new) = (
            quote(b"a/", change.path.as_bytes()),
            quote(b"b/", change.path.as_bytes()),
        );
        writeln!(f, "diff --git {old} {new}")?;
        let before = change
            .before
            .filter(|shape| shape.kind != NodeKind::Directory);
        let after = change
            .after
            .filter(|shape| shape.kind != NodeKind::Directory);
        match (before, after) {
            (None, Some(after)) => writeln!(f, "new file mode {}", git_mode(&after))?,
            (Some(before), None) => writeln!(f, "deleted file mode {}", git_mode(&before))?,
            (Some(before), Some(after)) if git_mode(&before) != git_mode(&after) => {
                writeln!(f, "old mode {}", git_mode(&before))?;
                writeln!(f, "new mode {}", git_mode(&after))?;
            }
            _ => {}
        }
        let side = |name: &str, shape: Option<_>| match shape {
            Some(_) => name.to_owned(),
            None => "/dev/null".to_owned(),
        };
        let (old, new) = (side(&old, before), side(&new, after));
        match &self.body {
            Body::Text { hunks, .. } if !hunks.is_empty() => {
                write!(f, "--- {old}\n+++ {new}\n{hunks}")
            }
            Body::Link { before, after } => {
                let plain = |target: &Option<String>| {
                    let bytes = unescape(target.as_deref().unwrap_or_default());
                    bytes.and_then(|bytes| String::from_utf8(bytes).ok())
                };
                match (plain(before), plain(after)) {
                    (Some(before), Some(after)) => {
                        let hunks = unified(&before, &after, &mut Effort::new()).text;
                        write!(f, "--- {old}\n+++ {new}\n{hunks}")
                    }
                    _ => writeln!(f, "Binary files {old} and {new} differ"),
                }
            }
            Body::Whole { .. } => writeln!(f, "Binary files {old} and {new} differ"),
            Body::Text { .. } | Body::Bare => Ok(()),
        }
    }
}

/// The mode as git writes it: only whether it is a link or can be executed.
fn git_mode(shape: &crate::changes::Shape) -> &'static str {
    match shape.kind {
        NodeKind::Symlink => "120000",
        _ if shape.mode & 0o100 != 0 => "100755",
        _ => "100644",
    }
}

/// A name as git writes it: in quotes as soon as something in it is odd.
pub(crate) fn quote(prefix: &[u8], name: &[u8]) -> String {
    let bytes = [prefix, name].concat();
    let plain = |byte: &u8| matches!(byte, b'!' | b'#'..=b'[' | b']'..=b'~');
    if bytes.iter().all(plain) {
        return bytes.iter().copied().map(char::from).collect();
    }
    let mut out = String::from("\"");
    for byte in bytes {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b' '..=b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}
