//! Convolutions over time, and the adaptive norms before them, which networks for audio need.

use std::fmt;

use super::convolutions::GroupNorm;
use super::interface::{Backend, Tensor};
use super::types::{Conv1dShape, DType};
use crate::error::Result;
use crate::weights::Rows;

/// An instance norm whose weight and bias depend on a style (AdaIN: Huang and Belongie 2017,
/// <https://arxiv.org/abs/1703.06868>), and the activation that follows it.
#[derive(Debug)]
pub struct AdaIn<'a, B: Backend> {
    /// Its groups are single channels.
    pub norm: GroupNorm<B>,
    pub activation: ChannelActivation<'a, B>,
}

/// An activation function, possibly with parameters of each channel.
#[derive(Debug)]
pub enum ChannelActivation<'a, B: Backend> {
    /// `x` if it is positive, else `x` times this slope, which is at most one.
    LeakyRelu(f32),
    /// `x + sin²(αx) / α` (Ziyin et al. 2020, <https://arxiv.org/abs/2006.08195>).
    Snake {
        /// α of each channel: `[channels]`.
        alphas: &'a B::Vector,
        /// 1/α: `[channels]`.
        inverses: &'a B::Vector,
    },
}

/// A device that computes convolutions over time.
pub trait TimeConvolutions: Backend {
    /// The weights of a convolution over time with an optional bias.
    type Conv1d: fmt::Debug + Send + Sync;

    /// Reads the weights of a convolution over time, `[outputs, inputs, kernel]`, and its `bias`, `[outputs]`.
    fn read_conv1d(&self, weight: &Rows<'_>, shape: Conv1dShape, bias: Option<&[f32]>) -> Result<Self::Conv1d>;

    /// Bytes of the weights of a convolution over time of this type in the checkpoint.
    fn conv1d_bytes(&self, dtype: DType, shape: &Conv1dShape) -> usize;

    /// A convolution over the tokens of each text: `[texts, outputs, 1, channels]`.
    fn conv1d(&self, conv: &Self::Conv1d, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `activation(norm(x))`
    fn adain(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `conv(activation(norm(x)))`
    fn adain_conv1d(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>, conv: &Self::Conv1d) -> Result<Tensor<Self>> {
        let x = self.adain(norm, x)?;
        self.conv1d(conv, &x)
    }
}
