//! Ways that go by noise over signal, from one sigma down to the next.

use serde_json::Value;

use super::betas::{self, PLAIN};
use super::course::Made;
use super::dpm::{self, Dpm};
use super::euler::{Euler, Kind};
use super::fields::{Fields, Result};
use super::guess::Mix;
use super::sigmas::{Path, SPREADS, Sigmas, Spread};
use super::solver::Solver;
use super::times::{Spacing, Times};
use super::unipc::{self, UniPc};
use crate::models::diffusion::SchedulerName;

#[derive(Clone, Debug)]
pub(super) struct Ladder {
    pub sigmas: Sigmas,
    times: Times,
    pub solver: Multistep,
}

#[derive(Clone, Debug)]
pub(super) enum Multistep {
    /// Whether the network is told a quarter of sigma's logarithm.
    Euler {
        logarithmic: bool,
    },
    EulerAncestral,
    /// Whether times of spread sigmas are rounded, rather than cut.
    Dpm {
        settings: dpm::Settings,
        rounds: bool,
    },
    UniPc(unipc::Settings),
}

impl Ladder {
    /// Of Euler, Euler ancestral, UniPC or, by any other name, DPM-Solver++.
    pub fn read(name: SchedulerName, fields: Fields<'_>, trained: usize) -> Result<Self> {
        let mut kept = betas::read(fields, trained, &PLAIN)?;
        if fields.flag("rescale_betas_zero_snr", false)? {
            betas::end_at_noise(&mut kept, true);
        }
        let sigmas = match name {
            SchedulerName::EulerAncestral => Sigmas::plain(&kept),
            SchedulerName::Euler | SchedulerName::UniPc => Sigmas::read(fields, &kept, &SPREADS[..2])?,
            _ => Sigmas::read(fields, &kept, &SPREADS)?,
        };
        let solver = Multistep::read(name, fields)?;
        Ok(Self { sigmas, times: Times::read(fields, trained, Spacing::Linspace)?, solver })
    }

    pub fn way(&self, steps: usize) -> Result<Made> {
        self.times.check(steps)?;
        let Path { times, sigmas } = self.path(steps)?;
        let mix = if self.solver.explodes() { Mix::exploding } else { Mix::of_ratio };
        let mixes = sigmas.iter().take(times.len()).copied().map(mix).collect();
        let most = sigmas.iter().copied().fold(0., f64::max);
        let first_scale = match (self.solver.explodes(), self.times.spacing) {
            (false, _) => 1.,
            (true, Spacing::Leading) => (most * most + 1.).sqrt(),
            (true, _) => most,
        };
        let solver: Box<dyn Solver> = match &self.solver {
            Multistep::Euler { .. } => Box::new(Euler::new(Kind::Plain, sigmas)),
            Multistep::EulerAncestral => Box::new(Euler::new(Kind::Ancestral, sigmas)),
            Multistep::Dpm { settings, .. } => Box::new(Dpm::new(*settings, sigmas, self.sigmas.ends_clean)),
            Multistep::UniPc(settings) => Box::new(UniPc::new(settings.clone(), sigmas)),
        };
        Ok(Made { times, mixes, first_scale, solver })
    }

    fn path(&self, steps: usize) -> Result<Path> {
        let trained = self.times.trained;
        let taken = match &self.solver {
            Multistep::Euler { .. } | Multistep::EulerAncestral => self.times.even(steps),
            Multistep::Dpm { settings: dpm::Settings { least: Some(least), .. }, .. } => {
                self.times.before_end(self.sigmas.clearer(*least), steps)?
            }
            Multistep::Dpm { .. } | Multistep::UniPc(_) => self.times.before_end(trained, steps)?,
        };
        let own: Vec<f64> = taken.iter().map(|time| self.sigmas.at(*time)).collect();
        let (times, sigmas) = match self.spread(&own, steps) {
            None => (taken, own),
            Some(spread) => (spread.iter().map(|sigma| self.told(*sigma)).collect(), spread),
        };
        let times = match self.solver {
            Multistep::Euler { logarithmic: true } => sigmas.iter().map(|sigma| 0.25 * sigma.ln()).collect(),
            _ => times,
        };
        let end = match (self.sigmas.ends_clean, &self.solver, self.sigmas.spread) {
            (true, ..) => 0.,
            (false, Multistep::UniPc(_), Spread::Karras | Spread::Exponential) => sigmas.last().copied().unwrap_or(0.),
            (false, ..) => self.sigmas.least(),
        };
        Ok(Path::new(times, sigmas, end))
    }

    /// Between the sigmas of the steps that would be taken, or between all there are.
    fn spread(&self, own: &[f64], steps: usize) -> Option<Vec<f64>> {
        let (highest, lowest) = match self.solver.explodes() {
            true => (own.first().copied().unwrap_or(0.), own.last().copied().unwrap_or(0.)),
            false => (self.sigmas.most(), self.sigmas.least()),
        };
        self.sigmas.spread(highest, lowest, steps)
    }

    /// The time that a spread sigma stands for; some networks are told whole training steps only.
    fn told(&self, sigma: f64) -> f64 {
        let time = self.sigmas.time(sigma);
        let rounds = self.sigmas.spread != Spread::Exponential;
        match self.solver {
            Multistep::Euler { .. } | Multistep::EulerAncestral => time,
            Multistep::Dpm { rounds: true, .. } | Multistep::UniPc(_) if rounds => time.round_ties_even(),
            Multistep::Dpm { .. } | Multistep::UniPc(_) => time.trunc(),
        }
    }
}

impl Multistep {
    fn read(name: SchedulerName, fields: Fields<'_>) -> Result<Self> {
        match name {
            SchedulerName::EulerAncestral => Ok(Self::EulerAncestral),
            SchedulerName::UniPc => unipc::Settings::read(fields).map(Self::UniPc),
            SchedulerName::Euler => {
                fields.word("interpolation_type", &[("linear", ())])?;
                let told = fields.word("timestep_type", &[("discrete", false), ("continuous", true)])?;
                let velocity = fields.get("prediction_type").and_then(Value::as_str) == Some("v_prediction");
                Ok(Self::Euler { logarithmic: told.unwrap_or(false) && velocity })
            }
            _ => {
                let cosine = fields.get("beta_schedule").and_then(Value::as_str) == Some("squaredcos_cap_v2");
                Ok(Self::Dpm { settings: dpm::Settings::read(fields)?, rounds: !cosine })
            }
        }
    }

    /// Whether noise comes on top of a sample that stays as it is.
    fn explodes(&self) -> bool {
        matches!(self, Self::Euler { .. } | Self::EulerAncestral)
    }
}
