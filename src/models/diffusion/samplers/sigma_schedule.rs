//! Samplers that follow a decreasing list of sigmas (noise-to-signal ratios).

use serde_json::Value;

use super::betas::{self, DDPM_DEFAULTS};
use super::config_fields::{ConfigFields, Result};
use super::dpm::{self, Dpm};
use super::euler::{Euler, Variant};
use super::prediction::NoiseLevel;
use super::sigmas::{SIGMA_SPACINGS, SigmaPath, SigmaSpacing, SigmaTable};
use super::solver::{Solver, StepPlan};
use super::timesteps::{TimestepSpacing, Timesteps};
use super::unipc::{self, UniPc};
use crate::models::diffusion::SchedulerName;

#[derive(Clone, Debug)]
pub(super) struct SigmaSchedule {
    pub sigmas: SigmaTable,
    timesteps: Timesteps,
    pub solver: SigmaSolver,
}

#[derive(Clone, Debug)]
pub(super) enum SigmaSolver {
    /// Whether the network's timestep is a quarter of log sigma.
    Euler {
        log_timesteps: bool,
    },
    EulerAncestral,
    /// Whether the timesteps of respaced sigmas are rounded, rather than truncated.
    Dpm {
        config: dpm::Config,
        round_timesteps: bool,
    },
    UniPc(unipc::Config),
}

impl SigmaSchedule {
    /// Euler, Euler ancestral, UniPC, or DPM-Solver++ for any other name.
    pub fn read(name: SchedulerName, fields: ConfigFields<'_>, train_steps: usize) -> Result<Self> {
        let mut alphas_cumprod = betas::alphas_cumprod(fields, train_steps, &DDPM_DEFAULTS)?;
        if fields.flag("rescale_betas_zero_snr", false)? {
            betas::rescale_zero_terminal_snr(&mut alphas_cumprod, true);
        }
        let sigmas = match name {
            SchedulerName::EulerAncestral => SigmaTable::plain(&alphas_cumprod),
            SchedulerName::Euler | SchedulerName::UniPc => {
                SigmaTable::read(fields, &alphas_cumprod, &SIGMA_SPACINGS[..2])?
            }
            _ => SigmaTable::read(fields, &alphas_cumprod, &SIGMA_SPACINGS)?,
        };
        let solver = SigmaSolver::read(name, fields)?;
        Ok(Self { sigmas, timesteps: Timesteps::read(fields, train_steps, TimestepSpacing::Linspace)?, solver })
    }

    pub fn plan(&self, steps: usize) -> Result<StepPlan> {
        self.timesteps.check(steps)?;
        let SigmaPath { timesteps, sigmas } = self.sigma_path(steps)?;
        let level =
            if self.solver.is_variance_exploding() { NoiseLevel::variance_exploding } else { NoiseLevel::from_sigma };
        let levels = sigmas.iter().take(timesteps.len()).copied().map(level).collect();
        let most = sigmas.iter().copied().fold(0., f64::max);
        let init_noise_sigma = match (self.solver.is_variance_exploding(), self.timesteps.spacing) {
            (false, _) => 1.,
            (true, TimestepSpacing::Leading) => (most * most + 1.).sqrt(),
            (true, _) => most,
        };
        let solver: Box<dyn Solver> = match &self.solver {
            SigmaSolver::Euler { .. } => Box::new(Euler::new(Variant::Plain, sigmas)),
            SigmaSolver::EulerAncestral => Box::new(Euler::new(Variant::Ancestral, sigmas)),
            SigmaSolver::Dpm { config, .. } => Box::new(Dpm::new(*config, sigmas, self.sigmas.final_sigma_zero)),
            SigmaSolver::UniPc(config) => Box::new(UniPc::new(config.clone(), sigmas)),
        };
        Ok(StepPlan { timesteps, levels, init_noise_sigma, solver })
    }

    fn sigma_path(&self, steps: usize) -> Result<SigmaPath> {
        let train_steps = self.timesteps.train_steps;
        let taken = match &self.solver {
            SigmaSolver::Euler { .. } | SigmaSolver::EulerAncestral => self.timesteps.even(steps),
            SigmaSolver::Dpm { config: dpm::Config { lambda_min: Some(lambda_min), .. }, .. } => {
                self.timesteps.before_end(self.sigmas.steps_above_log_snr(*lambda_min), steps)?
            }
            SigmaSolver::Dpm { .. } | SigmaSolver::UniPc(_) => self.timesteps.before_end(train_steps, steps)?,
        };
        let own: Vec<f64> = taken.iter().map(|time| self.sigmas.at(*time)).collect();
        let (timesteps, sigmas) = match self.respaced(&own, steps) {
            None => (taken, own),
            Some(spaced) => (spaced.iter().map(|sigma| self.network_timestep(*sigma)).collect(), spaced),
        };
        let timesteps = match self.solver {
            SigmaSolver::Euler { log_timesteps: true } => sigmas.iter().map(|sigma| 0.25 * sigma.ln()).collect(),
            _ => timesteps,
        };
        let end = match (self.sigmas.final_sigma_zero, &self.solver, self.sigmas.spacing) {
            (true, ..) => 0.,
            (false, SigmaSolver::UniPc(_), SigmaSpacing::Karras | SigmaSpacing::Exponential) => {
                sigmas.last().copied().unwrap_or(0.)
            }
            (false, ..) => self.sigmas.min(),
        };
        Ok(SigmaPath::new(timesteps, sigmas, end))
    }

    /// Respaces between the sigmas of the chosen steps, or between all there are.
    fn respaced(&self, own: &[f64], steps: usize) -> Option<Vec<f64>> {
        let (highest, lowest) = match self.solver.is_variance_exploding() {
            true => (own.first().copied().unwrap_or(0.), own.last().copied().unwrap_or(0.)),
            false => (self.sigmas.max(), self.sigmas.min()),
        };
        self.sigmas.spaced(highest, lowest, steps)
    }

    /// The network's timestep for a respaced sigma; some networks take integers only.
    fn network_timestep(&self, sigma: f64) -> f64 {
        let time = self.sigmas.timestep_of(sigma);
        let rounds = self.sigmas.spacing != SigmaSpacing::Exponential;
        match self.solver {
            SigmaSolver::Euler { .. } | SigmaSolver::EulerAncestral => time,
            SigmaSolver::Dpm { round_timesteps: true, .. } | SigmaSolver::UniPc(_) if rounds => time.round_ties_even(),
            SigmaSolver::Dpm { .. } | SigmaSolver::UniPc(_) => time.trunc(),
        }
    }
}

impl SigmaSolver {
    fn read(name: SchedulerName, fields: ConfigFields<'_>) -> Result<Self> {
        match name {
            SchedulerName::EulerAncestral => Ok(Self::EulerAncestral),
            SchedulerName::UniPc => unipc::Config::read(fields).map(Self::UniPc),
            SchedulerName::Euler => {
                fields.choice("interpolation_type", &[("linear", ())])?;
                let continuous = fields.choice("timestep_type", &[("discrete", false), ("continuous", true)])?;
                let velocity = fields.get("prediction_type").and_then(Value::as_str) == Some("v_prediction");
                Ok(Self::Euler { log_timesteps: continuous.unwrap_or(false) && velocity })
            }
            _ => {
                let cosine = fields.get("beta_schedule").and_then(Value::as_str) == Some("squaredcos_cap_v2");
                Ok(Self::Dpm { config: dpm::Config::read(fields)?, round_timesteps: !cosine })
            }
        }
    }

    /// Whether samples are variance exploding.
    fn is_variance_exploding(&self) -> bool {
        matches!(self, Self::Euler { .. } | Self::EulerAncestral)
    }
}
