//! The decoder's operations on the CPU: tensors outside, kernels inside.
//!
//! Tensors are `f32` and on the CPU; one that is neither is an error, not a panic.

use candle_core::{CpuStorage, Device, InplaceOp2, Layout, Result, Storage, Tensor};
use outpost_kernels::{self as kernels, Pool};

use super::family::Activation;

/// Looks at the numbers of a tensor, in the order of its last dimension first.
pub(super) fn numbers<T>(x: &Tensor, look: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => Ok(look(part(cpu, layout)?)),
        _ => candle_core::bail!("a tensor of the decoder is not on the CPU"),
    }
}

fn part<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = range(layout)?;
    storage.as_slice::<f32>()?.get(start..end).ok_or_else(outside)
}

fn range(layout: &Layout) -> Result<(usize, usize)> {
    layout.contiguous_offsets().ok_or_else(|| candle_core::Error::Msg("a tensor with gaps".to_owned()))
}

fn outside() -> candle_core::Error {
    candle_core::Error::Msg("a tensor that lies outside its storage".to_owned())
}

/// Each row over the root of its mean square, times `weight`: the last dimension is `weight`'s.
pub(super) fn rms_norm(pool: &Pool, x: &Tensor, weight: &[f32], epsilon: f32) -> Result<Tensor> {
    let out = numbers(x, |x| {
        let mut out = vec![0.; x.len()];
        kernels::rms_norm(pool, x, weight, epsilon, &mut out);
        out
    })?;
    Tensor::from_vec(out, x.shape(), &Device::Cpu)
}

/// `x + y`, in `x`'s place.
pub(super) fn add(pool: &Pool, x: Tensor, y: &Tensor) -> Result<Tensor> {
    x.inplace_op2(&y.contiguous()?, &InPlace(|x: &mut [f32], y: &[f32]| kernels::add(pool, x, y)))?;
    Ok(x)
}

/// `act(gate) · up`, in `gate`'s place.
pub(super) fn gate(pool: &Pool, activation: Activation, gate: Tensor, up: &Tensor) -> Result<Tensor> {
    let multiply = match activation {
        Activation::Silu => kernels::silu_mul,
        Activation::Gelu => kernels::gelu_tanh_mul,
    };
    gate.inplace_op2(up, &InPlace(|gate: &mut [f32], up: &[f32]| multiply(pool, gate, up)))?;
    Ok(gate)
}

/// An operation that changes its first tensor and reads its second, of the same shape.
struct InPlace<F>(F);

impl<F: Fn(&mut [f32], &[f32])> InplaceOp2 for InPlace<F> {
    fn name(&self) -> &'static str {
        "in place"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, to: &Layout, y: &CpuStorage, from: &Layout) -> Result<()> {
        if to.shape() != from.shape() {
            candle_core::bail!("{:?} and {:?} are not of one shape", to.shape(), from.shape());
        }
        let ((start, end), from) = (range(to)?, part(y, from)?);
        let CpuStorage::F32(x) = x else { candle_core::bail!("a tensor of the decoder is not of 32-bit floats") };
        self.0(x.get_mut(start..end).ok_or_else(outside)?, from);
        Ok(())
    }
}
