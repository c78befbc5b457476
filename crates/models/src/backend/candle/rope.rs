//! Rotary position embeddings.

use candle_core::{D, Result as ArrayResult, Tensor as Array};
use candle_nn::rotary_emb;

use super::device::Candle;
use super::host;
use crate::backend::checks;
use crate::backend::interface::{Angles, Backend, Tensor};
use crate::backend::types::RopeLayout;
use crate::error::Result;

/// Rotates queries or keys of `heads` heads.
pub fn rope(
    candle: &Candle,
    x: &mut Tensor<Candle>,
    heads: usize,
    layout: RopeLayout,
    angles: &Angles<Candle>,
) -> Result<()> {
    let width = checks::rope(x, heads, angles)?;
    let (rows, pairs) = (x.rows(), angles.cos.channels);
    if pairs == 0 {
        return Ok(());
    }
    if candle.computes_on_host(&x.data) {
        x.data = host::rope(candle, x, heads, layout, angles)?;
        return candle.pause();
    }
    let by_head = x.data.reshape((rows, heads, width))?;
    let rotated = match 2 * pairs == width {
        true => rotate(&by_head, layout, angles)?,
        false => {
            let rotated = rotate(&by_head.narrow(2, 0, 2 * pairs)?.contiguous()?, layout, angles)?;
            Array::cat(&[&rotated, &by_head.narrow(2, 2 * pairs, width - 2 * pairs)?], 2)?
        }
    };
    x.data = rotated.reshape((rows, x.channels))?;
    candle.pause()
}

/// Rotates whole heads, `[rows, heads, 2 · pairs]`.
fn rotate(x: &Array, layout: RopeLayout, angles: &Angles<Candle>) -> ArrayResult<Array> {
    let (rows, heads, width) = x.dims3()?;
    let (cos, sin, pairs) = (&angles.cos.data, &angles.sin.data, width / 2);
    if x.track_op() {
        let (cos, sin) = (cos.reshape((rows, 1, pairs))?, sin.reshape((rows, 1, pairs))?);
        return rotate_with_gradient(x, layout, &cos, &sin);
    }
    match layout {
        RopeLayout::Halves => rotary_emb::rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0),
        RopeLayout::Interleaved => {
            // Each row is a sequence of one token, so that heads need not be transposed.
            let (cos, sin) = (cos.reshape((rows, 1, pairs))?, sin.reshape((rows, 1, pairs))?);
            rotary_emb::rope_i(&x.unsqueeze(2)?, &cos, &sin)?.reshape((rows, heads, width))
        }
    }
}

fn rotate_with_gradient(x: &Array, layout: RopeLayout, cos: &Array, sin: &Array) -> ArrayResult<Array> {
    let (rows, heads, width) = x.dims3()?;
    let pairs = width / 2;
    let [first, second] = match layout {
        RopeLayout::Halves => [x.narrow(2, 0, pairs)?, x.narrow(2, pairs, pairs)?],
        RopeLayout::Interleaved => {
            let by_pair = x.reshape((rows, heads, pairs, 2))?;
            [by_pair.narrow(3, 0, 1)?.squeeze(3)?, by_pair.narrow(3, 1, 1)?.squeeze(3)?]
        }
    };
    let real = (first.broadcast_mul(cos)? - second.broadcast_mul(sin)?)?;
    let imaginary = (first.broadcast_mul(sin)? + second.broadcast_mul(cos)?)?;
    match layout {
        RopeLayout::Halves => Array::cat(&[real, imaginary], D::Minus1),
        RopeLayout::Interleaved => Array::stack(&[real, imaginary], 3)?.reshape((rows, heads, width)),
    }
}
