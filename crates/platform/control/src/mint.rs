//! Where new ids come from: the time of the call and a seeded generator.
//!
//! The server seeds it from the operating system once; a simulation seeds it
//! with a number and gets the same ids again. Never reads a clock.

use std::sync::atomic::{AtomicU64, Ordering};

use fluffy_base::{Digest, Timestamp};

/// Makes the bits of new ids: ULIDs whose time is that of the call.
#[derive(Debug)]
pub struct Mint {
    seed: [u8; 32],
    drawn: AtomicU64,
}

impl Mint {
    /// A mint that nobody can foresee if the seed is not known.
    #[must_use]
    pub const fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            drawn: AtomicU64::new(0),
        }
    }

    /// The bits of the next id, for `from_bits` of any kind of id.
    #[must_use]
    pub fn bits(&self, now: Timestamp) -> u128 {
        let count = self.drawn.fetch_add(1, Ordering::Relaxed);
        let digest = Digest::of_parts(&[&self.seed, &count.to_be_bytes()]);
        let (random, _) = digest.as_bytes().split_at(16);
        let random = random
            .iter()
            .fold(0u128, |bits, byte| (bits << 8) | u128::from(*byte));
        let millis = u128::from(u64::try_from(now.as_micros() / 1000).unwrap_or(0));
        ((millis & 0xffff_ffff_ffff) << 80) | (random >> 48)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ordered_by_time_and_never_equal() {
        let mint = Mint::new([7; 32]);
        let early = mint.bits(Timestamp::from_micros(1_000_000));
        let again = mint.bits(Timestamp::from_micros(1_000_000));
        let late = mint.bits(Timestamp::from_micros(2_000_000));
        assert!(early != again && early < late && again < late);
        assert_eq!(
            Mint::new([7; 32]).bits(Timestamp::from_micros(1_000_000)),
            early
        );
    }
}
