//! OpenAI's response format for text completions, complete and in chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::calls::completions::RunningCompletion;
use crate::calls::generation::{Choice, RunningText};
use crate::engine::{TokenInfo, TokenLogprob};
use crate::http::routes::completion_body::{UsageBody, finish_reason, finite_logprob};

#[derive(Serialize, utoipa::ToSchema)]
pub struct TextCompletion {
    created: i64,
    model: String,
    choices: Vec<TextChoice>,
    usage: UsageBody,
    system_fingerprint: Option<String>,
}

/// Those of the first prompt come first.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TextChoice {
    pub text: String,
    pub index: u32,
    pub logprobs: Option<TextLogprobs>,
    /// Present with `return_token_ids`, in a stream with the first chunk of the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<u32>>)]
    pub prompt_token_ids: Option<Arc<[u32]>>,
    /// All generated tokens, also those without text. Present with `return_token_ids`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub token_ids: Vec<u32>,
    pub finish_reason: Option<&'static str>,
}

/// Lists with one entry for each token.
#[derive(Default, Serialize, utoipa::ToSchema)]
pub struct TextLogprobs {
    /// The token's text; bytes that are no text as `bytes:\xf0\x9f`.
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    /// Log-probabilities of the token and of the most likely ones, by their texts.
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where the token begins in the choice's text, in characters.
    text_offset: Vec<usize>,
}

/// One event of a stream.
#[derive(Serialize)]
pub struct TextChunk<'a> {
    pub id: String,
    pub object: &'static str,
    pub created: i64,
    pub model: &'a str,
    pub choices: Vec<TextChoice>,
    /// Outer `None` leaves the field out; inner `None` is the null that `include_usage` requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageBody>>,
}

/// Counts the characters of a choice's text, token by token.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOffset(usize);

impl TextOffset {
    /// Where the next token begins. A token that continues a character begins at that character.
    fn advance(&mut self, info: &TokenInfo) -> usize {
        let starts_character = |byte: &u8| byte & 0b1100_0000 != 0b1000_0000;
        let (bytes, before) = (&info.token.bytes, self.0);
        if info.is_control {
            return before;
        }
        self.0 += bytes.iter().filter(|byte| starts_character(byte)).count();
        if bytes.first().is_some_and(starts_character) { before } else { before.saturating_sub(1) }
    }
}

/// Body of a complete response.
pub fn completion(running: &mut RunningCompletion, choices: Vec<Choice>) -> TextCompletion {
    let choice = |(index, choice): (u32, Choice)| TextChoice {
        logprobs: running.logprobs.then(|| logprobs(&choice.tokens, &mut TextOffset::default())),
        text: choice.text,
        prompt_token_ids: running.take_prompt_token_ids(index),
        token_ids: choice.token_ids,
        index,
        finish_reason: Some(choice.ending.map_or("stop", finish_reason)),
    };
    let choices = (0..).zip(choices).map(choice).collect();
    TextCompletion {
        created: running.created.as_seconds(),
        model: running.model.clone(),
        choices,
        usage: running.usage().into(),
        system_fingerprint: None,
    }
}

/// `offset`: that of the choice, which is advanced.
pub fn logprobs(tokens: &[TokenInfo], offset: &mut TextOffset) -> TextLogprobs {
    let mut body = TextLogprobs::default();
    for info in tokens {
        let entry = |token: &TokenLogprob| (token_text(&token.bytes), finite_logprob(token.logprob));
        let (text, logprob) = entry(&info.token);
        let mut top: BTreeMap<String, f32> = info.top.iter().map(entry).collect();
        top.insert(text.clone(), logprob);
        body.tokens.push(text);
        body.token_logprobs.push(logprob);
        body.top_logprobs.push(top);
        body.text_offset.push(offset.advance(info));
    }
    body
}

/// A token's text. Tokens that are parts of characters stay distinct.
fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{TextOffset, logprobs};
    use crate::engine::{TokenInfo, TokenLogprob};

    fn token(bytes: &[u8], is_control: bool) -> TokenInfo {
        let token = TokenLogprob { id: 0, bytes: bytes.to_vec(), logprob: -1. };
        let other = TokenLogprob { id: 1, bytes: b"other".to_vec(), logprob: f32::NEG_INFINITY };
        TokenInfo { token, is_control, top: vec![other] }
    }

    #[test]
    fn offsets_count_characters_and_bytes_stay_distinct() {
        let crab = "🦀".as_bytes();
        let tokens = [
            token("é".as_bytes(), false),
            token(b"<|im_end|>", true),
            token(&crab[..2], false),
            token(&crab[2..], false),
            token(b"ab", false),
            token(b"c", false),
        ];
        let mut offset = TextOffset::default();
        let body = logprobs(&tokens, &mut offset);
        assert_eq!(body.text_offset, [0, 1, 1, 1, 2, 4]);
        assert_eq!(body.tokens[2..4], ["bytes:\\xf0\\x9f", "bytes:\\xa6\\x80"]);
        assert_eq!(body.top_logprobs[0]["é"], -1.);
        assert!(body.top_logprobs[0]["other"].is_finite());
        // A stream goes on where the last chunk ended.
        assert_eq!(logprobs(&tokens[4..], &mut offset).text_offset, [5, 7]);
    }
}
