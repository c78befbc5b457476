//! The words of `tool_choice` that OpenAI's APIs have in common.

use serde_json::{Map, Value};

use crate::calls::output_format::output_spec::ToolChoice;
use crate::display::shorten;
use crate::error::Result;
use crate::service::validation::json_fields::invalid_field;

/// The choice that a word means. `choices`: what the field may be.
pub fn mode(field: &str, mode: &str, choices: &str) -> Result<ToolChoice> {
    match mode {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => invalid_field(field, &format!("is '{}'. It must be {choices}", shorten(other))),
    }
}

/// The mode of the allowed tools, which have these fields at `path`; `auto` if absent.
pub fn allowed_mode(path: &str, fields: &Map<String, Value>) -> Result<ToolChoice> {
    const CHOICES: &str = "'auto', 'required' or 'none'";
    let field = format!("{path}.mode");
    match fields.get("mode") {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(text)) => mode(&field, text, CHOICES),
        Some(_) => invalid_field(&field, &format!("must be {CHOICES}")),
    }
}
