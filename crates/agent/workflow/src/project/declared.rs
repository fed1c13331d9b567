//! The names of tests in a file, before anything runs.
//!
//! When a file does not compile, nothing of it runs, and its tests are known
//! only from their text. The names found here are the innermost ones:
//! [`names_it`] says whether a runner's longer name means the same test.

use super::rust;

/// The most tests that are looked for in one file.
pub const MAX_TESTS: usize = 5_000;

/// A test that a file declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The innermost name: of the function, or the title.
    pub name: String,
    /// The line, from 1.
    pub line: u32,
}

/// The tests that a file declares, by the language its name shows.
#[must_use]
pub fn declared(path: &str, text: &str) -> Vec<Declared> {
    let ending = path.rsplit('.').next().unwrap_or_default();
    let mut found = match ending {
        "rs" => in_rust(text),
        "py" => by_line(text, in_python),
        "go" => by_line(text, in_go),
        "js" | "jsx" | "ts" | "tsx" | "mjs" | "cjs" | "mts" | "cts" => by_line(text, in_javascript),
        _ => Vec::new(),
    };
    found.truncate(MAX_TESTS);
    found
}

/// Whether a runner's name for a test means this declared one.
#[must_use]
pub fn names_it(runner: &str, declared: &str) -> bool {
    // pytest's parameters and Go's subtests are more of the same test.
    let name = match runner.ends_with(']') {
        true => runner.split_once('[').map_or(runner, |(name, _)| name),
        false => runner,
    };
    if name == declared || name.split('/').next() == Some(declared) {
        return true;
    }
    let before = name.strip_suffix(declared).unwrap_or_default();
    ["::", " > ", " ", "."]
        .iter()
        .any(|separator| before.ends_with(separator))
}

fn in_rust(text: &str) -> Vec<Declared> {
    let functions = rust::test_functions(text).unwrap_or_default();
    let declared = functions.into_iter().map(|function| Declared {
        name: function
            .path
            .rsplit("::")
            .next()
            .unwrap_or_default()
            .to_owned(),
        line: function.line,
    });
    declared.collect()
}

fn by_line(text: &str, name: impl Fn(&str) -> Option<String>) -> Vec<Declared> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(name) = name(line.trim()) {
            let line = u32::try_from(at).unwrap_or(u32::MAX).saturating_add(1);
            found.push(Declared { name, line });
        }
    }
    found
}

fn in_python(line: &str) -> Option<String> {
    let rest = line
        .strip_prefix("async ")
        .unwrap_or(line)
        .strip_prefix("def ")?;
    let (name, _) = rest.split_once('(')?;
    name.starts_with("test").then(|| name.trim().to_owned())
}

fn in_go(line: &str) -> Option<String> {
    let (name, _) = line.strip_prefix("func ")?.split_once('(')?;
    let kinds = ["Test", "Fuzz", "Example", "Benchmark"];
    kinds
        .iter()
        .any(|kind| name.starts_with(kind))
        .then(|| name.to_owned())
}

/// `test('title', …`, `it.only("title", …`.
fn in_javascript(line: &str) -> Option<String> {
    let line = line.strip_prefix("await ").unwrap_or(line);
    let rest = line.strip_prefix("test").or(line.strip_prefix("it"))?;
    let (modifiers, rest) = rest.split_once('(')?;
    let plain = modifiers
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '.');
    if !plain || !(modifiers.is_empty() || modifiers.starts_with('.')) {
        return None;
    }
    let rest = rest.trim_start();
    let quote = rest
        .chars()
        .next()
        .filter(|c| matches!(c, '\'' | '"' | '`'))?;
    let mut title = String::new();
    let mut escaped = false;
    for character in rest.chars().skip(1).take(400) {
        match character {
            _ if escaped => {
                title.push(character);
                escaped = false;
            }
            '\\' => escaped = true,
            c if c == quote => return Some(title),
            c => title.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str, text: &str) -> Vec<String> {
        declared(path, text)
            .into_iter()
            .map(|test| test.name)
            .collect()
    }

    #[test]
    fn tests_are_found_in_every_language() {
        assert_eq!(names("/a.rs", "#[test]\nfn one() {}\nfn two() {}"), ["one"]);
        let python = "class TestA:\n    def test_x(self):\n    async def test_y():\ndef help():";
        assert_eq!(names("/a.py", python), ["test_x", "test_y"]);
        assert_eq!(
            names("/a_test.go", "func TestA(t *testing.T) {\nfunc a() {"),
            ["TestA"]
        );
        let script =
            "test('it\\'s', () => {});\n it.only(\"b\", x)\ntesting('no')\nitem('no')\ntest(name)";
        assert_eq!(names("/a.test.ts", script), ["it's", "b"]);
        assert_eq!(names("/a.txt", "test('a')"), Vec::<String>::new());
    }

    #[test]
    fn longer_names_mean_the_same_test() {
        for runner in [
            "config::tests::a",
            "a",
            "tests/x.py::TestA::a",
            "x > a",
            "num a",
            "a[1-2]",
            "a/sub",
        ] {
            assert!(names_it(runner, "a"), "{runner}");
        }
        for runner in ["ba", "a::b", "", "[a]"] {
            assert!(!names_it(runner, "a"), "{runner}");
        }
    }
}
