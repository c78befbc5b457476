//! The tensors of a Whisper checkpoint.

use super::ggml::GgmlFile;
use super::tensor_names::Naming;
use crate::backend::DType;
use crate::error::{ModelError, Result};
use crate::gguf::StoredType;
use crate::safetensors::ModelFolder;
use crate::weights::{Role, Rows, Storage, StoredTensor, Weights};

/// The tensors of a Hugging Face folder, or of a `ggml-*.bin`.
#[derive(Debug)]
pub struct WhisperWeights<'a> {
    source: Source<'a>,
    naming: Naming,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Folder(&'a ModelFolder),
    Ggml(&'a GgmlFile),
}

impl<'a> WhisperWeights<'a> {
    /// The tensors of a Hugging Face folder.
    pub fn from_folder(folder: &'a ModelFolder) -> Self {
        Self { source: Source::Folder(folder), naming: hugging_face(folder.names()) }
    }

    /// The tensors of a `ggml-*.bin`.
    pub fn from_ggml(file: &'a GgmlFile) -> Self {
        Self { source: Source::Ggml(file), naming: Naming::OpenAi }
    }

    /// A tensor with the file's shape; the error says why it cannot be read.
    fn tensor(&self, name: &str) -> Result<StoredTensor<'a>> {
        let missing = || ModelError::Checkpoint(format!("the file has no tensor {name}"));
        match self.source {
            Source::Folder(folder) => {
                let (info, file) = folder.tensor(name).ok_or_else(missing)?;
                let stored = info.float().map(StoredType::from).ok_or_else(|| {
                    ModelError::Checkpoint(format!("tensor {name} has the type {}, which is not supported", info.dtype))
                })?;
                let storage = Storage::File(file);
                Ok(StoredTensor { name: &info.name, storage, start: info.start, shape: &info.shape, stored })
            }
            Source::Ggml(file) => file.tensor(name).ok_or_else(missing),
        }
    }
}

/// The names of transformers, with the prefix that the tensors have.
fn hugging_face<'n>(mut names: impl Iterator<Item = &'n str>) -> Naming {
    let prefix = if names.any(|name| name.starts_with("model.")) { "model." } else { "" };
    Naming::HuggingFace { prefix }
}

/// The shape of a tensor as the network reads it. Convolutions along time are those of images that are one pixel wide, and
/// `ggml-*.bin` has biases of convolutions as columns.
fn network_shape(shape: &[usize]) -> Vec<usize> {
    match shape {
        [outputs, inputs, kernel] => vec![*outputs, *inputs, *kernel, 1],
        [size, 1] => vec![*size],
        shape => shape.to_vec(),
    }
}

impl Weights for WhisperWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        self.naming.name(stem, role)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self.source {
            Source::Folder(folder) => Some(network_shape(&folder.tensor(name)?.0.shape)),
            _ => Some(network_shape(self.tensor(name).ok()?.shape)),
        }
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Some(self.tensor(name).ok()?.stored.loaded())
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>> {
        let tensor = self.tensor(name)?;
        // An element of a convolution is a row of its own in `network_shape`.
        match *tensor.shape {
            [_, _, kernel] if kernel > 0 => tensor.rows(first / kernel, count / kernel),
            _ => tensor.rows(first, count),
        }
    }

    fn names(&self) -> Vec<String> {
        let used = |name: &&str| !Naming::is_unused(name);
        match self.source {
            Source::Folder(folder) => folder.names().filter(used).map(str::to_owned).collect(),
            Source::Ggml(file) => file.names().filter(used).map(str::to_owned).collect(),
        }
    }
}
