//! Targets for `fluffy-layer`: paths and patches that a sandbox or model made.

use fluffy_layer::path::{escape, unescape};
use fluffy_layer::{Patch, TreePath};

use crate::as_text;

/// A path stays below its root, and its shown form leads back to it.
pub(crate) fn tree_path(bytes: &[u8]) {
    assert_eq!(unescape(&escape(bytes)).as_deref(), Some(bytes));
    let Ok(path) = TreePath::parse(bytes) else {
        return;
    };
    assert!(path.names().all(|name| !matches!(name, b"" | b"." | b"..")));
    let joined: Vec<&[u8]> = path.names().collect();
    assert_eq!(joined.join(&b'/'), bytes);
    for above in path.ancestors() {
        assert!(path.is_within(&above));
    }
}

/// A patch that can be read names each file once, and applying it to anything
/// ends in a text or in a reason.
pub(crate) fn unified_diff(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let Ok(patch) = Patch::parse(text) else {
        return;
    };
    let mut seen = std::collections::BTreeSet::new();
    for file in patch.files() {
        assert!(seen.insert(file.path.clone()));
        // What it takes away, line by line, is where it would fit.
        for before in ["", "a\n", text] {
            if let Ok(after) = file.apply(before) {
                assert!(after.len() <= before.len() + text.len());
            }
        }
    }
}
