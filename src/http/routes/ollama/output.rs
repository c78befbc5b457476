//! Output format and tools of Ollama's API, and its dialect.

use serde_json::{Map, Value};

use crate::calls::output_format::output_spec::{OutputRequest, ToolChoice};
use crate::calls::text::dialect::Dialect;
use crate::display::shorten;
use crate::engine::TextFormat;
use crate::error::Result;
use crate::service::validation::json_fields::{invalid_field, object};

/// Clients send numbers of tokens beyond the context, and know that generation ends with it.
pub const DIALECT: Dialect = Dialect {
    output_format: "format",
    output_schema: "format",
    continuation: "messages",
    limits_max_tokens: true,
    limits_reserve: true,
    limits_reasoning: false,
    ..Dialect::CHAT
};

/// The parts of a tool that the model sees.
const FUNCTION: [&str; 4] = ["name", "description", "parameters", "strict"];

/// Combines format and tools. Parts of tools that have no effect are added to `ignored`.
pub fn request(format: Option<&Value>, tools: &[Value], ignored: &mut Vec<String>) -> Result<OutputRequest> {
    let tools = tools.iter().enumerate().map(|(index, value)| tool(&format!("tools[{index}]"), value, ignored));
    let tools = tools.collect::<Result<Vec<_>>>()?;
    let tools = (!tools.is_empty()).then(|| Value::Array(tools).to_string());
    let (choice, parallel, dialect) = (ToolChoice::Auto, None, &DIALECT);
    Ok(OutputRequest {
        text: text(format)?,
        text_field: None,
        tools,
        tool_positions: Vec::new(),
        choice,
        allowed: None,
        parallel,
        dialect,
    })
}

/// `json`, or a schema.
pub fn text(format: Option<&Value>) -> Result<TextFormat> {
    match format {
        None | Some(Value::Null) => Ok(TextFormat::Free),
        Some(Value::String(name)) if name.is_empty() => Ok(TextFormat::Free),
        Some(Value::String(name)) if name == "json" => Ok(TextFormat::Object),
        Some(schema @ Value::Object(_)) => Ok(TextFormat::Schema { schema: schema.clone(), strict: false }),
        Some(_) => invalid_field("format", "must be 'json' or an object, a JSON schema"),
    }
}

/// A tool without the parts that have no effect. The definitions are validated later.
fn tool(field: &str, tool: &Value, ignored: &mut Vec<String>) -> Result<Value> {
    let fields = object(field, Some(tool))?;
    let kind = fields.get("type").filter(|kind| !kind.is_null()).cloned();
    let path = format!("{field}.function");
    let function = object(&path, fields.get("function"))?;
    let mut keep = |field: &str, fields: &Map<String, Value>, names: &[&str]| {
        let (kept, others): (Vec<_>, Vec<_>) = fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .partition(|(name, _)| names.contains(&name.as_str()));
        ignored.extend(others.iter().map(|(name, _)| format!("{field}.{}", shorten(name))));
        kept.into_iter().collect::<Map<_, _>>()
    };
    keep(field, fields, &["type", "function"]);
    let mut kept = Map::new();
    kept.insert("type".to_owned(), kind.unwrap_or_else(|| Value::from("function")));
    kept.insert("function".to_owned(), Value::Object(keep(&path, function, &FUNCTION)));
    Ok(Value::Object(kept))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_are_json_or_a_schema() {
        for free in [None, Some(json!(null)), Some(json!(""))] {
            assert!(matches!(text(free.as_ref()).unwrap(), TextFormat::Free));
        }
        assert!(matches!(text(Some(&json!("json"))).unwrap(), TextFormat::Object));
        let schema = json!({ "type": "object" });
        let TextFormat::Schema { schema: found, strict: false } = text(Some(&schema)).unwrap() else { panic!() };
        assert_eq!(found, schema);
        for wrong in [json!("xml"), json!(1), json!([])] {
            assert_eq!(text(Some(&wrong)).unwrap_err().param_name(), Some("format"));
        }
    }

    #[test]
    fn tools_keep_what_the_model_sees() {
        let tools = [json!({
            "type": "function", "items": { "x": 1 },
            "function": { "name": "look", "description": null, "parameters": { "type": "object" }, "cost": 1 },
        })];
        let mut ignored = Vec::new();
        let request = request(None, &tools, &mut ignored).unwrap();
        let expected =
            json!([{ "type": "function", "function": { "name": "look", "parameters": { "type": "object" } } }]);
        assert_eq!(serde_json::from_str::<Value>(&request.tools.unwrap()).unwrap(), expected);
        assert_eq!(ignored, ["tools[0].items", "tools[0].function.cost"]);
        let without = super::request(None, &[json!({ "type": "function" })], &mut ignored).unwrap_err();
        assert_eq!(without.param_name(), Some("tools[0].function"));
    }
}
