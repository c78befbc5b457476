//! Causal attention over keys and values in blocks, without a score matrix.
//!
//! Softmax is taken online (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>; blocked as
//! in Dao et al. 2022, <https://arxiv.org/abs/2205.14135>). Keys lie turned, so that positions are
//! lanes; they go by tiles of 32 positions and by chunks of 256; each chunk has a softmax of its own,
//! and chunks are joined from the left. Tiles and chunks begin at multiples of their size, so the order
//! of operations for a query depends on its position alone: not on the rows beside it, nor on who works
//! on what, nor on whether a tile was copied to floats first.

use std::cell::RefCell;

use half::f16;

use crate::Pool;
use crate::buffer::Shards;
use crate::simd::{Kernel, LANES, Simd, run, store_part};

/// Positions in a block of keys or values: one a lane.
pub const POSITIONS: usize = LANES;
/// Positions that are worked on together.
const TILE: usize = 2 * POSITIONS;
/// Positions with a softmax of their own, and the unit of work at depth.
const CHUNK: usize = 256;
/// Queries of one task, about.
const QUERIES: usize = 64;
/// So few queries read keys and values where they lie.
const DIRECT: usize = 8;
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
    /// Factor of the products of queries and keys, usually `1 / sqrt(width)`.
    pub scale: f32,
    /// A row sees itself and what came before; otherwise all `start + rows` positions.
    pub causal: bool,
    /// A row sees at most so many positions, its own included.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// A sequence's keys and values, in blocks of [`POSITIONS`] positions: the first blocks hold positions
/// 0 to 16, and so on. What lies behind the last position may be anything.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'a> {
    F32(Pair<'a, &'a [f32]>),
    F16(Pair<'a, &'a [f16]>),
    /// Bytes, and a factor for each position of a head: `[kv_heads, 16]`.
    Q8(Pair<'a, (&'a [i8], &'a [f32])>),
}

/// Blocks of keys, each `[kv_heads, width, 16]`, and of values, each `[kv_heads, 16, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a, T> {
    pub keys: &'a [T],
    pub values: &'a [T],
}

/// One sequence's part: its rows follow `start` earlier positions; the blocks hold both.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// `[rows, heads, width]`, rotated, not scaled.
    pub queries: &'a [f32],
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    pub blocks: Blocks<'a>,
}

impl<T> Pair<'_, T> {
    fn hold(&self, blocks: usize, whole: impl Fn(&T) -> bool) -> bool {
        [self.keys, self.values].iter().all(|all| all.get(..blocks).is_some_and(|all| all.iter().all(&whole)))
    }
}

impl Blocks<'_> {
    fn hold(&self, positions: usize, shape: &Shape) -> bool {
        let (blocks, rows) = (positions.div_ceil(POSITIONS), shape.kv_heads * POSITIONS);
        let size = rows * shape.width;
        match self {
            Self::F32(all) => all.hold(blocks, |block| block.len() == size),
            Self::F16(all) => all.hold(blocks, |block| block.len() == size),
            Self::Q8(all) => all.hold(blocks, |(codes, scales)| codes.len() == size && scales.len() == rows),
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
pub fn attend_bytes(threads: usize, shape: &Shape, rows: usize, depth: usize) -> usize {
    let queries = rows_each(shape.group()) * shape.group();
    let state = state_size(shape);
    // What is cut are few pieces, each of up to `queries` states a chunk.
    let cut = (6 * threads * queries).min(rows * shape.heads) * depth.div_ceil(CHUNK) * state;
    let own = threads * 2 * (TILE * shape.padded() + queries * state);
    let tasks = rows * shape.kv_heads * size_of::<Task>() + rows * size_of::<Sequence<'_>>();
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
    assert!(shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads), "impossible {shape:?}");
    assert!(shape.window != Some(0), "a window holds the row itself at least");
    assert_eq!(out.len(), sequences.iter().map(|sequence| sequence.rows * row).sum::<usize>(), "outputs");
    for sequence in sequences {
        assert_eq!(sequence.queries.len(), sequence.rows * row, "queries are [rows, heads, width]");
        let total = sequence.start + sequence.rows;
        assert!(sequence.blocks.hold(total, shape), "{total} positions of blocks");
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
    /// Positions have factors.
    const SCALED: bool = false;

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
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load_i8(from) }
    }
}

/// A tile's keys and values of one head, as floats.
trait Source<S: Simd>: Copy {
    /// Number `at` of the keys of all 32 positions.
    ///
    /// # Safety
    /// As [`Simd`] says; `at` is below the head's width.
    unsafe fn keys(&self, at: usize) -> [S::F; 2];

    /// Numbers `at .. at + 16` of the value at a position.
    ///
    /// # Safety
    /// As [`Simd`] says; the tile holds the position, and `at` is below the padded width.
    unsafe fn values(&self, position: usize, at: usize) -> S::F;

    /// Asks for the same place of the keys in the tile that comes next.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn fetch_keys(&self, _at: usize) {}

    /// Asks for the same place of the values in the tile that comes next.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn fetch_values(&self, _position: usize, _at: usize) {}
}

/// One head in a block.
#[derive(Clone, Copy)]
struct Half<T> {
    /// `[width, 16]`
    keys: *const T,
    /// `[16, width]`
    values: *const T,
    /// Factors of the positions; null where there are none.
    key_scales: *const f32,
    value_scales: *const f32,
}

impl<T: Number> Half<T> {
    /// What [`Attend`] has checked to be there.
    #[inline(always)]
    fn new(
        (keys, values): (&[T], &[T]),
        (key_scales, value_scales): (&[f32], &[f32]),
        shape: &Shape,
        head: usize,
    ) -> Self {
        let numbers = head * shape.width * POSITIONS..(head + 1) * shape.width * POSITIONS;
        let scales = |scales: &[f32]| scales.get(head * POSITIONS..).map_or(std::ptr::null(), <[f32]>::as_ptr);
        Self {
            keys: keys[numbers.clone()].as_ptr(),
            values: values[numbers].as_ptr(),
            key_scales: scales(key_scales),
            value_scales: scales(value_scales),
        }
    }

    /// # Safety
    /// As [`Simd`] says; the row has `count` numbers from `at` on, 16 at most.
    #[inline(always)]
    unsafe fn value<S: Simd>(&self, width: usize, row: usize, at: usize, count: usize) -> S::F {
        // SAFETY: a short row's numbers are copied first.
        unsafe {
            let from = self.values.add(row * width + at);
            let numbers = if count == LANES {
                T::load::<S>(from)
            } else {
                let mut copy = [T::default(); LANES];
                std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), count);
                T::load::<S>(copy.as_ptr())
            };
            if T::SCALED { S::mul(numbers, S::splat(*self.value_scales.add(row))) } else { numbers }
        }
    }
}

/// Straight from the blocks: for few queries, where a copy would cost more than it saves. Heads have
/// whole sixteens of numbers. What comes next is asked for little by little: memory is the limit, and
/// many requests at once would make the CPU wait.
#[derive(Clone, Copy)]
struct Direct<T> {
    width: usize,
    halves: [Half<T>; 2],
    /// The tile that comes next, or the same.
    next: [Half<T>; 2],
}

impl<S: Simd, T: Number> Source<S> for Direct<T> {
    #[inline(always)]
    unsafe fn keys(&self, at: usize) -> [S::F; 2] {
        let [low, high] = &self.halves;
        // SAFETY: a head's keys in a block are `width` times 16 numbers, its factors 16.
        unsafe {
            let (first, second) = (T::load::<S>(low.keys.add(at * LANES)), T::load::<S>(high.keys.add(at * LANES)));
            match T::SCALED {
                true => [S::mul(first, S::load(low.key_scales)), S::mul(second, S::load(high.key_scales))],
                false => [first, second],
            }
        }
    }

    #[inline(always)]
    unsafe fn values(&self, position: usize, at: usize) -> S::F {
        // SAFETY: as the trait says.
        unsafe { self.halves[position / LANES].value::<S>(self.width, position % LANES, at, LANES) }
    }

    #[inline(always)]
    unsafe fn fetch_keys(&self, at: usize) {
        // SAFETY: any address will do.
        unsafe {
            S::prefetch(self.next[0].keys.wrapping_add(at * LANES).cast());
            S::prefetch(self.next[1].keys.wrapping_add(at * LANES).cast());
        }
    }

    #[inline(always)]
    unsafe fn fetch_values(&self, position: usize, at: usize) {
        let row = self.next[position / LANES].values.wrapping_add(position % LANES * self.width);
        // SAFETY: any address will do.
        unsafe { S::prefetch(row.wrapping_add(at).cast()) }
    }
}

/// Copied to floats: keys `[width, 32]`, values `[32, padded]`.
#[derive(Clone, Copy)]
struct Staged {
    padded: usize,
    keys: *const f32,
    values: *const f32,
}

impl<S: Simd> Source<S> for Staged {
    #[inline(always)]
    unsafe fn keys(&self, at: usize) -> [S::F; 2] {
        // SAFETY: as the type says.
        unsafe { [S::load(self.keys.add(at * TILE)), S::load(self.keys.add(at * TILE + LANES))] }
    }

    #[inline(always)]
    unsafe fn values(&self, position: usize, at: usize) -> S::F {
        // SAFETY: as the type says.
        unsafe { S::load(self.values.add(position * self.padded + at)) }
    }
}

impl<T: Number> Direct<T> {
    /// Copies keys and the first `positions` values to `room`.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn stage<S: Simd>(&self, positions: usize, room: &mut [f32]) -> Staged {
        let (width, padded) = (self.width, self.width.next_multiple_of(LANES));
        assert!(room.len() >= 2 * TILE * padded && positions <= TILE);
        // SAFETY: all places are below 32 * padded, of keys and then of values.
        unsafe {
            let keys = room.as_mut_ptr();
            let values = keys.add(TILE * padded);
            for at in 0..width {
                let [low, high] = Source::<S>::keys(self, at);
                S::store(keys.add(at * TILE), low);
                S::store(keys.add(at * TILE + LANES), high);
            }
            for position in 0..positions {
                let half = &self.halves[position / LANES];
                for at in (0..width).step_by(LANES) {
                    let value = half.value::<S>(width, position % LANES, at, (width - at).min(LANES));
                    S::store(values.add(position * padded + at), value);
                }
            }
            Staged { padded, keys, values }
        }
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
        let (room, rest) = scratch.split_at_mut(2 * TILE * padded);
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
                    let tile = Tile { task, sequence, shape, first, end: end.min(first + TILE) };
                    tile.run::<S>(end, room, chunk_states);
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

/// The positions from `first` to `end`, 32 at most.
struct Tile<'a> {
    task: &'a Task,
    sequence: &'a Sequence<'a>,
    shape: &'a Shape,
    first: usize,
    end: usize,
}

impl Tile<'_> {
    /// Takes all of the task's queries over this tile; `last` is the end of the task's positions.
    ///
    /// # Safety
    /// As [`Simd`] says; the blocks hold the positions, `room` a staged tile, `states` all queries'.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, last: usize, room: &mut [f32], states: &mut [f32]) {
        let (shape, head, blocks) = (self.shape, self.task.kv_head, &self.sequence.blocks);
        let few = self.task.rows * shape.group() <= DIRECT && shape.width.is_multiple_of(LANES);
        // Where a second block is missing, nobody looks at what stands for it.
        let pair = |first: usize| [first, if last > first + POSITIONS { first + POSITIONS } else { first }];
        let next = if self.first + TILE < last { self.first + TILE } else { self.first };
        let [now, next] = [pair(self.first), pair(next)].map(|both| both.map(|position| position / POSITIONS));
        macro_rules! over {
            ($number:ty, |$index:ident| $half:expr) => {{
                let half = |$index: usize| $half;
                let direct = Direct { width: shape.width, halves: now.map(half), next: next.map(half) };
                // SAFETY: as the caller says.
                unsafe {
                    match few {
                        true => self.all::<S, Direct<$number>>(direct, states),
                        false => self.all::<S, _>(direct.stage::<S>(self.end - self.first, room), states),
                    }
                }
            }};
        }
        let none = (&[][..], &[][..]);
        match blocks {
            Blocks::F32(all) => over!(f32, |at| Half::new((all.keys[at], all.values[at]), none, shape, head)),
            Blocks::F16(all) => over!(f16, |at| Half::new((all.keys[at], all.values[at]), none, shape, head)),
            Blocks::Q8(all) => over!(i8, |at| {
                let ((keys, key_scales), (values, value_scales)) = (all.keys[at], all.values[at]);
                Half::new((keys, values), (key_scales, value_scales), shape, head)
            }),
        }
    }

    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn all<S: Simd, K: Source<S>>(&self, source: K, states: &mut [f32]) {
        let (queries, mut query) = (self.task.rows * self.shape.group(), 0);
        while query < queries {
            let left = queries - query;
            // SAFETY: as the caller says.
            unsafe {
                if left >= S::QUERIES && S::QUERIES == 4 {
                    self.queries::<S, K, 4>(source, query, states);
                    query += 4;
                } else if left == 3 && S::QUERIES == 4 {
                    self.queries::<S, K, 3>(source, query, states);
                    query += 3;
                } else if left >= 2 {
                    self.queries::<S, K, 2>(source, query, states);
                    query += 2;
                } else {
                    self.queries::<S, K, 1>(source, query, states);
                    query += 1;
                }
            }
        }
    }

    /// Takes queries `query .. query + R` (row by row, then by head) over this tile.
    ///
    /// # Safety
    /// As for [`Self::run`]; `states` has those queries' states.
    #[inline(always)]
    unsafe fn queries<S: Simd, K: Source<S>, const R: usize>(&self, source: K, query: usize, states: &mut [f32]) {
        let Shape { heads, width, .. } = *self.shape;
        let (group, padded) = (self.shape.group(), self.shape.padded());
        let size = padded + 2 * LANES;
        let states = states[query * size..][..R * size].as_mut_ptr();
        let total = self.sequence.start + self.sequence.rows;
        // SAFETY: states are [R, size], queries checked by `attend`, and the rest as the caller says.
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
                let [low, high] = source.keys(at);
                source.fetch_keys(at);
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
                    self.mix::<S, K, R, 4>(source, at, &weights, &keep, states);
                    at += 4 * LANES;
                } else {
                    self.mix::<S, K, R, 1>(source, at, &weights, &keep, states);
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
    unsafe fn mix<S: Simd, K: Source<S>, const R: usize, const C: usize>(
        &self,
        source: K,
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
            for position in 0..self.end - self.first {
                let mut row = [S::splat(0.0); C];
                for column in 0..C {
                    row[column] = source.values(position, at + column * LANES);
                    source.fetch_values(position, at + column * LANES);
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

    /// Minus infinity for positions that are not seen, whatever stands there.
    ///
    /// # Safety
    /// As [`Simd`] says.
    #[inline(always)]
    unsafe fn mask<S: Simd>(&self, scores: [S::F; 2], (from, to): (usize, usize)) -> [S::F; 2] {
        if from <= self.first && self.first + TILE <= to {
            return scores;
        }
        let mut seen = [0f32; TILE];
        let mut mask = [f32::NEG_INFINITY; TILE];
        for lane in from.max(self.first)..to.min(self.first + TILE) {
            (seen[lane - self.first], mask[lane - self.first]) = (1.0, 0.0);
        }
        let [low, high] = scores;
        // SAFETY: both have 32 floats.
        unsafe {
            let (seen, mask) = (seen.as_ptr(), mask.as_ptr());
            let low = S::keep_above(low, S::load(seen), 0.0);
            let high = S::keep_above(high, S::load(seen.add(LANES)), 0.0);
            [S::add(low, S::load(mask)), S::add(high, S::load(mask.add(LANES)))]
        }
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
