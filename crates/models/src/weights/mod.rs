//! The tensors of a checkpoint: a GGUF file, or a folder of safetensors.
//!
//! Networks name tensors by stems as in GGUF (`blk.3.attn_q`). A checkpoint translates them to its own names. A tensor
//! that the network does not read is an error, because it would change the results.

mod drafting;
mod fp8;
mod fp8_files;
mod gguf;
mod loaded_matrix;
mod loader;
mod mxfp4;
mod mxfp4_files;
mod safetensors;
mod stacked_experts;
mod tensor_rows;

use super::backend::{Backend, Conv1dShape, ConvShape, Convolutions, DType, TimeConvolutions};
use super::decoder_config::{DecoderConfig, LayerConfig};
use crate::error::ModelError;
pub use drafting::DraftingCheckpoint;
pub(super) use loaded_matrix::LoadedMatrix;
pub(super) use loader::{Candidate, Loader};
pub(super) use safetensors::layer_names;
pub use tensor_rows::{Rows, Storage};
pub(crate) use tensor_rows::{StoredTensor, flat};

/// The role of a tensor in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Weight,
    Bias,
}

/// A checkpoint that a decoder can be loaded from.
pub trait DecoderCheckpoint: Weights {
    /// Reads and checks the decoder's configuration.
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError>;

    /// The plan of its layer for multi-token prediction, which [`Self::decoder_config`] leaves out. `None`: there is none, or the family
    /// does not use it.
    fn mtp_layer(&self, _config: &DecoderConfig) -> Option<LayerConfig> {
        None
    }

    /// The names of the tensors of that layer, which [`Weights::names`] leaves out.
    fn mtp_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The tensors of a checkpoint.
pub trait Weights {
    /// The checkpoint's name for a stem; `None` if its format has none.
    fn name(&self, stem: &str, role: Role) -> Option<String>;

    /// The shape of a tensor, outermost dimension first. `name` is the checkpoint's own name, as in the methods below.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// The type of a tensor, if kernels support it.
    fn dtype(&self, name: &str) -> Option<DType>;

    /// `count` rows from `first` on, in the checkpoint's type. Dimensions before the last are flattened; each element of a
    /// vector is a row.
    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError>;

    /// The names of all tensors that a network must read. Tensors that do not affect results are left out.
    fn names(&self) -> Vec<String>;

    /// Bytes of the copies that [`Self::rows`] makes of a tensor to bring it in another order.
    fn copied_bytes(&self, _name: &str) -> usize {
        0
    }
}

/// The ends of the names of routers of experts, which are loaded as 32-bit floats.
const ROUTERS: [&str; 6] = [
    "ffn_gate_inp.weight",
    ".gate.weight",
    ".gate.wg.weight",
    ".router.layer.weight",
    ".mlp.router.weight",
    ".router.proj.weight",
];

/// The ends of the names of embedding tables that stay in the file.
const TABLES_IN_FILES: [&str; 2] = ["per_layer_token_embd.weight", "embed_tokens_per_layer.weight"];

/// The memory that a checkpoint needs on a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All loaded tensors.
    pub weights: u64,
    /// Temporary memory while loading: rows in the file's format, before they are packed.
    pub loading: u64,
}

impl Footprint {
    /// The footprint of a network without convolutions.
    pub fn new<B: Backend>(source: &dyn Weights, backend: &B) -> Self {
        Self::sum(source, None, |dtype, shape| tensor_bytes(backend, dtype, shape))
    }

    /// The footprint of a network with convolutions over images, if float matrices are rounded to `precision`.
    pub fn with_convolutions<B: Convolutions>(source: &dyn Weights, backend: &B, precision: Option<DType>) -> Self {
        Self::sum(source, precision, |dtype, shape| match *shape {
            [outputs, inputs, height, width] => {
                let window = ConvShape { inputs, outputs, kernel: [height, width], stride: 1, padding: [0; 2] };
                [backend.conv_bytes(dtype, &window), outputs * inputs * height * width * dtype.block_bytes()]
            }
            _ => tensor_bytes(backend, dtype, shape),
        })
    }

    /// The footprint of a network with convolutions over time, if float matrices are rounded to `precision`.
    pub fn with_time_convolutions<B: TimeConvolutions>(
        source: &dyn Weights,
        backend: &B,
        precision: Option<DType>,
    ) -> Self {
        Self::sum(source, precision, |dtype, shape| match *shape {
            [outputs, inputs, kernel] | [outputs, inputs, kernel, 1] => {
                let shape = Conv1dShape { inputs, outputs, kernel, stride: 1, dilation: 1, padding: [0; 2] };
                [backend.conv1d_bytes(dtype, &shape), outputs * inputs * kernel * dtype.block_bytes()]
            }
            _ => tensor_bytes(backend, dtype, shape),
        })
    }

    /// `bytes`: those of a loaded tensor of a type and a shape, and those of reading it. The weights of a convolution are read
    /// at once.
    fn sum(source: &dyn Weights, precision: Option<DType>, bytes: impl Fn(DType, &[usize]) -> [usize; 2]) -> Self {
        let mut footprint = Self::default();
        let is_in_file = |name: &String| TABLES_IN_FILES.iter().any(|ending| name.ends_with(ending));
        for name in source.names().into_iter().filter(|name| !is_in_file(name)) {
            let (Some(shape), Some(dtype)) = (source.shape(&name), source.dtype(&name)) else { continue };
            let dtype = match precision {
                Some(rounded) if shape.len() > 1 && Rows::can_round_to(dtype, rounded, flat(&shape).1) => rounded,
                _ => dtype,
            };
            let dtype = if ROUTERS.iter().any(|ending| name.ends_with(ending)) { DType::F32 } else { dtype };
            let [weights, loading] = bytes(dtype, &shape);
            footprint.weights += weights as u64;
            footprint.loading = footprint.loading.max((loading + source.copied_bytes(&name)) as u64);
        }
        footprint
    }
}

/// The bytes of a vector or of matrices, and of reading it.
fn tensor_bytes<B: Backend>(backend: &B, dtype: DType, shape: &[usize]) -> [usize; 2] {
    match shape {
        // Vectors become f32.
        [size] => [size * size_of::<f32>(), size * dtype.block_bytes()],
        // Convolutions of each channel by itself.
        [channels, 1, kernel] => [channels * kernel * size_of::<f32>(), channels * kernel * dtype.block_bytes()],
        // Experts are read and packed one by one.
        [outer @ .., rows, columns] => {
            let packed = outer.iter().product::<usize>() * backend.linear_bytes(dtype, *rows, *columns);
            [packed, backend.loading_bytes(dtype, *rows, *columns)]
        }
        [] => [0; 2],
    }
}
