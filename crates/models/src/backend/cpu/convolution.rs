//! Convolutions, computed some lines at a time.

use outpost_kernels::{Activation, Conv2d, ConvInput, FusedNorm};

use super::device::Cpu;
use super::norms::{self, factors, kernel};
use crate::backend::convolutions::{Convolutions, GroupNorm};
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::{ConvShape, DType};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

/// The convolution of `x`, or of its group norm.
fn forward(cpu: &Cpu, conv: &Conv2d, x: &Tensor<Cpu>, norm: Option<FusedNorm<'_>>) -> Result<Tensor<Cpu>> {
    let shape = *conv.shape();
    let Some(size) = shape.output(x.size).filter(|_| x.channels == shape.inputs) else {
        return Err(ModelError::Compute(format!("{shape:?} does not take {} channels of {:?}", x.channels, x.size)));
    };
    let mut out = cpu.alloc([x.images, size[0], size[1], shape.outputs]);
    let line = size[1] * shape.outputs;
    let lines = cpu.chunk_rows(line * shape.inputs * shape.kernel[0] * shape.kernel[1]);
    let input = ConvInput { x: x.data(), size: x.size, norm };
    if lines >= x.images * size[0] {
        conv.forward(&cpu.pool, input, out.data_mut());
        cpu.pause()?;
        return Ok(out);
    }
    for (image, out) in input.chunks(x.channels, 1).zip(out.per_image_mut()) {
        for (first, out) in (0..size[0]).step_by(lines).zip(out.chunks_mut(lines * line)) {
            conv.forward_rows(&cpu.pool, image, first..size[0].min(first + lines), out);
            cpu.pause()?;
        }
    }
    Ok(out)
}

impl Convolutions for Cpu {
    type Conv = Conv2d;

    fn read_conv(&self, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<Conv2d> {
        Ok(Conv2d::new(&self.pool, weight.dtype, shape, &weight.bytes()?, bias)?)
    }

    fn conv_bytes(&self, dtype: DType, shape: &ConvShape) -> usize {
        Conv2d::packed_bytes(dtype, shape)
    }

    fn conv(&self, conv: &Conv2d, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        forward(self, conv, x, None)
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

    /// Does not materialise the normalised input.
    fn norm_conv(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        conv: &Conv2d,
    ) -> Result<Tensor<Self>> {
        let activation = Some(Activation::Silu);
        let factors = factors(self, &kernel(norm, activation), x, shift)?;
        forward(self, conv, x, Some(FusedNorm { factors: &factors, activation }))
    }
}
