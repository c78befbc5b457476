//! Typed access to the metadata keys of an architecture, such as `llama.block_count`.

use super::value::Metadata;
use crate::error::{ModelError, reject_config};

/// The metadata under an architecture's prefix. Keys are passed without the prefix.
pub struct ArchitectureMetadata<'a> {
    pub metadata: &'a Metadata,
    pub architecture: &'a str,
}

impl ArchitectureMetadata<'_> {
    /// The full key.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn integer(&self, key: &str) -> Option<u64> {
        self.metadata.integer(&self.key(key))
    }

    pub fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.key(key)).is_some()
    }

    /// A required integer from 1 to `max`.
    pub fn required(&self, key: &str, max: usize) -> Result<usize, ModelError> {
        if !self.has(key) {
            return reject_config(format!("{} is missing", self.key(key)));
        }
        self.optional(key, 0, max)
    }

    /// An optional integer from 1 to `max`.
    pub fn optional(&self, key: &str, default: usize, max: usize) -> Result<usize, ModelError> {
        let name = self.key(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(default) };
        match self.integer(key).and_then(|number| usize::try_from(number).ok()) {
            Some(number) if (1..=max).contains(&number) => Ok(number),
            _ => reject_config(format!("{name} is {value:?}, it must be a number from 1 to {max}")),
        }
    }

    pub fn float(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        Ok(self.optional_float(key)?.unwrap_or(default))
    }

    /// An optional positive number.
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

    /// Like [`Self::optional_float`]; zero means that the value is absent.
    pub fn nonzero_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        if self.metadata.float(&self.key(key)) == Some(0.) { Ok(None) } else { self.optional_float(key) }
    }
}
