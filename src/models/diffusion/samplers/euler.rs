//! Euler's method, plain and ancestral (Karras et al. 2022, <https://arxiv.org/abs/2206.00364>), and for flow matching.

use super::solver::{Solver, StepInput, linear_combination};

/// Variants of Euler's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Plain,
    /// Steps past the next sigma, then adds noise to return to it.
    Ancestral,
    /// Follows the predicted flow.
    Flow,
    /// Restarts each flow step from the clean sample and fresh noise.
    Stochastic,
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
            Variant::Plain => descend(sample, input.clean, *sigma, *next),
            Variant::Ancestral => {
                let back = (next * next * (sigma * sigma - next * next) / (sigma * sigma)).max(0.).sqrt();
                descend(sample, input.clean, *sigma, (next * next - back * back).max(0.).sqrt());
                linear_combination(sample, 1., &[(back, &noise(input.clean.len()))]);
            }
            Variant::Flow => linear_combination(sample, 1., &[(next - sigma, input.model_output)]),
            Variant::Stochastic => {
                linear_combination(sample, 0., &[(1. - next, input.clean), (*next, &noise(input.clean.len()))])
            }
        }
    }
}

fn descend(sample: &mut [f32], clean: &[f32], sigma: f64, to: f64) {
    linear_combination(sample, to / sigma, &[(1. - to / sigma, clean)]);
}
