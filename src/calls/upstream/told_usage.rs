//! Token counts as a target tells them, and whether they can be true. A count that cannot is not used: one lie would
//! otherwise exhaust the rate limit and the budget of a project for months.
//!
//! The upper bound is the request's limit rather than the bytes received, because providers count reasoning that they
//! do not send.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::response_limits::{MAX_TOKEN_BYTES, TextLimits};
use super::token_estimate::BYTES_PER_TOKEN;

/// Tokens that a target may add to a prompt: its default system message, the descriptions of how to call tools.
const PROMPT_ALLOWANCE: u64 = 1024;
/// Tokens that a target may add to each text that it embeds or ranks: instructions of the model.
const TEXT_ALLOWANCE: u64 = 128;

/// Token counts as a target tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldUsage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    pub reasoning_tokens: u32,
}

/// What a target makes of texts, in their order, and the tokens of all texts if the target reports them.
pub struct ToldValues<T> {
    pub values: Vec<T>,
    pub tokens: Option<u32>,
}

/// The fields are read one by one, so that any of them may be anything.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    total_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_tokens: Option<&'a RawValue>,
}

impl<'a> Fields<'a> {
    fn read(value: Option<&'a RawValue>) -> Self {
        value.and_then(|value| serde_json::from_str(value.get()).ok()).unwrap_or_default()
    }
}

fn count(value: Option<&RawValue>) -> Option<u32> {
    let count: u64 = value?.get().parse().ok()?;
    Some(u32::try_from(count).unwrap_or(u32::MAX))
}

impl ToldUsage {
    /// Reads the field `usage` of a text. A usage without the tokens of the prompt or of the text tells nothing: the
    /// tokens are then estimated.
    pub fn read(usage: &RawValue) -> Option<Self> {
        let usage = Fields::read(Some(usage));
        let prompt_tokens = count(usage.prompt_tokens).filter(|count| *count > 0)?;
        let completion_tokens = count(usage.completion_tokens)?;
        let cached = count(Fields::read(usage.prompt_tokens_details).cached_tokens).unwrap_or(0);
        let reasoning = count(Fields::read(usage.completion_tokens_details).reasoning_tokens).unwrap_or(0);
        Some(Self {
            prompt_tokens,
            completion_tokens,
            cached_tokens: cached.min(prompt_tokens),
            reasoning_tokens: reasoning.min(completion_tokens),
        })
    }
}

/// Reads the tokens of the input from a field `usage`; `None` if it tells none.
pub fn input_tokens(usage: &RawValue) -> Option<u32> {
    let usage = Fields::read(Some(usage));
    let told = |value| count(value).filter(|count| *count > 0);
    told(usage.prompt_tokens).or_else(|| told(usage.total_tokens))
}

/// Which token counts of a text can be true.
#[derive(Clone, Debug)]
pub struct UsageBounds {
    prompt: RangeInclusive<u64>,
    /// Tokens that the request allows, of all choices.
    completion: u64,
}

impl UsageBounds {
    /// `estimate`: of the prompt's tokens. `sent`: bytes of the request.
    pub fn new(estimate: u32, sent: usize, limits: TextLimits) -> Self {
        let least = u64::from(estimate) * BYTES_PER_TOKEN as u64 / MAX_TOKEN_BYTES;
        Self { prompt: least..=sent as u64 + PROMPT_ALLOWANCE, completion: limits.tokens }
    }

    /// Whether the counts can be true of a response with this many bytes of text. A token has from one byte to
    /// [`MAX_TOKEN_BYTES`]. There may be more tokens than bytes if the target hides reasoning, but no more than the request
    /// allows.
    pub fn allow(&self, told: &ToldUsage, received: u64) -> bool {
        let completion = received.div_ceil(MAX_TOKEN_BYTES)..=received.max(self.completion);
        self.prompt.contains(&told.prompt_tokens.into()) && completion.contains(&told.completion_tokens.into())
    }
}

/// Whether this many tokens can be those of `texts` texts with `bytes` in all. There is no lower limit, because targets may
/// truncate texts.
pub fn is_possible_input(tokens: u32, bytes: usize, texts: usize) -> bool {
    u64::from(tokens) <= bytes as u64 + PROMPT_ALLOWANCE + TEXT_ALLOWANCE * texts as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &str) -> Option<ToldUsage> {
        ToldUsage::read(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_usage_that_tells_nothing_is_none() {
        for text in [
            "[]",
            "7",
            "{}",
            r#"{"prompt_tokens":5}"#,
            r#"{"prompt_tokens":0,"completion_tokens":0}"#,
            r#"{"prompt_tokens":"5","completion_tokens":2}"#,
            r#"{"prompt_tokens":[[]],"completion_tokens":2}"#,
            r#"{"prompt_tokens":-5,"completion_tokens":2}"#,
        ] {
            assert_eq!(usage(text), None, "{text}");
            assert!(text.contains('5') || input_tokens(serde_json::from_str(text).unwrap()).is_none(), "{text}");
        }
    }

    #[test]
    fn parts_are_never_more_than_the_whole() {
        let text = r#"{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":9},
                       "completion_tokens_details":{"reasoning_tokens":99999999999}}"#;
        let told = usage(text).unwrap();
        assert_eq!((told.cached_tokens, told.reasoning_tokens), (5, 2));
        assert!(usage(r#"{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":[]}"#).is_some());
    }

    #[test]
    fn counts_beyond_what_was_sent_and_received_cannot_be_true() {
        let bounds = UsageBounds::new(320, 2000, TextLimits { tokens: 21, bytes: 0 });
        let allows = |prompt_tokens, completion_tokens, received| {
            let told = ToldUsage { prompt_tokens, completion_tokens, cached_tokens: 0, reasoning_tokens: 0 };
            bounds.allow(&told, received)
        };
        assert!(allows(10, 21, 4) && allows(3024, 1, 128) && allows(300, 0, 0) && allows(300, 100, 100));
        assert!(!allows(9, 5, 4) && !allows(3025, 5, 4), "prompts");
        assert!(!allows(300, 22, 4) && !allows(300, 1, 129) && !allows(300, 0, 4), "completions");
        assert!(!allows(300, u32::MAX, 4) && !allows(u32::MAX, 5, 4));
        assert!(is_possible_input(1, 500_000, 1) && is_possible_input(1162, 10, 1) && !is_possible_input(1163, 10, 1));
    }
}
