//! Static embeddings: a vector for each token, whatever the tokens around it (Tulkens and van Dongen 2024, model2vec,
//! <https://github.com/MinishLab/model2vec>).

use serde_json::Value;

use crate::backend::EmbeddingTable;
use crate::error::{ModelError, Result, reject_config};
use crate::safetensors::ModelFolder;
use crate::weights::{Rows, Storage, StoredTensor, flat};

/// `model_type` in `config.json`.
pub const STATIC_MODEL_TYPE: &str = "model2vec";

/// The tensors of a folder.
const EMBEDDINGS: &str = "embeddings";
const WEIGHTS: &str = "weights";
const MAPPING: &str = "mapping";

/// Max tokens of a text, whatever `config.json` says. The vectors have no positions.
const MAX_CONTEXT: usize = 1 << 15;

/// The sizes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticConfig {
    pub vocabulary: usize,
    pub width: usize,
    /// Max tokens of a text.
    pub context: usize,
}

/// A vector for each token, in the memory of the host.
#[derive(Debug)]
pub struct StaticEmbedding {
    config: StaticConfig,
    table: EmbeddingTable,
    /// A factor for each token.
    weights: Option<Vec<f32>>,
}

impl StaticConfig {
    /// Reads the headers of the weights.
    ///
    /// # Errors
    /// If the tensors are not those of a table.
    pub fn from_folder(folder: &ModelFolder) -> Result<Self> {
        if folder.tensor(MAPPING).is_some() {
            return reject_config("tokens that share vectors (a tensor mapping) are not supported".to_owned());
        }
        match folder.tensor(EMBEDDINGS).map(|(table, _)| table.shape.as_slice()) {
            Some(&[vocabulary @ 1..=MAX_ROWS, width @ 1..=MAX_WIDTH]) => {
                let own = folder.config.get("max_length").and_then(Value::as_u64).filter(|length| *length > 0);
                let context = own.map_or(MAX_CONTEXT, |length| MAX_CONTEXT.min(length as usize));
                Ok(Self { vocabulary, width, context })
            }
            Some(shape) => {
                Err(ModelError::Checkpoint(format!("tensor {EMBEDDINGS} has the impossible shape {shape:?}")))
            }
            None => Err(ModelError::Checkpoint(format!("the files have no tensor {EMBEDDINGS}"))),
        }
    }
}

const MAX_ROWS: usize = 1 << 22;
const MAX_WIDTH: usize = 1 << 16;

impl StaticEmbedding {
    /// Reads the table.
    ///
    /// # Errors
    /// If a tensor is damaged, or is one that is not known.
    pub fn load(folder: &ModelFolder, config: StaticConfig) -> Result<Self> {
        let StaticConfig { vocabulary, .. } = config;
        if let Some(other) = folder.names().find(|name| ![EMBEDDINGS, WEIGHTS].contains(name)) {
            return reject_config(format!("static embeddings with a tensor {other} are not supported"));
        }
        let table = EmbeddingTable::new(&rows(folder, EMBEDDINGS, vocabulary)?)?;
        let weights = match folder.tensor(WEIGHTS) {
            None => None,
            Some(_) => Some(rows(folder, WEIGHTS, vocabulary)?.floats()?),
        };
        Ok(Self { config, table, weights })
    }

    pub fn config(&self) -> &StaticConfig {
        &self.config
    }

    /// The vectors of tokens: `[tokens, width]`.
    ///
    /// # Errors
    /// If a token is not in the table.
    pub fn look_up(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let width = self.config.width;
        let mut vectors = vec![0.; ids.len() * width];
        self.table.look_up(ids.iter().copied(), false, &mut vectors)?;
        if let Some(weights) = &self.weights {
            for (id, vector) in ids.iter().zip(vectors.chunks_exact_mut(width)) {
                let weight = weights.get(*id as usize).copied().unwrap_or(1.);
                vector.iter_mut().for_each(|value| *value *= weight);
            }
        }
        Ok(vectors)
    }
}

/// A tensor with so many rows.
fn rows<'a>(folder: &'a ModelFolder, name: &str, count: usize) -> Result<Rows<'a>> {
    let missing = || ModelError::Checkpoint(format!("the files have no tensor {name}"));
    let (info, file) = folder.tensor(name).ok_or_else(missing)?;
    let Some(dtype) = info.float() else {
        return reject_config(format!("tensor {name} has the type {}, which is not supported", info.dtype));
    };
    if flat(&info.shape).0 != count {
        return reject_config(format!("tensor {name} has the shape {:?} for {count} tokens", info.shape));
    }
    StoredTensor {
        name: &info.name,
        storage: Storage::File(file),
        start: info.start,
        shape: &info.shape,
        stored: dtype.into(),
    }
    .rows(0, count)
}
