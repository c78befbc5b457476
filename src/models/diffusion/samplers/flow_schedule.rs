//! Sigmas for flow matching: rectified flows as in Esser et al. 2024, <https://arxiv.org/abs/2403.03206>, 5.3.2.

use super::config_fields::{ConfigFields, Result};
use super::euler::{Euler, Variant};
use super::params::SamplingParams;
use super::prediction::NoiseLevel;
use super::sigmas::{SIGMA_SPACINGS, SigmaPath, SigmaSpacing};
use super::solver::StepPlan;

/// How sigmas are shifted towards noise.
#[derive(Clone, Copy, Debug)]
enum Shift {
    Fixed(f64),
    /// Depends on the number of image tokens.
    Dynamic {
        base: f64,
        slope: f64,
        exponential: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FlowSchedule {
    train_steps: usize,
    shift: Shift,
    /// The last sigma is stretched to this value.
    terminal: Option<f64>,
    spacing: SigmaSpacing,
    stochastic: bool,
}

impl FlowSchedule {
    pub fn read(fields: ConfigFields<'_>, train_steps: usize) -> Result<Self> {
        fields.reject_field(&["invert_sigmas"])?;
        Ok(Self {
            train_steps,
            shift: Shift::read(fields)?,
            terminal: fields.optional("shift_terminal", 0. ..=0.999)?.filter(|terminal| *terminal > 0.),
            spacing: SigmaSpacing::read(fields, &SIGMA_SPACINGS[..2])?,
            stochastic: fields.flag("stochastic_sampling", false)?,
        })
    }

    pub fn plan(self, params: SamplingParams) -> Result<StepPlan> {
        let sigmas = self.sigmas(params)?;
        let timesteps = sigmas.iter().map(|sigma| f64::from(*sigma as f32 * self.train_steps as f32)).collect();
        let SigmaPath { timesteps, sigmas } = SigmaPath::new(timesteps, sigmas, 0.);
        let levels = sigmas.iter().take(timesteps.len()).copied().map(NoiseLevel::flow).collect();
        let variant = if self.stochastic { Variant::Stochastic } else { Variant::Flow };
        Ok(StepPlan { timesteps, levels, init_noise_sigma: 1., solver: Box::new(Euler::new(variant, sigmas)) })
    }

    /// `[steps]`
    fn sigmas(self, params: SamplingParams) -> Result<Vec<f64>> {
        let SamplingParams { steps, tokens, .. } = params;
        let (high, low) = if params.flux_sigmas { (1., 1. / steps as f64) } else { self.range()? };
        let each = (low - high) / (steps.max(2) - 1) as f64;
        let sigmas = (0..steps).map(|at| self.shift.apply(high + at as f64 * each, tokens));
        let mut sigmas: Vec<f64> = sigmas.collect::<Result<_>>()?;
        let last = sigmas.last().copied().unwrap_or(0.);
        if let Some(terminal) = self.terminal {
            let stretch = (1. - terminal) / (1. - last);
            sigmas.iter_mut().for_each(|sigma| *sigma = 1. - (1. - *sigma) * stretch);
        }
        let (high, low) = (sigmas.first().copied().unwrap_or(1.), sigmas.last().copied().unwrap_or(1.));
        Ok(self.spacing.between(high, low, steps).unwrap_or(sigmas))
    }

    /// The sigmas of the last and the first training step. A fixed shift is applied here, and to every sigma again
    /// later.
    fn range(self) -> Result<(f64, f64)> {
        let moved = |sigma: f64| match self.shift {
            Shift::Fixed(_) => self.shift.apply(sigma, None).map(|sigma| f64::from(sigma as f32)),
            Shift::Dynamic { .. } => Ok(sigma),
        };
        Ok((moved(1.)?, moved(1. / self.train_steps as f64)?))
    }
}

impl Shift {
    fn read(fields: ConfigFields<'_>) -> Result<Self> {
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
        let exponential = fields.choice("time_shift_type", &known)?.unwrap_or(true);
        Ok(Self::Dynamic { base: least - slope * few, slope, exponential })
    }

    fn apply(self, sigma: f64, tokens: Option<usize>) -> Result<f64> {
        match self {
            Self::Fixed(shift) => Ok(shift * sigma / (1. + (shift - 1.) * sigma)),
            Self::Dynamic { base, slope, exponential } => {
                let tokens = tokens.ok_or("the settings require the image size in tokens")?;
                let mu = base + slope * tokens as f64;
                let shift = if exponential { mu.exp() } else { mu };
                Ok(shift / (shift + (1. / sigma - 1.)))
            }
        }
    }
}
