//! Changes that need no test first, once somebody granted that.
//!
//! A request names a category and paths. The policy's globs say which paths a
//! category covers; one outside refuses the whole request. A granted exemption
//! covers those paths and nothing else, and for types it holds only as long as
//! nothing that runs is different: [`python`] says so of Python, the kernel's
//! worker of TypeScript.

pub mod python;

use std::collections::{BTreeMap, BTreeSet};

use fluffy_policy::glob::GlobSet;
use fluffy_policy::path::{PathError, normalise};
use fluffy_policy::word::Category;
use serde::{Deserialize, Serialize};

use crate::machine::Approval;

/// The most paths that one exemption covers.
pub const MAX_PATHS: usize = 200;

/// The longest reason, in bytes.
pub const MAX_REASON: usize = 2_000;

/// What a session asks for with `workflow.request_exemption`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExemptionRequest {
    /// Which kind of change it is.
    pub category: Category,
    /// The files it wants to change.
    pub paths: Vec<String>,
    /// Why no test can come first.
    pub reason: String,
}

/// Why a request is refused whoever would grant it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestExemptionError {
    /// It names no path.
    #[error("an exemption names at least one path")]
    NoPaths,
    /// It names more than [`MAX_PATHS`], or its reason is too long.
    #[error("an exemption has at most {MAX_PATHS} paths and {MAX_REASON} bytes of reason")]
    TooLarge,
    /// It gives no reason.
    #[error("an exemption has a reason")]
    NoReason,
    /// A path has no normal form.
    #[error("`{path}` is not a path")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        #[source]
        source: PathError,
    },
    /// The policy has no globs for the category.
    #[error("the policy exempts nothing as `{category}`")]
    NoGlobs {
        /// The category.
        category: Category,
    },
    /// A path is not of the category.
    #[error("`{path}` is not covered by `{category}`")]
    OutsideCategory {
        /// The path.
        path: String,
        /// The category.
        category: Category,
    },
    /// Types cannot be told from what runs in such a file.
    #[error("`{path}` is of no language whose types can be stripped")]
    NotTyped {
        /// The path.
        path: String,
    },
}

impl ExemptionRequest {
    /// Checks a request against the policy's globs of its category.
    ///
    /// What comes back may be granted by a rule or a person, not before.
    ///
    /// # Errors
    /// The request is malformed or outside its category.
    pub fn check(&self, globs: Option<&GlobSet>) -> Result<CheckedRequest, RequestExemptionError> {
        if self.paths.is_empty() {
            return Err(RequestExemptionError::NoPaths);
        }
        if self.paths.len() > MAX_PATHS || self.reason.len() > MAX_REASON {
            return Err(RequestExemptionError::TooLarge);
        }
        if self.reason.trim().is_empty() {
            return Err(RequestExemptionError::NoReason);
        }
        let category = self.category;
        let globs = globs.ok_or(RequestExemptionError::NoGlobs { category })?;
        let mut paths = BTreeSet::new();
        for path in &self.paths {
            let normal = normalise(path).map_err(|source| RequestExemptionError::Path {
                path: path.chars().take(128).collect(),
                source,
            })?;
            let path = normal.into_owned();
            if !globs.matches(&path) {
                return Err(RequestExemptionError::OutsideCategory { path, category });
            }
            if category == Category::TypeRefactor && !has_types(&path) {
                return Err(RequestExemptionError::NotTyped { path });
            }
            paths.insert(path);
        }
        Ok(CheckedRequest {
            category,
            paths,
            reason: self.reason.clone(),
        })
    }
}

/// TypeScript and Python: languages in which types do not run.
fn has_types(path: &str) -> bool {
    let endings = [".ts", ".tsx", ".mts", ".cts", ".py", ".pyi"];
    endings.iter().any(|ending| path.ends_with(ending))
}

/// A request inside its category, which somebody may grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedRequest {
    category: Category,
    paths: BTreeSet<String>,
    reason: String,
}

impl CheckedRequest {
    /// Grants it, in somebody's name.
    #[must_use]
    pub fn grant(self, by: Approval) -> Exemption {
        Exemption {
            category: self.category,
            paths: self.paths,
            reason: self.reason,
            by,
        }
    }
}

/// A granted exemption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exemption {
    category: Category,
    paths: BTreeSet<String>,
    reason: String,
    by: Approval,
}

/// Why a change is not what its exemption was granted for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExemptionBroken {
    /// A changed file is not covered.
    #[error("`{path}` is not covered by the exemption")]
    Outside {
        /// The file.
        path: String,
    },
    /// Nobody stripped a file's types, so nothing is known about it.
    #[error("`{path}` was not compared without its types")]
    NotCompared {
        /// The file.
        path: String,
    },
    /// Without its types the file is a different program.
    #[error("`{path}` differs in more than its types")]
    Differs {
        /// The file.
        path: String,
    },
}

/// A file's two versions without their types; equal ones are the same program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stripped {
    /// The project's version; `None` if it has none or could not be stripped.
    pub before: Option<String>,
    /// The changed version, in the same way.
    pub after: Option<String>,
}

impl Exemption {
    /// Which kind of change it is.
    #[must_use]
    pub const fn category(&self) -> Category {
        self.category
    }

    /// Whether a path is covered.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The paths that are covered.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    /// Checks that changes are what was granted.
    ///
    /// # Errors
    /// The first file that is not.
    pub fn check<'a>(
        &self,
        changed: impl IntoIterator<Item = &'a str>,
        stripped: &BTreeMap<String, Stripped>,
    ) -> Result<(), ExemptionBroken> {
        for path in changed {
            let path = path.to_owned();
            if !self.covers(&path) {
                return Err(ExemptionBroken::Outside { path });
            }
            if self.category != Category::TypeRefactor {
                continue;
            }
            match stripped.get(&path) {
                Some(Stripped {
                    before: Some(before),
                    after: Some(after),
                }) if before == after => {}
                Some(Stripped {
                    before: Some(_),
                    after: Some(_),
                }) => return Err(ExemptionBroken::Differs { path }),
                Some(_) | None => return Err(ExemptionBroken::NotCompared { path }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(category: Category, path: &str) -> ExemptionRequest {
        ExemptionRequest {
            category,
            paths: vec![path.to_owned()],
            reason: "it holds no code".to_owned(),
        }
    }

    fn person() -> Approval {
        Approval::Person {
            name: "ada".to_owned(),
        }
    }

    #[test]
    fn a_path_outside_its_category_refuses_the_request() {
        let globs = GlobSet::build(["*.md", "docs/**"]).unwrap();
        let check = |path: &str| request(Category::Documentation, path).check(Some(&globs));
        assert!(check("/README.md").is_ok());
        assert!(check("/docs/./a.txt").is_ok(), "paths are normalised first");
        assert!(matches!(
            check("/src/a.rs"),
            Err(RequestExemptionError::OutsideCategory { .. })
        ));
        assert!(matches!(
            check("/docs/../src/a.rs"),
            Err(RequestExemptionError::Path { .. })
        ));
        let none = request(Category::Documentation, "/README.md").check(None);
        assert!(matches!(none, Err(RequestExemptionError::NoGlobs { .. })));
    }

    #[test]
    fn requests_are_bounded_and_have_a_reason() {
        let globs = GlobSet::build(["**"]).unwrap();
        let mut many = request(Category::AssetUpdate, "/a.png");
        many.paths = vec!["/a.png".to_owned(); MAX_PATHS + 1];
        assert_eq!(
            many.check(Some(&globs)),
            Err(RequestExemptionError::TooLarge)
        );
        many.paths.clear();
        assert_eq!(
            many.check(Some(&globs)),
            Err(RequestExemptionError::NoPaths)
        );
        let mut silent = request(Category::AssetUpdate, "/a.png");
        silent.reason = "  ".to_owned();
        assert_eq!(
            silent.check(Some(&globs)),
            Err(RequestExemptionError::NoReason)
        );
    }

    #[test]
    fn only_languages_with_types_can_be_type_refactored() {
        let globs = GlobSet::build(["**"]).unwrap();
        let check = |path: &str| request(Category::TypeRefactor, path).check(Some(&globs));
        assert!(check("/a.ts").is_ok() && check("/a.py").is_ok());
        assert!(matches!(
            check("/a.rs"),
            Err(RequestExemptionError::NotTyped { .. })
        ));
    }

    #[test]
    fn a_type_refactoring_may_change_nothing_that_runs() {
        let globs = GlobSet::build(["**"]).unwrap();
        let checked = request(Category::TypeRefactor, "/a.py")
            .check(Some(&globs))
            .unwrap();
        let exemption = checked.grant(person());
        let check = |before: Option<&str>, after: Option<&str>| {
            let pair = Stripped {
                before: before.map(ToOwned::to_owned),
                after: after.map(ToOwned::to_owned),
            };
            exemption.check(["/a.py"], &BTreeMap::from([("/a.py".to_owned(), pair)]))
        };
        assert_eq!(check(Some("a\nb"), Some("a\nb")), Ok(()));
        assert!(matches!(
            check(Some("'''a\n\nb'''"), Some("'''a\nb'''")),
            Err(ExemptionBroken::Differs { .. })
        ));
        assert!(matches!(
            check(Some("if a:\n    b()\n"), Some("if a:\nb()\n")),
            Err(ExemptionBroken::Differs { .. })
        ));
        assert!(matches!(
            check(None, Some("x")),
            Err(ExemptionBroken::NotCompared { .. })
        ));
        assert!(matches!(
            exemption.check(["/a.py"], &BTreeMap::new()),
            Err(ExemptionBroken::NotCompared { .. })
        ));
        assert!(matches!(
            exemption.check(["/b.py"], &BTreeMap::new()),
            Err(ExemptionBroken::Outside { .. })
        ));
    }
}
