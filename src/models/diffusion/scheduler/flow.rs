//! The sigmas of a flow: rectified flows as in Esser et al. 2024, <https://arxiv.org/abs/2403.03206>, 5.3.2.

use super::course::Made;
use super::euler::{Euler, Kind};
use super::fields::{Fields, Result};
use super::guess::Mix;
use super::plan::Plan;
use super::sigmas::{Path, SPREADS, Spread};

/// How sigmas are moved towards noise.
#[derive(Clone, Copy, Debug)]
enum Shift {
    Fixed(f64),
    /// The more tokens a picture has, the more.
    Dynamic {
        base: f64,
        slope: f64,
        exponential: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    trained: usize,
    shift: Shift,
    /// What the last sigma is stretched to.
    terminal: Option<f64>,
    spread: Spread,
    anew: bool,
}

impl Flow {
    pub fn read(fields: Fields<'_>, trained: usize) -> Result<Self> {
        fields.refuse(&["invert_sigmas"])?;
        Ok(Self {
            trained,
            shift: Shift::read(fields)?,
            terminal: fields.optional("shift_terminal", 0. ..=0.999)?.filter(|terminal| *terminal > 0.),
            spread: Spread::read(fields, &SPREADS[..2])?,
            anew: fields.flag("stochastic_sampling", false)?,
        })
    }

    pub fn way(self, plan: Plan) -> Result<Made> {
        let sigmas = self.sigmas(plan)?;
        let times = sigmas.iter().map(|sigma| f64::from(*sigma as f32 * self.trained as f32)).collect();
        let Path { times, sigmas } = Path::new(times, sigmas, 0.);
        let mixes = sigmas.iter().take(times.len()).copied().map(Mix::flow).collect();
        let kind = if self.anew { Kind::Anew } else { Kind::Flow };
        Ok(Made { times, mixes, first_scale: 1., solver: Box::new(Euler::new(kind, sigmas)) })
    }

    /// `[steps]`
    fn sigmas(self, plan: Plan) -> Result<Vec<f64>> {
        let Plan { steps, tokens, .. } = plan;
        let (high, low) = if plan.flux_sigmas { (1., 1. / steps as f64) } else { self.ends()? };
        let each = (low - high) / (steps.max(2) - 1) as f64;
        let sigmas = (0..steps).map(|at| self.shift.apply(high + at as f64 * each, tokens));
        let mut sigmas: Vec<f64> = sigmas.collect::<Result<_>>()?;
        let last = sigmas.last().copied().unwrap_or(0.);
        if let Some(terminal) = self.terminal {
            let stretch = (1. - terminal) / (1. - last);
            sigmas.iter_mut().for_each(|sigma| *sigma = 1. - (1. - *sigma) * stretch);
        }
        let (high, low) = (sigmas.first().copied().unwrap_or(1.), sigmas.last().copied().unwrap_or(1.));
        Ok(self.spread.between(high, low, steps).unwrap_or(sigmas))
    }

    /// The sigmas of the last and the first training step. A fixed shift moves them here, and all of them once more.
    fn ends(self) -> Result<(f64, f64)> {
        let moved = |sigma: f64| match self.shift {
            Shift::Fixed(_) => self.shift.apply(sigma, None).map(|sigma| f64::from(sigma as f32)),
            Shift::Dynamic { .. } => Ok(sigma),
        };
        Ok((moved(1.)?, moved(1. / self.trained as f64)?))
    }
}

impl Shift {
    fn read(fields: Fields<'_>) -> Result<Self> {
        if !fields.flag("use_dynamic_shifting", false)? {
            return Ok(Self::Fixed(fields.number("shift", 1., 1e-3..=1e3)?));
        }
        let tokens = |name, default| fields.count(name, default, 1..=1 << 30).map(|count| count as f64);
        let (few, many) = (tokens("base_image_seq_len", 256)?, tokens("max_image_seq_len", 4096)?);
        let (least, most) =
            (fields.number("base_shift", 0.5, -20. ..=20.)?, fields.number("max_shift", 1.15, -20. ..=20.)?);
        if few == many {
            return Err("`base_image_seq_len` and `max_image_seq_len` are the same".into());
        }
        let slope = (most - least) / (many - few);
        let known = [("exponential", true), ("linear", false)];
        let exponential = fields.word("time_shift_type", &known)?.unwrap_or(true);
        Ok(Self::Dynamic { base: least - slope * few, slope, exponential })
    }

    fn apply(self, sigma: f64, tokens: Option<usize>) -> Result<f64> {
        match self {
            Self::Fixed(shift) => Ok(shift * sigma / (1. + (shift - 1.) * sigma)),
            Self::Dynamic { base, slope, exponential } => {
                let tokens = tokens.ok_or("the settings ask for the size of the picture in tokens")?;
                let mu = base + slope * tokens as f64;
                let shift = if exponential { mu.exp() } else { mu };
                Ok(shift / (shift + (1. / sigma - 1.)))
            }
        }
    }
}
