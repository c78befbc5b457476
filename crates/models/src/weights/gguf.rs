//! GGUF files as checkpoints. Stems are GGUF's own names.

use crate::backend::DType;

use super::tensor_rows::{Storage, StoredTensor};
use super::{DecoderCheckpoint, Role, Rows, Weights};
use crate::decoder_config::DecoderConfig;
use crate::error::ModelError;
use crate::gguf::GgufFile;

impl DecoderCheckpoint for GgufFile {
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError> {
        DecoderConfig::from_gguf(&self.header)
    }
}

impl Weights for GgufFile {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        Some(match role {
            Role::Weight if [".ssm_a", ".ssm_d"].iter().any(|end| stem.ends_with(end)) => stem.to_owned(),
            Role::Weight => format!("{stem}.weight"),
            Role::Bias => format!("{stem}.bias"),
        })
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.header.tensor(name)?.shape.clone())
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Some(self.header.tensor(name)?.dtype)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let info =
            self.header.tensor(name).ok_or_else(|| ModelError::Checkpoint(format!("the file has no tensor {name}")))?;
        let (storage, start, shape) = (Storage::File(self.file()), info.start, &info.shape);
        StoredTensor { name: &info.name, storage, start, shape, dtype: info.dtype }.rows(first, count)
    }

    /// Leaves out layers that only draft.
    fn names(&self) -> Vec<String> {
        let drafting = self.header.draft_layers();
        let drafts = |name: &str| {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
            layer.is_some_and(|layer| drafting.contains(&layer))
        };
        self.header.tensors.iter().map(|tensor| &tensor.name).filter(|name| !drafts(name)).cloned().collect()
    }
}
