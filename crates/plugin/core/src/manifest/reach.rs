//! Paths that a manifest names, and whether its capabilities say the same.
//!
//! A path stands for itself or, with `/*` at its end, for everything below
//! it; nothing between can be mounted, so nothing between can be written. What
//! a sandbox would open is refused unless a capability covers it.

use fluffy_policy::capability::Pattern;
use fluffy_policy::path::{self, PathError};

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// `/…`: the workspace.
    Workspace,
    /// `@data/…`: the plugin's own data.
    Data,
    /// `@host/…`: the host.
    Host,
}

/// How far a path reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// This one file.
    Itself,
    /// Everything below this directory.
    Below,
}

/// One path of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathRule {
    root: Root,
    /// Names below the root, joined by `/`; empty for the root itself.
    names: String,
    extent: Extent,
}

/// Why a text is no path of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathRuleError {
    /// It could be read as an option.
    #[error("a path does not begin with `-`")]
    Option,
    /// It has no normal form.
    #[error("{0}")]
    Path(PathError),
    /// It has another spelling.
    #[error("this path is written `{normal}`")]
    Spelling {
        /// The one spelling it has.
        normal: String,
    },
    /// A star that stands for less than everything below.
    #[error("`*` stands at the end of a path, after a `/`")]
    Star,
    /// The root of something, as a file.
    #[error("a whole root is meant; write it with `/*`")]
    Root,
    /// All of the host, or what every sandbox makes for itself.
    #[error("no plugin sees this part of the host")]
    Host,
}

/// Parts of the host that a sandbox has its own of, or nobody gets.
const NEVER_SEEN: &[&str] = &["dev", "proc", "run", "sys", "tmp", "var/run"];

impl PathRule {
    /// Reads a path such as `/docs/*` or `@data/*`.
    ///
    /// # Errors
    /// When it could mean something else than it says.
    pub fn parse(text: &str) -> Result<Self, PathRuleError> {
        if text.starts_with('-') {
            return Err(PathRuleError::Option);
        }
        let (base, extent) = match text.strip_suffix("/*") {
            Some("") => ("/", Extent::Below),
            Some(base) => (base, Extent::Below),
            None => (text, Extent::Itself),
        };
        let normal = path::normalise(base).map_err(PathRuleError::Path)?;
        if normal != base {
            let end = if extent == Extent::Below { "/*" } else { "" };
            let normal = format!("{}{end}", normal.trim_end_matches('/'));
            return Err(PathRuleError::Spelling { normal });
        }
        if base.contains('*') {
            return Err(PathRuleError::Star);
        }
        let (root, names) = match base.split_once('/') {
            Some(("", names)) => (Root::Workspace, names),
            Some(("@data", names)) => (Root::Data, names),
            None if base == "@data" => (Root::Data, ""),
            Some((_, names)) => (Root::Host, names),
            None => (Root::Host, ""),
        };
        if names.is_empty() && extent == Extent::Itself {
            return Err(PathRuleError::Root);
        }
        let never = |part: &&str| {
            let rest = names.strip_prefix(part);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if root == Root::Host && (names.is_empty() || NEVER_SEEN.iter().any(never)) {
            return Err(PathRuleError::Host);
        }
        Ok(Self {
            root,
            names: names.to_owned(),
            extent,
        })
    }

    /// Where it begins.
    #[must_use]
    pub const fn root(&self) -> Root {
        self.root
    }

    /// The names below its root, joined by `/`; empty for the root itself.
    #[must_use]
    pub fn names(&self) -> &str {
        &self.names
    }

    /// How far it reaches.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Whether everything that `other` names is named by this one too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let below = || match self.names.as_str() {
            "" => true,
            names => {
                let rest = other.names.strip_prefix(names);
                rest.is_some_and(|rest| {
                    rest.starts_with('/') || (rest.is_empty() && other.extent == Extent::Below)
                })
            }
        };
        self == other || (self.root == other.root && self.extent == Extent::Below && below())
    }

    /// The capability to do something with all of it.
    #[must_use]
    pub fn capability(&self, action: &str) -> String {
        format!("{action}.{self}")
    }
}

impl std::fmt::Display for PathRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root = match self.root {
            Root::Workspace => "",
            Root::Data => "@data",
            Root::Host => "@host",
        };
        f.write_str(root)?;
        if !self.names.is_empty() {
            write!(f, "/{}", self.names)?;
        }
        match self.extent {
            Extent::Itself => Ok(()),
            Extent::Below => f.write_str("/*"),
        }
    }
}

/// Whether the declared capabilities give this, and the denied ones leave it.
pub(super) fn agrees(capability: &str, declared: &[Pattern], denied: &[Pattern]) -> Agreement {
    let Ok(wanted) = Pattern::parse(capability) else {
        return Agreement::Missing;
    };
    if let Some(deny) = denied.iter().find(|deny| deny.covers(&wanted)) {
        return Agreement::Denied(deny.as_str().to_owned());
    }
    match declared.iter().any(|pattern| pattern.covers(&wanted)) {
        true => Agreement::Given,
        false => Agreement::Missing,
    }
}

/// What the capabilities say about something that a sandbox would open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Agreement {
    /// A declared one covers it.
    Given,
    /// None does.
    Missing,
    /// A denied one takes it away.
    Denied(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_or_everything_below() {
        for (text, root, names, extent) in [
            ("/docs/*", Root::Workspace, "docs", Extent::Below),
            ("/docs/a.md", Root::Workspace, "docs/a.md", Extent::Itself),
            ("/*", Root::Workspace, "", Extent::Below),
            ("@data/*", Root::Data, "", Extent::Below),
            ("@data/a/*", Root::Data, "a", Extent::Below),
            ("@host/usr/share/*", Root::Host, "usr/share", Extent::Below),
            ("/a/-rf", Root::Workspace, "a/-rf", Extent::Itself),
        ] {
            let rule = PathRule::parse(text).unwrap();
            assert_eq!(
                (rule.root(), rule.names(), rule.extent()),
                (root, names, extent)
            );
            assert_eq!(rule.to_string(), text);
        }
    }

    #[test]
    fn what_could_mean_something_else_is_refused() {
        for text in [
            "",
            "-",
            "-rf",
            "--bind",
            "docs",
            "./docs",
            "/docs/",
            "/docs//a",
            "/./docs",
            "/docs/..",
            "/docs/../*",
            "/do*",
            "/docs/*/a",
            "/docs/**",
            "*",
            "/",
            "@data",
            "@host/*",
            "@host",
            "@host/proc/*",
            "@host/dev/mem",
            "@host/run/docker.sock",
            "@other/a",
            "/a\nb",
            "/a\0b",
            "/a\\b",
            "/e\u{301}",
            "@data*",
        ] {
            assert!(PathRule::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn covering_is_about_every_file() {
        let covers = |wide, narrow| {
            let wide = PathRule::parse(wide).unwrap();
            wide.covers(&PathRule::parse(narrow).unwrap())
        };
        assert!(covers("/docs/*", "/docs/a") && covers("/docs/*", "/docs/a/*"));
        assert!(covers("/*", "/docs/*") && covers("/docs/a", "/docs/a"));
        assert!(!covers("/docs/*", "/docs2/a") && !covers("/docs/*", "/docs"));
        assert!(!covers("/docs/a", "/docs/a/*") && !covers("/*", "@data/*"));
    }
}
