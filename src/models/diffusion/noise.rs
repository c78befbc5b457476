//! Normal noise as torch's CPU generator makes it, so that a seed gives the same image as in diffusers.
//!
//! The Mersenne Twister (Matsumoto and Nishimura 1998, <https://doi.org/10.1145/272991.272995>) makes words; the
//! Box–Muller transform (1958) turns two uniform numbers into two normal ones. The order in which torch pairs them is
//! defined in its `aten/src/ATen/native/cpu/DistributionTemplates.h`.
//!
//! Words and uniform numbers match torch bit for bit. Normal numbers match to a few units in the last place, because
//! torch uses a different logarithm and cosine on each kind of CPU.

use std::f32::consts;
use std::f64::consts::TAU;

use rand_mt::Mt;

/// Numbers transformed together: cosines in the first half, sines of the same angles in the second.
const BATCH: usize = 16;

/// The state of a `torch.Generator("cpu")`.
#[derive(Clone, Debug)]
pub struct Generator {
    words: Mt,
    /// The second number of a pair, where numbers are made one at a time.
    cached: Option<f64>,
}

impl Generator {
    /// Follows `manual_seed`. Only the lower 32 bits of the seed are used.
    pub fn new(seed: u64) -> Self {
        Self { words: Mt::new(seed as u32), cached: None }
    }

    /// `torch.randn(count, generator=self)` in f32, in the order of `[batch, channels, height, width]`.
    ///
    /// Two calls differ from one call for both, because the last sixteen numbers of each call are redrawn.
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        if count < BATCH {
            return (0..count).map(|_| self.normal_one() as f32).collect();
        }
        let mut numbers: Vec<f32> = (0..count).map(|_| self.uniform()).collect();
        numbers.chunks_exact_mut(BATCH).for_each(transform);
        if !count.is_multiple_of(BATCH) {
            let last = &mut numbers[count - BATCH..];
            last.iter_mut().for_each(|number| *number = self.uniform());
            transform(last);
        }
        numbers
    }

    fn normal_one(&mut self) -> f64 {
        if let Some(cached) = self.cached.take() {
            return cached;
        }
        let angle = TAU * self.uniform_wide();
        let size = (-2. * (-self.uniform_wide()).ln_1p()).sqrt();
        self.cached = Some(size * angle.sin());
        size * angle.cos()
    }

    /// `[0, 1)`, 24 bits.
    fn uniform(&mut self) -> f32 {
        (self.words.next_u32() & 0xff_ffff) as f32 / 16_777_216.
    }

    /// `[0, 1)`, 53 bits.
    fn uniform_wide(&mut self) -> f64 {
        let word = u64::from(self.words.next_u32()) << 32 | u64::from(self.words.next_u32());
        (word & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    }
}

/// Box–Muller: pairs uniform numbers of the first half with those of the second.
fn transform(numbers: &mut [f32]) {
    let (first, second) = numbers.split_at_mut(BATCH / 2);
    for (one, other) in first.iter_mut().zip(second) {
        // Counted from one, because the logarithm of zero is infinite.
        let (size, angle) = ((-2. * (1. - *one).ln()).sqrt(), consts::TAU * *other);
        (*one, *other) = (size * angle.cos(), size * angle.sin());
    }
}
