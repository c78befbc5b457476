//! A small generator, so that a failure can be repeated.

/// A linear congruential generator (Knuth's MMIX constants); the number is its seed.
pub struct TestRng(pub u64);

impl TestRng {
    /// A number from 0 up to, but without, `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
