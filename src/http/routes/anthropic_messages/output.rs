//! Output format, tools and tool choice of Anthropic's API, and its dialect.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::calls::output_format::output_spec::{OutputRequest, ToolChoice};
use crate::calls::text::dialect::Dialect;
use crate::display::shorten;
use crate::engine::TextFormat;
use crate::error::Result;
use crate::service::validation::json_fields::{invalid_field, name, object, optional};

/// Clients always send a number of tokens, also if the context has less room. They recognise a prompt that is too long by
/// how the error begins.
const DIALECT: Dialect = Dialect {
    output_format: "output_config.format",
    output_schema: "output_config.format.schema",
    continuation: "messages",
    tool_schema: "input_schema",
    chosen_tool: "tool_choice.name",
    limits_max_tokens: true,
    limits_reasoning: false,
    prompt_too_long: Some(|tokens, window| format!("prompt is too long: {tokens} tokens > {window} maximum.")),
    ..Dialect::CHAT
};

/// The format of the text: `output_config.format`, or its earlier name `output_format`.
pub fn format(config: Option<&Value>, earlier: Option<&Value>) -> Result<TextFormat> {
    optional("output_config", config, "an object", Value::is_object)?;
    let given = |format: Option<&'_ Value>, field: &'static str| {
        format.filter(|format| !format.is_null()).map(|format| (field, format.clone()))
    };
    let newer = given(config.and_then(|config| config.get("format")), "output_config.format");
    let Some((field, format)) = newer.or_else(|| given(earlier, "output_format")) else { return Ok(TextFormat::Free) };
    let fields = object(field, Some(&format))?;
    match (fields.get("type").and_then(Value::as_str), fields.get("schema")) {
        (Some("json_schema"), Some(schema @ Value::Object(_))) => {
            Ok(TextFormat::Schema { schema: schema.clone(), strict: false })
        }
        (Some("json_schema"), _) => invalid_field(&format!("{field}.schema"), "must be an object, a JSON schema"),
        _ => invalid_field(&format!("{field}.type"), "must be 'json_schema'"),
    }
}

/// Combines the output fields. Tools that only Anthropic's servers or clients know are added to `ignored`.
pub fn request(
    tools: &[Value],
    choice: Option<&Value>,
    text: TextFormat,
    ignored: &mut Vec<String>,
) -> Result<OutputRequest> {
    let (mut functions, mut tool_positions, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    for (index, tool) in tools.iter().enumerate() {
        let field = format!("tools[{index}]");
        let fields = object(&field, Some(tool))?;
        match fields.get("type").and_then(Value::as_str) {
            None | Some("custom") => {
                let function = function(&field, fields)?;
                if let Some(name) = fields.get("name").and_then(Value::as_str).filter(|name| !names.insert(*name)) {
                    let text = format!("is '{name}', which is already the name of an earlier tool. Use another name");
                    return invalid_field(&format!("{field}.name"), &text);
                }
                functions.push(function);
                tool_positions.push(index);
            }
            Some(kind) => ignored.push(format!("{field} {}", shorten(kind))),
        }
    }
    let (choice, parallel) = match choice {
        None | Some(Value::Null) => (ToolChoice::Auto, None),
        Some(choice) => tool_choice(choice)?,
    };
    let tools = (!functions.is_empty()).then(|| Value::Array(functions).to_string());
    let dialect = &DIALECT;
    Ok(OutputRequest { text, text_field: None, tools, tool_positions, choice, allowed: None, parallel, dialect })
}

/// A tool as OpenAI defines it.
fn function(field: &str, tool: &Map<String, Value>) -> Result<Value> {
    let tool_name = name(&format!("{field}.name"), tool.get("name"))?;
    let given = |name: &str, what: &str, fits: fn(&Value) -> bool| {
        optional(&format!("{field}.{name}"), tool.get(name), what, fits)
    };
    given("description", "a string", Value::is_string)?;
    given("strict", "true or false", Value::is_boolean)?;
    let Some(schema @ Value::Object(_)) = tool.get("input_schema") else {
        return invalid_field(&format!("{field}.input_schema"), "must be an object, the JSON schema of the input");
    };
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(tool_name));
    for name in ["description", "strict"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.to_owned(), value.clone());
        }
    }
    function.insert("parameters".to_owned(), schema.clone());
    Ok(json!({ "type": "function", "function": function }))
}

/// The choice, and whether there may be several calls.
fn tool_choice(choice: &Value) -> Result<(ToolChoice, Option<bool>)> {
    let fields = object("tool_choice", Some(choice))?;
    let field = "tool_choice.disable_parallel_tool_use";
    optional(field, fields.get("disable_parallel_tool_use"), "true or false", Value::is_boolean)?;
    let is_single = fields.get("disable_parallel_tool_use").and_then(Value::as_bool) == Some(true);
    let choice = match fields.get("type").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => ToolChoice::Named(name("tool_choice.name", fields.get("name"))?.to_owned()),
        _ => return invalid_field("tool_choice.type", "must be 'auto', 'any', 'tool' or 'none'"),
    };
    Ok((choice, is_single.then_some(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_become_functions_and_foreign_ones_are_named() {
        let tools = [
            json!({ "name": "read", "description": "d", "input_schema": { "type": "object" }, "cache_control": {} }),
            json!({ "type": "web_search_20250305", "name": "web_search" }),
            json!({ "type": "custom", "name": "b", "input_schema": {}, "strict": true }),
        ];
        let mut ignored = Vec::new();
        let choice = json!({ "type": "any", "disable_parallel_tool_use": true });
        let output = request(&tools, Some(&choice), TextFormat::Free, &mut ignored).unwrap();
        assert_eq!((output.choice, output.parallel), (ToolChoice::Required, Some(false)));
        let expected = json!([
            { "type": "function", "function": { "name": "read", "description": "d", "parameters": { "type": "object" } } },
            { "type": "function", "function": { "name": "b", "strict": true, "parameters": {} } },
        ]);
        assert_eq!(serde_json::from_str::<Value>(&output.tools.unwrap()).unwrap(), expected);
        assert_eq!(ignored, ["tools[1] web_search_20250305"]);
    }

    #[test]
    fn errors_name_the_field() {
        let error = |tool: Value| request(&[tool], None, TextFormat::Free, &mut Vec::new()).unwrap_err();
        for (tool, param) in [
            (json!(1), "tools[0]"),
            (json!({ "input_schema": {} }), "tools[0].name"),
            (json!({ "name": "a" }), "tools[0].input_schema"),
            (json!({ "name": "a", "input_schema": {}, "description": 1 }), "tools[0].description"),
        ] {
            assert_eq!(error(tool).param_name(), Some(param));
        }
        for (choice, param) in [
            (json!("auto"), "tool_choice"),
            (json!({ "type": "required" }), "tool_choice.type"),
            (json!({ "type": "tool" }), "tool_choice.name"),
        ] {
            let error = request(&[], Some(&choice), TextFormat::Free, &mut Vec::new()).unwrap_err();
            assert_eq!(error.param_name(), Some(param));
        }
        for (format, param) in [
            (json!({ "format": { "type": "text" } }), "output_config.format.type"),
            (json!({ "format": { "type": "json_schema" } }), "output_config.format.schema"),
            (json!([]), "output_config"),
        ] {
            assert_eq!(super::format(Some(&format), None).unwrap_err().param_name(), Some(param));
        }
    }
}
