//! Normal noise that matches torch's CPU generator, so that a seed gives the same image as in diffusers.
//!
//! The Mersenne Twister (Matsumoto and Nishimura 1998, <https://doi.org/10.1145/272991.272995>) generates random words.
//! The Box–Muller transform (1958) converts two uniform values to two normal values. torch defines the order in which
//! it pairs them in `aten/src/ATen/native/cpu/DistributionTemplates.h`.
//!
//! Words and uniform values match torch bit for bit. Normal values match to a few units in the last place, because
//! torch uses different logarithm and cosine functions on different CPUs.

use std::f32::consts;
use std::f64::consts::TAU;

use rand_mt::Mt;

/// The number of values that are transformed together: cosines in the first half, sines of the same angles in the
/// second.
const BATCH: usize = 16;

/// The state of a `torch.Generator("cpu")`.
#[derive(Clone, Debug)]
pub struct Generator {
    mersenne_twister: Mt,
    /// The second value of a pair, if values are generated one at a time.
    cached: Option<f64>,
}

impl Generator {
    /// Like `manual_seed`. Only the lower 32 bits of the seed are used.
    pub fn new(seed: u64) -> Self {
        Self { mersenne_twister: Mt::new(seed as u32), cached: None }
    }

    /// `torch.randn(count, generator=self)` in f32, in the order of `[batch, channels, height, width]`.
    ///
    /// Two calls differ from one call with the sum of both counts: each call redraws its last 16 values if the count is
    /// not a multiple of 16.
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        if count < BATCH {
            return (0..count).map(|_| self.normal_f64() as f32).collect();
        }
        let mut values: Vec<f32> = (0..count).map(|_| self.uniform_f32()).collect();
        values.chunks_exact_mut(BATCH).for_each(box_muller);
        if !count.is_multiple_of(BATCH) {
            let last = &mut values[count - BATCH..];
            last.iter_mut().for_each(|value| *value = self.uniform_f32());
            box_muller(last);
        }
        values
    }

    fn normal_f64(&mut self) -> f64 {
        if let Some(cached) = self.cached.take() {
            return cached;
        }
        let angle = TAU * self.uniform_f64();
        let radius = (-2. * (-self.uniform_f64()).ln_1p()).sqrt();
        self.cached = Some(radius * angle.sin());
        radius * angle.cos()
    }

    /// A uniform value in `[0, 1)` with 24 bits.
    fn uniform_f32(&mut self) -> f32 {
        (self.mersenne_twister.next_u32() & 0xff_ffff) as f32 / 16_777_216.
    }

    /// A uniform value in `[0, 1)` with 53 bits.
    fn uniform_f64(&mut self) -> f64 {
        let word = u64::from(self.mersenne_twister.next_u32()) << 32 | u64::from(self.mersenne_twister.next_u32());
        (word & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    }
}

/// The Box–Muller transform of uniform values: each of the first half is paired with one of the second.
fn box_muller(values: &mut [f32]) {
    let (first, second) = values.split_at_mut(BATCH / 2);
    for (a, b) in first.iter_mut().zip(second) {
        // `1 - a` is above zero, so the logarithm is finite.
        let (radius, angle) = ((-2. * (1. - *a).ln()).sqrt(), consts::TAU * *b);
        (*a, *b) = (radius * angle.cos(), radius * angle.sin());
    }
}
