//! The closed lists of words that requests and rules share.
//!
//! A rule about a word that does not exist would silently never fire, so each
//! list is an enum, and a file that uses another word is refused.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A text is none of the words of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}")]
pub struct UnknownWord {
    /// What was given.
    pub text: String,
    /// What was wanted.
    pub what: &'static str,
    /// The words that exist.
    pub words: &'static [&'static str],
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$each:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        pub enum $name {
            $($(#[$each])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Every word of the list.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnknownWord {
                        text: text.chars().take(64).collect(),
                        what: $what,
                        words: Self::WORDS,
                    }),
                }
            }
        }
    )*};
}

words! {
    /// How strictly a session keeps to test-first.
    Mode, "mode" {
        /// Test first, enforced.
        Strict = "strict",
        /// Tests may come later, or never; commits are unverified.
        Explore = "explore",
        /// Explore, and reviewed commands in a running sandbox.
        Debug = "debug",
    }

    /// Where a session's workflow stands.
    State, "workflow state" {
        /// Nothing to do.
        Idle = "idle",
        /// The model plans.
        Planning = "planning",
        /// Tests are written.
        TestWriting = "test_writing",
        /// Source is written.
        CodeWriting = "code_writing",
        /// Source and tests are written.
        Exploring = "exploring",
        /// Tests for what was explored are written.
        RetroactiveTesting = "retroactive_testing",
        /// The kernel runs the tests.
        Validating = "validating",
        /// The result is looked at.
        Reviewing = "reviewing",
        /// The result is committed.
        Committing = "committing",
    }

    /// How strongly a sandbox isolates, weakest first.
    Tier, "tier" {
        /// A WASM module.
        Wasm = "wasm",
        /// Namespaces, seccomp and Landlock.
        Process = "process",
        /// A container engine.
        Container = "container",
        /// A virtual machine.
        Microvm = "microvm",
    }

    /// What a sandbox can reach.
    Network, "network" {
        /// Nothing.
        None = "none",
        /// Its own loopback.
        Loopback = "loopback",
        /// Allowed hosts, through the egress proxy.
        Restricted = "restricted",
    }

    /// What may be changed without a test first, when it is granted.
    Category, "category of exemptions" {
        /// Configuration files.
        ConfigChange = "config_change",
        /// Types only, where nothing that runs differs.
        TypeRefactor = "type_refactor",
        /// Texts for people.
        Documentation = "documentation",
        /// Pictures, fonts and the like.
        AssetUpdate = "asset_update",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_and_others_are_refused() {
        for word in State::WORDS {
            assert_eq!(word.parse::<State>().unwrap().as_str(), *word);
            let json = serde_json::to_string(&word.parse::<State>().unwrap()).unwrap();
            assert_eq!(json, format!("\"{word}\""));
        }
        let error = "Strict".parse::<Mode>().unwrap_err();
        assert_eq!(error.to_string(), "`Strict` is not a mode");
        assert_eq!(error.words, ["strict", "explore", "debug"]);
    }

    #[test]
    fn tiers_are_ordered_by_strength() {
        assert!(Tier::Wasm < Tier::Process && Tier::Container < Tier::Microvm);
    }
}
