//! Latent consistency models: Luo et al. 2023, <https://arxiv.org/abs/2310.04378>.

use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver::{Solver, StepInput, alpha_at, linear_combination};

/// Standard deviation of the data that the distillation assumes.
const SIGMA_DATA: f64 = 0.5;

/// The distillation's settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distillation {
    steps: usize,
    scaling: f64,
}

impl Distillation {
    pub fn read(fields: ConfigFields<'_>, train_steps: usize) -> Result<Self> {
        let steps = fields.count("original_inference_steps", 50, 1..=train_steps)?;
        Ok(Self { steps: steps.min(train_steps), scaling: fields.number("timestep_scaling", 10., 0. ..=1e6)? })
    }

    /// `[steps]`, decreasing, chosen from the distillation's steps.
    pub fn timesteps(self, train_steps: usize, steps: usize) -> Result<Vec<f64>> {
        if steps > self.steps {
            return Err(format!("{steps} steps are too many: the model was distilled to {}", self.steps));
        }
        let each = train_steps / self.steps;
        let skipped = |at: usize| (at as f64 * (self.steps as f64 / steps as f64)) as usize;
        Ok((0..steps).map(|at| ((self.steps - skipped(at)) * each) as f64 - 1.).collect())
    }
}

pub(super) struct Lcm {
    /// `[calls]`: coefficients of the clean sample and of the sample itself.
    scalings: Vec<(f64, f64)>,
    /// `[calls - 1]`
    nexts: Vec<NoiseLevel>,
}

impl Lcm {
    pub fn new(alphas_cumprod: &[f32], timesteps: &[f64], distillation: Distillation) -> Result<Self> {
        let scaling_at = |time: &f64| {
            let scaled = time * distillation.scaling;
            let whole = scaled * scaled + SIGMA_DATA * SIGMA_DATA;
            (scaled / whole.sqrt(), SIGMA_DATA * SIGMA_DATA / whole)
        };
        let nexts =
            timesteps.iter().skip(1).map(|time| alpha_at(alphas_cumprod, *time).map(NoiseLevel::variance_preserving));
        Ok(Self { scalings: timesteps.iter().map(scaling_at).collect(), nexts: nexts.collect::<Result<_>>()? })
    }
}

impl Solver for Lcm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some((clean, own)) = self.scalings.get(input.index) else { return };
        linear_combination(sample, *own, &[(*clean, input.clean)]);
        if let Some(next) = self.nexts.get(input.index) {
            linear_combination(sample, next.signal, &[(next.noise, &noise(input.clean.len()))]);
        }
    }
}
