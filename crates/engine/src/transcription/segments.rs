//! Cuts the tokens of a window into segments at the pairs of timestamps, as Whisper's reference implementation does
//! (<https://github.com/openai/whisper>, `transcribe.py`).

use std::ops::Range;

use super::vocabulary::WhisperVocabulary;

/// A segment of a window. Times are in multiples of 0.02 s, from where the window begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSegment {
    pub start: u32,
    pub end: u32,
    /// Its tokens among those of the window.
    pub tokens: Range<usize>,
}

/// The segments of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub segments: Vec<TokenSegment>,
    /// What follows the last pair of timestamps and has no end in these tokens. It must be decoded again from its start. Its
    /// tokens may have no text; its end is that of the window.
    pub unfinished: Option<TokenSegment>,
}

/// Cuts `tokens` into segments. `length`: the length of the window.
pub fn cut(vocabulary: &WhisperVocabulary, tokens: &[u32], length: u32) -> Cut {
    let time = |at: usize| tokens.get(at).and_then(|id| vocabulary.timestamp(*id));
    let mut ends: Vec<usize> = (1..tokens.len()).filter(|at| time(at - 1).is_some() && time(*at).is_some()).collect();
    let ends_with_one = tokens.len() >= 2 && time(tokens.len() - 1).is_some() && time(tokens.len() - 2).is_none();
    if ends.is_empty() {
        return Cut { segments: whole(vocabulary, tokens, length).into_iter().collect(), unfinished: None };
    }
    if ends_with_one {
        ends.push(tokens.len());
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let segments = starts.zip(&ends).map(|(first, end)| TokenSegment {
        start: time(first).unwrap_or(0),
        end: time(end - 1).unwrap_or(length),
        tokens: first..*end,
    });
    let segments = segments.filter(|segment| has_text(vocabulary, tokens, segment)).collect();
    let unfinished = ends.last().filter(|_| !ends_with_one).and_then(|end| {
        let start = time(end - 1)?;
        Some(TokenSegment { start, end: length, tokens: *end..tokens.len() })
    });
    Cut { segments, unfinished }
}

/// The only segment of a window without a pair of timestamps.
fn whole(vocabulary: &WhisperVocabulary, tokens: &[u32], length: u32) -> Option<TokenSegment> {
    let times: Vec<u32> = tokens.iter().filter_map(|id| vocabulary.timestamp(*id)).collect();
    // The first timestamp of a very short window may be later than its end.
    let start = times.first().copied().filter(|start| *start < length).unwrap_or(0);
    let end = times.last().copied().filter(|last| (start + 1..=length).contains(last)).unwrap_or(length);
    let segment = TokenSegment { start, end, tokens: 0..tokens.len() };
    has_text(vocabulary, tokens, &segment).then_some(segment)
}

/// Whether a segment has text and a duration.
pub fn has_text(vocabulary: &WhisperVocabulary, tokens: &[u32], segment: &TokenSegment) -> bool {
    let ids = tokens.get(segment.tokens.clone()).unwrap_or_default();
    segment.start < segment.end && !vocabulary.text(ids).trim().is_empty()
}
