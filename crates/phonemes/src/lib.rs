//! Turns text into the phonemes that Kokoro reads.
//!
//! Text is cleaned ([`cleaning`]), split into tokens ([`token`]) and normalized, so that only words and punctuation are left
//! ([`normalization`]). Sentences are cut ([`chunks`]), and each word gets its phonemes: English words from the model's
//! lexicon, with rules for inflected, compound and unknown words ([`english`]); Spanish and Italian words by the rules of
//! their spelling ([`romance`]). Every step takes time and memory in proportion to the text.

mod chunks;
mod cleaning;
mod english;
mod error;
mod language;
mod letter_to_sound;
mod lexicon;
mod markup;
mod normalization;
mod numbers;
mod romance;
mod stress;
mod symbols;
mod tagging;
#[cfg(test)]
mod tests;
mod token;
mod token_view;
mod word_lists;

pub use chunks::Sentence;
pub use error::LexiconError;
pub use language::Language;
pub use lexicon::{Lexicon, MAX_BYTES as MAX_LEXICON_BYTES};

use chunks::{Chunks, sentences};
use cleaning::clean;
use english::English;
use normalization::normalize;
use token::tokenize;

/// Turns text of one language into phonemes. Creating one for English takes a second or two, because it learns
/// letter-to-sound rules from the lexicon; so it is created once, when the model loads.
pub struct Phonemizer {
    rules: Rules,
}

enum Rules {
    English { english: English, british: bool },
    Romance(Language),
}

impl Phonemizer {
    /// Prepares the rules of a language. English needs a lexicon.
    pub fn new(lexicon: Option<Lexicon>, language: Language) -> Result<Self, LexiconError> {
        let rules = match language {
            Language::AmericanEnglish | Language::BritishEnglish => {
                let british = language == Language::BritishEnglish;
                let lexicon = lexicon.ok_or(LexiconError::Missing(language.tag()))?;
                Rules::English { english: English::new(lexicon, british), british }
            }
            Language::Spanish | Language::Italian => Rules::Romance(language),
        };
        Ok(Self { rules })
    }

    /// The text as chunks of at most 510 phonemes, in order. Text without anything to speak gives none. The first chunk is
    /// short if the text allows it.
    pub fn phonemize(&self, text: &str) -> Vec<Sentence> {
        let cleaned = clean(text);
        let tokens = tokenize(&cleaned);
        let mut chunks = Chunks::default();
        match &self.rules {
            Rules::English { english, british } => {
                for sentence in sentences(&normalize(&tokens, *british)) {
                    chunks.add(sentence, english.phonemes(sentence));
                }
            }
            Rules::Romance(language) => {
                for sentence in sentences(&romance::normalize(&tokens, *language)) {
                    chunks.add(sentence, romance::phonemes(sentence, *language));
                }
            }
        }
        chunks.finish(&cleaned)
    }
}
