//! Grants: the ceiling of what a principal may ever do.
//!
//! Four sets must agree on one concrete capability; patterns are never
//! intersected with each other. A grant is an upper bound and never by itself
//! permission: rules decide below it. The platform's roles, which are nothing
//! but named grants, are in [`crate::role`].

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::{Capability, InvalidCapability, Pattern};

/// The most patterns one list of a grant may have.
pub const MAX_PATTERNS: usize = 4096;

/// The four lists of a grant as people and files write them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantLists {
    /// What the manifest, role or credential declares.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// What the manifest denies itself; wins over everything.
    #[serde(default)]
    pub deny_capabilities: Vec<String>,
    /// What the workspace or tenant allows.
    #[serde(default)]
    pub workspace: Vec<String>,
    /// What the user, or the credential's own ceiling, allows.
    #[serde(default)]
    pub user: Vec<String>,
}

/// Why four lists do not make a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildGrantError {
    /// A pattern is malformed; ignoring it could drop a denial.
    #[error("`{list}` has the unusable pattern `{pattern}`")]
    Pattern {
        /// Which list.
        list: &'static str,
        /// The pattern as written.
        pattern: String,
        /// What is wrong with it.
        #[source]
        source: InvalidCapability,
    },
    /// A list is longer than [`MAX_PATTERNS`].
    #[error("`{list}` has more than {MAX_PATTERNS} patterns")]
    TooMany {
        /// Which list.
        list: &'static str,
    },
}

/// A compiled ceiling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    declared: PatternSet,
    denied: PatternSet,
    workspace: PatternSet,
    user: PatternSet,
}

impl Grant {
    /// The grant that these lists make; an empty list grants nothing.
    ///
    /// # Errors
    /// A malformed pattern or an overlong list.
    pub fn build(lists: &GrantLists) -> Result<Self, BuildGrantError> {
        Ok(Self {
            declared: PatternSet::build("capabilities", &lists.capabilities)?,
            denied: PatternSet::build("deny_capabilities", &lists.deny_capabilities)?,
            workspace: PatternSet::build("workspace", &lists.workspace)?,
            user: PatternSet::build("user", &lists.user)?,
        })
    }

    /// The lists this grant was made from.
    #[must_use]
    pub fn lists(&self) -> GrantLists {
        GrantLists {
            capabilities: self.declared.texts(),
            deny_capabilities: self.denied.texts(),
            workspace: self.workspace.texts(),
            user: self.user.texts(),
        }
    }

    /// Whether the capability is inside the ceiling.
    ///
    /// # Errors
    /// The first set that disagrees.
    pub fn check(&self, capability: &Capability) -> Result<(), Gap> {
        if let Some(pattern) = self.denied.find(capability) {
            return Err(Gap::Denied(pattern.as_str().to_owned()));
        }
        for (set, gap) in [
            (&self.declared, Gap::NotDeclared),
            (&self.workspace, Gap::NotInWorkspace),
            (&self.user, Gap::NotForUser),
        ] {
            if set.find(capability).is_none() {
                return Err(gap);
            }
        }
        Ok(())
    }
}

/// Which of the four sets keeps a capability out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gap {
    /// The manifest, role or credential does not declare it.
    NotDeclared,
    /// The manifest denies it itself, by this pattern.
    Denied(String),
    /// The workspace or tenant does not allow it.
    NotInWorkspace,
    /// The user's permissions do not contain it.
    NotForUser,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDeclared => f.write_str("not among the declared capabilities"),
            Self::Denied(pattern) => write!(f, "denied by the grant's own `{pattern}`"),
            Self::NotInWorkspace => f.write_str("not allowed in this workspace"),
            Self::NotForUser => f.write_str("not among the user's permissions"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PatternSet {
    patterns: Vec<Pattern>,
}

impl PatternSet {
    fn build(list: &'static str, texts: &[String]) -> Result<Self, BuildGrantError> {
        if texts.len() > MAX_PATTERNS {
            return Err(BuildGrantError::TooMany { list });
        }
        let patterns = texts.iter().map(|text| {
            Pattern::parse(text).map_err(|source| BuildGrantError::Pattern {
                list,
                pattern: text.chars().take(128).collect(),
                source,
            })
        });
        Ok(Self {
            patterns: patterns.collect::<Result<_, _>>()?,
        })
    }

    fn find(&self, capability: &Capability) -> Option<&Pattern> {
        self.patterns
            .iter()
            .find(|pattern| pattern.matches(capability))
    }

    fn texts(&self) -> Vec<String> {
        let texts = self
            .patterns
            .iter()
            .map(|pattern| pattern.as_str().to_owned());
        texts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(declared: &[&str], denied: &[&str], workspace: &[&str], user: &[&str]) -> GrantLists {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        GrantLists {
            capabilities: owned(declared),
            deny_capabilities: owned(denied),
            workspace: owned(workspace),
            user: owned(user),
        }
    }

    fn check(lists: &GrantLists, capability: &str) -> Result<(), Gap> {
        Grant::build(lists)
            .unwrap()
            .check(&Capability::parse(capability).unwrap())
    }

    #[test]
    fn each_of_the_four_sets_can_say_no() {
        let all = lists(&["fs.*"], &[], &["*"], &["fs.read.*"]);
        assert_eq!(check(&all, "fs.read./a"), Ok(()));
        assert_eq!(check(&all, "net.connect.a:1"), Err(Gap::NotDeclared));
        assert_eq!(check(&all, "fs.write./a"), Err(Gap::NotForUser));
        let narrow = lists(&["*"], &["fs.*"], &["kv.*", "fs.*"], &["*"]);
        assert_eq!(check(&narrow, "kv.get.a"), Ok(()));
        assert_eq!(
            check(&narrow, "fs.read./a"),
            Err(Gap::Denied("fs.*".into()))
        );
        assert_eq!(check(&narrow, "log.write"), Err(Gap::NotInWorkspace));
    }

    #[test]
    fn an_empty_set_is_no_permission() {
        let any = ["*"];
        for (declared, workspace, user) in [
            (&[][..], &any[..], &any[..]),
            (&any[..], &[][..], &any[..]),
            (&any[..], &any[..], &[][..]),
        ] {
            assert!(check(&lists(declared, &[], workspace, user), "kv.get.a").is_err());
        }
        assert!(check(&GrantLists::default(), "kv.get.a").is_err());
    }

    #[test]
    fn a_malformed_denial_is_an_error_and_not_a_hole() {
        let broken = lists(&["*"], &["exec..run"], &["*"], &["*"]);
        let error = Grant::build(&broken).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`deny_capabilities` has the unusable pattern `exec..run`"
        );
        let long = GrantLists {
            user: vec!["*".to_owned(); MAX_PATTERNS + 1],
            ..GrantLists::default()
        };
        assert_eq!(
            Grant::build(&long),
            Err(BuildGrantError::TooMany { list: "user" })
        );
    }

    #[test]
    fn a_grant_gives_its_lists_back() {
        let original = lists(&["fs.*", "kv.*"], &["exec.*"], &["*"], &["fs.read./docs/*"]);
        assert_eq!(Grant::build(&original).unwrap().lists(), original);
    }
}
