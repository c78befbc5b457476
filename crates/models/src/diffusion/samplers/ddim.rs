//! DDIM without noise (eta 0): Song et al. 2020, <https://arxiv.org/abs/2010.02502>.

use super::betas::alpha_cumprod_or;
use super::config_fields::Result;
use super::prediction::NoiseLevel;
use super::solver_trait::{Solver, StepInput};

pub(super) struct Ddim {
    /// Noise levels after each call: `[calls]`
    next_levels: Vec<NoiseLevel>,
}

impl Ddim {
    /// `final_alpha_cumprod`: the alpha product of the final sample.
    pub fn new(alphas_cumprod: &[f32], timesteps: &[f64], stride: usize, final_alpha_cumprod: f32) -> Result<Self> {
        let next_level = |timestep: &f64| {
            alpha_cumprod_or(alphas_cumprod, timestep - stride as f64, final_alpha_cumprod)
                .map(NoiseLevel::variance_preserving)
        };
        Ok(Self { next_levels: timesteps.iter().map(next_level).collect::<Result<_>>()? })
    }
}

impl Solver for Ddim {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some(next) = self.next_levels.get(input.index) else { return };
        let (signal, noise_scale) = (next.signal as f32, next.noise as f32);
        for ((x, model_output), clean) in sample.iter_mut().zip(input.model_output).zip(input.clean) {
            let noise = input.level.predict_noise(input.prediction_type, *model_output, *x);
            *x = signal * clean + noise_scale * noise;
        }
    }
}
