//! Messages in requests, for `/openapi.json`. They are decoded by `content`.

use utoipa::ToSchema;

#[derive(ToSchema)]
#[expect(dead_code, reason = "a shape for the document; messages are decoded from JSON")]
pub struct AnthropicMessage {
    role: AnthropicRole,
    content: AnthropicContent,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "as above")]
enum AnthropicRole {
    User,
    Assistant,
    System,
}

#[derive(serde::Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "as above")]
enum AnthropicContent {
    Text(String),
    Blocks(Vec<AnthropicBlock>),
}

/// Besides `type`, a block has the fields of its type.
#[derive(serde::Deserialize, ToSchema)]
#[expect(dead_code, reason = "as above")]
struct AnthropicBlock {
    r#type: String,
    text: Option<String>,
}
