//! Latent consistency models: Luo et al. 2023, <https://arxiv.org/abs/2310.04378>.

use super::fields::{Fields, Result};
use super::guess::Mix;
use super::solver::{Call, Solver, combine, kept_at};

/// The spread of the data that the distillation assumes.
const DATA: f64 = 0.5;

/// How the model was distilled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distillation {
    steps: usize,
    scaling: f64,
}

impl Distillation {
    pub fn read(fields: Fields<'_>, trained: usize) -> Result<Self> {
        let steps = fields.count("original_inference_steps", 50, 1..=trained)?;
        Ok(Self { steps: steps.min(trained), scaling: fields.number("timestep_scaling", 10., 0. ..=1e6)? })
    }

    /// `[steps]`, falling: of the steps of the distillation.
    pub fn times(self, trained: usize, steps: usize) -> Result<Vec<f64>> {
        if steps > self.steps {
            return Err(format!("{steps} steps are too many: the model was distilled to {}", self.steps));
        }
        let each = trained / self.steps;
        let skipped = |at: usize| (at as f64 * (self.steps as f64 / steps as f64)) as usize;
        Ok((0..steps).map(|at| ((self.steps - skipped(at)) * each) as f64 - 1.).collect())
    }
}

pub(super) struct Lcm {
    /// `[calls]`: how much a sample takes of the clean one and of itself.
    shares: Vec<(f64, f64)>,
    /// `[calls - 1]`
    nexts: Vec<Mix>,
}

impl Lcm {
    pub fn new(kept: &[f32], times: &[f64], distillation: Distillation) -> Result<Self> {
        let share = |time: &f64| {
            let scaled = time * distillation.scaling;
            let whole = scaled * scaled + DATA * DATA;
            (scaled / whole.sqrt(), DATA * DATA / whole)
        };
        let nexts = times.iter().skip(1).map(|time| kept_at(kept, *time).map(Mix::preserving));
        Ok(Self { shares: times.iter().map(share).collect(), nexts: nexts.collect::<Result<_>>()? })
    }
}

impl Solver for Lcm {
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some((clean, own)) = self.shares.get(call.index) else { return };
        combine(sample, *own, &[(*clean, call.clean)]);
        if let Some(next) = self.nexts.get(call.index) {
            combine(sample, next.signal, &[(next.noise, &noise(call.clean.len()))]);
        }
    }
}
