//! The special tokens of Whisper's vocabularies.
//!
//! After the tokens of text come the special tokens, in the order of OpenAI's `whisper/tokenizer.py`: end of text, start
//! of transcript, the languages, six that control the decoder, and the timestamps from 0 to 30 seconds.

use super::languages::LANGUAGES;

/// Languages before large-v3. English-only models have their tokens, too, without a use.
pub const LANGUAGES_BEFORE_V3: u64 = 99;
/// Timestamps, 0.02 s apart.
pub const TIMESTAMPS: u64 = 1501;
/// Tokens of text in the vocabulary of GPT-2, which English-only models have.
pub const ENGLISH_TEXT_TOKENS: u64 = 50_256;
/// Tokens of text in the multilingual vocabulary.
pub const MULTILINGUAL_TEXT_TOKENS: u64 = 50_257;

/// The IDs of a vocabulary's special tokens.
#[derive(Clone, Copy, Debug)]
pub struct SpecialTokens {
    pub end_of_text: u64,
    pub languages: u64,
}

impl SpecialTokens {
    /// The special tokens of a vocabulary of this size; `None` if it is not one of OpenAI's.
    pub fn of_vocabulary(size: usize) -> Option<Self> {
        let multilingual = [LANGUAGES_BEFORE_V3, LANGUAGES_BEFORE_V3 + 1].map(Self::multilingual);
        let all = [Self::ENGLISH].into_iter().chain(multilingual);
        all.into_iter().find(|tokens| tokens.vocabulary() == size as u64)
    }

    /// The special tokens of an English-only model.
    pub const ENGLISH: Self = Self { end_of_text: ENGLISH_TEXT_TOKENS, languages: LANGUAGES_BEFORE_V3 };

    /// Those of a multilingual model with this many languages.
    pub fn multilingual(languages: u64) -> Self {
        Self { end_of_text: MULTILINGUAL_TEXT_TOKENS, languages }
    }

    pub fn start_of_transcript(self) -> u64 {
        self.end_of_text + 1
    }

    pub fn first_language(self) -> u64 {
        self.end_of_text + 2
    }

    pub fn translate(self) -> u64 {
        self.first_language() + self.languages
    }

    pub fn transcribe(self) -> u64 {
        self.translate() + 1
    }

    pub fn start_of_previous(self) -> u64 {
        self.translate() + 3
    }

    pub fn no_timestamps(self) -> u64 {
        self.translate() + 5
    }

    /// Size of the vocabulary.
    pub fn vocabulary(self) -> u64 {
        self.no_timestamps() + 1 + TIMESTAMPS
    }

    /// The codes of the languages.
    pub fn codes(self) -> impl Iterator<Item = &'static str> {
        (0..self.languages).zip(LANGUAGES).map(|(_, (code, _))| code)
    }

    /// Special tokens that are never part of a text: everything that starts or controls one.
    pub fn never_generated(self) -> impl Iterator<Item = u64> {
        [self.start_of_transcript()].into_iter().chain(self.translate()..self.no_timestamps())
    }

    /// The texts of all special tokens but timestamps, from the end of text on.
    pub fn control_texts(self) -> Vec<String> {
        let languages = self.codes().map(|code| format!("<|{code}|>"));
        let controls = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"];
        ["<|endoftext|>", "<|startoftranscript|>"]
            .map(str::to_owned)
            .into_iter()
            .chain(languages)
            .chain(controls.map(|name| format!("<|{name}|>")))
            .collect()
    }
}

/// The texts of the timestamps: `<|0.00|>`, `<|0.02|>` … `<|30.00|>`.
pub fn timestamp_texts() -> impl Iterator<Item = String> {
    (0..TIMESTAMPS).map(|step| format!("<|{}.{:02}|>", step / 50, step % 50 * 2))
}

#[cfg(test)]
mod tests {
    use super::{SpecialTokens, timestamp_texts};

    #[test]
    fn the_last_timestamp_is_the_last_token() {
        for size in [51_864, 51_865, 51_866] {
            let tokens = SpecialTokens::of_vocabulary(size).unwrap();
            let controls = tokens.control_texts().len() + timestamp_texts().count();
            assert_eq!(tokens.end_of_text as usize + controls, size);
        }
        assert_eq!(SpecialTokens::of_vocabulary(51_865).unwrap().no_timestamps(), 50_363);
        assert!(SpecialTokens::of_vocabulary(32_000).is_none());
    }
}
