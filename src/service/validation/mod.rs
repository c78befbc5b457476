//! Validation of single fields, and in modules that of JSON in the form of messages and tools. Each error names the field and the
//! valid values.

pub mod json_fields;
pub mod message_validation;
pub mod tool_definitions;

use std::time::Duration;

use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};

const MAX_METADATA_BYTES: usize = 16 << 10;
const MAX_MODELS: usize = 100;
const MAX_GRACE_SECONDS: i64 = 2_592_000;

/// A human-readable label of 1 to `most` characters.
fn label(param: &str, text: &str, max: usize) -> Result<()> {
    let length = text.chars().count();
    if length == 0 || length > max {
        return Err(Error::invalid(param, format!("'{param}' has {length} characters; it must have 1 to {max}.")));
    }
    if text.trim().is_empty() {
        return Err(Error::invalid(param, format!("'{param}' is blank; it must have a visible character.")));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(
            param,
            format!("'{param}' contains a control character, such as a line break; remove it."),
        ));
    }
    Ok(())
}

pub(super) fn name(text: &str) -> Result<()> {
    label("name", text, 256)
}

/// The client's name of a file; a label that is never used as a path.
pub(super) fn file_name(text: &str) -> Result<()> {
    label("filename", text, 255).map_err(|error| error.param("file"))
}

/// The id of a model, which need not be installed.
pub(super) fn model(text: &str) -> Result<()> {
    label("model", text, 256)
}

pub(super) fn environment(text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| label("environment", text, 64))
}

pub(super) fn reason(text: Option<&str>) -> Result<()> {
    let length = text.map_or(0, |text| text.chars().count());
    if length > 1024 {
        return Err(Error::invalid("reason", format!("'reason' has {length} characters; it must have at most 1024.")));
    }
    Ok(())
}

/// Part of a fine-tuned model's name.
pub(super) fn suffix(text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| label("suffix", text, 64))
}

/// A JSON object of limited size.
pub(super) fn metadata(text: Option<&str>) -> Result<()> {
    let Some(text) = text else { return Ok(()) };
    if text.len() > MAX_METADATA_BYTES {
        return Err(Error::invalid(
            "metadata",
            format!("'metadata' has {} bytes; it must have at most {MAX_METADATA_BYTES}.", text.len()),
        ));
    }
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::invalid("metadata", "'metadata' must be a JSON object.")),
    }
}

pub(super) fn expires_at(time: Timestamp, now: Timestamp) -> Result<()> {
    if time > now {
        return Ok(());
    }
    Err(Error::invalid("expires_at", format!("'expires_at' is {time}; it must be in the future, and it is now {now}.")))
}

pub(super) fn grace_period(seconds: Option<i64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(0);
    let valid = u64::try_from(seconds).ok().filter(|_| seconds <= MAX_GRACE_SECONDS);
    valid.map(Duration::from_secs).ok_or_else(|| {
        let text = format!("'grace_period_seconds' is {seconds}; it must be 0 to {MAX_GRACE_SECONDS} (30 days).");
        Error::invalid("grace_period_seconds", text)
    })
}

/// An allow-list, sorted and without duplicates.
pub(super) fn models(models: Option<Vec<String>>) -> Result<Option<Vec<String>>> {
    let Some(mut models) = models else { return Ok(None) };
    if models.is_empty() || models.len() > MAX_MODELS {
        let text = format!(
            "'models' names {} models; it must name 1 to {MAX_MODELS}. Leave it out to allow all.",
            models.len()
        );
        return Err(Error::invalid("models", text));
    }
    for (index, model) in models.iter().enumerate() {
        label(&format!("models[{index}]"), model, 256)?;
    }
    models.sort();
    models.dedup();
    Ok(Some(models))
}
