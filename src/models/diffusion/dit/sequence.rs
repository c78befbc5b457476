//! Image and text tokens as one sequence.

use outpost_kernels as kernels;

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;

/// Concatenates tokens of each image: `[images, x + y, 1, channels]`.
pub(super) fn concat_tokens(ctx: &OpContext<'_>, x: &FeatureMap, y: &FeatureMap) -> Result<FeatureMap> {
    if x.images != y.images || x.channels != y.channels || x.is_empty() || y.is_empty() {
        return Err(ModelError::Compute(format!("tokens of width {} and {}", x.channels, y.channels)));
    }
    let mut out = ctx.alloc(x.images, [x.pixels() + y.pixels(), 1], x.channels);
    let rows = [x, y].map(|one| one.pixels() * one.channels);
    kernels::concat_channels(ctx.pool, [x.data(), y.data()], rows, out.data_mut());
    ctx.pause()?;
    Ok(out)
}

/// Splits off the first tokens of each image.
pub(super) fn split_tokens(ctx: &OpContext<'_>, x: &FeatureMap, first: usize) -> Result<[FeatureMap; 2]> {
    let Some(rest) = x.pixels().checked_sub(first) else {
        return Err(ModelError::Compute(format!("{first} of {} positions", x.pixels())));
    };
    let mut parts = [first, rest].map(|count| ctx.alloc(x.images, [count, 1], x.channels));
    let [one, other] = &mut parts;
    let (cut, end) = (first * x.channels, rest * x.channels);
    let positions = one.data_mut().chunks_exact_mut(cut.max(1)).zip(other.data_mut().chunks_exact_mut(end.max(1)));
    for (x, (one, other)) in x.per_image().zip(positions) {
        let (front, back) = x.split_at(cut);
        one.copy_from_slice(front);
        other.copy_from_slice(back);
    }
    ctx.pause()?;
    Ok(parts)
}
