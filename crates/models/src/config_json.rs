//! Typed access to a `config.json`. A `null` counts as absent; a value of the wrong type is an error.

use serde_json::Value;

use super::error::{Result, reject_config};

/// An object of the file, and its path for error messages.
#[derive(Clone, Copy)]
pub struct ConfigJson<'a> {
    pub value: &'a Value,
    pub path: &'a str,
}

impl<'a> ConfigJson<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    fn reject<T>(&self, key: &str, expected: &str) -> Result<T> {
        let value = self.value.get(key).unwrap_or(&Value::Null);
        reject_config(format!("{}{key} is {value}, it must be {expected}", self.path))
    }

    /// An optional integer from 1 to `max`.
    pub fn integer(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => self.reject(key, &format!("a number from 1 to {max}")),
        }
    }

    /// An optional integer up to `max`; zero if it is absent.
    pub fn count(&self, key: &str, max: usize) -> Result<usize> {
        let Some(value) = self.get(key) else { return Ok(0) };
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) if number <= max => Ok(number),
            _ => self.reject(key, &format!("a number up to {max}")),
        }
    }

    /// An optional integer with a default.
    pub fn integer_or(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        Ok(self.integer(key, max)?.unwrap_or(default))
    }

    /// A required integer from 1 to `max`.
    pub fn required(&self, key: &str, max: usize) -> Result<usize> {
        match self.integer(key, max)? {
            Some(number) => Ok(number),
            None => reject_config(format!("{}{key} is missing", self.path)),
        }
    }

    /// An optional positive number.
    pub fn float(&self, key: &str) -> Result<Option<f32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32) {
            Some(number) if number.is_finite() && number > 0. => Ok(Some(number)),
            _ => self.reject(key, "a positive number"),
        }
    }

    pub fn required_float(&self, key: &str) -> Result<f32> {
        match self.float(key)? {
            Some(number) => Ok(number),
            None => reject_config(format!("{}{key} is missing", self.path)),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => self.reject(key, "true or false"),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => self.reject(key, "a string"),
        }
    }

    pub fn list<T>(&self, key: &str, item: impl Fn(&'a Value) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_array().and_then(|items| items.iter().map(item).collect()) {
            Some(items) => Ok(Some(items)),
            None => self.reject(key, "a list of the right type"),
        }
    }

    /// An object inside this one.
    pub fn object(&self, key: &str, path: &'a str) -> Result<Option<ConfigJson<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if value.is_object() => Ok(Some(ConfigJson { value, path })),
            Some(_) => self.reject(key, "an object"),
        }
    }
}
