//! Transformers that guess where a picture in patches flows: Stable Diffusion 3's and FLUX.1's.
//!
//! Patches and words are positions of one sequence: each kind has its own weights, and in attention they see each other
//! (Esser et al. 2024, <https://arxiv.org/abs/2403.03206>). What is known of the whole, the time above all, shifts and
//! scales what is normed (Peebles and Xie 2022, <https://arxiv.org/abs/2212.09748>).

mod block;
mod embedding;
mod flux;
mod mmdit;
mod modulation;
mod patches;
mod positions;
mod stream;

pub use flux::{Flux, FluxConfig, Original, PATCH};
pub use mmdit::{Mmdit, MmditConfig};

use super::feature_map::FeatureMap;

/// What these networks are told beside the latents.
#[derive(Debug)]
pub struct Told<'a> {
    /// In training steps, of a thousand.
    pub time: f32,
    /// `[images, words, 1, context]`
    pub text: &'a FeatureMap,
    /// The texts in one vector each: `[images][pooled]`.
    pub pooled: &'a [Vec<f32>],
    /// How strong the guidance is, for networks that are told.
    pub guidance: Option<f32>,
}
