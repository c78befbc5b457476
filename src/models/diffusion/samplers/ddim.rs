//! DDIM without noise (eta 0): Song et al. 2020, <https://arxiv.org/abs/2010.02502>.

use super::config_fields::Result;
use super::prediction::NoiseLevel;
use super::solver::{Solver, StepInput, alpha_or};

pub(super) struct Ddim {
    /// `[calls]`
    nexts: Vec<NoiseLevel>,
}

impl Ddim {
    /// `end`: the alpha before the first training step.
    pub fn new(alphas_cumprod: &[f32], timesteps: &[f64], stride: usize, end: f32) -> Result<Self> {
        let next =
            |time: &f64| alpha_or(alphas_cumprod, time - stride as f64, end).map(NoiseLevel::variance_preserving);
        Ok(Self { nexts: timesteps.iter().map(next).collect::<Result<_>>()? })
    }
}

impl Solver for Ddim {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some(next) = self.nexts.get(input.index) else { return };
        let (signal, share) = (next.signal as f32, next.noise as f32);
        for ((x, model_output), clean) in sample.iter_mut().zip(input.model_output).zip(input.clean) {
            *x = signal * clean + share * input.level.predict_noise(input.prediction, *model_output, *x);
        }
    }
}
