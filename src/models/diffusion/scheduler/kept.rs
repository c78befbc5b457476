//! Ways that go by what is kept of a picture at whole training steps.

use super::betas::{self, CONSISTENCY, PLAIN};
use super::course::Made;
use super::ddim::Ddim;
use super::ddpm::{Ddpm, Variance};
use super::fields::{Fields, Result};
use super::guess::Mix;
use super::lcm::{Distillation, Lcm};
use super::pndm::{self, Pndm};
use super::solver::{Solver, kept_at};
use super::times::{Spacing, Times};
use crate::models::diffusion::SchedulerName;

#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Of its variance: `[training steps]`
    kept: Vec<f32>,
    times: Times,
    pub stepper: Stepper,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stepper {
    /// With what is kept beyond the first training step.
    Ddim(f32),
    Ddpm(Variance),
    Pndm(pndm::Settings),
    Lcm(Distillation),
}

impl Kept {
    /// Of DDPM, PNDM, LCM or, by any other name, DDIM.
    pub fn read(name: SchedulerName, fields: Fields<'_>, trained: usize) -> Result<Self> {
        let defaults = if name == SchedulerName::Lcm { &CONSISTENCY } else { &PLAIN };
        let mut kept = betas::read(fields, trained, defaults)?;
        if name != SchedulerName::Pndm && fields.flag("rescale_betas_zero_snr", false)? {
            betas::end_at_noise(&mut kept, false);
        }
        let stepper = match name {
            SchedulerName::Pndm => Stepper::Pndm(pndm::Settings::read(fields, &kept)?),
            SchedulerName::Lcm => Stepper::Lcm(Distillation::read(fields, trained)?),
            SchedulerName::Ddpm => Stepper::Ddpm(Variance::read(fields)?),
            _ if fields.flag("set_alpha_to_one", true)? => Stepper::Ddim(1.),
            _ => Stepper::Ddim(kept.first().copied().unwrap_or(1.)),
        };
        Ok(Self { kept, times: Times::read(fields, trained, Spacing::Leading)?, stepper })
    }

    pub fn way(&self, steps: usize, begin: usize) -> Result<Made> {
        self.times.check(steps)?;
        let (kept, stride) = (&self.kept, self.times.stride(steps));
        let times = match self.stepper {
            Stepper::Ddim(_) | Stepper::Ddpm(_) => self.times.whole(steps),
            Stepper::Pndm(pndm) => pndm.times(self.times, steps)?,
            Stepper::Lcm(distillation) => distillation.times(self.times.trained, steps)?,
        };
        let mixes = times.iter().map(|time| kept_at(kept, *time).map(Mix::preserving)).collect::<Result<_>>()?;
        let solver: Box<dyn Solver> = match self.stepper {
            Stepper::Ddim(end) => Box::new(Ddim::new(kept, &times, stride, end)?),
            Stepper::Ddpm(variance) => Box::new(Ddpm::new(kept, &times, variance)?),
            Stepper::Pndm(pndm) => Box::new(Pndm::new(pndm, kept, &times, stride, begin)?),
            Stepper::Lcm(distillation) => Box::new(Lcm::new(kept, &times, distillation)?),
        };
        Ok(Made { times, mixes, first_scale: 1., solver })
    }
}
