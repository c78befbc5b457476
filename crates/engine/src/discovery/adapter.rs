//! Describes a LoRA adapter of a chat or embedding model: a folder that peft has saved, or the contents of its files.
//!
//! An adapter of an embedding model may have its own pooling and prompts: sentence-transformers saves them with the
//! adapter, which was trained with them. Its tokenizer is not used, because an adapter does not change the vocabulary.
//! Adapters of rerankers are refused, because peft trains their classification head as a whole module.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::model_card::license;
use crate::model_info::{ModelInfo, ModelKind};
use outpost_models::peft::{CONFIG_FILE, PeftAdapter, PeftFiles, WEIGHTS_FILE};

/// The contents of an adapter's two files.
#[derive(Clone)]
pub struct AdapterFiles {
    /// `adapter_config.json`
    pub config: Vec<u8>,
    /// `adapter_model.safetensors`
    pub weights: Arc<[u8]>,
}

impl From<PeftFiles> for AdapterFiles {
    fn from(PeftFiles { config, weights }: PeftFiles) -> Self {
        Self { config, weights: weights.into() }
    }
}

impl fmt::Debug for AdapterFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterFiles").field("weights", &self.weights.len()).finish_non_exhaustive()
    }
}

/// Where an adapter comes from that is not in the models folder.
pub trait AdapterSource: fmt::Debug + Send + Sync {
    /// Reads the files. The engine calls it each time that it loads the adapter, and does not keep the contents.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    fn read(&self) -> Result<AdapterFiles, String>;
}

impl AdapterSource for AdapterFiles {
    fn read(&self) -> Result<AdapterFiles, String> {
        Ok(self.clone())
    }
}

/// Where an adapter is read from.
#[derive(Clone, Debug)]
pub enum AdapterOrigin {
    Folder(PathBuf),
    Source(Arc<dyn AdapterSource>),
}

impl AdapterOrigin {
    /// The folder in the models folder.
    pub fn folder(&self) -> Option<&Path> {
        if let Self::Folder(folder) = self { Some(folder) } else { None }
    }

    /// Opens the adapter. Reads the headers, or the whole files of a source.
    pub fn open(&self) -> Result<PeftAdapter, String> {
        let opened = match self {
            Self::Folder(folder) => {
                check_files(folder)?;
                PeftAdapter::open(folder)
            }
            Self::Source(source) => {
                let AdapterFiles { config, weights } = source.read()?;
                PeftAdapter::from_bytes(&config, weights)
            }
        };
        opened.map_err(|error| error.to_string())
    }
}

/// Checks that the weights are not in an older format.
fn check_files(folder: &Path) -> Result<(), String> {
    match folder.join(WEIGHTS_FILE).exists() {
        true => Ok(()),
        false => Err(format!(
            "the folder has an {CONFIG_FILE}, but no {WEIGHTS_FILE}: save the adapter with safe_serialization=True"
        )),
    }
}

/// Describes an adapter. Returns the name or path of its base model.
pub fn describe(origin: &AdapterOrigin, info: &mut ModelInfo) -> Option<String> {
    info.kind = ModelKind::Text;
    if let AdapterOrigin::Folder(folder) = origin {
        info.license = license(folder);
    }
    match origin.open() {
        Ok(adapter) => {
            info.bytes = adapter.file_bytes();
            info.parameters = adapter.parameters();
            info.quantization = Some(adapter.dtype().to_owned());
            adapter.base_model().map(str::to_owned)
        }
        Err(problem) => {
            info.problem = Some(problem);
            None
        }
    }
}

/// The ID among `ids` that a name or path means: the ID itself, or the last component of a path, in any case.
pub fn find_base<'a>(name: &str, ids: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let last = name.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(name);
    let exact = ids.clone().find(|id| *id == name || *id == last);
    exact.or_else(|| ids.clone().find(|id| id.eq_ignore_ascii_case(last)))
}

#[cfg(test)]
mod tests {
    use super::find_base;

    #[test]
    fn a_base_is_found_by_the_end_of_its_path() {
        let ids = ["Qwen2.5-0.5B", "llama", "Llama", "other.Q4"];
        let find = |name: &str| find_base(name, ids.into_iter());
        assert_eq!(find("Qwen/qwen2.5-0.5b"), Some("Qwen2.5-0.5B"));
        assert_eq!(find("/home/me/Llama/"), Some("Llama"));
        assert_eq!(find(r"C:\models\LLAMA"), Some("llama"));
        assert_eq!(find("other.q4"), Some("other.Q4"));
        assert_eq!([find("llama/7b"), find(""), find("/")], [None; 3]);
    }
}
