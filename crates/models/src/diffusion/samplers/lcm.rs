//! Latent consistency models: Luo et al. 2023, <https://arxiv.org/abs/2310.04378>.

use super::betas::alpha_cumprod_at;
use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver_trait::{Solver, StepInput, linear_combination};

/// The standard deviation of the data that consistency distillation assumes.
const SIGMA_DATA: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    /// The number of steps that the model was distilled with.
    original_steps: usize,
    timestep_scaling: f64,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>, train_steps: usize) -> Result<Self> {
        let original_steps = fields.count("original_inference_steps", 50, 1..=train_steps)?;
        Ok(Self {
            original_steps: original_steps.min(train_steps),
            timestep_scaling: fields.number("timestep_scaling", 10., 0. ..=1e6)?,
        })
    }

    /// `[steps]`, decreasing, selected from the steps of the distillation.
    pub fn timesteps(self, train_steps: usize, steps: usize) -> Result<Vec<f64>> {
        if steps > self.original_steps {
            return Err(format!("{steps} steps are too many: the model was distilled to {}", self.original_steps));
        }
        let stride = train_steps / self.original_steps;
        let skipped = |step: usize| (step as f64 * (self.original_steps as f64 / steps as f64)) as usize;
        Ok((0..steps).map(|step| ((self.original_steps - skipped(step)) * stride) as f64 - 1.).collect())
    }
}

pub(super) struct Lcm {
    /// Boundary condition coefficients of the clean sample (`c_out`) and of the sample (`c_skip`): `[calls]`
    boundary_scalings: Vec<(f64, f64)>,
    /// Noise levels after each call but the last: `[calls - 1]`
    next_levels: Vec<NoiseLevel>,
}

impl Lcm {
    pub fn new(config: Config, alphas_cumprod: &[f32], timesteps: &[f64]) -> Result<Self> {
        let scaling = |timestep: &f64| {
            let scaled = timestep * config.timestep_scaling;
            let variance = scaled * scaled + SIGMA_DATA * SIGMA_DATA;
            (scaled / variance.sqrt(), SIGMA_DATA * SIGMA_DATA / variance)
        };
        let level = |timestep: &f64| alpha_cumprod_at(alphas_cumprod, *timestep).map(NoiseLevel::variance_preserving);
        Ok(Self {
            boundary_scalings: timesteps.iter().map(scaling).collect(),
            next_levels: timesteps.iter().skip(1).map(level).collect::<Result<_>>()?,
        })
    }
}

impl Solver for Lcm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some((c_out, c_skip)) = self.boundary_scalings.get(input.index) else { return };
        linear_combination(sample, *c_skip, &[(*c_out, input.clean)]);
        if let Some(next) = self.next_levels.get(input.index) {
            linear_combination(sample, next.signal, &[(next.noise, &noise(input.clean.len()))]);
        }
    }
}
