//! Names that are harmless here and something else on another file system.
//!
//! Pure. HFS+ ignores case, accents' spelling and invisible characters; NTFS
//! ignores case, trailing dots and spaces, and has short names and streams. A
//! project travels between them, so what is equal on one of them is refused.

use unicode_normalization::UnicodeNormalization;

/// What a name is equal to where case, accents and the invisible do not count.
///
/// A name that is no text is only equal to itself.
pub(crate) fn folded(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else {
        return name.to_vec();
    };
    let visible = text.nfd().filter(|c| !is_ignored(*c));
    let lower: String = visible.flat_map(char::to_lowercase).collect();
    // Twice, for lowering can decompose; sharp s and its capital meet as well.
    let folded: String = lower.nfkc().flat_map(char::to_lowercase).collect();
    folded
        .replace('ß', "ss")
        .trim_end_matches(['.', ' '])
        .as_bytes()
        .to_vec()
}

/// Whether a name means `.git` somewhere, without being `.git`.
pub(crate) fn is_git_lookalike(name: &[u8]) -> bool {
    name != b".git" && means_git(name)
}

/// Whether a name means `.git` here or on another file system.
pub(crate) fn means_git(name: &[u8]) -> bool {
    let folded = folded(name);
    // NTFS: what follows a colon names a stream of the same file.
    let main = folded.split(|byte| *byte == b':').next();
    let main = main.unwrap_or_default().trim_ascii_end();
    let main = main.strip_suffix(b".").unwrap_or(main);
    main == b".git"
        || main
            .strip_prefix(b"git~")
            .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// What HFS+ does not see in a name, and other invisible characters.
fn is_ignored(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_mean_git_are_found() {
        for name in [
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git...",
            ".git . .",
            "git~1",
            "GIT~12",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git\u{200d}",
            ".git:stream",
            ".git::$INDEX_ALLOCATION",
            ".git :x",
            ".ｇit",
        ] {
            assert!(is_git_lookalike(name.as_bytes()), "{name:?}");
        }
        for name in [
            ".git",
            ".github",
            ".gitignore",
            "git",
            "git~",
            "git~x",
            "agit~1",
        ] {
            assert!(!is_git_lookalike(name.as_bytes()), "{name:?}");
        }
        assert!(means_git(b".git"));
        assert!(!means_git(b"\xff.git"));
    }

    #[test]
    fn names_collide_by_case_accents_and_invisible_characters() {
        for (one, other) in [
            ("README", "readme"),
            ("Ärger", "a\u{308}rger"),
            ("Straße", "STRASSE"),
            ("a\u{200d}b", "ab"),
            ("ﬁle", "file"),
            ("x.", "x"),
            ("K", "\u{212a}"),
        ] {
            assert_eq!(
                folded(one.as_bytes()),
                folded(other.as_bytes()),
                "{one} {other}"
            );
        }
        assert_ne!(folded(b"one"), folded(b"other"));
        assert_ne!(folded(b"\xffA"), folded(b"\xffa"));
    }

    proptest! {
        #[test]
        fn folding_settles_at_once(name in "\\PC{0,12}") {
            let once = folded(name.as_bytes());
            prop_assert_eq!(folded(&once), once);
        }

        #[test]
        fn case_never_counts(name in "[a-zA-Zäöüéß.]{1,12}") {
            let (upper, lower) = (name.to_uppercase(), name.to_lowercase());
            prop_assert_eq!(folded(upper.as_bytes()), folded(lower.as_bytes()));
        }

        #[test]
        fn any_bytes_are_judged(name in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (folded(&name), is_git_lookalike(&name));
        }
    }
}
