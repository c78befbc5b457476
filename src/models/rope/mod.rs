//! Rotary position embeddings (Su et al. 2021, <https://arxiv.org/abs/2104.09864>) and the ways of
//! stretching them beyond the trained context: linear, Llama 3's, YaRN (Peng et al. 2023,
//! <https://arxiv.org/abs/2309.00071>), LongRoPE (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>).
//!
//! The numbers follow `modeling_rope_utils.py` of transformers.

mod angles;

use std::f32::consts::TAU;

use super::ModelError;
use super::weights::Loader;
pub(super) use angles::Angles;

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

/// A way of rotating, ready to compute with.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Angle per position of each rotated pair.
    frequencies: Vec<f32>,
    /// LongRoPE: those of sequences that go beyond so many positions.
    long: Option<(usize, Vec<f32>)>,
    magnitude: f32,
}

/// YaRN's and LongRoPE's papers' sizes of `magnitude`.
pub fn yarn_magnitude(factor: f32, weight: f32) -> f32 {
    if factor <= 1. { 1. } else { 0.1 * weight * factor.ln() + 1. }
}

pub fn long_rope_magnitude(factor: f32, original: f32) -> f32 {
    if factor <= 1. { 1. } else { (1. + factor.ln() / original.ln()).sqrt() }
}

impl Rope {
    /// `spec` with the divisors that lie among the weights.
    pub(super) fn load(loader: &Loader<'_>, spec: &RopeSpec) -> std::result::Result<Self, ModelError> {
        let pairs = spec.rotated / 2;
        let stored = if spec.stored_factors { Some(loader.factors("rope_freqs", pairs)?) } else { None };
        match &spec.scaling {
            RopeScaling::LongRope(long) if long.short.is_empty() => {
                let (short, far) =
                    (loader.factors("rope_factors_short", pairs)?, loader.factors("rope_factors_long", pairs)?);
                let scaling = RopeScaling::LongRope(LongRope { short, long: far, ..long.clone() });
                Ok(Self::new(&RopeSpec { scaling, ..spec.clone() }, stored.as_deref()))
            }
            _ => Ok(Self::new(spec, stored.as_deref())),
        }
    }

    /// `stored`: the divisors from the weights, one a pair.
    fn new(spec: &RopeSpec, stored: Option<&[f32]>) -> Self {
        let pairs = spec.rotated / 2;
        let plain: Vec<f32> =
            (0..pairs).map(|pair| spec.base.powf((2 * pair) as f32 / spec.rotated as f32).recip()).collect();
        let divided = |by: &[f32]| -> Vec<f32> { plain.iter().zip(by).map(|(one, by)| one / by).collect() };
        let (mut long, mut magnitude) = (None, 1.);
        let mut frequencies = match &spec.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear(factor) => plain.iter().map(|one| one / factor).collect(),
            RopeScaling::Llama3 { factor, low, high, original } => {
                plain.iter().map(|one| llama3(*one, *factor, *low, *high, *original)).collect()
            }
            RopeScaling::Yarn(yarn) => {
                magnitude = yarn.magnitude;
                yarn.frequencies(&plain, spec)
            }
            RopeScaling::LongRope(factors) => {
                magnitude = factors.magnitude;
                long = Some((factors.original, divided(&factors.long)));
                divided(&factors.short)
            }
        };
        if let Some(stored) = stored {
            frequencies.iter_mut().zip(stored).for_each(|(one, by)| *one /= by);
        }
        Self { frequencies, long, magnitude }
    }

    /// Whether a sequence of at most `limit` positions takes the frequencies for long ones. One
    /// sequence keeps to one choice: keys that were rotated otherwise would not fit its queries.
    pub fn is_long(&self, limit: usize) -> bool {
        self.long.as_ref().is_some_and(|(original, _)| limit > *original)
    }

    /// The angle per position of each pair.
    fn frequencies(&self, long: bool) -> &[f32] {
        match &self.long {
            Some((_, frequencies)) if long => frequencies,
            _ => &self.frequencies,
        }
    }
}

/// Slow turns are slowed further, fast ones stay, those between are mixed.
fn llama3(frequency: f32, factor: f32, low: f32, high: f32, original: f32) -> f32 {
    let length = TAU / frequency;
    if length < original / high {
        frequency
    } else if length > original / low {
        frequency / factor
    } else {
        let smooth = (original / length - low) / (high - low);
        (1. - smooth) * frequency / factor + smooth * frequency
    }
}

impl Yarn {
    fn frequencies(&self, plain: &[f32], spec: &RopeSpec) -> Vec<f32> {
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
