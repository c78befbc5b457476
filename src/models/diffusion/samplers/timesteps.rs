//! Selection of training steps.

use super::config_fields::{ConfigFields, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimestepSpacing {
    Linspace,
    Leading,
    Trailing,
}

/// The training steps and how they are selected.
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

    /// Fails if there are more steps than training steps.
    pub fn check(self, steps: usize) -> Result<()> {
        match self.train_steps {
            train_steps if steps > train_steps => {
                Err(format!("{steps} steps are too many: the model was trained with {train_steps}"))
            }
            _ => Ok(()),
        }
    }

    /// Training steps between two steps, for solvers that use integers.
    pub fn stride(self, steps: usize) -> usize {
        self.train_steps / steps.max(1)
    }

    /// `[steps]`, decreasing; the end comes after the last. With linspace they may be fractional.
    pub fn even(self, steps: usize) -> Vec<f64> {
        let last = (self.train_steps - 1) as f64;
        match self.spacing {
            TimestepSpacing::Linspace => {
                (0..steps).rev().map(|at| at as f64 * (last / (steps.max(2) - 1) as f64)).collect()
            }
            TimestepSpacing::Leading => {
                let stride = self.stride(steps);
                (0..steps).rev().map(|at| (at * stride + self.offset) as f64).collect()
            }
            TimestepSpacing::Trailing => self.trailing(self.train_steps, steps),
        }
    }

    /// `[steps]`, integers, decreasing.
    pub fn whole(self, steps: usize) -> Vec<f64> {
        self.even(steps).into_iter().map(f64::round_ties_even).collect()
    }

    /// Decreasing integers among the first `last` training steps: `[steps]`, or fewer with trailing spacing. The end
    /// counts as one more step, and is not included.
    pub fn before_end(self, last: usize, steps: usize) -> Result<Vec<f64>> {
        let upwards = (1..=steps).rev();
        Ok(match self.spacing {
            TimestepSpacing::Linspace => {
                let each = (last.max(1) - 1) as f64 / steps as f64;
                upwards.map(|at| (at as f64 * each).round_ties_even()).collect()
            }
            TimestepSpacing::Leading => match last / (steps + 1) {
                0 => return Err(format!("{steps} steps are too many: there are {last} to choose from")),
                stride => upwards.map(|at| (at * stride + self.offset) as f64).collect(),
            },
            TimestepSpacing::Trailing => self.trailing(last, steps),
        })
    }

    fn trailing(self, last: usize, steps: usize) -> Vec<f64> {
        let each = self.train_steps as f64 / steps as f64;
        let timesteps = (0..steps).map(|at| (last as f64 - at as f64 * each).round_ties_even());
        timesteps.take_while(|time| *time >= 1.).map(|time| time - 1.).collect()
    }
}
