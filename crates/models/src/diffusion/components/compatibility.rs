//! Checks that the components of a pipeline fit together.

use super::{Components, Family, Result, invalid};
use crate::diffusion::denoiser::DenoiserConfig;
use crate::diffusion::dit::{FluxConfig, MmditConfig};
use crate::diffusion::unet::UnetConfig;

impl Components {
    /// # Errors
    /// Names the components that do not fit together.
    pub(super) fn check_compatibility(&self) -> Result<()> {
        let ((denoiser, _), (vae, _)) = (&self.denoiser, &self.vae);
        let channels = vae.latent_channels;
        let [inputs, outputs] = denoiser.channels();
        // An inpainting denoiser also takes the mask and the latents of the masked image.
        let inpainting = !matches!(denoiser, DenoiserConfig::Flux(_)) && inputs == 2 * channels + 1;
        if outputs != channels || !(inputs == channels || inpainting) {
            return invalid(format!(
                "a denoiser with {inputs} input and {outputs} output channels does not fit latents with {channels} channels"
            ));
        }
        if vae.in_channels != 3 || vae.out_channels != 3 {
            return invalid(format!("the autoencoder processes images with {} channels, not three", vae.out_channels));
        }
        if !self.scheduler.is_flow() && !matches!(denoiser, DenoiserConfig::Unet(_)) {
            return invalid(format!("the scheduler {} cannot be used with a {}", self.scheduler.name(), self.class));
        }
        match denoiser {
            DenoiserConfig::Unet(unet) => self.check_unet(unet),
            DenoiserConfig::Mmdit(mmdit) => self.check_mmdit(mmdit),
            DenoiserConfig::Flux(flux) => self.check_flux(flux),
        }
    }

    fn check_unet(&self, unet: &UnetConfig) -> Result<()> {
        let (clips, _) = self.clip_and_t5_configs();
        let width: usize = self.text_encoders.iter().map(|text| text.encoder.width()).sum();
        if let Some(level) = unet.levels.iter().find(|level| level.context_width != width) {
            return invalid(format!(
                "the UNet expects prompt embeddings of width {}, but the width of the text encoders is {width}",
                level.context_width
            ));
        }
        match (&unet.micro_conditioning, self.family) {
            (None, Family::StableDiffusion) => Ok(()),
            (Some(micro), Family::StableDiffusionXl) => {
                let pooled_width = clips.last().and_then(|clip| clip.projection).unwrap_or(0);
                let width = pooled_width + 6 * micro.sinusoid_dim;
                match micro.total_width == width {
                    true => Ok(()),
                    false => invalid(format!(
                        "the UNet expects micro-conditioning of width {}, but the width of the pooled prompt embedding and six sizes is {width}",
                        micro.total_width
                    )),
                }
            }
            _ => invalid(format!("a {} cannot be used with this UNet's addition_embed_type", self.class)),
        }
    }

    fn check_mmdit(&self, mmdit: &MmditConfig) -> Result<()> {
        let (clips, t5) = self.clip_and_t5_configs();
        let clip_width: usize = clips.iter().map(|clip| clip.width).sum();
        let same_positions =
            clips.iter().all(|clip| clips.first().is_some_and(|first| first.positions == clip.positions));
        if clip_width > mmdit.context_width || !same_positions {
            return invalid(format!(
                "the CLIP text encoders, with a total width of {clip_width}, do not fit prompt embeddings of width {}",
                mmdit.context_width
            ));
        }
        self.check_text_widths([mmdit.context_width, mmdit.pooled_width], t5.map_or(mmdit.context_width, |t5| t5.width))
    }

    fn check_flux(&self, flux: &FluxConfig) -> Result<()> {
        let (_, t5) = self.clip_and_t5_configs();
        self.check_text_widths([flux.context_width, flux.pooled_width], t5.map_or(0, |t5| t5.width))
    }

    /// Checks the widths of prompt embeddings and pooled embeddings that a transformer expects.
    fn check_text_widths(&self, [context_width, pooled_width]: [usize; 2], t5_width: usize) -> Result<()> {
        let (clips, _) = self.clip_and_t5_configs();
        let clip_pooled_width: usize = clips.iter().map(|clip| clip.projection.unwrap_or(clip.width)).sum();
        match (t5_width == context_width, clip_pooled_width == pooled_width) {
            (false, _) => invalid(format!(
                "the transformer expects prompt embeddings of width {context_width}, but the width of the T5 encoder is {t5_width}"
            )),
            (_, false) => invalid(format!(
                "the transformer expects pooled embeddings of width {pooled_width}, but the width of the CLIP encoders is {clip_pooled_width}"
            )),
            _ => Ok(()),
        }
    }
}
