//! The state of a query's online softmax, and the merge of two states.

use std::f32::consts::LOG2_E;

use super::inputs::AttentionShape;
use super::plan::MergeTask;
use super::scratch::Scratch;
use crate::buffer::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, store_partial};

/// Merges `state` into `total`, which covers the preceding positions.
///
/// # Safety
/// As [`Simd`] says; both slices are states.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(total: &mut [f32], state: &[f32], padded_width: usize) {
    // SAFETY: `padded_width` is a multiple of 16, and both slices have `padded_width + 32` elements.
    unsafe {
        let (total, state) = (total.as_mut_ptr(), state.as_ptr());
        let max_index = padded_width + LANES;
        let (old_max, new_max) = (S::load(total.add(max_index)), S::load(state.add(max_index)));
        let max = S::max(old_max, new_max);
        let (old_weight, new_weight) = (S::exp2(S::sub(old_max, max)), S::exp2(S::sub(new_max, max)));
        for index in (0..max_index).step_by(LANES) {
            let scaled = S::mul(S::load(total.add(index)), old_weight);
            S::store(total.add(index), S::fma(S::load(state.add(index)), new_weight, scaled));
        }
        S::store(total.add(max_index), max);
    }
}

/// Writes a query's output: the sum of values divided by the sum of weights, which the weight of a sink joins.
///
/// # Safety
/// As [`Simd`] says; `state` is a state, and `out` has space for `width` elements.
#[inline(always)]
pub(super) unsafe fn write_output<S: Simd>(state: &[f32], out: *mut f32, shape: &AttentionShape, sink: Option<f32>) {
    // SAFETY: all accesses are within the state and the `width` elements.
    unsafe {
        let sum = S::reduce_sum(S::load(state.as_ptr().add(shape.padded_width())));
        let factor = match sink {
            None => 1.0 / sum,
            Some(sink) => {
                // Weights are relative to the largest score, times log₂ e, which may be that of the sink.
                let (max, sink) = (state[shape.padded_width() + LANES], sink * LOG2_E);
                let largest = max.max(sink);
                let weight = (max - largest).exp2();
                weight / (sum * weight + (sink - largest).exp2())
            }
        };
        let factor = S::splat(factor);
        for index in (0..shape.width).step_by(LANES) {
            let value = S::mul(S::load(state.as_ptr().add(index)), factor);
            let count = (shape.width - index).min(LANES);
            let out = out.add(index);
            if count == LANES { S::store(out, value) } else { store_partial::<S>(out, value, count) }
        }
    }
}

/// Merges the states of a task's chunks and writes the outputs.
pub(super) struct MergeKernel<'a> {
    pub task: &'a MergeTask,
    pub shape: &'a AttentionShape,
    pub sinks: Option<&'a [f32]>,
    pub scratch: &'a mut Scratch,
    pub out: SharedSlice<f32>,
    pub partials: SharedSlice<f32>,
}

impl Kernel for MergeKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { task, shape, sinks, scratch, out, partials } = self;
        let (group, size) = (shape.group(), shape.state_size());
        let floats = &mut scratch.floats;
        if floats.len() < size {
            floats.resize(size, 0.0);
        }
        let total = &mut floats[..size];
        let queries = task.rows * group;
        // SAFETY: the section that writes the states has ended.
        let state = |chunk: usize, query: usize| unsafe {
            &*partials.get(task.states + (chunk * queries + query) * size, size)
        };
        // SAFETY: features as `Kernel` says; no other task writes these outputs.
        unsafe {
            for query in 0..queries {
                total.copy_from_slice(state(0, query));
                for chunk in 1..task.chunks {
                    merge::<S>(total, state(chunk, query), shape.padded_width());
                }
                let offset = task.out + (query / group * shape.heads + query % group) * shape.width;
                let sink = sinks.map(|sinks| sinks[task.kv_head * group + query % group]);
                write_output::<S>(total, out.at(offset, shape.width), shape, sink);
            }
        }
    }
}
