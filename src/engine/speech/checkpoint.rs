//! An opened Kokoro checkpoint: `config.json`, safetensors, a folder of voices and a folder of lexicons.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::phonemes::Language;
use crate::engine::precision::Precision;
use crate::models::backend::Backend;
use crate::models::kokoro::{KokoroConfig, KokoroModel};
use crate::models::safetensors::ModelFolder;
use crate::models::weights::Footprint;

/// The most bytes of a lexicon.
const MAX_LEXICON_BYTES: u64 = 32 << 20;
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
        Ok(Self { folder, config, voices })
    }

    /// The files of the voices of a model, by name.
    pub fn voice_files(folder: &Path) -> BTreeMap<String, PathBuf> {
        let entries = fs::read_dir(folder.join(Self::VOICES)).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file());
        let is_voice =
            |path: &PathBuf| path.extension().is_some_and(|ending| ending == "bin" || ending == "safetensors");
        let name = |path: PathBuf| Some((path.file_stem()?.to_str()?.to_owned(), path));
        paths.filter(is_voice).filter_map(name).collect()
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
    pub fn lexicon(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = self.folder.path.join(Self::LEXICONS).join(name);
        if !path.is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_LEXICON_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Err(error) => Err(format!("{name}: the file cannot be read: {error}")),
            Ok(_) if bytes.len() as u64 > MAX_LEXICON_BYTES => {
                Err(format!("{name}: the file has more than {MAX_LEXICON_BYTES} bytes"))
            }
            Ok(_) => Ok(Some(bytes)),
        }
    }

    /// Memory for the weights, and for reading them.
    pub fn footprint<B: Backend>(&self, backend: &B, precision: Precision) -> Footprint {
        let mut footprint = KokoroModel::footprint(&self.folder, backend, precision.kind());
        footprint.weights += self.voices.values().filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum::<u64>();
        footprint
    }
}
