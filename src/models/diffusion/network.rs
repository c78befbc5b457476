//! The network that a pipeline guesses with, whatever it is made of.

use super::dit::{DitConditioning, Flux, FluxConfig, Mmdit, MmditConfig, PATCH_SIZE};
use super::feature_map::FeatureMap;
use super::layers::Loaded;
use super::op_context::{Interrupted, OpContext, Result};
use super::unet::{MicroConditioning, Unet, UnetConditioning, UnetConfig};
use crate::models::weights::Loader;

/// A network's sizes.
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

/// What a network is told beside the latents.
#[derive(Debug)]
pub(super) struct Conditioning<'a> {
    pub timestep: f32,
    /// `[images, words, 1, context]`
    pub text: &'a FeatureMap,
    /// The texts in one vector each, `[images][pooled]`, where networks take such.
    pub pooled: Option<&'a [Vec<f32>]>,
    pub guidance: f32,
    /// Height and width of the picture.
    pub size: [usize; 2],
}

impl NetworkConfig {
    /// Numbers of a latent pixel that go in, and that come out.
    pub fn channels(&self) -> [usize; 2] {
        match self {
            Self::Unet(unet) => [unet.in_channels, unet.out_channels],
            Self::Mmdit(mmdit) => [mmdit.in_channels, mmdit.out_channels],
            Self::Flux(flux) => {
                [flux.in_channels, flux.out_channels].map(|numbers| numbers / (PATCH_SIZE * PATCH_SIZE))
            }
        }
    }

    /// Numbers of a word.
    pub fn context_width(&self) -> usize {
        match self {
            Self::Unet(unet) => unet.levels.first().map_or(0, |level| level.context),
            Self::Mmdit(mmdit) => mmdit.context,
            Self::Flux(flux) => flux.context,
        }
    }

    /// Latent pixels along the side of what is one position for the network.
    pub fn patch(&self) -> usize {
        match self {
            Self::Unet(_) => 1,
            Self::Mmdit(mmdit) => mmdit.patch,
            Self::Flux(_) => PATCH_SIZE,
        }
    }

    /// Latent pixels along a side, at most.
    pub fn max_side(&self) -> Option<usize> {
        match self {
            Self::Mmdit(mmdit) => Some(mmdit.positions * mmdit.patch),
            Self::Unet(_) | Self::Flux(_) => None,
        }
    }

    /// Height and width of the latents that it was trained on.
    pub fn sample_size(&self) -> Option<[usize; 2]> {
        match self {
            Self::Unet(unet) => unet.sample_size,
            Self::Mmdit(mmdit) => Some([mmdit.sample_size; 2]),
            Self::Flux(_) => Some([128; 2]),
        }
    }

    /// Whether it is told how strong the guidance is.
    pub fn embeds_guidance(&self) -> bool {
        match self {
            Self::Unet(unet) => unet.time.guidance.is_some(),
            Self::Mmdit(_) => false,
            Self::Flux(flux) => flux.guided,
        }
    }

    /// Whether guidance leads it away from a negative prompt.
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

    /// What is guessed of `x`, `[images, height, width, channels]`.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, cond: &Conditioning<'_>) -> Result<FeatureMap> {
        let Conditioning { timestep, text, pooled, guidance, size } = *cond;
        let dit_conditioning = |guidance| {
            let pooled = pooled.ok_or_else(|| Interrupted::Failed("the text is not there in one vector".to_owned()))?;
            Ok::<_, Interrupted>(DitConditioning { timestep, text, pooled, guidance })
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

/// What SDXL is told: the pooled texts, and the picture's size as that of what it is cut from, and where.
fn micro_conditioning(pooled: &[Vec<f32>], [height, width]: [usize; 2]) -> MicroConditioning {
    let (height, width) = (height as f32, width as f32);
    let sizes = vec![vec![height, width, 0., 0., height, width]; pooled.len()];
    MicroConditioning { pooled: pooled.to_vec(), sizes }
}
