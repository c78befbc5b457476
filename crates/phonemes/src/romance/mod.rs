//! Pronunciation of languages whose spelling is close to their sounds: Spanish and Italian.
//!
//! The symbols are those that espeak-ng gives for these languages, because Kokoro was trained on them. The rules are our own.

mod dates;
mod italian;
mod italian_stress;
mod normalization;
mod number_words;
mod ordinals;
mod quantities;
mod spanish;
mod syllables;
#[cfg(test)]
mod tests;
mod view;
mod words;

pub use normalization::normalize;

use super::language::Language;
use super::token::{Kind, Token};

/// The phonemes of each token; empty for those that are not spoken.
pub fn phonemes(sentence: &[Token], language: Language) -> Vec<String> {
    let mut previous = None;
    let mut phonemes = Vec::with_capacity(sentence.len());
    for (at, token) in sentence.iter().enumerate() {
        let next =
            sentence.get(at + 1).filter(|next| next.kind == Kind::Word).and_then(|next| next.text.chars().next());
        let spoken = match token.kind {
            Kind::Word => {
                let parts = token.text.split('-').map(|part| {
                    let spoken = word(&part.to_lowercase(), previous, next, language);
                    previous = spoken.chars().next_back().or(previous);
                    spoken
                });
                parts.collect()
            }
            Kind::Phonemes | Kind::Punctuation => token.text.clone(),
            Kind::Letters | Kind::Number | Kind::Symbol | Kind::Break => String::new(),
        };
        if token.kind == Kind::Punctuation {
            previous = None;
        }
        phonemes.push(spoken);
    }
    phonemes
}

fn word(word: &str, previous: Option<char>, next: Option<char>, language: Language) -> String {
    let letters: Vec<char> = word.chars().filter(|letter| letter.is_alphabetic()).collect();
    match language {
        Language::Italian => italian::word(&letters),
        _ => spanish::word(&letters, previous, next),
    }
}
