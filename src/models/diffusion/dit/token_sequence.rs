//! Concatenates and splits sequences of image and text tokens.

use outpost_kernels as kernels;

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;

/// Concatenates the tokens of `x` and `y` for each image: `[images, x + y, 1, channels]`.
pub(super) fn concat_tokens(ctx: &OpContext<'_>, x: &FeatureMap, y: &FeatureMap) -> Result<FeatureMap> {
    if x.images != y.images || x.channels != y.channels || x.is_empty() || y.is_empty() {
        return Err(ModelError::Compute(format!(
            "tokens of width {} and {} cannot be concatenated",
            x.channels, y.channels
        )));
    }
    let mut out = ctx.alloc(x.images, [x.pixels() + y.pixels(), 1], x.channels);
    let lengths = [x, y].map(|map| map.pixels() * map.channels);
    kernels::concat_channels(ctx.pool, [x.data(), y.data()], lengths, out.data_mut());
    ctx.pause()?;
    Ok(out)
}

/// Splits the tokens of each image after `first` tokens.
pub(super) fn split_tokens(ctx: &OpContext<'_>, x: &FeatureMap, first: usize) -> Result<[FeatureMap; 2]> {
    let Some(rest) = x.pixels().checked_sub(first) else {
        return Err(ModelError::Compute(format!("a sequence of {} tokens cannot be split after {first}", x.pixels())));
    };
    let mut outputs = [first, rest].map(|count| ctx.alloc(x.images, [count, 1], x.channels));
    let [head, tail] = &mut outputs;
    let (head_len, tail_len) = (first * x.channels, rest * x.channels);
    let images =
        head.data_mut().chunks_exact_mut(head_len.max(1)).zip(tail.data_mut().chunks_exact_mut(tail_len.max(1)));
    for (x, (head, tail)) in x.per_image().zip(images) {
        let (head_src, tail_src) = x.split_at(head_len);
        head.copy_from_slice(head_src);
        tail.copy_from_slice(tail_src);
    }
    ctx.pause()?;
    Ok(outputs)
}
