//! Elementwise operations.

use outpost_kernels as kernels;

use super::device::Cpu;
use super::types::Activation;
use crate::models::backend::interface::{Backend, Tensor};
use crate::models::error::{ModelError, Result};

fn check_lengths(x: &Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<()> {
    match x.len() == y.len() {
        true => Ok(()),
        false => Err(ModelError::Compute(format!("{} elements do not fit {}", y.len(), x.len()))),
    }
}

pub fn add(cpu: &Cpu, x: &mut Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<()> {
    check_lengths(x, y)?;
    kernels::add(&cpu.pool, x.data_mut(), y.data());
    cpu.pause()
}

pub fn activate(cpu: &Cpu, activation: Activation, x: &mut Tensor<Cpu>, factors: Option<&Tensor<Cpu>>) -> Result<()> {
    factors.map_or(Ok(()), |factors| check_lengths(x, factors))?;
    kernels::activate(&cpu.pool, activation, x.data_mut(), factors.map(Tensor::data));
    cpu.pause()
}

/// Adds each row of `y`, multiplied by its factor, to a row of `x`.
pub fn add_scaled_rows(x: &mut Tensor<Cpu>, rows: &[(usize, f32)], y: &Tensor<Cpu>) -> Result<()> {
    let (width, count) = (x.channels.max(1), x.rows());
    if y.channels != x.channels || rows.len() != y.rows() || rows.iter().any(|(row, _)| *row >= count) {
        return Err(ModelError::Compute(format!("{} rows cannot be added to {count}", y.rows())));
    }
    for ((row, factor), y) in rows.iter().zip(y.data().chunks_exact(width)) {
        let sum = &mut x.data_mut()[row * width..][..width];
        sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += y * factor);
    }
    Ok(())
}
