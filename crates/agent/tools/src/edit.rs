//! Changing text: exact replacement, and patches that forgive small slips.
//!
//! Pure: text in, text out. What does not fit is refused with the places that
//! come nearest; what fits in two places is refused as well, because a change
//! that lands elsewhere is a wrong change that looks right. Line endings and a
//! missing last newline stay as they are. Writing is in [`crate::runner`].

mod apply;
mod begin_patch;
mod lines;
mod locate;
mod nearest;
mod patch;
mod replace;
mod unified;

pub use apply::{Applied, ApplyHunksError, Landed, apply};
pub use locate::Tolerance;
pub use nearest::Near;
pub use patch::{
    FileChange, FileChangeKind, Hunk, HunkLine, MAX_PATCH_BYTES, ParsePatchError, Sign, parse,
};
pub use replace::{ReplaceTextError, Replaced, Which, replace};
