//! llama.cpp's response to a completion, whole and in events.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, to_value};

use crate::calls::text::completions::RunningCompletion;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::clock_rng::ClockRng;
use crate::engine::FinishReason;

/// A whole response, or the last event of a stream, whose `content` is empty.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LlamaCppCompletion)]
pub struct CompletionBody {
    /// Always 0.
    index: u32,
    content: String,
    /// The IDs of the generated tokens, with `return_tokens`; empty in the last event of a stream.
    tokens: Vec<u32>,
    /// Always true.
    stop: bool,
    /// `eos`, `limit` or `word`.
    stop_type: &'static str,
    /// The stop string that ended the text; else empty.
    stopping_word: String,
    model: String,
    tokens_predicted: u32,
    /// Tokens of the prompt.
    tokens_evaluated: u32,
    /// Tokens of the prompt that the prefix cache had.
    tokens_cached: u32,
    has_new_line: bool,
    /// Whether the prompt was cut to fit into the context.
    truncated: bool,
    timings: TimingsBody,
}

/// Numbers of tokens, and times in milliseconds.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LlamaCppTimings)]
struct TimingsBody {
    /// Tokens of the prompt that the prefix cache had.
    cache_n: u32,
    /// The others.
    prompt_n: u32,
    /// Until the first token, with the time in the queue.
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

/// An event before the last.
#[derive(Serialize)]
pub struct PartBody<'a> {
    index: u32,
    content: Cow<'a, str>,
    tokens: &'a [u32],
    stop: bool,
    tokens_predicted: u32,
    tokens_evaluated: u32,
}

/// What a response contains.
pub struct Form {
    /// Paths of the fields; empty: all.
    pub fields: Vec<String>,
    pub clock_rng: Arc<dyn ClockRng>,
}

impl Form {
    /// The whole response.
    pub fn whole(&self, turn: &Turn<RunningCompletion>) -> Value {
        self.last(turn, turn.output().text(), turn.output().token_ids.clone())
    }

    /// A response that ends with this part of the text.
    pub fn last(&self, turn: &Turn<RunningCompletion>, content: String, tokens: Vec<u32>) -> Value {
        let (running, output, usage) = (&turn.call, turn.output(), turn.call.usage());
        let (stop_type, stopping_word) = match output.finish_reason() {
            FinishReason::Stop | FinishReason::ToolCalls => ("eos", String::new()),
            FinishReason::StopString(index) => ("word", running.stop.get(index).cloned().unwrap_or_default()),
            FinishReason::Length => ("limit", String::new()),
        };
        let body = CompletionBody {
            index: 0,
            content,
            tokens,
            stop: true,
            stop_type,
            stopping_word,
            model: running.model.clone(),
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
            tokens_cached: usage.cached_tokens,
            has_new_line: output.text().contains('\n'),
            truncated: running.is_cut,
            timings: TimingsBody::new(running, self.clock_rng.uptime()),
        };
        self.select(to_value(body).unwrap_or_default())
    }

    /// An event before the last.
    pub fn part<'a>(&self, event: &'a TurnEvent, running: &RunningCompletion) -> PartBody<'a> {
        let usage = running.usage();
        PartBody {
            index: 0,
            content: event.text(),
            tokens: &event.token_ids,
            stop: false,
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
        }
    }

    /// The fields that the client wants. Those in objects have their paths as names.
    fn select(&self, body: Value) -> Value {
        if self.fields.is_empty() {
            return body;
        }
        let found = |path: &String| {
            let value = path.split('/').try_fold(&body, |object, name| object.get(name))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.fields.iter().filter_map(found).collect::<Map<String, Value>>())
    }
}

impl TimingsBody {
    fn new(running: &RunningCompletion, now: Duration) -> Self {
        let (timings, usage) = (running.generation().timings(), running.usage());
        let (first, last) = (timings.first.unwrap_or(now), timings.last.unwrap_or(now));
        let prompt_n = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let (prompt_ms, prompt_per_token_ms, prompt_per_second) = rate(prompt_n, timings.submitted, first);
        let (predicted_ms, predicted_per_token_ms, predicted_per_second) = rate(usage.completion_tokens, first, last);
        Self {
            cache_n: usage.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms,
            prompt_per_second,
            predicted_n: usage.completion_tokens,
            predicted_ms,
            predicted_per_token_ms,
            predicted_per_second,
        }
    }
}

/// A time in milliseconds, the part of each token, and the tokens of a second. At least a microsecond, because clients divide.
fn rate(tokens: u32, from: Duration, to: Duration) -> (f64, f64, f64) {
    let time = to.saturating_sub(from).max(Duration::from_micros(1)).as_secs_f64();
    let tokens = f64::from(tokens);
    (time * 1e3, time * 1e3 / tokens.max(1.), tokens / time)
}
