//! Convolutions, computed some lines at a time.

use outpost_kernels::{Activation, Conv2d, ConvInput, FusedNorm};

use super::device::Cpu;
use super::norms::{factors, kernel};
use crate::backend::interface::{Backend, GroupNorm, Tensor};
use crate::error::{ModelError, Result};

/// The convolution of `x`, or of its group norm.
pub fn forward(cpu: &Cpu, conv: &Conv2d, x: &Tensor<Cpu>, norm: Option<FusedNorm<'_>>) -> Result<Tensor<Cpu>> {
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

/// `conv(silu(norm(x + shift)))`
pub fn norm_conv(
    cpu: &Cpu,
    norm: &GroupNorm<Cpu>,
    x: &Tensor<Cpu>,
    shift: Option<&Tensor<Cpu>>,
    conv: &Conv2d,
) -> Result<Tensor<Cpu>> {
    let activation = Some(Activation::Silu);
    let factors = factors(cpu, &kernel(norm, activation), x, shift)?;
    forward(cpu, conv, x, Some(FusedNorm { factors: &factors, activation }))
}
