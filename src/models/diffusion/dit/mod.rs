//! Transformers that guess where a picture in patches flows: Stable Diffusion 3's and FLUX.1's.
//!
//! PatchLayout and words are positions of one sequence: each kind has its own weights, and in attention they see each other
//! (Esser et al. 2024, <https://arxiv.org/abs/2403.03206>). What is known of the whole, the time above all, shifts and
//! scales what is normed (Peebles and Xie 2022, <https://arxiv.org/abs/2212.09748>).

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

/// What these networks are told beside the latents.
#[derive(Debug)]
pub struct DitConditioning<'a> {
    /// In training steps, of a thousand.
    pub timestep: f32,
    /// `[images, words, 1, context]`
    pub text: &'a FeatureMap,
    /// The texts in one vector each: `[images][pooled]`.
    pub pooled: &'a [Vec<f32>],
    /// How strong the guidance is, for networks that are told.
    pub guidance: Option<f32>,
}
