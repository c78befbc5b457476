//! The request of Anthropic's Messages API. Every field is supported, ignored because it cannot change the result, or
//! named in a header.
//!
//! Clients get less instead of an error where the API leaves no other choice. `max_tokens` is required, and coding
//! agents send 32,000 to every model; so generation ends with the context, and the stop reason says so. Agents send new
//! fields and tools with each release; so these are left out, and a header names them. What a person has typed is never
//! left out: an image in a user's message is refused.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::message_schema::AnthropicMessage;
use super::thinking::{Thinking, thinking};
use super::{content, output};
use crate::calls::conversations::context::ConversationContextRequest;
use crate::calls::text::chat::ChatCall;
use crate::engine::PromptOptions;
use crate::error::Result;
use crate::http::routes::prompt_fields::end_of_messages;
use crate::http::routes::sampling_fields::{CheckedSampling, SamplingFields, check_stops, parameters};
use crate::http::unknown_fields::unknown_names;
use crate::service::validation::json_fields::invalid_field;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 13] = [
    "metadata",
    "service_tier",
    "cache_control",
    "context_management",
    "compaction",
    "container",
    "diagnostics",
    "inference_geo",
    "speed",
    "fallbacks",
    "billing_policy",
    "user_profile_id",
    "workspace_id",
];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct MessagesRequest {
    /// Id of an installed model.
    model: String,
    /// Maximum number of tokens to generate. If the model's context has room for fewer, generation ends there with the
    /// stop reason `model_context_window_exceeded`. Required, but not for counting tokens.
    max_tokens: Option<u32>,
    /// Messages of the roles `user` and `assistant`; if the last one is the assistant's, it is continued. Blocks: `text`,
    /// `tool_use`, `tool_result`, `thinking`, `document` with text, `search_result`.
    #[schema(value_type = Vec<AnthropicMessage>)]
    messages: Vec<Value>,
    /// The system prompt: a text, or an array of text blocks.
    #[schema(value_type = Option<Object>)]
    system: Option<Value>,
    /// Tools with an `input_schema`, at most 128. The input of calls always matches their schemas.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `{"type": "auto" | "any" | "tool" | "none"}`, with `name` and `disable_parallel_tool_use`.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Up to 16.
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    /// 0–2, 0.8 if absent.
    temperature: Option<f32>,
    /// Above 0 up to 1, 0.95 if absent.
    top_p: Option<f32>,
    /// 40 if absent; 0 is off.
    top_k: Option<u32>,
    /// `format`: a JSON schema that the text matches. `effort`: how much the model reasons, if its template knows it.
    #[schema(value_type = Option<Object>)]
    output_config: Option<Value>,
    /// The earlier name of `output_config.format`.
    #[schema(value_type = Option<Object>)]
    output_format: Option<Value>,
    /// `{"type": "enabled" | "adaptive" | "disabled"}`, with `budget_tokens`: max tokens of the reasoning. Disabled if
    /// absent.
    #[schema(value_type = Option<Object>)]
    thinking: Option<Value>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// A validated request.
pub struct Checked {
    pub call: ChatCall,
    pub is_streamed: bool,
    /// The fields and tools that are left out.
    pub ignored: Vec<String>,
}

impl MessagesRequest {
    /// Validates each field; the module `calls` checks what depends on the model. `generates`: whether a message is to be
    /// generated.
    pub fn check(self, generates: bool) -> Result<Checked> {
        let max_tokens = match self.max_tokens {
            None if generates => {
                return invalid_field("max_tokens", "is missing. Send how many tokens may be generated");
            }
            given => given.map(|count| (count, "max_tokens")),
        };
        let Thinking { variables, max_tokens: max_reasoning_tokens } =
            thinking(self.thinking.as_ref(), self.output_config.as_ref())?;
        let mut ignored = unknown_names(&self.rest, |name, _| IGNORED.contains(&name));
        let format = output::format(self.output_config.as_ref(), self.output_format.as_ref())?;
        let output = output::request(
            self.tools.as_deref().unwrap_or_default(),
            self.tool_choice.as_ref(),
            format,
            &mut ignored,
        )?;
        let given = [
            ("temperature", self.temperature.map(f64::from)),
            ("top_p", self.top_p.map(f64::from)),
            ("top_k", self.top_k.map(f64::from)),
        ];
        let fields = SamplingFields { parameters: parameters(&given)?, ..SamplingFields::default() };
        let CheckedSampling { sampling, .. } = fields.check(max_tokens, false)?;
        let stop = self.stop_sequences.map(|stops| check_stops("stop_sequences", stops)).transpose()?;
        let mut messages = content::system(self.system.as_ref())?;
        content::append(&self.messages, &mut messages)?;
        let end = end_of_messages(&messages)?;
        let call = ChatCall {
            model: Some(self.model),
            messages,
            context: ConversationContextRequest::default(),
            prompt: PromptOptions { end, variables },
            max_reasoning_tokens,
            output,
            choices: 1,
            max_tokens,
            sampling,
            seed: None,
            stop,
            logprobs: None,
            prompt_logprobs: None,
        };
        Ok(Checked { call, is_streamed: self.stream.unwrap_or(false), ignored })
    }
}
