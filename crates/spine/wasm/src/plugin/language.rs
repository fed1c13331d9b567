//! What a plugin was probably written in, and how much fuel that needs.
//!
//! An interpreter inside a component burns a million units before the first
//! line of the script runs, and a hundred for each unit after. A guess from
//! the outside: a wrong one costs a limit that is too low or too high, never
//! safety, since the time holds as well.

use wasmparser::{KnownCustom, Parser, Payload};

/// From this size on, a plugin carries an interpreter.
const INTERPRETER_SIZE: usize = 6 << 20;

/// How a plugin runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Compiled: Rust, C, Go.
    Compiled,
    /// JavaScript or TypeScript in an interpreter.
    JavaScript,
    /// Python in an interpreter.
    Python,
    /// Something large, so probably an interpreter.
    Interpreted,
}

impl Language {
    /// The guess, from what the tools wrote into the file and from its size.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let named = Parser::new(0)
            .parse_all(bytes)
            .map_while(Result::ok)
            .find_map(|payload| match payload {
                Payload::CustomSection(section) => match section.as_known() {
                    KnownCustom::Producers(fields) => fields
                        .into_iter()
                        .map_while(Result::ok)
                        .flat_map(|field| field.values.into_iter().map_while(Result::ok))
                        .find_map(|value| named(value.name)),
                    _ => None,
                },
                _ => None,
            });
        match named {
            Some(language) => language,
            None if bytes.len() >= INTERPRETER_SIZE => Self::Interpreted,
            None => Self::Compiled,
        }
    }

    /// The fuel of a call where nobody says how much.
    #[must_use]
    pub const fn fuel(self) -> u64 {
        match self {
            Self::Compiled => 1_000_000_000,
            Self::JavaScript | Self::Python | Self::Interpreted => 20_000_000_000,
        }
    }
}

fn named(producer: &str) -> Option<Language> {
    let producer = producer.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| producer.contains(word));
    if says(&[
        "javascript",
        "typescript",
        "componentizejs",
        "componentize-js",
    ]) {
        return Some(Language::JavaScript);
    }
    says(&["python", "componentize-py"]).then_some(Language::Python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_sign_their_work_and_interpreters_are_large() {
        let of = |text: &str| Language::of(&wat::parse_str(text).unwrap());
        assert_eq!(of("(module)"), Language::Compiled);
        let signed = |name: &str| {
            format!("(component (core module (@producers (processed-by \"{name}\" \"1\"))))")
        };
        assert_eq!(of(&signed("rustc")), Language::Compiled);
        assert_eq!(of(&signed("ComponentizeJS")), Language::JavaScript);
        assert_eq!(of(&signed("componentize-py")), Language::Python);
        let large = format!(
            "(module (@custom \"x\" \"{}\"))",
            "y".repeat(INTERPRETER_SIZE)
        );
        assert_eq!(of(&large), Language::Interpreted);
        assert!(Language::JavaScript.fuel() > Language::Compiled.fuel());
    }
}
