//! Compatibility checks between components.

use super::{Components, Family, Result, invalid};
use crate::models::diffusion::dit::{FluxConfig, MmditConfig};
use crate::models::diffusion::network::NetworkConfig;
use crate::models::diffusion::unet::UnetConfig;

impl Components {
    pub(super) fn check(&self) -> Result<()> {
        let ((network, _), (vae, _)) = (&self.network, &self.vae);
        let channels = vae.latent_channels;
        let (extra, [inputs, outputs]) = (2 * channels + 1, network.channels());
        let fills = !matches!(network, NetworkConfig::Flux(_)) && inputs == extra;
        if outputs != channels || !(inputs == channels || fills) {
            return invalid(format!(
                "a network with {inputs} input and {outputs} output channels does not fit latents with {channels}"
            ));
        }
        if vae.in_channels != 3 || vae.out_channels != 3 {
            return invalid(format!("the autoencoder makes images with {} channels, not three", vae.out_channels));
        }
        if !self.scheduler.is_flow() && !matches!(network, NetworkConfig::Unet(_)) {
            return invalid(format!("the scheduler {} cannot be used with a {}", self.scheduler.name(), self.class));
        }
        match network {
            NetworkConfig::Unet(unet) => self.check_unet(unet),
            NetworkConfig::Mmdit(mmdit) => self.check_mmdit(mmdit),
            NetworkConfig::Flux(flux) => self.check_flux(flux),
        }
    }

    fn check_unet(&self, unet: &UnetConfig) -> Result<()> {
        let (clips, _) = self.encoders();
        let words: usize = self.text_encoders.iter().map(|text| text.encoder.width()).sum();
        if let Some(level) = unet.levels.iter().find(|level| level.context != words) {
            return invalid(format!(
                "the UNet expects prompt embeddings of width {}, the text encoders make {words}",
                level.context
            ));
        }
        match (&unet.added, self.family) {
            (None, Family::StableDiffusion) => Ok(()),
            (Some(added), Family::StableDiffusionXl) => {
                let pooled = clips.last().and_then(|clip| clip.projection).unwrap_or(0);
                match added.total == pooled + 6 * added.sinusoid_dim {
                    true => Ok(()),
                    false => invalid(format!(
                        "the UNet expects {} added conditioning elements; pooled text and six sizes have {}",
                        added.total,
                        pooled + 6 * added.sinusoid_dim
                    )),
                }
            }
            _ => invalid(format!("a {} cannot be used with this UNet's addition_embed_type", self.class)),
        }
    }

    fn check_mmdit(&self, mmdit: &MmditConfig) -> Result<()> {
        let (clips, t5) = self.encoders();
        let words: usize = clips.iter().map(|clip| clip.width).sum();
        let same = clips.iter().all(|clip| clips.first().is_some_and(|first| first.positions == clip.positions));
        if words > mmdit.context || !same {
            return invalid(format!(
                "the CLIP text encoders, with a total width of {words}, do not fit prompt embeddings of width {}",
                mmdit.context
            ));
        }
        self.check_text_widths([mmdit.context, mmdit.pooled], t5.map_or(mmdit.context, |t5| t5.width))
    }

    fn check_flux(&self, flux: &FluxConfig) -> Result<()> {
        let (_, t5) = self.encoders();
        self.check_text_widths([flux.context, flux.pooled], t5.map_or(0, |t5| t5.width))
    }

    /// Whether a network fits the encoders' outputs; `words`: width of T5's embeddings.
    fn check_text_widths(&self, [context, pooled]: [usize; 2], words: usize) -> Result<()> {
        let (clips, _) = self.encoders();
        let made: usize = clips.iter().map(|clip| clip.projection.unwrap_or(clip.width)).sum();
        match (words == context, made == pooled) {
            (false, _) => invalid(format!(
                "the transformer expects prompt embeddings of width {context}, the T5 encoder makes {words}"
            )),
            (_, false) => invalid(format!(
                "the transformer expects pooled embeddings of width {pooled}, the CLIP encoders make {made}"
            )),
            _ => Ok(()),
        }
    }
}
