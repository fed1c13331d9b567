//! Whether a change to a test file only adds tests.
//!
//! An edit to a test that existed before goes to a person; a new test beside
//! it does not. This reads lines, so it is careful: whenever it is not clear
//! that every old test still means what it meant, the answer is no.

use std::collections::BTreeSet;

/// Whether everything that was there is still there and means the same.
#[must_use]
pub fn only_adds(before: &str, after: &str) -> bool {
    let old: Vec<&str> = lines(before).collect();
    let new: Vec<&str> = lines(after).collect();
    let Some(hunks) = insertions(&old, &new) else {
        return false;
    };
    let known: BTreeSet<&str> = old.iter().flat_map(|line| words(line)).collect();
    hunks.iter().all(|hunk| hunk.is_harmless(&known))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.filter(|word| !word.is_empty())
}

/// Lines that were inserted, and what stands around them.
struct Hunk<'a> {
    lines: &'a [&'a str],
    previous: Option<&'a str>,
    next: Option<&'a str>,
}

/// The inserted runs of lines, if nothing was removed or changed.
fn insertions<'a>(old: &[&'a str], new: &'a [&'a str]) -> Option<Vec<Hunk<'a>>> {
    let mut hunks = Vec::new();
    let mut rest = old.iter();
    let mut wanted = rest.next();
    let mut start = 0;
    for (at, line) in new.iter().enumerate() {
        if wanted == Some(line) {
            if start < at {
                hunks.push(hunk(new, start, at)?);
            }
            start = at + 1;
            wanted = rest.next();
        }
    }
    if start < new.len() {
        hunks.push(hunk(new, start, new.len())?);
    }
    wanted.is_none().then_some(hunks)
}

fn hunk<'a>(new: &'a [&'a str], start: usize, end: usize) -> Option<Hunk<'a>> {
    let previous = start.checked_sub(1).and_then(|at| new.get(at));
    Some(Hunk {
        lines: new.get(start..end)?,
        previous: previous.copied(),
        next: new.get(end).copied(),
    })
}

impl Hunk<'_> {
    fn is_harmless(&self, known: &BTreeSet<&str>) -> bool {
        let base = self
            .lines
            .iter()
            .map(|line| depth(line))
            .min()
            .unwrap_or_default();
        let next = self.next.map_or(0, depth);
        // What follows must not become part of what is new, and what is new
        // must not hang on to what stands before it.
        let ends = self.lines.last().is_some_and(|line| !is_open(line));
        let starts = self.previous.is_none_or(|line| !is_decoration(line));
        next <= base && ends && starts && self.is_balanced() && self.is_new(base, known)
    }

    /// Brackets that are opened are closed, in order.
    fn is_balanced(&self) -> bool {
        let mut depth = 0i64;
        for character in self.lines.iter().flat_map(|line| line.chars()) {
            match character {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            if depth < 0 {
                return false;
            }
        }
        depth == 0
    }

    /// Every outermost line starts something new, under a name not used yet.
    fn is_new(&self, base: usize, known: &BTreeSet<&str>) -> bool {
        let outermost = self.lines.iter().filter(|line| depth(line) == base);
        let mut outermost = outermost.map(|line| line.trim_start());
        // A fixture that applies itself reaches every test of the file.
        let by_itself = self.lines.iter().any(|line| line.contains("autouse"));
        !by_itself
            && outermost.all(|line| {
                if line.starts_with(['}', ')', ']']) || is_decoration(line) || is_comment(line) {
                    return true;
                }
                match introduced(line) {
                    None => false,
                    Some(names) => {
                        !names.is_empty() && !names.iter().any(|name| known.contains(name))
                    }
                }
            })
    }
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// A decorator or attribute belongs to what follows it.
fn is_decoration(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with('@') || line.starts_with("#[")
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || (line.starts_with('#') && !line.starts_with("#["))
}

/// A line after which something is still to come.
fn is_open(line: &str) -> bool {
    is_decoration(line) || line.ends_with(['\\', ',', '(', '[', '{', '=', ':'])
}

/// The names that a line introduces; `None` if it does anything else.
fn introduced(line: &str) -> Option<Vec<&str>> {
    let tests = ["test(", "it(", "test.", "it.", "describe(", "describe."];
    if tests.iter().any(|start| line.starts_with(start)) {
        // A title is no name that anything could refer to.
        return Some(vec!["a new test's title"]);
    }
    // A second statement on the line could be anything.
    if line.trim_end_matches(';').contains(';') {
        return None;
    }
    let imports = ["use ", "pub use ", "import ", "from "];
    if imports.iter().any(|start| line.starts_with(start)) {
        return match line.contains('*') {
            true => None,
            false => Some(imported(line)),
        };
    }
    const KEYWORDS: &[&str] = &[
        "pub", "async", "export", "default", "unsafe", "static", "final", "def", "class", "fn",
        "func", "function", "mod", "struct", "enum", "const", "let", "var", "type", "trait",
    ];
    let mut words = words(line);
    let first = words.next()?;
    if !KEYWORDS.contains(&first) {
        return None;
    }
    let name = words.find(|word| !KEYWORDS.contains(word))?;
    (!is_hook(name)).then(|| vec![name])
}

/// Functions that a runner calls by their name, around every test.
fn is_hook(name: &str) -> bool {
    let starts = [
        "setup",
        "setUp",
        "teardown",
        "tearDown",
        "pytest_",
        "asyncSetUp",
        "asyncTearDown",
    ];
    starts.iter().any(|start| name.starts_with(start)) || matches!(name, "TestMain" | "init")
}

/// The names that an import binds: the last ones, or those after `as`.
fn imported(line: &str) -> Vec<&str> {
    let from_python = line.starts_with("from ");
    let tail = match from_python {
        true => line.split_once(" import ").map_or("", |(_, names)| names),
        false => line,
    };
    let tail = tail.split(" from ").next().unwrap_or_default();
    let groups = tail.split([',', '{', '}', ';', '(', ')']);
    let bound = groups.filter_map(|group| {
        // A group that ends in `::` is only the way to the names inside.
        match group.trim().ends_with("::") {
            true => None,
            false => words(group).last(),
        }
    });
    bound
        .filter(|word| !matches!(*word, "use" | "import"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUST: &str = "mod tests {\n    use super::*;\n\n    #[test]\n    fn old() {\n        check(1);\n    }\n}\n";
    const PYTHON: &str =
        "from app import parse\n\n\ndef test_old():\n    value = parse(1)\n    assert value\n";

    #[test]
    fn a_new_test_beside_old_ones_is_an_addition() {
        let after = RUST.replace(
            "    }\n}\n",
            "    }\n\n    #[test]\n    fn added() {\n        check(2);\n    }\n}\n",
        );
        assert!(only_adds(RUST, &after));
        assert!(only_adds(
            RUST,
            &after.replace("use super::*;", "use super::*;\n    use std::fmt;")
        ));
        assert!(only_adds(
            PYTHON,
            &format!("{PYTHON}\n\n@mark\ndef test_new():\n    assert 1\n")
        ));
        assert!(only_adds(PYTHON, &format!("import os\n{PYTHON}")));
        let script = "import { a } from './a.js';\ntest('old', () => {\n  a();\n});\n";
        assert!(only_adds(
            script,
            &format!("{script}test('new', () => {{\n  a();\n}});\n")
        ));
        let go = "package a\n\nfunc TestOld(t *testing.T) {\n\tx()\n}\n";
        assert!(only_adds(
            go,
            &format!("{go}\nfunc TestNew(t *testing.T) {{\n\ty()\n}}\n")
        ));
        assert!(only_adds(RUST, RUST));
    }

    #[test]
    fn whatever_reaches_an_old_test_is_not() {
        for (before, after) in [
            // Changed and removed.
            (RUST, RUST.replace("check(1)", "check(2)")),
            (RUST, RUST.replace("        check(1);\n", "")),
            // Switched off.
            (
                RUST,
                RUST.replace("    #[test]\n", "    #[test]\n    #[ignore]\n"),
            ),
            (
                RUST,
                RUST.replace("    #[test]\n", "    #[ignore]\n    #[test]\n"),
            ),
            (RUST, RUST.replace("mod tests", "#[cfg(any())]\nmod tests")),
            (
                RUST,
                RUST.replace("        check(1)", "        return;\n        check(1)"),
            ),
            (
                PYTHON,
                PYTHON.replace("def test_old", "@skip\ndef test_old"),
            ),
            (
                PYTHON,
                PYTHON.replace("    assert", "    return\n    assert"),
            ),
            (
                PYTHON,
                PYTHON.replace("    assert", "def test_new():\n    assert"),
            ),
            (
                PYTHON,
                PYTHON.replace(
                    "def test_old",
                    "def test_a():\n    pass\n@skip\ndef test_old",
                ),
            ),
            // Its end given to a new one.
            (
                PYTHON,
                PYTHON.replace("    assert", "def test_new():\n    pass\n    assert"),
            ),
            // Given another meaning.
            (
                RUST,
                RUST.replace("use super::*;", "use super::*;\n    use fake::check;"),
            ),
            (
                RUST,
                RUST.replace("use super::*;", "use super::*;\n    use fake::*;"),
            ),
            (
                RUST,
                RUST.replace("use super::*;", "use super::*;\n    fn check(_: i32) {}"),
            ),
            (
                RUST,
                RUST.replace(
                    "use super::*;",
                    "use super::*;\n    macro_rules! check { () => {} }",
                ),
            ),
            (PYTHON, format!("{PYTHON}\ndef parse(x):\n    return x\n")),
            (
                PYTHON,
                PYTHON.replace("\n\n\ndef", "\nfrom fake import better as parse\n\ndef"),
            ),
            (PYTHON, format!("{PYTHON}\nimport app; app.parse = str\n")),
            (PYTHON, format!("import os; parse = str\n{PYTHON}")),
            (
                PYTHON,
                format!("{PYTHON}\ndef setup_module():\n    skip()\n"),
            ),
            (
                PYTHON,
                format!("{PYTHON}\n@fixture(autouse=True)\ndef f():\n    skip()\n"),
            ),
            (PYTHON, format!("{PYTHON}\ndel test_old\n")),
            (PYTHON, format!("{PYTHON}\ntest_old = None\n")),
        ] {
            assert!(!only_adds(before, &after), "{after}");
        }
    }
}
