//! The special tokens of Whisper's vocabularies.
//!
//! After the tokens of text come the special tokens, in the order of OpenAI's `whisper/tokenizer.py`: end of text, start
//! of transcript, the languages, six that control the decoder, and the timestamps from 0 to 30 seconds.

/// Language codes, in the order of their tokens. Models before large-v3 do not have the last.
pub const LANGUAGES: [&str; 100] = [
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id", "hi", "fi",
    "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg", "lt", "la", "mi", "ml",
    "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs",
    "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu", "am",
    "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln",
    "ha", "ba", "jw", "su", "yue",
];
/// Languages before large-v3. English-only models have their tokens, too, without a use.
pub const LANGUAGES_BEFORE_V3: u64 = 99;
/// Timestamps, 0.02 s apart.
pub const TIMESTAMPS: u64 = 1501;
/// Tokens of text in the vocabulary of GPT-2, which English-only models have.
pub const ENGLISH_TEXT_TOKENS: u64 = 50_256;
/// Tokens of text in the multilingual vocabulary.
pub const MULTILINGUAL_TEXT_TOKENS: u64 = 50_257;

/// English-only: tokens of text that stand for sounds, brackets or speaker labels rather than for speech. They are the
/// result of `non_speech_tokens` in OpenAI's tokenizer.
pub const ENGLISH_NON_SPEECH: [u64; 84] = [
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 357, 366, 438, 532, 685,
    705, 796, 930, 1058, 1220, 1267, 1279, 1303, 1343, 1377, 1391, 1635, 1782, 1875, 2162, 2361, 2488, 3467, 4008,
    4211, 4600, 4808, 5299, 5855, 6329, 7203, 9609, 9959, 10563, 10786, 11420, 11709, 11907, 13163, 13697, 13700,
    14808, 15306, 16410, 16791, 17992, 19203, 19510, 20724, 22305, 22935, 27007, 30109, 30420, 33409, 34949, 40283,
    40493, 40549, 47282, 49146,
];

/// The IDs of a vocabulary's special tokens.
#[derive(Clone, Copy, Debug)]
pub struct SpecialTokens {
    pub end_of_text: u64,
    pub languages: u64,
}

impl SpecialTokens {
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
        (0..self.languages).zip(LANGUAGES).map(|(_, code)| code)
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
