//! A fixed sliding window over counters (in the manner of RFC 6479).
//!
//! Parallel calls may arrive out of order, so each counter is accepted once as
//! long as it is not too far behind the highest one seen.

const BLOCKS: usize = 16;
const BITS: u64 = 64;

/// How far behind the highest counter a new one may be.
pub(crate) const REACH: u64 = (BLOCKS as u64 - 1) * BITS;

#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    top: u64,
    blocks: [u64; BLOCKS],
}

impl Window {
    /// Takes a counter; `false` if it was seen, is too old or is zero.
    pub(crate) fn accept(&mut self, counter: u64) -> bool {
        if counter == 0 || self.top.saturating_sub(counter) >= REACH {
            return false;
        }
        let block = counter / BITS;
        if counter > self.top {
            let newest = self.top / BITS;
            for step in 1..=(block - newest).min(BLOCKS as u64) {
                *self.block(newest + step) = 0;
            }
            self.top = counter;
        }
        let bit = 1 << (counter % BITS);
        let seen = self.block(block);
        let fresh = *seen & bit == 0;
        *seen |= bit;
        fresh
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "the remainder is below the number of blocks"
    )]
    fn block(&mut self, number: u64) -> &mut u64 {
        &mut self.blocks[(number % BLOCKS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_counter_is_good_once() {
        let mut window = Window::default();
        assert!(!window.accept(0));
        for counter in [3, 1, 2, 700, 5] {
            assert!(window.accept(counter), "{counter}");
            assert!(!window.accept(counter), "{counter} again");
        }
        assert!(window.accept(5_000));
        assert!(!window.accept(700), "behind the window");
        assert!(!window.accept(5_000 - REACH));
        assert!(window.accept(5_001 - REACH));
        assert!(window.accept(u64::MAX));
        assert!(!window.accept(u64::MAX));
    }

    proptest! {
        #[test]
        fn a_window_equals_a_set_that_forgets(counters in prop::collection::vec(0u64..4_000, 0..300)) {
            let (mut window, mut seen, mut top) = (Window::default(), HashSet::new(), 0);
            for counter in counters {
                let expected = counter != 0 && top < counter + REACH && seen.insert(counter);
                prop_assert_eq!(window.accept(counter), expected, "{} after {}", counter, top);
                top = top.max(counter);
            }
        }
    }
}
