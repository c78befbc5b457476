//! Custom tools of the Responses API: their definitions, and the calls in the input.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::service::validation::json_fields::{invalid_field, name, object, optional};
use crate::service::validation::tool_definitions::check_grammar;

/// The name of a custom tool, and its definition as chat completions have it.
pub fn definition(field: &str, tool: &Map<String, Value>) -> Result<(String, Value)> {
    let tool_name = name(&format!("{field}.name"), tool.get("name"))?;
    optional(&format!("{field}.description"), tool.get("description"), "a string", Value::is_string)?;
    let mut custom = Map::new();
    custom.insert("name".to_owned(), json!(tool_name));
    if let Some(description) = tool.get("description").filter(|description| !description.is_null()) {
        custom.insert("description".to_owned(), description.clone());
    }
    if let Some(format) = tool.get("format").filter(|format| !format.is_null()) {
        custom.insert("format".to_owned(), nested_format(&format!("{field}.format"), format)?);
    }
    Ok((tool_name.to_owned(), json!({ "type": "custom", "custom": custom })))
}

/// The format of a tool, with the grammar in an object of its own.
fn nested_format(field: &str, format: &Value) -> Result<Value> {
    let format = object(field, Some(format))?;
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(json!({ "type": "text" })),
        Some("grammar") => {
            check_grammar(field, format)?;
            let grammar = json!({ "syntax": format.get("syntax"), "definition": format.get("definition") });
            Ok(json!({ "type": "grammar", "grammar": grammar }))
        }
        _ => invalid_field(&format!("{field}.type"), "must be 'text' or 'grammar'"),
    }
}

/// Adds the fields of a custom tool that a response repeats.
pub fn fill_in(tool: &mut Map<String, Value>) {
    tool.entry("description").or_insert(Value::Null);
    let format = tool.entry("format").or_insert(Value::Null);
    if format.is_null() {
        *format = json!({ "type": "text" });
    }
}

/// The names of the custom tools among those of a request.
pub fn names(tools: &[Value]) -> Vec<String> {
    let is_custom = |tool: &&Value| tool.get("type").and_then(Value::as_str) == Some("custom");
    tools.iter().filter(is_custom).filter_map(|tool| Some(tool.get("name")?.as_str()?.to_owned())).collect()
}
