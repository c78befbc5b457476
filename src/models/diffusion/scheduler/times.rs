//! Which of the training steps are taken.

use super::fields::{Fields, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spacing {
    Linspace,
    Leading,
    Trailing,
}

/// The training steps there are, and how they are taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub trained: usize,
    pub spacing: Spacing,
    offset: usize,
}

impl Times {
    pub fn read(fields: Fields<'_>, trained: usize, default: Spacing) -> Result<Self> {
        let known = [("linspace", Spacing::Linspace), ("leading", Spacing::Leading), ("trailing", Spacing::Trailing)];
        let spacing = fields.word("timestep_spacing", &known)?.unwrap_or(default);
        Ok(Self { trained, spacing, offset: fields.count("steps_offset", 0, 0..=trained)? })
    }

    /// An error where there are more steps than training steps to take.
    pub fn check(self, steps: usize) -> Result<()> {
        match self.trained {
            trained if steps > trained => {
                Err(format!("{steps} steps are too many: the model was trained with {trained}"))
            }
            _ => Ok(()),
        }
    }

    /// Training steps from one to the next, for solvers that go by whole ones.
    pub fn stride(self, steps: usize) -> usize {
        self.trained / steps.max(1)
    }

    /// `[steps]`, falling, to which the end comes last. Evenly spaced ones are not whole.
    pub fn even(self, steps: usize) -> Vec<f64> {
        let last = (self.trained - 1) as f64;
        match self.spacing {
            Spacing::Linspace => (0..steps).rev().map(|at| at as f64 * (last / (steps.max(2) - 1) as f64)).collect(),
            Spacing::Leading => {
                let stride = self.stride(steps);
                (0..steps).rev().map(|at| (at * stride + self.offset) as f64).collect()
            }
            Spacing::Trailing => self.trailing(self.trained, steps),
        }
    }

    /// `[steps]`, whole and falling.
    pub fn whole(self, steps: usize) -> Vec<f64> {
        self.even(steps).into_iter().map(f64::round_ties_even).collect()
    }

    /// Whole and falling, of the first `last` training steps: `[steps]` or, trailing, fewer. The end counts as one
    /// more, and is not among them.
    pub fn before_end(self, last: usize, steps: usize) -> Result<Vec<f64>> {
        let upwards = (1..=steps).rev();
        Ok(match self.spacing {
            Spacing::Linspace => {
                let each = (last.max(1) - 1) as f64 / steps as f64;
                upwards.map(|at| (at as f64 * each).round_ties_even()).collect()
            }
            Spacing::Leading => match last / (steps + 1) {
                0 => return Err(format!("{steps} steps are too many: there are {last} to take from")),
                stride => upwards.map(|at| (at * stride + self.offset) as f64).collect(),
            },
            Spacing::Trailing => self.trailing(last, steps),
        })
    }

    fn trailing(self, last: usize, steps: usize) -> Vec<f64> {
        let each = self.trained as f64 / steps as f64;
        let times = (0..steps).map(|at| (last as f64 - at as f64 * each).round_ties_even());
        times.take_while(|time| *time >= 1.).map(|time| time - 1.).collect()
    }
}
