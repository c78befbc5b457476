//! Attention over keys and values in blocks, without a score matrix.
//!
//! Softmax is taken online (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>; blocked as
//! in Dao et al. 2022, <https://arxiv.org/abs/2205.14135>). Keys lie turned, so that positions are
//! lanes. Positions go by chunks of 256, in three passes: products with keys, weights, and sums of
//! values; each chunk has a softmax of its own, and chunks are joined from the left. Chunks begin at
//! multiples of their size, so the order of operations for a query depends on its position alone: not
//! on the rows beside it, nor on who works on what.

use std::cell::RefCell;
use std::f32::consts::LOG2_E;

use half::f16;

use crate::Pool;
use crate::buffer::{LINE, Shards};
use crate::simd::{Kernel, LANES, Simd, run, store_part};

/// Positions in a block of keys or values: one a lane.
pub const POSITIONS: usize = LANES;
/// Queries that are worked on together, at most.
const TOGETHER: usize = 8;
/// Blocks that are asked for ahead.
const AHEAD: usize = 4;
/// Positions with a softmax of their own, and the unit of work at depth.
const CHUNK: usize = 256;
/// Floats from one query's scores to the next one's: those of a chunk, and a line, so that they do not all fall into
/// the same places of a cache.
const APART: usize = CHUNK + LANES;
/// Blocks of a chunk.
const BLOCKS: usize = CHUNK / POSITIONS;
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
    /// Factor of the products of queries and keys, usually `1 / sqrt(width)`.
    pub scale: f32,
    /// A row sees itself and what came before; otherwise all `start + rows` positions.
    pub causal: bool,
    /// A row sees positions that are less than so many away from its own.
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

    /// Floats of a state's sum of values.
    fn padded(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }

    /// Positions that the row at `position` sees, of `total`.
    fn sight(&self, position: usize, total: usize) -> (usize, usize) {
        let window = self.window.unwrap_or(usize::MAX);
        let end = if self.causal { position + 1 } else { position.saturating_add(window).min(total) };
        ((position + 1).saturating_sub(window), end)
    }
}

/// An upper bound of the bytes that [`attend`] takes beside inputs and outputs, for `rows` rows in all of
/// sequences with up to `depth` positions.
pub fn attend_bytes(threads: usize, shape: &Shape, rows: usize, depth: usize) -> usize {
    let queries = rows_each(shape.group()) * shape.group();
    let state = state_size(shape);
    // What is cut are few pieces, each of up to `queries` states a chunk.
    let cut = (6 * threads * queries).min(rows * shape.heads) * depth.div_ceil(CHUNK) * state;
    let own = threads * own_size(shape, queries);
    let tasks = rows * shape.kv_heads * size_of::<Task>() + rows * size_of::<Sequence<'_>>();
    size_of::<f32>() * (cut.min(MOST_STATES) + own) + 2 * (tasks + threads * queries * size_of::<Query>())
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
    assert!(shape.scale > 0.0, "the greatest product is the greatest score");
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
        let then = plan.tasks.get(index + pool.threads()).map(|task| (task, &sequences[task.sequence]));
        SCRATCH.with_borrow_mut(|scratch| {
            run(pool.path(), Attend { task, then, sequence, shape, scratch, out, partials });
        });
    });
    pool.run(plan.joins.len(), |index| {
        SCRATCH.with_borrow_mut(|scratch| {
            run(pool.path(), Join { join: &plan.joins[index], shape, scratch, out, partials })
        });
    });
}

/// A thread's own memory.
struct Scratch {
    floats: Vec<f32>,
    queries: Vec<Query>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { floats: Vec::new(), queries: Vec::new() }) };
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
        let all = sequences.iter().map(pieces).sum();
        plan.tasks.reserve(all);
        let few = all < 6 * pool.threads();
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

    /// The heads of a row.
    fn queries(&self, row: usize, sequence: &Sequence<'_>, shape: &Shape) -> impl Iterator<Item = Query> {
        let (row, group, width) = (self.first_row + row, shape.group(), shape.width);
        let sight = shape.sight(sequence.start + row, sequence.start + sequence.rows);
        let heads = &sequence.queries[(row * shape.heads + self.kv_head * group) * width..][..group * width];
        let head = heads.as_ptr();
        (0..group).map(move |index| Query { numbers: head.wrapping_add(index * width), sight })
    }

    /// The first position that is looked at.
    fn begin(&self, sequence: &Sequence<'_>, shape: &Shape) -> usize {
        self.only.map_or(0, |(chunk, _)| chunk * CHUNK).max(self.sight(sequence, shape).0)
    }
}

/// A query's state: its weighted sum of values, `[padded]`, the sum of weights by lane, `[16]`, and
/// (16 times) the greatest score in powers of two.
fn state_size(shape: &Shape) -> usize {
    shape.padded() + 2 * LANES
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
        let (keep, add) = (S::exp2(S::sub(most, greatest)), S::exp2(S::sub(other, greatest)));
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
    /// There is a factor for each position.
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

impl<T> Half<T> {
    const NONE: Self = Self {
        keys: std::ptr::null(),
        values: std::ptr::null(),
        key_scales: std::ptr::null(),
        value_scales: std::ptr::null(),
    };

    /// What [`attend`] has checked to be there.
    #[inline(always)]
    fn new(
        (keys, values): (&[T], &[T]),
        (key_scales, value_scales): (&[f32], &[f32]),
        shape: &Shape,
        head: usize,
    ) -> Self {
        let numbers = head * shape.width * POSITIONS..(head + 1) * shape.width * POSITIONS;
        let rows = head * POSITIONS..(head + 1) * POSITIONS;
        let scales = |scales: &[f32]| scales.get(rows.clone()).map_or(std::ptr::null(), <[f32]>::as_ptr);
        Self {
            keys: keys[numbers.clone()].as_ptr(),
            values: values[numbers].as_ptr(),
            key_scales: scales(key_scales),
            value_scales: scales(value_scales),
        }
    }
}

struct Attend<'a> {
    task: &'a Task,
    /// What this thread may well do next.
    then: Option<(&'a Task, &'a Sequence<'a>)>,
    sequence: &'a Sequence<'a>,
    shape: &'a Shape,
    scratch: &'a mut Scratch,
    out: Shards<f32>,
    partials: Shards<f32>,
}

/// Floats of a thread's own memory: the scores of a chunk, and two states of so many queries.
fn own_size(shape: &Shape, queries: usize) -> usize {
    TOGETHER * APART + queries * 2 * state_size(shape)
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { task, then, sequence, shape, scratch, out, partials } = self;
        let (padded, group, size) = (shape.padded(), shape.group(), state_size(shape));
        let Scratch { floats, queries } = scratch;
        queries.clear();
        queries.extend((0..task.rows).flat_map(|row| task.queries(row, sequence, shape)));
        let count = queries.len();
        let needed = own_size(shape, count);
        if floats.len() < needed {
            floats.resize(needed, 0.0);
        }
        let (scores, rest) = floats.split_at_mut(TOGETHER * APART);
        let (total, rest) = rest.split_at_mut(count * size);
        let states = &mut rest[..count * size];
        let (from, to) = task.sight(sequence, shape);
        let chunks = match task.only {
            Some((chunk, _)) => chunk..chunk + 1,
            None => from / CHUNK..to.div_ceil(CHUNK),
        };
        // SAFETY: features as `Kernel` says; slices are cut to size above and below.
        unsafe {
            for chunk in chunks.clone() {
                let (first, end) = (from.max(chunk * CHUNK) / LANES * LANES, to.min((chunk + 1) * CHUNK));
                let next = match (chunk + 1 < chunks.end, then) {
                    (true, _) => keys_from(task, sequence, shape, end),
                    (false, Some((task, sequence))) => keys_from(task, sequence, shape, task.begin(sequence, shape)),
                    (false, None) => Next::default(),
                };
                let part = Part { queries, head: task.kv_head, blocks: &sequence.blocks, shape, first, end, next };
                part.run::<S>(scores, states);
                if let Some((_, place)) = task.only {
                    partials.get(place, states.len()).copy_from_slice(states);
                    return;
                }
                if chunk == chunks.start {
                    // The same as joining with nothing.
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

/// Keys of the blocks that come next, [`AHEAD`] of them, and a block's bytes: asked for little by little, for
/// memory is the limit, and many requests at once would make the CPU wait.
#[derive(Clone, Copy, Default)]
struct Next {
    keys: [usize; AHEAD],
    bytes: usize,
}

fn keys_from(task: &Task, sequence: &Sequence<'_>, shape: &Shape, position: usize) -> Next {
    let numbers = shape.width * POSITIONS;
    let start = task.kv_head * numbers;
    macro_rules! of {
        ($all:expr, |$block:ident| $keys:expr, $size:expr) => {{
            let mut keys = [0; AHEAD];
            for (to, $block) in keys.iter_mut().zip($all.keys.get(position / POSITIONS..).unwrap_or(&[])) {
                *to = $keys.as_ptr().addr() + start * $size;
            }
            Next { keys, bytes: numbers * $size }
        }};
    }
    match &sequence.blocks {
        Blocks::F32(all) => of!(all, |block| block, 4),
        Blocks::F16(all) => of!(all, |block| block, 2),
        Blocks::Q8(all) => of!(all, |block| block.0, 1),
    }
}

/// A task's positions in a chunk.
struct Part<'a> {
    queries: &'a [Query],
    head: usize,
    blocks: &'a Blocks<'a>,
    shape: &'a Shape,
    /// Begin of a block.
    first: usize,
    end: usize,
    next: Next,
}

/// One head of a row.
#[derive(Clone, Copy)]
struct Query {
    /// `[width]`
    numbers: *const f32,
    /// Positions that it sees.
    sight: (usize, usize),
}

/// Some queries of a task.
#[derive(Clone, Copy)]
struct Queries<'a, const R: usize> {
    queries: &'a [Query; R],
    /// Positions of the part that some of them see.
    seen: usize,
    /// Scores and then weights, `[256]` each, [`APART`] from one to the next.
    scores: *mut f32,
    /// The first one's state; others follow.
    states: *mut f32,
}

/// Calls `$work` with `$R` for as many queries together as registers allow.
macro_rules! by_queries {
    ($S:ty, $queries:expr, |$R:ident, $query:ident| $work:expr) => {{
        let queries = $queries;
        let mut $query = 0;
        while $query < queries {
            match queries - $query {
                left if left >= 8 && <$S>::QUERIES == 8 => {
                    const $R: usize = 8;
                    $work;
                    $query += 8;
                }
                left if left >= 4 && <$S>::QUERIES == 8 => {
                    const $R: usize = 4;
                    $work;
                    $query += 4;
                }
                3 if <$S>::QUERIES == 8 => {
                    const $R: usize = 3;
                    $work;
                    $query += 3;
                }
                left if left >= 2 => {
                    const $R: usize = 2;
                    $work;
                    $query += 2;
                }
                _ => {
                    const $R: usize = 1;
                    $work;
                    $query += 1;
                }
            }
        }
    }};
}

impl Part<'_> {
    /// Makes the states of all of the task's queries over these positions.
    ///
    /// # Safety
    /// As [`Simd`] says; the blocks hold the positions, `scores` those of [`TOGETHER`] queries, `states` all queries'
    /// states.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, scores: &mut [f32], states: &mut [f32]) {
        let (shape, head, block) = (self.shape, self.head, self.first / POSITIONS);
        let none = (&[][..], &[][..]);
        macro_rules! over {
            ($number:ty, |$index:ident| $half:expr) => {{
                let mut halves = [Half::<$number>::NONE; BLOCKS];
                for ($index, half) in (block..self.end.div_ceil(POSITIONS)).zip(&mut halves) {
                    *half = $half;
                }
                // SAFETY: as the caller says.
                unsafe { self.all::<S, $number>(&halves, scores, states) }
            }};
        }
        match self.blocks {
            Blocks::F32(all) => over!(f32, |at| Half::new((all.keys[at], all.values[at]), none, shape, head)),
            Blocks::F16(all) => over!(f16, |at| Half::new((all.keys[at], all.values[at]), none, shape, head)),
            Blocks::Q8(all) => over!(i8, |at| {
                let ((keys, key_scales), (values, value_scales)) = (all.keys[at], all.values[at]);
                Half::new((keys, values), (key_scales, value_scales), shape, head)
            }),
        }
    }

    /// # Safety
    /// As for [`Self::run`]; `halves` are those of the positions.
    #[inline(always)]
    unsafe fn all<S: Simd, T: Number>(&self, halves: &[Half<T>; BLOCKS], scores: &mut [f32], states: &mut [f32]) {
        let queries = self.queries.len();
        let (scores, states) = (scores.as_mut_ptr(), states.as_mut_ptr());
        // SAFETY: as the caller says.
        unsafe {
            by_queries!(S, queries, |R, query| {
                if let Some(some) = self.queries::<R>(query, scores, states) {
                    self.score::<S, T, R>(&some, halves, query == 0);
                    self.weigh::<S, T, R>(&some, halves);
                    self.mix::<S, T, R>(&some, halves, query + R >= queries);
                }
            });
        }
    }

    /// Queries `query .. query + R`, with their places in all states.
    #[inline(always)]
    fn queries<const R: usize>(&self, query: usize, scores: *mut f32, states: *mut f32) -> Option<Queries<'_, R>> {
        let queries = self.queries.get(query..)?.first_chunk()?;
        let last = queries.iter().map(|query| query.sight.1.min(self.end)).max().unwrap_or(0);
        Some(Queries {
            queries,
            seen: last.saturating_sub(self.first),
            scores,
            states: states.wrapping_add(query * state_size(self.shape)),
        })
    }

    /// Products with keys. With `ask`, later keys and the values are asked for.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn score<S: Simd, T: Number, const R: usize>(
        &self,
        some: &Queries<'_, R>,
        halves: &[Half<T>; BLOCKS],
        ask: bool,
    ) {
        let (mut block, last) = (0, some.seen.div_ceil(LANES));
        // SAFETY: as the caller says.
        unsafe {
            while block < last {
                if S::QUERIES == 8 && R <= 4 && last - block >= 4 {
                    self.score_blocks::<S, T, R, 4>(some, halves, block, ask);
                    block += 4;
                } else if last - block >= 2 {
                    self.score_blocks::<S, T, R, 2>(some, halves, block, ask);
                    block += 2;
                } else {
                    self.score_blocks::<S, T, R, 1>(some, halves, block, ask);
                    block += 1;
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::score`].
    #[inline(always)]
    unsafe fn score_blocks<S: Simd, T: Number, const R: usize, const C: usize>(
        &self,
        some: &Queries<'_, R>,
        halves: &[Half<T>; BLOCKS],
        block: usize,
        ask: bool,
    ) {
        // A line holds so many numbers of a head's keys.
        let each = LINE / (LANES * size_of::<T>());
        // SAFETY: blocks from `block` on are there, their keys `width` times 16 numbers.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            for at in 0..self.shape.width {
                let mut keys = [S::splat(0.0); C];
                for column in 0..C {
                    keys[column] = T::load::<S>(halves[block + column].keys.add(at * LANES));
                }
                if ask && at % each == 0 {
                    for column in 0..C {
                        let place = at * LANES;
                        // Where there is no such block, the address means nothing, and is only asked for.
                        let later = halves[(block + column + C) % BLOCKS].keys;
                        S::prefetch(later.wrapping_add(place).cast());
                        S::prefetch(halves[block + column].values.wrapping_add(place).cast());
                    }
                }
                for index in 0..R {
                    let x = S::splat(*some.queries[index].numbers.add(at));
                    for column in 0..C {
                        sums[index][column] = S::fma(x, keys[column], sums[index][column]);
                    }
                }
            }
            for index in 0..R {
                for column in 0..C {
                    S::store(some.scores.add(index * APART + (block + column) * LANES), sums[index][column]);
                }
            }
        }
    }

    /// Makes weights of scores, and the states' sums of weights and greatest scores.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn weigh<S: Simd, T: Number, const R: usize>(&self, some: &Queries<'_, R>, halves: &[Half<T>; BLOCKS]) {
        let (Shape { scale, soft_cap, .. }, padded) = (*self.shape, self.shape.padded());
        let blocks = some.seen.div_ceil(LANES);
        // A score's factor, for powers of two.
        let factor = if soft_cap.is_some() { LOG2_E } else { scale * LOG2_E };
        // SAFETY: scores and states as the caller says; factors have 16 numbers.
        unsafe {
            for index in 0..R {
                let scores = some.scores.add(index * APART);
                if soft_cap.is_some() || T::SCALED {
                    for block in 0..blocks {
                        let mut score = S::load(scores.add(block * LANES));
                        if T::SCALED {
                            score = S::mul(score, S::load(halves[block].key_scales));
                        }
                        if let Some(cap) = soft_cap {
                            score = cap_softly::<S>(S::mul(score, S::splat(scale)), cap);
                        }
                        S::store(scores.add(block * LANES), score);
                    }
                }
                self.mask::<S>(scores, blocks, some.queries[index].sight);
                let mut most = S::splat(LOWEST);
                for block in 0..blocks {
                    most = S::max(most, S::load(scores.add(block * LANES)));
                }
                let (factor, most) = (S::splat(factor), S::splat(S::maximum(most) * factor));
                let (less, mut sum) = (S::sub(S::splat(0.0), most), S::splat(0.0));
                for block in 0..blocks {
                    let place = scores.add(block * LANES);
                    let weight = S::exp2(S::fma(S::load(place), factor, less));
                    sum = S::add(sum, weight);
                    S::store(
                        place,
                        if T::SCALED { S::mul(weight, S::load(halves[block].value_scales)) } else { weight },
                    );
                }
                let state = some.states.add(index * (padded + 2 * LANES));
                S::store(state.add(padded), sum);
                S::store(state.add(padded + LANES), most);
            }
        }
    }

    /// Minus infinity for those of the blocks' positions that are not in sight, whatever stands there.
    ///
    /// # Safety
    /// As [`Simd`] says; there are scores of so many blocks.
    #[inline(always)]
    unsafe fn mask<S: Simd>(&self, scores: *mut f32, blocks: usize, (from, to): (usize, usize)) {
        // Blocks that are seen as a whole.
        let first = from.saturating_sub(self.first).div_ceil(LANES).min(blocks);
        let last = (to.saturating_sub(self.first) / LANES).clamp(first, blocks);
        for block in (0..first).chain(last..blocks) {
            let (place, at) = (scores.wrapping_add(block * LANES), self.first + block * LANES);
            let mut seen = [0f32; LANES];
            let mut mask = [f32::NEG_INFINITY; LANES];
            for lane in from.max(at)..to.min(at + LANES) {
                (seen[lane - at], mask[lane - at]) = (1.0, 0.0);
            }
            // SAFETY: all have 16 floats.
            unsafe {
                let score = S::keep_above(S::load(place), S::load(seen.as_ptr()), 0.0);
                S::store(place, S::add(score, S::load(mask.as_ptr())));
            }
        }
    }

    /// Adds the weighted values to the states. With `ask`, what comes after this part is asked for.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn mix<S: Simd, T: Number, const R: usize>(
        &self,
        some: &Queries<'_, R>,
        halves: &[Half<T>; BLOCKS],
        ask: bool,
    ) {
        let (width, mut at) = (self.shape.width, 0);
        // SAFETY: as the caller says.
        unsafe {
            while at < width {
                let ask = ask && at == 0;
                if S::QUERIES == 8 && R <= 4 && width - at >= 4 * LANES {
                    self.mix_columns::<S, T, R, 4, false>(some, halves, at, ask);
                    at += 4 * LANES;
                } else if width - at >= 2 * LANES {
                    self.mix_columns::<S, T, R, 2, false>(some, halves, at, ask);
                    at += 2 * LANES;
                } else if width - at >= LANES {
                    self.mix_columns::<S, T, R, 1, false>(some, halves, at, ask);
                    at += LANES;
                } else {
                    self.mix_columns::<S, T, R, 1, true>(some, halves, at, ask);
                    at += LANES;
                }
            }
        }
    }

    /// The same for the columns `at .. at + 16 C`, or, if `SHORT`, for the last few.
    ///
    /// # Safety
    /// As for [`Self::mix`].
    #[inline(always)]
    unsafe fn mix_columns<S: Simd, T: Number, const R: usize, const C: usize, const SHORT: bool>(
        &self,
        some: &Queries<'_, R>,
        halves: &[Half<T>; BLOCKS],
        at: usize,
        ask: bool,
    ) {
        let (size, width) = (state_size(self.shape), self.shape.width);
        // SAFETY: columns of states and values, and positions that the blocks hold.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            for block in 0..some.seen.div_ceil(LANES) {
                let first = block * LANES;
                let mut row = halves[block].values.add(at);
                for position in first..some.seen.min(first + LANES) {
                    let mut values = [S::splat(0.0); C];
                    for column in 0..C {
                        let from = row.add(column * LANES);
                        values[column] = if SHORT { load_some::<S, T>(from, width - at) } else { T::load::<S>(from) };
                    }
                    row = row.wrapping_add(width);
                    if ask && position * LINE < self.next.bytes {
                        for keys in self.next.keys {
                            S::prefetch(std::ptr::without_provenance(keys.wrapping_add(position * LINE)));
                        }
                    }
                    for index in 0..R {
                        let weight = S::splat(*some.scores.add(index * APART + position));
                        for column in 0..C {
                            sums[index][column] = S::fma(weight, values[column], sums[index][column]);
                        }
                    }
                }
            }
            for index in 0..R {
                for column in 0..C {
                    S::store(some.states.add(index * size + at + column * LANES), sums[index][column]);
                }
            }
        }
    }
}

/// The first `count` numbers at `from`, fewer than 16, then zeros.
///
/// # Safety
/// As [`Simd`] says; so many numbers are there.
#[inline(always)]
unsafe fn load_some<S: Simd, T: Number>(from: *const T, count: usize) -> S::F {
    let mut copy = [T::default(); LANES];
    // SAFETY: so many numbers are there, and no more are taken than the copy holds.
    unsafe {
        std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), count.min(LANES));
        T::load::<S>(copy.as_ptr())
    }
}

/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn cap_softly<S: Simd>(x: S::F, cap: f32) -> S::F {
    // SAFETY: as the caller says.
    unsafe { S::mul(S::tanh(S::mul(x, S::splat(1.0 / cap))), S::splat(cap)) }
}

struct Join<'a> {
    join: &'a Joint,
    shape: &'a Shape,
    scratch: &'a mut Scratch,
    out: Shards<f32>,
    partials: Shards<f32>,
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
