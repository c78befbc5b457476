//! The numbers that sampling parameters accept, in requests and as defaults of a model.

/// The range of a sampling parameter.
#[derive(Clone, Copy, Debug)]
pub struct SamplingRange {
    /// The field of requests.
    pub field: &'static str,
    min: f32,
    max: f32,
    excludes_min: bool,
}

impl SamplingRange {
    pub const TEMPERATURE: Self = Self::within("temperature", 0.0, 2.0);
    pub const TOP_P: Self = Self::within("top_p", 0.0, 1.0);
    pub const MIN_P: Self = Self::within("min_p", 0.0, 1.0);
    pub const TYPICAL_P: Self = Self::within("typical_p", 0.0, 1.0);
    pub const FREQUENCY_PENALTY: Self = Self::within("frequency_penalty", -2.0, 2.0);
    pub const PRESENCE_PENALTY: Self = Self::within("presence_penalty", -2.0, 2.0);
    pub const REPETITION_PENALTY: Self = Self::factor("repetition_penalty", 10.0);

    const fn within(field: &'static str, min: f32, max: f32) -> Self {
        Self { field, min, max, excludes_min: false }
    }

    /// Above 0 up to `max`.
    const fn factor(field: &'static str, max: f32) -> Self {
        Self { field, min: 0.0, max, excludes_min: true }
    }

    /// The value, or what is wrong with it: a predicate without a full stop.
    pub fn check(&self, value: f32) -> Result<f32, String> {
        let Self { min, max, .. } = *self;
        match self.excludes_min {
            true if value > min && value <= max => Ok(value),
            false if value >= min && value <= max => Ok(value),
            true => Err(format!("is {value}; it must be above {min} and at most {max}")),
            false => Err(format!("is {value}; it must be from {min} to {max}")),
        }
    }
}
