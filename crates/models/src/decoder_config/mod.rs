//! The configuration of a decoder: its sizes and constants, from a GGUF header or a `config.json`.

mod from_config_json;
mod from_gguf;
mod rope_from_config_json;

use super::backend::AttentionShape;
use super::decoder_family::{Activation, DecoderFamily};
use super::nn::rope::{RopeLayout, RopeScaling, RopeSpec};
use crate::error::{ModelError, reject_config};
pub(super) use from_config_json::find_family;

/// Sizes and constants of a decoder.
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
    /// The rotary embeddings that [`LayerConfig::rope`] refers to.
    pub ropes: Vec<RopeSpec>,
    pub rope_layout: RopeLayout,
    /// The layers: `[layer_count]`.
    pub layers: Vec<LayerConfig>,
    pub activation: Activation,
    /// Factor of the token embeddings.
    pub embedding_scale: f32,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// Soft cap of the attention scores: `cap * tanh(x / cap)`.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_soft_cap: Option<f32>,
    pub experts: Option<MoeConfig>,
    /// Whether the query, key and value projections must have biases.
    pub biases: bool,
    /// Offset that is added to the weights of norms.
    pub norm_weight_offset: f32,
    /// Whether the output projection is the token embedding; `None`: it is if the checkpoint has no output tensor.
    pub tied_embeddings: Option<bool>,
}

/// Settings that differ between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Index into [`DecoderConfig::ropes`]; `None`: no position embedding.
    pub rope: Option<usize>,
    /// Sliding window: the number of positions that a token sees, including its own; `None`: all.
    pub window: Option<usize>,
    /// Whether the feed-forward network is a mixture of experts.
    pub sparse: bool,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    pub count: usize,
    /// Experts that process each token.
    pub experts_per_token: usize,
    pub inner: usize,
    /// Whether the weights of the selected experts are scaled to a sum of one.
    pub normalise_weights: bool,
}

/// The sizes of a decoder without experts.
#[derive(Clone, Copy, Debug)]
pub struct DecoderSizes {
    pub layers: usize,
    pub width: usize,
    pub inner: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub vocabulary: usize,
}

#[cfg(test)]
impl DecoderConfig {
    /// A small configuration.
    pub fn for_tests() -> Self {
        let sizes =
            DecoderSizes { layers: 2, width: 64, inner: 128, heads: 4, kv_heads: 2, head_width: 16, vocabulary: 1_000 };
        Self { ropes: Vec::new(), ..Self::dense(&sizes, 512) }
    }
}

impl DecoderConfig {
    /// A decoder of the family of Llama.
    pub fn dense(sizes: &DecoderSizes, context: usize) -> Self {
        let DecoderSizes { layers, width, inner, heads, kv_heads, head_width, vocabulary } = *sizes;
        let rope = RopeSpec { base: 10_000., rotated: head_width, scaling: RopeScaling::None, stored_factors: false };
        Self {
            family: &super::decoder_family::LLAMA,
            layer_count: layers,
            width,
            heads,
            kv_heads,
            head_width,
            inner,
            vocabulary,
            context,
            epsilon: 1e-5,
            ropes: vec![rope],
            rope_layout: RopeLayout::Halves,
            layers: vec![LayerConfig { rope: None, window: None, sparse: false }; layers],
            activation: Activation::Silu,
            embedding_scale: 1.,
            attention_scale: (head_width as f32).sqrt().recip(),
            attention_soft_cap: None,
            logit_soft_cap: None,
            experts: None,
            biases: false,
            norm_weight_offset: 0.,
            tied_embeddings: None,
        }
    }
}

impl DecoderConfig {
    /// The attention parameters of a layer with this window.
    pub(super) fn attention_shape(&self, window: Option<usize>) -> AttentionShape {
        let Self { heads, kv_heads, head_width: width, attention_scale: scale, attention_soft_cap: soft_cap, .. } =
            *self;
        AttentionShape { heads, kv_heads, width, scale, causal: true, window, soft_cap }
    }

    /// The heads of a projection whose rows the checkpoint has in the order of the interleaved RoPE layout: converters to
    /// GGUF reorder the queries and keys of some families. `projection`: the end of its tensor's stem.
    pub(super) fn interleaved_heads(&self, projection: &str) -> Option<usize> {
        match projection {
            "attn_q" if self.rope_layout == RopeLayout::Interleaved => Some(self.heads),
            "attn_k" if self.rope_layout == RopeLayout::Interleaved => Some(self.kv_heads),
            _ => None,
        }
    }

    /// Checks the values against each other.
    fn check(self) -> Result<Self, ModelError> {
        let Self { heads, kv_heads, head_width, .. } = self;
        if !heads.is_multiple_of(kv_heads) {
            return reject_config(format!("{heads} heads cannot share {kv_heads} key-value heads"));
        }
        if head_width == 0 || !head_width.is_multiple_of(2) {
            return reject_config(format!("heads of width {head_width} cannot be rotated"));
        }
        if let Some(MoeConfig { count, experts_per_token: used, .. }) =
            self.experts.as_ref().filter(|sizes| sizes.experts_per_token > sizes.count)
        {
            return reject_config(format!("a token cannot use {used} of {count} experts"));
        }
        self.ropes.iter().try_for_each(|rope| check_rope(rope, head_width))?;
        Ok(self)
    }
}

fn check_rope(rope: &RopeSpec, head_width: usize) -> Result<(), ModelError> {
    let RopeSpec { rotated, scaling, .. } = rope;
    if *rotated == 0 || !rotated.is_multiple_of(2) || *rotated > head_width {
        return reject_config(format!("{rotated} of {head_width} elements of a head cannot be rotated"));
    }
    let RopeScaling::LongRope(long) = scaling else { return Ok(()) };
    for factors in [&long.short, &long.long] {
        // Divisors that are stored as tensors are checked when they are read.
        if !factors.is_empty() && factors.len() != rotated / 2 {
            return reject_config(format!("{} factors for {} rotated pairs", factors.len(), rotated / 2));
        }
        if factors.iter().any(|factor| !factor.is_normal()) {
            return reject_config("rotary factors are zero or not finite".to_owned());
        }
    }
    Ok(())
}
