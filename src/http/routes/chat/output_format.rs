//! The request fields that constrain the output: `response_format`, `tools`, `tool_choice`.
//!
//! Parsed by hand, because errors must name the invalid field, which serde's untagged enums cannot do. The types are
//! for `/openapi.json`.

use super::guided_output::GuidedFields;
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use crate::calls::dialect::Dialect;
use crate::calls::output_spec::{OutputRequest, ToolChoice as Choice};
use crate::display::shorten;
use crate::engine::TextFormat;
use crate::error::{Error, Result};
use crate::service::json_fields::{invalid_field, known, name, object, optional};

/// `text`: anything. `json_object`: any JSON object. `json_schema`: JSON that matches the schema.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a shape for the document; the field is read by hand")]
pub struct ResponseFormat {
    r#type: FormatType,
    /// With the type `json_schema`.
    json_schema: Option<NamedSchema>,
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
    name: String,
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

/// `none`, `auto`, `required`, or one tool by its name.
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
        (Some(format), None) => (text(format)?, None),
        (None, Some((format, field))) => (format, Some(field)),
        (Some(_), Some((_, field))) => {
            return Err(Error::invalid(
                field,
                format!("'response_format' and '{field}' are both set. Send one of them."),
            ));
        }
    };
    Ok(OutputRequest {
        text: text_format,
        text_field,
        tools: tools.map(|json| json.get().to_owned()).filter(|json| json != "null"),
        tool_positions: Vec::new(),
        choice: choice.map_or(Ok(Choice::Auto), tool_choice)?,
        parallel,
        dialect: Dialect::Chat,
    })
}

fn text(format: &Value) -> Result<TextFormat> {
    let fields = object("response_format", Some(format))?;
    let kind = fields.get("type").and_then(Value::as_str);
    match kind {
        Some("text") => known("response_format", fields, &["type"], is_null).map(|()| TextFormat::Free),
        Some("json_object") => known("response_format", fields, &["type"], is_null).map(|()| TextFormat::Object),
        Some("json_schema") => {
            known("response_format", fields, &["type", "json_schema"], is_null)?;
            schema(object("response_format.json_schema", fields.get("json_schema"))?)
        }
        _ => invalid_field("response_format.type", "must be 'text', 'json_object' or 'json_schema'"),
    }
}

fn schema(fields: &Map<String, Value>) -> Result<TextFormat> {
    let path = "response_format.json_schema";
    known(path, fields, &["name", "description", "schema", "strict"], is_null)?;
    name(&format!("{path}.name"), fields.get("name"))?;
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

fn tool_choice(choice: &Value) -> Result<Choice> {
    match choice {
        Value::String(mode) => match mode.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            other => invalid_field("tool_choice", &format!("is '{}'. It must be {CHOICES}", shorten(other))),
        },
        Value::Object(fields) if fields.get("type").and_then(Value::as_str) == Some("function") => {
            known("tool_choice", fields, &["type", "function"], is_null)?;
            let function = object("tool_choice.function", fields.get("function"))?;
            known("tool_choice.function", function, &["name"], is_null)?;
            name("tool_choice.function.name", function.get("name")).map(|name| Choice::Named(name.to_owned()))
        }
        _ => invalid_field("tool_choice", &format!("must be {CHOICES}")),
    }
}

/// Null fields count as absent.
fn is_null(_: &str, value: &Value) -> bool {
    value.is_null()
}

const CHOICES: &str = "'none', 'auto', 'required' or {\"type\": \"function\", \"function\": {\"name\": …}}";
