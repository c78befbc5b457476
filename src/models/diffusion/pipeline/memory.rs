//! Memory that painting takes beside the weights.

use super::prompt_embeds::TextEncoder;
use super::{NetworkConfig, Pipeline};
use crate::models::diffusion::t5::T5Config;
use crate::models::diffusion::unet::UnetConfig;
use crate::models::diffusion::vae::VaeConfig;

/// What lies unused between operations, and what kernels take for themselves.
const OVERHEAD: f64 = 1.2;
/// What a position of a transformer takes at most, in parts of its width: itself; queries, keys and values, alone and
/// among all positions, and in blocks; or what the feed-forward network makes, beside what was seen.
const TOKEN_FACTOR: usize = 20;

impl Pipeline {
    /// An upper bound of the bytes for a picture of this height and width.
    pub fn image_bytes(&self, size: [usize; 2], threads: usize) -> u64 {
        // Latents and words; a strip of a convolution for all, chunks of scores for each thread.
        bytes(self.peak_elements(size, threads) + (4 << 20) + threads * (4 << 20))
    }

    /// Numbers of the widest work on a picture, of the picture and of its tiles.
    fn peak_elements(&self, size: [usize; 2], threads: usize) -> usize {
        let steps = self.network_elements(self.latent_size(size)).max(self.text_encoder_elements(threads));
        let part = if self.uses_tiling(size) { size.map(|side| side.min(self.vae.tile_side())) } else { size };
        let decode = vae_elements(self.vae.config(), part);
        (steps.max(decode) as f64 * OVERHEAD) as usize + 24 * size[0] * size[1]
    }

    /// Whether the autoencoder goes over a picture of this height and width tile by tile.
    pub(super) fn uses_tiling(&self, size: [usize; 2]) -> bool {
        bytes(vae_elements(self.vae.config(), size)) > self.vae_budget
    }

    /// Numbers of a guess, or of two side by side.
    fn network_elements(&self, latents: [usize; 2]) -> usize {
        let patches = latents[0] * latents[1] / (self.config.patch() * self.config.patch());
        match &self.config {
            NetworkConfig::Unet(unet) => unet_elements(unet, latents),
            NetworkConfig::Mmdit(mmdit) => 2 * (patches + self.max_tokens) * mmdit.width * TOKEN_FACTOR,
            NetworkConfig::Flux(flux) => (patches + self.max_tokens) * flux.width * TOKEN_FACTOR,
        }
    }

    /// Numbers of reading two prompts.
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

/// Of two texts' words: itself, normed, queries, keys and values and what becomes of them, the feed-forward network; and
/// for each thread a head's scores, and its queries, keys and values once more.
fn t5_elements(config: &T5Config, tokens: usize, threads: usize) -> usize {
    let T5Config { width, inner, heads, head, .. } = *config;
    2 * tokens * (4 * width + 5 * heads * head + 2 * inner) + threads * tokens * (tokens + 8 * head)
}

/// Numbers of two guesses side by side: what the way down keeps for the way up, and the widest block.
fn unet_elements(config: &UnetConfig, [height, width]: [usize; 2]) -> usize {
    let pixels = |level: usize| (height.div_ceil(1 << level)) * (width.div_ceil(1 << level));
    let (mut skips, mut widest, mut before) = (0, 0, 0);
    for (index, level) in config.levels.iter().enumerate() {
        let below = config.levels.get(index + 1).map_or(0, |below| below.channels);
        // One after each block, one before the first, and one between sizes.
        skips += pixels(index) * level.channels * (level.resnets + 1) + pixels(index + 1) * below;
        // On the way up: what comes from below beside what was kept, twice; then queries, keys, values and what
        // becomes of them, and keys and values in blocks.
        let joined = level.channels.max(below) + level.channels.max(before);
        widest = widest.max(pixels(index) * (2 * joined + 12 * level.channels));
        before = level.channels;
    }
    2 * (skips + widest)
}

/// Numbers of a picture between latents and pixels, either way.
fn vae_elements(config: &VaeConfig, [height, width]: [usize; 2]) -> usize {
    let levels = config.channels.iter().enumerate().map(|(index, channels)| {
        let below = config.channels.get(index + 1).unwrap_or(channels);
        let pixels = height.div_ceil(1 << index) * width.div_ceil(1 << index);
        // A block's numbers, and what its two convolutions make of them; where pixels see each other, more.
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
    use crate::models::scratch::Cpu;

    const THREADS: usize = 2;

    /// Numbers that painting held at most, and those that were expected.
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
    fn what_is_claimed_is_enough_and_not_much_more() {
        for name in ["sd1", "sd2v", "sdxl", "sd3", "flux", "bert"] {
            let [held, claimed] = held(name, [192, 320], u64::MAX);
            assert!(held <= claimed && claimed <= 2 * held, "{name}: {held} of {claimed}");
        }
    }

    #[test]
    fn tiles_take_the_memory_of_one() {
        let size = [320, 320];
        let ([whole, _], [tiled, claimed]) = (held("sd1", size, u64::MAX), held("sd1", size, 1));
        // What is left is the network's.
        assert!(tiled <= claimed && 4 * tiled < 3 * whole, "{tiled} of {claimed}, {whole} in one piece");
    }
}
