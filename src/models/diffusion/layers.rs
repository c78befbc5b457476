//! Constructors for layers whose weights come from a checkpoint, and the group norm.

use std::sync::Arc;

use outpost_kernels::{self as kernels, Activation, ConvShape};

use crate::models::error::{ModelError, Result};
pub(super) use crate::models::linear::Linear;
pub(super) use crate::models::mlp::Mlp;
pub(super) use crate::models::norm::Norm;
use crate::models::weights::{Candidate, Loader};

/// A convolution. LoRA deltas identify it by the address of its allocation.
pub(super) type Conv = Arc<kernels::Conv2d>;

/// Loads a convolution with a square kernel.
pub(super) fn conv(
    loader: &Loader<'_>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: [usize; 2],
) -> Result<Conv> {
    loader.conv(stem, ConvShape { inputs, outputs, kernel: [kernel; 2], stride, padding })
}

/// Loads a convolution that preserves height and width.
pub(super) fn same_conv(loader: &Loader<'_>, stem: &str, channels: [usize; 2], kernel: usize) -> Result<Conv> {
    conv(loader, stem, channels, kernel, 1, [(kernel - 1) / 2; 2])
}

/// Loads a linear projection, or a 1 × 1 convolution, which is the same.
pub(super) fn linear(loader: &Loader<'_>, stem: &str, [inputs, outputs]: [usize; 2], biased: bool) -> Result<Linear> {
    loader.linear(&[Candidate::whole(stem.to_owned(), outputs)], outputs, inputs, biased)
}

/// Loads a feed-forward network without a gate. `up` and `down` are tensor name stems.
pub(super) fn mlp(
    loader: &Loader<'_>,
    [up, down]: [&str; 2],
    [width, inner]: [usize; 2],
    activation: Activation,
    biased: bool,
) -> Result<Mlp> {
    let up = linear(loader, up, [width, inner], biased)?;
    Ok(Mlp { gate: None, up, down: linear(loader, down, [inner, width], biased)?, activation })
}

/// Loads `outputs` rows of a projection with `total` rows, starting at row `first`.
pub(super) fn linear_slice(
    loader: &Loader<'_>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    first: usize,
    total: usize,
) -> Result<Linear> {
    loader.linear(&[Candidate { stem: stem.to_owned(), first, total }], outputs, inputs, false)
}

/// Group norm (Wu and He 2018, <https://arxiv.org/abs/1803.08494>).
#[derive(Debug)]
pub struct GroupNorm {
    groups: usize,
    weight: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f32,
}

impl GroupNorm {
    pub(super) fn load(loader: &Loader<'_>, stem: &str, channels: usize, groups: usize, epsilon: f32) -> Result<Self> {
        if !channels.is_multiple_of(groups) {
            return Err(ModelError::Checkpoint(format!(
                "{channels} channels of {stem} do not divide into {groups} groups"
            )));
        }
        let norm = Norm::load_layer_norm(loader, stem, channels, epsilon)?;
        let (weight, bias) = norm.into_parts();
        let bias = bias.unwrap_or_else(|| vec![0.; channels]);
        Ok(Self { groups, weight, bias, epsilon })
    }

    pub(super) fn kernel(&self, activation: Option<Activation>) -> kernels::GroupNorm<'_> {
        let Self { groups, weight, bias, epsilon } = self;
        kernels::GroupNorm { groups: *groups, weight, bias, epsilon: *epsilon, activation }
    }
}
