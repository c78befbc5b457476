//! Euler's method, plain and ancestral, as in Karras et al. 2022, <https://arxiv.org/abs/2206.00364>, and for flows.

use super::solver::{Call, Solver, combine};

/// What a step adds to Euler's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// Goes further than the next sigma, and back by as much new noise.
    Ancestral,
    /// Along the line that a flow's network guesses.
    Flow,
    /// A flow of which each step begins anew from the clean sample and new noise.
    Anew,
}

pub(super) struct Euler {
    kind: Kind,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
}

impl Euler {
    pub fn new(kind: Kind, sigmas: Vec<f64>) -> Self {
        Self { kind, sigmas }
    }
}

impl Solver for Euler {
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let (Some(sigma), Some(next)) = (self.sigmas.get(call.index), self.sigmas.get(call.index + 1)) else { return };
        match self.kind {
            Kind::Plain => descend(sample, call.clean, *sigma, *next),
            Kind::Ancestral => {
                let back = (next * next * (sigma * sigma - next * next) / (sigma * sigma)).max(0.).sqrt();
                descend(sample, call.clean, *sigma, (next * next - back * back).max(0.).sqrt());
                combine(sample, 1., &[(back, &noise(call.clean.len()))]);
            }
            Kind::Flow => combine(sample, 1., &[(next - sigma, call.guess)]),
            Kind::Anew => combine(sample, 0., &[(1. - next, call.clean), (*next, &noise(call.clean.len()))]),
        }
    }
}

fn descend(sample: &mut [f32], clean: &[f32], sigma: f64, to: f64) {
    combine(sample, to / sigma, &[(1. - to / sigma, clean)]);
}
