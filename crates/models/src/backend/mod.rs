//! Backends: the devices on which networks compute, behind one interface.
//!
//! Networks are written once, over any backend. [`Cpu`] computes with the kernels of `outpost-kernels`, [`Candle`] on any
//! device of candle. The types that describe shapes and parameters are those of the kernels.
//!
//! The interface is [`Backend`], which every device has, and a trait for each group of operations that only some networks
//! need: [`PagedAttention`], [`Recurrent`], [`Convolutions`], [`TimeConvolutions`]. A network is bound by the traits that it
//! needs, so a device without convolutions still runs text models. Everything that can be composed of required methods has a
//! default body.
//!
//! Operations return tensors. Buffers that the network passes to each operation would fit kernels but no tensor
//! library, and each network would have its own set. The CPU takes the memory of tensors from a pool, so a step
//! allocates none once the pool has grown. A trait object for each operation would cost little time, but would not
//! allow types that belong to a backend, such as its weights and its KV arena.

pub mod candle;
mod checks;
mod convolutions;
pub mod cpu;
mod embedding_table;
mod interface;
mod paged_attention;
mod recurrent;
mod routing;
#[cfg(test)]
mod tests;
mod time_convolutions;
mod types;

pub use candle::Candle;
pub(crate) use candle::with_gradient;
pub use convolutions::{Convolutions, GroupNorm};
pub use cpu::Cpu;
pub(crate) use embedding_table::EmbeddingTable;
pub use interface::{
    Angles, Backend, FeedForward, LowRankUpdate, Matrix, Norm, Pause, RequestOptions, RoutedExpert, RoutedTokens,
    Tensor,
};
pub use paged_attention::PagedAttention;
pub use recurrent::{
    CausalConv, DeltaRule, DeltaRuleInputs, Recurrent, RecurrentRow, StatePart, StateSpace, StateSpaceInputs,
};
pub use routing::{ExpertGroups, RouterWeights, Routing, batch_rows};
pub use time_convolutions::{AdaIn, ChannelActivation, TimeConvolutions};
pub use types::{
    Activation, AttentionShape, BLOCK_POSITIONS, Conv1dShape, ConvShape, DType, Isa, NormKind, Pool, RecurrenceShape,
    RopeLayout, dequantise,
};
pub(crate) use types::{Dropout, LstmRecurrence, LstmState, TargetLogit, cross_entropy};
