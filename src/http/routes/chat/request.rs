//! OpenAI's chat request. Every field is supported, ignored because it cannot change the result, or rejected by name.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::conversation_fields;
use super::output_format::{self, ResponseFormat, ToolChoice};
use crate::calls::chat::ChatCall;
use crate::calls::conversation_context::no_model;
use crate::calls::messages;
use crate::display::shorten;
use crate::engine::{MAX_CHOICES, MAX_STOPS, MAX_TOP_LOGPROBS, Sampling};
use crate::error::{Error, Result};
use crate::http::routes::agents::Truncation;
use crate::http::routes::message_schema::{self, Message};
use crate::http::unknown_fields::unsupported;
use crate::service::precondition::IfMatch;

const MAX_STOP_BYTES: usize = 256;
const MAX_BIASES: usize = 1024;

/// Default sampling parameters, those of llama.cpp. Small models produce nonsense if every token of the vocabulary can
/// be sampled.
const TEMPERATURE: f32 = 0.8;
const TOP_P: f32 = 0.95;
const TOP_K: u32 = 40;
const MIN_P: f32 = 0.05;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 12] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "prediction",
    "moderation",
    "verbosity",
    "reasoning_effort",
];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct ChatRequest {
    /// Id of an installed model. May be absent with an agent that has one.
    model: Option<String>,
    /// The conversation so far, in order; with `conversation_id`, the messages after the stored transcript.
    #[schema(value_type = Vec<Message>)]
    messages: Vec<Box<RawValue>>,
    /// A stored conversation. Its transcript precedes `messages`; after a successful response, `messages` and the
    /// response are appended to it. Only with `n: 1`.
    conversation_id: Option<String>,
    /// An agent, whose instructions, model and memory settings apply.
    agent_id: Option<String>,
    /// What happens if the conversation is too long; absent: the agent's setting, else `disabled`.
    truncation: Option<Truncation>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// 0–2, 0.8 if absent; 0 always picks the most likely token.
    temperature: Option<f32>,
    /// Above 0 up to 1, 0.95 if absent.
    top_p: Option<f32>,
    /// Sample from this many most likely tokens, 40 if absent; 0 is off.
    top_k: Option<u32>,
    /// Sample from tokens with at least this probability, relative to the most likely one: 0–1, 0.05 if absent.
    min_p: Option<f32>,
    /// −2 to 2.
    frequency_penalty: Option<f32>,
    /// −2 to 2.
    presence_penalty: Option<f32>,
    /// Above 0 up to 10; 1 is off.
    repetition_penalty: Option<f32>,
    /// The same seed and request give the same output.
    seed: Option<i64>,
    /// One string, or up to 16.
    stop: Option<Stop>,
    /// Number of choices, 1–16.
    n: Option<u32>,
    max_completion_tokens: Option<u32>,
    /// The deprecated name of `max_completion_tokens`.
    max_tokens: Option<u32>,
    /// Min tokens before generation may stop.
    min_tokens: Option<u32>,
    /// Continue past the model's end-of-sequence token.
    ignore_eos: Option<bool>,
    logprobs: Option<bool>,
    /// 0–20; needs `logprobs: true`.
    top_logprobs: Option<u32>,
    /// Token id → −100 to 100.
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Format of the output, enforced during generation.
    #[schema(value_type = Option<ResponseFormat>)]
    response_format: Option<Value>,
    /// Function tools, at most 128; absent: the agent's. Arguments of calls always match their schemas.
    #[schema(value_type = Option<Vec<output_format::FunctionTool>>)]
    tools: Option<Box<RawValue>>,
    /// `auto` if absent.
    #[schema(value_type = Option<ToolChoice>)]
    tool_choice: Option<Value>,
    /// Whether one response may contain several calls; true if absent.
    parallel_tool_calls: Option<bool>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
pub struct StreamOptions {
    /// Send an additional chunk with the usage before the end.
    #[serde(default)]
    pub include_usage: bool,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// A validated request.
pub struct CheckedRequest {
    pub call: ChatCall,
    /// Stream options; `None` if not streaming.
    pub stream: Option<StreamOptions>,
}

impl ChatRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    pub fn check(self, if_match: Option<IfMatch>) -> Result<CheckedRequest> {
        refuse_unsupported(&self.rest)?;
        let sampling = self.sampling()?;
        let choices = self.n.unwrap_or(1);
        within("n", choices, 1, MAX_CHOICES)?;
        let max_tokens = self.max_tokens()?;
        let logprobs = self.logprobs()?;
        let stream = self.stream()?;
        let output = output_format::output_request(
            self.response_format.as_ref(),
            self.tools.as_deref(),
            self.tool_choice.as_ref(),
            self.parallel_tool_calls,
        )?;
        let sent = message_schema::to_json(&self.messages);
        let messages = messages::parse(&sent, self.conversation_id.is_some())?;
        let named = conversation_fields::ConversationFields {
            conversation: self.conversation_id,
            agent: self.agent_id,
            truncation: self.truncation,
        };
        let context = named.check(sent, choices, if_match)?;
        if self.model.is_none() && context.agent.is_none() {
            return Err(no_model());
        }
        let call = ChatCall {
            model: self.model,
            messages,
            context,
            output,
            choices,
            max_tokens,
            sampling,
            seed: self.seed.map(i64::cast_unsigned),
            stop: stop(self.stop)?,
            logprobs,
        };
        Ok(CheckedRequest { call, stream })
    }

    fn sampling(&self) -> Result<Sampling> {
        Ok(Sampling {
            temperature: number("temperature", self.temperature, TEMPERATURE, 0.0, 2.0)?,
            top_p: positive("top_p", self.top_p, TOP_P, 1.0)?,
            top_k: self.top_k.unwrap_or(TOP_K),
            min_p: number("min_p", self.min_p, MIN_P, 0.0, 1.0)?,
            frequency_penalty: number("frequency_penalty", self.frequency_penalty, 0.0, -2.0, 2.0)?,
            presence_penalty: number("presence_penalty", self.presence_penalty, 0.0, -2.0, 2.0)?,
            repetition_penalty: positive("repetition_penalty", self.repetition_penalty, 1.0, 10.0)?,
            seed: 0,
            logit_bias: biases(self.logit_bias.as_ref())?,
            min_tokens: self.min_tokens.unwrap_or(0),
            ignore_eos: self.ignore_eos.unwrap_or(false),
        })
    }

    fn max_tokens(&self) -> Result<Option<(u32, &'static str)>> {
        let newer = self.max_completion_tokens.map(|count| (count, "max_completion_tokens"));
        let older = self.max_tokens.map(|count| (count, "max_tokens"));
        if let (Some((newer, field)), Some((older, _))) = (newer, older)
            && newer != older
        {
            let message = format!("'max_completion_tokens' is {newer} but 'max_tokens' is {older}. Send one of them.");
            return Err(Error::invalid(field, message));
        }
        let chosen = newer.or(older);
        if let Some((0, field)) = chosen {
            return Err(Error::invalid(field, format!("'{field}' is 0. Ask for at least 1 token, or leave it out.")));
        }
        if let (Some(min), Some((max, field))) = (self.min_tokens, chosen)
            && min > max
        {
            return Err(Error::invalid(
                "min_tokens",
                format!("'min_tokens' is {min}, more than '{field}', which is {max}."),
            ));
        }
        Ok(chosen)
    }

    fn logprobs(&self) -> Result<Option<u8>> {
        let top = within("top_logprobs", self.top_logprobs.unwrap_or(0), 0, MAX_TOP_LOGPROBS.into())?;
        let top = u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS);
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, _) => Ok(Some(top)),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => Err(Error::invalid("top_logprobs", "'top_logprobs' requires logprobs: true.")),
        }
    }

    fn stream(&self) -> Result<Option<StreamOptions>> {
        let streamed = self.stream.unwrap_or(false);
        match self.stream_options {
            Some(_) if !streamed => Err(Error::invalid("stream_options", "'stream_options' requires stream: true.")),
            options => Ok(streamed.then(|| options.unwrap_or_default())),
        }
    }
}

/// OpenAI fields that this server does not support: rejected if they would change the output.
fn refuse_unsupported(rest: &Map<String, Value>) -> Result<()> {
    let idle = |name: &str, value: &Value| match name {
        _ if value.is_null() || IGNORED.contains(&name) => true,
        "functions" => value.as_array().is_some_and(Vec::is_empty),
        "function_call" => matches!(value.as_str(), Some("none" | "auto")),
        "modalities" => value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text")),
        _ => false,
    };
    rest.iter()
        .find(|(name, value)| !idle(name, value))
        .map_or(Ok(()), |(name, _)| Err(unsupported::<ChatRequest>(name)))
}

fn number(field: &str, given: Option<f32>, default: f32, min: f32, max: f32) -> Result<f32> {
    within(field, given.unwrap_or(default), min, max)
}

/// A factor above 0 up to `max`.
fn positive(field: &str, given: Option<f32>, default: f32, max: f32) -> Result<f32> {
    let value = given.unwrap_or(default);
    if value > 0.0 && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be above 0 and at most {max}.")))
}

fn within<T: PartialOrd + Copy + std::fmt::Display>(field: &str, value: T, min: T, max: T) -> Result<T> {
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be from {min} to {max}.")))
}

fn biases(given: Option<&BTreeMap<String, f32>>) -> Result<Vec<(u32, f32)>> {
    let Some(given) = given else { return Ok(Vec::new()) };
    if given.len() > MAX_BIASES {
        let message = format!("'logit_bias' has {} entries; at most {MAX_BIASES} are allowed.", given.len());
        return Err(Error::invalid("logit_bias", message));
    }
    given
        .iter()
        .map(|(token, bias)| {
            let field = format!("logit_bias.{}", shorten(token));
            let id = token.parse().map_err(|_| {
                Error::invalid(
                    &*field,
                    format!("'{field}' is not a token ID. A token ID is a whole number of at least 0."),
                )
            })?;
            within(&field, *bias, -100.0, 100.0).map(|bias| (id, bias))
        })
        .collect()
}

fn stop(given: Option<Stop>) -> Result<Vec<String>> {
    let stops = match given {
        None => Vec::new(),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Many(texts)) => texts,
    };
    if stops.len() > MAX_STOPS {
        return Err(Error::invalid(
            "stop",
            format!("'stop' has {} strings; at most {MAX_STOPS} are allowed.", stops.len()),
        ));
    }
    match stops.iter().position(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        None => Ok(stops),
        Some(index) => {
            let message = format!("'stop[{index}]' must have from 1 to {MAX_STOP_BYTES} bytes.");
            Err(Error::invalid(format!("stop[{index}]"), message))
        }
    }
}
