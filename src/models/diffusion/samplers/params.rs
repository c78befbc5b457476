//! What a caller asks of a course.

use super::config_fields::Result;

/// The most steps of a course.
pub const MAX_STEPS: usize = 1000;

#[derive(Clone, Copy, Debug, Default)]
pub struct SamplingParams {
    /// 1 to [`MAX_STEPS`]
    pub steps: usize,
    /// Of a picture to begin with: how much of it is painted anew, above 0 to 1, and so how many of the last steps
    /// are taken. `None` begins with noise.
    pub strength: Option<f32>,
    /// Tokens of the picture, where the network has them: some flows depend on how many there are.
    pub tokens: Option<usize>,
    /// Whether a flow begins with sigmas from 1 to `1 / steps`, as FLUX pipelines do.
    pub flux_sigmas: bool,
}

impl SamplingParams {
    /// The step that a course begins with. The pipelines of diffusers round it down for flows, and up for others.
    pub(super) fn begin_index(self, flow: bool) -> Result<usize> {
        let steps = self.steps;
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(format!("{steps} steps are not 1 to {MAX_STEPS}"));
        }
        let Some(strength) = self.strength else { return Ok(0) };
        if !(strength > 0. && strength <= 1.) {
            return Err(format!("the strength {strength} is not above 0 and up to 1"));
        }
        // What was meant by a short decimal that f32 does not hold: 0.7 of 10 steps are 7.
        let anew = steps as f64 * (f64::from(strength) * 1e6).round() / 1e6;
        let begin = if flow { (steps as f64 - anew) as usize } else { steps - anew as usize };
        if begin < steps { Ok(begin) } else { Err(format!("a strength of {strength} leaves none of {steps} steps")) }
    }
}
