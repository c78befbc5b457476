//! Pseudo-random numbers that stay the same from version to version, so that a training can be repeated.

/// The generator SplitMix64 (Steele et al. 2014, <https://doi.org/10.1145/2660193.2660195>).
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in [-1, 1).
    pub fn symmetric(&mut self) -> f32 {
        (self.next_bits() >> 40) as f32 / (1 << 23) as f32 - 1.
    }

    /// Puts items in a random order (Durstenfeld 1964, <https://doi.org/10.1145/364520.364540>).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (u128::from(self.next_bits()) * (last as u128 + 1)) >> 64;
            items.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix;

    #[test]
    fn numbers_and_orders_are_reproducible() {
        let mut random = SplitMix::new(0);
        assert_eq!(random.next_bits(), 0xe220_a839_7b1d_cdaf, "the first number of the reference implementation");
        let order = |seed| {
            let mut items: Vec<u32> = (0..8).collect();
            SplitMix::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
