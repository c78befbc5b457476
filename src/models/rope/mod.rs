//! Rotary position embeddings (Su et al. 2021, <https://arxiv.org/abs/2104.09864>) and the ways of
//! stretching them beyond the trained context: linear, Llama 3's, YaRN (Peng et al. 2023,
//! <https://arxiv.org/abs/2309.00071>), LongRoPE (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>).
//!
//! The numbers follow `modeling_rope_utils.py` of transformers.

mod angles;
mod spec;

use std::f32::consts::TAU;

use super::weights::Loader;
use crate::models::error::ModelError;
pub(super) use angles::Angles;
pub use spec::{LongRope, RopeScaling, RopeSpec, RopeStyle, Yarn, long_rope_magnitude, yarn_magnitude};

/// A way of rotating, ready to compute with.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Angle per position of each rotated pair.
    frequencies: Vec<f32>,
    /// LongRoPE: those of sequences that go beyond so many positions.
    long: Option<(usize, Vec<f32>)>,
    magnitude: f32,
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
