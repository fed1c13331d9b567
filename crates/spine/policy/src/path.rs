//! Paths as rules see them: absolute in a named root, one spelling each.
//!
//! `/…` is the workspace, `@data/…` a plugin's own data, `@host/…` the host.
//! `..` is refused and never resolved: what it means depends on symbolic
//! links, which only the sandbox can follow. Matching is in [`crate::glob`].

use std::borrow::Cow;

use unicode_normalization::{UnicodeNormalization, is_nfc};

/// The longest path, in bytes.
pub const MAX_BYTES: usize = 4096;

/// The longest name between two slashes, in bytes.
pub const MAX_NAME: usize = 255;

/// The named roots besides the workspace.
pub const ROOTS: &[&str] = &["@data", "@host"];

/// Why a path has no normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not start at a root.
    #[error("a path starts with `/`, `@data/` or `@host/`")]
    NotRooted,
    /// It steps upwards.
    #[error("a path has no `..`")]
    Upwards,
    /// A control character or a backslash.
    #[error("a path has no control characters and no backslashes")]
    Character,
    /// It, or a name in it, is too long.
    #[error("a path has at most {MAX_BYTES} bytes and {MAX_NAME} in each name")]
    TooLong,
}

/// The normal form: no `.`, `//` or trailing slash, letters composed.
///
/// # Errors
/// The path has no normal form.
pub fn normalise(text: &str) -> Result<Cow<'_, str>, PathError> {
    if text.len() > MAX_BYTES {
        return Err(PathError::TooLong);
    }
    if text.chars().any(|c| c.is_control() || c == '\\') {
        return Err(PathError::Character);
    }
    let (root, below) = split_root(text).ok_or(PathError::NotRooted)?;
    let mut clean = true;
    for name in below.split('/') {
        match name {
            ".." => return Err(PathError::Upwards),
            "" | "." => clean = false,
            name if name.len() > MAX_NAME => return Err(PathError::TooLong),
            _ => {}
        }
    }
    let bare_root = below.is_empty() && (root.is_empty() == text.ends_with('/'));
    if (clean || bare_root) && (text.is_ascii() || is_nfc(text)) {
        return Ok(Cow::Borrowed(text));
    }
    let names = below.split('/').filter(|name| !matches!(*name, "" | "."));
    let mut normal = String::from(root);
    for name in names {
        normal.push('/');
        normal.extend(name.nfc());
    }
    if normal.is_empty() {
        normal.push('/');
    }
    // Composing can lengthen a few letters.
    match normal.len() > MAX_BYTES || normal.split('/').any(|name| name.len() > MAX_NAME) {
        true => Err(PathError::TooLong),
        false => Ok(Cow::Owned(normal)),
    }
}

/// The root's name (empty for the workspace) and what is below it.
pub(crate) fn split_root(text: &str) -> Option<(&str, &str)> {
    if let Some(below) = text.strip_prefix('/') {
        return Some(("", below));
    }
    ROOTS.iter().find_map(|root| {
        let below = text.strip_prefix(root)?;
        let root = text.get(..root.len())?;
        match below.strip_prefix('/') {
            Some(below) => Some((root, below)),
            None => below.is_empty().then_some((root, "")),
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_spelling_for_each_path() {
        for (text, expected) in [
            ("/src/lib.rs", "/src/lib.rs"),
            ("/", "/"),
            ("//", "/"),
            ("/.", "/"),
            ("/src//lib.rs", "/src/lib.rs"),
            ("/./src/./lib.rs/", "/src/lib.rs"),
            ("@data", "@data"),
            ("@data/", "@data"),
            ("@data/a", "@data/a"),
            ("@host/etc/", "@host/etc"),
            ("/e\u{301}", "/é"),
            ("/...", "/..."),
        ] {
            assert_eq!(normalise(text).as_deref(), Ok(expected), "{text:?}");
        }
        assert!(matches!(normalise("/src/lib.rs"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn what_has_no_normal_form_is_refused() {
        for (text, expected) in [
            ("", PathError::NotRooted),
            ("src", PathError::NotRooted),
            ("./src", PathError::NotRooted),
            ("@database/x", PathError::NotRooted),
            ("@other/x", PathError::NotRooted),
            ("/a/../b", PathError::Upwards),
            ("/..", PathError::Upwards),
            ("@host/..", PathError::Upwards),
            ("/a\0b", PathError::Character),
            ("/a\\..\\b", PathError::Character),
            ("/a\u{85}", PathError::Character),
        ] {
            assert_eq!(normalise(text), Err(expected), "{text:?}");
        }
        assert_eq!(
            normalise(&format!("/{}", "a".repeat(256))),
            Err(PathError::TooLong)
        );
        assert_eq!(normalise(&"/a".repeat(2049)), Err(PathError::TooLong));
    }

    proptest! {
        #[test]
        fn normal_forms_stay_as_they_are(text in "(/|@data|@host)([a./é\u{301}]{0,12})") {
            if let Ok(normal) = normalise(&text) {
                prop_assert_eq!(normalise(&normal), Ok(Cow::Borrowed(&*normal)));
                prop_assert!(!normal.contains("//"));
                prop_assert!(normal == "/" || !normal.ends_with('/'));
                prop_assert!(normal.split('/').all(|name| name != "." && name != ".."));
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = normalise(&text);
        }
    }
}
