//! From a model output to the clean sample and the noise.

use super::config_fields::{ConfigFields, Result};

/// What a network predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prediction {
    Epsilon,
    Sample,
    /// Salimans and Ho 2022, <https://arxiv.org/abs/2202.00512>, appendix D.
    Velocity,
    /// Flow matching: noise minus sample.
    Flow,
}

impl Prediction {
    pub fn read(fields: ConfigFields<'_>, samples: bool) -> Result<Self> {
        let known = [("epsilon", Self::Epsilon), ("v_prediction", Self::Velocity), ("sample", Self::Sample)];
        let known = if samples { &known[..] } else { &known[..2] };
        Ok(fields.choice("prediction_type", known)?.unwrap_or(Self::Epsilon))
    }
}

/// The composition of a sample at a step: `signal` times the clean sample plus `noise` times noise. The network takes
/// the sample times `input_scale`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoiseLevel {
    pub signal: f64,
    pub noise: f64,
    pub input_scale: f64,
}

impl NoiseLevel {
    /// Variance preserving: the total variance stays one.
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
    pub fn predict_clean(self, prediction: Prediction, model_output: f32, sample: f32) -> f32 {
        let (signal, noise, scale) = (self.signal as f32, self.noise as f32, self.input_scale as f32);
        match prediction {
            Prediction::Epsilon => (sample - noise * model_output) / signal,
            Prediction::Sample => model_output,
            Prediction::Velocity => (scale * signal) * (scale * sample) - scale * noise * model_output,
            Prediction::Flow => sample - noise * model_output,
        }
    }

    /// The noise that a model output implies.
    pub fn predict_noise(self, prediction: Prediction, model_output: f32, sample: f32) -> f32 {
        let (signal, noise) = (self.signal as f32, self.noise as f32);
        match prediction {
            Prediction::Epsilon => model_output,
            Prediction::Sample => (sample - signal * model_output) / noise,
            Prediction::Velocity => signal * model_output + noise * sample,
            Prediction::Flow => sample + signal * model_output,
        }
    }
}

/// How predicted clean samples are limited.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clipping {
    None,
    Clip(f32),
    /// Dynamic thresholding (Saharia et al. 2022, <https://arxiv.org/abs/2205.11487>, 2.3): clips at a quantile and
    /// rescales.
    Quantile {
        ratio: f64,
        most: f32,
    },
}

impl Clipping {
    /// `clips`: whether the class clips by default; `None` where it cannot clip.
    pub fn read(fields: ConfigFields<'_>, clips: Option<bool>) -> Result<Self> {
        if fields.flag("thresholding", false)? {
            let ratio = fields.number("dynamic_thresholding_ratio", 0.995, 0. ..=1.)?;
            return Ok(Self::Quantile { ratio, most: fields.number("sample_max_value", 1., 1e-6..=1e6)? as f32 });
        }
        match clips {
            Some(default) if fields.flag("clip_sample", default)? => {
                Ok(Self::Clip(fields.number("clip_sample_range", 1., 0. ..=1e6)? as f32))
            }
            _ => Ok(Self::None),
        }
    }

    pub fn apply(self, clean: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Clip(range) => clean.iter_mut().for_each(|x| *x = x.clamp(-range, range)),
            Self::Quantile { ratio, most } => {
                let limit = quantile(clean, ratio).max(1.).min(most);
                clean.iter_mut().for_each(|x| *x = x.clamp(-limit, limit) / limit);
            }
        }
    }
}

/// Quantile of absolute values with linear interpolation; zero for no values.
fn quantile(values: &[f32], ratio: f64) -> f32 {
    let mut sizes: Vec<f32> = values.iter().map(|x| x.abs()).collect();
    let place = ratio * sizes.len().saturating_sub(1) as f64;
    if sizes.is_empty() {
        return 0.;
    }
    let (_, low, above) = sizes.select_nth_unstable_by(place as usize, f32::total_cmp);
    let high = above.iter().copied().min_by(f32::total_cmp).unwrap_or(*low);
    *low + (high - *low) * place.fract() as f32
}
