//! What a session's layer changes, as the guards see it.
//!
//! Built from the texts of changed files, so that it cannot be talked about:
//! neither a tool call nor a model's summary is asked. Used by
//! [`crate::machine`] and [`crate::gate`].

use std::collections::BTreeSet;

use fluffy_base::Digest;

use crate::evidence::{ChangedFile, Freeze};
use crate::project::additions::only_adds;
use crate::project::parts::{Class, Mixture, Part, Parts};
use crate::project::rust;

/// What differs between a session's layer and its project.
///
/// The kernel compares files, not calls: what a shell command wrote is in
/// here like everything else. What a build leaves behind and the project
/// ignores may be left out, but never what tests run with: `node_modules`,
/// virtual environments and the like count as configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Files whose source differs.
    pub source: BTreeSet<String>,
    /// Files whose tests differ.
    pub tests: BTreeSet<String>,
    /// Files whose test configuration differs.
    pub configuration: BTreeSet<String>,
    /// Files with a change that only a person may let pass: an edit to a test
    /// that existed before the session, or to how tests run.
    pub sensitive: BTreeSet<String>,
    /// Tests and configuration as they are now.
    pub freeze: Freeze,
}

impl Changes {
    /// Looks at every file that the layer changes.
    #[must_use]
    pub fn of(files: &[ChangedFile<'_>]) -> Self {
        let mut changes = Self::default();
        let frozen: Vec<(&str, Parts)> = files
            .iter()
            .filter_map(|file| Some((file.path, changes.add(file)?)))
            .collect();
        changes.freeze = Freeze::of(frozen);
        changes
    }

    /// Sorts one file in, and gives it back if a part of it is to be frozen.
    fn add(&mut self, file: &ChangedFile<'_>) -> Option<Parts> {
        let before = Parts::of(file.class, file.before);
        let after = Parts::of(file.class, file.after);
        let mut touched = Parts::touched(&before, &after);
        // A comment in a manifest is in no part, and still a change.
        if touched.is_empty() && file.before != file.after {
            touched.insert(Part::Source);
        }
        let path = || file.path.to_owned();
        if touched.contains(&Part::Source) {
            self.source.insert(path());
        }
        if touched.contains(&Part::Test) {
            self.tests.insert(path());
            if edits_existing_tests(file) {
                self.sensitive.insert(path());
            }
        }
        if touched.contains(&Part::Configuration) {
            self.configuration.insert(path());
            self.sensitive.insert(path());
        }
        let frozen = touched.contains(&Part::Test) || touched.contains(&Part::Configuration);
        frozen.then_some(after)
    }

    /// Every changed file.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<&str> {
        let all = [&self.source, &self.tests, &self.configuration];
        all.into_iter().flatten().map(String::as_str).collect()
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths().is_empty()
    }
}

/// A digest of the source of every file, to see whether any of it changed.
#[must_use]
pub fn source_digest(files: &[ChangedFile<'_>]) -> Digest {
    let mut entries = BTreeSet::new();
    for file in files {
        let (before, after) = (
            Parts::of(file.class, file.before),
            Parts::of(file.class, file.after),
        );
        let (old, new) = (before.digest(Part::Source), after.digest(Part::Source));
        if old != new {
            let new = new.map_or_else(String::new, |digest| digest.to_string());
            entries.insert(format!("{}\n{new}\n", file.path));
        }
    }
    let parts: Vec<&[u8]> = entries.iter().map(String::as_bytes).collect();
    Digest::of_parts(&parts)
}

/// Whether a test that was there before means something else now.
fn edits_existing_tests(file: &ChangedFile<'_>) -> bool {
    let Some(before) = file.before else {
        return false;
    };
    let Some(after) = file.after else {
        return true;
    };
    match file.class {
        Class::Whole(_) => !only_adds(before, after),
        Class::Mixed(Mixture::Rust) => match (tests_of(before), tests_of(after)) {
            (Some(before), Some(after)) => !only_adds(&before, &after),
            (Some(_) | None, _) => true,
        },
        Class::Mixed(_) => true,
    }
}

/// The text of all test regions of a Rust file.
fn tests_of(text: &str) -> Option<String> {
    let regions = rust::regions(text).ok()?;
    let mut tests = String::new();
    for region in regions {
        // The indentation of the first line belongs to the layout.
        let start = text
            .get(..region.bytes.start)?
            .rfind('\n')
            .map_or(0, |at| at + 1);
        tests.push_str(text.get(start..region.bytes.end)?);
        tests.push('\n');
    }
    Some(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file<'a>(
        path: &'a str,
        class: Class,
        before: Option<&'a str>,
        after: &'a str,
    ) -> ChangedFile<'a> {
        ChangedFile {
            path,
            class,
            before,
            after: Some(after),
        }
    }

    const RUST: Class = Class::Mixed(Mixture::Rust);
    const OLD: &str = "fn a() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n}\n";

    #[test]
    fn new_tests_are_not_sensitive_and_changed_ones_are() {
        let added = OLD.replace(
            "    fn one() {}\n",
            "    fn one() {}\n    #[test]\n    fn two() {}\n",
        );
        let changes = Changes::of(&[file("/src/a.rs", RUST, Some(OLD), &added)]);
        assert!(changes.sensitive.is_empty() && changes.source.is_empty());
        assert_eq!(changes.tests.len(), 1);
        let edited = OLD.replace("fn one() {}", "fn one() { let _ = 1; }");
        let changes = Changes::of(&[file("/src/a.rs", RUST, Some(OLD), &edited)]);
        assert_eq!(changes.sensitive.len(), 1);
        let gone = ChangedFile {
            path: "/src/a.rs",
            class: RUST,
            before: Some(OLD),
            after: None,
        };
        assert_eq!(Changes::of(&[gone]).sensitive.len(), 1);
        let first = Changes::of(&[file("/src/a.rs", RUST, Some("fn a() {}\n"), OLD)]);
        assert!(first.sensitive.is_empty() && first.source.is_empty());
    }

    #[test]
    fn configuration_is_always_sensitive() {
        let class = Class::Whole(Part::Configuration);
        let changes = Changes::of(&[file("/conftest.py", class, None, "x")]);
        assert_eq!(
            (changes.sensitive.len(), changes.configuration.len()),
            (1, 1)
        );
        assert!(!changes.freeze.is_empty());
    }

    #[test]
    fn a_comment_in_a_manifest_is_a_change_of_source() {
        let class = Class::Mixed(Mixture::Cargo);
        let changes = Changes::of(&[file("/Cargo.toml", class, Some("a = 1"), "a = 1 # b")]);
        assert_eq!(changes.source.len(), 1);
    }

    #[test]
    fn the_digest_of_source_does_not_see_tests() {
        let added = OLD.replace(
            "    fn one() {}\n",
            "    fn one() {}\n    #[test]\n    fn two() {}\n",
        );
        let (tests, nothing) = ([file("/a.rs", RUST, Some(OLD), &added)], []);
        assert_eq!(source_digest(&tests), source_digest(&nothing));
        let code = OLD.replace("fn a() {}", "fn a() { b() }");
        assert_ne!(
            source_digest(&[file("/a.rs", RUST, Some(OLD), &code)]),
            source_digest(&nothing)
        );
    }
}
