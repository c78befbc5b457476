//! Diffusion transformers for flow matching: those of Stable Diffusion 3 and FLUX.1.
//!
//! Image patches and text tokens form one sequence with separate weights and joint attention (Esser et al. 2024,
//! <https://arxiv.org/abs/2403.03206>). The embedded conditioning modulates the norms (Peebles and Xie
//! 2022, <https://arxiv.org/abs/2212.09748>).

mod flux;
mod joint_block;
mod mmdit;
mod modulation;
mod patch_layout;
mod qkv;
mod time_text_embedding;

pub use flux::{Flux, FluxConfig, OriginalWeights, PATCH_SIZE};
pub use mmdit::{Mmdit, MmditConfig};

use crate::backend::{Backend, Tensor};

/// The inputs of a diffusion transformer besides the latents.
#[derive(Debug)]
pub struct DitConditioning<'a, B: Backend> {
    /// Sigma times 1000.
    pub timestep: f32,
    /// Prompt embeddings, `[images, tokens, 1, context_width]`.
    pub text: &'a Tensor<B>,
    /// Pooled prompt embeddings, `[images][pooled_width]`.
    pub pooled: &'a [Vec<f32>],
    /// The guidance scale, for transformers that embed it.
    pub guidance: Option<f32>,
}
