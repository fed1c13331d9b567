//! Sizes and durations as people write them, without ambiguity.
//!
//! Case-sensitive on purpose: `KiB MiB GiB` are binary, `KB MB GB` decimal, a
//! plain number is bytes; durations are `ms s m h`. Anything else is an error.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a text is not a size or a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// No digits at the start.
    #[error("`{0}` does not start with a whole number")]
    NoNumber(String),
    /// The number or the product does not fit in 64 bits.
    #[error("`{0}` is too large")]
    TooLarge(String),
    /// The unit is not one of ours.
    #[error("`{unit}` is not a unit of {what}; use one of {allowed}")]
    Unit {
        /// The unit as written.
        unit: String,
        /// What was being read.
        what: &'static str,
        /// The units that exist.
        allowed: &'static str,
    },
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

const SPANS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl FromStr for ByteSize {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let allowed = "KiB, MiB, GiB (binary), KB, MB, GB (decimal), or none for bytes";
        parse(text, SIZES, "size", allowed).map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |scale: u64| self.0 >= scale && self.0.is_multiple_of(scale);
        let best = SIZES
            .iter()
            .filter(|(_, scale)| exact(*scale))
            .max_by_key(|(_, scale)| *scale);
        match best {
            Some((unit, scale)) => write!(f, "{}{unit}", self.0 / scale),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A duration in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// How many milliseconds.
    pub millis: u64,
}

impl From<Span> for Duration {
    fn from(span: Span) -> Duration {
        Duration::from_millis(span.millis)
    }
}

impl FromStr for Span {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        parse(text, SPANS, "time", "ms, s, m, h").map(|millis| Self { millis })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let best = SPANS
            .iter()
            .rev()
            .find(|(_, scale)| self.millis >= *scale && self.millis.is_multiple_of(*scale));
        match best {
            Some((unit, scale)) => write!(f, "{}{unit}", self.millis / scale),
            None => write!(f, "{}ms", self.millis),
        }
    }
}

fn parse(
    text: &str,
    units: &[(&str, u64)],
    what: &'static str,
    allowed: &'static str,
) -> Result<u64, ParseUnitError> {
    let shown = || text.chars().take(64).collect::<String>();
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    if digits.is_empty() {
        return Err(ParseUnitError::NoNumber(shown()));
    }
    let scale = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, scale)| *scale);
    let scale = scale.ok_or_else(|| ParseUnitError::Unit {
        unit: unit.chars().take(64).collect(),
        what,
        allowed,
    })?;
    let number: u64 = digits
        .parse()
        .map_err(|_| ParseUnitError::TooLarge(shown()))?;
    number
        .checked_mul(scale)
        .ok_or_else(|| ParseUnitError::TooLarge(shown()))
}

/// Text or a plain number, as YAML, TOML and JSON give it.
struct UnitVisitor<T> {
    expecting: &'static str,
    from_number: Option<fn(u64) -> T>,
}

impl<T: FromStr<Err = ParseUnitError>> serde::de::Visitor<'_> for UnitVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        match self.from_number {
            Some(build) => Ok(build(number)),
            None => Err(E::custom(format!(
                "`{number}` has no unit; use one of ms, s, m, h"
            ))),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        let number =
            u64::try_from(number).map_err(|_| E::custom(format!("`{number}` is negative")))?;
        self.visit_u64(number)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor {
            expecting: "a size such as 100KiB",
            from_number: Some(ByteSize),
        })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor {
            expecting: "a time such as 30s",
            from_number: None,
        })
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn binary_and_decimal_are_different_things() {
        assert_eq!("100KiB".parse(), Ok(ByteSize(102_400)));
        assert_eq!("100KB".parse(), Ok(ByteSize(100_000)));
        assert_eq!("7".parse(), Ok(ByteSize(7)));
        assert_eq!("2h".parse(), Ok(Span { millis: 7_200_000 }));
        assert_eq!("1500ms".parse(), Ok(Span { millis: 1_500 }));
    }

    #[test]
    fn everything_else_is_an_error() {
        for text in [
            "", "KiB", "1kb", "1kib", "1K", "1 KiB", "-1", "+1", "1.5MiB", "1Kib", "٣KB",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text:?}");
        }
        for text in [
            "5",
            "1d",
            "1S",
            "1 s",
            "1min",
            "m",
            "99999999999999999999ms",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text:?}");
        }
        assert!("18446744073709551615GiB".parse::<ByteSize>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(bytes: u64, millis: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
            prop_assert_eq!(Span { millis }.to_string().parse(), Ok(Span { millis }));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Span>();
        }
    }
}
