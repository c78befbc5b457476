//! Estimates the memory of image generation, without the weights.

use super::text_encoder::TextEncoder;
use super::{DenoiserConfig, Pipeline};
use crate::backend::{Convolutions, Recurrent};
use crate::diffusion::t5::T5Config;
use crate::diffusion::unet::UnetConfig;
use crate::diffusion::vae::VaeConfig;

/// Factor for free buffers and the kernels' scratch.
const OVERHEAD: f64 = 1.2;
/// Peak floats of a transformer token, in multiples of its width: hidden state, queries, keys and values (of each
/// stream, concatenated, and in KV blocks), or the hidden layer of the feed-forward network.
const TOKEN_FACTOR: usize = 20;

impl<B: Convolutions + Recurrent> Pipeline<B> {
    /// An upper bound of the bytes that generating an image of this height and width takes.
    pub fn image_bytes(&self, backend: &B, size: [usize; 2]) -> u64 {
        // The addends cover latents, prompt embeddings, and the convolution and attention scratch of each thread.
        bytes(self.peak_elements(backend, size) + (4 << 20) + backend.pool().threads() * (4 << 20))
    }

    /// Peak floats of all stages of the pipeline, plus the image and its tiles.
    fn peak_elements(&self, backend: &B, size: [usize; 2]) -> usize {
        let denoise = self.denoiser_elements(self.latent_size(size)).max(self.text_encoder_elements(backend));
        let decoded_size = if self.uses_tiling(size) { size.map(|side| side.min(self.vae.tile_side())) } else { size };
        let decode = vae_elements(self.vae.config(), decoded_size);
        (denoise.max(decode) as f64 * OVERHEAD) as usize + 20 * size[0] * size[1]
    }

    /// Whether the autoencoder processes an image of this height and width in tiles.
    pub(super) fn uses_tiling(&self, size: [usize; 2]) -> bool {
        bytes(vae_elements(self.vae.config(), size)) > self.vae_budget
    }

    /// Floats of a denoiser call, including the unconditional image where classifier-free guidance applies.
    fn denoiser_elements(&self, [height, width]: [usize; 2]) -> usize {
        let patch_size = self.denoiser_config.patch_size();
        let patches = height * width / (patch_size * patch_size);
        match &self.denoiser_config {
            DenoiserConfig::Unet(unet) => unet_elements(unet, [height, width]),
            DenoiserConfig::Mmdit(mmdit) => 2 * (patches + self.max_tokens) * mmdit.width * TOKEN_FACTOR,
            DenoiserConfig::Flux(flux) => (patches + self.max_tokens) * flux.width * TOKEN_FACTOR,
        }
    }

    /// Floats of encoding two prompts.
    fn text_encoder_elements(&self, backend: &B) -> usize {
        let elements = |encoder: &TextEncoder<B>| match encoder {
            TextEncoder::T5(t5) => t5_elements(t5.config(), self.max_tokens, backend.pool().threads()),
            TextEncoder::Bert(bert) => bert.scratch_elements(backend, self.max_tokens),
            TextEncoder::Clip(clip) => 2 * self.max_tokens * (8 * clip.config().width + clip.config().inner),
        };
        self.text_encoders.iter().map(elements).max().unwrap_or(0)
    }
}

fn bytes(elements: usize) -> u64 {
    (elements * size_of::<f32>()) as u64
}

/// Floats of encoding two texts: hidden states, normalised states, queries, keys, values, outputs and the feed-forward
/// network; and for each thread the scores, queries, keys and values of one head.
fn t5_elements(config: &T5Config, tokens: usize, threads: usize) -> usize {
    let T5Config { width, inner, heads, head_dim, .. } = *config;
    2 * tokens * (4 * width + 5 * heads * head_dim + 2 * inner) + threads * tokens * (tokens + 8 * head_dim)
}

/// Floats of a UNet call for two images: skip connections plus the largest block.
fn unet_elements(config: &UnetConfig, [height, width]: [usize; 2]) -> usize {
    let pixels = |level: usize| (height.div_ceil(1 << level)) * (width.div_ceil(1 << level));
    let (mut skips, mut largest_block, mut previous_channels) = (0, 0, 0);
    for (index, level) in config.levels.iter().enumerate() {
        let next_channels = config.levels.get(index + 1).map_or(0, |next| next.channels);
        // One skip connection for each residual block, one for `conv_in`, and one for each downsampler.
        skips += pixels(index) * level.channels * (level.resnets + 1) + pixels(index + 1) * next_channels;
        // In the up path: the input concatenated with a skip connection, twice; queries, keys, values and output; and
        // keys and values in KV blocks.
        let concatenated = level.channels.max(next_channels) + level.channels.max(previous_channels);
        largest_block = largest_block.max(pixels(index) * (2 * concatenated + 12 * level.channels));
        previous_channels = level.channels;
    }
    2 * (skips + largest_block)
}

/// Floats of encoding or decoding an image.
fn vae_elements(config: &VaeConfig, [height, width]: [usize; 2]) -> usize {
    let levels = config.channels.iter().enumerate().map(|(index, channels)| {
        let next_channels = config.channels.get(index + 1).unwrap_or(channels);
        let pixels = height.div_ceil(1 << index) * width.div_ceil(1 << index);
        // The input of a block and the outputs of its two convolutions. The lowest resolution also has attention.
        let feature_maps = if index + 1 == config.channels.len() { 10 } else { 3 };
        pixels * feature_maps * channels.max(next_channels)
    });
    levels.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use outpost_testing::fixtures::fixture;

    use std::sync::Arc;

    use super::*;
    use crate::backend::{Backend, Cpu, RequestOptions};
    use crate::diffusion::pipeline::{Components, Context, GenerationParams};

    /// The measured peak and the estimate, in floats.
    fn peak_and_estimate(name: &str, size: [usize; 2], vae_budget: u64) -> [usize; 2] {
        let fixtures = fixture("pipelines");
        let components = Components::open(&fixtures.join(name)).unwrap();
        let cpu = Cpu::new(2);
        let pipeline = Pipeline::load(&components, &cpu, None, vae_budget).unwrap();
        let cpu = cpu.for_request(RequestOptions { pause: Arc::new(|| Ok(())), bf16_attention: false });
        let ctx = Context::new(&cpu);
        let prompts: Vec<_> =
            components.text_encoders.iter().map(|text| [vec![3; text.tokens], vec![4; text.tokens]]).collect();
        let embeds = pipeline.encode_prompts(&ctx, &prompts, false).unwrap();
        let size = size.map(|side| side.min(components.max_side().unwrap_or(usize::MAX)));
        let params = GenerationParams { size, steps: 1, guidance: 5., scheduler: None, init_image: None };
        pipeline.generate(&ctx, &embeds, &params, 1, &mut |_| Ok(())).unwrap();
        [ctx.peak_bytes() / size_of::<f32>(), pipeline.peak_elements(&cpu, size)]
    }

    #[test]
    fn the_memory_estimate_is_a_tight_upper_bound() {
        for name in ["sd1", "sd2v", "sdxl", "sd3", "flux", "bert"] {
            let [peak, estimate] = peak_and_estimate(name, [192, 320], u64::MAX);
            assert!(peak <= estimate && estimate <= 2 * peak, "{name}: {peak} of {estimate}");
        }
    }

    #[test]
    fn tiling_reduces_memory() {
        let size = [320, 320];
        let [untiled, _] = peak_and_estimate("sd1", size, u64::MAX);
        let [tiled, estimate] = peak_and_estimate("sd1", size, 1);
        // Only the memory of the autoencoder shrinks, not that of the denoiser.
        assert!(tiled <= estimate && 4 * tiled < 3 * untiled, "{tiled} of {estimate}, {untiled} without tiles");
    }
}
