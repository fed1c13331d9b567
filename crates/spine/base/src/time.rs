//! The one timestamp: UTC microseconds, and the clock as a seam.
//!
//! Timestamps inform people; nothing is ever ordered by them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment in UTC, in microseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// Why a text is not a timestamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a UTC time such as 2026-11-15T08:00:00.000000Z")]
pub struct ParseTimestampError(String);

impl Timestamp {
    /// The first moment that can be written: the start of the year 1.
    pub const MIN: Self = Self(-62_135_596_800_000_000);
    /// The last moment that can be written: the end of 9999, less a day.
    pub const MAX: Self = Self(253_402_207_199_999_999);

    /// The moment this many microseconds after 1970, held between
    /// [`Timestamp::MIN`] and [`Timestamp::MAX`].
    #[must_use]
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This moment plus a duration, stopping at the end of the calendar.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(moment) => write!(f, "{moment:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, ParseTimestampError> {
        text.parse::<jiff::Timestamp>()
            .map(|moment| Self::from_micros(moment.as_microsecond()))
            .map_err(|_| ParseTimestampError(text.chars().take(64).collect()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Timestamp {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Where the time comes from; tests bring their own.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current moment. May jump in both directions.
    fn now(&self) -> Timestamp;
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
    }
}

/// A clock that stands still until it is told otherwise.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(AtomicI64::new(start.as_micros()))
    }

    /// Moves the clock, forwards or backwards.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.as_micros(), Ordering::SeqCst);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_microseconds_and_reads_back() {
        let moment = Timestamp::from_micros(1_763_193_600_000_001);
        assert_eq!(moment.to_string(), "2025-11-15T08:00:00.000001Z");
        assert_eq!(moment.to_string().parse(), Ok(moment));
        assert_eq!(
            Timestamp::from_micros(0).to_string(),
            "1970-01-01T00:00:00.000000Z"
        );
    }

    #[test]
    fn the_ends_of_the_calendar_hold() {
        let last = Timestamp::from_micros(i64::MAX);
        let first = Timestamp::from_micros(i64::MIN);
        assert_eq!(first.to_string().parse(), Ok(first));
        assert_eq!(last.after(Duration::from_secs(1)), last);
        assert_eq!(last.to_string().parse(), Ok(last));
        assert_eq!(Timestamp::from_micros(0).since(last), Duration::ZERO);
        assert!("yesterday".parse::<Timestamp>().is_err());
    }
}
