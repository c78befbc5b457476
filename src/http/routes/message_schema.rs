//! Messages in requests and responses. They are kept as the JSON that was sent and are validated by the
//! service. The types here are for `/openapi.json`.

use serde_json::value::RawValue;
use utoipa::ToSchema;

/// One message of a chat or a conversation.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a shape for the document; messages stay the JSON that was sent")]
pub struct Message {
    role: Role,
    /// A text or an array of parts; null in an assistant's message without text.
    #[schema(nullable, required = false)]
    content: Content,
    /// Name of the participant, if several have the same role.
    name: Option<String>,
    /// Only in messages of the role `assistant`.
    tool_calls: Option<Vec<ToolCall>>,
    /// The ID of the tool call to which this is the result; required in messages of the role `tool`.
    tool_call_id: Option<String>,
    refusal: Option<String>,
    /// The reasoning of an assistant's message; also as `reasoning`. The chat template decides whether the model sees it.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "as above")]
enum Role {
    Developer,
    System,
    User,
    Assistant,
    Tool,
}

#[derive(serde::Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "as above")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// Besides `type`, a part has a field with the name of its type: `text`, `image_url`, `input_audio`, `file`
/// or `refusal`.
#[derive(serde::Deserialize, ToSchema)]
#[expect(dead_code, reason = "as above")]
struct Part {
    r#type: String,
    text: Option<String>,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "as above")]
struct ToolCall {
    id: String,
    /// `function`.
    r#type: String,
    function: CalledFunction,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "as above")]
struct CalledFunction {
    name: String,
    /// JSON, as text.
    arguments: String,
}

/// The JSON of each message, as it was sent.
pub fn to_json(sent: &[Box<RawValue>]) -> Vec<String> {
    sent.iter().map(|json| json.get().to_owned()).collect()
}

/// Stored JSON, sent unchanged.
pub fn from_json(stored: Vec<String>) -> Vec<Box<RawValue>> {
    stored.into_iter().filter_map(|json| RawValue::from_string(json).ok()).collect()
}
