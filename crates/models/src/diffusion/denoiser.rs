//! The denoiser of a pipeline: a UNet, an MMDiT or a FLUX transformer.

use super::dit::{DitConditioning, Flux, FluxConfig, Mmdit, MmditConfig, PATCH_SIZE};
use super::unet::{MicroConditioning, Unet, UnetConditioning, UnetConfig};
use crate::backend::{Convolutions, Tensor};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::Context;
use crate::weights::Loader;

/// The configuration of a denoiser.
#[derive(Clone, Debug)]
pub enum DenoiserConfig {
    Unet(Box<UnetConfig>),
    Mmdit(MmditConfig),
    Flux(FluxConfig),
}

/// The network that predicts noise, velocity or flow from noisy latents.
#[derive(Debug)]
pub(super) enum Denoiser<B: Convolutions> {
    Unet(Box<Unet<B>>),
    Mmdit(Mmdit<B>),
    Flux(Flux<B>),
}

/// The inputs of a denoiser besides the latents.
#[derive(Debug)]
pub(super) struct Conditioning<'a, B: Convolutions> {
    /// In training steps.
    pub timestep: f32,
    /// Prompt embeddings, `[images, tokens, 1, context_width]`.
    pub text: &'a Tensor<B>,
    /// Pooled prompt embeddings, `[images][pooled_width]`, for denoisers that take them.
    pub pooled: Option<&'a [Vec<f32>]>,
    /// The guidance scale.
    pub guidance: f32,
    /// Height and width of the image in pixels.
    pub image_size: [usize; 2],
}

impl DenoiserConfig {
    /// Latent channels of the input and the output.
    pub fn channels(&self) -> [usize; 2] {
        match self {
            Self::Unet(unet) => [unet.in_channels, unet.out_channels],
            Self::Mmdit(mmdit) => [mmdit.in_channels, mmdit.out_channels],
            Self::Flux(flux) => {
                [flux.in_channels, flux.out_channels].map(|channels| channels / (PATCH_SIZE * PATCH_SIZE))
            }
        }
    }

    /// Width of a prompt embedding.
    pub fn context_width(&self) -> usize {
        match self {
            Self::Unet(unet) => unet.levels.first().map_or(0, |level| level.context_width),
            Self::Mmdit(mmdit) => mmdit.context_width,
            Self::Flux(flux) => flux.context_width,
        }
    }

    /// Side of a patch in latent pixels.
    pub fn patch_size(&self) -> usize {
        match self {
            Self::Unet(_) => 1,
            Self::Mmdit(mmdit) => mmdit.patch_size,
            Self::Flux(_) => PATCH_SIZE,
        }
    }

    /// Maximum height and width of the latents; `None` if there is no limit.
    pub fn max_latent_side(&self) -> Option<usize> {
        match self {
            Self::Mmdit(mmdit) => Some(mmdit.max_grid_side * mmdit.patch_size),
            Self::Unet(_) | Self::Flux(_) => None,
        }
    }

    /// Height and width of the latents in training.
    pub fn sample_size(&self) -> Option<[usize; 2]> {
        match self {
            Self::Unet(unet) => unet.sample_size,
            Self::Mmdit(mmdit) => Some([mmdit.sample_size; 2]),
            Self::Flux(_) => Some([128; 2]),
        }
    }

    /// True for guidance-distilled models: the guidance scale is an input of the denoiser.
    pub fn embeds_guidance(&self) -> bool {
        match self {
            Self::Unet(unet) => unet.time.guidance_dim.is_some(),
            Self::Mmdit(_) => false,
            Self::Flux(flux) => flux.guidance_embeds,
        }
    }

    /// True if classifier-free guidance applies, which computes each step for the negative prompt as well.
    pub fn uses_cfg(&self) -> bool {
        !self.embeds_guidance() && !matches!(self, Self::Flux(_))
    }
}

impl<B: Convolutions> Denoiser<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DenoiserConfig) -> Result<Self> {
        Ok(match config {
            DenoiserConfig::Unet(config) => Self::Unet(Box::new(Unet::load(loader, (**config).clone())?)),
            DenoiserConfig::Mmdit(config) => Self::Mmdit(Mmdit::load(loader, config.clone())?),
            DenoiserConfig::Flux(config) => Self::Flux(Flux::load(loader, config.clone())?),
        })
    }

    /// The model output for the latents `x`. Both are `[images, height, width, channels]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, cond: &Conditioning<'_, B>) -> Result<Tensor<B>> {
        let Conditioning { timestep, text, pooled, guidance, image_size } = *cond;
        let dit_conditioning = |guidance| {
            let pooled =
                pooled.ok_or_else(|| ModelError::Compute("the pooled prompt embeddings are missing".to_owned()))?;
            Ok::<_, ModelError>(DitConditioning { timestep, text, pooled, guidance })
        };
        match self {
            Self::Unet(unet) => {
                let micro = pooled.map(|pooled| micro_conditioning(pooled, image_size));
                let guidance = unet.config().time.guidance_dim.map(|_| guidance);
                unet.forward(ctx, x, &UnetConditioning { timestep, text, guidance, micro: micro.as_ref() })
            }
            Self::Mmdit(mmdit) => mmdit.forward(ctx, x, &dit_conditioning(None)?),
            Self::Flux(flux) => {
                flux.forward(ctx, x, &dit_conditioning(flux.config().guidance_embeds.then_some(guidance))?)
            }
        }
    }
}

/// The micro-conditioning of SDXL: pooled prompt embeddings, original size, crop offset and target size.
fn micro_conditioning(pooled: &[Vec<f32>], [height, width]: [usize; 2]) -> MicroConditioning {
    let (height, width) = (height as f32, width as f32);
    let sizes = vec![vec![height, width, 0., 0., height, width]; pooled.len()];
    MicroConditioning { pooled: pooled.to_vec(), sizes }
}
