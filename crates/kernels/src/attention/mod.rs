//! Attention over KV blocks, without a score matrix.
//!
//! The softmax is online (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>; blocked as in Dao et al.
//! 2022, <https://arxiv.org/abs/2205.14135>). Keys are stored transposed, so that positions are lanes. Positions are
//! processed in chunks of 256, in three passes: scores, weights, and sums of values. Each chunk has its own softmax, and
//! the states of chunks are merged from left to right. Chunks start at multiples of their size. The order of operations
//! for a query therefore depends on its position alone, not on other rows or on the split into tasks.

mod chunk;
mod inputs;
mod plan;
mod scratch;
mod state;

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, bf16_bits, run, run_bf16};
use chunk::{ChunkPass, Prefetch, prefetch_keys};
pub use inputs::{AttentionSequence, AttentionShape, BLOCK_POSITIONS, KvBlocks, KvSlices};
use inputs::{CHUNK, MAX_QUERY_TILE, SCORE_STRIDE};
use plan::{MAX_PARTIAL_FLOATS, Plan, Task, rows_per_task};
use scratch::{Query, SCRATCH, Scratch, scratch_size};
use state::{MergeKernel, merge, write_output};

/// An upper bound of the bytes that [`attend`] allocates for `rows` rows in total, in sequences of up to `max_positions`
/// positions.
pub fn attend_bytes(threads: usize, shape: &AttentionShape, rows: usize, max_positions: usize) -> usize {
    let queries = rows_per_task(shape.group()) * shape.group();
    let state = shape.state_size();
    // Only a few tasks are split, each with up to `queries` states for each chunk.
    let partials = (6 * threads * queries).min(rows * shape.heads) * max_positions.div_ceil(CHUNK) * state;
    // Queries in bf16 take half the space.
    let scratch = threads * (scratch_size(shape, queries) + queries * shape.width.div_ceil(2));
    let tasks = rows * shape.kv_heads * size_of::<Task>() + rows * size_of::<AttentionSequence<'_>>();
    size_of::<f32>() * (partials.min(MAX_PARTIAL_FLOATS) + scratch)
        + 2 * (tasks + threads * queries * size_of::<Query>())
}

/// Computes attention for all rows of all sequences; `out` is `[total rows, heads, width]` in their order. `sinks`, `[heads]`: a
/// score of each head that joins the sum of the softmax, and has no value (Xiao et al. 2023, <https://arxiv.org/abs/2309.17453>;
/// learned as in gpt-oss: OpenAI 2025, <https://arxiv.org/abs/2508.10925>).
///
/// # Panics
/// If lengths do not match.
pub fn attend(
    pool: &Pool,
    sequences: &[AttentionSequence<'_>],
    shape: &AttentionShape,
    sinks: Option<&[f32]>,
    out: &mut [f32],
) {
    let row = shape.heads * shape.width;
    assert!(
        shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads),
        "kv_heads must divide heads in {shape:?}"
    );
    assert!(shape.scale > 0.0, "the scale must be positive");
    assert!(shape.window != Some(0), "a window must contain the row itself");
    assert!(sinks.is_none_or(|sinks| sinks.len() == shape.heads), "each head has a sink");
    assert_eq!(
        out.len(),
        sequences.iter().map(|sequence| sequence.rows * row).sum::<usize>(),
        "outputs are [total rows, heads, width]"
    );
    for sequence in sequences {
        assert_eq!(sequence.queries.len(), sequence.rows * row, "queries are [rows, heads, width]");
        let AttentionSequence { rows, start, positions, .. } = *sequence;
        assert!(sequence.blocks.has_blocks(positions, shape), "the blocks hold fewer than {positions} positions");
        let has_row_positions = shape.causal || shape.window.is_some();
        assert!(
            rows == 0 || positions > 0 && (!has_row_positions || start + rows <= positions),
            "rows exceed the positions"
        );
    }
    if row == 0 {
        return;
    }
    let plan = Plan::new(pool, sequences, shape);
    let mut partials = vec![0f32; plan.partial_floats];
    let (out, partials) = (SharedSlice::new(out), SharedSlice::new(&mut partials));
    pool.run(plan.tasks.len(), |index| {
        let task = &plan.tasks[index];
        let sequence = &sequences[task.sequence];
        let next_task = plan.tasks.get(index + pool.threads()).map(|task| (task, &sequences[task.sequence]));
        SCRATCH.with_borrow_mut(|scratch| {
            if let KvBlocks::Bf16(_) = sequence.blocks {
                run_bf16(
                    pool.isa(),
                    AttendKernel::<true> { task, next_task, sequence, shape, sinks, scratch, out, partials },
                );
            } else {
                run(
                    pool.isa(),
                    AttendKernel::<false> { task, next_task, sequence, shape, sinks, scratch, out, partials },
                );
            }
        });
    });
    pool.run(plan.merges.len(), |index| {
        SCRATCH.with_borrow_mut(|scratch| {
            run(pool.isa(), MergeKernel { task: &plan.merges[index], shape, sinks, scratch, out, partials })
        });
    });
}

/// Runs a task. `PAIRS`: keys and values are bf16 pairs.
struct AttendKernel<'a, const PAIRS: bool> {
    task: &'a Task,
    /// The task that this thread is likely to run next.
    next_task: Option<(&'a Task, &'a AttentionSequence<'a>)>,
    sequence: &'a AttentionSequence<'a>,
    shape: &'a AttentionShape,
    sinks: Option<&'a [f32]>,
    scratch: &'a mut Scratch,
    out: SharedSlice<f32>,
    partials: SharedSlice<f32>,
}

impl<const PAIRS: bool> Kernel for AttendKernel<'_, PAIRS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { task, next_task, sequence, shape, sinks, scratch, out, partials } = self;
        let (group, size) = (shape.group(), shape.state_size());
        let Scratch { floats, queries, pairs } = scratch;
        queries.clear();
        queries.extend((0..task.rows).flat_map(|row| task.queries(row, sequence, shape)));
        if PAIRS {
            // SAFETY: features as `Kernel` says; each query has `width` elements.
            unsafe { round_queries::<S>(queries, shape.width, pairs) };
        }
        let count = queries.len();
        let needed = scratch_size(shape, count);
        if floats.len() < needed {
            floats.resize(needed, 0.0);
        }
        let (scores, rest) = floats.split_at_mut(MAX_QUERY_TILE * SCORE_STRIDE);
        let (total, rest) = rest.split_at_mut(count * size);
        let states = &mut rest[..count * size];
        let (visible_start, visible_end) = task.visible(sequence, shape);
        let chunks = match task.chunk {
            Some((chunk, _)) => chunk..chunk + 1,
            None => visible_start / CHUNK..visible_end.div_ceil(CHUNK),
        };
        // SAFETY: features as `Kernel` says; slices are cut to size above and below.
        unsafe {
            for chunk in chunks.clone() {
                let first = visible_start.max(chunk * CHUNK) / LANES * LANES;
                let end = visible_end.min((chunk + 1) * CHUNK);
                let prefetch = match (chunk + 1 < chunks.end, next_task) {
                    (true, _) => prefetch_keys(task, sequence, shape, end),
                    (false, Some((task, sequence))) => {
                        prefetch_keys(task, sequence, shape, task.first_position(sequence, shape))
                    }
                    (false, None) => Prefetch::default(),
                };
                let (head, blocks) = (task.kv_head, &sequence.blocks);
                let pass = ChunkPass { queries, head, blocks, shape, first, end, prefetch };
                pass.run::<S, PAIRS>(scores, states);
                if let Some((_, offset)) = task.chunk {
                    partials.get(offset, states.len()).copy_from_slice(states);
                    return;
                }
                if chunk == chunks.start {
                    // The result is the same as that of merging with an empty state.
                    total.copy_from_slice(states);
                    continue;
                }
                for (total, state) in total.chunks_exact_mut(size).zip(states.chunks_exact(size)) {
                    merge::<S>(total, state, shape.padded_width());
                }
            }
            for (query, state) in total.chunks_exact(size).enumerate() {
                let offset = task.out + (query / group * shape.heads + query % group) * shape.width;
                let sink = sinks.map(|sinks| sinks[task.kv_head * group + query % group]);
                write_output::<S>(state, out.at(offset, shape.width), shape, sink);
            }
        }
    }
}

/// Rounds queries to bf16 in `pairs` and points them to the result.
///
/// # Safety
/// As [`Simd`] says; each query has `width` elements.
#[inline(always)]
unsafe fn round_queries<S: Simd>(queries: &mut [Query], width: usize, pairs: &mut Vec<u16>) {
    if pairs.len() < queries.len() * width {
        pairs.resize(queries.len() * width, 0);
    }
    for (query, pairs) in queries.iter_mut().zip(pairs.chunks_exact_mut(width)) {
        // SAFETY: as the caller says.
        unsafe {
            for index in (0..width / LANES * LANES).step_by(LANES) {
                S::store_bf16(pairs.as_mut_ptr().add(index), S::load(query.data.add(index)));
            }
            for index in width / LANES * LANES..width {
                pairs[index] = bf16_bits(*query.data.add(index));
            }
        }
        query.data = pairs.as_ptr().cast();
    }
}
