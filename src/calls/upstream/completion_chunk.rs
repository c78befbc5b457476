//! Reads the chunks of a streamed text completion.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounded_list::AtMost;
use super::chat_chunk::ending;
use super::text_stream::{ChunkReader, ParsedChunk};
use super::token_estimate::part_tokens;
use super::told_usage::ToldUsage;
use crate::engine::{MAX_CHOICES, TextDelta, TokenInfo, TokenLogprob};

/// Turns the chunks of a response into deltas.
pub struct CompletionChunks {
    stop: Vec<String>,
    /// Set if the request asks for log-probabilities. Otherwise they are not read.
    has_logprobs: bool,
    /// Tokens of each choice so far, as far as they can be counted.
    generated: Vec<u32>,
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
    text: Option<String>,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
    finish_reason: Option<String>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
}

/// Lists with one entry for each token.
#[derive(Deserialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Option<Vec<Option<BTreeMap<String, f32>>>>,
}

impl CompletionChunks {
    /// `choices`: how many the response has, of all prompts. `stop`: the stop strings of the request.
    pub fn new(choices: u32, stop: Vec<String>, has_logprobs: bool) -> Self {
        Self { stop, has_logprobs, generated: vec![0; choices as usize] }
    }

    fn delta(&mut self, choice: ChunkChoice<'_>) -> Option<TextDelta> {
        let generated = self.generated.get_mut(choice.index)?;
        let text = choice.text.unwrap_or_default();
        let tokens = match choice.logprobs.filter(|_| self.has_logprobs) {
            Some(logprobs) => infos(serde_json::from_str(logprobs.get()).ok()?),
            None => Vec::new(),
        };
        let count = match tokens.len() {
            0 => part_tokens(text.len()),
            count => u32::try_from(count).unwrap_or(u32::MAX),
        };
        *generated = generated.saturating_add(count);
        let end = choice.finish_reason.map(|reason| ending(&reason, choice.stop_reason, &self.stop, false));
        let (choice, generated) = (u32::try_from(choice.index).ok()?, *generated);
        Some(TextDelta { choice, text, tokens, generated, end, ..TextDelta::default() })
    }
}

impl ChunkReader for CompletionChunks {
    fn read(&mut self, data: &str) -> Option<ParsedChunk> {
        let Chunk { choices, usage, error } = serde_json::from_str(data).ok()?;
        if error.is_some() {
            return None;
        }
        let deltas = choices.0.into_iter().map(|choice| self.delta(choice)).collect::<Option<_>>()?;
        Some(ParsedChunk { deltas, usage: usage.and_then(ToldUsage::read) })
    }
}

fn infos(logprobs: Logprobs) -> Vec<TokenInfo> {
    let Logprobs { tokens, token_logprobs, top_logprobs } = logprobs;
    let one = |text: String, logprob: f32| TokenLogprob { id: 0, bytes: token_bytes(text), logprob };
    let mut top = top_logprobs.unwrap_or_default().into_iter();
    let info = |(text, logprob): (String, Option<f32>)| {
        let others = top.next().flatten().unwrap_or_default();
        let mut others: Vec<TokenLogprob> = others.into_iter().map(|(text, logprob)| one(text, logprob)).collect();
        others.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        // The first token of an echoed prompt has none.
        TokenInfo { token: one(text, logprob.unwrap_or_default()), is_control: false, top: others }
    };
    tokens.into_iter().zip(token_logprobs).map(info).collect()
}

/// The bytes of a token, which is written as `bytes:\xf0\x9f` if they are no text.
fn token_bytes(text: String) -> Vec<u8> {
    let Some(escaped) = text.strip_prefix("bytes:\\x") else { return text.into_bytes() };
    let bytes: Option<Vec<u8>> = escaped.split("\\x").map(|digits| u8::from_str_radix(digits, 16).ok()).collect();
    bytes.unwrap_or_else(|| text.into_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::FinishReason;

    #[test]
    fn text_and_log_probabilities_are_read() {
        let mut reader = CompletionChunks::new(2, Vec::new(), true);
        let logprobs = json!({
            "tokens": ["a", "bytes:\\xf0\\x9f"], "token_logprobs": [-0.5, null],
            "top_logprobs": [{ "b": -2.0, "a": -0.5 }, null], "text_offset": [0, 1],
        });
        let chunk = json!({ "choices": [{ "index": 1, "text": "a\u{fffd}", "logprobs": logprobs, "finish_reason": "length" }] });
        let delta = reader.read(&chunk.to_string()).unwrap().deltas.remove(0);
        assert_eq!((delta.choice, delta.generated, delta.end), (1, 2, Some(FinishReason::Length)));
        assert_eq!(delta.tokens[1].token.bytes, [0xf0, 0x9f]);
        let top: Vec<&[u8]> = delta.tokens[0].top.iter().map(|token| token.bytes.as_slice()).collect();
        assert_eq!(top, [b"a", b"b"]);
        assert!(reader.read(r#"{"choices":[{"index":2,"text":"a"}]}"#).is_none());
    }
}
