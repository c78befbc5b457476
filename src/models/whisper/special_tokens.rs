//! The IDs of special tokens. They follow from the size of the vocabulary, as in OpenAI's `tokenizer.py`: special tokens
//! come after the tokens of text, and one token for each 0.02 seconds comes last.

/// Timestamps of a window: 0.00 to 30.00 seconds.
const TIMESTAMPS: u32 = 1501;
/// Special tokens between the languages and the timestamps.
const TASKS: u32 = 6;

/// The IDs of special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// `<|endoftext|>`
    pub end_of_text: u32,
    /// `<|startoftranscript|>`. The languages follow it.
    pub start_of_transcript: u32,
    /// Languages: 99, or 100 since large-v3.
    pub languages: u32,
    pub translate: u32,
    pub transcribe: u32,
    /// `<|startoflm|>`
    pub start_of_lm: u32,
    /// `<|startofprev|>`
    pub start_of_previous: u32,
    /// `<|nospeech|>`, or `<|nocaptions|>` in transformers.
    pub no_speech: u32,
    /// `<|notimestamps|>`
    pub no_timestamps: u32,
    /// `<|0.00|>`
    pub first_timestamp: u32,
}

impl SpecialTokens {
    /// The special tokens of a vocabulary of this size; `None` if it is not one of OpenAI's.
    pub fn of_vocabulary(vocabulary: usize) -> Option<Self> {
        let (end_of_text, languages) = match vocabulary {
            51_864 => (50_256, 99),
            51_865 => (50_257, 99),
            51_866 => (50_257, 100),
            _ => return None,
        };
        let start_of_transcript = end_of_text + 1;
        let translate = start_of_transcript + 1 + languages;
        Some(Self {
            end_of_text,
            start_of_transcript,
            languages,
            translate,
            transcribe: translate + 1,
            start_of_lm: translate + 2,
            start_of_previous: translate + 3,
            no_speech: translate + 4,
            no_timestamps: translate + 5,
            first_timestamp: translate + TASKS,
        })
    }

    /// `<|30.00|>`
    pub fn last_timestamp(&self) -> u32 {
        self.first_timestamp + TIMESTAMPS - 1
    }
}

#[cfg(test)]
mod tests {
    use super::SpecialTokens;

    #[test]
    fn the_last_timestamp_is_the_last_token() {
        for vocabulary in [51_864, 51_865, 51_866] {
            let tokens = SpecialTokens::of_vocabulary(vocabulary).unwrap();
            assert_eq!(tokens.last_timestamp() as usize, vocabulary - 1);
        }
        assert_eq!(SpecialTokens::of_vocabulary(51_865).unwrap().no_timestamps, 50_363);
        assert_eq!(SpecialTokens::of_vocabulary(32_000), None);
    }
}
