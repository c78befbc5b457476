//! Converts a model output to a predicted clean sample and predicted noise.

use super::config_fields::{ConfigFields, Result};

/// What the model output is: `prediction_type` in diffusers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PredictionType {
    /// Noise.
    Epsilon,
    /// The clean sample.
    Sample,
    /// v-prediction: Salimans and Ho 2022, <https://arxiv.org/abs/2202.00512>, appendix D.
    Velocity,
    /// Flow matching: noise minus sample.
    Flow,
}

impl PredictionType {
    /// `sample_supported`: whether the scheduler class supports sample prediction.
    pub fn read(fields: ConfigFields<'_>, sample_supported: bool) -> Result<Self> {
        let known = [("epsilon", Self::Epsilon), ("v_prediction", Self::Velocity), ("sample", Self::Sample)];
        let known = if sample_supported { &known[..] } else { &known[..2] };
        Ok(fields.choice("prediction_type", known)?.unwrap_or(Self::Epsilon))
    }
}

/// The noise level of a sample: it is `signal` times the clean sample plus `noise` times unit noise. The input of the
/// denoiser is the sample times `input_scale`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoiseLevel {
    pub signal: f64,
    pub noise: f64,
    pub input_scale: f64,
}

impl NoiseLevel {
    /// Variance preserving: the total variance is one.
    pub fn variance_preserving(alpha_cumprod: f32) -> Self {
        let alpha = f64::from(alpha_cumprod);
        Self { signal: alpha.sqrt(), noise: (1. - alpha).sqrt(), input_scale: 1. }
    }

    /// Variance preserving, from the noise-to-signal ratio.
    pub fn from_sigma(sigma: f64) -> Self {
        let signal = 1. / (sigma * sigma + 1.).sqrt();
        Self { signal, noise: sigma * signal, input_scale: 1. }
    }

    /// Variance exploding: noise is added to the unscaled clean sample.
    pub fn variance_exploding(sigma: f64) -> Self {
        Self { signal: 1., noise: sigma, input_scale: 1. / (sigma * sigma + 1.).sqrt() }
    }

    /// Flow matching: linear interpolation between the clean sample and noise.
    pub fn flow(sigma: f64) -> Self {
        Self { signal: 1. - sigma, noise: sigma, input_scale: 1. }
    }

    /// The clean sample that a model output implies.
    pub fn predict_clean(self, prediction_type: PredictionType, model_output: f32, sample: f32) -> f32 {
        let (signal, noise, scale) = (self.signal as f32, self.noise as f32, self.input_scale as f32);
        match prediction_type {
            PredictionType::Epsilon => (sample - noise * model_output) / signal,
            PredictionType::Sample => model_output,
            PredictionType::Velocity => (scale * signal) * (scale * sample) - scale * noise * model_output,
            PredictionType::Flow => sample - noise * model_output,
        }
    }

    /// The noise that a model output implies.
    pub fn predict_noise(self, prediction_type: PredictionType, model_output: f32, sample: f32) -> f32 {
        let (signal, noise) = (self.signal as f32, self.noise as f32);
        match prediction_type {
            PredictionType::Epsilon => model_output,
            PredictionType::Sample => (sample - signal * model_output) / noise,
            PredictionType::Velocity => signal * model_output + noise * sample,
            PredictionType::Flow => sample + signal * model_output,
        }
    }
}
