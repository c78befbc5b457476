//! Cuts text into chunks that the model speaks one by one: at sentence ends, then at clauses, then at words.

use super::symbols::{is_pause, is_punctuation};
use super::token::{Kind, Token};

/// The most symbols that Kokoro reads at once, without the two that enclose them.
pub const MAX_PHONEMES: usize = 510;
/// Sentences are joined up to this length, because very short inputs sound worse.
const SHORT: usize = 40;
/// If the first sentence has more symbols than this, it is cut at its last clause end between [`FIRST_MIN`] and this many, so
/// that speech begins early.
const FIRST: usize = 120;
const FIRST_MIN: usize = 30;

/// A part of the text to be spoken at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// The text, cleaned of markup.
    pub text: String,
    /// What the model reads: at most 510 symbols of its vocabulary.
    pub phonemes: String,
}

/// A token and what is spoken for it.
#[derive(Debug, Clone)]
struct Spoken {
    phonemes: String,
    length: usize,
    space_before: bool,
    start: usize,
    end: usize,
}

/// Whether the mark follows a word without a space.
fn closes_up(phonemes: &str) -> bool {
    matches!(phonemes, "." | "," | "!" | "?" | ":" | ";" | "…" | ")" | "”")
}

/// Splits tokens where sentences end. A paragraph's end always ends one.
pub fn sentences(tokens: &[Token]) -> Vec<&[Token]> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1);
        let closes = |token: &Token| token.is('"') || token.is('”') || token.is(')') || token.is('\'');
        let is_end = token.is('.') || token.is('!') || token.is('?') || token.is('…');
        let closed_end = closes(token)
            && at.checked_sub(1).and_then(|before| tokens.get(before)).is_some_and(|before| {
                !token.space_before && (before.is('.') || before.is('!') || before.is('?') || before.is('…'))
            });
        let continues = token.is('…') && next.is_some_and(|next| next.text.starts_with(char::is_lowercase));
        let ends = (is_end || closed_end) && !continues && next.is_none_or(|next| next.space_before);
        if token.kind == Kind::Break || ends {
            sentences.push(&tokens[start..=at]);
            start = at + 1;
        }
    }
    sentences.push(&tokens[start..]);
    sentences.retain(|sentence| sentence.iter().any(|token| token.kind != Kind::Break));
    sentences
}

/// Collects what is spoken and cuts it into chunks.
#[derive(Debug, Default)]
pub struct Chunks {
    done: Vec<(Vec<Spoken>, usize)>,
}

impl Chunks {
    /// Adds a sentence and the phonemes of its tokens.
    pub fn add(&mut self, sentence: &[Token], phonemes: Vec<String>) {
        let mut spoken: Vec<Spoken> = Vec::new();
        let mut space_before = false;
        for (token, phonemes) in sentence.iter().zip(phonemes) {
            space_before |= token.space_before;
            if phonemes.is_empty() {
                continue;
            }
            space_before &= !closes_up(&phonemes);
            let (start, end) = (token.start, token.end);
            for piece in pieces(&phonemes) {
                let length = piece.chars().count();
                spoken.push(Spoken { phonemes: piece, length, space_before, start, end });
                space_before = false;
            }
        }
        if !spoken.iter().any(|spoken| spoken.phonemes.chars().any(|symbol| !is_punctuation(symbol) && symbol != ' ')) {
            return;
        }
        for part in self.cut(spoken) {
            let length = length(&part);
            match self.done.last_mut() {
                Some((last, total)) if (*total < SHORT || length < SHORT / 2) && *total + length < MAX_PHONEMES / 2 => {
                    *total += length + 1;
                    last.extend(
                        part.into_iter()
                            .enumerate()
                            .map(|(at, spoken)| Spoken { space_before: spoken.space_before || at == 0, ..spoken }),
                    );
                }
                _ => self.done.push((part, length)),
            }
        }
    }

    /// The chunks, with their text.
    pub fn finish(self, text: &str) -> Vec<Sentence> {
        let sentence = |(spoken, _): (Vec<Spoken>, usize)| {
            let start = spoken.first().map_or(0, |spoken| spoken.start);
            let end = spoken.iter().map(|spoken| spoken.end).max().unwrap_or(start);
            let text = text.get(start..end).unwrap_or_default().trim().to_owned();
            Sentence { text, phonemes: phonemes(&spoken) }
        };
        self.done.into_iter().map(sentence).collect()
    }

    /// Cuts a sentence that is too long, or the first one for an early first sound.
    fn cut(&self, spoken: Vec<Spoken>) -> Vec<Vec<Spoken>> {
        let mut lengths = Vec::new();
        let mut rest = spoken.as_slice();
        if self.done.is_empty() && length_exceeds(rest, FIRST) {
            let at = clause_end(rest, FIRST_MIN, FIRST).unwrap_or(0);
            lengths.push(at);
            rest = &rest[at..];
        }
        while length_exceeds(rest, MAX_PHONEMES) {
            let at = clause_end(rest, MAX_PHONEMES / 4, MAX_PHONEMES).unwrap_or_else(|| longest_fit(rest)).max(1);
            lengths.push(at);
            rest = &rest[at..];
        }
        lengths.push(rest.len());
        let mut spoken = spoken.into_iter();
        let parts = lengths.into_iter().map(|length| spoken.by_ref().take(length).collect::<Vec<_>>());
        parts.filter(|part| !part.is_empty()).collect()
    }
}

/// After which token to cut: the last clause's end that leaves between `min` and `max` symbols.
fn clause_end(spoken: &[Spoken], min: usize, max: usize) -> Option<usize> {
    let mut total = 0;
    let mut found = None;
    for (at, token) in spoken.iter().enumerate() {
        total += token.length + usize::from(token.space_before);
        if total > max || at + 1 == spoken.len() {
            break;
        }
        if total >= min && token.phonemes.chars().all(is_pause) {
            found = Some(at + 1);
        }
    }
    found
}

/// How many tokens fit.
fn longest_fit(spoken: &[Spoken]) -> usize {
    let mut total = 0;
    let fits = spoken.iter().take_while(|token| {
        total += token.length + usize::from(token.space_before);
        total <= MAX_PHONEMES
    });
    fits.count()
}

fn length(spoken: &[Spoken]) -> usize {
    spoken.iter().map(|token| token.length + usize::from(token.space_before)).sum()
}

/// Whether the length exceeds the limit; looks no further than it must.
fn length_exceeds(spoken: &[Spoken], limit: usize) -> bool {
    let mut total = 0;
    spoken.iter().any(|token| {
        total += token.length + usize::from(token.space_before);
        total > limit
    })
}

fn phonemes(spoken: &[Spoken]) -> String {
    let mut phonemes = String::new();
    for token in spoken {
        if token.space_before && !phonemes.is_empty() {
            phonemes.push(' ');
        }
        phonemes.push_str(&token.phonemes);
    }
    phonemes
}

/// Cuts the phonemes of one token that alone exceeds the limit.
fn pieces(phonemes: &str) -> Vec<String> {
    if phonemes.len() <= MAX_PHONEMES {
        return vec![phonemes.to_owned()];
    }
    let symbols: Vec<char> = phonemes.chars().collect();
    symbols.chunks(MAX_PHONEMES / 2).map(|piece| piece.iter().collect()).collect()
}
