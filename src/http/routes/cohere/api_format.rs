//! The prefix and the errors of Cohere's API.

use serde_json::{Value, json};

use crate::error::Error;
use crate::http::api_format::{ApiFormat, OPENAI, code_schema};
use crate::ids::RequestId;
use crate::service::keys::secret::redact;

pub const PREFIX: &str = "/v2";

pub const COHERE: ApiFormat = ApiFormat {
    prefix: Some(PREFIX),
    tag: Some("cohere"),
    error_body,
    error_name: "CohereError",
    error_description: "An error of Cohere's API; `code` identifies it.",
    error_schema,
    ..OPENAI
};

/// Cohere's own errors have no `code` and no `param`.
fn error_body(error: &Error, request_id: Option<RequestId>) -> Value {
    json!({
        "id": request_id,
        "message": redact(error.message()),
        "code": error.code().as_str(),
        "param": error.param_name().map(redact),
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["id", "message", "code", "param"],
        "properties": {
            "id": { "type": "string" },
            "message": { "type": "string", "description": "What is wrong, and what is accepted." },
            "code": code_schema(),
            "param": { "type": ["string", "null"], "description": "The path of the field that the error is about." },
        },
    })
}
