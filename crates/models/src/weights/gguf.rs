//! GGUF files as checkpoints. Stems are GGUF's own names.

use crate::backend::DType;

use super::tensor_rows::{Storage, StoredTensor};
use super::{DecoderCheckpoint, Role, Rows, Weights};
use crate::decoder_config::{DecoderConfig, LayerConfig};
use crate::decoder_family;
use crate::error::ModelError;
use crate::gguf::GgufFile;

impl DecoderCheckpoint for GgufFile {
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError> {
        DecoderConfig::from_gguf(&self.header)
    }

    fn mtp_layer(&self, config: &DecoderConfig) -> Option<LayerConfig> {
        let family = decoder_family::find_architecture(self.header.metadata.text("general.architecture")?)?;
        config.mtp_layer(family, |stem| self.header.tensor(&format!("{stem}.weight")).is_some())
    }

    /// Those of the first layer that only drafts.
    fn mtp_names(&self) -> Vec<String> {
        let first = self.header.draft_layers().start;
        self.tensor_names(|layer| layer == Some(first))
    }
}

impl GgufFile {
    /// The names of the tensors of some layers; `None` stands for tensors outside of layers.
    fn tensor_names(&self, is_wanted: impl Fn(Option<u64>) -> bool) -> Vec<String> {
        let layer = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
        let names = self.header.tensors.iter().map(|tensor| &tensor.name);
        names.filter(|name| is_wanted(layer(name))).cloned().collect()
    }
}

impl Weights for GgufFile {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        Some(match role {
            Role::Weight if [".ssm_a", ".ssm_d", ".scale"].iter().any(|end| stem.ends_with(end)) => stem.to_owned(),
            Role::Weight => format!("{stem}.weight"),
            Role::Bias => format!("{stem}.bias"),
        })
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.header.tensor(name)?.shape.clone())
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Some(self.header.tensor(name)?.stored.loaded())
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let info =
            self.header.tensor(name).ok_or_else(|| ModelError::Checkpoint(format!("the file has no tensor {name}")))?;
        let (storage, start, shape) = (Storage::File(self.file(info)?), info.start, &info.shape);
        StoredTensor { name: &info.name, storage, start, shape, stored: info.stored }.rows(first, count)
    }

    /// Leaves out layers that only draft.
    fn names(&self) -> Vec<String> {
        let drafting = self.header.draft_layers();
        self.tensor_names(|layer| layer.is_none_or(|layer| !drafting.contains(&layer)))
    }
}
