//! How much work is spent on an image.

/// Low quality takes at least this many steps, or the model's default if that is less.
const MIN_LOW_STEPS: usize = 8;

/// How much work is spent on an image, if its number of steps is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quality {
    #[default]
    Auto,
    Low,
    Medium,
    High,
}

impl Quality {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// The number of steps, given a model's default.
    pub(super) fn steps(self, default: usize) -> usize {
        match self {
            Self::Low => default.min((default / 2).max(MIN_LOW_STEPS)),
            Self::Auto | Self::Medium | Self::High => default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Quality;

    #[test]
    fn low_quality_halves_the_steps_of_models_that_take_many() {
        for (default, low) in [(50, 25), (20, 10), (12, 8), (4, 4)] {
            assert_eq!(Quality::Low.steps(default), low);
            assert!(
                [Quality::Auto, Quality::Medium, Quality::High].iter().all(|quality| quality.steps(default) == default)
            );
        }
    }
}
