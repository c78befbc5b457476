//! The interface of all solvers.

use super::config_fields::Result;
use super::prediction::{NoiseLevel, Prediction};

/// Advances a sample with a model output.
pub(super) trait Solver: Send {
    /// Calls `noise` at most once, for as many values as the sample has, and only if the solver is stochastic.
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>);
}

/// The full schedule; a run may start late in it.
pub(super) struct StepPlan {
    /// Timesteps for the network: `[calls]`
    pub timesteps: Vec<f64>,
    /// `[calls]`
    pub levels: Vec<NoiseLevel>,
    pub init_noise_sigma: f64,
    pub solver: Box<dyn Solver>,
}

/// A model output and the clean sample that it implies.
pub(super) struct StepInput<'a> {
    /// Counted from the full schedule; a run may start late in it.
    pub index: usize,
    /// The sample's noise level.
    pub level: NoiseLevel,
    pub prediction: Prediction,
    pub model_output: &'a [f32],
    pub clean: &'a [f32],
}

/// The alpha product at an integer training step.
pub(super) fn alpha_at(alphas_cumprod: &[f32], time: f64) -> Result<f32> {
    let found = if time >= 0. { alphas_cumprod.get(time as usize) } else { None };
    found.copied().ok_or_else(|| format!("step {time} is not among the {} of the training", alphas_cumprod.len()))
}

/// The same; `end` before the first training step.
pub(super) fn alpha_or(alphas_cumprod: &[f32], time: f64, end: f32) -> Result<f32> {
    if time < 0. { Ok(end) } else { alpha_at(alphas_cumprod, time) }
}

/// `sample = own · sample + Σ weight · part`
pub(super) fn linear_combination(sample: &mut [f32], own: f64, parts: &[(f64, &[f32])]) {
    for (at, x) in sample.iter_mut().enumerate() {
        let of = |part: &&[f32]| part.get(at).copied().map_or(0., f64::from);
        let sum: f64 = parts.iter().map(|(share, part)| share * of(part)).sum();
        *x = (own * f64::from(*x) + sum) as f32;
    }
}
