//! The denoising network of a pipeline: UNet, MMDiT or FLUX.

use super::dit::{DitConditioning, Flux, FluxConfig, Mmdit, MmditConfig, PATCH_SIZE};
use super::feature_map::FeatureMap;
use super::layers::Loaded;
use super::op_context::{OpContext, Result};
use super::unet::{MicroConditioning, Unet, UnetConditioning, UnetConfig};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

/// The configuration of a network.
#[derive(Clone, Debug)]
pub enum NetworkConfig {
    Unet(Box<UnetConfig>),
    Mmdit(MmditConfig),
    Flux(FluxConfig),
}

#[derive(Debug)]
pub(super) enum Network {
    Unet(Box<Unet>),
    Mmdit(Mmdit),
    Flux(Flux),
}

/// What a network is conditioned on.
#[derive(Debug)]
pub(super) struct Conditioning<'a> {
    pub timestep: f32,
    /// `[images, tokens, 1, context]`
    pub text: &'a FeatureMap,
    /// Pooled prompt embeddings, `[images][pooled]`, for networks that take them.
    pub pooled: Option<&'a [Vec<f32>]>,
    pub guidance: f32,
    /// Height and width of the image.
    pub size: [usize; 2],
}

impl NetworkConfig {
    /// Latent channels in and out.
    pub fn channels(&self) -> [usize; 2] {
        match self {
            Self::Unet(unet) => [unet.in_channels, unet.out_channels],
            Self::Mmdit(mmdit) => [mmdit.in_channels, mmdit.out_channels],
            Self::Flux(flux) => {
                [flux.in_channels, flux.out_channels].map(|numbers| numbers / (PATCH_SIZE * PATCH_SIZE))
            }
        }
    }

    /// Width of a prompt embedding.
    pub fn context_width(&self) -> usize {
        match self {
            Self::Unet(unet) => unet.levels.first().map_or(0, |level| level.context),
            Self::Mmdit(mmdit) => mmdit.context,
            Self::Flux(flux) => flux.context,
        }
    }

    /// Latent pixels along the side of a patch.
    pub fn patch(&self) -> usize {
        match self {
            Self::Unet(_) => 1,
            Self::Mmdit(mmdit) => mmdit.patch,
            Self::Flux(_) => PATCH_SIZE,
        }
    }

    /// Maximum latent pixels along a side.
    pub fn max_side(&self) -> Option<usize> {
        match self {
            Self::Mmdit(mmdit) => Some(mmdit.positions * mmdit.patch),
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

    /// Whether the guidance scale is an input of the network (distilled models).
    pub fn embeds_guidance(&self) -> bool {
        match self {
            Self::Unet(unet) => unet.time.guidance.is_some(),
            Self::Mmdit(_) => false,
            Self::Flux(flux) => flux.guided,
        }
    }

    /// Whether classifier-free guidance with a negative prompt applies.
    pub fn uses_cfg(&self) -> bool {
        !self.embeds_guidance() && !matches!(self, Self::Flux(_))
    }
}

impl Network {
    pub fn load(loader: &Loader<'_>, config: &NetworkConfig) -> Loaded<Self> {
        Ok(match config {
            NetworkConfig::Unet(config) => Self::Unet(Box::new(Unet::load(loader, (**config).clone())?)),
            NetworkConfig::Mmdit(config) => Self::Mmdit(Mmdit::load(loader, config.clone())?),
            NetworkConfig::Flux(config) => Self::Flux(Flux::load(loader, config.clone())?),
        })
    }

    /// The model output for `x`, `[images, height, width, channels]`.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, cond: &Conditioning<'_>) -> Result<FeatureMap> {
        let Conditioning { timestep, text, pooled, guidance, size } = *cond;
        let dit_conditioning = |guidance| {
            let pooled =
                pooled.ok_or_else(|| ModelError::Compute("the pooled prompt embeddings are missing".to_owned()))?;
            Ok::<_, ModelError>(DitConditioning { timestep, text, pooled, guidance })
        };
        match self {
            Self::Unet(unet) => {
                let added = pooled.map(|pooled| micro_conditioning(pooled, size));
                let guidance = unet.config().time.guidance.map(|_| guidance);
                unet.forward(ctx, x, &UnetConditioning { timestep, text, guidance, added: added.as_ref() })
            }
            Self::Mmdit(mmdit) => mmdit.forward(ctx, x, &dit_conditioning(None)?),
            Self::Flux(flux) => flux.forward(ctx, x, &dit_conditioning(flux.config().guided.then_some(guidance))?),
        }
    }
}

/// SDXL's micro-conditioning: pooled prompts, original size, crop offset and target size.
fn micro_conditioning(pooled: &[Vec<f32>], [height, width]: [usize; 2]) -> MicroConditioning {
    let (height, width) = (height as f32, width as f32);
    let sizes = vec![vec![height, width, 0., 0., height, width]; pooled.len()];
    MicroConditioning { pooled: pooled.to_vec(), sizes }
}
