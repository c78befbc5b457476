//! Rotary embeddings as a checkpoint describes them.

use std::f32::consts::TAU;

/// How rotary embeddings pair the numbers of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours, 2i with 2i+1: converters permute Llama's weights so.
    Interleaved,
    /// Halves, i with i+d/2: as GPT-NeoX has it.
    Halves,
}

/// One way of rotating, as the metadata describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    pub base: f32,
    /// How many of a head's numbers are rotated: the first so many.
    pub rotated: usize,
    pub scaling: RopeScaling,
    /// Divisors of the frequencies that lie among the weights (`rope_freqs.weight`): Llama 3 in GGUF.
    pub stored_factors: bool,
}

/// How the trained context is stretched. `original` is its length in positions.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear(f32),
    Llama3 { factor: f32, low: f32, high: f32, original: f32 },
    Yarn(Yarn),
    LongRope(LongRope),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f32,
    pub original: f32,
    pub fast: f32,
    pub slow: f32,
    /// What cosines and sines are multiplied by.
    pub magnitude: f32,
    /// Whether the bounds of the ramp are whole numbers.
    pub truncate: bool,
}

/// LongRoPE's divisors; empty where they lie among the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    pub short: Vec<f32>,
    pub long: Vec<f32>,
    pub original: usize,
    pub magnitude: f32,
}

/// YaRN's and LongRoPE's papers' sizes of `magnitude`.
pub fn yarn_magnitude(factor: f32, weight: f32) -> f32 {
    if factor <= 1. { 1. } else { 0.1 * weight * factor.ln() + 1. }
}

pub fn long_rope_magnitude(factor: f32, original: f32) -> f32 {
    if factor <= 1. { 1. } else { (1. + factor.ln() / original.ln()).sqrt() }
}

impl Yarn {
    pub(super) fn frequencies(&self, plain: &[f32], spec: &RopeSpec) -> Vec<f32> {
        let (low, high) = self.bounds(spec);
        let ramp = |pair: usize| ((pair as f32 - low) / (high - low)).clamp(0., 1.);
        let mix = |(pair, one): (usize, &f32)| one / self.factor * ramp(pair) + one * (1. - ramp(pair));
        plain.iter().enumerate().map(mix).collect()
    }

    /// Pairs before the first keep their frequency, those after the second are divided.
    fn bounds(&self, spec: &RopeSpec) -> (f32, f32) {
        let width = spec.rotated as f32;
        let pair = |turns: f32| width * (self.original / (turns * TAU)).ln() / (2. * spec.base.ln());
        let (mut low, mut high) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.), high.min(width - 1.));
        (low, if low == high { high + 0.001 } else { high })
    }
}
