//! Dropout (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>) with a mask that is computed from
//! a key, so that it need not be kept.
//!
//! The key depends on the seed, the number of steps, the number of passes since the last step, the module and the
//! element. Recomputed layers and resumed training therefore need no stored state.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::by_rows;
use crate::simd::{Kernel, Simd, run};

/// Zeroes each element with probability `rate`, and multiplies the others by `1 / (1 − rate)`. The key and the index of
/// an element determine whether it is zeroed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// From 0 up to, but not including, 1.
    pub rate: f32,
    pub key: u64,
}

impl Dropout {
    /// A key for each value of `part`.
    pub fn mixed_key(key: u64, part: u64) -> u64 {
        mix(key ^ mix(part))
    }

    /// The factor of an element.
    pub fn factor(&self, index: usize) -> f32 {
        self.factors()(index)
    }

    #[inline(always)]
    fn factors(self) -> impl Fn(usize) -> f32 {
        let (threshold, kept) = ((f64::from(self.rate) * (1u64 << 32) as f64) as u64, 1. / (1. - self.rate));
        move |index| if mix(self.key ^ mix(index as u64)) >> 32 < threshold { 0. } else { kept }
    }

    /// `out = x · factors`, or `out += x · factors` if `accumulate` is set.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn apply(&self, pool: &Pool, x: &[f32], accumulate: bool, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "x and out have different lengths");
        let (len, shared) = (x.len(), SharedSlice::new(out));
        by_rows(pool, len, 1, |first, count| {
            // SAFETY: no other task accesses these elements.
            let out = unsafe { shared.get(first, count) };
            run(pool.isa(), Apply { dropout: *self, first, x: &x[first..first + count], accumulate, out });
        });
    }
}

/// SplitMix64's finaliser (Steele et al. 2014, <https://doi.org/10.1145/2660193.2660195>).
#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

struct Apply<'a> {
    dropout: Dropout,
    first: usize,
    x: &'a [f32],
    accumulate: bool,
    out: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    /// The compiler vectorises these loops.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (factor, elements) = (self.dropout.factors(), self.x.iter().zip(self.out).enumerate());
        match self.accumulate {
            true => elements.for_each(|(index, (x, out))| *out += x * factor(self.first + index)),
            false => elements.for_each(|(index, (x, out))| *out = x * factor(self.first + index)),
        }
    }
}
