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
