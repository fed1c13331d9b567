//! Seeds that replay a failure, and the two lengths of a campaign.
//!
//! Never hides a seed: it is printed when a test fails, with how to replay it.

use std::fmt;
use std::thread;

use crate::random::mix;

/// The variable that replays a run with a known seed.
pub const SEED_ENV: &str = "FLUFFY_SEED";

/// The variable that `cargo xtask accept` sets to `full`.
pub const CAMPAIGN_ENV: &str = "FLUFFY_CAMPAIGN";

/// What a random test starts from; says how to replay it when the test fails.
///
/// Keep it alive until the end of the test: it speaks when dropped in a panic.
#[derive(Debug)]
pub struct Seed {
    value: u64,
}

impl Seed {
    /// The seed from [`SEED_ENV`], or a random one.
    ///
    /// # Panics
    /// The variable is set but is not a number: a replay that silently took
    /// another seed would be worse.
    #[must_use]
    pub fn from_environment() -> Self {
        std::env::var(SEED_ENV).map_or_else(|_| Self::random(), |text| Self::parse(&text))
    }

    /// A seed from the system's randomness.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 8];
        // The operating system guarantees randomness after boot.
        if getrandom::fill(&mut bytes).is_err() {
            std::process::abort();
        }
        Self {
            value: u64::from_le_bytes(bytes),
        }
    }

    /// The number to seed a generator with.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// A number that looks random, for choices that need no generator.
    ///
    /// The same seed and the same `step` always give the same number
    /// (SplitMix64).
    #[must_use]
    pub fn choice(&self, step: u64) -> u64 {
        let steps = step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mix(self.value.wrapping_add(steps))
    }

    #[expect(clippy::panic, reason = "a test with a wrong seed must not run")]
    fn parse(text: &str) -> Self {
        match text.trim().parse() {
            Ok(value) => Self { value },
            Err(_) => panic!("{SEED_ENV} is `{text}`, which is not a whole number"),
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)
    }
}

impl Drop for Seed {
    #[expect(
        clippy::print_stderr,
        reason = "the seed of a failed test is its most useful line"
    )]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("replay with {SEED_ENV}={}", self.value);
        }
    }
}

/// The length of a campaign: a tenth in CI, all of it in `cargo xtask accept`.
#[must_use]
pub fn campaign(tenth: u64, full: u64) -> u64 {
    choose(std::env::var(CAMPAIGN_ENV).ok().as_deref(), tenth, full)
}

fn choose(wanted: Option<&str>, tenth: u64, full: u64) -> u64 {
    match wanted {
        Some("full") => full,
        _ => tenth,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_steps_differ() {
        let (first, second) = (Seed::parse("7"), Seed::parse(" 7\n"));
        let steps = |seed: &Seed| (0..100).map(|step| seed.choice(step)).collect::<Vec<_>>();
        assert_eq!(steps(&first), steps(&second));
        let mut distinct = steps(&first);
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 100);
        assert_ne!(Seed::parse("8").choice(0), first.choice(0));
    }

    #[test]
    #[should_panic(expected = "not a whole number")]
    fn a_wrong_seed_stops_the_test() {
        let _ = Seed::parse("seven");
    }

    #[test]
    fn only_full_is_full() {
        assert_eq!(choose(Some("full"), 20, 200), 200);
        assert_eq!(choose(Some("fuller"), 20, 200), 20);
        assert_eq!(choose(None, 20, 200), 20);
    }
}
