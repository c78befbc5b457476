//! Backends: the devices on which networks compute, behind one interface ([`Backend`]).
//!
//! Networks are written once, over any backend. [`Cpu`] computes with the kernels of `outpost-kernels`, [`Candle`] on any
//! device of candle. The types that describe shapes and parameters are those of the kernels.
//!
//! Operations return tensors. Buffers that the network passes to each operation would fit kernels but no tensor
//! library, and each network would have its own set. The CPU takes the memory of tensors from a pool, so a step
//! allocates none once the pool has grown. A trait object for each operation would cost little time, but would not
//! allow types that belong to a backend, such as its weights and its KV arena.

pub mod candle;
mod checks;
pub mod cpu;
mod embedding_table;
mod interface;
mod routing;
mod types;

pub use candle::Candle;
pub(crate) use candle::with_gradient;
pub use cpu::Cpu;
pub(crate) use embedding_table::EmbeddingTable;
pub use interface::{
    AdaIn, Angles, Backend, ChannelActivation, FeedForward, GroupNorm, LowRankUpdate, Matrix, Norm, Pause,
    RequestOptions, RoutedTokens, Tensor,
};
pub use routing::Routing;
pub use types::{
    Activation, AttentionShape, BLOCK_POSITIONS, Conv1dShape, ConvShape, DType, Isa, NormKind, Pool, RopeLayout,
    dequantise,
};
pub(crate) use types::{Dropout, LstmRecurrence, LstmState, TargetLogit, cross_entropy};
