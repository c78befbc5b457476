//! Diffusion models: image generation from noise.

mod adapters;
mod attention;
mod bert;
mod clip;
mod components;
mod config_values;
mod denoiser;
mod diffusers_weights;
mod dit;
mod layers;
mod ldm_checkpoint;
pub mod noise;
pub mod pipeline;
mod resnet;
pub mod samplers;
mod spatial_transformer;
mod t5;
mod timestep_embedding;
mod unet;
mod vae;

use std::fmt;
use std::str::FromStr;

/// The name of a sampler, which the API and diffusers call a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerName {
    Ddim,
    Ddpm,
    Pndm,
    Euler,
    EulerAncestral,
    DpmPp2M,
    DpmPp2MKarras,
    UniPc,
    Lcm,
    FlowEuler,
}

impl SchedulerName {
    /// All samplers and their names in requests.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Ddim, "ddim"),
        (Self::Ddpm, "ddpm"),
        (Self::Pndm, "pndm"),
        (Self::Euler, "euler"),
        (Self::EulerAncestral, "euler_a"),
        (Self::DpmPp2M, "dpmpp_2m"),
        (Self::DpmPp2MKarras, "dpmpp_2m_karras"),
        (Self::UniPc, "unipc"),
        (Self::Lcm, "lcm"),
        (Self::FlowEuler, "flow_euler"),
    ];
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(scheduler, _)| scheduler == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for SchedulerName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(scheduler, _)| *scheduler).ok_or(())
    }
}

#[cfg(test)]
mod tests;
