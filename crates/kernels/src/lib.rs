//! CPU kernels.
//!
//! One binary serves every CPU: kernels are compiled for several instruction sets, and [`Isa::detect`] picks one at run
//! time. A [`Pool`] holds that choice and the threads; every operation takes a pool. Results do not depend on batching
//! or on the number of threads: a row gives the same bits alone and in a batch. Instruction sets differ in the last
//! bits.
//!
//! candle's quantized dot products are scalar in a portable build, and its repacked ones require matrix widths that
//! small models do not have. As a crate of its own, this one is optimized in the dev profile too, and it contains all
//! `unsafe` code. On the CPU the server uses only these kernels; candle computes on GPUs, and tests use its formats and
//! decoders as a reference.

mod activation_functions;
mod attention;
mod buffer;
mod buffer_pool;
mod causal_conv;
mod channel_activation;
mod conv;
mod conv1d;
mod cross_entropy;
mod dense;
mod dropout;
mod dtype;
mod elementwise;
mod gemm;
mod group_norm;
mod kv_write;
mod linear;
mod low_rank;
mod lstm;
mod norm;
mod pack;
mod pool;
mod recurrence;
mod rope;
mod rows;
mod simd;
mod text_attention;

use std::fmt;

pub use activation_functions::{Activation, activate, activate_backward};
pub use attention::{AttentionSequence, AttentionShape, BLOCK_POSITIONS, KvBlocks, KvSlices, attend, attend_bytes};
pub use causal_conv::CausalConv;
pub use channel_activation::{ChannelActivation, ScaledActivation, leaky_relu};
pub use conv::{Conv2d, ConvInput, ConvShape};
pub use conv1d::{Conv1d, Conv1dShape};
pub use cross_entropy::{TargetLogit, cross_entropy};
pub use dense::{DenseMatrix, Direction, ProductPart};
pub use dropout::Dropout;
pub use dtype::{DType, dequantise};
pub use elementwise::{RowShare, add, add_scaled, add_shares, concat_channels, multiply, resize_nearest};
pub use gemm::activations::Activations;
pub use group_norm::{FusedNorm, GroupNorm, Moments, ScaleShift};
pub use kv_write::{KvBlockMut, KvPair, KvWrite, kv_write, quantise_q8};
pub use linear::{Linear, matmul_all, matmul_parts};
pub use low_rank::{LowRankUpdate, add_low_rank};
pub use lstm::{LstmRecurrence, LstmState};
pub use norm::{Norm, NormKind};
pub use pool::Pool;
pub use recurrence::{
    Recurrence, RecurrenceInputs, RecurrenceShape, delta_rule_gates, normalise_queries_and_keys, recurrence,
    state_space_gates,
};
pub use rope::{RopeLayout, rope};
pub use simd::Isa;
pub use text_attention::{Qkv, TextAttention};

/// Why weights were rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A dimension is zero or too large, or a row is not a whole number of blocks.
    Shape { dtype: DType, n: usize, k: usize },
    /// The weights have another number of bytes than the shape requires.
    Length { expected: usize, found: usize },
    /// The bias has another number of elements than there are outputs.
    Bias { expected: usize, found: usize },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { dtype, n, k } => write!(f, "no matrix of type {dtype:?} has the shape [{n}, {k}]"),
            Self::Bias { expected, found } => write!(f, "expected a bias of {expected} elements, found {found}"),
            Self::Length { expected, found } => write!(f, "expected {expected} bytes of weights, found {found}"),
        }
    }
}

impl std::error::Error for Error {}
