//! Rotary position embedding in two dimensions (Su et al. 2021, <https://arxiv.org/abs/2104.09864>): each axis of a
//! head is rotated by one coordinate of a patch. Text tokens are not rotated.

use crate::backend::{Angles, Backend};
use crate::error::Result;

const BASE: f64 = 10_000.;

/// The angles of text tokens and patches, in this order. `rows` and `columns`: of the grid of patches; `axes`: elements of
/// a head for each coordinate.
pub(super) fn angles<B: Backend>(
    backend: &B,
    text_tokens: usize,
    [rows, columns]: [usize; 2],
    axes: [usize; 3],
) -> Result<Angles<B>> {
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
    let table = |values: &[f32]| backend.tensor(values, [1, positions, 1, pairs]);
    Ok(Angles { cos: table(&cos)?, sin: table(&sin)? })
}
