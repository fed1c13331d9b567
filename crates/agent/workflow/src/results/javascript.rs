//! Why a JavaScript test file could not be loaded.
//!
//! The runners differ, the errors underneath are Node's. Shared by the TAP
//! and JSON parsers.

use super::text;
use super::{CompileError, Remedy};

/// Reads what was printed while `own` was loaded.
pub(super) fn load_error(root: &str, own: &str, printed: &str) -> CompileError {
    let mut first_place: Option<(String, u32)> = None;
    let mut error: Option<(&str, Remedy)> = None;
    let mut blamed: Option<String> = None;
    let mut in_stack = false;
    for line in printed.lines().take(400) {
        let line = line.trim().trim_start_matches("● ");
        if first_place.is_none() {
            first_place = bare_place(root, line);
        }
        if let Some(found) = recognised(line)
            && error.is_none()
        {
            error = Some(found);
            blamed = importer(root, line);
        }
        if in_stack && blamed.is_none() {
            blamed = line
                .strip_prefix("- ")
                .and_then(|path| text::workspace_path(root, path));
        }
        in_stack = line.starts_with("Require stack:") || (in_stack && line.starts_with("- "));
    }
    let (message, remedy) = error.unwrap_or((first_line(printed), Remedy::Itself));
    let file = blamed
        .or_else(|| first_place.as_ref().map(|(path, _)| path.clone()))
        .unwrap_or_else(|| own.to_owned());
    let line = first_place.filter(|(path, _)| *path == file);
    CompileError {
        line: line.map(|(_, line)| line),
        // Jest names files from its own root, which may be below ours.
        file: Some(match text::same_file(&file, own) {
            true => own.to_owned(),
            false => file,
        }),
        message: text::cut(message, 400),
        remedy,
    }
}

/// Errors that Node gives when a file cannot be loaded.
fn recognised(line: &str) -> Option<(&str, Remedy)> {
    const MISSING: &[&str] = &[
        "does not provide an export named",
        "Cannot find module",
        "Cannot find package",
        "Failed to resolve import",
        "Failed to load url",
        "is not defined",
        "is not a function",
        "is not a constructor",
    ];
    if MISSING.iter().any(|text| line.contains(text)) {
        return Some((line, Remedy::Source));
    }
    let (kind, _) = line.split_once("Error")?;
    let one_word = kind.chars().all(char::is_alphanumeric);
    one_word.then_some((line, Remedy::Itself))
}

/// Whose import failed: `… imported from /a/b.js`, `… from 'b.js'`.
fn importer(root: &str, line: &str) -> Option<String> {
    let (_, path) = line.rsplit_once(" imported from ")?;
    text::workspace_path(root, path)
}

/// A line that is nothing but a place: `file:///a/b.js:3`.
fn bare_place(root: &str, line: &str) -> Option<(String, u32)> {
    let line = line.strip_prefix("at ").unwrap_or(line);
    let line = line.rsplit_once('(').map_or(line, |(_, place)| place);
    if line.starts_with("node:") || line.contains("node_modules") {
        return None;
    }
    let (path, number) = text::place(line)?;
    Some((text::workspace_path(root, path)?, number)).filter(|_| !path.contains(' '))
}

fn first_line(printed: &str) -> &str {
    let mut lines = printed.lines().map(str::trim);
    lines
        .find(|line| !line.is_empty())
        .unwrap_or("it could not be loaded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_importer_is_to_blame() {
        let error = |printed| load_error("/w", "/test/a.test.js", printed);
        let own = error("Error: Cannot find module '/w/src/x.js' imported from /w/test/a.test.js");
        assert_eq!(own.file.as_deref(), Some("/test/a.test.js"));
        assert_eq!(own.remedy, Remedy::Source);
        let other = error("Error: Cannot find module '/w/src/x.js' imported from /w/src/b.js");
        assert_eq!(other.file.as_deref(), Some("/src/b.js"));
        let required = error(
            "Error: Cannot find module './x'\nRequire stack:\n- /w/src/b.js\n- /w/test/a.test.js",
        );
        assert_eq!(required.file.as_deref(), Some("/src/b.js"));
    }

    #[test]
    fn a_malformed_file_has_itself_to_blame() {
        let error = load_error(
            "/w",
            "/test/a.test.js",
            "file:///w/test/a.test.js:1\ntest('x' => {\nSyntaxError: Malformed arrow function",
        );
        assert_eq!((error.remedy, error.line), (Remedy::Itself, Some(1)));
        let elsewhere = load_error("/w", "/test/a.test.js", "/w/src/b.js:9\n}}\nSyntaxError: x");
        assert_eq!(elsewhere.file.as_deref(), Some("/src/b.js"));
    }
}
