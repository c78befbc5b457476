//! How large the response of a target may be. Every limit follows from the request, with room for all that an honest server
//! sends. A target that sends more is faulty, and would otherwise fill the memory.

use crate::engine::{MAX_IMAGE_SIDE, TextDelta, TokenInfo};
use crate::upstream::UpstreamModel;

/// Bytes that every response may have, regardless of the request.
const FLOOR: u64 = 64 << 10;
/// Max bytes of a response that is read as a whole.
const MAX_WHOLE: u64 = 256 << 20;

/// Tokens of a choice if neither the request nor `upstream.toml` limits them.
const DEFAULT_TOKENS: u32 = 1 << 17;
/// Tokens beyond the limit of a choice that a target may count, such as those that begin and end it.
const SPARE_TOKENS: u64 = 16;
/// Bytes of the longest tokens of usual vocabularies, which are runs of spaces.
pub const MAX_TOKEN_BYTES: u64 = 128;
/// Max bytes of all texts, reasoning and calls of a response.
const MAX_TEXT: u64 = 16 << 20;
/// Min bytes that an event counts: a million events exhaust [`MAX_TEXT`].
const MIN_EVENT_BYTES: u64 = 16;
/// Memory of a log-probability without the bytes of its token.
const LOGPROB_BYTES: u64 = 64;
/// Max bytes of the texts and log-probabilities of a response.
const MAX_TEXT_WITH_LOGPROBS: u64 = 64 << 20;
/// Bytes of an event stream for each byte of text: names of fields, comments, log-probabilities as JSON.
const FRAMING: u64 = 64;

/// Numbers of a vector whose length is not known. The largest models have half of them.
const DEFAULT_DIMENSIONS: u32 = 1 << 14;
/// Bytes of a number as JSON: up to 24 for the digits of a 64-bit float, and a comma with a space.
const NUMBER_BYTES: u64 = 32;
/// Bytes of an entry of a list beside what it is about: names of fields, an index, a score.
const ENTRY_BYTES: u64 = 512;
/// Bytes of a byte that JSON escapes: `\u0001`.
const ESCAPED_BYTES: u64 = 6;

/// Seconds of speech for each character: a digit or a sign may stand for a word.
const SECONDS_PER_CHARACTER: f64 = 1.0;
const MIN_SPEECH_SECONDS: f64 = 30.0;
/// Bytes of a second of speech: 16 bits at 24 kHz.
const SPEECH_BYTES_PER_SECOND: f64 = 48_000.0;
/// Bytes of the transcript of a second of audio, four times what quick speech has with the times of its words.
const TRANSCRIPT_BYTES_PER_SECOND: f64 = 4096.0;
const MIN_TRANSCRIPT: u64 = 256 << 10;

/// Limits of a response with texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Tokens that the request allows, of all choices.
    pub tokens: u64,
    /// Bytes of text, reasoning, calls and log-probabilities together.
    pub bytes: u64,
}

impl TextLimits {
    /// `max_tokens`: of each choice. `logprobs`: the number of alternatives of each token.
    pub fn new(model: &UpstreamModel, max_tokens: Option<u32>, choices: u32, logprobs: Option<u8>) -> Self {
        let of_choice = max_tokens.or(model.context).unwrap_or(DEFAULT_TOKENS);
        let tokens = u64::from(choices) * (u64::from(of_choice) + SPARE_TOKENS);
        let text = (FLOOR + tokens.saturating_mul(MAX_TOKEN_BYTES)).min(MAX_TEXT);
        let bytes = logprobs.map_or(text, |alternatives| {
            let logprobs = tokens.saturating_mul(1 + u64::from(alternatives)).saturating_mul(2 * LOGPROB_BYTES);
            text.saturating_add(logprobs).min(MAX_TEXT_WITH_LOGPROBS)
        });
        Self { tokens, bytes }
    }

    /// Max bytes of the event stream.
    pub fn stream_bytes(&self) -> u64 {
        self.bytes * FRAMING
    }
}

/// The bytes of [`TextLimits::bytes`] that an event with these deltas uses.
pub fn event_bytes(deltas: &[TextDelta]) -> u64 {
    let logprobs = deltas.iter().flat_map(|delta| &delta.tokens).map(logprob_bytes);
    (text_bytes(deltas) + logprobs.sum::<u64>()).max(MIN_EVENT_BYTES)
}

/// Bytes of text, reasoning and calls.
pub fn text_bytes(deltas: &[TextDelta]) -> u64 {
    let calls = deltas.iter().flat_map(|delta| &delta.calls);
    let calls = calls.map(|call| call.name.as_ref().map_or(0, String::len) + call.arguments.len());
    let texts = deltas.iter().map(|delta| delta.text.len() + delta.reasoning.len());
    (texts.sum::<usize>() + calls.sum::<usize>()) as u64
}

fn logprob_bytes(info: &TokenInfo) -> u64 {
    let all = std::iter::once(&info.token).chain(&info.top);
    all.map(|token| LOGPROB_BYTES + token.bytes.len() as u64).sum()
}

/// Max bytes of a response with `count` vectors. `requested`: their length.
pub fn vectors(model: &UpstreamModel, count: usize, requested: Option<u32>) -> u64 {
    // A target may ignore the requested length.
    let dimensions = model.dimensions.unwrap_or(DEFAULT_DIMENSIONS).max(requested.unwrap_or(0));
    let vector = u64::from(dimensions).saturating_mul(NUMBER_BYTES) + ENTRY_BYTES;
    whole(FLOOR, count, vector)
}

/// Max bytes of a response with the scores of documents, which some servers repeat.
pub fn scores(documents: &[String]) -> u64 {
    let bytes: usize = documents.iter().map(String::len).sum();
    whole(FLOOR + (bytes as u64).saturating_mul(ESCAPED_BYTES), documents.len(), ENTRY_BYTES)
}

/// Max bytes of a response with `count` images as base64. The largest one has four bytes for each pixel and is not compressed.
pub fn images(count: usize) -> u64 {
    let pixels = (MAX_IMAGE_SIDE * MAX_IMAGE_SIDE) as u64;
    whole(FLOOR, count, pixels * 4 / 3 * 4 + FLOOR)
}

/// Max bytes of the transcript of this many seconds of audio.
pub fn transcript(seconds: f64) -> u64 {
    (MIN_TRANSCRIPT + whole_number(seconds * TRANSCRIPT_BYTES_PER_SECOND)).min(MAX_WHOLE)
}

/// Max bytes of the samples of a spoken text. `speed`: 1 is the usual one.
pub fn speech(text: &str, speed: f32) -> u64 {
    let count = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    let seconds = MIN_SPEECH_SECONDS + SECONDS_PER_CHARACTER * f64::from(count) / f64::from(speed);
    whole_number(seconds * SPEECH_BYTES_PER_SECOND)
}

fn whole(base: u64, count: usize, entry: u64) -> u64 {
    base.saturating_add(entry.saturating_mul(count as u64)).min(MAX_WHOLE)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes are not negative, and one beyond the range of u64 saturates"
)]
fn whole_number(size: f64) -> u64 {
    size.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::super::test_model;
    use super::*;

    #[test]
    fn texts_are_limited_by_the_request_then_by_the_context() {
        let limits = |more: &str, max_tokens, choices| {
            let TextLimits { tokens, bytes } = TextLimits::new(&test_model(more), max_tokens, choices, None);
            (tokens, bytes)
        };
        assert_eq!(limits("context = 1000", Some(5), 2), (42, FLOOR + 42 * 128));
        assert_eq!(limits("context = 1000", None, 1), (1016, FLOOR + 1016 * 128));
        assert_eq!(limits("", None, 1), (131_088, MAX_TEXT));
        assert_eq!(limits("", Some(u32::MAX), 16).1, MAX_TEXT);
        let with_logprobs = |count| TextLimits::new(&test_model(""), Some(4096), 1, count).bytes;
        assert!(with_logprobs(None) < 1 << 20 && (8 << 20..16 << 20).contains(&with_logprobs(Some(20))));
    }

    #[test]
    fn everything_that_is_kept_counts() {
        let delta = TextDelta { text: "four".to_owned(), reasoning: "x".repeat(20), ..TextDelta::default() };
        assert_eq!(event_bytes(&[]), MIN_EVENT_BYTES);
        assert_eq!((text_bytes(std::slice::from_ref(&delta)), event_bytes(&[delta])), (24, 24));
    }

    #[test]
    fn whole_responses_are_limited_by_what_was_sent() {
        let of_vectors = |more: &str, count, requested| vectors(&test_model(more), count, requested) >> 10;
        assert_eq!(of_vectors("", 1, None), 576);
        assert_eq!(of_vectors("dimensions = 1024", 2, Some(256)), 64 + 2 * 32 + 1);
        assert_eq!(of_vectors("", 2048, None), MAX_WHOLE >> 10);
        assert_eq!(scores(&["four".to_owned()]), FLOOR + 24 + 512);
        assert!((21 << 20..22 << 20).contains(&images(1)) && images(10) < MAX_WHOLE);
        assert_eq!(transcript(10.0), MIN_TRANSCRIPT + 40_960);
        assert_eq!((speech("ab", 1.0), speech("ab", 0.25)), (32 * 48_000, 38 * 48_000));
    }
}
