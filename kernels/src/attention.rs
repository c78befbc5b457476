//! Causal attention over keys and values in blocks, without a score matrix.
//!
//! Softmax is taken online (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>; blocked as
//! in Dao et al. 2022, <https://arxiv.org/abs/2205.14135>). Keys go by tiles of 32 positions, turned so
//! that positions are lanes, and by chunks of 256; each chunk has a softmax of its own, and chunks are
//! joined from the left. Tiles and chunks begin at multiples of their size, so the order of operations
//! for a query depends on its position alone: not on the rows beside it, nor on who works on what.

use std::cell::RefCell;

use half::f16;

use crate::Pool;
use crate::buffer::Shards;
use crate::simd::{Kernel, LANES, Simd, run, store_part};

/// Positions that are staged together.
const TILE: usize = 32;
/// Positions with a softmax of their own, and the unit of work at depth.
const CHUNK: usize = 256;
/// Positions between what is worked on and what is asked for: with few queries memory is the limit.
const AHEAD: usize = TILE;
/// Queries of one task, about.
const QUERIES: usize = 64;
/// Floats of states that wait to be joined, at most: 64 MiB. Beyond, sequences are not cut.
const MOST_STATES: usize = 16 << 20;
/// Stands for minus infinity where a difference of two must not be NaN.
const LOWEST: f32 = -1e30;

/// Numbers that hold for a whole call.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub heads: usize,
    /// Divides `heads`; head h reads key-value head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Numbers in a head of queries, keys and values.
    pub width: usize,
    /// Positions in a block of keys or values.
    pub block: usize,
    /// Factor of the products of queries and keys, usually `1 / sqrt(width)`.
    pub scale: f32,
    /// A row sees itself and what came before; otherwise all `start + rows` positions.
    pub causal: bool,
    /// A row sees at most so many positions, its own included.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// Blocks of keys or of values: each `[kv_heads, block, width]`, the first holding positions 0 to
/// `block`, and so on. What lies behind the last position is not read.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'a> {
    F32(&'a [&'a [f32]]),
    F16(&'a [&'a [f16]]),
    /// Bytes, and a factor for each row of them: `[kv_heads, block]`.
    Q8(&'a [(&'a [i8], &'a [f32])]),
}

/// One sequence's part: its rows follow `start` earlier positions; keys and values hold both.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// `[rows, heads, width]`, rotated, not scaled.
    pub queries: &'a [f32],
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    pub keys: Blocks<'a>,
    pub values: Blocks<'a>,
}

impl Blocks<'_> {
    fn hold(&self, positions: usize, shape: &Shape) -> bool {
        let (blocks, rows) = (positions.div_ceil(shape.block), shape.kv_heads * shape.block);
        let size = rows * shape.width;
        match self {
            Self::F32(all) => all.len() >= blocks && all[..blocks].iter().all(|block| block.len() == size),
            Self::F16(all) => all.len() >= blocks && all[..blocks].iter().all(|block| block.len() == size),
            Self::Q8(all) => {
                let fits = |(codes, scales): &(&[i8], &[f32])| codes.len() == size && scales.len() == rows;
                all.len() >= blocks && all[..blocks].iter().all(fits)
            }
        }
    }
}

impl Shape {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Floats of a staged row.
    fn padded(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }

    /// Positions that the row at `position` sees, of `total`.
    fn sight(&self, position: usize, total: usize) -> (usize, usize) {
        let end = if self.causal { position + 1 } else { total };
        (self.window.map_or(0, |window| (position + 1).saturating_sub(window)), end)
    }
}

/// An upper bound of the bytes that [`attend`] takes beside inputs and outputs, for `rows` rows in all of
/// sequences with up to `depth` positions.
pub fn attend_bytes(threads: usize, [heads, kv_heads, width]: [usize; 3], rows: usize, depth: usize) -> usize {
    let padded = width.next_multiple_of(LANES);
    let queries = rows_each(heads / kv_heads) * (heads / kv_heads);
    let state = padded + 2 * LANES;
    // What is cut are few pieces, each of up to `queries` states a chunk.
    let cut = (6 * threads * queries).min(rows * heads) * depth.div_ceil(CHUNK) * state;
    let own = threads * 2 * (TILE * padded + queries * state);
    let tasks = rows * kv_heads * size_of::<Task>() + rows * size_of::<Sequence<'_>>();
    size_of::<f32>() * (cut.min(MOST_STATES) + own) + 2 * tasks
}

/// Rows of a task where so many heads share keys and values.
fn rows_each(group: usize) -> usize {
    (QUERIES / group).max(8)
}

/// Attention of all rows of all sequences; `out` is `[all rows, heads, width]` in their order.
///
/// # Panics
/// Where lengths do not fit each other.
pub fn attend(pool: &Pool, sequences: &[Sequence<'_>], shape: &Shape, out: &mut [f32]) {
    let row = shape.heads * shape.width;
    assert!(
        shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads) && shape.block > 0,
        "impossible {shape:?}"
    );
    assert!(shape.width <= 2 * ZEROS.len(), "heads have up to {} numbers", 2 * ZEROS.len());
    assert!(shape.window != Some(0), "a window holds the row itself at least");
    assert_eq!(out.len(), sequences.iter().map(|sequence| sequence.rows * row).sum::<usize>(), "outputs");
    for sequence in sequences {
        assert_eq!(sequence.queries.len(), sequence.rows * row, "queries are [rows, heads, width]");
        let total = sequence.start + sequence.rows;
        assert!(sequence.keys.hold(total, shape) && sequence.values.hold(total, shape), "{total} positions of blocks");
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
        SCRATCH.with_borrow_mut(|scratch| run(pool.path(), Attend { task, sequence, shape, scratch, out, partials }));
    });
    pool.run(plan.joins.len(), |index| {
        SCRATCH.with_borrow_mut(|scratch| {
            run(pool.path(), Join { join: &plan.joins[index], shape, scratch, out, partials })
        });
    });
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Some rows of a sequence, for one key-value head.
#[derive(Clone, Copy, Debug)]
struct Task {
    sequence: usize,
    kv_head: usize,
    first_row: usize,
    rows: usize,
    /// Where the first row's outputs for the first head of the group are.
    out: usize,
    /// All chunks, with the result into the outputs; or one, with its states to this place.
    only: Option<(usize, usize)>,
}

/// States of several chunks that become outputs.
#[derive(Debug)]
struct Joint {
    states: usize,
    chunks: usize,
    rows: usize,
    out: usize,
}

#[derive(Debug)]
struct Plan {
    tasks: Vec<Task>,
    joins: Vec<Joint>,
    /// Floats of all states.
    partials: usize,
}

impl Plan {
    fn new(pool: &Pool, sequences: &[Sequence<'_>], shape: &Shape) -> Self {
        let mut plan = Self { tasks: Vec::new(), joins: Vec::new(), partials: 0 };
        let (group, rows_each) = (shape.group(), rows_each(shape.group()));
        let pieces = |sequence: &Sequence<'_>| sequence.rows.div_ceil(rows_each) * shape.kv_heads;
        // With many tasks a queue of them balances itself; with few, the deep ones are cut.
        let few = sequences.iter().map(pieces).sum::<usize>() < 6 * pool.threads();
        let mut before = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let total = sequence.start + sequence.rows;
            let states = sequence.rows * shape.heads * total.div_ceil(CHUNK) * state_size(shape);
            let cut = pool.threads() > 1
                && few
                && total > 2 * CHUNK
                && sequence.rows <= rows_each
                && plan.partials + states <= MOST_STATES;
            // The last rows see most: they go first.
            for first_row in (0..sequence.rows).step_by(rows_each).rev() {
                let rows = rows_each.min(sequence.rows - first_row);
                for kv_head in 0..shape.kv_heads {
                    let out = ((before + first_row) * shape.heads + kv_head * group) * shape.width;
                    let task = Task { sequence: index, kv_head, first_row, rows, out, only: None };
                    if cut { plan.cut(task, sequence, shape) } else { plan.tasks.push(task) }
                }
            }
            before += sequence.rows;
        }
        plan
    }

    fn cut(&mut self, task: Task, sequence: &Sequence<'_>, shape: &Shape) {
        let (from, to) = task.sight(sequence, shape);
        let chunks = from / CHUNK..to.div_ceil(CHUNK);
        let join = Joint { states: self.partials, chunks: chunks.len(), rows: task.rows, out: task.out };
        for chunk in chunks {
            self.tasks.push(Task { only: Some((chunk, self.partials)), ..task });
            self.partials += task.rows * shape.group() * state_size(shape);
        }
        self.joins.push(join);
    }
}

impl Task {
    /// Positions that any of the rows sees.
    fn sight(&self, sequence: &Sequence<'_>, shape: &Shape) -> (usize, usize) {
        let total = sequence.start + sequence.rows;
        let at = |row: usize| shape.sight(sequence.start + self.first_row + row, total);
        (at(0).0, at(self.rows - 1).1)
    }
}

/// A query's state: its weighted sum of values, `[padded]`, the sum of weights by lane, `[16]`, and
/// (16 times) the greatest score.
fn state_size(shape: &Shape) -> usize {
    shape.padded() + 2 * LANES
}

/// # Safety
/// As [`Simd`] says; `states` holds whole states.
#[inline(always)]
unsafe fn clear<S: Simd>(states: &mut [f32], padded: usize) {
    for state in states.chunks_exact_mut(padded + 2 * LANES) {
        state[..padded + LANES].fill(0.0);
        state[padded + LANES..].fill(LOWEST);
    }
}

/// Adds the state `from` to the state `to`, of the positions before.
///
/// # Safety
/// As [`Simd`] says; both are whole states.
#[inline(always)]
unsafe fn join<S: Simd>(to: &mut [f32], from: &[f32], padded: usize) {
    // SAFETY: `padded` is a multiple of 16, and both slices are `padded + 32` long.
    unsafe {
        let (to, from) = (to.as_mut_ptr(), from.as_ptr());
        let (most, other) = (S::load(to.add(padded + LANES)), S::load(from.add(padded + LANES)));
        let greatest = S::max(most, other);
        let (keep, add) = (S::exp(S::sub(most, greatest)), S::exp(S::sub(other, greatest)));
        for at in (0..padded + LANES).step_by(LANES) {
            let kept = S::mul(S::load(to.add(at)), keep);
            S::store(to.add(at), S::fma(S::load(from.add(at)), add, kept));
        }
        S::store(to.add(padded + LANES), greatest);
    }
}

/// Writes a state's outcome: the sum of values over the sum of weights.
///
/// # Safety
/// As [`Simd`] says; `state` is whole, and `out` has `width` places.
#[inline(always)]
unsafe fn finish<S: Simd>(state: &[f32], out: *mut f32, shape: &Shape) {
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

/// What keys and values are made of.
trait Number: Copy + Default {
    /// # Safety
    /// As [`Simd`] says; 16 numbers are there.
    unsafe fn load<S: Simd>(from: *const Self) -> S::F;
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load(from) }
    }
}

impl Number for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says; an f16 is a u16's bits.
        unsafe { S::load_f16(from.cast()) }
    }
}

impl Number for i8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load_i8(from) }
    }
}

/// Rows of a tile: where each begins, and its factor.
type Rows<T> = [(*const T, f32); TILE];

/// Stands for positions behind the end, for heads of up to 1,024 numbers.
static ZEROS: [u64; 512] = [0; 512];

/// Sixteen rows' numbers `at .. at + count`.
///
/// # Safety
/// As [`Simd`] says; the rows have those numbers.
#[inline(always)]
unsafe fn square<S: Simd, T: Number>(rows: &Rows<T>, half: usize, at: usize, count: usize) -> [S::F; LANES] {
    // SAFETY: as the caller says; a short row's numbers are copied first.
    unsafe {
        let mut square = [S::splat(0.0); LANES];
        if count < LANES {
            let mut copies = [[T::default(); LANES]; LANES];
            for lane in 0..LANES {
                std::ptr::copy_nonoverlapping(rows[half + lane].0.add(at), copies[lane].as_mut_ptr(), count);
            }
            for lane in 0..LANES {
                square[lane] = T::load::<S>(copies[lane].as_ptr());
            }
        } else {
            for lane in 0..LANES {
                square[lane] = T::load::<S>(rows[half + lane].0.add(at));
            }
        }
        if size_of::<T>() == 1 {
            for lane in 0..LANES {
                square[lane] = S::mul(square[lane], S::splat(rows[half + lane].1));
            }
        }
        square
    }
}

/// Keys to `[padded, 32]`, or values to `[32, padded]`, as floats.
///
/// # Safety
/// As [`Simd`] says; the rows are `width` long.
#[inline(always)]
unsafe fn stage<S: Simd, T: Number, const TURN: bool>(rows: &Rows<T>, width: usize, to: &mut [f32]) {
    let padded = width.next_multiple_of(LANES);
    assert!(to.len() >= TILE * padded);
    // SAFETY: all places are below 32 * padded.
    unsafe {
        let to = to.as_mut_ptr();
        for at in (0..padded).step_by(LANES) {
            for half in [0, LANES] {
                let mut square = square::<S, T>(rows, half, at, width - at);
                if TURN {
                    S::transpose(&mut square);
                }
                for lane in 0..LANES {
                    let place = if TURN { (at + lane) * TILE + half } else { (half + lane) * padded + at };
                    S::store(to.add(place), square[lane]);
                }
            }
        }
    }
}

/// A tile's keys or values of one head, staged; zeros behind the span's end.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn stage_blocks<S: Simd, const TURN: bool>(
    blocks: &Blocks<'_>,
    shape: &Shape,
    kv_head: usize,
    span: (usize, usize),
    to: &mut [f32],
) {
    macro_rules! rows {
        ($all:ident, $number:ty, |$block:ident, $row:ident| $scale:expr, $numbers:expr) => {{
            let mut rows: Rows<$number> = [(ZEROS.as_ptr().cast(), 0.0); TILE];
            // Divided once: a division a position would cost more than the products.
            let (mut index, mut offset) = (span.0 / shape.block, span.0 % shape.block);
            for slot in rows.iter_mut().take(span.1 - span.0) {
                if offset == shape.block {
                    (index, offset) = (index + 1, 0);
                }
                let ($block, $row) = (&$all[index], kv_head * shape.block + offset);
                *slot = ($numbers[$row * shape.width..][..shape.width].as_ptr(), $scale);
                offset += 1;
            }
            // SAFETY: each row has `width` numbers, and so have the zeros.
            unsafe { stage::<S, $number, TURN>(&rows, shape.width, to) }
        }};
    }
    match blocks {
        Blocks::F32(all) => rows!(all, f32, |block, row| 1.0, block),
        Blocks::F16(all) => rows!(all, f16, |block, row| 1.0, block),
        Blocks::Q8(all) => rows!(all, i8, |block, row| block.1[row], block.0),
    }
}

/// Asks for the rows of a span that will be staged next.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn fetch_blocks<S: Simd>(blocks: &Blocks<'_>, shape: &Shape, kv_head: usize, span: (usize, usize)) {
    let mut first = span.0;
    while first < span.1 {
        let (index, offset) = (first / shape.block, first % shape.block);
        let count = (shape.block - offset).min(span.1 - first);
        let (block, size) = match blocks {
            Blocks::F32(all) => (all[index].as_ptr().cast::<u8>(), 4),
            Blocks::F16(all) => (all[index].as_ptr().cast(), 2),
            Blocks::Q8(all) => (all[index].0.as_ptr().cast(), 1),
        };
        let from = block.wrapping_add((kv_head * shape.block + offset) * shape.width * size);
        for at in (0..count * shape.width * size).step_by(64) {
            // SAFETY: any address will do.
            unsafe { S::prefetch(from.wrapping_add(at)) }
        }
        first += count;
    }
}

struct Attend<'a> {
    task: &'a Task,
    sequence: &'a Sequence<'a>,
    shape: &'a Shape,
    scratch: &'a mut Vec<f32>,
    out: Shards<f32>,
    partials: Shards<f32>,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { task, sequence, shape, scratch, out, partials } = self;
        let (padded, group) = (shape.padded(), shape.group());
        let queries = task.rows * group;
        let states = queries * (padded + 2 * LANES);
        let needed = 2 * TILE * padded + 2 * states;
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        let (keys, rest) = scratch.split_at_mut(TILE * padded);
        let (values, rest) = rest.split_at_mut(TILE * padded);
        let (total, rest) = rest.split_at_mut(states);
        let chunk_states = &mut rest[..states];
        let (from, to) = task.sight(sequence, shape);
        let chunks = match task.only {
            Some((chunk, _)) => chunk..chunk + 1,
            None => from / CHUNK..to.div_ceil(CHUNK),
        };
        // SAFETY: features as `Kernel` says; slices are cut to size above and below.
        unsafe {
            clear::<S>(total, padded);
            for chunk in chunks {
                clear::<S>(chunk_states, padded);
                let (begin, end) = (from.max(chunk * CHUNK), to.min((chunk + 1) * CHUNK));
                for first in (begin / TILE * TILE..end).step_by(TILE) {
                    let span = (first, (first + TILE).min(end));
                    // In pieces: more requests at once than the CPU can note would make it wait.
                    let ahead = |piece: usize| {
                        let from = first + AHEAD + piece * TILE / 2;
                        let end = if queries <= S::QUERIES { end } else { 0 };
                        (from.min(end), (from + TILE / 2).min(end))
                    };
                    fetch_blocks::<S>(&sequence.keys, shape, task.kv_head, ahead(0));
                    stage_blocks::<S, true>(&sequence.keys, shape, task.kv_head, span, keys);
                    fetch_blocks::<S>(&sequence.keys, shape, task.kv_head, ahead(1));
                    stage_blocks::<S, false>(&sequence.values, shape, task.kv_head, span, values);
                    fetch_blocks::<S>(&sequence.values, shape, task.kv_head, ahead(0));
                    let tile = Tile { task, sequence, shape, first, keys, values };
                    let mut query = 0;
                    while query < queries {
                        let left = queries - query;
                        if left >= S::QUERIES && S::QUERIES == 4 {
                            tile.queries::<S, 4>(query, chunk_states);
                            query += 4;
                        } else if left == 3 && S::QUERIES == 4 {
                            tile.queries::<S, 3>(query, chunk_states);
                            query += 3;
                        } else if left >= 2 {
                            tile.queries::<S, 2>(query, chunk_states);
                            query += 2;
                        } else {
                            tile.queries::<S, 1>(query, chunk_states);
                            query += 1;
                        }
                    }
                    fetch_blocks::<S>(&sequence.values, shape, task.kv_head, ahead(1));
                }
                if let Some((_, place)) = task.only {
                    partials.get(place, states).copy_from_slice(chunk_states);
                    return;
                }
                let size = padded + 2 * LANES;
                for (to, from) in total.chunks_exact_mut(size).zip(chunk_states.chunks_exact(size)) {
                    join::<S>(to, from, padded);
                }
            }
            for (query, state) in total.chunks_exact(padded + 2 * LANES).enumerate() {
                let place = task.out + (query / group * shape.heads + query % group) * shape.width;
                finish::<S>(state, out.at(place, shape.width), shape);
            }
        }
    }
}

/// Staged keys and values from position `first` on.
struct Tile<'a> {
    task: &'a Task,
    sequence: &'a Sequence<'a>,
    shape: &'a Shape,
    first: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Tile<'_> {
    /// Takes queries `query .. query + R` (row by row, then by head) over this tile.
    ///
    /// # Safety
    /// As [`Simd`] says; `states` has those queries' states.
    #[inline(always)]
    unsafe fn queries<S: Simd, const R: usize>(&self, query: usize, states: &mut [f32]) {
        let Shape { heads, width, .. } = *self.shape;
        let (group, padded) = (self.shape.group(), self.shape.padded());
        let size = padded + 2 * LANES;
        let states = states[query * size..][..R * size].as_mut_ptr();
        let total = self.sequence.start + self.sequence.rows;
        // SAFETY: keys are [padded, 32], values [32, padded], states [R, size], queries checked by `attend`.
        unsafe {
            let mut q = [self.sequence.queries.as_ptr(); R];
            let mut sight = [(0, 0); R];
            for index in 0..R {
                let row = self.task.first_row + (query + index) / group;
                let head = self.task.kv_head * group + (query + index) % group;
                q[index] = q[index].add((row * heads + head) * width);
                sight[index] = self.shape.sight(self.sequence.start + row, total);
            }
            let mut scores = [[S::splat(0.0); 2]; R];
            for at in 0..width {
                let keys = self.keys.as_ptr().add(at * TILE);
                let (low, high) = (S::load(keys), S::load(keys.add(LANES)));
                for index in 0..R {
                    let x = S::splat(*q[index].add(at));
                    scores[index][0] = S::fma(x, low, scores[index][0]);
                    scores[index][1] = S::fma(x, high, scores[index][1]);
                }
            }
            let mut weights = [[0f32; TILE]; R];
            let mut keep = [S::splat(1.0); R];
            for index in 0..R {
                let state = states.add(index * size + padded);
                let [low, high] = self.mask::<S>(self.capped::<S>(scores[index]), sight[index]);
                let most = S::load(state.add(LANES));
                let greatest = S::max(most, S::splat(S::maximum(S::max(low, high))));
                keep[index] = S::exp(S::sub(most, greatest));
                let (low, high) = (S::exp(S::sub(low, greatest)), S::exp(S::sub(high, greatest)));
                S::store(weights[index].as_mut_ptr(), low);
                S::store(weights[index].as_mut_ptr().add(LANES), high);
                S::store(state, S::fma(S::load(state), keep[index], S::add(low, high)));
                S::store(state.add(LANES), greatest);
            }
            let mut at = 0;
            while at < padded {
                if padded - at >= 4 * LANES {
                    self.mix::<S, R, 4>(at, &weights, &keep, states);
                    at += 4 * LANES;
                } else {
                    self.mix::<S, R, 1>(at, &weights, &keep, states);
                    at += LANES;
                }
            }
        }
    }

    /// Adds the weighted values' columns `at .. at + 16 C` to the states.
    ///
    /// # Safety
    /// As for [`Self::queries`].
    #[inline(always)]
    unsafe fn mix<S: Simd, const R: usize, const C: usize>(
        &self,
        at: usize,
        weights: &[[f32; TILE]; R],
        keep: &[S::F; R],
        states: *mut f32,
    ) {
        let padded = self.shape.padded();
        let size = padded + 2 * LANES;
        // SAFETY: columns below `padded` of states and values.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            for index in 0..R {
                for column in 0..C {
                    let place = states.add(index * size + at + column * LANES);
                    sums[index][column] = S::mul(S::load(place), keep[index]);
                }
            }
            for position in 0..TILE {
                let values = self.values.as_ptr().add(position * padded + at);
                let mut row = [S::splat(0.0); C];
                for column in 0..C {
                    row[column] = S::load(values.add(column * LANES));
                }
                for index in 0..R {
                    let weight = S::splat(weights[index][position]);
                    for column in 0..C {
                        sums[index][column] = S::fma(weight, row[column], sums[index][column]);
                    }
                }
            }
            for index in 0..R {
                for column in 0..C {
                    S::store(states.add(index * size + at + column * LANES), sums[index][column]);
                }
            }
        }
    }

    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn capped<S: Simd>(&self, scores: [S::F; 2]) -> [S::F; 2] {
        // SAFETY: as the caller says.
        unsafe {
            let scale = S::splat(self.shape.scale);
            let [low, high] = [S::mul(scores[0], scale), S::mul(scores[1], scale)];
            match self.shape.soft_cap {
                None => [low, high],
                Some(cap) => [soft_cap::<S>(low, cap), soft_cap::<S>(high, cap)],
            }
        }
    }

    /// Minus infinity for positions that are not seen.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn mask<S: Simd>(&self, scores: [S::F; 2], (from, to): (usize, usize)) -> [S::F; 2] {
        if from <= self.first && self.first + TILE <= to {
            return scores;
        }
        let mut mask = [0f32; TILE];
        for (lane, mask) in mask.iter_mut().enumerate() {
            if self.first + lane < from || self.first + lane >= to {
                *mask = f32::NEG_INFINITY;
            }
        }
        // SAFETY: the mask has 32 floats.
        unsafe { [S::add(scores[0], S::load(mask.as_ptr())), S::add(scores[1], S::load(mask.as_ptr().add(LANES)))] }
    }
}

/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn soft_cap<S: Simd>(x: S::F, cap: f32) -> S::F {
    // SAFETY: as the caller says.
    unsafe { S::mul(S::tanh(S::mul(x, S::splat(1.0 / cap))), S::splat(cap)) }
}

struct Join<'a> {
    join: &'a Joint,
    shape: &'a Shape,
    scratch: &'a mut Vec<f32>,
    out: Shards<f32>,
    partials: Shards<f32>,
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { join: joint, shape, scratch, out, partials } = self;
        let (padded, group, size) = (shape.padded(), shape.group(), state_size(shape));
        if scratch.len() < size {
            scratch.resize(size, 0.0);
        }
        let total = &mut scratch[..size];
        let queries = joint.rows * group;
        // SAFETY: features as `Kernel` says; the first section has ended, and a query's states and
        // outputs are this task's own.
        unsafe {
            for query in 0..queries {
                clear::<S>(total, padded);
                for chunk in 0..joint.chunks {
                    let state = partials.get(joint.states + (chunk * queries + query) * size, size);
                    join::<S>(total, state, padded);
                }
                let place = joint.out + (query / group * shape.heads + query % group) * shape.width;
                finish::<S>(total, out.at(place, shape.width), shape);
            }
        }
    }
}
