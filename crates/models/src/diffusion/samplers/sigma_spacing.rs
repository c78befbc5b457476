//! Sigmas (noise-to-signal ratios) of a model, and their spacing.

use super::config_fields::{ConfigFields, Result};

/// How sigmas are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SigmaSpacing {
    /// The sigmas of the selected timesteps.
    FromTimesteps,
    /// Karras et al. 2022, <https://arxiv.org/abs/2206.00364>, equation 5.
    Karras,
    /// Even spacing in log sigma.
    Exponential,
    /// Even spacing in log sigma, with integer timesteps: Lu et al. 2022, <https://arxiv.org/abs/2211.01095>.
    Lu,
}

/// The timesteps and sigmas of a run.
pub(super) struct SigmaSequence {
    /// `[calls]`
    pub timesteps: Vec<f64>,
    /// `[calls + 1]`
    pub sigmas: Vec<f64>,
}

impl SigmaSequence {
    /// Rounds sigmas to f32, as the reference does.
    pub fn new(timesteps: Vec<f64>, sigmas: Vec<f64>, final_sigma: f64) -> Self {
        Self {
            timesteps,
            sigmas: sigmas.into_iter().chain([final_sigma]).map(|sigma| f64::from(sigma as f32)).collect(),
        }
    }
}

/// The sigmas of all training steps, and the settings for respacing.
#[derive(Clone, Debug)]
pub(super) struct SigmaTable {
    /// `[train_steps]`, increasing.
    sigmas: Vec<f32>,
    pub spacing: SigmaSpacing,
    sigma_min: Option<f64>,
    sigma_max: Option<f64>,
    /// Whether a run ends with a sigma of zero, rather than with the smallest sigma of the model.
    pub final_sigma_zero: bool,
}

impl SigmaTable {
    pub fn from_alphas(alphas_cumprod: &[f32]) -> Self {
        let sigmas = alphas_cumprod.iter().map(|alpha_cumprod| ((1. - alpha_cumprod) / alpha_cumprod).sqrt()).collect();
        Self { sigmas, spacing: SigmaSpacing::FromTimesteps, sigma_min: None, sigma_max: None, final_sigma_zero: true }
    }

    pub fn read(fields: ConfigFields<'_>, alphas_cumprod: &[f32], spacings: &[(&str, SigmaSpacing)]) -> Result<Self> {
        let final_sigmas = [("zero", true), ("sigma_min", false)];
        Ok(Self {
            spacing: SigmaSpacing::read(fields, spacings)?,
            sigma_min: fields.optional("sigma_min", 1e-6..=1e6)?,
            sigma_max: fields.optional("sigma_max", 1e-6..=1e6)?,
            final_sigma_zero: fields.choice("final_sigmas_type", &final_sigmas)?.unwrap_or(true),
            ..Self::from_alphas(alphas_cumprod)
        })
    }

    /// The smallest sigma.
    pub fn min(&self) -> f64 {
        self.sigmas.first().copied().map_or(0., f64::from)
    }

    /// The largest sigma.
    pub fn max(&self) -> f64 {
        self.sigmas.last().copied().map_or(0., f64::from)
    }

    /// The sigma of a timestep, linearly interpolated.
    pub fn sigma_at(&self, timestep: f64) -> f64 {
        let last = self.sigmas.len().saturating_sub(1);
        let low = (timestep.max(0.) as usize).min(last);
        let sigma = |index: usize| self.sigmas.get(index.min(last)).copied().map_or(0., f64::from);
        sigma(low) + (sigma(low + 1) - sigma(low)) * (timestep - low as f64).clamp(0., 1.)
    }

    /// Sigmas from `highest` to `lowest`, `[steps]`; the config may set other ends. `None` for
    /// [`SigmaSpacing::FromTimesteps`].
    pub fn respace(&self, highest: f64, lowest: f64, steps: usize) -> Option<Vec<f64>> {
        self.spacing.respace(self.sigma_max.unwrap_or(highest), self.sigma_min.unwrap_or(lowest), steps)
    }

    /// The timestep of a sigma, interpolated in log sigma.
    pub fn timestep_of(&self, sigma: f64) -> f64 {
        let log_sigma = sigma.max(1e-10).ln();
        let log_sigma_at = |index: usize| self.sigmas.get(index).copied().map_or(0., |sigma| f64::from(sigma.ln()));
        let below = self.sigmas.partition_point(|sigma| f64::from(sigma.ln()) <= log_sigma);
        let low = below.saturating_sub(1).min(self.sigmas.len().saturating_sub(2));
        let (log_low, log_high) = (log_sigma_at(low), log_sigma_at(low + 1));
        let weight = ((log_low - log_sigma) / (log_low - log_high)).clamp(0., 1.);
        (1. - weight) * low as f64 + weight * (low + 1) as f64
    }

    /// The number of training steps whose lambda (half of the log signal-to-noise ratio) is at least `min_lambda`.
    pub fn steps_above_lambda(&self, min_lambda: f64) -> usize {
        self.sigmas.iter().filter(|sigma| -f64::from(sigma.ln()) >= min_lambda).count()
    }
}

/// The config fields that enable a spacing. Only DPM-Solver++ supports [`SigmaSpacing::Lu`].
pub(super) const SIGMA_SPACINGS: [(&str, SigmaSpacing); 3] = [
    ("use_karras_sigmas", SigmaSpacing::Karras),
    ("use_exponential_sigmas", SigmaSpacing::Exponential),
    ("use_lu_lambdas", SigmaSpacing::Lu),
];

impl SigmaSpacing {
    /// `supported`: the spacings of the scheduler class.
    ///
    /// # Errors
    /// More than one spacing is enabled.
    pub fn read(fields: ConfigFields<'_>, supported: &[(&str, Self)]) -> Result<Self> {
        fields.reject_fields(&["use_beta_sigmas"])?;
        let mut spacing = Self::FromTimesteps;
        for (name, enabled) in supported {
            match (fields.flag(name, false)?, spacing) {
                (false, _) => {}
                (true, Self::FromTimesteps) => spacing = *enabled,
                (true, _) => return Err(format!("`{name}` cannot be combined with another sigma spacing")),
            }
        }
        Ok(spacing)
    }

    /// Sigmas from `highest` to `lowest`, `[steps]`; `None` for [`Self::FromTimesteps`].
    pub fn respace(self, highest: f64, lowest: f64, steps: usize) -> Option<Vec<f64>> {
        let fraction = |step: usize| step as f64 / (steps.max(2) - 1) as f64;
        let linspace = |first: f64, last: f64| move |step: usize| first + fraction(step) * (last - first);
        match self {
            Self::FromTimesteps => None,
            Self::Karras => {
                let root = linspace(highest.powf(1. / 7.), lowest.powf(1. / 7.));
                Some((0..steps).map(|step| root(step).powi(7)).collect())
            }
            Self::Exponential | Self::Lu => {
                let log_sigma = linspace(highest.ln(), lowest.ln());
                Some((0..steps).map(|step| log_sigma(step).exp()).collect())
            }
        }
    }
}
