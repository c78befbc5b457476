//! A loaded speech model: the network, its voices, and the pronunciation of the languages that they speak.

use std::collections::BTreeMap;

use super::checkpoint::{SpeechCheckpoint, lexicon_error};
use super::device_network::{self, DeviceNetwork};
use super::phonemes::{Language, Lexicon, Phonemizer};
use super::voice_info::VoiceInfo;
use crate::error::Refused;
use crate::kinds::{LoadOptions, LoadSource};
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use outpost_models::backend::TimeConvolutions;
use outpost_models::kokoro::{KokoroConfig, SAMPLE_RATE, Voice};

/// A model that speaks texts.
pub struct SpeechModel {
    id: String,
    /// The device that runs it.
    pub(crate) device: DeviceIndex,
    network: Box<dyn DeviceNetwork>,
    config: KokoroConfig,
    voices: BTreeMap<String, Voice>,
    /// Those whose languages the files have what they need for.
    phonemizers: Vec<(Language, Phonemizer)>,
    /// Its share of the memory budget, returned on drop.
    pub(crate) lease: Lease,
}

impl SpeechModel {
    /// Reads the weights of a checkpoint.
    pub(super) fn new<B: TimeConvolutions>(
        files: &SpeechCheckpoint,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        let LoadSource { id, device, options: LoadOptions { precision, .. }, .. } = *source;
        let config = files.config.clone();
        let width = 2 * config.style;
        let mut voices = BTreeMap::new();
        for (name, path) in &files.voices {
            voices.insert(name.clone(), Voice::read(path, width).map_err(|error| error.to_string())?);
        }
        let mut phonemizers = Vec::new();
        for language in files.languages() {
            phonemizers.extend(phonemizer(files, language)?.map(|phonemizer| (language, phonemizer)));
        }
        let network = device_network::load(&files.folder, config.clone(), precision, backend);
        let network = network.map_err(|error| error.to_string())?;
        Ok(Self { id: id.to_owned(), device, network, config, voices, phonemizers, lease })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> u32 {
        SAMPLE_RATE
    }

    /// The voices, sorted by name.
    pub fn voices(&self) -> Vec<VoiceInfo> {
        let describe = |name: &String| {
            let language = Language::of_voice(name).ok();
            let language = language.filter(|language| self.phonemizers.iter().any(|(known, _)| known == language));
            VoiceInfo { name: name.clone(), language: language.map(Language::tag) }
        };
        self.voices.keys().map(describe).collect()
    }

    pub(super) fn network(&self) -> &dyn DeviceNetwork {
        &*self.network
    }

    /// The weighted mean of voices.
    pub(super) fn mix(&self, voices: &[(String, f32)]) -> Result<Voice, Refused> {
        let voices = voices.iter().map(|(name, weight)| Ok((self.voice(name)?, *weight)));
        let voices: Vec<(&Voice, f32)> = voices.collect::<Result<_, Refused>>()?;
        Voice::mix(&voices).map_err(|error| Refused::Invalid(error.to_string()))
    }

    /// The tokens of each part of a text, in the language of this voice. Takes time in proportion to the text's length.
    pub(super) fn parts(&self, text: &str, voice: &str) -> Result<Vec<Vec<u32>>, Refused> {
        let parts = self.phonemizer(voice)?.phonemize(text).into_iter();
        let tokens = parts.map(|part| self.config.tokens(&part.phonemes));
        // Without phonemes, there are only the tokens at both ends.
        Ok(tokens.filter(|tokens| tokens.len() > 2).collect())
    }

    fn voice(&self, name: &str) -> Result<&Voice, Refused> {
        self.voices.get(name).ok_or_else(|| Refused::Invalid(format!("the model has no voice '{name}'")))
    }

    /// The phonemizer of a voice's language.
    fn phonemizer(&self, voice: &str) -> Result<&Phonemizer, Refused> {
        let language = Language::of_voice(voice).map_err(|error| Refused::Invalid(error.to_string()))?;
        let found = self.phonemizers.iter().find(|(known, _)| *known == language);
        found.map(|(_, phonemizer)| phonemizer).ok_or_else(|| {
            let (tag, folder) = (language.tag(), SpeechCheckpoint::LEXICONS);
            Refused::Invalid(format!("the model's folder '{folder}' has no lexicon for the language {tag}"))
        })
    }
}

/// The phonemizer of a language; `None` if the files have no lexicon for it.
fn phonemizer(files: &SpeechCheckpoint, language: Language) -> Result<Option<Phonemizer>, String> {
    let lexicon = match language.needs_lexicon() {
        false => None,
        true => match lexicon(files, language)? {
            None => return Ok(None),
            found => found,
        },
    };
    Phonemizer::new(lexicon, language).map(Some).map_err(|error| error.to_string())
}

/// The lexicon of a language; `None` if the files have no gold lexicon for it.
fn lexicon(files: &SpeechCheckpoint, language: Language) -> Result<Option<Lexicon>, String> {
    let mut lexicon = Lexicon::default();
    let [gold, silver] = ["gold", "silver"].map(|kind| SpeechCheckpoint::lexicon_name(language, kind));
    let Some(json) = files.lexicon(&gold)? else { return Ok(None) };
    lexicon.add_gold(&json).map_err(|error| lexicon_error(&gold, error))?;
    drop(json);
    if let Some(json) = files.lexicon(&silver)? {
        lexicon.add_silver(&json).map_err(|error| lexicon_error(&silver, error))?;
    }
    Ok(Some(lexicon))
}
