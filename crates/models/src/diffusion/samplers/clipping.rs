//! Clipping and dynamic thresholding of predicted clean samples.

use super::config_fields::{ConfigFields, Result};

/// Limits the values of predicted clean samples.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clipping {
    None,
    /// Clips to minus and plus this value.
    Clip(f32),
    /// Dynamic thresholding (Saharia et al. 2022, <https://arxiv.org/abs/2205.11487>, section 2.3): clips at a quantile
    /// of absolute values, at most `max`, and rescales to at most one.
    DynamicThreshold {
        quantile: f64,
        max: f32,
    },
}

impl Clipping {
    /// `default`: whether the scheduler class clips by default; `None` if it does not support clipping.
    pub fn read(fields: ConfigFields<'_>, default: Option<bool>) -> Result<Self> {
        if fields.flag("thresholding", false)? {
            let quantile = fields.number("dynamic_thresholding_ratio", 0.995, 0. ..=1.)?;
            let max = fields.number("sample_max_value", 1., 1e-6..=1e6)? as f32;
            return Ok(Self::DynamicThreshold { quantile, max });
        }
        match default {
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
            Self::DynamicThreshold { quantile, max } => {
                let limit = abs_quantile(clean, quantile).max(1.).min(max);
                clean.iter_mut().for_each(|x| *x = x.clamp(-limit, limit) / limit);
            }
        }
    }
}

/// A quantile of absolute values with linear interpolation; zero for no values.
fn abs_quantile(values: &[f32], quantile: f64) -> f32 {
    let mut magnitudes: Vec<f32> = values.iter().map(|x| x.abs()).collect();
    let rank = quantile * magnitudes.len().saturating_sub(1) as f64;
    if magnitudes.is_empty() {
        return 0.;
    }
    let (_, low, above) = magnitudes.select_nth_unstable_by(rank as usize, f32::total_cmp);
    let high = above.iter().copied().min_by(f32::total_cmp).unwrap_or(*low);
    *low + (high - *low) * rank.fract() as f32
}
