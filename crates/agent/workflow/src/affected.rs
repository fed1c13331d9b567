//! Which existing tests touch what is about to change.
//!
//! Told to the model before it writes, because that is what prevents
//! regressions. Found by imports and by names, because reports of coverage do
//! not say which test reached a line; it may name a test too many and is never
//! a reason to run fewer.

use serde::{Deserialize, Serialize};

use crate::project::rust;

/// The most tests that are named.
pub const MAX_AFFECTED: usize = 100;

/// A file that holds tests, and its text.
#[derive(Debug, Clone, Copy)]
pub struct TestFile<'a> {
    /// Its path in the workspace.
    pub path: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// A test file that touches what is about to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affected {
    /// The test file.
    pub test: String,
    /// The file that is about to change.
    pub changes: String,
    /// How they are connected.
    pub because: Because,
}

/// How a test touches a file, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The tests are in the file itself.
    Inside,
    /// The test imports it.
    Imported,
    /// The test is in the same package.
    Package,
    /// The test mentions its name.
    Named,
}

/// The tests that touch files, surest first.
#[must_use]
pub fn affected(changing: &[&str], tests: &[TestFile<'_>]) -> Vec<Affected> {
    let mut found = Vec::new();
    for file in changing {
        let names = Names::of(file);
        for test in tests {
            found.extend(names.touched_by(test).map(|because| Affected {
                test: test.path.to_owned(),
                changes: (*file).to_owned(),
                because,
            }));
        }
    }
    found.sort_by(|left, right| {
        let key = |found: &Affected| (found.because, found.test.clone(), found.changes.clone());
        key(left).cmp(&key(right))
    });
    found.truncate(MAX_AFFECTED);
    found
}

/// What a file is called in imports.
struct Names<'a> {
    path: &'a str,
    folder: &'a str,
    /// Without folder and ending; of `mod.rs` and the like, the folder's name.
    stem: &'a str,
    ending: &'a str,
}

impl<'a> Names<'a> {
    fn of(path: &'a str) -> Self {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
        let stem = match stem {
            "mod" | "lib" | "main" | "index" | "__init__" => {
                let folder = folder.strip_suffix("/src").unwrap_or(folder);
                folder.rsplit('/').next().unwrap_or_default()
            }
            stem => stem,
        };
        Self {
            path,
            folder,
            stem,
            ending,
        }
    }

    fn touched_by(&self, test: &TestFile<'_>) -> Option<Because> {
        if test.path == self.path {
            let has_tests = rust::regions(test.text).is_ok_and(|regions| !regions.is_empty());
            return has_tests.then_some(Because::Inside);
        }
        let imported = match self.ending {
            "rs" => test.text.lines().any(|line| self.in_rust(line)),
            "py" => test.text.lines().any(|line| self.in_python(line)),
            "js" | "jsx" | "ts" | "tsx" | "mjs" | "cjs" | "mts" | "cts" => {
                let folder = test.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                test.text
                    .lines()
                    .any(|line| self.in_javascript(line, folder))
            }
            _ => false,
        };
        if imported {
            return Some(Because::Imported);
        }
        let same_folder =
            test.path.rsplit_once('/').map_or("", |(folder, _)| folder) == self.folder;
        let is_go = self.ending == "go" && test.path.ends_with("_test.go") && same_folder;
        if is_go || self.is_root_of(test.path) {
            return Some(Because::Package);
        }
        // A short name is a word of every language.
        let named = self.stem.len() >= 4 && has_word(test.text, self.stem);
        named.then_some(Because::Named)
    }

    /// Whether it is the root of the crate whose integration tests these are:
    /// everything they use of it goes through there.
    fn is_root_of(&self, test: &str) -> bool {
        let package = self.folder.strip_suffix("/src");
        let is_root = self.path.ends_with("/lib.rs") || self.path.ends_with("/main.rs");
        let tests = package.and_then(|package| test.strip_prefix(package));
        is_root && tests.is_some_and(|below| below.starts_with("/tests/"))
    }

    /// `use demo::config::parse;`, `demo::config::parse()`.
    fn in_rust(&self, line: &str) -> bool {
        let line = line.trim_start();
        !self.stem.is_empty()
            && (line.starts_with("use ") || line.starts_with("pub use ") || line.contains("::"))
            && has_word(line, &self.stem.replace('-', "_"))
    }

    /// `from app.config import parse`, `import app.config`, `from app import config`.
    fn in_python(&self, line: &str) -> bool {
        let line = line.trim_start();
        (line.starts_with("from ") || line.starts_with("import "))
            && !self.stem.is_empty()
            && has_word(line, self.stem)
    }

    /// `from '../src/config.js'`, `require('./config')`.
    fn in_javascript(&self, line: &str, folder: &str) -> bool {
        let is_import =
            line.contains("import") || line.contains("require") || line.contains(" from ");
        if !is_import {
            return false;
        }
        line.split(['\'', '"', '`'])
            .skip(1)
            .step_by(2)
            .any(|named| {
                let Some(resolved) = resolve(folder, named) else {
                    return false;
                };
                let without = |path: &str| {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let ending = name.rfind('.').map_or(0, |at| name.len() - at);
                    let path = path.get(..path.len() - ending).unwrap_or(path);
                    path.strip_suffix("/index").unwrap_or(path).to_owned()
                };
                resolved == self.path
                    || without(&resolved) == without(self.path)
                    || resolved == without(self.path)
            })
    }
}

/// A relative import as a path of the workspace.
fn resolve(folder: &str, named: &str) -> Option<String> {
    if !named.starts_with('.') {
        return None;
    }
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for part in named.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(format!("/{}", names.join("/")))
}

/// Whether a text holds a word, and not only as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|text| text.chars().next_back());
        let after = text
            .get(at + word.len()..)
            .and_then(|text| text.chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn because(file: &str, test: &str, text: &str) -> Option<Because> {
        let tests = [TestFile { path: test, text }];
        let found = affected(&[file], &tests);
        found.first().map(|found| found.because)
    }

    #[test]
    fn imports_connect_tests_and_files() {
        use Because::*;
        for (file, test, text, expected) in [
            (
                "/src/config.rs",
                "/tests/a.rs",
                "use demo::config::parse;",
                Some(Imported),
            ),
            (
                "/src/config.rs",
                "/tests/a.rs",
                "demo::config::parse()",
                Some(Imported),
            ),
            (
                "/crates/demo/src/lib.rs",
                "/tests/a.rs",
                "use demo::x;",
                Some(Imported),
            ),
            (
                "/src/lib.rs",
                "/tests/a.rs",
                "fn a() { demo::x(); }",
                Some(Package),
            ),
            (
                "/crates/demo/src/main.rs",
                "/crates/demo/tests/cli/a.rs",
                "",
                Some(Package),
            ),
            ("/crates/demo/src/lib.rs", "/tests/a.rs", "", None),
            ("/src/a/lib.rs", "/tests/a.rs", "", None),
            (
                "/src/config/mod.rs",
                "/tests/a.rs",
                "use demo::{a, config};",
                Some(Imported),
            ),
            (
                "/src/config.rs",
                "/src/config.rs",
                "#[cfg(test)] mod tests {}",
                Some(Inside),
            ),
            ("/src/config.rs", "/src/config.rs", "fn a() {}", None),
            (
                "/src/config.rs",
                "/tests/a.rs",
                "use demo::reconfigured;",
                None,
            ),
            (
                "/app/config.py",
                "/tests/test_a.py",
                "from app.config import parse",
                Some(Imported),
            ),
            (
                "/app/config.py",
                "/tests/test_a.py",
                "from app import config",
                Some(Imported),
            ),
            (
                "/app/__init__.py",
                "/tests/test_a.py",
                "import app",
                Some(Imported),
            ),
            (
                "/app/config.py",
                "/tests/test_a.py",
                "x = config_of(1)",
                None,
            ),
            (
                "/src/config.js",
                "/test/a.test.js",
                "import { p } from '../src/config.js';",
                Some(Imported),
            ),
            (
                "/src/config.ts",
                "/test/a.test.ts",
                "import { p } from '../src/config';",
                Some(Imported),
            ),
            (
                "/src/config.ts",
                "/test/a.test.ts",
                "import { p } from '../src/config.js';",
                Some(Imported),
            ),
            (
                "/src/a/index.ts",
                "/src/b.test.ts",
                "const a = require('./a');",
                Some(Imported),
            ),
            (
                "/src/config.js",
                "/test/a.test.js",
                "import p from '../lib/config.js';",
                Some(Named),
            ),
            (
                "/pkg/config.go",
                "/pkg/other_test.go",
                "package pkg",
                Some(Package),
            ),
            (
                "/pkg/config.go",
                "/other/other_test.go",
                "package other",
                None,
            ),
            (
                "/data/schema.sql",
                "/tests/a.py",
                "open('schema.sql')",
                Some(Named),
            ),
            ("/src/io.c", "/tests/a.c", "io", None),
        ] {
            assert_eq!(because(file, test, text), expected, "{file} {text}");
        }
    }

    #[test]
    fn the_surest_come_first() {
        let file = |path, text| TestFile { path, text };
        let tests = [
            file("/tests/a.py", "# config"),
            file("/tests/b.py", "import config"),
        ];
        let found = affected(&["/config.py"], &tests);
        let found: Vec<(&str, Because)> =
            found.iter().map(|f| (f.test.as_str(), f.because)).collect();
        assert_eq!(
            found,
            [
                ("/tests/b.py", Because::Imported),
                ("/tests/a.py", Because::Named)
            ]
        );
    }

    #[test]
    fn an_import_that_climbs_out_is_ignored() {
        assert_eq!(because("/a.js", "/t.test.js", "import '../../a.js'"), None);
    }
}
