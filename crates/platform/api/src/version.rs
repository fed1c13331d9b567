//! Which clients of ours a server serves: those of its own major version, of
//! its minor version and the two before.
//!
//! A client of ours names its version in a header; whoever sends none, such as
//! a script, goes by the version in the path alone.

use std::fmt;
use std::str::FromStr;

/// The header in which a client of ours says which version it is.
pub const CLIENT_VERSION: &str = "fluffy-client-version";

/// How many minor versions before a server's own it serves.
const BACK: u64 = 2;

/// A version, as far as it matters for who understands whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// What changes when something is taken back.
    pub major: u64,
    /// What changes when something comes.
    pub minor: u64,
}

/// A text is no version such as `1.4.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseVersionError;

impl Version {
    /// The version of this program.
    #[must_use]
    pub fn own() -> Self {
        // What cargo writes always is one.
        Self::from_str(env!("CARGO_PKG_VERSION")).unwrap_or(Self { major: 0, minor: 0 })
    }

    /// The oldest client that a server of this version serves.
    #[must_use]
    pub const fn oldest_client(self) -> Self {
        Self {
            major: self.major,
            minor: self.minor.saturating_sub(BACK),
        }
    }

    /// Whether a server of this version serves a client of another one.
    #[must_use]
    pub fn serves(self, client: Self) -> bool {
        (self.oldest_client()..=self).contains(&client)
    }
}

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        // What comes behind, such as `-rc.1+build`, changes nothing here.
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let numbers = text.get(..end).unwrap_or_default();
        let mut parts = numbers.split('.').map(|part| match part.parse::<u64>() {
            Ok(number) if part.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
            _ => Err(ParseVersionError),
        });
        let mut next = || parts.next().unwrap_or(Err(ParseVersionError));
        let (major, minor, _patch) = (next()?, next()?, next()?);
        match parts.next() {
            None => Ok(Self { major, minor }),
            Some(_) => Err(ParseVersionError),
        }
    }
}

impl std::error::Error for ParseVersionError {}

impl fmt::Display for ParseVersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no version such as 1.4.0")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn this_minor_and_the_two_before_are_served() {
        let server = version("2.5.3");
        for served in ["2.5.3", "2.5.9", "2.4.0", "2.3.7", "2.5.0-rc.1", "2.3.0+x"] {
            assert!(server.serves(version(served)), "{served}");
        }
        for other in ["2.2.9", "2.6.0", "1.5.3", "3.0.0", "0.5.3", "3.5.3"] {
            assert!(!server.serves(version(other)), "{other}");
        }
        assert_eq!(server.oldest_client().to_string(), "2.3");
        // Before the third minor there are fewer than two before.
        assert!(version("1.1.0").serves(version("1.0.0")));
        assert!(!version("1.1.0").serves(version("0.9.0")));
        assert!(Version::own().serves(Version::own()));
    }

    #[test]
    fn what_is_no_version_is_none() {
        let long = "9".repeat(40);
        for text in [
            "", "1", "1.2", "1.2.3.4", "a.b.c", "1.+2.3", "-1.2.3", " 1.2.3", &long,
        ] {
            assert_eq!(text.parse::<Version>(), Err(ParseVersionError), "{text}");
        }
    }
}
