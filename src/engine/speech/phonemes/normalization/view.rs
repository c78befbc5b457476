//! What the rules of normalization see and give.

use super::super::numbers::{NumberWords, Written, parse_written, spoken_digits};
use super::super::token::{Kind, Token};
use super::super::word_lists::is_function_word;

/// Marks after which a hyphen is the sign of a number, even without white space.
const BEFORE_SIGN: [char; 20] =
    ['(', '"', '“', '=', '<', '>', '≤', '≥', '≈', '^', '+', '*', '×', '÷', '/', ',', ':', ';', '±', '~'];

/// What a rule sees.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub tokens: &'a [Token],
    pub at: usize,
    pub numbers: NumberWords,
    pub british: bool,
}

/// The words that replace tokens.
pub struct Reading {
    pub taken: usize,
    pub parts: Vec<Part>,
}

pub enum Part {
    /// Words separated by spaces. A comma or a full stop among them is punctuation.
    Words(String),
    /// A word to be read letter by letter.
    Letters(String),
}

impl Reading {
    pub fn new(taken: usize, words: impl Into<String>) -> Option<Self> {
        Some(Self { taken, parts: vec![Part::Words(words.into())] })
    }

    pub fn letters(taken: usize, letters: impl Into<String>) -> Option<Self> {
        Some(Self { taken, parts: vec![Part::Letters(letters.into())] })
    }
}

impl<'a> View<'a> {
    pub fn get(&self, offset: usize) -> Option<&'a Token> {
        self.tokens.get(self.at.checked_add(offset)?)
    }

    pub fn before(&self, offset: usize) -> Option<&'a Token> {
        self.tokens.get(self.at.checked_sub(offset)?)
    }

    /// The token at the offset, if no white space separates it from the one before.
    pub fn adjacent(&self, offset: usize) -> Option<&'a Token> {
        self.get(offset).filter(|token| !token.space_before)
    }

    pub fn adjacent_is(&self, offset: usize, mark: char) -> bool {
        self.adjacent(offset).is_some_and(|token| token.is(mark))
    }

    /// The text of the number at the offset.
    pub fn number(&self, offset: usize) -> Option<&'a str> {
        self.get(offset).filter(|token| token.kind == Kind::Number).map(|token| token.text.as_str())
    }

    pub fn adjacent_number(&self, offset: usize) -> Option<&'a str> {
        self.adjacent(offset).and_then(|_| self.number(offset))
    }

    pub fn word(&self, offset: usize) -> Option<&'a str> {
        self.get(offset).filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str())
    }

    pub fn adjacent_word(&self, offset: usize) -> Option<&'a str> {
        self.adjacent(offset).and_then(|_| self.word(offset))
    }

    /// Whether the token is the sign of the number or amount that follows it. A hyphen after a word or number is none, and a
    /// dash is none after a number.
    pub fn is_minus(&self) -> bool {
        let after_number = || self.before(1).is_some_and(|before| before.kind == Kind::Number);
        let is_sign = |token: &&Token| token.is('-') || (token.is('–') && !after_number());
        let Some(sign) = self.get(0).filter(is_sign) else { return false };
        let opens = |before: &Token| before.kind == Kind::Break || BEFORE_SIGN.iter().any(|mark| before.is(*mark));
        (sign.space_before || self.before(1).is_none_or(opens)) && self.adjacent(1).is_some()
    }

    pub fn word_before(&self, offset: usize) -> Option<&'a str> {
        self.before(offset).filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str())
    }

    /// Whether the sentence may end before the token at the offset: there is none, or a paragraph ends, or it has a capital
    /// and can begin a sentence.
    pub fn is_sentence_start(&self, offset: usize) -> bool {
        match self.get(offset) {
            None => true,
            Some(token) if token.kind == Kind::Break => true,
            Some(token) if token.is('"') || token.is('”') || token.is(')') => {
                self.is_sentence_start_after(offset + 1)
            }
            Some(token) => token.is_capitalized() && is_function_word(&token.text.to_lowercase()),
        }
    }

    pub fn is_sentence_start_after(&self, offset: usize) -> bool {
        self.get(offset).is_none_or(|token| token.kind == Kind::Break || token.is_capitalized())
    }

    /// Reads a number as it is written.
    pub fn spoken(&self, text: &str) -> String {
        match parse_written(text, ',', '.') {
            Written::Integer { digits, .. } => self.numbers.digits_or_cardinal(&digits),
            Written::Decimal { whole, fraction } => {
                let whole = if whole.is_empty() { String::new() } else { self.numbers.digits_or_cardinal(&whole) };
                format!("{whole} point {}", spoken_digits(&fraction))
            }
            Written::Several(parts) => {
                let part = |(digits, separator): (String, Option<char>)| {
                    let separator = separator.map_or("", |mark| if mark == '.' { " point " } else { " , " });
                    self.numbers.digits_or_cardinal(&digits) + separator
                };
                parts.into_iter().map(part).collect()
            }
        }
    }
}

/// A whole number without separators.
pub fn integer(text: &str) -> Option<u64> {
    text.chars().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
