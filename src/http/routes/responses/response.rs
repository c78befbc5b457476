//! A response as OpenAI's API returns it.

use serde::Serialize;
use serde_json::Value;

use super::conversation_field::ConversationField;
use super::reasoning::ReasoningPart;
use crate::calls::responses::item_format::{ItemFormat, ReasoningFormat};
use crate::calls::text::generation::{RunningText, Usage};
use crate::calls::turn::Turn;
use crate::calls::turn::output::{OutputItem, OutputItems};
use crate::clock_rng::Timestamp;
use crate::engine::{TokenInfo, TokenLogprob};
use crate::error::{Error, Result};
use crate::http::error::log_stream_failure;
use crate::http::routes::truncation::Truncation;
use crate::ids::{CustomCallId, FunctionCallId, MessageId, ReasoningId, RequestId, ResponseId};
use crate::service::keys::secret::redact;

/// A response, complete or while it is generated.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ResponseBody {
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// Unix seconds, as `completed_at`.
    pub created_at: i64,
    pub completed_at: Option<i64>,
    /// `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    pub status: &'static str,
    pub error: Option<Failure>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub output: Vec<ItemBody>,
    /// Null until the response is complete.
    pub usage: Option<UsageBody>,
    #[serde(flatten)]
    pub settings: Settings,
}

impl ResponseBody {
    /// A response without output.
    pub fn new(id: ResponseId, created_at: Timestamp, model: String, settings: Settings, status: &'static str) -> Self {
        Self {
            id: id.to_string(),
            object: "response",
            created_at: created_at.as_seconds(),
            completed_at: None,
            status,
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            usage: None,
            settings,
        }
    }
}

/// Encodes a response whose turn is running or complete.
pub struct ResponseEncoder {
    pub id: ResponseId,
    pub created_at: Timestamp,
    pub settings: Settings,
    pub reasoning: ReasoningFormat,
}

impl ResponseEncoder {
    pub fn format(&self, turn: &Turn) -> ItemFormat {
        ItemFormat { response: self.id, calls: turn.call.call_ids, reasoning: self.reasoning }
    }

    /// The response when it starts.
    pub fn started(&self, turn: &Turn) -> ResponseBody {
        let (model, settings) = (turn.call.model.clone(), self.settings.clone());
        ResponseBody::new(self.id, self.created_at, model, settings, "in_progress")
    }

    /// The complete response.
    pub fn complete(&self, turn: &Turn) -> ResponseBody {
        let is_cut_off = turn.output().is_cut_off();
        ResponseBody {
            completed_at: turn.completed_at().map(Timestamp::as_seconds),
            status: if is_cut_off { "incomplete" } else { "completed" },
            incomplete_details: is_cut_off.then_some(IncompleteDetails { reason: "max_output_tokens" }),
            output: self.format(turn).bodies(turn.output()),
            usage: Some(turn.call.usage().into()),
            ..self.started(turn)
        }
    }
}

/// Why a response failed.
#[derive(Clone, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseFailure)]
pub struct Failure {
    pub code: String,
    pub message: String,
}

impl Failure {
    /// The failure of a response that was begun. Its cause is logged. `recorded`: whether its usage was recorded.
    pub fn of(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Self {
        log_stream_failure(error, request_id, recorded);
        // The only code of OpenAI's API for what is not the client's fault.
        let code = if error.code().status() >= 500 { "server_error" } else { error.code().as_str() };
        Self { code: code.to_owned(), message: redact(error.message()).into_owned() }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`.
    pub reason: &'static str,
}

/// What a response repeats of its request, with defaults filled in.
#[derive(Clone, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseSettings)]
pub struct Settings {
    /// Whether it is generated in the background.
    pub background: bool,
    /// The conversation that the response continues and is added to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationField>,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub max_tool_calls: Option<u32>,
    #[schema(value_type = Object)]
    pub metadata: Value,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    pub prompt_cache_key: Option<String>,
    #[schema(value_type = Object)]
    pub reasoning: Value,
    pub safety_identifier: Option<String>,
    /// `default`.
    pub service_tier: &'static str,
    pub store: bool,
    pub temperature: f32,
    #[schema(value_type = Object)]
    pub text: Value,
    #[schema(value_type = serde_json::Value)]
    pub tool_choice: Value,
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    pub top_logprobs: u32,
    pub top_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub truncation: Truncation,
    pub user: Option<String>,
}

/// An item of the output.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseItem)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ItemBody {
    Message {
        id: String,
        role: &'static str,
        status: &'static str,
        content: Vec<Part>,
    },
    /// What the model wrote before its answer: as `summary` if one was requested, else as `content`.
    Reasoning {
        id: String,
        summary: Vec<ReasoningPart>,
        content: Vec<ReasoningPart>,
        /// The text in base64, if it was requested.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
        status: &'static str,
    },
    FunctionCall {
        id: String,
        /// The id that the item with the result names.
        call_id: String,
        name: String,
        /// JSON that matches the tool's schema, as text; cut off if the response is incomplete.
        arguments: String,
        status: &'static str,
    },
    CustomToolCall {
        id: String,
        /// The id that the item with the result names.
        call_id: String,
        name: String,
        /// A text of the tool's format; cut off if the response is incomplete.
        input: String,
        status: &'static str,
    },
}

/// A part of a message.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponsePart)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    OutputText {
        text: String,
        /// Always empty.
        annotations: Vec<String>,
        /// Empty unless requested.
        logprobs: Vec<TokenBody>,
    },
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseToken)]
pub struct TokenBody {
    #[serde(flatten)]
    token: Alternative,
    top_logprobs: Vec<Alternative>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseTokenAlternative)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseUsage)]
pub struct UsageBody {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u32,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseInputTokensDetails)]
struct InputDetails {
    cached_tokens: u32,
    /// Always 0: the prefix cache needs no request of its own.
    cache_write_tokens: u32,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseOutputTokensDetails)]
struct OutputDetails {
    reasoning_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = usage;
        Self {
            input_tokens: prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
        }
    }
}

/// The encoding of items.
impl ItemFormat {
    /// The id of an output item.
    pub fn id(self, index: usize, item: &OutputItem) -> String {
        let bytes = self.output_id(index);
        match item {
            OutputItem::Reasoning(_) => ReasoningId::from_bytes(bytes).to_string(),
            OutputItem::Message { .. } => MessageId::from_bytes(bytes).to_string(),
            OutputItem::Call { .. } => FunctionCallId::from_bytes(bytes).to_string(),
            OutputItem::CustomCall { .. } => CustomCallId::from_bytes(bytes).to_string(),
        }
    }

    /// An item of the output. `status`: its own.
    pub fn body(self, index: usize, item: &OutputItem, status: &'static str) -> ItemBody {
        let id = self.id(index, item);
        match item {
            OutputItem::Reasoning(text) => {
                let (part, format) = (vec![self.reasoning.part(text)], self.reasoning);
                let (summary, content) = if format.is_summary { (part, Vec::new()) } else { (Vec::new(), part) };
                ItemBody::Reasoning { id, summary, content, encrypted_content: format.encrypted(text), status }
            }
            OutputItem::Message { text, tokens } => {
                ItemBody::Message { id, role: "assistant", status, content: vec![part(text, tokens)] }
            }
            OutputItem::Call { call, name, arguments } => ItemBody::FunctionCall {
                id,
                call_id: self.calls.of(0, *call),
                name: name.clone(),
                arguments: arguments.clone(),
                status,
            },
            OutputItem::CustomCall { call, name, input } => ItemBody::CustomToolCall {
                id,
                call_id: self.calls.of(0, *call),
                name: name.clone(),
                input: input.clone(),
                status,
            },
        }
    }

    /// An item when it starts: without parts, or with empty arguments or an empty input.
    pub fn started(self, index: usize, item: &OutputItem) -> ItemBody {
        let id = self.id(index, item);
        match item {
            OutputItem::Reasoning(_) => ItemBody::Reasoning {
                id,
                summary: Vec::new(),
                content: Vec::new(),
                encrypted_content: None,
                status: "in_progress",
            },
            OutputItem::Message { .. } => {
                ItemBody::Message { id, role: "assistant", status: "in_progress", content: Vec::new() }
            }
            OutputItem::Call { call, name, .. } => {
                let empty = OutputItem::Call { call: *call, name: name.clone(), arguments: String::new() };
                self.body(index, &empty, "in_progress")
            }
            OutputItem::CustomCall { call, name, .. } => {
                let empty = OutputItem::CustomCall { call: *call, name: name.clone(), input: String::new() };
                self.body(index, &empty, "in_progress")
            }
        }
    }

    /// All items of a complete output. If it is cut off, the last one is incomplete.
    pub fn bodies(self, output: &OutputItems) -> Vec<ItemBody> {
        let items = output.items();
        let body = |(index, item)| self.body(index, item, status_of(index, items.len(), output.is_cut_off()));
        items.iter().enumerate().map(body).collect()
    }
}

/// The status of an item of a complete output with `count` items.
fn status_of(index: usize, count: usize, is_cut_off: bool) -> &'static str {
    if is_cut_off && index + 1 == count { "incomplete" } else { "completed" }
}

/// The part of a message.
pub fn part(text: &str, tokens: &[TokenInfo]) -> Part {
    Part::OutputText { text: text.to_owned(), annotations: Vec::new(), logprobs: logprobs(tokens) }
}

pub fn logprobs(tokens: &[TokenInfo]) -> Vec<TokenBody> {
    let body = |info: &TokenInfo| TokenBody {
        token: alternative(&info.token),
        top_logprobs: info.top.iter().map(alternative).collect(),
    };
    tokens.iter().map(body).collect()
}

fn alternative(token: &TokenLogprob) -> Alternative {
    let text = String::from_utf8_lossy(&token.bytes).into_owned();
    Alternative { token: text, logprob: token.logprob, bytes: token.bytes.clone() }
}
