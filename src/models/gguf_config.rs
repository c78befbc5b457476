//! Metadata under the architecture's prefix.

use super::error::{ModelError, reject_config};
use super::gguf::Metadata;

pub struct GgufConfig<'a> {
    pub metadata: &'a Metadata,
    pub name: &'a str,
}

impl GgufConfig<'_> {
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub fn integer(&self, key: &str) -> Option<u64> {
        self.metadata.integer(&self.key(key))
    }

    pub fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.key(key)).is_some()
    }

    pub fn required(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        if !self.has(key) {
            return reject_config(format!("{} is missing", self.key(key)));
        }
        self.optional(key, 0, most)
    }

    pub fn optional(&self, key: &str, otherwise: usize, most: usize) -> Result<usize, ModelError> {
        let name = self.key(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(otherwise) };
        match self.integer(key).and_then(|number| usize::try_from(number).ok()) {
            Some(number) if (1..=most).contains(&number) => Ok(number),
            _ => reject_config(format!("{name} is {value:?}, it must be a number from 1 to {most}")),
        }
    }

    pub fn float(&self, key: &str, otherwise: f32) -> Result<f32, ModelError> {
        Ok(self.optional_float(key)?.unwrap_or(otherwise))
    }

    pub fn optional_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        if !self.has(key) {
            return Ok(None);
        }
        let name = self.key(key);
        match self.metadata.float(&name).map(|number| number as f32) {
            Some(number) if number.is_finite() && number > 0. => Ok(Some(number)),
            _ => reject_config(format!("{name} must be a positive number")),
        }
    }

    /// Like [`Self::optional_float`], where zero stands for none.
    pub fn cap(&self, key: &str) -> Result<Option<f32>, ModelError> {
        if self.metadata.float(&self.key(key)) == Some(0.) { Ok(None) } else { self.optional_float(key) }
    }
}
