//! Layer norms, RMS norms and group norms.

use outpost_kernels::{self as kernels, Activation, Moments, ScaleShift};

use super::device::{CHUNK_ELEMENTS, Cpu};
use crate::backend::checks;
use crate::backend::convolutions::GroupNorm;
use crate::backend::interface::{Backend, Norm, Tensor};
use crate::error::Result;

fn norm_kernel<'a>(norm: &'a Norm<Cpu>, x: &Tensor<Cpu>) -> Result<kernels::Norm<'a>> {
    let Norm { kind, weight, bias, epsilon } = norm;
    checks::norm(weight.len(), x)?;
    Ok(kernels::Norm { kind: *kind, weight, bias: bias.as_deref(), epsilon: *epsilon })
}

pub fn forward(cpu: &Cpu, norm: &Norm<Cpu>, x: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    let mut out = cpu.alloc(x.shape());
    norm_kernel(norm, x)?.forward(&cpu.pool, x.data(), out.data_mut());
    cpu.pause()?;
    Ok(out)
}

/// `x += y; norm(x)`
pub fn add_forward(cpu: &Cpu, norm: &Norm<Cpu>, x: &mut Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    checks::lengths(x, y)?;
    let mut out = cpu.alloc(x.shape());
    norm_kernel(norm, x)?.add_forward(&cpu.pool, x.data_mut(), y.data(), out.data_mut());
    cpu.pause()?;
    Ok(out)
}

pub fn kernel(norm: &GroupNorm<Cpu>, activation: Option<Activation>) -> kernels::GroupNorm<'_> {
    let GroupNorm { groups, weight, bias, epsilon } = norm;
    kernels::GroupNorm { groups: *groups, weight, bias, epsilon: *epsilon, activation }
}

/// `norm(x + shift)`, followed by SiLU if `silu` is set.
pub fn group_norm(
    cpu: &Cpu,
    norm: &GroupNorm<Cpu>,
    x: &Tensor<Cpu>,
    shift: Option<&Tensor<Cpu>>,
    silu: bool,
) -> Result<Tensor<Cpu>> {
    let kernel = kernel(norm, silu.then_some(Activation::Silu));
    let factors = factors(cpu, &kernel, x, shift)?;
    let mut out = cpu.alloc(x.shape());
    let chunk = chunk_elements(cpu, x.channels);
    for ((image, out), factors) in x.per_image().zip(out.per_image_mut()).zip(&factors) {
        for (x, out) in image.chunks(chunk).zip(out.chunks_mut(chunk)) {
            kernel.apply(&cpu.pool, factors, x, out);
            cpu.pause()?;
        }
    }
    Ok(out)
}

/// The scale and shift that a group norm applies to each image of `x + shift`.
pub fn factors(
    cpu: &Cpu,
    kernel: &kernels::GroupNorm<'_>,
    x: &Tensor<Cpu>,
    shift: Option<&Tensor<Cpu>>,
) -> Result<Vec<ScaleShift>> {
    checks::group_norm([kernel.weight.len(), kernel.groups], x, shift)?;
    let chunk = chunk_elements(cpu, x.channels);
    let mut shifts = shift.map(Tensor::per_image);
    let mut factors = Vec::with_capacity(x.images);
    for image in x.per_image() {
        let mut moments = Moments::new(x.channels);
        for x in image.chunks(chunk) {
            moments.add(&cpu.pool, x);
            cpu.pause()?;
        }
        factors.push(kernel.factors(&moments, shifts.as_mut().and_then(Iterator::next)));
    }
    Ok(factors)
}

/// Elements between two pauses, a multiple of the pixels whose moments are computed together.
fn chunk_elements(cpu: &Cpu, channels: usize) -> usize {
    let moments_elements = Moments::pixels_per_chunk(channels) * channels;
    (CHUNK_ELEMENTS * cpu.pool.threads()).next_multiple_of(moments_elements.max(1))
}
