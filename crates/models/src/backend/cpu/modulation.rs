//! Modulation by vectors that depend on the timestep and the prompt.

use outpost_kernels::{self as kernels, NormKind};

use super::device::Cpu;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::error::Result;

/// The vector at `index` of each image.
fn vectors_at(vectors: &Tensor<Cpu>, width: usize, index: usize) -> impl Iterator<Item = &[f32]> {
    vectors.per_image().map(move |vectors| vectors.chunks_exact(width.max(1)).nth(index).unwrap_or_default())
}

pub fn modulate(cpu: &Cpu, x: &mut Tensor<Cpu>, vectors: &Tensor<Cpu>, [shift, scale]: [usize; 2]) -> Result<()> {
    checks::modulation(x, vectors, &[shift, scale])?;
    let channels = x.channels;
    let vectors = vectors_at(vectors, channels, shift).zip(vectors_at(vectors, channels, scale));
    for (x, (shift, scale)) in x.per_image_mut().zip(vectors) {
        for x in x.chunks_exact_mut(channels) {
            x.iter_mut().zip(scale.iter().zip(shift)).for_each(|(x, (scale, shift))| *x = *x * (1. + scale) + shift);
        }
    }
    cpu.pause()
}

pub fn norm(
    cpu: &Cpu,
    epsilon: f32,
    x: &Tensor<Cpu>,
    vectors: &Tensor<Cpu>,
    [shift, scale]: [usize; 2],
) -> Result<Tensor<Cpu>> {
    checks::modulation(x, vectors, &[shift, scale])?;
    let mut out = cpu.alloc(x.shape());
    let vectors = vectors_at(vectors, x.channels, shift).zip(vectors_at(vectors, x.channels, scale));
    for ((x, out), (shift, scale)) in x.per_image().zip(out.per_image_mut()).zip(vectors) {
        let weight: Vec<f32> = scale.iter().map(|scale| 1. + scale).collect();
        let norm = kernels::Norm { kind: NormKind::Layer, weight: &weight, bias: Some(shift), epsilon };
        norm.forward(&cpu.pool, x, out);
        cpu.pause()?;
    }
    Ok(out)
}

pub fn add_gated(cpu: &Cpu, x: &mut Tensor<Cpu>, y: &Tensor<Cpu>, vectors: &Tensor<Cpu>, gate: usize) -> Result<()> {
    checks::modulation(x, vectors, &[gate])?;
    checks::lengths(x, y)?;
    let gates = vectors_at(vectors, x.channels, gate);
    for ((x, y), gate) in x.per_image_mut().zip(y.per_image()).zip(gates) {
        kernels::add_scaled(&cpu.pool, x, y, gate);
        cpu.pause()?;
    }
    Ok(())
}
