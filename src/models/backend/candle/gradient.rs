//! Gradients of results that were computed without candle's tracking.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, D, Layout, MetalStorage, Result as ArrayResult, Shape, Tensor as Array,
};

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
