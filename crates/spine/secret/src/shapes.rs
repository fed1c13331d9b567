//! The shapes of secrets that are known by their looks.
//!
//! One entry per shape. A shape must be narrow enough that ordinary prose and
//! code never match it: tests hold both sides. Word boundaries are ASCII ones
//! (`(?-u:\b)`), which keeps the search fast on any text.

use regex::Regex;

/// One known shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// What it is, for the reference.
    pub name: &'static str,
    /// The pattern; its group `secret`, if there is one, is what is replaced.
    pub pattern: &'static str,
    /// What a match must also look like.
    pub also: Also,
}

/// A second look at what a pattern found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Also {
    /// Nothing more: the pattern is distinctive.
    Nothing,
    /// A digit or a capital letter after the first, unlike an ordinary word.
    NotAWord,
    /// A run of 16 letters and digits with a digit in it, as in random text.
    RandomRun,
}

/// Every known shape, by name.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "API key with an `sk-` prefix (OpenAI, Anthropic and others)",
        pattern: r"(?-u:\b)sk-[A-Za-z0-9_-]{20,}",
        also: Also::RandomRun,
    },
    Shape {
        name: "Authorization header",
        pattern: r#"(?i)(?-u:\b)authorization["']?[ \t]*[:=][ \t]*["']?(?:bearer|basic|token|digest|negotiate)[ \t]+(?<secret>[A-Za-z0-9._~+/=-]{8,})"#,
        also: Also::NotAWord,
    },
    Shape {
        name: "Authorization header without a scheme",
        pattern: r#"(?i)(?-u:\b)authorization["']?[ \t]*[:=][ \t]*["']?(?<secret>[A-Za-z0-9._~+/=-]{16,})"#,
        also: Also::RandomRun,
    },
    Shape {
        name: "AWS access key id",
        pattern: r"(?-u:\b)(?:AKIA|ASIA)[A-Z0-9]{16}(?-u:\b)",
        also: Also::Nothing,
    },
    Shape {
        name: "bearer credential",
        pattern: r"(?i)(?-u:\b)bearer[ \t]+(?<secret>[A-Za-z0-9._~+/=-]{20,})",
        also: Also::RandomRun,
    },
    Shape {
        name: "fluffy credential",
        pattern: r"(?-u:\b)flf_[a-z]{2,8}_[A-Za-z0-9_-]{8,}",
        also: Also::Nothing,
    },
    Shape {
        name: "GitHub fine-grained token",
        pattern: r"(?-u:\b)github_pat_[A-Za-z0-9_]{22,}",
        also: Also::Nothing,
    },
    Shape {
        name: "GitHub token",
        pattern: r"(?-u:\b)gh[oprsu]_[A-Za-z0-9]{30,}",
        also: Also::Nothing,
    },
    Shape {
        name: "GitLab token",
        pattern: r"(?-u:\b)glpat-[A-Za-z0-9_-]{20,}",
        also: Also::Nothing,
    },
    Shape {
        name: "Google API key",
        pattern: r"(?-u:\b)AIza[A-Za-z0-9_-]{35}",
        also: Also::Nothing,
    },
    Shape {
        name: "JSON Web Token",
        pattern: r"(?-u:\b)eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
        also: Also::Nothing,
    },
    Shape {
        name: "npm token",
        pattern: r"(?-u:\b)npm_[A-Za-z0-9]{36}",
        also: Also::Nothing,
    },
    Shape {
        name: "password in a URL",
        pattern: r#"[a-z]://[^\s/:@"'<>{}$]*:(?<secret>[^\s/:@"'<>{}$]{4,})@[A-Za-z0-9\[]"#,
        also: Also::Nothing,
    },
    // The line breaks may be escaped, as in JSON; the end may be cut off.
    Shape {
        name: "PEM private key",
        pattern: r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----(?:[\r\n]|\\[nr])(?:[A-Za-z0-9+/=\s\\:,]|-[A-Za-z0-9])*(?:-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----)?",
        also: Also::Nothing,
    },
    Shape {
        name: "Slack token",
        pattern: r"(?-u:\b)xox[abeoprs]-[A-Za-z0-9-]{10,}",
        also: Also::Nothing,
    },
];

impl Also {
    /// Whether a match is a secret at the second look.
    pub(crate) fn holds(self, found: &str) -> bool {
        match self {
            Self::Nothing => true,
            Self::NotAWord => {
                (found.chars().skip(1)).any(|c| c.is_ascii_digit() || c.is_ascii_uppercase())
            }
            Self::RandomRun => found
                .split(|c: char| !c.is_ascii_alphanumeric())
                .any(|run| run.len() >= 16 && run.contains(|c: char| c.is_ascii_digit())),
        }
    }
}

/// The compiled shapes.
///
/// # Errors
/// A pattern of ours is wrong; a test keeps that from ever happening.
pub(crate) fn compile() -> Result<Vec<(Regex, Also)>, regex::Error> {
    let compiled = |shape: &Shape| Regex::new(shape.pattern).map(|regex| (regex, shape.also));
    SHAPES.iter().map(compiled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_compiles_and_is_in_order() {
        assert_eq!(compile().unwrap().len(), SHAPES.len());
        let names: Vec<_> = SHAPES.iter().map(|s| s.name.to_lowercase()).collect();
        assert!(names.is_sorted(), "{names:?}");
    }

    #[test]
    fn random_text_is_told_from_words() {
        assert!(Also::RandomRun.holds("sk-a1b2c3d4e5f6g7h8i9"));
        assert!(!Also::RandomRun.holds("sk-loading-spinner-container-2"));
        assert!(!Also::RandomRun.holds("internationalisation"));
    }
}
