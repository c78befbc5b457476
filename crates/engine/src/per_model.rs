//! A setting that each model can have for itself.

use std::collections::BTreeMap;

/// A value by model ID, and the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerModel<T> {
    pub usual: T,
    pub models: BTreeMap<String, T>,
}

impl<T> PerModel<T> {
    pub fn get(&self, id: &str) -> &T {
        self.models.get(id).unwrap_or(&self.usual)
    }
}

impl<T: Copy> PerModel<T> {
    pub fn of(&self, id: &str) -> T {
        *self.get(id)
    }
}

/// From values with their models; without a model, it is the default. Later values replace earlier ones.
impl<T: Default> FromIterator<(Option<String>, T)> for PerModel<T> {
    fn from_iter<I: IntoIterator<Item = (Option<String>, T)>>(values: I) -> Self {
        values.into_iter().fold(Self::default(), |mut all, (model, value)| {
            match model {
                None => all.usual = value,
                Some(model) => drop(all.models.insert(model, value)),
            }
            all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::PerModel;

    #[test]
    fn a_model_that_is_not_named_has_the_default() {
        let values: PerModel<_> = [(Some("small".to_owned()), 1), (None, 2), (None, 3)].into_iter().collect();
        assert_eq!((values.of("small"), values.of("large")), (1, 3));
    }
}
