//! Validation of tool definitions in OpenAI's format.

use std::collections::HashSet;

use serde_json::Value;

use super::json_fields::{invalid_field, known, name, object, optional};
use crate::error::Result;
use crate::json_input;

const MAX_TOOLS: usize = 128;

/// Validates a JSON array of function tools.
pub(super) fn check(json: &str) -> Result<()> {
    parse(json).map(drop)
}

/// Parses a JSON array of function tools.
pub fn parse(json: &str) -> Result<Vec<Value>> {
    let tools: Vec<Value> = json_input::from_str(json).map_err(|error| error.in_field("tools"))?;
    check_list("tools", &tools)?;
    Ok(tools)
}

/// Validates function tools. `field` is the path of the list.
pub(super) fn check_list(field: &str, tools: &[Value]) -> Result<()> {
    if tools.len() > MAX_TOOLS {
        return invalid_field(field, &format!("has {} entries; it may have {MAX_TOOLS}", tools.len()));
    }
    let mut names = HashSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let name = check_tool(&format!("{field}[{at}]"), tool)?;
        if !names.insert(name) {
            let field = format!("{field}[{at}].function.name");
            return invalid_field(
                &field,
                &format!("is '{name}', which is already the name of an earlier tool. Use another name"),
            );
        }
    }
    Ok(())
}

/// Validates a tool and returns its name.
fn check_tool<'a>(field: &str, tool: &'a Value) -> Result<&'a str> {
    let tool = object(field, Some(tool))?;
    known(field, tool, &["type", "function"], |_, _| false)?;
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return invalid_field(&format!("{field}.type"), "must be 'function', the only type of tool");
    }
    let field = format!("{field}.function");
    let function = object(&field, tool.get("function"))?;
    known(&field, function, &["name", "description", "parameters", "strict"], |_, _| false)?;
    let given = |name: &str, what: &str, fits: fn(&Value) -> bool| {
        optional(&format!("{field}.{name}"), function.get(name), what, fits)
    };
    given("description", "a string", Value::is_string)?;
    given("parameters", "a JSON object, the schema of the arguments", Value::is_object)?;
    given("strict", "true or false", Value::is_boolean)?;
    name(&format!("{field}.name"), function.get("name"))
}
