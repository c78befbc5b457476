//! Splits cleaned text into words, numbers, punctuation and symbols.

use super::symbols::{is_punctuation, is_symbol};

/// The longest word, in characters. What follows becomes another word.
const MAX_WORD: usize = 64;
/// The longest run of digits and separators, in characters.
const MAX_NUMBER: usize = 40;
/// The longest inline pronunciation, in bytes.
const MAX_INLINE: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Letters, with apostrophes and hyphens inside.
    Word,
    /// A word to be read letter by letter.
    Letters,
    /// Digits, with commas and points inside.
    Number,
    /// One mark that the model reads.
    Punctuation,
    /// One character that has to be read as a word or left out.
    Symbol,
    /// Phonemes that the text gives: `[word](/phonemes/)`.
    Phonemes,
    /// The end of a paragraph.
    Break,
}

/// A piece of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    /// Set if white space separates it from the previous token.
    pub space_before: bool,
    /// Where it stands in the cleaned text, in bytes.
    pub start: usize,
    pub end: usize,
}

impl Token {
    /// Whether this is the symbol or punctuation mark.
    pub fn is(&self, mark: char) -> bool {
        matches!(self.kind, Kind::Symbol | Kind::Punctuation) && self.text.starts_with(mark)
    }

    /// Whether this is a word with a capital.
    pub fn is_capitalized(&self) -> bool {
        self.kind == Kind::Word && self.text.starts_with(char::is_uppercase)
    }
}

/// The tokens of the text. Takes time and memory in proportion to the text.
pub fn tokenize(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    let mut space_before = false;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            let blank = rest.len() - rest.trim_start().len();
            if rest[..blank].matches('\n').count() >= 2 && tokens.last().is_some_and(|token| token.kind != Kind::Break)
            {
                tokens.push(Token { kind: Kind::Break, text: String::new(), space_before, start: at, end: at });
            }
            (at, space_before) = (at + blank, true);
            continue;
        }
        let (kind, content, length) =
            next_token(rest, first, !space_before && tokens.last().is_some_and(|last| !last.is('(')));
        let (start, end) = (at, at + length);
        let repeats = kind == Kind::Punctuation
            && !space_before
            && tokens.last().is_some_and(|last| last.kind == kind && last.text == content);
        if !repeats {
            tokens.push(Token { kind, text: content, space_before, start, end });
        }
        (at, space_before) = (end, false);
    }
    tokens
}

/// The kind, the content and the length in bytes of the token at the start.
fn next_token(rest: &str, first: char, follows: bool) -> (Kind, String, usize) {
    let whole = |kind: Kind, length: usize| (kind, rest[..length].to_owned(), length);
    let digit_at = |at: usize| rest.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    if first.is_alphabetic() || (first == '\'' && !follows && is_clipped_word(rest)) {
        return whole(Kind::Word, word_length(rest));
    }
    if first.is_ascii_digit() || (first == '.' && !follows && digit_at(1)) {
        return whole(Kind::Number, number_length(rest));
    }
    if first == '['
        && let Some(inline) = inline_phonemes(rest)
    {
        return inline;
    }
    if rest.starts_with("...") {
        return (Kind::Punctuation, "…".to_owned(), rest.len() - rest.trim_start_matches('.').len());
    }
    if rest.starts_with("--") {
        return (Kind::Punctuation, "—".to_owned(), rest.len() - rest.trim_start_matches('-').len());
    }
    if first == '"' {
        let quote = if follows { "”" } else { "“" };
        return (Kind::Punctuation, quote.to_owned(), 1);
    }
    let kind = if is_punctuation(first) { Kind::Punctuation } else { Kind::Symbol };
    whole(kind, first.len_utf8())
}

fn is_clipped_word(rest: &str) -> bool {
    let word = rest.get(1..word_length(rest)).unwrap_or("").to_ascii_lowercase();
    matches!(word.as_str(), "em" | "tis" | "twas" | "til" | "cause" | "bout" | "cos")
}

fn word_length(rest: &str) -> usize {
    for (count, (at, symbol)) in rest.char_indices().enumerate() {
        let joins = || rest[at + symbol.len_utf8()..].starts_with(char::is_alphabetic);
        let inside = symbol.is_alphabetic() || (matches!(symbol, '\'' | '-') && joins());
        if !inside || count >= MAX_WORD {
            return at;
        }
    }
    rest.len()
}

fn number_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 1;
    while at < MAX_NUMBER && (is_digit(at) || (matches!(bytes.get(at), Some(b'.' | b',')) && is_digit(at + 1))) {
        at += 1;
    }
    at
}

/// `[word](/phonemes/)`. Symbols that the model does not know are left out.
fn inline_phonemes(rest: &str) -> Option<(Kind, String, usize)> {
    let start =
        rest.char_indices().take_while(|(at, _)| *at < MAX_INLINE).find(|(at, _)| rest[*at..].starts_with("](/"))?.0
            + 3;
    let end = start
        + rest[start..]
            .char_indices()
            .take_while(|(at, _)| *at < MAX_INLINE)
            .find(|(at, _)| rest[start + at..].starts_with("/)"))?
            .0;
    let known =
        rest[start..end].chars().filter(|symbol| is_symbol(*symbol) || is_punctuation(*symbol) || *symbol == ' ');
    Some((Kind::Phonemes, known.collect(), end + 2))
}
