//! How Outpost computes on a CPU.
//!
//! One binary serves every CPU: kernels are compiled for several instruction sets, and [`Path::best`]
//! picks at run time. A [`Pool`] carries that choice and the threads; every operation takes one.
//! Results do not depend on how rows are batched nor on the number of threads: a row gives the same
//! bits alone and among others (on one path; paths differ in the last bits).

mod activations;
mod attention;
mod buffer;
mod conv;
mod gemm;
mod group;
mod keep;
mod kind;
mod linear;
mod norm;
mod ops;
mod pack;
mod pixels;
mod pool;
mod simd;

use std::fmt;

pub use activations::Activations;
pub use attention::{Blocks, POSITIONS, Pair, Sequence, Shape, attend, attend_bytes};
pub use conv::{Conv2d, Images, Window};
pub use group::{Before, Factors, GroupNorm, Moments};
pub use keep::{Both, Cells, Fill, keep};
pub use kind::{Kind, dequantise};
pub use linear::{Linear, apply_all};
pub use norm::{Measure, Norm};
pub use ops::{Activation, Rotation, activate, rope, to_q8};
pub use pixels::{add, add_scaled, resize_nearest, side_by_side};
pub use pool::Pool;
pub use simd::Path;

/// Why weights were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A dimension is zero, too large, or rows are no whole number of blocks.
    Shape { kind: Kind, n: usize, k: usize },
    /// Bytes that the shape asks for, and bytes that came.
    Length { expected: usize, found: usize },
    /// Numbers that a bias has to have, and has.
    Bias { expected: usize, found: usize },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { kind, n, k } => write!(f, "no matrix of type {kind:?} has the shape [{n}, {k}]"),
            Self::Bias { expected, found } => write!(f, "a bias of {expected} numbers was expected, {found} came"),
            Self::Length { expected, found } => write!(f, "{expected} bytes of weights were expected, {found} came"),
        }
    }
}

impl std::error::Error for Error {}
