//! Sigmas (noise-to-signal ratios) of a schedule.

use super::config_fields::{ConfigFields, Result};

/// How sigmas are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SigmaSpacing {
    /// The sigmas of the chosen training steps.
    FromTimesteps,
    /// Karras et al. 2022, <https://arxiv.org/abs/2206.00364>, equation 5.
    Karras,
    /// Evenly in log sigma.
    Exponential,
    /// The same, with integer timesteps: Lu et al. 2022, <https://arxiv.org/abs/2211.01095>.
    Lu,
}

/// Timesteps, `[calls]`, and sigmas, `[calls + 1]`, before a solver is chosen.
pub(super) struct SigmaPath {
    pub timesteps: Vec<f64>,
    pub sigmas: Vec<f64>,
}

impl SigmaPath {
    /// Sigmas are f32 in the reference, whatever precision they are computed in.
    pub fn new(timesteps: Vec<f64>, sigmas: Vec<f64>, end: f64) -> Self {
        Self { timesteps, sigmas: sigmas.into_iter().chain([end]).map(|sigma| f64::from(sigma as f32)).collect() }
    }
}

/// The sigmas of all training steps, with settings for respacing.
#[derive(Clone, Debug)]
pub(super) struct SigmaTable {
    /// `[train_steps]`, increasing.
    table: Vec<f32>,
    pub spacing: SigmaSpacing,
    low: Option<f64>,
    high: Option<f64>,
    /// Whether a run ends at a clean sample, rather than at the smallest trained sigma.
    pub final_sigma_zero: bool,
}

impl SigmaTable {
    pub fn plain(alphas_cumprod: &[f32]) -> Self {
        let table = alphas_cumprod.iter().map(|alpha| ((1. - alpha) / alpha).sqrt()).collect();
        Self { table, spacing: SigmaSpacing::FromTimesteps, low: None, high: None, final_sigma_zero: true }
    }

    pub fn read(fields: ConfigFields<'_>, alphas_cumprod: &[f32], spacings: &[(&str, SigmaSpacing)]) -> Result<Self> {
        let ends = [("zero", true), ("sigma_min", false)];
        Ok(Self {
            spacing: SigmaSpacing::read(fields, spacings)?,
            low: fields.optional("sigma_min", 1e-6..=1e6)?,
            high: fields.optional("sigma_max", 1e-6..=1e6)?,
            final_sigma_zero: fields.choice("final_sigmas_type", &ends)?.unwrap_or(true),
            ..Self::plain(alphas_cumprod)
        })
    }

    /// The smallest sigma.
    pub fn min(&self) -> f64 {
        self.table.first().copied().map_or(0., f64::from)
    }

    pub fn max(&self) -> f64 {
        self.table.last().copied().map_or(0., f64::from)
    }

    /// Sigma at a timestep, linearly interpolated.
    pub fn at(&self, time: f64) -> f64 {
        let last = self.table.len().saturating_sub(1);
        let low = (time.max(0.) as usize).min(last);
        let of = |at: usize| self.table.get(at.min(last)).copied().map_or(0., f64::from);
        of(low) + (of(low + 1) - of(low)) * (time - low as f64).clamp(0., 1.)
    }

    /// `[steps]` from `highest` to `lowest`, unless the config sets other ends; `None` for
    /// [`SigmaSpacing::FromTimesteps`].
    pub fn spaced(&self, highest: f64, lowest: f64, steps: usize) -> Option<Vec<f64>> {
        self.spacing.between(self.high.unwrap_or(highest), self.low.unwrap_or(lowest), steps)
    }

    /// The timestep of a sigma, interpolated in log sigma.
    pub fn timestep_of(&self, sigma: f64) -> f64 {
        let log = sigma.max(1e-10).ln();
        let of = |at: usize| self.table.get(at).copied().map_or(0., |sigma| f64::from(sigma.ln()));
        let below = self.table.partition_point(|one| f64::from(one.ln()) <= log);
        let low = below.saturating_sub(1).min(self.table.len().saturating_sub(2));
        let weight = ((of(low) - log) / (of(low) - of(low + 1))).clamp(0., 1.);
        (1. - weight) * low as f64 + weight * (low + 1) as f64
    }

    /// How many training steps have a log signal-to-noise ratio of at least `least`.
    pub fn steps_above_log_snr(&self, least: f64) -> usize {
        self.table.iter().filter(|sigma| -f64::from(sigma.ln()) >= least).count()
    }
}

/// The field that enables each; only one class has [`SigmaSpacing::Lu`].
pub(super) const SIGMA_SPACINGS: [(&str, SigmaSpacing); 3] = [
    ("use_karras_sigmas", SigmaSpacing::Karras),
    ("use_exponential_sigmas", SigmaSpacing::Exponential),
    ("use_lu_lambdas", SigmaSpacing::Lu),
];

impl SigmaSpacing {
    /// At most one of `known` may be enabled.
    pub fn read(fields: ConfigFields<'_>, known: &[(&str, Self)]) -> Result<Self> {
        fields.reject_field(&["use_beta_sigmas"])?;
        let mut spacing = Self::FromTimesteps;
        for (name, one) in known {
            match (fields.flag(name, false)?, spacing) {
                (false, _) => {}
                (true, Self::FromTimesteps) => spacing = *one,
                (true, _) => return Err(format!("`{name}` cannot be combined with another sigma spacing")),
            }
        }
        Ok(spacing)
    }

    pub fn between(self, high: f64, low: f64, steps: usize) -> Option<Vec<f64>> {
        let part = |at: usize| at as f64 / (steps.max(2) - 1) as f64;
        let line = |from: f64, to: f64| move |at: usize| from + part(at) * (to - from);
        match self {
            Self::FromTimesteps => None,
            Self::Karras => {
                let root = line(high.powf(1. / 7.), low.powf(1. / 7.));
                Some((0..steps).map(|at| root(at).powi(7)).collect())
            }
            Self::Exponential | Self::Lu => {
                let log = line(high.ln(), low.ln());
                Some((0..steps).map(|at| log(at).exp()).collect())
            }
        }
    }
}
