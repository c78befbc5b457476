//! Attention over KV blocks, without a score matrix.
//!
//! The softmax is online (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>; blocked as in Dao et al.
//! 2022, <https://arxiv.org/abs/2205.14135>). Keys are stored transposed, so that positions are lanes. Positions are
//! processed in chunks of 256, in three passes: scores, weights, and sums of values. Each chunk has its own softmax,
//! and chunks are joined from left to right. Chunks start at multiples of their size, so the order of operations for a
//! query depends on its position alone, not on other rows or on the split into tasks.

mod chunk;
mod plan;
mod state;

use std::cell::RefCell;

use half::{bf16, f16};

use crate::Pool;
use crate::buffer::Shards;
use crate::simd::{Kernel, LANES, Simd, bf16_bits, run, run_bf16};
use chunk::{ChunkPass, Prefetch, Query, prefetch_keys};
use plan::{MAX_STATES, Plan, Task, rows_each};
use state::{Join, finish, join, state_size};

/// Positions in a KV block: one for each lane.
pub const BLOCK_POSITIONS: usize = LANES;
/// Maximum queries that are processed together.
const QUERY_TILE: usize = 8;
/// Positions that share a softmax, and the unit of work for long contexts.
const CHUNK: usize = 256;
/// Floats between two queries' scores: a chunk plus a cache line, so that they do not map to the same cache sets.
const SCORE_STRIDE: usize = CHUNK + LANES;

/// Parameters of a call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    /// Must divide `heads`; head h reads key-value head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Scale of scores, usually `1 / sqrt(width)`.
    pub scale: f32,
    /// Whether a row sees only itself and earlier positions.
    pub causal: bool,
    /// A row sees positions less than this far away.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// A sequence's keys and values, in blocks of [`BLOCK_POSITIONS`] positions, in order. Data after the last position is
/// ignored.
#[derive(Clone, Copy, Debug)]
pub enum KvBlocks<'a> {
    F32(KvSlices<'a, &'a [f32]>),
    F16(KvSlices<'a, &'a [f16]>),
    /// 8-bit codes with a scale for each position and head: `[kv_heads, 16]`.
    Q8(KvSlices<'a, (&'a [i8], &'a [f32])>),
    /// In pairs, for CPUs with bf16 dot products: keys `[kv_heads, width / 2, 16, 2]`, values `[kv_heads, 8, width,
    /// 2]`. Queries and weights are rounded to bf16, too. The width must be even, and data after the last position
    /// finite.
    Bf16(KvSlices<'a, &'a [bf16]>),
}

/// Blocks of keys, each `[kv_heads, width, 16]`, and of values, each `[kv_heads, 16, width]`.
#[derive(Clone, Copy, Debug)]
pub struct KvSlices<'a, T> {
    pub keys: &'a [T],
    pub values: &'a [T],
}

/// Some rows of queries, and the positions that they attend to. In a decoder, these are the rows themselves and earlier
/// positions. Without a causal mask, rows may be any part of the sequence; without a window, too, they may be unrelated
/// to the positions (cross-attention).
#[derive(Clone, Copy, Debug)]
pub struct AttentionSequence<'a> {
    /// `[rows, heads, width]`, rotated, not scaled.
    pub queries: &'a [f32],
    pub rows: usize,
    /// Position of the first row; used with a causal mask or a window.
    pub start: usize,
    /// Positions in the blocks.
    pub positions: usize,
    pub blocks: KvBlocks<'a>,
}

impl<T> KvSlices<'_, T> {
    fn has_blocks(&self, blocks: usize, whole: impl Fn(&T) -> bool) -> bool {
        [self.keys, self.values].iter().all(|all| all.get(..blocks).is_some_and(|all| all.iter().all(&whole)))
    }
}

impl KvBlocks<'_> {
    fn has_blocks(&self, positions: usize, shape: &AttentionShape) -> bool {
        let (blocks, rows) = (positions.div_ceil(BLOCK_POSITIONS), shape.kv_heads * BLOCK_POSITIONS);
        let size = rows * shape.width;
        match self {
            Self::F32(all) => all.has_blocks(blocks, |block| block.len() == size),
            Self::F16(all) => all.has_blocks(blocks, |block| block.len() == size),
            Self::Bf16(all) => shape.width.is_multiple_of(2) && all.has_blocks(blocks, |block| block.len() == size),
            Self::Q8(all) => all.has_blocks(blocks, |(codes, scales)| codes.len() == size && scales.len() == rows),
        }
    }
}

impl AttentionShape {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Floats of a state's sum of values.
    fn padded(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }

    /// The range of positions that the row at `position` sees; without mask and window, all of `total`.
    fn visible(&self, position: usize, total: usize) -> (usize, usize) {
        let window = self.window.unwrap_or(usize::MAX);
        let end = if self.causal { position + 1 } else { position.saturating_add(window).min(total) };
        ((position + 1).saturating_sub(window), end)
    }
}

/// An upper bound of the bytes that [`attend`] allocates, for `rows` rows in total of sequences with up to `depth`
/// positions.
pub fn attend_bytes(threads: usize, shape: &AttentionShape, rows: usize, depth: usize) -> usize {
    let queries = rows_each(shape.group()) * shape.group();
    let state = state_size(shape);
    // Only a few tasks are split, each with up to `queries` states for each chunk.
    let cut = (6 * threads * queries).min(rows * shape.heads) * depth.div_ceil(CHUNK) * state;
    // Queries in bf16 take half the space.
    let own = threads * (scratch_size(shape, queries) + queries * shape.width.div_ceil(2));
    let tasks = rows * shape.kv_heads * size_of::<Task>() + rows * size_of::<AttentionSequence<'_>>();
    size_of::<f32>() * (cut.min(MAX_STATES) + own) + 2 * (tasks + threads * queries * size_of::<Query>())
}

/// Attention of all rows of all sequences; `out` is `[all rows, heads, width]` in their order.
///
/// # Panics
/// If lengths do not match.
pub fn attend(pool: &Pool, sequences: &[AttentionSequence<'_>], shape: &AttentionShape, out: &mut [f32]) {
    let row = shape.heads * shape.width;
    assert!(shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads), "impossible {shape:?}");
    assert!(shape.scale > 0.0, "the greatest product is the greatest score");
    assert!(shape.window != Some(0), "a window holds the row itself at least");
    assert_eq!(out.len(), sequences.iter().map(|sequence| sequence.rows * row).sum::<usize>(), "outputs");
    for sequence in sequences {
        assert_eq!(sequence.queries.len(), sequence.rows * row, "queries are [rows, heads, width]");
        let AttentionSequence { rows, start, positions, .. } = *sequence;
        assert!(sequence.blocks.has_blocks(positions, shape), "{positions} positions of blocks");
        let placed = shape.causal || shape.window.is_some();
        assert!(rows == 0 || positions > 0 && (!placed || start + rows <= positions), "rows among the positions");
    }
    if row == 0 {
        return;
    }
    let plan = Plan::new(pool, sequences, shape);
    let mut partials = vec![0f32; plan.partials];
    let (out, partials) = (Shards::new(out), Shards::new(&mut partials));
    pool.run(plan.tasks.len(), |index| {
        let task = &plan.tasks[index];
        let sequence = &sequences[task.sequence];
        let next_task = plan.tasks.get(index + pool.threads()).map(|task| (task, &sequences[task.sequence]));
        SCRATCH.with_borrow_mut(|scratch| {
            if let KvBlocks::Bf16(_) = sequence.blocks {
                run_bf16(pool.isa(), Attend::<true> { task, next_task, sequence, shape, scratch, out, partials });
            } else {
                run(pool.isa(), Attend::<false> { task, next_task, sequence, shape, scratch, out, partials });
            }
        });
    });
    pool.run(plan.joins.len(), |index| {
        SCRATCH.with_borrow_mut(|scratch| {
            run(pool.isa(), Join { join: &plan.joins[index], shape, scratch, out, partials })
        });
    });
}

/// Per-thread scratch.
struct Scratch {
    floats: Vec<f32>,
    queries: Vec<Query>,
    /// Queries rounded to bf16, for bf16 keys.
    pairs: Vec<u16>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { floats: Vec::new(), queries: Vec::new(), pairs: Vec::new() }) };
}

/// `PAIRS`: bf16 pairs, which not every instruction set supports.
struct Attend<'a, const PAIRS: bool> {
    task: &'a Task,
    /// The task that this thread is likely to run next.
    next_task: Option<(&'a Task, &'a AttentionSequence<'a>)>,
    sequence: &'a AttentionSequence<'a>,
    shape: &'a AttentionShape,
    scratch: &'a mut Scratch,
    out: Shards<f32>,
    partials: Shards<f32>,
}

/// Floats of the per-thread scratch: scores of a chunk, and two states for each query.
fn scratch_size(shape: &AttentionShape, queries: usize) -> usize {
    QUERY_TILE * SCORE_STRIDE + queries * 2 * state_size(shape)
}

impl<const PAIRS: bool> Kernel for Attend<'_, PAIRS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { task, next_task, sequence, shape, scratch, out, partials } = self;
        let (padded, group, size) = (shape.padded(), shape.group(), state_size(shape));
        let Scratch { floats, queries, pairs } = scratch;
        queries.clear();
        queries.extend((0..task.rows).flat_map(|row| task.queries(row, sequence, shape)));
        if PAIRS {
            // SAFETY: features as `Kernel` says; each query has `width` numbers.
            unsafe { round::<S>(queries, shape.width, pairs) };
        }
        let count = queries.len();
        let needed = scratch_size(shape, count);
        if floats.len() < needed {
            floats.resize(needed, 0.0);
        }
        let (scores, rest) = floats.split_at_mut(QUERY_TILE * SCORE_STRIDE);
        let (total, rest) = rest.split_at_mut(count * size);
        let states = &mut rest[..count * size];
        let (from, to) = task.visible(sequence, shape);
        let chunks = match task.chunk {
            Some((chunk, _)) => chunk..chunk + 1,
            None => from / CHUNK..to.div_ceil(CHUNK),
        };
        // SAFETY: features as `Kernel` says; slices are cut to size above and below.
        unsafe {
            for chunk in chunks.clone() {
                let (first, end) = (from.max(chunk * CHUNK) / LANES * LANES, to.min((chunk + 1) * CHUNK));
                let next = match (chunk + 1 < chunks.end, next_task) {
                    (true, _) => prefetch_keys(task, sequence, shape, end),
                    (false, Some((task, sequence))) => {
                        prefetch_keys(task, sequence, shape, task.begin(sequence, shape))
                    }
                    (false, None) => Prefetch::default(),
                };
                let part = ChunkPass { queries, head: task.kv_head, blocks: &sequence.blocks, shape, first, end, next };
                part.run::<S, PAIRS>(scores, states);
                if let Some((_, place)) = task.chunk {
                    partials.get(place, states.len()).copy_from_slice(states);
                    return;
                }
                if chunk == chunks.start {
                    // The same as joining with an empty state.
                    total.copy_from_slice(states);
                    continue;
                }
                for (to, from) in total.chunks_exact_mut(size).zip(states.chunks_exact(size)) {
                    join::<S>(to, from, padded);
                }
            }
            for (query, state) in total.chunks_exact(size).enumerate() {
                let place = task.out + (query / group * shape.heads + query % group) * shape.width;
                finish::<S>(state, out.at(place, shape.width), shape);
            }
        }
    }
}

/// Rounds queries to bf16 and redirects their pointers.
///
/// # Safety
/// As [`Simd`] says; each query has `width` numbers.
#[inline(always)]
unsafe fn round<S: Simd>(queries: &mut [Query], width: usize, pairs: &mut Vec<u16>) {
    if pairs.len() < queries.len() * width {
        pairs.resize(queries.len() * width, 0);
    }
    for (query, pairs) in queries.iter_mut().zip(pairs.chunks_exact_mut(width)) {
        // SAFETY: as the caller says.
        unsafe {
            for at in (0..width / LANES * LANES).step_by(LANES) {
                S::store_bf16(pairs.as_mut_ptr().add(at), S::load(query.numbers.add(at)));
            }
            for at in width / LANES * LANES..width {
                pairs[at] = bf16_bits(*query.numbers.add(at));
            }
        }
        query.numbers = pairs.as_ptr().cast();
    }
}
