//! What all solvers have in common.

use super::config_fields::Result;
use super::prediction::{NoiseLevel, Prediction};

/// Makes the next sample of a sample and of what a network guesses.
pub(super) trait Solver: Send {
    /// Asks `noise` for as many numbers as there are in a sample, at most once, where the way is a random one.
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>);
}

/// A guess of the network, and what it says of the clean sample.
pub(super) struct StepInput<'a> {
    /// From the first of all steps, though a course may begin late.
    pub index: usize,
    /// The sample that the network was asked about.
    pub level: NoiseLevel,
    pub prediction: Prediction,
    pub model_output: &'a [f32],
    pub clean: &'a [f32],
}

/// What is kept of a picture's variance at a whole training step.
pub(super) fn alpha_at(alphas_cumprod: &[f32], time: f64) -> Result<f32> {
    let found = if time >= 0. { alphas_cumprod.get(time as usize) } else { None };
    found.copied().ok_or_else(|| format!("step {time} is not among the {} of the training", alphas_cumprod.len()))
}

/// The same, of a training step that may lie before the first.
pub(super) fn alpha_or(alphas_cumprod: &[f32], time: f64, end: f32) -> Result<f32> {
    if time < 0. { Ok(end) } else { alpha_at(alphas_cumprod, time) }
}

/// `sample` becomes `own` of it and so much of each of the parts.
pub(super) fn linear_combination(sample: &mut [f32], own: f64, parts: &[(f64, &[f32])]) {
    for (at, x) in sample.iter_mut().enumerate() {
        let of = |part: &&[f32]| part.get(at).copied().map_or(0., f64::from);
        let sum: f64 = parts.iter().map(|(share, part)| share * of(part)).sum();
        *x = (own * f64::from(*x) + sum) as f32;
    }
}
