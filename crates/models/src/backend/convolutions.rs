//! Convolutions over images, and the group norms before them, which networks for images need.

use std::fmt;

use super::interface::{Backend, Tensor};
use super::types::{ConvShape, DType};
use crate::error::Result;
use crate::weights::Rows;

/// A group norm (Wu and He 2018, <https://arxiv.org/abs/1803.08494>).
#[derive(Debug)]
pub struct GroupNorm<B: Backend> {
    pub groups: usize,
    /// `[channels]`
    pub weight: B::Vector,
    /// `[channels]`
    pub bias: B::Vector,
    pub epsilon: f32,
}

/// A device that computes convolutions over images.
pub trait Convolutions: Backend {
    /// The weights of a convolution with an optional bias.
    type Conv: fmt::Debug + Send + Sync;

    /// Reads the weights of a convolution, `[outputs, inputs, height, width]`, and its `bias`, `[outputs]`.
    fn read_conv(&self, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<Self::Conv>;

    /// Bytes of the weights of a convolution of this type in the checkpoint.
    fn conv_bytes(&self, dtype: DType, shape: &ConvShape) -> usize;

    fn conv(&self, conv: &Self::Conv, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `norm(x + shift)`, followed by SiLU if `silu` is set. `shift`: `[images, 1, 1, channels]`.
    fn group_norm(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        silu: bool,
    ) -> Result<Tensor<Self>>;

    /// `conv(silu(norm(x + shift)))`; `shift`: `[images, 1, 1, channels]`.
    fn norm_conv(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        conv: &Self::Conv,
    ) -> Result<Tensor<Self>> {
        let x = self.group_norm(norm, x, shift, true)?;
        self.conv(conv, &x)
    }
}
