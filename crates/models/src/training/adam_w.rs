//! AdamW (Loshchilov and Hutter 2017, <https://arxiv.org/abs/1711.05101>), and the clipping of gradients.

const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-8;
/// Parameters that are changed in less than a millisecond.
pub(super) const PART: usize = 128 << 10;

/// The state of the optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Steps that were taken.
    pub steps: u32,
    /// Moving averages of the gradients.
    pub means: Vec<f32>,
    /// Moving averages of their squares.
    pub squares: Vec<f32>,
}

impl AdamW {
    /// The state before the first step, for this number of parameters.
    pub fn new(parameters: usize) -> Self {
        Self { steps: 0, means: vec![0.; parameters], squares: vec![0.; parameters] }
    }

    /// Takes a step, and calls a function after each part of it.
    pub(super) fn step(
        &mut self,
        parameters: &mut [f32],
        gradient: &[f32],
        [learning_rate, weight_decay]: [f32; 2],
        after_part: &mut dyn FnMut(),
    ) {
        self.steps += 1;
        let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let step_size = f64::from(learning_rate) / (1. - f64::from(BETA_1).powi(steps));
        let correction = (1. - f64::from(BETA_2).powi(steps)).sqrt();
        let (step_size, correction, decay) = (step_size as f32, correction as f32, 1. - learning_rate * weight_decay);
        let moments = self.means.chunks_mut(PART).zip(self.squares.chunks_mut(PART));
        for ((parameters, gradient), (means, squares)) in
            parameters.chunks_mut(PART).zip(gradient.chunks(PART)).zip(moments)
        {
            let moments = means.iter_mut().zip(squares);
            for ((parameter, gradient), (mean, square)) in parameters.iter_mut().zip(gradient).zip(moments) {
                *mean += (gradient - *mean) * (1. - BETA_1);
                *square = *square * BETA_2 + gradient * gradient * (1. - BETA_2);
                *parameter = *parameter * decay - step_size * *mean / (square.sqrt() / correction + EPSILON);
            }
            after_part();
        }
    }
}

pub(super) fn squared_norm(gradient: &[f32]) -> f64 {
    gradient.iter().map(|value| f64::from(*value).powi(2)).sum()
}

/// The factor that scales a gradient of this norm to at most `max`.
pub(super) fn clip_factor(norm: f32, max: f32) -> f32 {
    // The small addend is that of PyTorch.
    (max / (norm + 1e-6)).min(1.)
}
