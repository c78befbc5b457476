//! DDPM: Ho et al. 2020, <https://arxiv.org/abs/2006.11239>, equations 7 and 15.

use super::fields::{Fields, Result};
use super::solver::{Call, Solver, combine, kept_at};

/// How much noise comes back at a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variance {
    Small,
    Large,
}

impl Variance {
    /// The logarithms are of the same variances: they matter to networks that guess them, which are refused.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let known = [
            ("fixed_small", Self::Small),
            ("fixed_small_log", Self::Small),
            ("fixed_large", Self::Large),
            ("fixed_large_log", Self::Large),
        ];
        Ok(fields.word("variance_type", &known)?.unwrap_or(Self::Small))
    }
}

pub(super) struct Ddpm {
    /// `[calls]`
    shares: Vec<Shares>,
}

struct Shares {
    clean: f64,
    sample: f64,
    noise: Option<f64>,
}

impl Ddpm {
    pub fn new(kept: &[f32], times: &[f64], variance: Variance) -> Result<Self> {
        let nexts = times.iter().skip(1).map(Some).chain([None]);
        let shares = times.iter().zip(nexts).map(|(time, next)| {
            let now = f64::from(kept_at(kept, *time)?);
            let next = next.map_or(Ok(1.), |next| kept_at(kept, *next))?;
            Ok(Shares::new(now, f64::from(next), variance, *time > 0.))
        });
        Ok(Self { shares: shares.collect::<Result<_>>()? })
    }
}

impl Shares {
    fn new(now: f64, next: f64, variance: Variance, noisy: bool) -> Self {
        let (stays, lost, lost_next) = (now / next, 1. - now, 1. - next);
        let spread = match variance {
            Variance::Small => (lost_next / lost * (1. - stays)).max(1e-20),
            Variance::Large => 1. - stays,
        };
        Self {
            clean: next.sqrt() * (1. - stays) / lost,
            sample: stays.sqrt() * lost_next / lost,
            noise: noisy.then(|| spread.max(0.).sqrt()),
        }
    }
}

impl Solver for Ddpm {
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some(shares) = self.shares.get(call.index) else { return };
        combine(sample, shares.sample, &[(shares.clean, call.clean)]);
        if let Some(share) = shares.noise {
            combine(sample, 1., &[(share, &noise(call.clean.len()))]);
        }
    }
}
