//! DDPM: Ho et al. 2020, <https://arxiv.org/abs/2006.11239>, equations 7 and 15.

use super::betas::alpha_cumprod_at;
use super::config_fields::{ConfigFields, Result};
use super::solver_trait::{Solver, StepInput, linear_combination};

/// The variance of the noise that a step adds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variance {
    /// The posterior variance.
    Small,
    /// Beta.
    Large,
}

impl Variance {
    /// The log variants give the same variances. They differ only for models that predict the variance, which are not
    /// supported.
    pub fn read(fields: ConfigFields<'_>) -> Result<Self> {
        let known = [
            ("fixed_small", Self::Small),
            ("fixed_small_log", Self::Small),
            ("fixed_large", Self::Large),
            ("fixed_large_log", Self::Large),
        ];
        Ok(fields.choice("variance_type", &known)?.unwrap_or(Self::Small))
    }
}

pub(super) struct Ddpm {
    /// `[calls]`
    coefficients: Vec<Coefficients>,
}

/// The weights of the terms of the next sample.
struct Coefficients {
    clean: f64,
    sample: f64,
    /// `None` for the last step, which adds no noise.
    noise: Option<f64>,
}

impl Ddpm {
    pub fn new(alphas_cumprod: &[f32], timesteps: &[f64], variance: Variance) -> Result<Self> {
        let next_timesteps = timesteps.iter().skip(1).map(Some).chain([None]);
        let coefficients = timesteps.iter().zip(next_timesteps).map(|(timestep, next)| {
            let alpha_cumprod = alpha_cumprod_at(alphas_cumprod, *timestep)?;
            let next_alpha_cumprod = next.map_or(Ok(1.), |next| alpha_cumprod_at(alphas_cumprod, *next))?;
            let alphas_cumprod = [alpha_cumprod, next_alpha_cumprod].map(f64::from);
            Ok(Coefficients::new(alphas_cumprod, variance, *timestep > 0.))
        });
        Ok(Self { coefficients: coefficients.collect::<Result<_>>()? })
    }
}

impl Coefficients {
    fn new([alpha_cumprod, next_alpha_cumprod]: [f64; 2], variance: Variance, adds_noise: bool) -> Self {
        let alpha = alpha_cumprod / next_alpha_cumprod;
        let (beta_cumprod, next_beta_cumprod) = (1. - alpha_cumprod, 1. - next_alpha_cumprod);
        let variance = match variance {
            Variance::Small => (next_beta_cumprod / beta_cumprod * (1. - alpha)).max(1e-20),
            Variance::Large => 1. - alpha,
        };
        Self {
            clean: next_alpha_cumprod.sqrt() * (1. - alpha) / beta_cumprod,
            sample: alpha.sqrt() * next_beta_cumprod / beta_cumprod,
            noise: adds_noise.then(|| variance.max(0.).sqrt()),
        }
    }
}

impl Solver for Ddpm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some(coefficients) = self.coefficients.get(input.index) else { return };
        linear_combination(sample, coefficients.sample, &[(coefficients.clean, input.clean)]);
        if let Some(noise_weight) = coefficients.noise {
            linear_combination(sample, 1., &[(noise_weight, &noise(input.clean.len()))]);
        }
    }
}
