//! The languages that can be spoken, and the names by which requests and voices choose them.

use super::error::UnsupportedLanguage;

/// A language with rules for its pronunciation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    AmericanEnglish,
    BritishEnglish,
    Spanish,
    Italian,
}

/// Names of languages that have voices but no rules yet.
const WITHOUT_RULES: [(&str, char); 5] =
    [("Japanese", 'j'), ("Chinese", 'z'), ("Hindi", 'h'), ("French", 'f'), ("Brazilian Portuguese", 'p')];

impl Language {
    /// Every language with rules.
    pub const ALL: [Self; 4] = [Self::AmericanEnglish, Self::BritishEnglish, Self::Spanish, Self::Italian];

    /// The language tag (BCP 47).
    pub fn tag(self) -> &'static str {
        match self {
            Self::AmericanEnglish => "en-US",
            Self::BritishEnglish => "en-GB",
            Self::Spanish => "es",
            Self::Italian => "it",
        }
    }

    /// The language of one of Kokoro's voices. The first letter of a voice's name stands for it: `af_heart` speaks American
    /// English.
    pub fn of_voice(voice: &str) -> Result<Self, UnsupportedLanguage> {
        let letter = voice.chars().next();
        match letter {
            Some('a') => Ok(Self::AmericanEnglish),
            Some('b') => Ok(Self::BritishEnglish),
            Some('e') => Ok(Self::Spanish),
            Some('i') => Ok(Self::Italian),
            _ => {
                let without = WITHOUT_RULES.iter().find(|(_, other)| Some(*other) == letter);
                let unknown = || voice.chars().take(20).collect();
                Err(UnsupportedLanguage(without.map_or_else(unknown, |(name, _)| (*name).to_owned())))
            }
        }
    }

    /// True for languages that need a lexicon.
    pub fn needs_lexicon(self) -> bool {
        matches!(self, Self::AmericanEnglish | Self::BritishEnglish)
    }
}
