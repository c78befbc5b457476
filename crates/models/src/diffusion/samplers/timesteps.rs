//! Selects the timesteps of a run from the training steps of a model.

use super::config_fields::{ConfigFields, Result};

/// How timesteps are spaced: `timestep_spacing` in diffusers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimestepSpacing {
    Linspace,
    Leading,
    Trailing,
}

/// The number of training steps and how timesteps are selected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timesteps {
    pub train_steps: usize,
    pub spacing: TimestepSpacing,
    offset: usize,
}

impl Timesteps {
    pub fn read(fields: ConfigFields<'_>, train_steps: usize, default: TimestepSpacing) -> Result<Self> {
        let known = [
            ("linspace", TimestepSpacing::Linspace),
            ("leading", TimestepSpacing::Leading),
            ("trailing", TimestepSpacing::Trailing),
        ];
        let spacing = fields.choice("timestep_spacing", &known)?.unwrap_or(default);
        Ok(Self { train_steps, spacing, offset: fields.count("steps_offset", 0, 0..=train_steps)? })
    }

    /// # Errors
    /// There are more steps than training steps.
    pub fn check_count(self, steps: usize) -> Result<()> {
        match self.train_steps {
            train_steps if steps > train_steps => {
                Err(format!("{steps} steps are too many: the model was trained with {train_steps}"))
            }
            _ => Ok(()),
        }
    }

    /// Training steps between two steps, for solvers that use integer timesteps.
    pub fn stride(self, steps: usize) -> usize {
        self.train_steps / steps.max(1)
    }

    /// `[steps]`, decreasing. With linspace spacing, timesteps may be fractional.
    pub fn spaced(self, steps: usize) -> Vec<f64> {
        let last = (self.train_steps - 1) as f64;
        match self.spacing {
            TimestepSpacing::Linspace => {
                (0..steps).rev().map(|step| step as f64 * (last / (steps.max(2) - 1) as f64)).collect()
            }
            TimestepSpacing::Leading => {
                let stride = self.stride(steps);
                (0..steps).rev().map(|step| (step * stride + self.offset) as f64).collect()
            }
            TimestepSpacing::Trailing => self.trailing(self.train_steps, steps),
        }
    }

    /// `[steps]`, decreasing, rounded to integers.
    pub fn spaced_integers(self, steps: usize) -> Vec<f64> {
        self.spaced(steps).into_iter().map(f64::round_ties_even).collect()
    }

    /// Decreasing integers within the first `last` training steps: `[steps]`, or fewer with trailing spacing. The end
    /// of the schedule counts as one more step, but is not included.
    pub fn spaced_without_end(self, last: usize, steps: usize) -> Result<Vec<f64>> {
        let descending = (1..=steps).rev();
        Ok(match self.spacing {
            TimestepSpacing::Linspace => {
                let interval = (last.max(1) - 1) as f64 / steps as f64;
                descending.map(|step| (step as f64 * interval).round_ties_even()).collect()
            }
            TimestepSpacing::Leading => match last / (steps + 1) {
                0 => return Err(format!("{steps} steps are too many: only {last} training steps can be selected")),
                stride => descending.map(|step| (step * stride + self.offset) as f64).collect(),
            },
            TimestepSpacing::Trailing => self.trailing(last, steps),
        })
    }

    fn trailing(self, last: usize, steps: usize) -> Vec<f64> {
        let interval = self.train_steps as f64 / steps as f64;
        let timesteps = (0..steps).map(|step| (last as f64 - step as f64 * interval).round_ties_even());
        timesteps.take_while(|timestep| *timestep >= 1.).map(|timestep| timestep - 1.).collect()
    }
}
