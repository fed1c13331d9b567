//! Numbers that look random and replay: SplitMix64.

/// A generator; equal seeds give equal numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// One that starts here.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, so it is no iterator that anybody would collect"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 up to, but without, `many`.
    pub fn below(&mut self, many: u64) -> u64 {
        self.next() % many
    }

    /// A number from `low` up to, but without, `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// Yes, once in so many times.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// One of these, if there are any.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let many = u64::try_from(of.len()).ok().filter(|many| *many > 0)?;
        let at = usize::try_from(self.below(many)).ok()?;
        of.get(at).cloned()
    }
}

/// Spreads a number over all bits.
pub(crate) fn mix(mut mixed: u64) -> u64 {
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
