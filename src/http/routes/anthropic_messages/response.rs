//! A message as Anthropic's API returns it.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::calls::text::chat::RunningChat;
use crate::calls::text::generation::{RunningText, Usage};
use crate::calls::turn::Turn;
use crate::calls::turn::output::{GeneratedCall, OutputItem, OutputItems};
use crate::engine::FinishReason;
use crate::ids::MessageId;

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = AnthropicMessageBody)]
pub struct MessageBody {
    pub id: String,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: String,
    content: Vec<ContentBlock>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    pub usage: UsageBody,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// What the model wrote before its answer.
    Thinking {
        thinking: String,
        /// Not empty, because clients leave out blocks without a signature. It is not checked.
        signature: String,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// The order of the fields is that of the model.
        #[schema(value_type = Object)]
        input: Box<RawValue>,
    },
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = AnthropicUsage)]
pub struct UsageBody {
    /// Tokens of the prompt that were not in the prefix cache.
    input_tokens: u32,
    /// Always zero: the prefix cache needs no request of its own.
    cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were in the prefix cache.
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(Usage { prompt_tokens, cached_tokens, completion_tokens, .. }: Usage) -> Self {
        Self {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens: completion_tokens,
        }
    }
}

/// Why a message ended, and the stop sequence that ended it.
pub fn stop_reason(running: &RunningChat, output: &OutputItems) -> (&'static str, Option<String>) {
    match output.finish_reason() {
        FinishReason::Stop => ("end_turn", None),
        FinishReason::StopString(index) => ("stop_sequence", running.stop.get(index).cloned()),
        FinishReason::ToolCalls => ("tool_use", None),
        FinishReason::Length if running.is_limited_by_context => ("model_context_window_exceeded", None),
        FinishReason::Length => ("max_tokens", None),
    }
}

/// The signature of the message's reasoning.
pub fn signature(running: &RunningChat) -> String {
    message_id(running)
}

fn message_id(running: &RunningChat) -> String {
    MessageId::from_bytes(running.id.to_bytes()).to_string()
}

/// The message before anything is generated.
pub fn empty_message(running: &RunningChat) -> MessageBody {
    MessageBody {
        id: message_id(running),
        r#type: "message",
        role: "assistant",
        model: running.model.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: running.usage().into(),
    }
}

/// The whole message. Each item of the output is a block.
pub fn message(turn: &Turn) -> MessageBody {
    let (running, output) = (&turn.call, turn.output());
    let (stop_reason, stop_sequence) = stop_reason(running, output);
    let block = |item: &OutputItem| match item {
        OutputItem::Reasoning(text) => ContentBlock::Thinking { thinking: text.clone(), signature: signature(running) },
        OutputItem::Message { text, .. } => ContentBlock::Text { text: text.clone() },
        OutputItem::Call { call, name, arguments } | OutputItem::CustomCall { call, name, input: arguments } => {
            let call = GeneratedCall { index: *call, name, arguments };
            let id = running.call_ids.of(0, call.index);
            ContentBlock::ToolUse { id, name: name.clone(), input: call.arguments_json() }
        }
    };
    let content = output.items().iter().map(block).collect();
    MessageBody { content, stop_reason: Some(stop_reason), stop_sequence, ..empty_message(running) }
}
