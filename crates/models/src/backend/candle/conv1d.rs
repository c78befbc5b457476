//! Convolutions over time, and the adaptive norms before them.

use candle_core::{DType as ArrayType, Result as ArrayResult, Tensor as Array};

use super::device::{Candle, tensor};
use super::norms;
use super::weights::{self, CandleConv1d};
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::time_convolutions::{AdaIn, ChannelActivation, TimeConvolutions};
use crate::backend::types::{Conv1dShape, DType};
use crate::error::Result;
use crate::weights::Rows;

/// `max(x, slope · x)`
pub fn leaky_relu(x: &Array, slope: f32) -> ArrayResult<Array> {
    x.maximum(&x.affine(f64::from(slope), 0.)?)
}

impl TimeConvolutions for Candle {
    type Conv1d = CandleConv1d;

    fn read_conv1d(&self, weight: &Rows<'_>, shape: Conv1dShape, bias: Option<&[f32]>) -> Result<CandleConv1d> {
        weights::read_conv1d(self.device(), weight, shape, bias)
    }

    fn conv1d_bytes(&self, dtype: DType, shape: &Conv1dShape) -> usize {
        weights::conv1d_bytes(self.device(), dtype, shape)
    }

    fn conv1d(&self, conv: &CandleConv1d, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (shape, count) = (conv.shape, checks::conv1d(&conv.shape, x)?);
        let texts = x.by_image()?.transpose(1, 2)?.to_dtype(conv.kernel.dtype())?;
        let [before, after] = shape.padding;
        let out = match before == after {
            true => texts.conv1d(&conv.kernel, before, shape.stride, shape.dilation, 1)?,
            false => {
                let padded = texts.pad_with_zeros(2, before, after)?;
                padded.conv1d(&conv.kernel, 0, shape.stride, shape.dilation, 1)?
            }
        };
        let out = out.transpose(1, 2)?.contiguous()?.to_dtype(ArrayType::F32)?;
        let mut out = tensor([x.images, count, 1, shape.outputs], &out)?;
        if let Some(bias) = &conv.bias {
            out.data = out.data.broadcast_add(bias)?;
        }
        self.pause()?;
        Ok(out)
    }

    fn adain(&self, AdaIn { norm, activation }: &AdaIn<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let mut y = norms::group_norm(self, norm, x, None, false)?;
        y.data = match activation {
            ChannelActivation::LeakyRelu(slope) => leaky_relu(&y.data, *slope)?,
            ChannelActivation::Snake { alphas, inverses } => {
                let squares = y.data.broadcast_mul(alphas)?.sin()?.sqr()?;
                (&y.data + squares.broadcast_mul(inverses)?)?
            }
        };
        self.pause()?;
        Ok(y)
    }
}
