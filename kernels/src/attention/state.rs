//! The running state of a query's softmax, and joining two states.

use super::plan::JoinTask;
use super::{AttentionShape, Scratch};
use crate::buffer::Shards;
use crate::simd::{Kernel, LANES, Simd, store_part};

/// A query's state: weighted sum of values, `[padded]`; sum of weights by lane, `[16]`; and the maximum score in powers
/// of two, repeated 16 times.
pub(super) fn state_size(shape: &AttentionShape) -> usize {
    shape.padded() + 2 * LANES
}

/// Joins the state `from` into `to`, which covers the positions before.
///
/// # Safety
/// As [`Simd`] says; both are whole states.
#[inline(always)]
pub(super) unsafe fn join<S: Simd>(to: &mut [f32], from: &[f32], padded: usize) {
    // SAFETY: `padded` is a multiple of 16, and both slices are `padded + 32` long.
    unsafe {
        let (to, from) = (to.as_mut_ptr(), from.as_ptr());
        let (most, other) = (S::load(to.add(padded + LANES)), S::load(from.add(padded + LANES)));
        let greatest = S::max(most, other);
        let (old_weight, new_weight) = (S::exp2(S::sub(most, greatest)), S::exp2(S::sub(other, greatest)));
        for at in (0..padded + LANES).step_by(LANES) {
            let scaled = S::mul(S::load(to.add(at)), old_weight);
            S::store(to.add(at), S::fma(S::load(from.add(at)), new_weight, scaled));
        }
        S::store(to.add(padded + LANES), greatest);
    }
}

/// Writes the result: the sum of values over the sum of weights.
///
/// # Safety
/// As [`Simd`] says; `state` is whole, and `out` has `width` places.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(state: &[f32], out: *mut f32, shape: &AttentionShape) {
    // SAFETY: within the state and the `width` places.
    unsafe {
        let padded = shape.padded();
        let weight = S::splat(1.0 / S::sum(S::load(state.as_ptr().add(padded))));
        for at in (0..shape.width).step_by(LANES) {
            let value = S::mul(S::load(state.as_ptr().add(at)), weight);
            let count = (shape.width - at).min(LANES);
            if count == LANES { S::store(out.add(at), value) } else { store_part::<S>(out.add(at), value, count) }
        }
    }
}

pub(super) struct Join<'a> {
    pub join: &'a JoinTask,
    pub shape: &'a AttentionShape,
    pub scratch: &'a mut Scratch,
    pub out: Shards<f32>,
    pub partials: Shards<f32>,
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { join: joint, shape, scratch, out, partials } = self;
        let (padded, group, size) = (shape.padded(), shape.group(), state_size(shape));
        let floats = &mut scratch.floats;
        if floats.len() < size {
            floats.resize(size, 0.0);
        }
        let total = &mut floats[..size];
        let queries = joint.rows * group;
        // SAFETY: the first section has ended, and a query's states are this task's own.
        let state = |chunk: usize, query: usize| unsafe {
            &*partials.get(joint.states + (chunk * queries + query) * size, size)
        };
        // SAFETY: features as `Kernel` says, and a query's outputs are this task's own.
        unsafe {
            for query in 0..queries {
                total.copy_from_slice(state(0, query));
                for chunk in 1..joint.chunks {
                    join::<S>(total, state(chunk, query), padded);
                }
                let place = joint.out + (query / group * shape.heads + query % group) * shape.width;
                finish::<S>(total, out.at(place, shape.width), shape);
            }
        }
    }
}
