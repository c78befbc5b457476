//! Noise over signal along a course, for the solvers that go by it.

use super::fields::{Fields, Result};

/// How sigmas are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// As those of the training steps that are taken.
    Taken,
    /// Karras et al. 2022, <https://arxiv.org/abs/2206.00364>, equation 5.
    Karras,
    /// Evenly in their logarithms.
    Exponential,
    /// The same, told to the network as whole training steps: Lu et al. 2022, <https://arxiv.org/abs/2211.01095>.
    Lu,
}

/// A course before a solver is chosen: `[calls]` times, and sigmas with one more, the end.
pub(super) struct Path {
    pub times: Vec<f64>,
    pub sigmas: Vec<f64>,
}

impl Path {
    /// Sigmas are f32 in the reference, whatever they are computed in.
    pub fn new(times: Vec<f64>, sigmas: Vec<f64>, end: f64) -> Self {
        Self { times, sigmas: sigmas.into_iter().chain([end]).map(|sigma| f64::from(sigma as f32)).collect() }
    }
}

/// The sigmas of all training steps, and what is made of them.
#[derive(Clone, Debug)]
pub(super) struct Sigmas {
    /// `[trained]`, rising.
    table: Vec<f32>,
    pub spread: Spread,
    low: Option<f64>,
    high: Option<f64>,
    /// Whether a course ends at a clean sample, rather than at the least noise that was trained.
    pub ends_clean: bool,
}

impl Sigmas {
    pub fn plain(kept: &[f32]) -> Self {
        let table = kept.iter().map(|kept| ((1. - kept) / kept).sqrt()).collect();
        Self { table, spread: Spread::Taken, low: None, high: None, ends_clean: true }
    }

    pub fn read(fields: Fields<'_>, kept: &[f32], spreads: &[(&str, Spread)]) -> Result<Self> {
        let ends = [("zero", true), ("sigma_min", false)];
        Ok(Self {
            spread: Spread::read(fields, spreads)?,
            low: fields.optional("sigma_min", 1e-6..=1e6)?,
            high: fields.optional("sigma_max", 1e-6..=1e6)?,
            ends_clean: fields.word("final_sigmas_type", &ends)?.unwrap_or(true),
            ..Self::plain(kept)
        })
    }

    /// Of the first training step.
    pub fn least(&self) -> f64 {
        self.table.first().copied().map_or(0., f64::from)
    }

    pub fn most(&self) -> f64 {
        self.table.last().copied().map_or(0., f64::from)
    }

    /// Between the training steps around a time, in a line.
    pub fn at(&self, time: f64) -> f64 {
        let last = self.table.len().saturating_sub(1);
        let low = (time.max(0.) as usize).min(last);
        let of = |at: usize| self.table.get(at.min(last)).copied().map_or(0., f64::from);
        of(low) + (of(low + 1) - of(low)) * (time - low as f64).clamp(0., 1.)
    }

    /// `[steps]` from `highest` to `lowest`, where the config does not say other ends. `Spread::Taken` has none.
    pub fn spread(&self, highest: f64, lowest: f64, steps: usize) -> Option<Vec<f64>> {
        self.spread.between(self.high.unwrap_or(highest), self.low.unwrap_or(lowest), steps)
    }

    /// The time, between training steps, at which there is as much noise; in a line of logarithms.
    pub fn time(&self, sigma: f64) -> f64 {
        let log = sigma.max(1e-10).ln();
        let of = |at: usize| self.table.get(at).copied().map_or(0., |sigma| f64::from(sigma.ln()));
        let below = self.table.partition_point(|one| f64::from(one.ln()) <= log);
        let low = below.saturating_sub(1).min(self.table.len().saturating_sub(2));
        let weight = ((of(low) - log) / (of(low) - of(low + 1))).clamp(0., 1.);
        (1. - weight) * low as f64 + weight * (low + 1) as f64
    }

    /// How many training steps have a logarithm of signal over noise of at least `least`.
    pub fn clearer(&self, least: f64) -> usize {
        self.table.iter().filter(|sigma| -f64::from(sigma.ln()) >= least).count()
    }
}

/// What asks for each; [`Spread::Lu`] is of one class only.
pub(super) const SPREADS: [(&str, Spread); 3] = [
    ("use_karras_sigmas", Spread::Karras),
    ("use_exponential_sigmas", Spread::Exponential),
    ("use_lu_lambdas", Spread::Lu),
];

impl Spread {
    /// At most one of the known ones may be asked for.
    pub fn read(fields: Fields<'_>, known: &[(&str, Self)]) -> Result<Self> {
        fields.refuse(&["use_beta_sigmas"])?;
        let mut spread = Self::Taken;
        for (name, one) in known {
            match (fields.flag(name, false)?, spread) {
                (false, _) => {}
                (true, Self::Taken) => spread = *one,
                (true, _) => return Err(format!("`{name}` does not go with another spread of sigmas")),
            }
        }
        Ok(spread)
    }

    pub fn between(self, high: f64, low: f64, steps: usize) -> Option<Vec<f64>> {
        let part = |at: usize| at as f64 / (steps.max(2) - 1) as f64;
        let line = |from: f64, to: f64| move |at: usize| from + part(at) * (to - from);
        match self {
            Self::Taken => None,
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
