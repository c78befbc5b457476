//! An open file and its checked header.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use super::reader::{Reader, damaged, unreadable};
use super::tensor::TensorInfo;
use crate::error::{Result, reject_config};
use crate::gguf::most_frequent_type;
use crate::safetensors::open;
use crate::weights::{Storage, StoredTensor};
use crate::whisper::config::WhisperConfig;
use crate::whisper::mel_filters::{FREQUENCIES, MelFilters};

const MAGIC: u32 = 0x6767_6d6c;
/// The first number of a file type is the version of quantised blocks, times this.
const VERSION_FACTOR: u32 = 1000;
/// The only version of quantised blocks whose layout is that of GGUF.
const BLOCK_VERSION: u32 = 2;
/// Maximum bytes of a token.
const MAX_TOKEN: usize = 1024;
/// The largest model has 1259 tensors.
const MAX_TENSORS: usize = 1 << 14;
const MAX_SIZE: usize = 1 << 24;

/// An open `ggml-*.bin`.
#[derive(Debug)]
pub struct GgmlFile {
    file: File,
    config: WhisperConfig,
    filters: MelFilters,
    vocabulary: Vec<Vec<u8>>,
    tensors: HashMap<String, TensorInfo>,
}

impl GgmlFile {
    /// Opens a file and checks everything but its weights.
    ///
    /// # Errors
    /// If the file is damaged, or of a kind that is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open(path)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut reader = Reader::new(&file, length);
        let (config, version) = read_config(&mut reader)?;
        let filters = read_filters(&mut reader, &config)?;
        let vocabulary = read_vocabulary(&mut reader, &config)?;
        let tensors = read_tensors(&mut reader)?;
        if version != BLOCK_VERSION && tensors.values().any(|tensor| tensor.stored.loaded().is_quantised()) {
            return reject_config(format!(
                "its quantised weights are in version {version} of the format, which is not supported; convert the \
                 model again with a newer whisper.cpp"
            ));
        }
        Ok(Self { file, config, filters, vocabulary, tensors })
    }

    /// The bytes before the first tensor.
    ///
    /// # Errors
    /// Like [`Self::open`].
    pub fn header_length(path: &Path) -> Result<u64> {
        let file = open(path)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut reader = Reader::new(&file, length);
        let (config, _) = read_config(&mut reader)?;
        read_filters(&mut reader, &config)?;
        read_vocabulary(&mut reader, &config)?;
        Ok(reader.position())
    }

    pub fn config(&self) -> &WhisperConfig {
        &self.config
    }

    pub fn filters(&self) -> &MelFilters {
        &self.filters
    }

    /// The bytes of the tokens of text, by ID. Special tokens follow from the size of the vocabulary.
    pub fn vocabulary(&self) -> &[Vec<u8>] {
        &self.vocabulary
    }

    /// Elements of all weights.
    pub fn parameters(&self) -> u64 {
        self.tensors.values().map(TensorInfo::elements).sum()
    }

    /// The type of most weights, such as `Q5_0`.
    pub fn quantization(&self) -> Option<&'static str> {
        let matrices = self.tensors.values().filter(|tensor| tensor.shape.len() > 1);
        most_frequent_type(matrices.map(|tensor| (tensor.stored, tensor.elements())))
    }

    pub(in crate::whisper) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(in crate::whisper) fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let TensorInfo { name, shape, stored, start } = self.tensors.get(name)?;
        Some(StoredTensor { name, storage: Storage::File(&self.file), start: *start, shape, stored: *stored })
    }
}

/// The sizes, and the version of quantised blocks.
fn read_config(reader: &mut Reader<'_>) -> Result<(WhisperConfig, u32)> {
    let magic = reader.u32(&|| "the magic number".to_owned())?;
    if magic != MAGIC {
        return Err(damaged(format!(
            "not a ggml file of whisper.cpp: it begins with {magic:#010x}, not {MAGIC:#010x}"
        )));
    }
    let mut sizes = [0; 10];
    for (index, size) in sizes.iter_mut().enumerate() {
        *size = reader.count(MAX_SIZE, &|| format!("number {index} of the header"))?;
    }
    let file_type = reader.u32(&|| "the file type".to_owned())?;
    Ok((WhisperConfig::from_ggml(sizes)?, file_type / VERSION_FACTOR))
}

fn read_filters(reader: &mut Reader<'_>, config: &WhisperConfig) -> Result<MelFilters> {
    let what = || "the mel filters".to_owned();
    let (bands, frequencies) = (reader.count(config.mels, &what)?, reader.count(FREQUENCIES, &what)?);
    if bands != config.mels {
        return reject_config(format!("the file has {bands} mel filters for {} bands", config.mels));
    }
    let bytes = reader.bytes(bands * frequencies * size_of::<f32>(), &what)?;
    let weights: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    MelFilters::from_matrix(bands, frequencies, &weights)
}

fn read_vocabulary(reader: &mut Reader<'_>, config: &WhisperConfig) -> Result<Vec<Vec<u8>>> {
    let count = reader.count(config.vocabulary, &|| "the number of tokens".to_owned())?;
    let mut tokens = Vec::with_capacity(count);
    for index in 0..count {
        let what = || format!("token {index}");
        let length = reader.count(MAX_TOKEN, &what)?;
        tokens.push(reader.bytes(length, &what)?);
    }
    Ok(tokens)
}

fn read_tensors(reader: &mut Reader<'_>) -> Result<HashMap<String, TensorInfo>> {
    let mut tensors = HashMap::new();
    while !reader.is_at_end() {
        if tensors.len() == MAX_TENSORS {
            return Err(damaged(format!("the file has more than {MAX_TENSORS} tensors")));
        }
        let tensor = TensorInfo::read(reader, tensors.len())?;
        if let Some(before) = tensors.insert(tensor.name.clone(), tensor) {
            return Err(damaged(format!("the tensor {} is duplicated", before.name)));
        }
    }
    Ok(tensors)
}
