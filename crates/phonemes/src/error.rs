//! Why text cannot be turned into phonemes.

/// There are no pronunciation rules for the language.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("speech in the language '{0}' is not supported; choose a voice for English, Spanish or Italian")]
pub struct UnsupportedLanguage(pub String);

/// A lexicon cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LexiconError {
    #[error("the lexicon has {bytes} bytes; the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the lexicon has {words} words; the limit is {limit}")]
    TooManyWords { words: usize, limit: usize },
    #[error("the lexicon is not a JSON object of words and pronunciations: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the lexicon's entry '{word}' has no pronunciation under DEFAULT")]
    NoDefault { word: String },
    #[error("the lexicon's entry '{word}' is longer than {limit} characters or has a character that is no phoneme")]
    Pronunciation { word: String, limit: usize },
    #[error("the language '{0}' needs a lexicon, and none was given")]
    Missing(&'static str),
}
