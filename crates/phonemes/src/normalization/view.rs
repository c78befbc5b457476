//! Inputs and results of the rules of normalization.

use super::super::numbers::{NumberWords, Written, parse_written, spoken_digits};
use super::super::token::{Kind, Token};
use super::super::token_view::TokenView;
use super::super::word_lists::is_function_word;

/// Marks after which a hyphen is the sign of a number, even without white space.
const BEFORE_SIGN: [char; 20] =
    ['(', '"', '“', '=', '<', '>', '≤', '≥', '≈', '^', '+', '*', '×', '÷', '/', ',', ':', ';', '±', '~'];

/// The input of a rule.
pub type View<'a> = TokenView<'a, English>;

/// American or British English.
#[derive(Clone, Copy)]
pub struct English {
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

impl View<'_> {
    /// True if the token is the sign of the number or amount that follows. A hyphen after a word or number is not a
    /// sign, and neither is a dash after a number.
    pub fn is_minus(&self) -> bool {
        let after_number = || self.before(1).is_some_and(|before| before.kind == Kind::Number);
        let is_sign = |token: &&Token| token.is('-') || (token.is('–') && !after_number());
        let Some(sign) = self.get(0).filter(is_sign) else { return false };
        let opens = |before: &Token| before.kind == Kind::Break || BEFORE_SIGN.iter().any(|mark| before.is(*mark));
        (sign.space_before || self.before(1).is_none_or(opens)) && self.adjacent(1).is_some()
    }

    /// True if the sentence may end before the token at the offset: there is no such token, a paragraph ends, or it has
    /// a capital and can begin a sentence.
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
            Written::Integer { digits, .. } => self.language.numbers.digits_or_cardinal(&digits),
            Written::Decimal { whole, fraction } => {
                let whole =
                    if whole.is_empty() { String::new() } else { self.language.numbers.digits_or_cardinal(&whole) };
                format!("{whole} point {}", spoken_digits(&fraction))
            }
            Written::Several(parts) => {
                let part = |(digits, separator): (String, Option<char>)| {
                    let separator = separator.map_or("", |mark| if mark == '.' { " point " } else { " , " });
                    self.language.numbers.digits_or_cardinal(&digits) + separator
                };
                parts.into_iter().map(part).collect()
            }
        }
    }
}
