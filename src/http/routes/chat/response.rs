//! OpenAI's response format, complete and in chunks.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;

use super::conversation_fields::{self, ConversationRef};
use crate::calls::output_format::output_spec::ToolCallIds;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{GeneratedCall, OutputItem, OutputItems, Step};
use crate::engine::{TokenInfo, TokenLogprob};
use crate::http::routes::completion_body::{UsageBody, finish_reason};
use crate::http::routes::prompt_logprobs::{self, PromptLogprobs};

#[derive(Serialize, utoipa::ToSchema)]
pub struct Completion {
    created: i64,
    model: String,
    choices: Vec<WholeChoice>,
    usage: UsageBody,
    /// Stays the same as long as nothing changes that decides the output of requests with the same seed. Null for upstream
    /// models.
    system_fingerprint: Option<String>,
    /// Present if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    /// Present with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<u32>>)]
    prompt_token_ids: Option<Arc<[u32]>>,
    /// Present if `conversation_id` was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationRef>,
    /// How many of the conversation's oldest messages were dropped, if truncation was enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_messages: Option<usize>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct WholeChoice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<Logprobs>,
    /// All generated tokens, also those without text. Present with `return_token_ids`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    token_ids: Vec<u32>,
    finish_reason: &'static str,
}

#[derive(Serialize, utoipa::ToSchema)]
struct AssistantMessage {
    role: &'static str,
    /// What the model wrote before its answer, if it reasons.
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    /// The same under its newer name.
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning: String,
    /// Null if the response contains only tool calls.
    content: Option<String>,
    refusal: Option<String>,
    /// Tool calls; answer each with a message of the role `tool`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ChatToolCall)]
struct ToolCall {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Function {
    name: String,
    /// JSON that matches the tool's schema, as text; cut off if `finish_reason` is `length`.
    arguments: String,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct Logprobs {
    content: Vec<TokenBody>,
    refusal: Option<Vec<String>>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct TokenBody {
    #[serde(flatten)]
    token: Alternative,
    top_logprobs: Vec<Alternative>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// One event of a stream.
#[derive(Serialize)]
pub struct Chunk<'a> {
    pub id: String,
    pub object: &'static str,
    pub created: i64,
    pub model: &'a str,
    pub system_fingerprint: Option<&'a str>,
    pub choices: Vec<ChunkChoice<'a>>,
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Arc<[u32]>>,
    /// Outer `None` leaves the field out; inner `None` is the null that `include_usage` requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageBody>>,
    /// Both are in the chunk with the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_messages: Option<usize>,
}

#[derive(Serialize)]
pub struct ChunkChoice<'a> {
    pub index: u32,
    pub delta: Delta<'a>,
    pub logprobs: Option<Logprobs>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub token_ids: &'a [u32],
    pub finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
pub struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// The same text under both names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Cow<'a, str>>,
    /// Inner `None` is null, which starts a response that may have no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<Cow<'a, str>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallDelta<'a>>,
}

/// A fragment of a call; `id`, `type` and the name only in the first.
#[derive(Serialize)]
pub struct CallDelta<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: String,
}

/// Body of a complete response.
pub fn completion(turn: &Turn, includes_reasoning: bool) -> Completion {
    let running = &turn.call;
    let prompt = running.prompt_logprobs.zip(turn.output().prompt.as_deref());
    let choice = |(index, output): (usize, &OutputItems)| {
        let (reasoning, text) = (if includes_reasoning { output.reasoning() } else { String::new() }, output.text());
        let tool_calls = tool_calls(running.call_ids, u32::try_from(index).unwrap_or(u32::MAX), output);
        WholeChoice {
            index,
            message: AssistantMessage {
                role: "assistant",
                reasoning_content: reasoning.clone(),
                reasoning,
                content: Some(text).filter(|text| tool_calls.is_empty() || !text.is_empty()),
                refusal: None,
                tool_calls,
            },
            logprobs: logprobs(&output.tokens, running.logprobs),
            token_ids: output.token_ids.clone(),
            finish_reason: finish_reason(output.finish_reason()),
        }
    };
    Completion {
        created: running.created.as_seconds(),
        model: running.model.clone(),
        choices: turn.outputs().iter().enumerate().map(choice).collect(),
        usage: running.usage().into(),
        system_fingerprint: running.system_fingerprint().map(str::to_owned),
        prompt_logprobs: prompt.map(|(top, tokens)| prompt_logprobs::body(tokens, top)),
        prompt_token_ids: running.prompt_token_ids.clone(),
        conversation: conversation_fields::conversation(running),
        truncated_messages: running.truncated,
    }
}

fn tool_calls(ids: ToolCallIds, choice: u32, output: &OutputItems) -> Vec<ToolCall> {
    let call = |GeneratedCall { index, name, arguments }: GeneratedCall<'_>| ToolCall {
        id: ids.of(choice, index),
        r#type: "function",
        function: Function { name: name.to_owned(), arguments: arguments.to_owned() },
    };
    output.calls().map(call).collect()
}

/// The parts of tool calls that steps add, in OpenAI's streaming format. Some clients read only one entry of a call per
/// chunk, so each call has one.
pub fn call_deltas(ids: ToolCallIds, choice: u32, steps: &[Step]) -> Vec<CallDelta<'_>> {
    let mut deltas: Vec<CallDelta<'_>> = Vec::new();
    for step in steps {
        let (index, name, arguments) = match step {
            Step::Start(OutputItem::Call { call, name, arguments }) => (*call, Some(name.as_str()), arguments),
            Step::Arguments { call, text } => (*call, None, text),
            _ => continue,
        };
        match deltas.last_mut().filter(|last| last.index == index) {
            Some(last) => last.function.arguments.push_str(arguments),
            None => deltas.push(CallDelta {
                index,
                id: name.map(|_| ids.of(choice, index)),
                r#type: name.map(|_| "function"),
                function: FunctionDelta { name, arguments: arguments.clone() },
            }),
        }
    }
    deltas
}

/// `None` unless the caller requested log-probabilities.
pub fn logprobs(tokens: &[TokenInfo], include: bool) -> Option<Logprobs> {
    let body = |info: &TokenInfo| TokenBody {
        token: alternative(&info.token),
        top_logprobs: info.top.iter().map(alternative).collect(),
    };
    include.then(|| Logprobs { content: tokens.iter().map(body).collect(), refusal: None })
}

fn alternative(token: &TokenLogprob) -> Alternative {
    let text = String::from_utf8_lossy(&token.bytes).into_owned();
    Alternative { token: text, logprob: token.logprob, bytes: token.bytes.clone() }
}
