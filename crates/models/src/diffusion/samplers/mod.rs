//! Diffusion samplers compute the next sample from the current sample and a model output. diffusers and the API call
//! them schedulers; in code that word means the request scheduler.
//!
//! [`SchedulerConfig`] comes from the model, [`SamplingParams`] from the caller. A [`Sampler`] denoises one image: it
//! provides the timestep of each step, takes the model output and computes the next sample. Settings, values and the
//! order of noise match diffusers 0.42, so that a `scheduler_config.json` and a seed give the same image. The samplers
//! differ from diffusers where diffusers produces NaN: steps of zero length run at a lower order, and trailing spacing
//! never yields one step too many.
//!
//! Samples are flat slices. Samples and noise may have any layout, as long as it is the same.

mod alpha_schedule;
mod betas;
mod clipping;
mod config_fields;
mod ddim;
mod ddpm;
mod dpm_solver;
mod euler;
mod flow_schedule;
mod lcm;
mod pndm;
mod prediction;
mod sampler;
mod sampling_params;
mod scheduler_config;
mod sigma_schedule;
mod sigma_spacing;
mod solver_trait;
#[cfg(test)]
mod tests;
mod timesteps;
mod unipc;

pub use sampler::Sampler;
pub use sampling_params::{MAX_STEPS, SamplingParams};
pub use scheduler_config::SchedulerConfig;
