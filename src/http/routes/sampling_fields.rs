//! Sampling fields that requests share.

use crate::engine::MAX_STOPS;
use crate::error::{Error, Result};

/// Default sampling parameters, those of llama.cpp. Small models produce nonsense if every token of the vocabulary can
/// be sampled.
pub const TEMPERATURE: f32 = 0.8;
pub const TOP_P: f32 = 0.95;
pub const TOP_K: u32 = 40;
pub const MIN_P: f32 = 0.05;

pub const MAX_TEMPERATURE: f32 = 2.0;
const MAX_STOP_BYTES: usize = 256;

pub fn number(field: &str, given: Option<f32>, default: f32, min: f32, max: f32) -> Result<f32> {
    within(field, given.unwrap_or(default), min, max)
}

/// A factor above 0 up to `max`.
pub fn positive(field: &str, given: Option<f32>, default: f32, max: f32) -> Result<f32> {
    let value = given.unwrap_or(default);
    if value > 0.0 && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be above 0 and at most {max}.")))
}

pub fn within<T: PartialOrd + Copy + std::fmt::Display>(field: &str, value: T, min: T, max: T) -> Result<T> {
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be from {min} to {max}.")))
}

/// Checks the number and the lengths of stop strings.
pub fn stop_strings(field: &str, stops: Vec<String>) -> Result<Vec<String>> {
    if stops.len() > MAX_STOPS {
        let text = format!("'{field}' has {} strings; at most {MAX_STOPS} are allowed.", stops.len());
        return Err(Error::invalid(field, text));
    }
    match stops.iter().position(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        None => Ok(stops),
        Some(index) => {
            let field = format!("{field}[{index}]");
            let message = format!("'{field}' must have from 1 to {MAX_STOP_BYTES} bytes.");
            Err(Error::invalid(field, message))
        }
    }
}
