//! The parameters of a rotary position embedding in a checkpoint, and the methods that scale its frequencies.

use std::f32::consts::TAU;

pub use crate::backend::RopeLayout;

/// The parameters of a rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    pub base: f32,
    /// The number of elements at the start of a head that are rotated.
    pub rotated: usize,
    pub scaling: RopeScaling,
    /// Whether the checkpoint stores divisors of the frequencies (`rope_freqs.weight`): Llama 3 in GGUF.
    pub stored_factors: bool,
    /// Cosines and sines grow with the position, and with them whatever is rotated.
    pub growth: Option<Growth>,
}

/// Llama 4's scaling of queries in long contexts, which Ministral 3 has, too: the factor of a position is
/// 1 + `beta` · ln(1 + ⌊position / `original`⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub beta: f32,
    /// The length of the original context in positions.
    pub original: usize,
}

impl Growth {
    pub(super) fn at(self, position: usize) -> f32 {
        1. + self.beta * ((position / self.original) as f32).ln_1p()
    }
}

/// The method that extends the trained context. `original` is the length of that context in positions.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear(f32),
    /// Gemma 4's: only the first pairs turn, with frequencies that are divided by `factor`.
    Proportional {
        pairs: usize,
        factor: f32,
    },
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original: f32,
    },
    Yarn(Yarn),
    LongRope(LongRope),
}

/// Parameters of YaRN, with the names of the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f32,
    pub original: f32,
    /// `beta_fast`: pairs with more rotations over the original context do not change.
    pub fast: f32,
    /// `beta_slow`: the frequencies of pairs with fewer rotations are divided by `factor`.
    pub slow: f32,
    /// The factor of cosines and sines.
    pub magnitude: f32,
    /// Whether the bounds of the ramp are rounded to integers.
    pub truncate: bool,
}

/// Parameters of LongRoPE. The divisors are empty if they are stored as tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Divisors of the frequencies up to the original context.
    pub short: Vec<f32>,
    /// Divisors of the frequencies beyond it.
    pub long: Vec<f32>,
    pub original: usize,
    pub magnitude: f32,
}

/// The `magnitude` of the YaRN paper.
pub fn yarn_magnitude(factor: f32, weight: f32) -> f32 {
    if factor <= 1. { 1. } else { 0.1 * weight * factor.ln() + 1. }
}

/// The `magnitude` of the LongRoPE paper.
pub fn long_rope_magnitude(factor: f32, original: f32) -> f32 {
    if factor <= 1. { 1. } else { (1. + factor.ln() / original.ln()).sqrt() }
}

/// Llama 3's scaling: low frequencies are divided by `factor`, high frequencies do not change, and frequencies between
/// them are interpolated.
pub(super) fn llama3(frequency: f32, factor: f32, low: f32, high: f32, original: f32) -> f32 {
    let wavelength = TAU / frequency;
    if wavelength < original / high {
        frequency
    } else if wavelength > original / low {
        frequency / factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1. - smooth) * frequency / factor + smooth * frequency
    }
}

impl Yarn {
    /// Scales the frequencies `base` of all pairs.
    pub(super) fn frequencies(&self, base: &[f32], spec: &RopeSpec) -> Vec<f32> {
        let (low, high) = self.bounds(spec);
        let ramp = |pair: usize| ((pair as f32 - low) / (high - low)).clamp(0., 1.);
        let interpolate = |(pair, f): (usize, &f32)| f / self.factor * ramp(pair) + f * (1. - ramp(pair));
        base.iter().enumerate().map(interpolate).collect()
    }

    /// The bounds of the ramp: frequencies of pairs before the first do not change, those after the second are divided.
    fn bounds(&self, spec: &RopeSpec) -> (f32, f32) {
        let width = spec.rotated as f32;
        let pair = |rotations: f32| width * (self.original / (rotations * TAU)).ln() / (2. * spec.base.ln());
        let (mut low, mut high) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.), high.min(width - 1.));
        (low, if low == high { high + 0.001 } else { high })
    }
}
