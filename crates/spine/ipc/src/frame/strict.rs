//! The JSON we accept: one meaning for every reader, bounded in every way.
//!
//! Duplicate names are refused because two readers may pick different ones,
//! numbers beyond a double because they have no value, depth and count because
//! they cost memory. Must never build the value it checks. Next: `frame`.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How deep arrays and objects may nest.
pub const MAX_DEPTH: usize = 64;

/// How many values one frame may hold, counting every element and field.
///
/// A value takes a byte or two as text and some forty in memory: without this
/// bound 16 MiB of zeros would become half a gigabyte in a careless reader.
pub const MAX_VALUES: usize = 1 << 20;

/// Why a text is not strict JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StrictJsonError {
    /// Arrays and objects nest deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
    /// More values than [`MAX_VALUES`].
    #[error("more than {MAX_VALUES} values")]
    Values,
    /// An object has the same name twice.
    #[error("the name `{name}` occurs twice in one object")]
    Duplicate {
        /// The name, cut to 64 characters.
        name: String,
    },
    /// Not JSON at all, or a number that no double can hold.
    #[error("malformed at line {line} column {column}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
}

/// Checks a text without building its value.
///
/// # Errors
/// The text is not strict JSON.
pub(super) fn check(text: &str) -> Result<(), StrictJsonError> {
    let state = State::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    let outcome = Checker {
        state: &state,
        depth: 0,
    }
    .deserialize(&mut reader)
    .and_then(|()| reader.end());
    outcome.map_err(|error| {
        state.fault.take().unwrap_or(StrictJsonError::Malformed {
            line: error.line(),
            column: error.column(),
        })
    })
}

#[derive(Default)]
struct State {
    values: Cell<usize>,
    // Errors of serde carry text only; the typed one travels beside it.
    fault: Cell<Option<StrictJsonError>>,
}

impl State {
    fn refuse<E: Error>(&self, fault: StrictJsonError) -> E {
        self.fault.set(Some(fault));
        E::custom("refused")
    }
}

#[derive(Clone, Copy)]
struct Checker<'a> {
    state: &'a State,
    depth: usize,
}

impl Checker<'_> {
    fn inner<E: Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(self.state.refuse(StrictJsonError::Depth));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Checker<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let values = self.state.values.get() + 1;
        if values > MAX_VALUES {
            return Err(self.state.refuse(StrictJsonError::Values));
        }
        self.state.values.set(values);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checker<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("strict JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        let mut names: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(name) = fields.next_key_seed(Name)? {
            if names.contains(&name) {
                let name = name.chars().take(64).collect();
                return Err(self.state.refuse(StrictJsonError::Duplicate { name }));
            }
            names.insert(name);
            fields.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A name, borrowed from the text unless it has escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_json_passes() {
        for text in [
            "null",
            "-0",
            "1e308",
            "\"\\u00e9\"",
            "[]",
            "{}",
            r#"{"a":{"a":1},"b":[{"a":1},{"a":2}]}"#,
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_json_is_malformed() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{} {}",
            "1e400",
            "-1e400",
            "[1E999]",
            "NaN",
            "Infinity",
            "01",
            "'a'",
            "\"\\ud800\"",
            "\u{feff}{}",
            "{1:2}",
        ] {
            let outcome = check(text);
            assert!(
                matches!(outcome, Err(StrictJsonError::Malformed { .. })),
                "{text}: {outcome:?}"
            );
        }
    }

    #[test]
    fn the_same_name_twice_is_refused_however_it_is_written() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"b":2,"a":3}"#,
            r#"[{"x":{"a":1,"\u0061":2}}]"#,
        ] {
            let duplicate = StrictJsonError::Duplicate { name: "a".into() };
            assert_eq!(check(text), Err(duplicate), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_at_exactly_the_limit() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(check(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(check(&nested(MAX_DEPTH + 1)), Err(StrictJsonError::Depth));
        assert_eq!(check(&nested(100_000)), Err(StrictJsonError::Depth));
        assert_eq!(
            check(&"{\"a\":".repeat(100_000)),
            Err(StrictJsonError::Depth)
        );
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let zeros = |count: usize| format!("[0{}]", ",0".repeat(count - 2));
        assert_eq!(check(&zeros(MAX_VALUES)), Ok(()));
        assert_eq!(check(&zeros(MAX_VALUES + 1)), Err(StrictJsonError::Values));
    }
}
