//! Convolutions.

use candle_core::DType as ArrayType;

use super::device::{Candle, tensor};
use super::weights::{self, CandleConv, Kernel};
use super::{norms, products};
use crate::backend::convolutions::{Convolutions, GroupNorm};
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::{ConvShape, DType};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

impl Convolutions for Candle {
    type Conv = CandleConv;

    fn read_conv(&self, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<CandleConv> {
        weights::read_conv(self.device(), weight, shape, bias)
    }

    fn conv_bytes(&self, dtype: DType, shape: &ConvShape) -> usize {
        weights::conv_bytes(self.device(), dtype, shape)
    }

    fn conv(&self, conv: &CandleConv, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let shape = conv.shape;
        let Some(size) = shape.output(x.size).filter(|_| x.channels == shape.inputs && x.images > 0) else {
            return Err(ModelError::Compute(format!(
                "{shape:?} does not take {} channels of {:?}",
                x.channels, x.size
            )));
        };
        let (kernel, bias) = match &conv.kernel {
            Kernel::Pointwise(linear) => {
                let [out] = products::linears(self, [linear], x)?;
                return Ok(out);
            }
            Kernel::Window(kernel, bias) => (kernel, bias),
        };
        let images = x.data.reshape((x.images, x.size[0], x.size[1], x.channels))?.permute((0, 3, 1, 2))?;
        let images = images.to_dtype(kernel.dtype())?;
        let [before, after] = shape.padding;
        let out = match before == after {
            true => images.conv2d(kernel, before, shape.stride, 1, 1)?,
            false => {
                let padded = images.pad_with_zeros(2, before, after)?.pad_with_zeros(3, before, after)?;
                padded.conv2d(kernel, 0, shape.stride, 1, 1)?
            }
        };
        let out = out.permute((0, 2, 3, 1))?.contiguous()?.to_dtype(ArrayType::F32)?;
        let mut out = tensor([x.images, size[0], size[1], shape.outputs], &out)?;
        if let Some(bias) = bias {
            out.data = out.data.broadcast_add(bias)?;
        }
        self.pause()?;
        Ok(out)
    }

    fn group_norm(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        silu: bool,
    ) -> Result<Tensor<Self>> {
        norms::group_norm(self, norm, x, shift, silu)
    }
}
