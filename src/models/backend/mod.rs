//! Backends: the devices on which networks compute, behind one interface ([`Backend`]).
//!
//! Networks are written once, over any backend. [`Cpu`] computes with the kernels of `outpost-kernels`. The types that
//! describe shapes and parameters are those of the kernels.

pub mod cpu;
mod interface;

pub use cpu::Cpu;
pub use cpu::types::{
    Activation, AttentionShape, BLOCK_POSITIONS, ConvShape, DType, Isa, NormKind, Pool, RopeLayout, dequantise,
};
pub use interface::{Angles, Backend, FeedForward, GroupNorm, Matrix, Norm, Pause, RequestOptions, Tensor};
