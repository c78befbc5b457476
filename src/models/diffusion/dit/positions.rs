//! Positions of the picture and of the text as one sequence.

use outpost_kernels as kernels;

use crate::models::diffusion::easel::{Easel, Halt, Result};
use crate::models::diffusion::map::Map;

/// The positions of `x` and then those of `y`, for each image: `[images, x + y, 1, channels]`.
pub(super) fn join(easel: &Easel<'_>, x: &Map, y: &Map) -> Result<Map> {
    if x.images != y.images || x.channels != y.channels || x.is_empty() || y.is_empty() {
        return Err(Halt::Failed(format!("positions of {} and of {} numbers", x.channels, y.channels)));
    }
    let mut out = easel.map(x.images, [x.pixels() + y.pixels(), 1], x.channels);
    let rows = [x, y].map(|one| one.pixels() * one.channels);
    kernels::side_by_side(easel.pool, [x.numbers(), y.numbers()], rows, out.numbers_mut());
    easel.pause()?;
    Ok(out)
}

/// The first positions of each image, and the rest.
pub(super) fn split(easel: &Easel<'_>, x: &Map, first: usize) -> Result<[Map; 2]> {
    let Some(rest) = x.pixels().checked_sub(first) else {
        return Err(Halt::Failed(format!("{first} of {} positions", x.pixels())));
    };
    let mut parts = [first, rest].map(|count| easel.map(x.images, [count, 1], x.channels));
    let [one, other] = &mut parts;
    let (cut, end) = (first * x.channels, rest * x.channels);
    let places = one.numbers_mut().chunks_exact_mut(cut.max(1)).zip(other.numbers_mut().chunks_exact_mut(end.max(1)));
    for (x, (one, other)) in x.each().zip(places) {
        let (front, back) = x.split_at(cut);
        one.copy_from_slice(front);
        other.copy_from_slice(back);
    }
    easel.pause()?;
    Ok(parts)
}
