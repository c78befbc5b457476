//! Layers with their weights.

use std::sync::Arc;

use outpost_kernels::{self as kernels, Activation, ConvShape};

use crate::models::error::ModelError;
pub(super) use crate::models::linear::Linear;
pub(super) use crate::models::mlp::Mlp;
pub(super) use crate::models::norm::Norm;
use crate::models::weights::{Candidate, Loader};

/// Shared with the LoRA layers that refer to it by address.
pub(super) type Conv = Arc<kernels::Conv2d>;

pub(super) type Loaded<T> = Result<T, ModelError>;

/// A convolution with a square kernel.
pub(super) fn conv(
    loader: &Loader<'_>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: [usize; 2],
) -> Loaded<Conv> {
    loader.conv(stem, ConvShape { inputs, outputs, kernel: [kernel; 2], stride, padding })
}

/// A convolution that keeps the height and width.
pub(super) fn same_conv(loader: &Loader<'_>, stem: &str, channels: [usize; 2], kernel: usize) -> Loaded<Conv> {
    conv(loader, stem, channels, kernel, 1, [(kernel - 1) / 2; 2])
}

/// A projection `[inputs, outputs]`; a 1 × 1 convolution is one, too.
pub(super) fn linear(loader: &Loader<'_>, stem: &str, [inputs, outputs]: [usize; 2], biased: bool) -> Loaded<Linear> {
    loader.linear(&[Candidate::whole(stem.to_owned(), outputs)], outputs, inputs, biased)
}

/// A feed-forward network without a gate; `up` and `down` are stems.
pub(super) fn mlp(
    loader: &Loader<'_>,
    [up, down]: [&str; 2],
    [width, inner]: [usize; 2],
    activation: Activation,
    biased: bool,
) -> Loaded<Mlp> {
    let up = linear(loader, up, [width, inner], biased)?;
    Ok(Mlp { gate: None, up, down: linear(loader, down, [inner, width], biased)?, activation })
}

/// The slice of a projection that starts at output `first` of `total`.
pub(super) fn linear_slice(
    loader: &Loader<'_>,
    stem: &str,
    [inputs, outputs]: [usize; 2],
    first: usize,
    total: usize,
) -> Loaded<Linear> {
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
    pub(super) fn load(loader: &Loader<'_>, stem: &str, channels: usize, groups: usize, epsilon: f32) -> Loaded<Self> {
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
