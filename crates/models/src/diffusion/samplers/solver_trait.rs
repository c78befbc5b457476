//! The interface of all solvers: numerical methods that compute the next sample.

use super::prediction::{NoiseLevel, PredictionType};

/// Computes the next sample from the current sample and a model output.
pub(super) trait Solver: Send {
    /// Replaces `sample` by the next sample. Calls `noise` at most once, for as many values as the sample has, and only
    /// if the solver is stochastic.
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>);
}

/// The full schedule and its solver. Image-to-image starts at a later index.
pub(super) struct StepPlan {
    /// Timesteps of the denoiser: `[calls]`
    pub timesteps: Vec<f64>,
    /// `[calls]`
    pub levels: Vec<NoiseLevel>,
    /// The scale of the initial noise.
    pub init_noise_sigma: f64,
    pub solver: Box<dyn Solver>,
}

/// The input of a step: a model output and the clean sample that it implies.
pub(super) struct StepInput<'a> {
    /// The denoiser call, counted from the start of the full schedule.
    pub index: usize,
    /// The noise level of the sample.
    pub level: NoiseLevel,
    pub prediction_type: PredictionType,
    pub model_output: &'a [f32],
    pub clean: &'a [f32],
}

/// `sample = sample_weight · sample + Σ weight · term`, computed in f64.
pub(super) fn linear_combination(sample: &mut [f32], sample_weight: f64, terms: &[(f64, &[f32])]) {
    for (index, x) in sample.iter_mut().enumerate() {
        let value = |term: &&[f32]| term.get(index).copied().map_or(0., f64::from);
        let sum: f64 = terms.iter().map(|(weight, term)| weight * value(term)).sum();
        *x = (sample_weight * f64::from(*x) + sum) as f32;
    }
}
