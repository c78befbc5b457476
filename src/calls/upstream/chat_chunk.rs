//! Reads the chunks of a streamed chat.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounded_list::AtMost;
use super::text_stream::{ChunkReader, ParsedChunk};
use super::token_estimate::part_tokens;
use super::told_usage::ToldUsage;
use crate::engine::{FinishReason, MAX_CHOICES, TextDelta, TokenInfo, TokenLogprob, ToolCallDelta};

/// Max tool calls of a choice.
const MAX_CALLS: usize = 256;
/// Max alternatives of a token. Requests ask for at most 20; some servers add the token itself.
const MAX_ALTERNATIVES: usize = 32;

/// Turns the chunks of a response into deltas.
pub struct ChatChunks {
    /// The stop strings of the request.
    stop: Vec<String>,
    /// Set if the request asks for log-probabilities. Otherwise they are not read.
    has_logprobs: bool,
    choices: Vec<ChoiceState>,
}

#[derive(Clone, Default)]
struct ChoiceState {
    /// Tokens so far, as far as they can be counted.
    generated: u32,
    reasoning: u32,
    /// The target's numbers of its calls, in the order in which they began.
    calls: Vec<u64>,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: AtMost<ChunkChoice<'a>, { MAX_CHOICES as usize }>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ChunkChoice<'a> {
    #[serde(default)]
    index: usize,
    #[serde(default)]
    delta: Delta,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
    finish_reason: Option<String>,
    /// vLLM's: the stop string or the token that ended the choice.
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<AtMost<CallDelta, MAX_CALLS>>,
}

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: u64,
    #[serde(default)]
    function: FunctionDelta,
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Token>>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
    top_logprobs: Option<AtMost<Alternative, MAX_ALTERNATIVES>>,
}

#[derive(Deserialize)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
}

impl ChatChunks {
    /// `choices`: how many the response has. `stop`: the stop strings of the request.
    pub fn new(choices: u32, stop: Vec<String>, has_logprobs: bool) -> Self {
        Self { stop, has_logprobs, choices: vec![ChoiceState::default(); choices as usize] }
    }

    fn delta(&mut self, choice: ChunkChoice<'_>) -> Option<TextDelta> {
        let tokens = match choice.logprobs.filter(|_| self.has_logprobs) {
            Some(logprobs) => serde_json::from_str::<Logprobs>(logprobs.get()).ok()?.content.unwrap_or_default(),
            None => Vec::new(),
        };
        let state = self.choices.get_mut(choice.index)?;
        let Delta { content, reasoning_content, reasoning, refusal, tool_calls } = choice.delta;
        let reasoning = reasoning_content.or(reasoning).unwrap_or_default();
        let text = content.or(refusal).unwrap_or_default();
        let calls = tool_calls.unwrap_or_default().0;
        let calls: Vec<ToolCallDelta> = calls.into_iter().map(|call| state.call(call)).collect::<Option<_>>()?;
        let tokens: Vec<TokenInfo> = tokens.into_iter().map(info).collect();
        let call_bytes: usize =
            calls.iter().map(|call| call.arguments.len() + call.name.as_ref().map_or(0, String::len)).sum();
        let count = match tokens.len() {
            0 => part_tokens(text.len() + call_bytes),
            count => u32::try_from(count).unwrap_or(u32::MAX),
        };
        state.reasoning = state.reasoning.saturating_add(part_tokens(reasoning.len()));
        state.generated = state.generated.saturating_add(count).saturating_add(part_tokens(reasoning.len()));
        let end =
            choice.finish_reason.map(|reason| ending(&reason, choice.stop_reason, &self.stop, !state.calls.is_empty()));
        Some(TextDelta {
            choice: u32::try_from(choice.index).ok()?,
            reasoning,
            text,
            calls,
            tokens,
            prompt: None,
            token_ids: Vec::new(),
            generated: state.generated,
            reasoning_tokens: state.reasoning,
            cached: 0,
            end,
        })
    }
}

impl ChunkReader for ChatChunks {
    fn read(&mut self, data: &str) -> Option<ParsedChunk> {
        let Chunk { choices, usage, error } = serde_json::from_str(data).ok()?;
        if error.is_some() {
            return None;
        }
        let deltas = choices.0.into_iter().map(|choice| self.delta(choice)).collect::<Option<_>>()?;
        Some(ParsedChunk { deltas, usage: usage.and_then(ToldUsage::read) })
    }
}

impl ChoiceState {
    /// A part of a call; `None` if it continues none.
    fn call(&mut self, delta: CallDelta) -> Option<ToolCallDelta> {
        let FunctionDelta { name, arguments } = delta.function;
        let (at, name) = match self.calls.iter().position(|number| *number == delta.index) {
            // Some servers repeat the name.
            Some(at) => (at, None),
            None if self.calls.len() >= MAX_CALLS => return None,
            None => {
                self.calls.push(delta.index);
                (self.calls.len() - 1, Some(name?))
            }
        };
        Some(ToolCallDelta { index: u32::try_from(at).ok()?, name, arguments: arguments.unwrap_or_default() })
    }
}

/// Why a choice ended. `has_calls`: some servers say `stop` after calls.
pub fn ending(reason: &str, stop_reason: Option<&RawValue>, stop: &[String], has_calls: bool) -> FinishReason {
    let matched: Option<String> = stop_reason.and_then(|reason| serde_json::from_str(reason.get()).ok());
    match reason {
        "length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        _ if has_calls => FinishReason::ToolCalls,
        _ => match matched.and_then(|matched| stop.iter().position(|one| *one == matched)) {
            Some(index) => FinishReason::StopString(index),
            None => FinishReason::Stop,
        },
    }
}

/// Token IDs are not part of OpenAI's format.
fn info(token: Token) -> TokenInfo {
    let one = |token: String, bytes: Option<Vec<u8>>, logprob: f32| {
        let bytes = bytes.unwrap_or_else(|| token.into_bytes());
        TokenLogprob { id: 0, bytes, logprob }
    };
    let Token { token, logprob, bytes, top_logprobs } = token;
    let top = top_logprobs.unwrap_or_default().0.into_iter();
    let top = top.map(|Alternative { token, logprob, bytes }| one(token, bytes, logprob)).collect();
    TokenInfo { token: one(token, bytes, logprob), is_control: false, top }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(reader: &mut ChatChunks, chunk: &Value) -> Option<ParsedChunk> {
        reader.read(&chunk.to_string())
    }

    #[test]
    fn text_reasoning_and_log_probabilities_are_read() {
        let mut reader = ChatChunks::new(2, vec!["a".to_owned(), "b".to_owned()], true);
        let logprobs = json!({ "content": [{ "token": "é", "logprob": -0.5, "top_logprobs": [{ "token": "x", "logprob": -1, "bytes": [120] }] }] });
        let chunk = json!({ "choices": [
            { "index": 1, "delta": { "role": "assistant", "content": null, "reasoning_content": "hm", "reasoning": "hm" } },
            { "index": 0, "delta": { "content": "é" }, "logprobs": logprobs, "finish_reason": null },
        ], "usage": null });
        let parsed = read(&mut reader, &chunk).unwrap();
        let [first, second] = parsed.deltas.as_slice() else { panic!("{:?}", parsed.deltas) };
        assert_eq!((first.choice, first.reasoning.as_str(), first.reasoning_tokens), (1, "hm", 1));
        assert_eq!((second.text.as_str(), second.generated, second.end), ("é", 1, None));
        assert_eq!(second.tokens[0].token.bytes, "é".as_bytes());
        assert_eq!(second.tokens[0].top[0].bytes, b"x");
        let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "b" }] });
        assert_eq!(read(&mut reader, &end).unwrap().deltas[0].end, Some(FinishReason::StopString(1)));
        let usage = json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 3 } } });
        let told = read(&mut reader, &usage).unwrap().usage.unwrap();
        assert_eq!((told.prompt_tokens, told.completion_tokens, told.cached_tokens), (5, 2, 3));
    }

    #[test]
    fn calls_are_numbered_in_the_order_in_which_they_begin() {
        let mut reader = ChatChunks::new(1, Vec::new(), false);
        let chunk = |calls: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls } }] });
        let begin = chunk(json!([{ "index": 7, "id": "x", "function": { "name": "f", "arguments": "" } }]));
        let more = chunk(json!([
            { "index": 7, "function": { "name": "f", "arguments": "{}" } },
            { "index": 2, "function": { "name": "g", "arguments": "{" } },
        ]));
        let calls = |parsed: Option<ParsedChunk>| parsed.unwrap().deltas.remove(0).calls;
        let call = |index, name: Option<&str>, arguments: &str| ToolCallDelta {
            index,
            name: name.map(str::to_owned),
            arguments: arguments.to_owned(),
        };
        assert_eq!(calls(read(&mut reader, &begin)), [call(0, Some("f"), "")]);
        assert_eq!(calls(read(&mut reader, &more)), [call(0, None, "{}"), call(1, Some("g"), "{")]);
        let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
        assert_eq!(read(&mut reader, &end).unwrap().deltas[0].end, Some(FinishReason::ToolCalls));
        assert!(read(&mut reader, &chunk(json!([{ "index": 9, "function": { "arguments": "x" } }]))).is_none());
    }

    #[test]
    fn chunks_that_make_no_sense_are_refused() {
        for data in
            ["", "[]", "{", r#"{"error":{"message":"x"}}"#, r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#]
        {
            assert!(ChatChunks::new(1, Vec::new(), false).read(data).is_none(), "{data}");
        }
    }
}
