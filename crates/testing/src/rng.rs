//! A small random number generator with a seed, so that failures are reproducible.

/// A linear congruential generator with Knuth's MMIX constants. The field is the seed.
pub struct TestRng(pub u64);

impl TestRng {
    /// A number in `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
