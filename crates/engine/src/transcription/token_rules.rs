//! Which tokens may come next: rules that Whisper's reference implementation applies to the logits
//! (<https://github.com/openai/whisper>, `decoding.py`).

use super::log_probabilities::{log_sum_exp, maximum};
use super::vocabulary::{TIMESTAMPS, WhisperVocabulary};

/// The rules of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenRules {
    /// Tokens that never come: special tokens, and signs that stand for sounds rather than speech.
    pub suppressed: Vec<u32>,
    /// Tokens that are not the first: a space, and the end of the text.
    pub suppressed_first: Vec<u32>,
    /// The latest first timestamp, in multiples of 0.02 s.
    pub max_first_timestamp: Option<u32>,
}

impl TokenRules {
    /// Sets the logits of tokens that may not follow `generated` to negative infinity. `logits`: `[vocabulary]`.
    pub fn apply(&self, vocabulary: &WhisperVocabulary, generated: &[u32], logits: &mut [f32]) {
        suppress(logits, &self.suppressed);
        if generated.is_empty() {
            suppress(logits, &self.suppressed_first);
        }
        suppress(logits, &[vocabulary.no_timestamps]);
        self.order_timestamps(vocabulary, generated, logits);
        prefer_timestamps(vocabulary, logits);
    }

    /// Timestamps come in pairs, except the first and the last one, and never decrease.
    fn order_timestamps(&self, vocabulary: &WhisperVocabulary, generated: &[u32], logits: &mut [f32]) {
        let (first, end) = (vocabulary.first_timestamp, vocabulary.first_timestamp + TIMESTAMPS);
        let is_timestamp = |back: usize| {
            generated.len().checked_sub(back).and_then(|at| generated.get(at)).map(|id| vocabulary.is_timestamp(*id))
        };
        let after_timestamp = is_timestamp(1) == Some(true);
        let after_pair = after_timestamp && is_timestamp(2).unwrap_or(true);
        if after_pair {
            suppress_range(logits, first, end);
        } else if after_timestamp {
            suppress_range(logits, 0, vocabulary.end_of_text);
        }
        if let Some(last) = generated.iter().rfind(|id| vocabulary.is_timestamp(**id)) {
            // The end of a segment may not be its beginning; the next segment may begin there.
            let earliest = if after_timestamp && !after_pair { *last } else { last + 1 };
            suppress_range(logits, first, earliest.min(end));
        }
        if generated.is_empty() {
            suppress_range(logits, 0, first);
            if let Some(max) = self.max_first_timestamp {
                suppress_range(logits, first.saturating_add(max).saturating_add(1).min(end), end);
            }
        }
    }
}

/// Allows only timestamps if they are together more likely than every other token.
fn prefer_timestamps(vocabulary: &WhisperVocabulary, logits: &mut [f32]) {
    let first = vocabulary.first_timestamp as usize;
    let (Some(texts), Some(timestamps)) = (logits.get(..first), logits.get(first..)) else { return };
    if log_sum_exp(timestamps) > maximum(texts) {
        suppress_range(logits, 0, vocabulary.first_timestamp);
    }
}

fn suppress(logits: &mut [f32], ids: &[u32]) {
    for id in ids {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Suppresses the tokens from `from` up to, but not including `to`.
fn suppress_range(logits: &mut [f32], from: u32, to: u32) {
    let to = (to as usize).min(logits.len());
    if let Some(range) = logits.get_mut(from as usize..to) {
        range.fill(f32::NEG_INFINITY);
    }
}
