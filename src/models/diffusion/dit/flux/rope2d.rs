//! Rotary position embedding in two dimensions (Su et al. 2021, <https://arxiv.org/abs/2104.09864>): each axis of a
//! head is rotated by one coordinate of a patch. Text tokens are not rotated.

use outpost_kernels::{self as kernels, RopeLayout};

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;

const BASE: f64 = 10_000.;

/// Cosines and sines of all positions, text first: `[positions, pairs]`.
#[derive(Debug)]
pub(super) struct Rope2d {
    cos: Vec<f32>,
    sin: Vec<f32>,
    positions: usize,
    pairs: usize,
}

impl Rope2d {
    /// `rows` and `columns`: of the grid of patches; `axes`: elements of a head for each coordinate.
    pub fn new(text_tokens: usize, [rows, columns]: [usize; 2], axes: [usize; 3]) -> Self {
        let (positions, pairs) = (text_tokens + rows * columns, axes.iter().sum::<usize>() / 2);
        let patches = (0..rows).flat_map(|row| (0..columns).map(move |column| [0, row, column]));
        let coordinates = std::iter::repeat_n([0; 3], text_tokens).chain(patches);
        let (mut cos, mut sin) = (Vec::with_capacity(positions * pairs), Vec::with_capacity(positions * pairs));
        for coordinate in coordinates {
            for (axis, position) in axes.into_iter().zip(coordinate) {
                for pair in (0..axis).step_by(2) {
                    let angle = position as f64 * BASE.powf(pair as f64 / axis as f64).recip();
                    cos.push(angle.cos() as f32);
                    sin.push(angle.sin() as f32);
                }
            }
        }
        Self { cos, sin, positions, pairs }
    }

    /// Rotates `x`, `[1, positions, 1, heads · 2 · pairs]`.
    pub fn apply(&self, ctx: &OpContext<'_>, x: &mut FeatureMap, heads: usize) -> Result<()> {
        let width = 2 * self.pairs;
        if x.rows() != self.positions || x.channels != heads * width {
            return Err(ModelError::Compute(format!(
                "{} positions of {} elements do not fit the rotary embedding",
                x.rows(),
                x.channels
            )));
        }
        kernels::rope(ctx.pool, x.data_mut(), heads, width, RopeLayout::Interleaved, &self.cos, &self.sin);
        ctx.pause()
    }
}
