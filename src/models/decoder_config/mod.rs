//! A decoder's sizes, read from the metadata and checked against each other.

mod gguf;
mod hugging_face;
mod rope_scaling;

use super::decoder_family::{Activation, DecoderFamily};
use super::rope::{RopeScaling, RopeSpec, RopeStyle};
use crate::models::error::{ModelError, reject_config};
pub(super) use hugging_face::family as family_of_config;

/// Sizes and constants of a decoder of the Llama kind.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    pub family: &'static DecoderFamily,
    pub layer_count: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub inner: usize,
    pub vocabulary: usize,
    pub context: usize,
    pub epsilon: f32,
    /// The ways of rotating that [`LayerConfig::rope`] chooses from.
    pub ropes: Vec<RopeSpec>,
    pub rope_style: RopeStyle,
    /// One a block.
    pub layers: Vec<LayerConfig>,
    pub activation: Activation,
    /// What embeddings and attention's scores are multiplied by.
    pub embedding_scale: f32,
    pub attention_scale: f32,
    /// Soft caps: `cap * tanh(x / cap)`.
    pub attention_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    pub experts: Option<MoeConfig>,
    /// Whether the query, key and value projections must have biases.
    pub biases: bool,
    /// What is added to the weights of norms.
    pub norm_weight_offset: f32,
    /// Whether output and embedding are one; `None`: they are if there is no output.
    pub tied_embeddings: Option<bool>,
}

/// What blocks of one model differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Which of [`DecoderConfig::ropes`]; `None` rotates nothing.
    pub rope: Option<usize>,
    /// A token sees so many positions, its own among them; `None`: all.
    pub window: Option<usize>,
    pub sparse: bool,
}

/// A mixture's sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    pub count: usize,
    /// How many each token goes through.
    pub experts_per_token: usize,
    pub inner: usize,
    /// Whether the weights of those used sum up to one.
    pub normalise_weights: bool,
}

impl DecoderConfig {
    /// What must hold between the numbers, whatever they were read from.
    fn check(self) -> Result<Self, ModelError> {
        let Self { heads, kv_heads, head_width, .. } = self;
        if !heads.is_multiple_of(kv_heads) {
            return reject_config(format!("{heads} heads cannot share {kv_heads} key-value heads"));
        }
        if head_width == 0 || !head_width.is_multiple_of(2) {
            return reject_config(format!("heads of {head_width} numbers cannot be rotated"));
        }
        if let Some(MoeConfig { count, experts_per_token: used, .. }) =
            self.experts.as_ref().filter(|sizes| sizes.experts_per_token > sizes.count)
        {
            return reject_config(format!("a token cannot go through {used} of {count} experts"));
        }
        self.ropes.iter().try_for_each(|rope| check_rope(rope, head_width))?;
        Ok(self)
    }
}

fn check_rope(rope: &RopeSpec, head_width: usize) -> Result<(), ModelError> {
    let RopeSpec { rotated, scaling, .. } = rope;
    if *rotated == 0 || !rotated.is_multiple_of(2) || *rotated > head_width {
        return reject_config(format!("{rotated} of a head's {head_width} numbers cannot be rotated"));
    }
    let RopeScaling::LongRope(long) = scaling else { return Ok(()) };
    for factors in [&long.short, &long.long] {
        // Those among the weights are counted when they are read.
        if !factors.is_empty() && factors.len() != rotated / 2 {
            return reject_config(format!("{} factors for {} rotated pairs", factors.len(), rotated / 2));
        }
        if factors.iter().any(|factor| !factor.is_normal()) {
            return reject_config("it has rotary factors that nothing can be divided by".to_owned());
        }
    }
    Ok(())
}
