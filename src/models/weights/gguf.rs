//! A GGUF file as a source of tensors: its names are the decoder's own.

use candle_core::quantized::{GgmlDType, QTensor};

use super::{Role, Weights, place, read};
use crate::models::ModelError;
use crate::models::gguf::GgufFile;
use crate::models::hyper::Hyper;

impl Weights for GgufFile {
    fn hyper(&self) -> Result<Hyper, ModelError> {
        Hyper::of_gguf(&self.header)
    }

    fn name(&self, stem: &str, role: Role) -> Option<String> {
        Some(match role {
            Role::Weight => format!("{stem}.weight"),
            Role::Bias => format!("{stem}.bias"),
        })
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.header.tensor(name)?.shape.clone())
    }

    fn kind(&self, name: &str) -> Option<GgmlDType> {
        Some(self.header.tensor(name)?.kind)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<QTensor, ModelError> {
        let info = self.header.tensor(name).ok_or_else(|| ModelError::Invalid(format!("no tensor {name}")))?;
        let (start, bytes, shape) = place((info.start, &info.shape, info.kind), first, count)?;
        // A vector of quantised numbers comes in blocks, of which parts cannot be read.
        if info.shape.len() < 2 && info.kind.block_size() > 1 {
            return Err(ModelError::Invalid(format!("tensor {name} is a quantised vector, which is not supported")));
        }
        read(self.file(), start, bytes, info.kind, &shape)
    }

    fn names(&self) -> Vec<String> {
        self.header.tensors.iter().map(|tensor| tensor.name.clone()).collect()
    }
}
