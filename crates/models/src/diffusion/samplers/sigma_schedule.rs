//! Noise schedules of samplers that use decreasing sigmas (noise-to-signal ratios).

use serde_json::Value;

use super::betas::{self, DDPM_DEFAULTS};
use super::config_fields::{ConfigFields, Result};
use super::dpm_solver::{self, DpmSolver};
use super::euler::{Euler, Variant};
use super::prediction::NoiseLevel;
use super::sigma_spacing::{SIGMA_SPACINGS, SigmaSequence, SigmaSpacing, SigmaTable};
use super::solver_trait::{Solver, StepPlan};
use super::timesteps::{TimestepSpacing, Timesteps};
use super::unipc::{self, UniPc};
use crate::diffusion::SchedulerName;

#[derive(Clone, Debug)]
pub(super) struct SigmaSchedule {
    pub table: SigmaTable,
    timesteps: Timesteps,
    pub solver: SigmaSolver,
}

#[derive(Clone, Debug)]
pub(super) enum SigmaSolver {
    /// `log_timesteps`: whether the timestep of the denoiser is a quarter of log sigma.
    Euler {
        log_timesteps: bool,
    },
    EulerAncestral,
    /// `round_timesteps`: whether the timesteps of respaced sigmas are rounded, rather than truncated.
    DpmSolver {
        config: dpm_solver::Config,
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
        let table = match name {
            SchedulerName::EulerAncestral => SigmaTable::from_alphas(&alphas_cumprod),
            SchedulerName::Euler | SchedulerName::UniPc => {
                SigmaTable::read(fields, &alphas_cumprod, &SIGMA_SPACINGS[..2])?
            }
            _ => SigmaTable::read(fields, &alphas_cumprod, &SIGMA_SPACINGS)?,
        };
        let solver = SigmaSolver::read(name, fields)?;
        Ok(Self { table, timesteps: Timesteps::read(fields, train_steps, TimestepSpacing::Linspace)?, solver })
    }

    pub fn plan(&self, steps: usize) -> Result<StepPlan> {
        self.timesteps.check_count(steps)?;
        let SigmaSequence { timesteps, sigmas } = self.sigma_sequence(steps)?;
        let level =
            if self.solver.is_variance_exploding() { NoiseLevel::variance_exploding } else { NoiseLevel::from_sigma };
        let levels = sigmas.iter().take(timesteps.len()).copied().map(level).collect();
        let max_sigma = sigmas.iter().copied().fold(0., f64::max);
        let init_noise_sigma = match (self.solver.is_variance_exploding(), self.timesteps.spacing) {
            (false, _) => 1.,
            (true, TimestepSpacing::Leading) => (max_sigma * max_sigma + 1.).sqrt(),
            (true, _) => max_sigma,
        };
        let solver: Box<dyn Solver> = match &self.solver {
            SigmaSolver::Euler { .. } => Box::new(Euler::new(Variant::Deterministic, sigmas)),
            SigmaSolver::EulerAncestral => Box::new(Euler::new(Variant::Ancestral, sigmas)),
            SigmaSolver::DpmSolver { config, .. } => {
                Box::new(DpmSolver::new(*config, sigmas, self.table.final_sigma_zero))
            }
            SigmaSolver::UniPc(config) => Box::new(UniPc::new(config.clone(), sigmas)),
        };
        Ok(StepPlan { timesteps, levels, init_noise_sigma, solver })
    }

    fn sigma_sequence(&self, steps: usize) -> Result<SigmaSequence> {
        let train_steps = self.timesteps.train_steps;
        let timesteps = match &self.solver {
            SigmaSolver::Euler { .. } | SigmaSolver::EulerAncestral => self.timesteps.spaced(steps),
            SigmaSolver::DpmSolver { config: dpm_solver::Config { lambda_min: Some(lambda_min), .. }, .. } => {
                self.timesteps.spaced_without_end(self.table.steps_above_lambda(*lambda_min), steps)?
            }
            SigmaSolver::DpmSolver { .. } | SigmaSolver::UniPc(_) => {
                self.timesteps.spaced_without_end(train_steps, steps)?
            }
        };
        let sigmas: Vec<f64> = timesteps.iter().map(|timestep| self.table.sigma_at(*timestep)).collect();
        let (timesteps, sigmas) = match self.respace(&sigmas, steps) {
            None => (timesteps, sigmas),
            Some(respaced) => (respaced.iter().map(|sigma| self.denoiser_timestep(*sigma)).collect(), respaced),
        };
        let timesteps = match self.solver {
            SigmaSolver::Euler { log_timesteps: true } => sigmas.iter().map(|sigma| 0.25 * sigma.ln()).collect(),
            _ => timesteps,
        };
        let final_sigma = match (self.table.final_sigma_zero, &self.solver, self.table.spacing) {
            (true, ..) => 0.,
            (false, SigmaSolver::UniPc(_), SigmaSpacing::Karras | SigmaSpacing::Exponential) => {
                sigmas.last().copied().unwrap_or(0.)
            }
            (false, ..) => self.table.min(),
        };
        Ok(SigmaSequence::new(timesteps, sigmas, final_sigma))
    }

    /// Respaces the sigmas of the selected timesteps, between the ends of the schedule or those of the table. `None` if
    /// the config does not enable respacing.
    fn respace(&self, sigmas: &[f64], steps: usize) -> Option<Vec<f64>> {
        let (highest, lowest) = match self.solver.is_variance_exploding() {
            true => (sigmas.first().copied().unwrap_or(0.), sigmas.last().copied().unwrap_or(0.)),
            false => (self.table.max(), self.table.min()),
        };
        self.table.respace(highest, lowest, steps)
    }

    /// The timestep of the denoiser for a respaced sigma. DPM-Solver++ and UniPC use integer timesteps.
    fn denoiser_timestep(&self, sigma: f64) -> f64 {
        let timestep = self.table.timestep_of(sigma);
        let can_round = self.table.spacing != SigmaSpacing::Exponential;
        match self.solver {
            SigmaSolver::Euler { .. } | SigmaSolver::EulerAncestral => timestep,
            SigmaSolver::DpmSolver { round_timesteps: true, .. } | SigmaSolver::UniPc(_) if can_round => {
                timestep.round_ties_even()
            }
            SigmaSolver::DpmSolver { .. } | SigmaSolver::UniPc(_) => timestep.trunc(),
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
                Ok(Self::DpmSolver { config: dpm_solver::Config::read(fields)?, round_timesteps: !cosine })
            }
        }
    }

    /// True if samples are variance exploding, false if they are variance preserving.
    fn is_variance_exploding(&self) -> bool {
        matches!(self, Self::Euler { .. } | Self::EulerAncestral)
    }
}
