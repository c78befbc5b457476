//! Validation of tool definitions in OpenAI's format: functions, and custom tools, whose input is a text.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::json_fields::{invalid_field, known, name, object, optional};
use crate::error::Result;
use crate::json_input;

const MAX_TOOLS: usize = 128;

/// Validates a JSON array of function tools.
pub(in crate::service) fn check(json: &str) -> Result<()> {
    check_list("tools", &from_json(json)?)
}

/// Parses a JSON array of function tools. `may_be_custom`: whether custom tools are accepted, too.
pub fn parse(json: &str, may_be_custom: bool) -> Result<Vec<Value>> {
    let tools = from_json(json)?;
    check_tools("tools", &tools, may_be_custom)?;
    Ok(tools)
}

fn from_json(json: &str) -> Result<Vec<Value>> {
    json_input::from_str(json).map_err(|error| error.in_field("tools"))
}

/// Validates function tools. `field` is the path of the list.
pub(in crate::service) fn check_list(field: &str, tools: &[Value]) -> Result<()> {
    check_tools(field, tools, false)
}

fn check_tools(field: &str, tools: &[Value], may_be_custom: bool) -> Result<()> {
    if tools.len() > MAX_TOOLS {
        return invalid_field(field, &format!("has {} entries; it may have {MAX_TOOLS}", tools.len()));
    }
    let mut names = HashSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let field = format!("{field}[{at}]");
        let (kind, name) = check_tool(&field, tool, may_be_custom)?;
        if !names.insert(name) {
            return invalid_field(
                &format!("{field}.{kind}.name"),
                &format!("is '{name}', which is already the name of an earlier tool. Use another name"),
            );
        }
    }
    Ok(())
}

/// Validates a tool; returns its type and its name.
fn check_tool<'a>(field: &str, tool: &'a Value, may_be_custom: bool) -> Result<(&'static str, &'a str)> {
    let tool = object(field, Some(tool))?;
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => check_function(field, tool).map(|name| ("function", name)),
        Some("custom") if may_be_custom => check_custom(field, tool).map(|name| ("custom", name)),
        _ if may_be_custom => invalid_field(&format!("{field}.type"), "must be 'function' or 'custom'"),
        _ => invalid_field(&format!("{field}.type"), "must be 'function', the only type of tool"),
    }
}

fn check_custom<'a>(field: &str, tool: &'a Map<String, Value>) -> Result<&'a str> {
    known(field, tool, &["type", "custom"], |_, _| false)?;
    let field = format!("{field}.custom");
    let custom = object(&field, tool.get("custom"))?;
    known(&field, custom, &["name", "description", "format"], |_, _| false)?;
    optional(&format!("{field}.description"), custom.get("description"), "a string", Value::is_string)?;
    let name = name(&format!("{field}.name"), custom.get("name"))?;
    let field = format!("{field}.format");
    let format = match custom.get("format") {
        None | Some(Value::Null) => return Ok(name),
        format => object(&field, format)?,
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => known(&field, format, &["type"], |_, _| false)?,
        Some("grammar") => {
            known(&field, format, &["type", "grammar"], |_, _| false)?;
            let field = format!("{field}.grammar");
            let grammar = object(&field, format.get("grammar"))?;
            known(&field, grammar, &["syntax", "definition"], |_, _| false)?;
            check_grammar(&field, grammar)?;
        }
        _ => return invalid_field(&format!("{field}.type"), "must be 'text' or 'grammar'"),
    }
    Ok(name)
}

/// Validates the syntax and the definition of a grammar, but not what the definition says.
pub fn check_grammar(field: &str, grammar: &Map<String, Value>) -> Result<()> {
    if !matches!(grammar.get("syntax").and_then(Value::as_str), Some("lark" | "regex")) {
        return invalid_field(&format!("{field}.syntax"), "must be 'lark' or 'regex'");
    }
    match grammar.get("definition").and_then(Value::as_str) {
        Some(definition) if !definition.is_empty() => Ok(()),
        _ => invalid_field(&format!("{field}.definition"), "must be a string that is not empty"),
    }
}

fn check_function<'a>(field: &str, tool: &'a Map<String, Value>) -> Result<&'a str> {
    known(field, tool, &["type", "function"], |_, _| false)?;
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
