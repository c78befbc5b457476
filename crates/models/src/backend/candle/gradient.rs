//! Gradients of results that were computed without candle's tracking.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, D, Layout, MetalStorage, Result as ArrayResult, Shape,
    Tensor as Array,
};

use super::host_array::host;
use crate::error::{ModelError, Result};

/// Copies its second argument, which was computed from the first. The function returns the gradient of the first
/// argument for that of the result.
struct WithGradient<F>(F);

impl<F: Fn(&Array) -> ArrayResult<Array> + Send + Sync> CustomOp2 for WithGradient<F> {
    fn name(&self) -> &'static str {
        "with_gradient"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, y: &CpuStorage, layout: &Layout) -> ArrayResult<(CpuStorage, Shape)> {
        Ok((y.try_clone(layout)?, layout.shape().clone()))
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        y: &CudaStorage,
        layout: &Layout,
    ) -> ArrayResult<(CudaStorage, Shape)> {
        Ok((y.try_clone(layout)?, layout.shape().clone()))
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        y: &MetalStorage,
        layout: &Layout,
    ) -> ArrayResult<(MetalStorage, Shape)> {
        Ok((y.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Array, _: &Array, _: &Array, gradient: &Array) -> ArrayResult<(Option<Array>, Option<Array>)> {
        Ok((Some((self.0)(&gradient.contiguous()?)?), None))
    }
}

/// The gradient of scores from that of `weights`, their softmax over the last dimension.
pub fn softmax_gradient(weights: &Array, gradient: &Array) -> ArrayResult<Array> {
    let mean = gradient.mul(weights)?.sum_keepdim(D::Minus1)?;
    gradient.broadcast_sub(&mean)?.mul(weights)
}

/// `y`, which was computed from `x` without a gradient, with one: `gradient` returns that of `x` for that of `y`, which is
/// contiguous.
pub fn with_gradient(
    x: &Array,
    y: &Array,
    gradient: impl Fn(&Array) -> ArrayResult<Array> + Send + Sync + 'static,
) -> ArrayResult<Array> {
    x.apply_op2(y, WithGradient(gradient))
}

/// A result that the host has computed from `N` inputs. The function returns their gradients for that of the result.
struct Computed<F, const N: usize> {
    /// Until candle has taken it.
    values: Mutex<Vec<f32>>,
    shape: Shape,
    gradients: F,
}

impl<F: Fn(&[f32]) -> Result<[Vec<f32>; N]>, const N: usize> Computed<F, N> {
    fn take(&self) -> ArrayResult<(CpuStorage, Shape)> {
        let values = std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((CpuStorage::F32(values), self.shape.clone()))
    }

    fn gradients(&self, inputs: [&Array; N], gradient: &Array) -> ArrayResult<[Option<Array>; N]> {
        let gradient = gradient.contiguous()?;
        let gradients = (self.gradients)(&host(&gradient)?)?;
        let mut arrays = [const { None }; N];
        for ((array, input), values) in arrays.iter_mut().zip(inputs).zip(gradients) {
            *array = Some(Array::from_vec(values, input.shape(), input.device())?);
        }
        Ok(arrays)
    }
}

impl<F: Fn(&[f32]) -> Result<[Vec<f32>; 1]> + Send + Sync> CustomOp1 for Computed<F, 1> {
    fn name(&self) -> &'static str {
        "computed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> ArrayResult<(CpuStorage, Shape)> {
        self.take()
    }

    fn bwd(&self, x: &Array, _: &Array, gradient: &Array) -> ArrayResult<Option<Array>> {
        let [x] = self.gradients([x], gradient)?;
        Ok(x)
    }
}

impl<F: Fn(&[f32]) -> Result<[Vec<f32>; 2]> + Send + Sync> CustomOp2 for Computed<F, 2> {
    fn name(&self) -> &'static str {
        "computed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> ArrayResult<(CpuStorage, Shape)> {
        self.take()
    }

    fn bwd(&self, x: &Array, y: &Array, _: &Array, gradient: &Array) -> ArrayResult<(Option<Array>, Option<Array>)> {
        let [x, y] = self.gradients([x, y], gradient)?;
        Ok((x, y))
    }
}

impl<F: Fn(&[f32]) -> Result<[Vec<f32>; 3]> + Send + Sync> CustomOp3 for Computed<F, 3> {
    fn name(&self) -> &'static str {
        "computed"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> ArrayResult<(CpuStorage, Shape)> {
        self.take()
    }

    fn bwd(
        &self,
        x: &Array,
        y: &Array,
        z: &Array,
        _: &Array,
        gradient: &Array,
    ) -> ArrayResult<(Option<Array>, Option<Array>, Option<Array>)> {
        let [x, y, z] = self.gradients([x, y, z], gradient)?;
        Ok((x, y, z))
    }
}

fn computed<F, const N: usize>(values: Vec<f32>, shape: impl Into<Shape>, gradients: F) -> Result<Computed<F, N>> {
    let shape = shape.into();
    match shape.elem_count() == values.len() {
        true => Ok(Computed { values: Mutex::new(values), shape, gradients }),
        false => Err(ModelError::Compute(format!("{} elements do not fit {shape:?}", values.len()))),
    }
}

/// `values`, which were computed on the CPU from `x`: `gradient` returns that of `x` for that of the result.
pub fn computed_from(
    x: &Array,
    values: Vec<f32>,
    shape: impl Into<Shape>,
    gradient: impl Fn(&[f32]) -> Result<Vec<f32>> + Send + Sync + 'static,
) -> Result<Array> {
    Ok(x.apply_op1(computed(values, shape, move |result: &[f32]| gradient(result).map(|x| [x]))?)?)
}

/// The same for two inputs.
pub fn computed_from_two(
    [x, y]: [&Array; 2],
    values: Vec<f32>,
    shape: impl Into<Shape>,
    gradients: impl Fn(&[f32]) -> Result<[Vec<f32>; 2]> + Send + Sync + 'static,
) -> Result<Array> {
    Ok(x.apply_op2(y, computed(values, shape, gradients)?)?)
}

/// The same for three inputs.
pub fn computed_from_three(
    [x, y, z]: [&Array; 3],
    values: Vec<f32>,
    shape: impl Into<Shape>,
    gradients: impl Fn(&[f32]) -> Result<[Vec<f32>; 3]> + Send + Sync + 'static,
) -> Result<Array> {
    Ok(x.apply_op3(y, z, computed(values, shape, gradients)?)?)
}
