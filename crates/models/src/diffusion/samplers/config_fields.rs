//! Reads the fields of a scheduler config and checks their bounds. A config is untrusted input.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// The error describes the invalid field or parameter.
pub(super) type Result<T> = std::result::Result<T, String>;

/// The fields of a scheduler config. Null is the same as missing.
#[derive(Clone, Copy)]
pub(super) struct ConfigFields<'a>(pub &'a Map<String, Value>);

impl<'a> ConfigFields<'a> {
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn flag(self, name: &str, default: bool) -> Result<bool> {
        self.get(name).map_or(Ok(default), |value| value.as_bool().ok_or_else(|| format!("`{name}` is not a boolean")))
    }

    pub fn count(self, name: &str, default: usize, bounds: RangeInclusive<usize>) -> Result<usize> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count
            .filter(|count| bounds.contains(count))
            .ok_or_else(|| format!("`{name}` is not an integer from {} to {}", bounds.start(), bounds.end()))
    }

    pub fn number(self, name: &str, default: f64, bounds: RangeInclusive<f64>) -> Result<f64> {
        self.optional(name, bounds).map(|number| number.unwrap_or(default))
    }

    /// A number, or `None` if the field is missing.
    pub fn optional(self, name: &str, bounds: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| bounds.contains(number));
        number.map(Some).ok_or_else(|| format!("`{name}` is not a number from {} to {}", bounds.start(), bounds.end()))
    }

    /// The value of a named choice; `None` if the field is missing.
    pub fn choice<T: Copy>(self, name: &str, known: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let choice = value.as_str().ok_or_else(|| format!("`{name}` is not a string"))?;
        let found = known.iter().find(|(name, _)| *name == choice).map(|(_, value)| *value);
        found.map(Some).ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            format!("`{name}` is {value}, which is not supported; supported: {}", known.join(", "))
        })
    }

    /// # Errors
    /// One of these unsupported fields is enabled.
    pub fn reject_fields(self, names: &[&str]) -> Result<()> {
        match names.iter().find(|name| self.get(name).is_some_and(|value| *value != Value::Bool(false))) {
            Some(name) => Err(format!("`{name}` is not supported")),
            None => Ok(()),
        }
    }
}
