//! Elementwise operations.

use outpost_kernels as kernels;

use super::device::Cpu;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::Activation;
use crate::error::Result;

pub fn add(cpu: &Cpu, x: &mut Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<()> {
    checks::lengths(x, y)?;
    kernels::add(&cpu.pool, x.data_mut(), y.data());
    cpu.pause()
}

pub fn multiply_by(cpu: &Cpu, x: &mut Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<()> {
    checks::lengths(x, y)?;
    kernels::multiply(&cpu.pool, x.data_mut(), y.data());
    cpu.pause()
}

pub fn activate(cpu: &Cpu, activation: Activation, x: &mut Tensor<Cpu>, factors: Option<&Tensor<Cpu>>) -> Result<()> {
    factors.map_or(Ok(()), |factors| checks::lengths(x, factors))?;
    kernels::activate(&cpu.pool, activation, x.data_mut(), factors.map(Tensor::data));
    cpu.pause()
}

/// Adds each row of `y`, multiplied by its factor, to a row of `x`.
pub fn add_expert(
    x: &mut Tensor<Cpu>,
    y: &Tensor<Cpu>,
    tokens: &[usize],
    weights: &Tensor<Cpu>,
    expert: usize,
) -> Result<()> {
    checks::expert(x, y, tokens, weights, expert)?;
    let width = x.channels.max(1);
    for (token, y) in tokens.iter().zip(y.data().chunks_exact(width)) {
        let weight = weights.data()[token * weights.channels + expert];
        let sum = &mut x.data_mut()[token * width..][..width];
        sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += y * weight);
    }
    Ok(())
}
