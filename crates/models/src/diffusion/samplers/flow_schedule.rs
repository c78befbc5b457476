//! Noise schedules for flow matching (Esser et al. 2024, <https://arxiv.org/abs/2403.03206>, section 5.3.2).

use super::config_fields::{ConfigFields, Result};
use super::euler::{Euler, Variant};
use super::prediction::NoiseLevel;
use super::sampling_params::SamplingParams;
use super::sigma_spacing::{SIGMA_SPACINGS, SigmaSequence, SigmaSpacing};
use super::solver_trait::StepPlan;

/// Shifts sigmas towards noise.
#[derive(Clone, Copy, Debug)]
enum Shift {
    Fixed(f64),
    /// The shift depends on the number of image tokens: `intercept + slope · tokens`, or the exponential of it.
    Dynamic {
        intercept: f64,
        slope: f64,
        exponential: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FlowSchedule {
    train_steps: usize,
    shift: Shift,
    /// Sigmas are rescaled so that the last one has this value.
    shift_terminal: Option<f64>,
    spacing: SigmaSpacing,
    stochastic: bool,
}

impl FlowSchedule {
    pub fn read(fields: ConfigFields<'_>, train_steps: usize) -> Result<Self> {
        fields.reject_fields(&["invert_sigmas"])?;
        Ok(Self {
            train_steps,
            shift: Shift::read(fields)?,
            shift_terminal: fields.optional("shift_terminal", 0. ..=0.999)?.filter(|terminal| *terminal > 0.),
            spacing: SigmaSpacing::read(fields, &SIGMA_SPACINGS[..2])?,
            stochastic: fields.flag("stochastic_sampling", false)?,
        })
    }

    pub fn plan(self, params: SamplingParams) -> Result<StepPlan> {
        let sigmas = self.sigmas(params)?;
        let timesteps = sigmas.iter().map(|sigma| f64::from(*sigma as f32 * self.train_steps as f32)).collect();
        let SigmaSequence { timesteps, sigmas } = SigmaSequence::new(timesteps, sigmas, 0.);
        let levels = sigmas.iter().take(timesteps.len()).copied().map(NoiseLevel::flow).collect();
        let variant = if self.stochastic { Variant::StochasticFlow } else { Variant::Flow };
        Ok(StepPlan { timesteps, levels, init_noise_sigma: 1., solver: Box::new(Euler::new(variant, sigmas)) })
    }

    /// `[steps]`
    fn sigmas(self, params: SamplingParams) -> Result<Vec<f64>> {
        let SamplingParams { steps, tokens, .. } = params;
        let (high, low) = if params.flux_sigmas { (1., 1. / steps as f64) } else { self.sigma_range()? };
        let interval = (low - high) / (steps.max(2) - 1) as f64;
        let sigmas = (0..steps).map(|step| self.shift.apply(high + step as f64 * interval, tokens));
        let mut sigmas: Vec<f64> = sigmas.collect::<Result<_>>()?;
        let last = sigmas.last().copied().unwrap_or(0.);
        if let Some(terminal) = self.shift_terminal {
            let scale = (1. - terminal) / (1. - last);
            sigmas.iter_mut().for_each(|sigma| *sigma = 1. - (1. - *sigma) * scale);
        }
        let (high, low) = (sigmas.first().copied().unwrap_or(1.), sigmas.last().copied().unwrap_or(1.));
        Ok(self.spacing.respace(high, low, steps).unwrap_or(sigmas))
    }

    /// The highest and the lowest sigma. As in diffusers, a fixed shift is applied here, and again to every sigma
    /// later.
    fn sigma_range(self) -> Result<(f64, f64)> {
        let shifted = |sigma: f64| match self.shift {
            Shift::Fixed(_) => self.shift.apply(sigma, None).map(|sigma| f64::from(sigma as f32)),
            Shift::Dynamic { .. } => Ok(sigma),
        };
        Ok((shifted(1.)?, shifted(1. / self.train_steps as f64)?))
    }
}

impl Shift {
    fn read(fields: ConfigFields<'_>) -> Result<Self> {
        if !fields.flag("use_dynamic_shifting", false)? {
            return Ok(Self::Fixed(fields.number("shift", 1., 1e-3..=1e3)?));
        }
        let token_count = |name, default| fields.count(name, default, 1..=1 << 30).map(|count| count as f64);
        let (base_tokens, max_tokens) =
            (token_count("base_image_seq_len", 256)?, token_count("max_image_seq_len", 4096)?);
        let (base_shift, max_shift) =
            (fields.number("base_shift", 0.5, -20. ..=20.)?, fields.number("max_shift", 1.15, -20. ..=20.)?);
        if base_tokens == max_tokens {
            return Err("`base_image_seq_len` and `max_image_seq_len` are the same".into());
        }
        let slope = (max_shift - base_shift) / (max_tokens - base_tokens);
        let known = [("exponential", true), ("linear", false)];
        let exponential = fields.choice("time_shift_type", &known)?.unwrap_or(true);
        Ok(Self::Dynamic { intercept: base_shift - slope * base_tokens, slope, exponential })
    }

    fn apply(self, sigma: f64, tokens: Option<usize>) -> Result<f64> {
        match self {
            Self::Fixed(shift) => Ok(shift * sigma / (1. + (shift - 1.) * sigma)),
            Self::Dynamic { intercept, slope, exponential } => {
                let tokens = tokens.ok_or("the settings require the image size in tokens")?;
                let mu = intercept + slope * tokens as f64;
                let shift = if exponential { mu.exp() } else { mu };
                Ok(shift / (shift + (1. / sigma - 1.)))
            }
        }
    }
}
