//! Small readings of text that all parsers share.
//!
//! Everything here is bounded and works on characters, never on byte offsets
//! that could fall between two.

use std::borrow::Cow;

use super::MAX_MESSAGE;

/// The text without terminal escape sequences.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            plain.push(character);
            continue;
        }
        // `ESC [ … letter` is what runners write; a lone ESC is dropped.
        if characters.next_if_eq(&'[').is_some() {
            while characters
                .next_if(|c| !c.is_ascii_alphabetic() && *c != '\n')
                .is_some()
            {}
            let _letter = characters.next_if(char::is_ascii_alphabetic);
        }
    }
    Cow::Owned(plain)
}

/// At most so many bytes of a text, from its beginning.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    match text.len() <= bytes {
        true => text.to_owned(),
        false => {
            let end = text.floor_char_boundary(bytes);
            text.get(..end).unwrap_or_default().to_owned()
        }
    }
}

/// The end of a text, as long as a message may be.
pub(super) fn tail(text: &str) -> String {
    let text = text.trim();
    let start = text.ceil_char_boundary(text.len().saturating_sub(MAX_MESSAGE));
    text.get(start..).unwrap_or_default().to_owned()
}

/// A message that grows line by line and stops growing when it is full.
#[derive(Debug, Default, Clone)]
pub(super) struct Message(String);

impl Message {
    pub(super) fn line(&mut self, line: &str) {
        let room = MAX_MESSAGE.saturating_sub(self.0.len() + 1);
        if room == 0 || (self.0.is_empty() && line.trim().is_empty()) {
            return;
        }
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(&cut(line, room));
    }

    pub(super) fn finish(self) -> Option<String> {
        let text = self.0.trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// A path of the workspace from what a runner printed, if it is inside.
pub(crate) fn workspace_path(root: &str, printed: &str) -> Option<String> {
    let path = printed.trim().trim_matches(['\'', '"']);
    let path = path.strip_prefix("file://").unwrap_or(path);
    let root = root.trim_end_matches('/');
    let below = match path.strip_prefix('/') {
        Some(_) => path.strip_prefix(root)?.strip_prefix('/')?,
        None => path.strip_prefix("./").unwrap_or(path),
    };
    let normal = format!("/{below}");
    fluffy_policy::path::normalise(&normal)
        .ok()
        .map(Cow::into_owned)
        .filter(|normal| normal != "/")
}

/// Splits `path:line:column` or `path:line` at its end.
pub(super) fn place(text: &str) -> Option<(&str, u32)> {
    let text = text.trim().trim_matches(['\'', '"', '(', ')']);
    let (rest, last) = text.rsplit_once(':')?;
    let last: u32 = last.parse().ok()?;
    match rest.rsplit_once(':') {
        Some((path, line)) if line.parse::<u32>().is_ok() => Some((path, line.parse().ok()?)),
        Some(_) | None => Some((rest, last)),
    }
}

/// Whether two paths of a workspace may mean the same file.
///
/// Runners print paths relative to a package, so one may be the end of the
/// other.
#[must_use]
pub fn same_file(left: &str, right: &str) -> bool {
    let (short, long) = match left.len() <= right.len() {
        true => (left, right),
        false => (right, left),
    };
    let short = short.trim_start_matches('/');
    !short.is_empty()
        && long
            .strip_suffix(short)
            .is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// How far a line is indented.
pub(super) fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_go_and_nothing_else_does() {
        assert_eq!(plain("a\u{1b}[1;31mred\u{1b}[0m b"), "ared b");
        assert_eq!(plain("\u{1b}x\u{1b}["), "x");
        assert_eq!(plain("\u{1b}[3\nnext"), "\nnext");
    }

    #[test]
    fn cutting_never_splits_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        let long = "é".repeat(MAX_MESSAGE);
        assert!(tail(&long).len() <= MAX_MESSAGE);
    }

    #[test]
    fn paths_outside_the_project_are_unknown() {
        let path = |printed| workspace_path("/work/demo", printed);
        assert_eq!(path("/work/demo/src/a.rs").as_deref(), Some("/src/a.rs"));
        assert_eq!(path("file:///work/demo/a.js").as_deref(), Some("/a.js"));
        assert_eq!(path("./tests/a.py").as_deref(), Some("/tests/a.py"));
        assert_eq!(path("/work/demolition/a.rs"), None);
        assert_eq!(path("../py/lib/a.py"), None);
        assert_eq!(path("/usr/lib/python3/socket.py"), None);
    }

    #[test]
    fn places_have_a_line() {
        assert_eq!(place("a.rs:3:9"), Some(("a.rs", 3)));
        assert_eq!(place("a.py:12"), Some(("a.py", 12)));
        assert_eq!(place("'/x/a.js:7:1'"), Some(("/x/a.js", 7)));
        assert_eq!(place("a.py"), None);
    }

    #[test]
    fn a_file_may_be_named_from_its_package() {
        assert!(same_file("/crates/a/tests/x.rs", "/tests/x.rs"));
        assert!(same_file("/tests/x.rs", "/tests/x.rs"));
        assert!(!same_file("/my-tests/x.rs", "/tests/x.rs"));
        assert!(!same_file("/a", "/"));
    }
}
