//! Layer norms, RMS norms and group norms.

use candle_core::{D, DType as ArrayType, Result as ArrayResult, Tensor as Array};
use candle_nn::ops;

use super::device::{Candle, tensor_like};
use super::host;
use crate::backend::checks;
use crate::backend::convolutions::GroupNorm;
use crate::backend::interface::{Backend, Norm, Tensor};
use crate::backend::types::NormKind;
use crate::error::Result;

/// The norm of rows of `weight`'s length, in one kernel unless gradients are needed.
pub(super) fn layer_norm(x: &Array, weight: &Array, bias: &Array, epsilon: f32) -> ArrayResult<Array> {
    match x.track_op() {
        true => ops::layer_norm_slow(x, weight, bias, epsilon),
        false => ops::layer_norm(x, weight, bias, epsilon),
    }
}

fn rms_norm(x: &Array, weight: &Array, bias: Option<&Array>, epsilon: f32) -> ArrayResult<Array> {
    let y = match x.track_op() {
        true => ops::rms_norm_slow(x, weight, epsilon)?,
        false => ops::rms_norm(x, weight, epsilon)?,
    };
    bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
}

pub fn norm(candle: &Candle, norm: &Norm<Candle>, x: &Tensor<Candle>) -> Result<Tensor<Candle>> {
    let Norm { kind, weight, bias, epsilon } = norm;
    let width = weight.elem_count();
    checks::norm(width, x)?;
    if candle.computes_on_host(&x.data) {
        let y = tensor_like(x, x.channels, &host::norm(candle, norm, &x.data)?)?;
        candle.pause()?;
        return Ok(y);
    }
    let rows = x.data.reshape((x.len() / width, width))?;
    let y = match (kind, bias) {
        (NormKind::Rms, bias) => rms_norm(&rows, weight, bias.as_ref(), *epsilon)?,
        (NormKind::Layer, Some(bias)) => layer_norm(&rows, weight, bias, *epsilon)?,
        (NormKind::Layer, None) => {
            let [_, zeros] = candle.ones_and_zeros(width)?;
            layer_norm(&rows, weight, &zeros, *epsilon)?
        }
    };
    let y = tensor_like(x, x.channels, &y)?;
    candle.pause()?;
    Ok(y)
}

/// `norm(x + shift)`, followed by SiLU if `silu` is set. Uses two passes for mean and variance. The mean and the shift
/// are subtracted together.
pub fn group_norm(
    candle: &Candle,
    norm: &GroupNorm<Candle>,
    x: &Tensor<Candle>,
    shift: Option<&Tensor<Candle>>,
    silu: bool,
) -> Result<Tensor<Candle>> {
    let GroupNorm { groups, weight, bias, epsilon } = norm;
    let (images, pixels, channels) = (x.images, x.pixels(), x.channels);
    checks::group_norm([weight.elem_count(), *groups], x, shift)?;
    let width = channels / groups;
    // Means of groups, `[images, groups, 1]`, from those of channels.
    let group_means = |means: &Array| means.reshape((images, *groups, width))?.mean_keepdim(D::Minus1);
    // A value of each group for all its channels: `[images, 1, channels]`.
    let by_channel = |values: &Array| values.broadcast_as((images, *groups, width))?.reshape((images, 1, channels));
    let ones = Array::ones((images, 1, pixels), ArrayType::F32, candle.device())?;
    let data = x.by_image()?;
    let mut means = channel_means(&ones, &data)?;
    let shift = shift.map(|shift| shift.data.reshape((images, 1, channels))).transpose()?;
    if let Some(shift) = &shift {
        means = (means + shift)?;
    }
    let mut offset = by_channel(&group_means(&means)?)?.neg()?;
    if let Some(shift) = &shift {
        offset = (offset + shift)?;
    }
    let centred = data.broadcast_add(&offset)?;
    candle.pause()?;
    let variances = group_means(&channel_means(&ones, &centred.sqr()?)?)?;
    let scales = (variances + f64::from(*epsilon))?.sqrt()?.recip()?;
    let scales = by_channel(&scales)?.broadcast_mul(weight)?;
    let mut y = centred.broadcast_mul(&scales)?.broadcast_add(bias)?;
    if silu {
        y = y.silu()?;
    }
    let y = tensor_like(x, channels, &y)?;
    candle.pause()?;
    Ok(y)
}

/// The means of channels, `[images, 1, channels]`, of `x`, `[images, pixels, channels]`. A matrix product with ones,
/// `[images, 1, pixels]`, adds pixels in blocks, which is faster than a reduction and more precise than one running sum.
fn channel_means(ones: &Array, x: &Array) -> ArrayResult<Array> {
    ones.matmul(x)? / x.dim(1)? as f64
}
