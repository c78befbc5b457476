//! The input of a response, for `/openapi.json`. It is decoded by `input`.

use utoipa::ToSchema;

#[derive(serde::Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ResponseInput)]
#[expect(dead_code, reason = "a shape for the document; items are decoded from JSON")]
pub enum InputSchema {
    Text(String),
    Items(Vec<InputItem>),
}

/// A message, or with another `type` an item with the fields of that type.
#[derive(serde::Deserialize, ToSchema)]
#[schema(as = ResponseInputItem)]
#[expect(dead_code, reason = "as above")]
pub struct InputItem {
    /// `message` if absent.
    r#type: Option<String>,
    /// Of a message: `user`, `assistant`, `system` or `developer`.
    role: Option<String>,
    /// Of a message: a text, or an array of parts.
    #[schema(value_type = Option<serde_json::Value>)]
    content: Option<serde_json::Value>,
}
