//! The shape of tool definitions, as OpenAI has them.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

const MOST_TOOLS: usize = 128;
const LONGEST_NAME: usize = 64;

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
    optional(&field, function, "description", "a string", Value::is_string)?;
    optional(&field, function, "parameters", "a JSON object, the schema of the arguments", Value::is_object)?;
    optional(&field, function, "strict", "true or false", Value::is_boolean)?;
    name(&format!("{field}.name"), function.get("name"))
}

fn name<'a>(field: &str, name: Option<&'a Value>) -> Result<&'a str> {
    let plain = |name: &&str| {
        (1..=LONGEST_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    match name.and_then(Value::as_str).filter(plain) {
        Some(name) => Ok(name),
        None => wrong(field, &format!("must be 1 to {LONGEST_NAME} letters, digits, underscores or hyphens")),
    }
}

fn object<'a>(field: &str, value: Option<&'a Value>) -> Result<&'a Map<String, Value>> {
    match value.and_then(Value::as_object) {
        Some(object) => Ok(object),
        None => wrong(field, "must be an object"),
    }
}

fn known(field: &str, object: &Map<String, Value>, names: &[&str]) -> Result<()> {
    match object.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(80).collect();
            wrong(&format!("{field}.{name}"), &format!("is unknown. The fields are {}", names.join(", ")))
        }
    }
}

fn optional(
    field: &str,
    object: &Map<String, Value>,
    name: &str,
    what: &str,
    fits: impl Fn(&Value) -> bool,
) -> Result<()> {
    match object.get(name) {
        Some(value) if !value.is_null() && !fits(value) => {
            wrong(&format!("{field}.{name}"), &format!("must be {what}"))
        }
        _ => Ok(()),
    }
}

fn wrong<T>(field: &str, what: &str) -> Result<T> {
    Err(Error::invalid(field, format!("'{field}' {what}.")))
}
