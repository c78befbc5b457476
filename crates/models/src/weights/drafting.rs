//! A checkpoint with its layer for multi-token prediction, which is otherwise left out: only speculative decoding needs it.

use super::{DecoderCheckpoint, Role, Rows, Weights};
use crate::backend::DType;
use crate::decoder_config::DecoderConfig;
use crate::error::ModelError;

/// A checkpoint, with the tensors of its layer for multi-token prediction if `mtp` is set and it has one.
pub struct DraftingCheckpoint<'a> {
    pub checkpoint: &'a dyn DecoderCheckpoint,
    pub mtp: bool,
}

impl DecoderCheckpoint for DraftingCheckpoint<'_> {
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError> {
        let config = self.checkpoint.decoder_config()?;
        let mtp = if self.mtp { self.checkpoint.mtp_layer(&config) } else { None };
        Ok(DecoderConfig { mtp, ..config })
    }
}

impl Weights for DraftingCheckpoint<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        self.checkpoint.name(stem, role)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.checkpoint.shape(name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.checkpoint.dtype(name)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        self.checkpoint.rows(name, first, count)
    }

    fn copied_bytes(&self, name: &str) -> usize {
        self.checkpoint.copied_bytes(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.checkpoint.names();
        if self.decoder_config().is_ok_and(|config| config.mtp.is_some()) {
            names.extend(self.checkpoint.mtp_names());
        }
        names
    }
}
