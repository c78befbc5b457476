//! Constructors for layers whose weights come from a checkpoint.

use crate::backend::{Activation, Backend, ConvShape, Convolutions};
use crate::error::Result;
use crate::nn::{Conv, Linear, Mlp};
use crate::weights::{Candidate, Loader};

/// Loads a convolution with a square kernel.
pub(super) fn conv<B: Convolutions>(
    loader: &Loader<'_, B>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: [usize; 2],
) -> Result<Conv<B>> {
    loader.conv(stem, ConvShape { inputs, outputs, kernel: [kernel; 2], stride, padding })
}

/// Loads a convolution that preserves height and width.
pub(super) fn same_conv<B: Convolutions>(
    loader: &Loader<'_, B>,
    stem: &str,
    channels: [usize; 2],
    kernel: usize,
) -> Result<Conv<B>> {
    conv(loader, stem, channels, kernel, 1, [(kernel - 1) / 2; 2])
}

/// Loads a linear projection, or a 1 × 1 convolution, which is the same.
pub(super) fn linear<B: Backend>(
    loader: &Loader<'_, B>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    biased: bool,
) -> Result<Linear<B>> {
    loader.linear(&[Candidate::whole(stem.to_owned(), outputs)], outputs, inputs, biased)
}

/// Loads a feed-forward network without a gate. `up` and `down` are tensor name stems.
pub(super) fn mlp<B: Backend>(
    loader: &Loader<'_, B>,
    [up, down]: [&str; 2],
    [width, inner]: [usize; 2],
    activation: Activation,
    biased: bool,
) -> Result<Mlp<B>> {
    let up = linear(loader, up, [width, inner], biased)?;
    Ok(Mlp { gate: None, up, down: linear(loader, down, [inner, width], biased)?, activation })
}

/// Loads `outputs` rows of a projection with `total` rows, starting at row `first`.
pub(super) fn linear_slice<B: Backend>(
    loader: &Loader<'_, B>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    first: usize,
    total: usize,
) -> Result<Linear<B>> {
    loader.linear(&[Candidate { stem: stem.to_owned(), first, total }], outputs, inputs, false)
}
