//! Cuts text into chunks that the model speaks one by one: at sentence ends, then at clauses, then at words.

use super::symbols::{is_pause, is_punctuation};
use super::token::{Kind, Token};

/// The most symbols that Kokoro reads at once, without the two that enclose them.
pub const MAX_PHONEMES: usize = 510;
/// Sentences are joined up to this length, because very short inputs sound worse.
const SHORT: usize = 40;
/// If the first chunk would have more symbols than this, it is cut at the last clause end between [`SHORT`] and this many, so
/// that speech begins early.
const FIRST: usize = 120;

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
        let mut parts = self.cut(spoken).into_iter();
        if let Some(part) = parts.next() {
            self.join(part);
        }
        // Parts of the same cut stay apart.
        self.done.extend(parts.map(|part| {
            let length = length(&part);
            (part, length)
        }));
    }

    /// Adds a part to the last chunk if one of them is short, or else as a chunk of its own.
    fn join(&mut self, part: Vec<Spoken>) {
        let length = length(&part);
        let is_first = self.done.len() == 1;
        match self.done.last_mut() {
            Some((last, total)) if joins(*total, length, is_first) => {
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

    /// Cuts a sentence that is too long, or the first one for an early first sound. No part is shorter than [`SHORT`] if a
    /// clause ends elsewhere.
    fn cut(&self, spoken: Vec<Spoken>) -> Vec<Vec<Spoken>> {
        let mut lengths = Vec::new();
        let mut rest = spoken.as_slice();
        let mut remaining = length(rest);
        let mut early = self.early_cut(rest, remaining);
        while let Some(at) = early.take().or_else(|| long_cut(rest, remaining)) {
            let (part, after) = rest.split_at(at);
            remaining = remaining.saturating_sub(length(part));
            lengths.push(at);
            rest = after;
        }
        lengths.push(rest.len());
        let mut spoken = spoken.into_iter();
        let parts = lengths.into_iter().map(|length| spoken.by_ref().take(length).collect::<Vec<_>>());
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// After which token to cut a sentence that would make the first chunk long.
    fn early_cut(&self, spoken: &[Spoken], length: usize) -> Option<usize> {
        let before = self.short_beginning().filter(|before| before + length > FIRST)?;
        let max = FIRST.saturating_sub(before).min(length.saturating_sub(SHORT));
        clause_end(spoken, SHORT.saturating_sub(before), max)
    }

    /// How many symbols come before the next sentence if it is the first one, or joins a short first one.
    fn short_beginning(&self) -> Option<usize> {
        match self.done.as_slice() {
            [] => Some(0),
            [(_, length)] if *length < SHORT => Some(length + 1),
            _ => None,
        }
    }
}

/// True if a part joins the previous chunk. A short sentence does not make the first chunk long.
fn joins(total: usize, length: usize, is_first: bool) -> bool {
    let limit = if is_first && total >= SHORT { FIRST } else { MAX_PHONEMES / 2 };
    (total < SHORT || length < SHORT / 2) && total + length < limit
}

/// After which token to cut a sentence that is too long.
fn long_cut(spoken: &[Spoken], length: usize) -> Option<usize> {
    let max = MAX_PHONEMES.min(length.saturating_sub(SHORT));
    let at = || clause_end(spoken, MAX_PHONEMES / 4, max).unwrap_or_else(|| longest_fit(spoken, max)).max(1);
    (length > MAX_PHONEMES).then(at)
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

/// Number of tokens that fit.
fn longest_fit(spoken: &[Spoken], max: usize) -> usize {
    let mut total = 0;
    let fits = spoken.iter().take_while(|token| {
        total += token.length + usize::from(token.space_before);
        total <= max
    });
    fits.count()
}

fn length(spoken: &[Spoken]) -> usize {
    spoken.iter().map(|token| token.length + usize::from(token.space_before)).sum()
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
