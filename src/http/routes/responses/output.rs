//! Output format, tools and tool choice of the Responses API.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::custom_tools;
use crate::calls::output_format::output_spec::{AllowedTools, OutputRequest, ToolChoice};
use crate::calls::text::dialect::Dialect;
use crate::display::shorten;
use crate::engine::TextFormat;
use crate::error::Result;
use crate::http::routes::tool_choice::{allowed_mode, mode};
use crate::service::validation::json_fields::{invalid_field, name, object, optional};

/// The fields of a function that a response repeats, null if absent.
const ECHOED: [&str; 3] = ["description", "parameters", "strict"];

/// The output fields of a request. Tools that this server does not have are added to `ignored`.
pub fn request(
    text: Option<&Value>,
    tools: &[Value],
    choice: Option<&Value>,
    parallel: Option<bool>,
    ignored: &mut Vec<String>,
) -> Result<OutputRequest> {
    let text = format(text)?;
    let callable = callable(tools, ignored)?;
    let (choice, allowed) = match choice {
        None | Some(Value::Null) => (ToolChoice::Auto, None),
        Some(choice) => tool_choice(choice, &callable)?,
    };
    let tool_positions = callable.iter().map(|tool| tool.position).collect();
    let definitions: Vec<Value> = callable.into_iter().map(|tool| tool.definition).collect();
    let tools = (!definitions.is_empty()).then(|| Value::Array(definitions).to_string());
    let dialect = &Dialect::RESPONSES;
    Ok(OutputRequest { text, text_field: None, tools, tool_positions, choice, allowed, parallel, dialect })
}

/// The field `text.format`.
fn format(text: Option<&Value>) -> Result<TextFormat> {
    optional("text", text, "an object", Value::is_object)?;
    let format = text.and_then(|text| text.get("format")).filter(|format| !format.is_null());
    let Some(format) = format else { return Ok(TextFormat::Free) };
    let fields = object("text.format", Some(format))?;
    match fields.get("type").and_then(Value::as_str) {
        Some("text") => Ok(TextFormat::Free),
        Some("json_object") => Ok(TextFormat::Object),
        Some("json_schema") => {
            name("text.format.name", fields.get("name"))?;
            optional("text.format.strict", fields.get("strict"), "true or false", Value::is_boolean)?;
            match fields.get("schema") {
                Some(schema @ Value::Object(_)) => {
                    let strict = fields.get("strict") == Some(&Value::Bool(true));
                    Ok(TextFormat::Schema { schema: schema.clone(), strict })
                }
                _ => invalid_field("text.format.schema", "must be an object, a JSON schema"),
            }
        }
        _ => invalid_field("text.format.type", "must be 'text', 'json_object' or 'json_schema'"),
    }
}

/// A tool that the model may call.
struct Callable {
    position: usize,
    kind: &'static str,
    name: String,
    /// As chat completions define it.
    definition: Value,
}

/// The functions and the custom tools.
fn callable(tools: &[Value], ignored: &mut Vec<String>) -> Result<Vec<Callable>> {
    let (mut callable, mut names) = (Vec::new(), HashSet::new());
    for (position, tool) in tools.iter().enumerate() {
        let field = format!("tools[{position}]");
        let fields = object(&field, Some(tool))?;
        let (kind, (name, definition)) = match fields.get("type").and_then(Value::as_str) {
            Some("function") => ("function", function(&field, fields)?),
            Some("custom") => ("custom", custom_tools::definition(&field, fields)?),
            Some(kind) => {
                ignored.push(format!("{field} {}", shorten(kind)));
                continue;
            }
            None => return invalid_field(&format!("{field}.type"), "is missing. It must be 'function' or 'custom'"),
        };
        if !names.insert(name.clone()) {
            let text = format!("is '{name}', which is already the name of an earlier tool. Use another name");
            return invalid_field(&format!("{field}.name"), &text);
        }
        callable.push(Callable { position, kind, name, definition });
    }
    Ok(callable)
}

fn function(field: &str, tool: &Map<String, Value>) -> Result<(String, Value)> {
    if tool.get("name").is_none() && tool.get("function").is_some_and(Value::is_object) {
        let text = "is the form of chat completions. Here, 'name', 'description', 'parameters' and 'strict' are fields of the tool itself";
        return invalid_field(&format!("{field}.function"), text);
    }
    let tool_name = name(&format!("{field}.name"), tool.get("name"))?;
    let given = |name: &str, what: &str, fits: fn(&Value) -> bool| {
        optional(&format!("{field}.{name}"), tool.get(name), what, fits)
    };
    given("description", "a string", Value::is_string)?;
    given("parameters", "a JSON object, the schema of the arguments", Value::is_object)?;
    given("strict", "true or false", Value::is_boolean)?;
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(tool_name));
    for name in ECHOED {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.to_owned(), value.clone());
        }
    }
    Ok((tool_name.to_owned(), json!({ "type": "function", "function": function })))
}

/// The field `tool_choice`.
fn tool_choice(choice: &Value, callable: &[Callable]) -> Result<(ToolChoice, Option<AllowedTools>)> {
    if let Some(text) = choice.as_str() {
        return Ok((mode("tool_choice", text, CHOICES)?, None));
    }
    let fields = object("tool_choice", Some(choice))?;
    match fields.get("type").and_then(Value::as_str) {
        Some(kind @ ("function" | "custom")) => {
            let name = name("tool_choice.name", fields.get("name"))?;
            match callable.iter().find(|tool| tool.name == name) {
                Some(tool) if tool.kind != kind => {
                    let text = format!("is '{kind}', but the type of the tool '{name}' is '{}'", tool.kind);
                    invalid_field("tool_choice.type", &text)
                }
                _ => Ok((ToolChoice::Named(name.to_owned()), None)),
            }
        }
        Some("allowed_tools") => {
            let Some(allowed) = fields.get("tools").and_then(Value::as_array) else {
                return invalid_field("tool_choice.tools", "must be an array of tools");
            };
            let name = |tool: &Value| tool.get("name").and_then(Value::as_str).map(str::to_owned);
            let allowed = AllowedTools { names: allowed.iter().filter_map(name).collect(), field: "tool_choice.tools" };
            Ok((allowed_mode("tool_choice", fields)?, Some(allowed)))
        }
        Some(other) => {
            let text = format!("is '{}', a tool that this server does not have. It must be {CHOICES}", shorten(other));
            invalid_field("tool_choice.type", &text)
        }
        None => invalid_field("tool_choice", &format!("must be {CHOICES}")),
    }
}

const CHOICES: &str = "'none', 'auto', 'required', {\"type\": \"function\", \"name\": …}, {\"type\": \"custom\", \"name\": …} or {\"type\": \"allowed_tools\", …}";

/// The tools as a response repeats them.
pub fn echoed_tools(mut tools: Vec<Value>) -> Vec<Value> {
    for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {
                for name in ECHOED {
                    tool.entry(name).or_insert(Value::Null);
                }
            }
            Some("custom") => custom_tools::fill_in(tool),
            _ => {}
        }
    }
    tools
}

/// The field `text` as a response repeats it.
pub fn echoed_text(text: Option<Value>) -> Value {
    let mut text = text.and_then(|text| text.as_object().cloned()).unwrap_or_default();
    let format = text.entry("format").or_insert(Value::Null);
    if format.is_null() {
        *format = json!({ "type": "text" });
    }
    Value::Object(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_functions_are_nested_and_hosted_tools_are_named() {
        let tools = [
            json!({ "type": "function", "name": "read", "description": "d", "parameters": { "type": "object" }, "strict": true }),
            json!({ "type": "web_search", "filters": {} }),
            json!({ "type": "function", "name": "list", "parameters": null }),
            json!({ "type": "custom", "name": "patch", "format": { "type": "grammar", "syntax": "lark", "definition": "start: \"a\"" } }),
        ];
        let mut ignored = Vec::new();
        let output = request(None, &tools, Some(&json!("required")), Some(false), &mut ignored).unwrap();
        assert_eq!((output.choice, output.parallel), (ToolChoice::Required, Some(false)));
        let expected = json!([
            { "type": "function", "function": { "name": "read", "description": "d", "parameters": { "type": "object" }, "strict": true } },
            { "type": "function", "function": { "name": "list" } },
            { "type": "custom", "custom": { "name": "patch", "format": {
                "type": "grammar", "grammar": { "syntax": "lark", "definition": "start: \"a\"" },
            } } },
        ]);
        assert_eq!(serde_json::from_str::<Value>(&output.tools.unwrap()).unwrap(), expected);
        assert_eq!((output.tool_positions, &ignored[..]), (vec![0, 2, 3], &["tools[1] web_search".to_owned()][..]));
        let named = request(None, &tools, Some(&json!({ "type": "custom", "name": "patch" })), None, &mut ignored);
        assert_eq!(named.unwrap().choice, ToolChoice::Named("patch".to_owned()));
        let choice =
            json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "list" }] });
        let output = request(None, &tools, Some(&choice), None, &mut ignored).unwrap();
        assert_eq!(output.choice, ToolChoice::Required);
        assert_eq!(output.allowed.unwrap().names, ["list"]);
    }

    #[test]
    fn errors_name_the_field() {
        let error = |text: Value, tools: &[Value], choice: Value| {
            let error = request(Some(&text), tools, Some(&choice), None, &mut Vec::new()).unwrap_err();
            error.param_name().unwrap().to_owned()
        };
        for (text, param) in [
            (json!(1), "text"),
            (json!({ "format": { "type": "xml" } }), "text.format.type"),
            (json!({ "format": { "type": "json_schema", "schema": {} } }), "text.format.name"),
            (json!({ "format": { "type": "json_schema", "name": "a" } }), "text.format.schema"),
        ] {
            assert_eq!(error(text, &[], json!(null)), param);
        }
        for (tool, param) in [
            (json!(1), "tools[0]"),
            (json!({ "name": "a" }), "tools[0].type"),
            (json!({ "type": "function" }), "tools[0].name"),
            (json!({ "type": "function", "name": "a", "parameters": 1 }), "tools[0].parameters"),
            (json!({ "type": "custom" }), "tools[0].name"),
            (json!({ "type": "custom", "name": "a", "description": 1 }), "tools[0].description"),
            (json!({ "type": "custom", "name": "a", "format": 1 }), "tools[0].format"),
            (json!({ "type": "custom", "name": "a", "format": { "type": "xml" } }), "tools[0].format.type"),
            (json!({ "type": "custom", "name": "a", "format": { "type": "grammar" } }), "tools[0].format.syntax"),
            (
                json!({ "type": "custom", "name": "a", "format": { "type": "grammar", "syntax": "regex" } }),
                "tools[0].format.definition",
            ),
        ] {
            assert_eq!(error(json!(null), &[tool], json!(null)), param);
        }
        for (choice, param) in [
            (json!("any"), "tool_choice"),
            (json!({ "type": "function" }), "tool_choice.name"),
            (json!({ "type": "web_search" }), "tool_choice.type"),
            (json!({ "type": "allowed_tools" }), "tool_choice.tools"),
        ] {
            assert_eq!(error(json!(null), &[], choice), param);
        }
        let custom = json!({ "type": "custom", "name": "a" });
        let choice = json!({ "type": "function", "name": "a" });
        assert_eq!(error(json!(null), &[custom], choice), "tool_choice.type");
    }
}
