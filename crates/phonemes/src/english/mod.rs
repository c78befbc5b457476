//! English pronunciation: each token of a sentence gets its phonemes.
//!
//! The sentence is read from right to left, because *the*, *to*, *a* and other function words depend on the sound that
//! follows. The rules follow misaki, the front end with which Kokoro was trained, where it does not need a tagger.

mod compounds;
mod inflection;
mod letters;
mod respelling;
mod word;

use super::letter_to_sound::LetterToSound;
use super::lexicon::Lexicon;
use super::tagging::Context;
use super::token::{Kind, Token};
use word::{Following, Pronouncer, Reader};

/// The pronunciation of English, American or British.
pub struct English {
    lexicon: Lexicon,
    rules: LetterToSound,
    british: bool,
}

impl English {
    /// Learns the rules for unknown words from the lexicon.
    pub fn new(lexicon: Lexicon, british: bool) -> Self {
        let rules = LetterToSound::train(lexicon.words());
        Self { lexicon, rules, british }
    }

    /// The phonemes of each token; empty for those that are not spoken.
    pub fn phonemes(&self, sentence: &[Token]) -> Vec<String> {
        let pronouncer = Pronouncer { lexicon: &self.lexicon, rules: &self.rules, british: self.british };
        let lower: Vec<String> = sentence.iter().map(lower_case).collect();
        let has_lower_case =
            sentence.iter().any(|token| token.kind == Kind::Word && token.text.contains(char::is_lowercase));
        let mut following = Following::default();
        let mut phonemes = vec![String::new(); sentence.len()];
        for (at, token) in sentence.iter().enumerate().rev() {
            let reader = Reader { following, context: context(&lower, at), among_lower_case: has_lower_case };
            let spoken = match token.kind {
                Kind::Word => pronouncer.pronounce(&token.text, &reader),
                Kind::Letters => pronouncer.spell(&token.text).unwrap_or_default(),
                Kind::Phonemes | Kind::Punctuation => token.text.clone(),
                Kind::Number | Kind::Symbol | Kind::Break => String::new(),
            };
            let spoken = spoken.replace('ɾ', "T").replace('ʔ', "t");
            following = following.before(&spoken, &token.text);
            phonemes[at] = spoken;
        }
        phonemes
    }
}

/// The word in lower case; empty for what separates phrases.
fn lower_case(token: &Token) -> String {
    match token.kind {
        Kind::Word => token.text.to_lowercase(),
        Kind::Letters => "name".to_owned(),
        _ => String::new(),
    }
}

fn context(lower: &[String], at: usize) -> Context<'_> {
    let mut before = [""; 3];
    for (back, slot) in before.iter_mut().enumerate() {
        match at.checked_sub(back + 1).and_then(|index| lower.get(index)) {
            Some(word) if !word.is_empty() => *slot = word,
            _ => break,
        }
    }
    let mut after = [""; 2];
    for (forward, slot) in after.iter_mut().enumerate() {
        match lower.get(at + forward + 1) {
            Some(word) if !word.is_empty() => *slot = word,
            _ => break,
        }
    }
    Context { word: lower.get(at).map_or("", String::as_str), before, after }
}
