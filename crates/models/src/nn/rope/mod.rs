//! Rotary position embeddings (Su et al. 2021, <https://arxiv.org/abs/2104.09864>) and the methods that extend them
//! beyond the trained context: linear scaling, Llama 3's, YaRN (Peng et al. 2023, <https://arxiv.org/abs/2309.00071>)
//! and LongRoPE (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>). In Gemma 4's proportional embedding, only some pairs turn.
//!
//! The formulas follow `modeling_rope_utils.py` in transformers.

mod rotation;
mod scaling;

use crate::backend::Backend;
use crate::error::Result;
use crate::weights::Loader;
use scaling::llama3;
pub use scaling::{Growth, LongRope, RopeLayout, RopeScaling, RopeSpec, Yarn, long_rope_magnitude, yarn_magnitude};

/// The frequencies of a rotary position embedding.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Angle per position of each rotated pair.
    frequencies: Vec<f32>,
    /// LongRoPE: the length of the original context, and the frequencies of longer sequences.
    long: Option<(usize, Vec<f32>)>,
    /// The factor of cosines and sines.
    magnitude: f32,
    growth: Option<Growth>,
}

impl Rope {
    /// Computes the frequencies of `spec`, and reads divisors that are stored in the checkpoint.
    pub(crate) fn load<B: Backend>(loader: &Loader<'_, B>, spec: &RopeSpec) -> Result<Self> {
        let pairs = spec.rotated / 2;
        let stored = if spec.stored_factors { Some(loader.factors("rope_freqs", pairs)?) } else { None };
        match &spec.scaling {
            RopeScaling::LongRope(long) if long.short.is_empty() => {
                let (short, long_factors) =
                    (loader.factors("rope_factors_short", pairs)?, loader.factors("rope_factors_long", pairs)?);
                let scaling = RopeScaling::LongRope(LongRope { short, long: long_factors, ..long.clone() });
                Ok(Self::new(&RopeSpec { scaling, ..spec.clone() }, stored.as_deref()))
            }
            _ => Ok(Self::new(spec, stored.as_deref())),
        }
    }

    /// `stored`: the divisors from the checkpoint, one per pair.
    fn new(spec: &RopeSpec, stored: Option<&[f32]>) -> Self {
        let pairs = spec.rotated / 2;
        let base: Vec<f32> =
            (0..pairs).map(|pair| spec.base.powf((2 * pair) as f32 / spec.rotated as f32).recip()).collect();
        let divide =
            |divisors: &[f32]| -> Vec<f32> { base.iter().zip(divisors).map(|(f, divisor)| f / divisor).collect() };
        let (mut long, mut magnitude) = (None, 1.);
        let mut frequencies = match &spec.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear(factor) => base.iter().map(|frequency| frequency / factor).collect(),
            RopeScaling::Proportional { pairs, factor } => {
                let frequency = |(pair, frequency): (usize, &f32)| if pair < *pairs { frequency / factor } else { 0. };
                base.iter().enumerate().map(frequency).collect()
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                base.iter().map(|frequency| llama3(*frequency, *factor, *low, *high, *original)).collect()
            }
            RopeScaling::Yarn(yarn) => {
                magnitude = yarn.magnitude;
                yarn.frequencies(&base, spec)
            }
            RopeScaling::LongRope(factors) => {
                magnitude = factors.magnitude;
                long = Some((factors.original, divide(&factors.long)));
                divide(&factors.short)
            }
        };
        if let Some(stored) = stored {
            frequencies.iter_mut().zip(stored).for_each(|(frequency, divisor)| *frequency /= divisor);
        }
        Self { frequencies, long, magnitude, growth: spec.growth }
    }

    /// Whether a sequence of at most `limit` positions uses the frequencies for long contexts. A sequence must use the same
    /// frequencies for all its keys and queries.
    pub fn is_long(&self, limit: usize) -> bool {
        self.long.as_ref().is_some_and(|(original, _)| limit > *original)
    }

    /// The factor of cosines and sines at a position.
    fn magnitude(&self, position: usize) -> f32 {
        self.magnitude * self.growth.map_or(1., |growth| growth.at(position))
    }

    /// The angle per position of each rotated pair.
    fn frequencies(&self, long: bool) -> &[f32] {
        match &self.long {
            Some((_, frequencies)) if long => frequencies,
            _ => &self.frequencies,
        }
    }
}
