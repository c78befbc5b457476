//! Memory for image generation, beyond the weights.

use super::text_encoder::TextEncoder;
use super::{NetworkConfig, Pipeline};
use crate::models::diffusion::t5::T5Config;
use crate::models::diffusion::unet::UnetConfig;
use crate::models::diffusion::vae::VaeConfig;

/// Factor for free buffers and the kernels' scratch.
const OVERHEAD: f64 = 1.2;
/// Peak floats of a transformer position, in multiples of its width: the position, its queries, keys and values (split,
/// joined and in blocks), or the feed-forward network's hidden layer.
const TOKEN_FACTOR: usize = 20;

impl Pipeline {
    /// An upper bound of the bytes for an image of this height and width.
    pub fn image_bytes(&self, size: [usize; 2], threads: usize) -> u64 {
        // Latents and prompt embeddings, a strip of a convolution, and chunks of scores for each thread.
        bytes(self.peak_elements(size, threads) + (4 << 20) + threads * (4 << 20))
    }

    /// Peak floats of the pipeline's stages, plus the image and its tiles.
    fn peak_elements(&self, size: [usize; 2], threads: usize) -> usize {
        let steps = self.network_elements(self.latent_size(size)).max(self.text_encoder_elements(threads));
        let part = if self.uses_tiling(size) { size.map(|side| side.min(self.vae.tile_side())) } else { size };
        let decode = vae_elements(self.vae.config(), part);
        (steps.max(decode) as f64 * OVERHEAD) as usize + 24 * size[0] * size[1]
    }

    /// Whether the autoencoder processes an image of this height and width in tiles.
    pub(super) fn uses_tiling(&self, size: [usize; 2]) -> bool {
        bytes(vae_elements(self.vae.config(), size)) > self.vae_budget
    }

    /// Floats of a network call, for one image or two side by side.
    fn network_elements(&self, latents: [usize; 2]) -> usize {
        let patches = latents[0] * latents[1] / (self.config.patch() * self.config.patch());
        match &self.config {
            NetworkConfig::Unet(unet) => unet_elements(unet, latents),
            NetworkConfig::Mmdit(mmdit) => 2 * (patches + self.max_tokens) * mmdit.width * TOKEN_FACTOR,
            NetworkConfig::Flux(flux) => (patches + self.max_tokens) * flux.width * TOKEN_FACTOR,
        }
    }

    /// Floats of encoding two prompts.
    fn text_encoder_elements(&self, threads: usize) -> usize {
        let of = |encoder: &TextEncoder| match encoder {
            TextEncoder::T5(t5) => t5_elements(t5.config(), self.max_tokens, threads),
            TextEncoder::Bert(bert) => bert.scratch_elements(self.max_tokens, threads),
            TextEncoder::Clip(clip) => 2 * self.max_tokens * (8 * clip.config().width + clip.config().inner),
        };
        self.text_encoders.iter().map(of).max().unwrap_or(0)
    }
}

fn bytes(numbers: usize) -> u64 {
    (numbers * size_of::<f32>()) as u64
}

/// Two texts: hidden states, normalised states, queries, keys, values, outputs and the feed-forward network; and for
/// each thread a head's scores with its queries, keys and values.
fn t5_elements(config: &T5Config, tokens: usize, threads: usize) -> usize {
    let T5Config { width, inner, heads, head, .. } = *config;
    2 * tokens * (4 * width + 5 * heads * head + 2 * inner) + threads * tokens * (tokens + 8 * head)
}

/// Two images side by side: skip connections plus the widest block.
fn unet_elements(config: &UnetConfig, [height, width]: [usize; 2]) -> usize {
    let pixels = |level: usize| (height.div_ceil(1 << level)) * (width.div_ceil(1 << level));
    let (mut skips, mut widest, mut before) = (0, 0, 0);
    for (index, level) in config.levels.iter().enumerate() {
        let below = config.levels.get(index + 1).map_or(0, |below| below.channels);
        // One after each block, one before the first, and one between levels.
        skips += pixels(index) * level.channels * (level.resnets + 1) + pixels(index + 1) * below;
        // In the up path: the input joined with a skip connection, twice; queries, keys, values and output; and keys
        // and values in blocks.
        let joined = level.channels.max(below) + level.channels.max(before);
        widest = widest.max(pixels(index) * (2 * joined + 12 * level.channels));
        before = level.channels;
    }
    2 * (skips + widest)
}

/// Floats of encoding or decoding an image.
fn vae_elements(config: &VaeConfig, [height, width]: [usize; 2]) -> usize {
    let levels = config.channels.iter().enumerate().map(|(index, channels)| {
        let below = config.channels.get(index + 1).unwrap_or(channels);
        let pixels = height.div_ceil(1 << index) * width.div_ceil(1 << index);
        // A block's input and the outputs of its two convolutions; more where there is attention.
        let wide = if index + 1 == config.channels.len() { 10 } else { 3 };
        pixels * wide * channels.max(below)
    });
    levels.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::models::diffusion::pipeline::{Components, GenerationParams, OpContext};
    use crate::models::scratch_buffers::Cpu;

    const THREADS: usize = 2;

    /// Peak floats held, and the estimate.
    fn held(name: &str, size: [usize; 2], vae_budget: u64) -> [usize; 2] {
        let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pipelines");
        let components = Components::open(&fixtures.join(name)).unwrap();
        let cpu = Arc::new(Cpu::new(THREADS));
        let pipeline = Pipeline::load(&components, &cpu, None, vae_budget).unwrap();
        let ctx = OpContext::new(cpu.pool(), &|| Ok(()));
        let prompts: Vec<_> =
            components.text_encoders.iter().map(|text| [vec![3; text.tokens], vec![4; text.tokens]]).collect();
        let embeds = pipeline.encode_prompts(&ctx, &prompts, false).unwrap();
        let size = size.map(|side| side.min(components.max_side().unwrap_or(usize::MAX)));
        let params = GenerationParams { size, steps: 1, guidance: 5., scheduler: None, init_image: None };
        pipeline.generate(&ctx, &embeds, &params, 1, &mut |_| Ok(())).unwrap();
        [ctx.peak_bytes() / size_of::<f32>(), pipeline.peak_elements(size, THREADS)]
    }

    #[test]
    fn the_memory_estimate_is_a_tight_upper_bound() {
        for name in ["sd1", "sd2v", "sdxl", "sd3", "flux", "bert"] {
            let [held, claimed] = held(name, [192, 320], u64::MAX);
            assert!(held <= claimed && claimed <= 2 * held, "{name}: {held} of {claimed}");
        }
    }

    #[test]
    fn tiling_takes_the_memory_of_one_tile() {
        let size = [320, 320];
        let ([whole, _], [tiled, claimed]) = (held("sd1", size, u64::MAX), held("sd1", size, 1));
        // The rest is the network's.
        assert!(tiled <= claimed && 4 * tiled < 3 * whole, "{tiled} of {claimed}, {whole} in one piece");
    }
}
