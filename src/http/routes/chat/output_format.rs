//! The request fields that constrain the output: `response_format`, `tools`, `tool_choice`.
//!
//! Parsed by hand, because errors must name the invalid field, which serde's untagged enums cannot do. The types are
//! for `/openapi.json`.
//!
//! Custom tools are refused by name: a call of one would need its own form in stored conversations, agents and training
//! data. Clients that use them have the Responses API.

use super::guided_output::GuidedFields;
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use crate::calls::output_format::output_spec::{AllowedTools, OutputRequest, ToolChoice as Choice};
use crate::calls::text::dialect::Dialect;
use crate::engine::TextFormat;
use crate::error::{Error, Result};
use crate::http::routes::tool_choice::{allowed_mode, mode};
use crate::service::validation::json_fields::{invalid_field, known, name, object, optional};

/// `text`: anything. `json_object`: any JSON object, or with `schema` one that matches it. `json_schema`: JSON that matches the
/// schema.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a shape for the document; the field is read by hand")]
pub struct ResponseFormat {
    r#type: FormatType,
    /// With the type `json_schema`.
    json_schema: Option<NamedSchema>,
    /// With the type `json_object`: a JSON schema, as llama.cpp has it.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "as above")]
enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "as above")]
struct NamedSchema {
    /// 1–128 letters, digits, underscores or hyphens.
    #[schema(min_length = 1, max_length = 128)]
    name: Option<String>,
    description: Option<String>,
    /// A JSON schema. The header `x-outpost-unenforced` names the parts that cannot be enforced.
    #[schema(value_type = Object)]
    schema: Value,
    /// Whether a schema that cannot be enforced as a whole is an error.
    strict: Option<bool>,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "as above")]
pub struct FunctionTool {
    /// `function`.
    r#type: String,
    function: ToolFunction,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "as above")]
struct ToolFunction {
    /// 1–128 letters, digits, underscores or hyphens.
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments, an object; absent: no arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    /// Whether a schema that cannot be enforced as a whole is an error.
    strict: Option<bool>,
}

/// `none`, `auto`, `required`, one tool by its name, or with the type `allowed_tools` the tools that may be called.
#[derive(serde::Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "as above")]
pub enum ToolChoice {
    Mode(String),
    Named(NamedTool),
}

#[derive(serde::Deserialize, ToSchema)]
#[expect(dead_code, reason = "as above")]
pub struct NamedTool {
    /// `function`.
    r#type: String,
    function: ToolName,
}

#[derive(serde::Deserialize, ToSchema)]
#[expect(dead_code, reason = "as above")]
pub struct ToolName {
    name: String,
}

/// Combines the fields; the tool definitions are validated later.
pub fn output_request(
    format: Option<&Value>,
    guided: GuidedFields,
    tools: Option<&RawValue>,
    choice: Option<&Value>,
    parallel: Option<bool>,
) -> Result<OutputRequest> {
    let (text_format, text_field) = match (format.filter(|format| !format.is_null()), guided.format()?) {
        (None, None) => (TextFormat::Free, None),
        (Some(format), None) => text(format)?,
        (None, Some((format, field))) => (format, Some(field)),
        (Some(_), Some((_, field))) => {
            return Err(Error::invalid(
                field,
                format!("'response_format' and '{field}' are both set. Send one of them."),
            ));
        }
    };
    let (choice, allowed) = choice.map_or(Ok((Choice::Auto, None)), tool_choice)?;
    Ok(OutputRequest {
        text: text_format,
        text_field,
        tools: tools.map(|json| json.get().to_owned()).filter(|json| json != "null"),
        tool_positions: Vec::new(),
        choice,
        allowed,
        parallel,
        dialect: &Dialect::CHAT,
    })
}

/// The format, and the field with its schema if it is not OpenAI's.
fn text(format: &Value) -> Result<(TextFormat, Option<&'static str>)> {
    const SCHEMA: &str = "response_format.schema";
    let fields = object("response_format", Some(format))?;
    let kind = fields.get("type").and_then(Value::as_str);
    match kind {
        Some("text") => known("response_format", fields, &["type"], is_null).map(|()| (TextFormat::Free, None)),
        Some("json_object") => {
            known("response_format", fields, &["type", "schema"], is_null)?;
            match fields.get("schema").filter(|schema| !schema.is_null()) {
                None => Ok((TextFormat::Object, None)),
                Some(given) => {
                    let schema = Value::Object(object(SCHEMA, Some(given))?.clone());
                    Ok((TextFormat::Schema { schema, strict: false }, Some(SCHEMA)))
                }
            }
        }
        // llama.cpp's form, without a name.
        Some("json_schema") if fields.contains_key("schema") => {
            known("response_format", fields, &["type", "schema"], is_null)?;
            let schema = Value::Object(object(SCHEMA, fields.get("schema"))?.clone());
            Ok((TextFormat::Schema { schema, strict: false }, Some(SCHEMA)))
        }
        Some("json_schema") => {
            known("response_format", fields, &["type", "json_schema"], is_null)?;
            let format = schema(object("response_format.json_schema", fields.get("json_schema"))?)?;
            Ok((format, None))
        }
        _ => invalid_field("response_format.type", "must be 'text', 'json_object' or 'json_schema'"),
    }
}

fn schema(fields: &Map<String, Value>) -> Result<TextFormat> {
    let path = "response_format.json_schema";
    known(path, fields, &["name", "description", "schema", "strict"], is_null)?;
    // Only a label, which many clients of local servers leave out.
    if let Some(given) = fields.get("name").filter(|given| !given.is_null()) {
        name(&format!("{path}.name"), Some(given))?;
    }
    optional(&format!("{path}.description"), fields.get("description"), "a string", Value::is_string)?;
    optional(&format!("{path}.strict"), fields.get("strict"), "true or false", Value::is_boolean)?;
    match fields.get("schema") {
        Some(schema @ Value::Object(_)) => {
            let strict = fields.get("strict") == Some(&Value::Bool(true));
            Ok(TextFormat::Schema { schema: schema.clone(), strict })
        }
        _ => invalid_field(&format!("{path}.schema"), "must be an object, a JSON schema"),
    }
}

fn tool_choice(choice: &Value) -> Result<(Choice, Option<AllowedTools>)> {
    match choice {
        Value::String(text) => Ok((mode("tool_choice", text, CHOICES)?, None)),
        Value::Object(fields) => match fields.get("type").and_then(Value::as_str) {
            Some("function") => {
                known("tool_choice", fields, &["type", "function"], is_null)?;
                let function = object("tool_choice.function", fields.get("function"))?;
                known("tool_choice.function", function, &["name"], is_null)?;
                let name = name("tool_choice.function.name", function.get("name"))?;
                Ok((Choice::Named(name.to_owned()), None))
            }
            Some("allowed_tools") => allowed_tools(fields),
            _ => invalid_field("tool_choice", &format!("must be {CHOICES}")),
        },
        _ => invalid_field("tool_choice", &format!("must be {CHOICES}")),
    }
}

/// The tools and the mode, inside of `allowed_tools` as in OpenAI's chat completions, or beside the type as in its Responses
/// API.
fn allowed_tools(choice: &Map<String, Value>) -> Result<(Choice, Option<AllowedTools>)> {
    let (path, field, inner) = match choice.get("allowed_tools") {
        Some(inner) => {
            known("tool_choice", choice, &["type", "allowed_tools"], is_null)?;
            let path = "tool_choice.allowed_tools";
            (path, "tool_choice.allowed_tools.tools", object(path, Some(inner))?)
        }
        None => {
            known("tool_choice", choice, &["type", "mode", "tools"], is_null)?;
            ("tool_choice", "tool_choice.tools", choice)
        }
    };
    let Some(tools) = inner.get("tools").and_then(Value::as_array) else {
        return invalid_field(field, "must be an array of tools");
    };
    let tool_name = |(index, tool): (usize, &Value)| {
        let path = format!("{field}[{index}]");
        let tool = object(&path, Some(tool))?;
        match tool.get("function") {
            Some(function) => name(&format!("{path}.function.name"), object(&path, Some(function))?.get("name")),
            None => name(&format!("{path}.name"), tool.get("name")),
        }
        .map(str::to_owned)
    };
    let names = tools.iter().enumerate().map(tool_name).collect::<Result<_>>()?;
    Ok((allowed_mode(path, inner)?, Some(AllowedTools { names, field })))
}

/// Null fields count as absent.
fn is_null(_: &str, value: &Value) -> bool {
    value.is_null()
}

const CHOICES: &str = "'none', 'auto', 'required', {\"type\": \"function\", \"function\": {\"name\": …}} or {\"type\": \"allowed_tools\", …}";
