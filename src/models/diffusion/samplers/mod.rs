//! From noise to a picture, step by step: what a network's guess makes of a sample. Not to be mixed up with the
//! scheduler of requests.
//!
//! [`SchedulerConfig`] are a model's, [`SamplingParams`] is a caller's, and a [`Sampler`] is one picture's way: it tells the network
//! the time, takes its guess and makes the next sample, until there are no calls left. SchedulerConfig, numbers and the
//! order in which noise is drawn are those of diffusers 0.42, so that a `scheduler_config.json` and a seed mean the
//! same here. It differs where diffusers computes something that is not a number: steps that stand still are taken
//! at a lower order, and trailing steps are never one too many.
//!
//! Samples are flat: nothing here depends on how they are laid out, but noise must come in the same layout.

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
