//! Diffusion samplers: how a model output turns one sample into the next. diffusers calls them schedulers; here that
//! word means the request scheduler.
//!
//! [`SchedulerConfig`] comes from the model, [`SamplingParams`] from the caller. A [`Sampler`] serves one image: it
//! gives the network its timestep, takes the model output and makes the next sample. Settings, numbers and the order of
//! noise match diffusers 0.42, so that a `scheduler_config.json` and a seed give the same image. It differs where
//! diffusers produces NaN: steps of zero length run at a lower order, and trailing spacing never yields one step too
//! many.
//!
//! Samples are flat. Their layout does not matter, but noise must have the same one.

mod alpha_schedule;
mod betas;
mod config;
mod config_fields;
mod ddim;
mod ddpm;
mod dpm;
mod euler;
mod flow_schedule;
mod lcm;
mod params;
mod pndm;
mod prediction;
mod sampler;
mod sigma_schedule;
mod sigmas;
mod solver;
#[cfg(test)]
mod tests;
mod timesteps;
mod unipc;

pub use config::SchedulerConfig;
pub use params::{MAX_STEPS, SamplingParams};
pub use sampler::Sampler;
