//! Response bodies of chats and completions, whole and in lines.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::calls::output_format::output_spec::ToolCallIds;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::GeneratedCall;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::engine::{FinishReason, TokenInfo, TokenLogprob};

/// A response, or a part of one.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaBody)]
pub struct Body<T> {
    /// As the request has it.
    model: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[serde(flatten)]
    content: T,
    /// Whether it is the last part.
    done: bool,
    /// `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<LogprobBody>,
    #[serde(flatten)]
    metrics: Metrics,
}

/// What was generated.
#[derive(Default)]
pub struct Parts {
    /// The reasoning before the text.
    pub thinking: String,
    pub text: String,
    pub calls: Vec<ToolCallBody>,
    /// The tokens of the prompt and of what was generated.
    pub context: Option<Vec<u32>>,
}

/// The content of a body.
pub trait Content: Serialize + 'static {
    fn new(parts: Parts) -> Self;
}

/// That of a chat.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaChatContent)]
pub struct ChatContent {
    message: MessageBody,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaMessage)]
struct MessageBody {
    role: &'static str,
    content: String,
    /// The reasoning before the content.
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallBody>,
}

/// That of a completion.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaGenerateContent)]
pub struct GenerateContent {
    response: String,
    /// The reasoning before the response.
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    /// The tokens of the prompt and of what was generated, in the last part: the `context` of a request that continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Vec<u32>>,
}

impl Content for ChatContent {
    /// A chat is continued by its messages.
    fn new(Parts { thinking, text, calls, .. }: Parts) -> Self {
        Self { message: MessageBody { role: "assistant", content: text, thinking, tool_calls: calls } }
    }
}

impl Content for GenerateContent {
    /// There are no tools.
    fn new(Parts { thinking, text, context, .. }: Parts) -> Self {
        Self { response: text, thinking, context }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaToolCall)]
pub struct ToolCallBody {
    id: String,
    function: FunctionBody,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaFunction)]
struct FunctionBody {
    index: u32,
    name: String,
    /// The order of the fields is that of the model.
    #[schema(value_type = Object)]
    arguments: Box<RawValue>,
}

impl ToolCallBody {
    pub fn new(ids: ToolCallIds, call: GeneratedCall<'_>) -> Self {
        let GeneratedCall { index, name, .. } = call;
        let function = FunctionBody { index, name: name.to_owned(), arguments: call.arguments_json() };
        Self { id: ids.of(0, index), function }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaLogprob)]
pub struct LogprobBody {
    #[serde(flatten)]
    token: TokenBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<TokenBody>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaToken)]
struct TokenBody {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl From<&TokenInfo> for LogprobBody {
    fn from(info: &TokenInfo) -> Self {
        let body = |token: &TokenLogprob| TokenBody {
            token: String::from_utf8_lossy(&token.bytes).into_owned(),
            logprob: token.logprob,
            bytes: token.bytes.clone(),
        };
        Self { token: body(&info.token), top_logprobs: info.top.iter().map(body).collect() }
    }
}

/// Numbers of tokens, and durations in nanoseconds. Only in the last part of a response that has text.
#[derive(Default, Serialize, utoipa::ToSchema)]
#[schema(as = OllamaMetrics)]
pub struct Metrics {
    /// From the request to the last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    /// Until the model was loaded and the prompt tokenised.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<u32>,
    /// From then to the first token. Includes the time in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_count: Option<u32>,
    /// From the first token to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_duration: Option<u64>,
}

impl Metrics {
    /// `received`: when the request arrived, as uptime of the server.
    fn new(running: &impl RunningText, received: Duration, now: Duration) -> Self {
        let (timings, usage) = (running.generation().timings(), running.usage());
        let (first, last) = (timings.first.unwrap_or(now), timings.last.unwrap_or(now));
        // Clients divide by the durations.
        let between = |from: Duration, to: Duration| Some(nanoseconds(to.saturating_sub(from)).max(1));
        Self {
            total_duration: between(received, last),
            load_duration: between(received, timings.submitted),
            prompt_eval_count: Some(usage.prompt_tokens),
            prompt_eval_duration: between(timings.submitted, first),
            eval_count: Some(usage.completion_tokens),
            eval_duration: between(first, last),
        }
    }
}

pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The bodies of calls. `ids`: `None` if the response has none.
pub fn call_bodies<'a>(ids: Option<ToolCallIds>, calls: impl Iterator<Item = GeneratedCall<'a>>) -> Vec<ToolCallBody> {
    ids.map(|ids| calls.map(|call| ToolCallBody::new(ids, call)).collect()).unwrap_or_default()
}

/// What all bodies of a response share.
pub struct Head {
    /// The name that the client sent.
    pub model: String,
    pub clock_rng: Arc<dyn ClockRng>,
    /// When the request arrived, as uptime of the server.
    pub received: Duration,
}

impl Head {
    /// A part that is not the last.
    pub fn part<T: Content>(&self, parts: Parts, tokens: &[TokenInfo]) -> Body<T> {
        let logprobs = tokens.iter().map(LogprobBody::from).collect();
        Body { logprobs, ..self.body(parts, None) }
    }

    /// The last part.
    pub fn last<T: Content>(&self, turn: &Turn<impl RunningText>) -> Body<T> {
        self.complete(Parts::default(), turn)
    }

    /// The response of a request that generates nothing: its model was loaded or unloaded.
    pub fn without_text<T: Content>(&self, done_reason: &'static str) -> Body<T> {
        self.body(Parts::default(), Some(done_reason))
    }

    /// The whole response.
    pub fn whole<T: Content>(&self, turn: &Turn<impl RunningText>) -> Body<T> {
        let output = turn.output();
        let calls = call_bodies(turn.call.call_ids(), output.calls());
        let parts = Parts { thinking: output.reasoning(), text: output.text(), calls, context: None };
        let logprobs = output.tokens.iter().map(LogprobBody::from).collect();
        Body { logprobs, ..self.complete(parts, turn) }
    }

    /// With the tokens of the prompt and of the output, unless an upstream model has them.
    fn complete<T: Content>(&self, parts: Parts, turn: &Turn<impl RunningText>) -> Body<T> {
        let (running, output) = (&turn.call, turn.output());
        let context = running.prompt().map(|prompt| [prompt, &output.token_ids].concat());
        let metrics = Metrics::new(running, self.received, self.clock_rng.uptime());
        let parts = Parts { context, ..parts };
        let reason = match output.finish_reason() {
            FinishReason::Stop | FinishReason::StopString(_) | FinishReason::ToolCalls => "stop",
            FinishReason::Length => "length",
        };
        Body { metrics, ..self.body(parts, Some(reason)) }
    }

    fn body<T: Content>(&self, parts: Parts, done_reason: Option<&'static str>) -> Body<T> {
        Body {
            model: self.model.clone(),
            created_at: self.clock_rng.now(),
            content: T::new(parts),
            done: done_reason.is_some(),
            done_reason,
            logprobs: Vec::new(),
            metrics: Metrics::default(),
        }
    }
}
