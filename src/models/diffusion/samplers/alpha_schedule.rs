//! Samplers that follow the products of alphas at integer training steps.

use super::betas::{self, DDPM_DEFAULTS, LCM_DEFAULTS};
use super::config_fields::{ConfigFields, Result};
use super::ddim::Ddim;
use super::ddpm::{Ddpm, Variance};
use super::lcm::{Distillation, Lcm};
use super::pndm::{self, Pndm};
use super::prediction::NoiseLevel;
use super::solver::{Solver, StepPlan, alpha_at};
use super::timesteps::{TimestepSpacing, Timesteps};
use crate::models::diffusion::SchedulerName;

#[derive(Clone, Debug)]
pub(super) struct AlphaSchedule {
    /// `[train_steps]`
    alphas_cumprod: Vec<f32>,
    timesteps: Timesteps,
    pub solver: AlphaSolver,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum AlphaSolver {
    /// With the alpha before the first training step.
    Ddim(f32),
    Ddpm(Variance),
    Pndm(pndm::Config),
    Lcm(Distillation),
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
            SchedulerName::Lcm => AlphaSolver::Lcm(Distillation::read(fields, train_steps)?),
            SchedulerName::Ddpm => AlphaSolver::Ddpm(Variance::read(fields)?),
            _ if fields.flag("set_alpha_to_one", true)? => AlphaSolver::Ddim(1.),
            _ => AlphaSolver::Ddim(alphas_cumprod.first().copied().unwrap_or(1.)),
        };
        Ok(Self { alphas_cumprod, timesteps: Timesteps::read(fields, train_steps, TimestepSpacing::Leading)?, solver })
    }

    pub fn plan(&self, steps: usize, begin: usize) -> Result<StepPlan> {
        self.timesteps.check(steps)?;
        let (alphas_cumprod, stride) = (&self.alphas_cumprod, self.timesteps.stride(steps));
        let timesteps = match self.solver {
            AlphaSolver::Ddim(_) | AlphaSolver::Ddpm(_) => self.timesteps.whole(steps),
            AlphaSolver::Pndm(pndm) => pndm.timesteps(self.timesteps, steps)?,
            AlphaSolver::Lcm(distillation) => distillation.timesteps(self.timesteps.train_steps, steps)?,
        };
        let levels = timesteps
            .iter()
            .map(|time| alpha_at(alphas_cumprod, *time).map(NoiseLevel::variance_preserving))
            .collect::<Result<_>>()?;
        let boxed: Box<dyn Solver> = match self.solver {
            AlphaSolver::Ddim(end) => Box::new(Ddim::new(alphas_cumprod, &timesteps, stride, end)?),
            AlphaSolver::Ddpm(variance) => Box::new(Ddpm::new(alphas_cumprod, &timesteps, variance)?),
            AlphaSolver::Pndm(pndm) => Box::new(Pndm::new(pndm, alphas_cumprod, &timesteps, stride, begin)?),
            AlphaSolver::Lcm(distillation) => Box::new(Lcm::new(alphas_cumprod, &timesteps, distillation)?),
        };
        Ok(StepPlan { timesteps, levels, init_noise_sigma: 1., solver: boxed })
    }
}
