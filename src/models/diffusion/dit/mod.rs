//! Diffusion transformers that predict a flow: those of Stable Diffusion 3 and FLUX.1.
//!
//! Image patches and text tokens form one sequence with separate weights and joint attention (Esser et al. 2024,
//! <https://arxiv.org/abs/2403.03206>). Conditioning, the timestep above all, modulates the norms (Peebles and Xie
//! 2022, <https://arxiv.org/abs/2212.09748>).

mod flux;
mod joint_block;
mod mmdit;
mod modulation;
mod patch_layout;
mod qkv;
mod sequence;
mod time_text_embedding;

pub use flux::{Flux, FluxConfig, OriginalWeights, PATCH_SIZE};
pub use mmdit::{Mmdit, MmditConfig};

use super::feature_map::FeatureMap;

/// What these networks are conditioned on.
#[derive(Debug)]
pub struct DitConditioning<'a> {
    /// In training steps, up to 1000.
    pub timestep: f32,
    /// `[images, tokens, 1, context]`
    pub text: &'a FeatureMap,
    /// Pooled prompt embeddings: `[images][pooled]`.
    pub pooled: &'a [Vec<f32>],
    /// The guidance scale, for networks that embed it.
    pub guidance: Option<f32>,
}
