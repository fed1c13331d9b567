//! Which tests a changed file holds, under which names.
//!
//! Runners and files name the same test differently; here they are brought
//! together. A name that fits nowhere belongs to no changed file.

use std::collections::{BTreeMap, BTreeSet};

use super::Baseline;
use crate::project::declared::{declared, names_it};
use crate::project::parts::{Class, Mixture, Part, compare};
use crate::project::rust;
use crate::results::{CompileError, TestResult, same_file};

/// A file that the session changed, before and now.
#[derive(Debug, Clone, Copy)]
pub struct ChangedFile<'a> {
    /// Its path in the workspace.
    pub path: &'a str,
    /// What kind of file it is.
    pub class: Class,
    /// Its text in the project, if it was there.
    pub before: Option<&'a str>,
    /// Its text now, if it still is there.
    pub after: Option<&'a str>,
}

/// A changed file whose tests differ.
pub(super) struct Looked<'a> {
    pub(super) file: &'a ChangedFile<'a>,
    text: &'a str,
    before: Names,
    now: Names,
}

/// The tests that one version of a file declares.
///
/// A run can have a hundred thousand results, so that a name is compared only
/// with the declared names that end in the same word.
#[derive(Default)]
struct Names(BTreeMap<String, BTreeSet<String>>);

impl Names {
    fn of(names: impl IntoIterator<Item = String>) -> Self {
        let mut by_word = Self::default();
        for name in names {
            let word = last_word(&name).to_owned();
            by_word.0.entry(word).or_default().insert(name);
        }
        by_word
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        self.0.values().flatten().map(String::as_str)
    }

    /// The names that a runner's name could end in.
    fn like(&self, runner: &str) -> impl Iterator<Item = &str> {
        let found = endings(runner)
            .into_iter()
            .filter_map(|word| self.0.get(word));
        found.flatten().map(String::as_str)
    }

    fn contains(&self, name: &str) -> bool {
        self.0
            .get(last_word(name))
            .is_some_and(|names| names.contains(name))
    }
}

/// The words that a declared name must end in to be what a runner names.
pub(super) fn endings(runner: &str) -> Vec<&str> {
    // Parameters and subtests follow the name: `a[1]`, `a/sub`.
    let base = match runner.ends_with(']') {
        true => runner.split_once('[').map_or(runner, |(name, _)| name),
        false => runner,
    };
    let first = base.split('/').next().unwrap_or_default();
    let mut words = vec![last_word(runner), last_word(base), last_word(first)];
    words.sort_unstable();
    words.dedup();
    words
}

fn last_word(name: &str) -> &str {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let end = name.trim_end_matches(|c| !is_word(c));
    let before = end.trim_end_matches(is_word);
    end.get(before.len()..).unwrap_or_default()
}

impl<'a> Looked<'a> {
    /// Looks at a file; `None` if its tests are as they were.
    pub(super) fn at(file: &'a ChangedFile<'a>) -> Option<Self> {
        let touched = compare(file.class, file.before, file.after);
        let text = file.after?;
        let names = |text: &str| match file.class {
            // With their modules, so that equal names in two files differ.
            Class::Mixed(Mixture::Rust) => {
                let functions = rust::test_functions(text).unwrap_or_default();
                Names::of(functions.into_iter().map(|function| function.path))
            }
            Class::Mixed(_) | Class::Whole(_) => {
                let declared = declared(file.path, text).into_iter();
                Names::of(declared.map(|test| test.name))
            }
        };
        touched.contains(&Part::Test).then(|| Self {
            file,
            text,
            before: file.before.map(names).unwrap_or_default(),
            now: names(text),
        })
    }

    /// Those of the names that are what a runner calls its test.
    fn matching<'n>(&'n self, names: &'n Names, runner: &'n str) -> impl Iterator<Item = &'n str> {
        let is_rust = self.file.class == Class::Mixed(Mixture::Rust);
        names.like(runner).filter(move |name| match is_rust {
            true => runner
                .strip_suffix(*name)
                .is_some_and(|around| fits_module(self.file.path, around)),
            false => names_it(runner, name),
        })
    }

    fn declares(&self, names: &Names, runner: &str) -> bool {
        self.matching(names, runner).next().is_some()
    }

    /// The names under which the project's version has this test.
    pub(super) fn declared_before<'n>(
        &'n self,
        result: &'n TestResult,
    ) -> impl Iterator<Item = &'n str> {
        self.matching(&self.before, &result.name)
    }

    /// The words that the names of its tests end in.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.now.0.keys().map(String::as_str)
    }

    /// Whether the test that a runner names is in this file.
    pub(super) fn holds(&self, result: &TestResult) -> bool {
        let own = result.file.as_deref();
        self.declares(&self.now, &result.name)
            || own.is_some_and(|file| same_file(file, self.file.path))
    }

    /// Whether a compile error is in this file's tests.
    pub(super) fn is_in_tests(&self, error: &CompileError) -> bool {
        let own = error.file.as_deref();
        if !own.is_some_and(|file| same_file(file, self.file.path)) {
            return false;
        }
        match self.file.class {
            Class::Whole(part) => part == Part::Test,
            Class::Mixed(Mixture::Rust) => {
                let regions = rust::regions(self.text).unwrap_or_default();
                let line = error.line.unwrap_or_default();
                regions.iter().any(|region| region.lines.contains(&line))
            }
            Class::Mixed(_) => false,
        }
    }

    /// The names of tests that did not compile: the new ones, or if none is
    /// new those that ran under a name of the baseline.
    pub(super) fn unrunnable(&self, baseline: &Baseline) -> Vec<String> {
        let new = self.now.all().filter(|name| !self.before.contains(name));
        let new: Vec<String> = new
            .map(|name| name.rsplit("::").next().unwrap_or_default().to_owned())
            .collect();
        if !new.is_empty() {
            return new;
        }
        let ran = |key: &&str| {
            let name = key.rsplit(' ').next().unwrap_or_default();
            self.declares(&self.now, key) || self.declares(&self.now, name)
        };
        baseline
            .passing()
            .filter(ran)
            .map(ToOwned::to_owned)
            .collect()
    }
}

/// Whether modules such as `config::` can be those of a file.
fn fits_module(path: &str, around: &str) -> bool {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let stem = path.rsplit('/').next().unwrap_or_default();
    match around.strip_suffix("::") {
        None => around.is_empty(),
        Some(modules) => {
            matches!(stem, "lib" | "main") || modules.rsplit("::").next() == Some(stem)
        }
    }
}
