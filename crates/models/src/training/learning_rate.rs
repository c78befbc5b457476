//! The schedule of the learning rate.

use std::f64::consts::PI;

/// A linear warm-up from zero, then half a cosine down to zero (Loshchilov and Hutter 2016,
/// <https://arxiv.org/abs/1608.03983>).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    pub peak: f32,
    /// Steps of the warm-up.
    pub warmup: u32,
    /// Steps in total.
    pub steps: u32,
}

impl LearningRate {
    /// The rate of a step, counted from zero.
    pub fn at(&self, step: u32) -> f32 {
        let Self { peak, warmup, steps } = *self;
        let share = if step < warmup {
            f64::from(step) / f64::from(warmup)
        } else {
            let progress = f64::from(step - warmup) / f64::from(steps.saturating_sub(warmup).max(1));
            0.5 * (1. + (PI * progress.min(1.)).cos())
        };
        (f64::from(peak) * share) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::LearningRate;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_zero() {
        let rate = LearningRate { peak: 2., warmup: 4, steps: 12 };
        let rates = [0, 1, 4, 8, 12, 20].map(|step| rate.at(step));
        assert_eq!(rates, [0., 0.5, 2., 1., 0., 0.]);
        assert_eq!(LearningRate { warmup: 0, ..rate }.at(0), 2.);
    }
}
