//! Euler's method: deterministic and ancestral (Karras et al. 2022, <https://arxiv.org/abs/2206.00364>), and for flow
//! matching.

use super::solver_trait::{Solver, StepInput, linear_combination};

/// A variant of Euler's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Deterministic,
    /// Steps to less noise than the next sigma, then adds noise.
    Ancestral,
    /// Flow matching: follows the predicted flow.
    Flow,
    /// Flow matching: mixes the predicted clean sample with new noise.
    StochasticFlow,
}

pub(super) struct Euler {
    variant: Variant,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
}

impl Euler {
    pub fn new(variant: Variant, sigmas: Vec<f64>) -> Self {
        Self { variant, sigmas }
    }
}

impl Solver for Euler {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let (Some(sigma), Some(next)) = (self.sigmas.get(input.index), self.sigmas.get(input.index + 1)) else {
            return;
        };
        match self.variant {
            Variant::Deterministic => euler_step(sample, input.clean, *sigma, *next),
            Variant::Ancestral => {
                let sigma_up = (next * next * (sigma * sigma - next * next) / (sigma * sigma)).max(0.).sqrt();
                let sigma_down = (next * next - sigma_up * sigma_up).max(0.).sqrt();
                euler_step(sample, input.clean, *sigma, sigma_down);
                linear_combination(sample, 1., &[(sigma_up, &noise(input.clean.len()))]);
            }
            Variant::Flow => linear_combination(sample, 1., &[(next - sigma, input.model_output)]),
            Variant::StochasticFlow => {
                linear_combination(sample, 0., &[(1. - next, input.clean), (*next, &noise(input.clean.len()))])
            }
        }
    }
}

/// Moves `sample` from `sigma` to `next_sigma`, towards the clean sample.
fn euler_step(sample: &mut [f32], clean: &[f32], sigma: f64, next_sigma: f64) {
    linear_combination(sample, next_sigma / sigma, &[(1. - next_sigma / sigma, clean)]);
}
