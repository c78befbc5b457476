//! The prefix and the errors of Ollama's API.

use actix_web::web::Bytes;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::http::api_format::{ApiFormat, OPENAI};
use crate::http::error::log_stream_failure;
use crate::http::ndjson;
use crate::ids::RequestId;
use crate::service::keys::secret::redact;

pub const PREFIX: &str = "/api";

pub const OLLAMA: ApiFormat = ApiFormat {
    prefix: Some(PREFIX),
    tag: Some("ollama"),
    error_body,
    error_name: "OllamaError",
    error_description: "An error of Ollama's API.",
    error_schema,
    ..OPENAI
};

fn error_body(error: &Error, _: Option<RequestId>) -> Value {
    json!({ "error": redact(error.message()) })
}

/// The last line of a stream that fails. `recorded`: whether its usage was recorded.
pub fn in_stream(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Bytes {
    log_stream_failure(error, request_id, recorded);
    ndjson::line(&error_body(error, request_id))
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": { "type": "string", "description": "What is wrong, and what is accepted." } },
    })
}
