//! Parameters that a caller sets.

use super::config_fields::Result;

/// Maximum number of steps.
pub const MAX_STEPS: usize = 1000;

#[derive(Clone, Copy, Debug, Default)]
pub struct SamplingParams {
    /// 1 to [`MAX_STEPS`]
    pub steps: usize,
    /// Image-to-image strength, above 0 to 1: the fraction of the last steps that is run. `None` starts from noise.
    pub strength: Option<f32>,
    /// Image tokens, for networks that have them; some flow schedules depend on their number.
    pub tokens: Option<usize>,
    /// Whether flow sigmas start from 1 to `1 / steps`, as FLUX pipelines do.
    pub flux_sigmas: bool,
}

impl SamplingParams {
    /// The first step to run. diffusers' pipelines round it down for flows, and up for others.
    pub(super) fn begin_index(self, flow: bool) -> Result<usize> {
        let steps = self.steps;
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(format!("{steps} steps are out of range: 1 to {MAX_STEPS} are allowed"));
        }
        let Some(strength) = self.strength else { return Ok(0) };
        if !(strength > 0. && strength <= 1.) {
            return Err(format!("the strength {strength} is out of range: above 0 up to 1 is allowed"));
        }
        // Restores the short decimal that f32 cannot hold: 0.7 of 10 steps is 7.
        let run = steps as f64 * (f64::from(strength) * 1e6).round() / 1e6;
        let begin = if flow { (steps as f64 - run) as usize } else { steps - run as usize };
        if begin < steps { Ok(begin) } else { Err(format!("a strength of {strength} runs none of {steps} steps")) }
    }
}
