//! From noise to a picture, step by step: what a network's guess makes of a sample. Not to be mixed up with the
//! scheduler of requests.
//!
//! [`Settings`] are a model's, [`Plan`] is a caller's, and a [`Course`] is one picture's way: it tells the network
//! the time, takes its guess and makes the next sample, until there are no calls left. Settings, numbers and the
//! order in which noise is drawn are those of diffusers 0.42, so that a `scheduler_config.json` and a seed mean the
//! same here. It differs where diffusers computes something that is not a number: steps that stand still are taken
//! at a lower order, and trailing steps are never one too many.
//!
//! Samples are flat: nothing here depends on how they are laid out, but noise must come in the same layout.

mod betas;
mod course;
mod ddim;
mod ddpm;
mod dpm;
mod euler;
mod fields;
mod flow;
mod guess;
mod kept;
mod ladder;
mod lcm;
mod plan;
mod pndm;
mod settings;
mod sigmas;
mod solver;
#[cfg(test)]
mod tests;
mod times;
mod unipc;

pub use course::Course;
pub use plan::{MOST_STEPS, Plan};
pub use settings::Settings;
