//! The shape of tool definitions, as OpenAI has them.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::json::{name, object, optional, wrong};
use crate::display::shorten;
use crate::error::{Error, Result};

const MOST_TOOLS: usize = 128;

/// Checks a JSON array of function tools, given as text.
pub(super) fn check(json: &str) -> Result<()> {
    read(json).map(drop)
}

/// The function tools of a JSON array, given as text.
pub fn read(json: &str) -> Result<Vec<Value>> {
    let tools: Vec<Value> = serde_json::from_str(json)
        .map_err(|error| Error::invalid("tools", format!("'tools' must be an array of tool definitions: {error}.")))?;
    if tools.len() > MOST_TOOLS {
        let text = format!("'tools' has {} entries; it may have {MOST_TOOLS}.", tools.len());
        return Err(Error::invalid("tools", text));
    }
    let mut names = HashSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let name = check_tool(&format!("tools[{at}]"), tool)?;
        if !names.insert(name) {
            let field = format!("tools[{at}].function.name");
            return wrong(&field, &format!("is '{name}', which an earlier tool is called already. Use another name"));
        }
    }
    Ok(tools)
}

/// The tool's name.
fn check_tool<'a>(field: &str, tool: &'a Value) -> Result<&'a str> {
    let tool = object(field, Some(tool))?;
    known(field, tool, &["type", "function"])?;
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return wrong(&format!("{field}.type"), "must be 'function', the only type of tool");
    }
    let field = format!("{field}.function");
    let function = object(&field, tool.get("function"))?;
    known(&field, function, &["name", "description", "parameters", "strict"])?;
    let given = |name: &str, what: &str, fits: fn(&Value) -> bool| {
        optional(&format!("{field}.{name}"), function.get(name), what, fits)
    };
    given("description", "a string", Value::is_string)?;
    given("parameters", "a JSON object, the schema of the arguments", Value::is_object)?;
    given("strict", "true or false", Value::is_boolean)?;
    name(&format!("{field}.name"), function.get("name"))
}

fn known(field: &str, object: &Map<String, Value>, names: &[&str]) -> Result<()> {
    match object.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let name = shorten(name);
            wrong(&format!("{field}.{name}"), &format!("is unknown. The fields are {}", names.join(", ")))
        }
    }
}
