//! What the rules of normalization see.

use super::super::language::Language;
use super::super::token::{Kind, Token};

/// The tokens from a position on.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub tokens: &'a [Token],
    pub at: usize,
    pub language: Language,
}

impl<'a> View<'a> {
    /// The same tokens from a later position on.
    pub fn from(&self, offset: usize) -> Self {
        Self { at: self.at + offset, ..*self }
    }

    pub fn is_italian(&self) -> bool {
        self.language == Language::Italian
    }

    pub fn pick<'b>(&self, spanish: &'b str, italian: &'b str) -> &'b str {
        if self.is_italian() { italian } else { spanish }
    }

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

    /// Whether a hyphen or a dash joins the number at the offset to the one before.
    pub fn is_joint(&self, offset: usize) -> bool {
        self.adjacent_is(offset, '-') || self.adjacent_is(offset, '–')
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

    pub fn word_before(&self, offset: usize) -> Option<&'a str> {
        self.before(offset).filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str())
    }

    /// Whether a word or number directly precedes, so that a hyphen is no sign.
    pub fn follows_word(&self) -> bool {
        let is_word = |before: &Token| matches!(before.kind, Kind::Word | Kind::Number);
        self.adjacent(0).is_some() && self.before(1).is_some_and(is_word)
    }

    /// Whether the text, a paragraph or a sentence may end before the token at the offset.
    pub fn is_sentence_start(&self, offset: usize) -> bool {
        let starts = |token: &Token| token.kind == Kind::Break || token.is_capitalized() || token.is('”');
        self.get(offset).is_none_or(starts)
    }
}

/// A whole number without separators.
pub fn integer(text: &str) -> Option<u64> {
    text.chars().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
