//! The APIs that clients speak, each a row with what the HTTP layer must know of it: which requests are for it, and how
//! it writes errors. What its handlers do is in its folder under `routes`, and so is its row.
//!
//! This file has the type of the rows and the row of OpenAI's API. The list of the rows is in a file of its own, because
//! the rows import the type.

mod list;

use actix_web::HttpRequest;
use serde_json::{Value, json};

pub use self::list::{APIS, below_own_prefix, of};
use crate::error::{Code, Error};
use crate::ids::RequestId;
use crate::service::keys::secret::redact;

/// An API.
pub struct ApiFormat {
    /// The prefix of its paths, if they are not below the mounts. It then has one format, so it is no mount.
    pub prefix: Option<&'static str>,
    /// True for requests outside of all prefixes that are for it.
    pub is_for: fn(&HttpRequest) -> bool,
    /// The tag of its routes in the OpenAPI document. `None`: all tags that no other API has.
    pub tag: Option<&'static str>,
    /// The header in which its clients expect the request ID, besides `x-request-id`.
    pub request_id_header: Option<&'static str>,
    /// The status of a response with an error.
    pub error_status: fn(Code) -> u16,
    /// The body of a response with an error.
    pub error_body: fn(&Error, Option<RequestId>) -> Value,
    /// The name of its errors in the OpenAPI document.
    pub error_name: &'static str,
    pub error_description: &'static str,
    pub error_schema: fn() -> Value,
}

/// OpenAI's API, and the default for the rows of others.
pub const OPENAI: ApiFormat = ApiFormat {
    prefix: None,
    is_for: |_| false,
    tag: None,
    request_id_header: None,
    error_status: Code::status,
    error_body,
    error_name: "Error",
    error_description: "An error; `error.code` identifies it.",
    error_schema,
};

fn error_body(error: &Error, request_id: Option<RequestId>) -> Value {
    json!({ "error": {
        "message": redact(error.message()),
        "type": error.code().kind(),
        "code": error.code().as_str(),
        "param": error.param_name().map(redact),
        "request_id": request_id,
    } })
}

fn error_schema() -> Value {
    let mut kinds: Vec<_> = Code::ALL.iter().map(|code| code.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let fields = json!({
        "message": { "type": "string", "description": "What is wrong, and what is accepted." },
        "type": { "type": "string", "enum": kinds },
        "code": code_schema(),
        "param": { "type": ["string", "null"], "description": "The path of the field that the error is about." },
        "request_id": { "type": "string" },
    });
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["message", "type", "code", "param", "request_id"],
            "properties": fields,
        } },
    })
}

/// The schema of an error's code, which the errors of other APIs have, too.
pub fn code_schema() -> Value {
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({ "type": "string", "enum": codes })
}
