//! A position in a text, from which rules look at the tokens around it.

use super::token::{Kind, Token};

/// The tokens from a position on, and those before it. `L`: what the rules know of the language.
#[derive(Clone, Copy)]
pub struct TokenView<'a, L> {
    pub tokens: &'a [Token],
    pub at: usize,
    pub language: L,
}

impl<'a, L: Copy> TokenView<'a, L> {
    /// The same tokens from a later position on.
    pub fn from(&self, offset: usize) -> Self {
        Self { at: self.at + offset, ..*self }
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
}

/// A whole number without separators.
pub fn integer(text: &str) -> Option<u64> {
    text.chars().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
