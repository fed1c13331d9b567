//! Which existing tests touch what a session is about to change.
//!
//! Looks at the project as the session sees it, leaves out what policy keeps
//! unread, and says what it found in a few lines for the model. It may name a
//! test too many; it is never a reason to run fewer. Next: `workflow::affected`.

use std::sync::{Arc, Mutex, PoisonError};

use fluffy_gate::Desk;
use fluffy_layer::{TreePath, View};
use fluffy_policy::Context;
use fluffy_tools::native::own_files;
use fluffy_tools::paths::shown;
use fluffy_workflow::affected::{Affected, Because, MAX_AFFECTED, TestFile, affected};
use fluffy_workflow::project::detect::Layout;
use fluffy_workflow::project::parts::{Class, Mixture, Part};
use fluffy_workflow::project::rust;

/// The most tests that the model is told of at once.
const MAX_TOLD: usize = 20;

/// The most files that may hold tests, the largest of them, and all together.
const MAX_FILES: usize = 5_000;
const MAX_FILE: u64 = 256 << 10;
const MAX_BYTES: usize = 16 << 20;

/// Which files may hold tests, as of the newest survey of the project.
///
/// Going through a large project takes a while, so it is done once for each.
#[derive(Debug, Default)]
pub(crate) struct TestFiles(Mutex<Option<Surveyed>>);

#[derive(Debug)]
struct Surveyed {
    layout: Arc<Layout>,
    files: Arc<[TreePath]>,
}

impl TestFiles {
    fn of(&self, layout: &Arc<Layout>, view: &View) -> Arc<[TreePath]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(surveyed) = &*known
            && Arc::ptr_eq(&surveyed.layout, layout)
        {
            return Arc::clone(&surveyed.files);
        }
        let own = own_files(view).unwrap_or_default().into_iter();
        let holding = own.filter(|path| {
            let class = path.resource().map(|resource| layout.class(&resource));
            class.is_some_and(holds_tests)
        });
        let files: Arc<[TreePath]> = holding.take(MAX_FILES).collect();
        *known = Some(Surveyed {
            layout: Arc::clone(layout),
            files: Arc::clone(&files),
        });
        files
    }
}

fn holds_tests(class: Class) -> bool {
    matches!(
        class,
        Class::Whole(Part::Test) | Class::Mixed(Mixture::Rust)
    )
}

/// One look at the tests, with everything it needs.
pub(crate) struct Look {
    pub(crate) view: View,
    pub(crate) tests: Arc<TestFiles>,
    /// Those of the files that no test reached last.
    pub(crate) unreached: Vec<String>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) desk: Desk,
    pub(crate) context: Context,
}

impl Look {
    /// The tests that touch these files, for the model; empty if none is known.
    pub(crate) fn tell(&self, changing: &[String]) -> String {
        let texts = self.texts();
        let tests: Vec<TestFile<'_>> = texts
            .iter()
            .map(|(path, text)| TestFile { path, text })
            .collect();
        let changing: Vec<&str> = changing.iter().map(String::as_str).collect();
        let mut text = told(&affected(&changing, &tests));
        for path in self.unreached.iter().take(MAX_TOLD) {
            let path = shown(path);
            text.push_str(&format!(
                "No test reached {path} when coverage was last measured.\n"
            ));
        }
        text
    }

    /// The texts of files that hold tests and may be read.
    fn texts(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut room = MAX_BYTES;
        for path in self.tests.of(&self.layout, &self.view).iter() {
            let Some(resource) = path.resource().filter(|_| room > 0) else {
                continue;
            };
            if let Some(text) = self.text(path, &resource) {
                room = room.saturating_sub(text.len());
                found.push((resource, text));
            }
        }
        found
    }

    fn text(&self, path: &TreePath, resource: &str) -> Option<String> {
        if !self.may_read(resource) {
            return None;
        }
        let bytes = self.view.read(path, MAX_FILE).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        match self.layout.class(resource) {
            Class::Whole(_) => Some(text),
            Class::Mixed(_) => inline_tests(&text),
        }
    }

    /// Not recorded one by one: nothing of the files but their names is told.
    fn may_read(&self, resource: &str) -> bool {
        let request = self.desk.request("fs.read", Some(resource), &self.context);
        self.desk.gate.would_allow(&request)
    }
}

/// Whether tests are sought for a file: it is source, at least in part.
pub(crate) fn is_source(layout: &Layout, resource: &str) -> bool {
    matches!(
        layout.class(resource),
        Class::Whole(Part::Source) | Class::Mixed(Mixture::Rust)
    )
}

/// The parts of a Rust source that are tests; none if it has none.
fn inline_tests(text: &str) -> Option<String> {
    let regions = rust::regions(text).ok()?;
    let parts = regions
        .iter()
        .filter_map(|region| text.get(region.bytes.clone()));
    let parts: Vec<&str> = parts.collect();
    (!parts.is_empty()).then(|| parts.join("\n"))
}

fn told(found: &[Affected]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let mut text = String::from("Existing tests that touch what changes, to be kept passing:\n");
    for one in found.iter().take(MAX_TOLD) {
        let (test, changes) = (shown(&one.test), shown(&one.changes));
        text.push_str(&match one.because {
            Because::Inside => format!("- {test} (its own tests)\n"),
            Because::Imported => format!("- {test} (imports {changes})\n"),
            Because::Package => format!("- {test} (same package as {changes})\n"),
            Because::Named => format!("- {test} (names {changes})\n"),
        });
    }
    match found.len().saturating_sub(MAX_TOLD) {
        0 => {}
        more if found.len() < MAX_AFFECTED => text.push_str(&format!("and {more} more\n")),
        more => text.push_str(&format!("and at least {more} more\n")),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(number: usize) -> Affected {
        Affected {
            test: format!("/tests/{number}.rs"),
            changes: "/src/lib.rs".to_owned(),
            because: Because::Imported,
        }
    }

    #[test]
    fn only_so_many_are_named_and_the_rest_is_counted() {
        let found: Vec<Affected> = (0..25).map(one).collect();
        let text = told(&found);
        assert_eq!(text.lines().count(), 1 + MAX_TOLD + 1);
        assert!(
            text.contains("- tests/0.rs (imports src/lib.rs)\n"),
            "{text}"
        );
        assert!(text.ends_with("and 5 more\n"), "{text}");
        let all: Vec<Affected> = (0..MAX_AFFECTED).map(one).collect();
        assert!(told(&all).ends_with("and at least 80 more\n"));
        assert_eq!(told(&[]), "");
    }

    #[test]
    fn of_a_rust_source_only_the_tests_are_looked_at() {
        let text = "use crate::config;\n#[cfg(test)]\nmod tests {\n    use crate::parse;\n}\n";
        let tests = inline_tests(text).unwrap();
        assert!(
            tests.contains("parse") && !tests.contains("config"),
            "{tests}"
        );
        assert_eq!(inline_tests("use crate::config;\n"), None);
    }
}
