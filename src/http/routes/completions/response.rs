//! OpenAI's response format for text completions, complete and in chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::calls::text::completions::RunningCompletion;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{OutputItems, finite_logprob};
use crate::engine::{PromptToken, TokenInfo, TokenLogprob};
use crate::http::routes::completion_body::{UsageBody, finish_reason, token_text};
use crate::http::routes::prompt_logprobs::{self, PromptLogprobs};

#[derive(Serialize, utoipa::ToSchema)]
pub struct TextCompletion {
    created: i64,
    model: String,
    choices: Vec<TextChoice>,
    usage: UsageBody,
    /// Stays the same as long as nothing changes that decides the output of requests with the same seed. Null for upstream
    /// models.
    system_fingerprint: Option<String>,
}

/// Those of the first prompt come first.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TextChoice {
    pub text: String,
    pub index: u32,
    pub logprobs: Option<TextLogprobs>,
    /// Present if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
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
    /// Null for the first token of an echoed prompt, because nothing precedes it.
    token_logprobs: Vec<Option<f32>>,
    /// Log-probabilities of the token and of the most likely ones, by their texts; null where the token has none.
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
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
    pub system_fingerprint: Option<&'a str>,
    pub choices: Vec<TextChoice>,
    /// Outer `None` leaves the field out; inner `None` is the null that `include_usage` requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageBody>>,
}

/// A token with log-probabilities: its text, its own, and those of the most likely tokens.
type Entry<'a> = (&'a [u8], Option<(f32, &'a [TokenLogprob])>);

/// Counts the characters of a choice's text, token by token.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOffset(usize);

impl TextOffset {
    /// Where each token of an echoed prompt begins. The next token begins after the prompt.
    ///
    /// The text may lack what the tokenizer added: special tokens, which then have no characters, and a space at the
    /// beginning.
    fn begin(&mut self, tokens: &[PromptToken], echo: &str) -> Vec<usize> {
        let (mut rest, mut before) = (echo.as_bytes(), 0_usize);
        let offset = |token: &PromptToken| {
            let is_inside = rest.first().is_some_and(|byte| !starts_character(byte));
            let offset = before.saturating_sub(usize::from(is_inside));
            let (own, after) = rest.split_at(length_in(rest, token));
            before += own.iter().filter(|byte| starts_character(byte)).count();
            rest = after;
            offset
        };
        let offsets = tokens.iter().map(offset).collect();
        self.0 = echo.chars().count();
        offsets
    }

    /// Where the next token begins. A token that continues a character begins at that character.
    fn advance(&mut self, info: &TokenInfo) -> usize {
        let (bytes, before) = (&info.token.bytes, self.0);
        if info.is_control {
            return before;
        }
        self.0 += bytes.iter().filter(|byte| starts_character(byte)).count();
        if bytes.first().is_some_and(starts_character) { before } else { before.saturating_sub(1) }
    }
}

fn starts_character(byte: &u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

/// How many bytes of the rest of a prompt's text are the token's.
fn length_in(rest: &[u8], token: &PromptToken) -> usize {
    let bytes = token.bytes.as_slice();
    let without_space = bytes.strip_prefix(b" ").filter(|text| rest.starts_with(text));
    match without_space {
        _ if rest.starts_with(bytes) => bytes.len(),
        _ if token.is_control => 0,
        Some(text) => text.len(),
        None => bytes.len().min(rest.len()),
    }
}

/// Body of a complete response.
pub fn completion(turn: &Turn<RunningCompletion>) -> TextCompletion {
    let running = &turn.call;
    let choice = |(index, output): (u32, &OutputItems)| {
        let prompt = output.prompt.as_deref();
        TextChoice {
            logprobs: running.logprobs.map(|top| {
                let mut offset = TextOffset::default();
                let mut lists = echoed(running, index, prompt, top, &mut offset);
                lists.extend(logprobs(&output.tokens, &mut offset));
                lists
            }),
            prompt_logprobs: running
                .prompt_logprobs
                .zip(prompt)
                .map(|(top, tokens)| prompt_logprobs::body(tokens, top)),
            text: output.text(),
            prompt_token_ids: running.prompt_token_ids(index),
            token_ids: output.token_ids.clone(),
            index,
            finish_reason: Some(finish_reason(output.finish_reason())),
        }
    };
    TextCompletion {
        created: running.created.as_seconds(),
        model: running.model.clone(),
        choices: (0..).zip(turn.outputs()).map(choice).collect(),
        usage: running.usage().into(),
        system_fingerprint: running.system_fingerprint().map(str::to_owned),
    }
}

/// The lists of a prompt with which the choice begins; empty if it does not, or not in this delta. `top`: the number of
/// alternatives. `offset`: that of the choice, which is advanced.
pub fn echoed(
    running: &RunningCompletion,
    choice: u32,
    prompt: Option<&[PromptToken]>,
    top: u8,
    offset: &mut TextOffset,
) -> TextLogprobs {
    let Some((tokens, echo)) = prompt.zip(running.echo(choice as usize)) else { return TextLogprobs::default() };
    let entries = tokens.iter().map(|token| -> Entry<'_> {
        let found = token.logprob.as_ref();
        (&token.bytes, found.map(|found| (found.logprob, found.top.get(..top.into()).unwrap_or(&found.top))))
    });
    lists(entries, offset.begin(tokens, echo))
}

/// `offset`: that of the choice, which is advanced.
pub fn logprobs(tokens: &[TokenInfo], offset: &mut TextOffset) -> TextLogprobs {
    let entries = tokens.iter().map(|info| -> Entry<'_> { (&info.token.bytes, Some((info.token.logprob, &info.top))) });
    lists(entries, tokens.iter().map(|info| offset.advance(info)).collect())
}

fn lists<'a>(entries: impl Iterator<Item = Entry<'a>>, text_offset: Vec<usize>) -> TextLogprobs {
    let mut body = TextLogprobs { text_offset, ..TextLogprobs::default() };
    for (bytes, found) in entries {
        let text = token_text(bytes);
        let top = found.map(|(logprob, top)| {
            let other = |token: &TokenLogprob| (token_text(&token.bytes), finite_logprob(token.logprob));
            let mut top: BTreeMap<String, f32> = top.iter().map(other).collect();
            top.insert(text.clone(), finite_logprob(logprob));
            top
        });
        body.tokens.push(text);
        body.token_logprobs.push(found.map(|(logprob, _)| finite_logprob(logprob)));
        body.top_logprobs.push(top);
    }
    body
}

impl TextLogprobs {
    /// Adds the entries of later tokens.
    pub fn extend(&mut self, later: Self) {
        self.tokens.extend(later.tokens);
        self.token_logprobs.extend(later.token_logprobs);
        self.top_logprobs.extend(later.top_logprobs);
        self.text_offset.extend(later.text_offset);
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
        let first = body.top_logprobs[0].as_ref().unwrap();
        assert!(first["é"] == -1. && first["other"].is_finite());
        // A stream goes on where the last chunk ended.
        assert_eq!(logprobs(&tokens[4..], &mut offset).text_offset, [5, 7]);
    }
}
