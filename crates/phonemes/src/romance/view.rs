//! Inputs of the rules of normalization.

use super::super::language::Language;
use super::super::token::{Kind, Token};
use super::super::token_view::TokenView;

/// The input of a rule.
pub type View<'a> = TokenView<'a, Language>;

impl View<'_> {
    pub fn is_italian(&self) -> bool {
        self.language == Language::Italian
    }

    pub fn pick<'b>(&self, spanish: &'b str, italian: &'b str) -> &'b str {
        if self.is_italian() { italian } else { spanish }
    }

    /// Whether a hyphen or a dash joins the number at the offset to the one before.
    pub fn is_joint(&self, offset: usize) -> bool {
        self.adjacent_is(offset, '-') || self.adjacent_is(offset, '–')
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
