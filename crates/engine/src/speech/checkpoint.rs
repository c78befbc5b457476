//! An opened Kokoro checkpoint: `config.json`, safetensors, a folder of voices and a folder of lexicons.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::phonemes::{Language, MAX_LEXICON_BYTES};
use crate::precision::Precision;
use outpost_models::backend::TimeConvolutions;
use outpost_models::kokoro::{KokoroConfig, KokoroModel};
use outpost_models::model_files::{FolderListing, has_extension, is_safetensors};
use outpost_models::safetensors::ModelFolder;
use outpost_models::weights::Footprint;

/// Memory of a lexicon and the rules that are learned from it, per byte of its file. Kokoro's four have 12.6 MB, and take 80 MB.
const LEXICON_MEMORY: u64 = 6;
/// Further memory while the rules are learned, per byte of the file.
const LEXICON_LOADING: u64 = 4;
/// The most voices of a model.
const MAX_VOICES: usize = 1000;

/// A checkpoint whose weights are not read yet.
pub struct SpeechCheckpoint {
    pub folder: ModelFolder,
    pub config: KokoroConfig,
    /// The files of voices by name.
    pub voices: BTreeMap<String, PathBuf>,
}

impl SpeechCheckpoint {
    /// The folder of lexicons in a model's folder.
    pub const LEXICONS: &str = "lexicon";
    /// The folder of voices in a model's folder.
    pub const VOICES: &str = "voices";

    /// Whether a `config.json` is that of Kokoro, which names no type.
    pub fn is_config(config: &Value) -> bool {
        ["istftnet", "plbert", "vocab"].iter().all(|key| config.get(key).is_some())
    }

    /// Opens and checks a checkpoint without reading weights. `path`: a file in its folder.
    ///
    /// # Errors
    /// If a file is damaged, or there are no voices.
    pub fn open(path: &Path) -> Result<Self, String> {
        let folder = path.parent().ok_or("the model file has no parent folder")?;
        let voices = Self::voice_files(folder);
        if voices.is_empty() {
            return Err(format!("its folder '{}' has no .bin or .safetensors files", Self::VOICES));
        }
        if voices.len() > MAX_VOICES {
            return Err(format!("it has {} voices; the limit is {MAX_VOICES}", voices.len()));
        }
        let folder = ModelFolder::open(folder).map_err(|error| error.to_string())?;
        let config = KokoroConfig::from_json(&folder.config).map_err(|error| error.to_string())?;
        let checkpoint = Self { folder, config, voices };
        checkpoint.lexicon_files().try_for_each(|(name, bytes)| check_size(&name, bytes))?;
        Ok(checkpoint)
    }

    /// The files of the voices of a model, by name. Empty files are left out.
    pub fn voice_files(folder: &Path) -> BTreeMap<String, PathBuf> {
        let files = FolderListing::read(&folder.join(Self::VOICES)).files.into_iter();
        let is_voice = |path: &PathBuf| {
            let is_empty = fs::metadata(path).is_ok_and(|file| file.len() == 0);
            (has_extension(path, "bin") || is_safetensors(path)) && !is_empty
        };
        let name = |path: PathBuf| Some((path.file_stem()?.to_str()?.to_owned(), path));
        files.filter(is_voice).filter_map(name).collect()
    }

    /// The name of a lexicon. `kind`: `gold` for one that is checked by hand, `silver` for a generated one.
    pub fn lexicon_name(language: Language, kind: &str) -> String {
        let prefix = match language {
            Language::AmericanEnglish => "us",
            Language::BritishEnglish => "gb",
            Language::Spanish | Language::Italian => language.tag(),
        };
        format!("{prefix}_{kind}.json")
    }

    /// The content of a lexicon; `None` if there is none of this name.
    ///
    /// # Errors
    /// If it cannot be read, or is too large.
    pub fn lexicon(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = self.lexicon_path(name);
        if !path.is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_LEXICON_BYTES as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| lexicon_error(name, format!("the file cannot be read: {error}")))?;
        check_size(name, bytes.len() as u64)?;
        Ok(Some(bytes))
    }

    fn lexicon_path(&self, name: &str) -> PathBuf {
        self.folder.path.join(Self::LEXICONS).join(name)
    }

    /// The lexicons that the voices need, with the sizes of their files.
    fn lexicon_files(&self) -> impl Iterator<Item = (String, u64)> {
        let languages = self.languages().filter(|language| language.needs_lexicon());
        let names = languages.flat_map(|language| ["gold", "silver"].map(|kind| Self::lexicon_name(language, kind)));
        let size = |name: &str| fs::metadata(self.lexicon_path(name)).map(|file| file.len());
        names.filter_map(move |name| size(&name).ok().map(|bytes| (name, bytes)))
    }

    /// The languages of the voices.
    pub fn languages(&self) -> impl Iterator<Item = Language> {
        let is_spoken =
            |language: &Language| self.voices.keys().any(|voice| Language::of_voice(voice) == Ok(*language));
        Language::ALL.into_iter().filter(is_spoken)
    }

    /// Memory for the weights, and for reading them.
    pub fn footprint<B: TimeConvolutions>(&self, backend: &B, precision: Precision) -> Footprint {
        let mut footprint = KokoroModel::footprint(&self.folder, backend, precision.kind());
        footprint.weights += self.voices.values().filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum::<u64>();
        let lexicons: u64 = self.lexicon_files().map(|(_, bytes)| bytes).sum();
        footprint.weights += LEXICON_MEMORY * lexicons;
        footprint.loading = footprint.loading.max(LEXICON_LOADING * lexicons);
        footprint
    }
}

fn check_size(name: &str, bytes: u64) -> Result<(), String> {
    let limit = MAX_LEXICON_BYTES as u64;
    match bytes <= limit {
        true => Ok(()),
        false => Err(lexicon_error(name, format!("the file has {bytes} bytes; the limit is {limit}"))),
    }
}

/// An error that names the file of a lexicon.
pub fn lexicon_error(name: &str, problem: impl fmt::Display) -> String {
    format!("{}/{name}: {problem}", SpeechCheckpoint::LEXICONS)
}
