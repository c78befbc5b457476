//! Noise schedules of samplers that use cumulative alpha products at integer timesteps.

use super::betas::{self, DDPM_DEFAULTS, LCM_DEFAULTS, alpha_cumprod_at};
use super::config_fields::{ConfigFields, Result};
use super::ddim::Ddim;
use super::ddpm::{Ddpm, Variance};
use super::lcm::{self, Lcm};
use super::pndm::{self, Pndm};
use super::prediction::NoiseLevel;
use super::solver_trait::{Solver, StepPlan};
use super::timesteps::{TimestepSpacing, Timesteps};
use crate::diffusion::SchedulerName;

#[derive(Clone, Debug)]
pub(super) struct AlphaSchedule {
    /// `[train_steps]`
    alphas_cumprod: Vec<f32>,
    timesteps: Timesteps,
    pub solver: AlphaSolver,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum AlphaSolver {
    /// With the alpha product of the final sample.
    Ddim(f32),
    Ddpm(Variance),
    Pndm(pndm::Config),
    Lcm(lcm::Config),
}

impl AlphaSchedule {
    /// DDPM, PNDM, LCM, or DDIM for any other name.
    pub fn read(name: SchedulerName, fields: ConfigFields<'_>, train_steps: usize) -> Result<Self> {
        let defaults = if name == SchedulerName::Lcm { &LCM_DEFAULTS } else { &DDPM_DEFAULTS };
        let mut alphas_cumprod = betas::alphas_cumprod(fields, train_steps, defaults)?;
        if name != SchedulerName::Pndm && fields.flag("rescale_betas_zero_snr", false)? {
            betas::rescale_zero_terminal_snr(&mut alphas_cumprod, false);
        }
        let solver = match name {
            SchedulerName::Pndm => AlphaSolver::Pndm(pndm::Config::read(fields, &alphas_cumprod)?),
            SchedulerName::Lcm => AlphaSolver::Lcm(lcm::Config::read(fields, train_steps)?),
            SchedulerName::Ddpm => AlphaSolver::Ddpm(Variance::read(fields)?),
            _ if fields.flag("set_alpha_to_one", true)? => AlphaSolver::Ddim(1.),
            _ => AlphaSolver::Ddim(alphas_cumprod.first().copied().unwrap_or(1.)),
        };
        Ok(Self { alphas_cumprod, timesteps: Timesteps::read(fields, train_steps, TimestepSpacing::Leading)?, solver })
    }

    /// `begin_index`: the first step to run.
    pub fn plan(&self, steps: usize, begin_index: usize) -> Result<StepPlan> {
        self.timesteps.check_count(steps)?;
        let (alphas_cumprod, stride) = (&self.alphas_cumprod, self.timesteps.stride(steps));
        let timesteps = match self.solver {
            AlphaSolver::Ddim(_) | AlphaSolver::Ddpm(_) => self.timesteps.spaced_integers(steps),
            AlphaSolver::Pndm(config) => config.timesteps(self.timesteps, steps)?,
            AlphaSolver::Lcm(config) => config.timesteps(self.timesteps.train_steps, steps)?,
        };
        let levels = timesteps
            .iter()
            .map(|timestep| alpha_cumprod_at(alphas_cumprod, *timestep).map(NoiseLevel::variance_preserving))
            .collect::<Result<_>>()?;
        let solver: Box<dyn Solver> = match self.solver {
            AlphaSolver::Ddim(final_alpha_cumprod) => {
                Box::new(Ddim::new(alphas_cumprod, &timesteps, stride, final_alpha_cumprod)?)
            }
            AlphaSolver::Ddpm(variance) => Box::new(Ddpm::new(alphas_cumprod, &timesteps, variance)?),
            AlphaSolver::Pndm(config) => Box::new(Pndm::new(config, alphas_cumprod, &timesteps, stride, begin_index)?),
            AlphaSolver::Lcm(config) => Box::new(Lcm::new(config, alphas_cumprod, &timesteps)?),
        };
        Ok(StepPlan { timesteps, levels, init_noise_sigma: 1., solver })
    }
}
