//! DDPM: Ho et al. 2020, <https://arxiv.org/abs/2006.11239>, equations 7 and 15.

use super::config_fields::{ConfigFields, Result};
use super::solver::{Solver, StepInput, alpha_at, linear_combination};

/// How much noise a step adds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variance {
    Small,
    Large,
}

impl Variance {
    /// The log variants give the same variances. They matter only to networks that predict the variance, which are
    /// refused.
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

struct Coefficients {
    clean: f64,
    sample: f64,
    noise: Option<f64>,
}

impl Ddpm {
    pub fn new(alphas_cumprod: &[f32], timesteps: &[f64], variance: Variance) -> Result<Self> {
        let nexts = timesteps.iter().skip(1).map(Some).chain([None]);
        let coefficients = timesteps.iter().zip(nexts).map(|(time, next)| {
            let now = f64::from(alpha_at(alphas_cumprod, *time)?);
            let next = next.map_or(Ok(1.), |next| alpha_at(alphas_cumprod, *next))?;
            Ok(Coefficients::new(now, f64::from(next), variance, *time > 0.))
        });
        Ok(Self { coefficients: coefficients.collect::<Result<_>>()? })
    }
}

impl Coefficients {
    fn new(now: f64, next: f64, variance: Variance, adds_noise: bool) -> Self {
        let (stays, lost, lost_next) = (now / next, 1. - now, 1. - next);
        let variance_added = match variance {
            Variance::Small => (lost_next / lost * (1. - stays)).max(1e-20),
            Variance::Large => 1. - stays,
        };
        Self {
            clean: next.sqrt() * (1. - stays) / lost,
            sample: stays.sqrt() * lost_next / lost,
            noise: adds_noise.then(|| variance_added.max(0.).sqrt()),
        }
    }
}

impl Solver for Ddpm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some(coefficients) = self.coefficients.get(input.index) else { return };
        linear_combination(sample, coefficients.sample, &[(coefficients.clean, input.clean)]);
        if let Some(share) = coefficients.noise {
            linear_combination(sample, 1., &[(share, &noise(input.clean.len()))]);
        }
    }
}
