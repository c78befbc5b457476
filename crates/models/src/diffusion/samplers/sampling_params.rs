//! The parameters of a sampler that the caller sets.

use super::config_fields::Result;

/// The maximum number of steps.
pub const MAX_STEPS: usize = 1000;

#[derive(Clone, Copy, Debug, Default)]
pub struct SamplingParams {
    /// The number of steps of the full schedule, 1 to [`MAX_STEPS`].
    pub steps: usize,
    /// Image-to-image strength, above 0 to 1: the fraction of steps that is run, at the end of the schedule. `None`
    /// starts from noise.
    pub strength: Option<f32>,
    /// The number of image tokens, on which some flow schedules depend.
    pub tokens: Option<usize>,
    /// Whether flow sigmas go from 1 to `1 / steps` before shifting, as in FLUX pipelines.
    pub flux_sigmas: bool,
}

impl SamplingParams {
    /// The first step to run. Like diffusers' pipelines, rounds down for flow matching and up for other models.
    pub(super) fn begin_index(self, flow: bool) -> Result<usize> {
        let steps = self.steps;
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(format!("{steps} steps are out of range: 1 to {MAX_STEPS} are allowed"));
        }
        let Some(strength) = self.strength else { return Ok(0) };
        if !(strength > 0. && strength <= 1.) {
            return Err(format!("the strength {strength} is out of range: above 0 up to 1 is allowed"));
        }
        // Rounds to the decimal number that the f32 stands for: 0.7 of 10 steps is 7.
        let run_steps = steps as f64 * (f64::from(strength) * 1e6).round() / 1e6;
        let begin = if flow { (steps as f64 - run_steps) as usize } else { steps - run_steps as usize };
        if begin < steps { Ok(begin) } else { Err(format!("a strength of {strength} runs none of {steps} steps")) }
    }
}
