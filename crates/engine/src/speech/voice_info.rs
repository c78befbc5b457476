//! The voices of a model, as they are listed.

use std::path::Path;

use super::checkpoint::SpeechCheckpoint;
use super::phonemes::Language;

/// A voice of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceInfo {
    pub name: String,
    /// The tag of the language that it speaks, such as `en-US`; `None`: the server cannot pronounce it.
    pub language: Option<&'static str>,
}

impl VoiceInfo {
    /// The voices in a model's folder, sorted by name. Reads no weights.
    pub fn list(folder: &Path) -> Vec<Self> {
        let lexicons = folder.join(SpeechCheckpoint::LEXICONS);
        let has_lexicon = |language| lexicons.join(SpeechCheckpoint::lexicon_name(language, "gold")).is_file();
        let describe = |name: String| {
            let language = Language::of_voice(&name).ok();
            let language = language.filter(|language| !language.needs_lexicon() || has_lexicon(*language));
            Self { name, language: language.map(Language::tag) }
        };
        SpeechCheckpoint::voice_files(folder).into_keys().map(describe).collect()
    }
}
