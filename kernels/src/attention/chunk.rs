//! Attention of some queries over a chunk of positions: scores, softmax weights, weighted sums of values.

use std::f32::consts::LOG2_E;

use half::{bf16, f16};

use super::plan::Task;
use super::state::state_size;
use super::{AttentionSequence, AttentionShape, BLOCK_POSITIONS, CHUNK, KvBlocks, SCORE_STRIDE};
use crate::buffer::LINE;
use crate::simd::{LANES, Simd};

/// Blocks that are prefetched.
const PREFETCH_BLOCKS: usize = 4;
/// Blocks of a chunk.
const BLOCKS: usize = CHUNK / BLOCK_POSITIONS;
/// Stands for minus infinity where the difference of two must not be NaN.
const MIN_SCORE: f32 = -1e30;

/// The element type of keys and values.
trait KvNumber: Copy + Default {
    /// Whether positions have scales.
    const SCALED: bool = false;
    /// Whether two elements are stored side by side, along the width of keys and the positions of values.
    const PAIRS: bool = false;

    /// # Safety
    /// As [`Simd`] says; 16 numbers are there.
    unsafe fn load<S: Simd>(from: *const Self) -> S::F;
}

impl KvNumber for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load(from) }
    }
}

impl KvNumber for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says; an f16 is a u16's bits.
        unsafe { S::load_f16(from.cast()) }
    }
}

impl KvNumber for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load_i8(from) }
    }
}

impl KvNumber for bf16 {
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        let mut wide = [0f32; LANES];
        // SAFETY: as the trait says.
        unsafe {
            wide.iter_mut().enumerate().for_each(|(at, wide)| *wide = (*from.add(at)).to_f32());
            S::load(wide.as_ptr())
        }
    }
}

/// One head's part of a block.
#[derive(Clone, Copy)]
struct HeadBlock<T> {
    /// `[width, 16]`
    keys: *const T,
    /// `[16, width]`
    values: *const T,
    /// Scales of the positions; null where there are none.
    key_scales: *const f32,
    value_scales: *const f32,
}

impl<T> HeadBlock<T> {
    const NONE: Self = Self {
        keys: std::ptr::null(),
        values: std::ptr::null(),
        key_scales: std::ptr::null(),
        value_scales: std::ptr::null(),
    };

    /// [`attend`] has checked the sizes.
    #[inline(always)]
    fn new(
        (keys, values): (&[T], &[T]),
        (key_scales, value_scales): (&[f32], &[f32]),
        shape: &AttentionShape,
        head: usize,
    ) -> Self {
        let numbers = head * shape.width * BLOCK_POSITIONS..(head + 1) * shape.width * BLOCK_POSITIONS;
        let rows = head * BLOCK_POSITIONS..(head + 1) * BLOCK_POSITIONS;
        let scales = |scales: &[f32]| scales.get(rows.clone()).map_or(std::ptr::null(), <[f32]>::as_ptr);
        Self {
            keys: keys[numbers.clone()].as_ptr(),
            values: values[numbers].as_ptr(),
            key_scales: scales(key_scales),
            value_scales: scales(value_scales),
        }
    }
}

/// Addresses of the next blocks' keys, [`PREFETCH_BLOCKS`] of them, and a block's bytes. They are prefetched gradually,
/// because many requests at once would stall the CPU.
#[derive(Clone, Copy, Default)]
pub(super) struct Prefetch {
    pub keys: [usize; PREFETCH_BLOCKS],
    pub bytes: usize,
}

pub(super) fn prefetch_keys(
    task: &Task,
    sequence: &AttentionSequence<'_>,
    shape: &AttentionShape,
    position: usize,
) -> Prefetch {
    let numbers = shape.width * BLOCK_POSITIONS;
    let start = task.kv_head * numbers;
    macro_rules! of {
        ($all:expr, |$block:ident| $keys:expr, $size:expr) => {{
            let mut keys = [0; PREFETCH_BLOCKS];
            for (to, $block) in keys.iter_mut().zip($all.keys.get(position / BLOCK_POSITIONS..).unwrap_or(&[])) {
                *to = $keys.as_ptr().addr() + start * $size;
            }
            Prefetch { keys, bytes: numbers * $size }
        }};
    }
    match &sequence.blocks {
        KvBlocks::F32(all) => of!(all, |block| block, 4),
        KvBlocks::F16(all) => of!(all, |block| block, 2),
        KvBlocks::Q8(all) => of!(all, |block| block.0, 1),
        KvBlocks::Bf16(all) => of!(all, |block| block, 2),
    }
}

/// A task's positions within a chunk.
pub(super) struct ChunkPass<'a> {
    pub queries: &'a [Query],
    pub head: usize,
    pub blocks: &'a KvBlocks<'a>,
    pub shape: &'a AttentionShape,
    /// Starts at a block.
    pub first: usize,
    pub end: usize,
    pub next: Prefetch,
}

/// One head of a row.
#[derive(Clone, Copy)]
pub(super) struct Query {
    /// `[width]`; bf16 where keys are.
    pub numbers: *const f32,
    /// The range of visible positions.
    pub visible: (usize, usize),
}

/// Some queries of a task.
#[derive(Clone, Copy)]
struct Queries<'a, const R: usize> {
    queries: &'a [Query; R],
    /// Positions of the chunk that any of them sees.
    visible: usize,
    /// Scores, then weights, `[256]` each, [`SCORE_STRIDE`] apart.
    scores: *mut f32,
    /// The first query's state; the others follow.
    states: *mut f32,
}

/// Runs `$work` with `$R` queries at a time, as many as registers allow.
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

impl ChunkPass<'_> {
    /// Computes the states of all the task's queries over these positions.
    ///
    /// # Safety
    /// As [`Simd`] says; the blocks hold the positions, `scores` those of [`QUERY_TILE`] queries, `states` all queries'
    /// states.
    #[inline(always)]
    pub unsafe fn run<S: Simd, const PAIRS: bool>(&self, scores: &mut [f32], states: &mut [f32]) {
        let (shape, head, block) = (self.shape, self.head, self.first / BLOCK_POSITIONS);
        let none = (&[][..], &[][..]);
        macro_rules! over {
            ($number:ty, |$index:ident| $head_block:expr) => {{
                let mut head_blocks = [HeadBlock::<$number>::NONE; BLOCKS];
                for ($index, head_block) in (block..self.end.div_ceil(BLOCK_POSITIONS)).zip(&mut head_blocks) {
                    *head_block = $head_block;
                }
                // SAFETY: as the caller says.
                unsafe { self.all::<S, $number>(&head_blocks, scores, states) }
            }};
        }
        match self.blocks {
            KvBlocks::F32(all) if !PAIRS => {
                over!(f32, |at| HeadBlock::new((all.keys[at], all.values[at]), none, shape, head))
            }
            KvBlocks::Bf16(all) if PAIRS => {
                over!(bf16, |at| HeadBlock::new((all.keys[at], all.values[at]), none, shape, head))
            }
            KvBlocks::F16(all) if !PAIRS => {
                over!(f16, |at| HeadBlock::new((all.keys[at], all.values[at]), none, shape, head))
            }
            KvBlocks::Q8(all) if !PAIRS => over!(i8, |at| {
                let ((keys, key_scales), (values, value_scales)) = (all.keys[at], all.values[at]);
                HeadBlock::new((keys, values), (key_scales, value_scales), shape, head)
            }),
            blocks => debug_assert!(false, "{PAIRS}, but {blocks:?}"),
        }
    }

    /// # Safety
    /// As for [`Self::run`]; `head_blocks` cover the positions.
    #[inline(always)]
    unsafe fn all<S: Simd, T: KvNumber>(
        &self,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        scores: &mut [f32],
        states: &mut [f32],
    ) {
        let queries = self.queries.len();
        let (scores, states) = (scores.as_mut_ptr(), states.as_mut_ptr());
        // SAFETY: as the caller says.
        unsafe {
            by_queries!(S, queries, |R, query| {
                if let Some(some) = self.queries::<R>(query, scores, states) {
                    self.score::<S, T, R>(&some, head_blocks, query == 0);
                    self.softmax::<S, T, R>(&some, head_blocks);
                    self.add_values::<S, T, R>(&some, head_blocks, query + R >= queries);
                }
            });
        }
    }

    /// Queries `query .. query + R`, with their states.
    #[inline(always)]
    fn queries<const R: usize>(&self, query: usize, scores: *mut f32, states: *mut f32) -> Option<Queries<'_, R>> {
        let queries = self.queries.get(query..)?.first_chunk()?;
        let last = queries.iter().map(|query| query.visible.1.min(self.end)).max().unwrap_or(0);
        Some(Queries {
            queries,
            visible: last.saturating_sub(self.first),
            scores,
            states: states.wrapping_add(query * state_size(self.shape)),
        })
    }

    /// Products with keys. With `prefetch`, later keys and the values are prefetched.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn score<S: Simd, T: KvNumber, const R: usize>(
        &self,
        some: &Queries<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        prefetch: bool,
    ) {
        let (mut block, last) = (0, some.visible.div_ceil(LANES));
        // SAFETY: as the caller says.
        unsafe {
            while block < last {
                if S::QUERIES == 8 && R <= 4 && last - block >= 4 {
                    self.score_blocks::<S, T, R, 4>(some, head_blocks, block, prefetch);
                    block += 4;
                } else if last - block >= 2 {
                    self.score_blocks::<S, T, R, 2>(some, head_blocks, block, prefetch);
                    block += 2;
                } else {
                    self.score_blocks::<S, T, R, 1>(some, head_blocks, block, prefetch);
                    block += 1;
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::score`].
    #[inline(always)]
    unsafe fn score_blocks<S: Simd, T: KvNumber, const R: usize, const C: usize>(
        &self,
        some: &Queries<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        block: usize,
        prefetch: bool,
    ) {
        // Elements of a head's keys in a cache line, over all lanes.
        let each = LINE / (LANES * size_of::<T>());
        // SAFETY: blocks from `block` on are there, their keys `width` times 16 numbers.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            if T::PAIRS {
                for pair in 0..self.shape.width / 2 {
                    for index in 0..R {
                        let x = some.queries[index].numbers.cast::<u32>().add(pair).read_unaligned();
                        for column in 0..C {
                            let keys = head_blocks[block + column].keys.add(pair * 2 * LANES);
                            sums[index][column] = S::dot_pairs(sums[index][column], keys.cast(), x);
                        }
                    }
                }
            }
            for at in 0..if T::PAIRS { 0 } else { self.shape.width } {
                let mut keys = [S::splat(0.0); C];
                for column in 0..C {
                    keys[column] = T::load::<S>(head_blocks[block + column].keys.add(at * LANES));
                }
                if prefetch && at % each == 0 {
                    for column in 0..C {
                        let place = at * LANES;
                        // If there is no such block, the address is meaningless; it is only prefetched.
                        let later = head_blocks[(block + column + C) % BLOCKS].keys;
                        S::prefetch(later.wrapping_add(place).cast());
                        S::prefetch(head_blocks[block + column].values.wrapping_add(place).cast());
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
                    S::store(some.scores.add(index * SCORE_STRIDE + (block + column) * LANES), sums[index][column]);
                }
            }
        }
    }

    /// Turns scores into weights, and stores the sum of weights and the maximum score in the states.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn softmax<S: Simd, T: KvNumber, const R: usize>(
        &self,
        some: &Queries<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
    ) {
        let (AttentionShape { scale, soft_cap, .. }, padded) = (*self.shape, self.shape.padded());
        let blocks = some.visible.div_ceil(LANES);
        // Scales scores for powers of two.
        let factor = if soft_cap.is_some() { LOG2_E } else { scale * LOG2_E };
        // SAFETY: scores and states as the caller says; factors have 16 numbers.
        unsafe {
            for index in 0..R {
                let scores = some.scores.add(index * SCORE_STRIDE);
                if soft_cap.is_some() || T::SCALED {
                    for block in 0..blocks {
                        let mut score = S::load(scores.add(block * LANES));
                        if T::SCALED {
                            score = S::mul(score, S::load(head_blocks[block].key_scales));
                        }
                        if let Some(cap) = soft_cap {
                            score = soft_cap_scores::<S>(S::mul(score, S::splat(scale)), cap);
                        }
                        S::store(scores.add(block * LANES), score);
                    }
                }
                self.mask::<S>(scores, blocks, some.queries[index].visible);
                let mut most = S::splat(MIN_SCORE);
                for block in 0..blocks {
                    most = S::max(most, S::load(scores.add(block * LANES)));
                }
                let (factor, most) = (S::splat(factor), S::splat(S::maximum(most) * factor));
                let (less, mut sum) = (S::sub(S::splat(0.0), most), S::splat(0.0));
                for block in 0..blocks {
                    let place = scores.add(block * LANES);
                    let power = S::fma(S::load(place), factor, less);
                    let weight = if T::PAIRS { S::exp2_roughly(power) } else { S::exp2(power) };
                    sum = S::add(sum, weight);
                    if T::PAIRS {
                        // Half as long, so it never overwrites scores that are still needed.
                        S::store_bf16(scores.cast::<u16>().add(block * LANES), weight);
                        continue;
                    }
                    S::store(
                        place,
                        if T::SCALED { S::mul(weight, S::load(head_blocks[block].value_scales)) } else { weight },
                    );
                }
                let state = some.states.add(index * (padded + 2 * LANES));
                S::store(state.add(padded), sum);
                S::store(state.add(padded + LANES), most);
            }
        }
    }

    /// Sets the scores of invisible positions to minus infinity, whatever is stored there.
    ///
    /// # Safety
    /// As [`Simd`] says; there are scores of so many blocks.
    #[inline(always)]
    unsafe fn mask<S: Simd>(&self, scores: *mut f32, blocks: usize, (from, to): (usize, usize)) {
        // Blocks that are fully visible need no mask.
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

    /// Adds the weighted values to the states. With `prefetch`, the data after this chunk is prefetched.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn add_values<S: Simd, T: KvNumber, const R: usize>(
        &self,
        some: &Queries<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        prefetch: bool,
    ) {
        let (width, mut at) = (self.shape.width, 0);
        // SAFETY: as the caller says.
        unsafe {
            while at < width {
                let (prefetch, left) = (prefetch && at == 0, width - at);
                if S::QUERIES == 8 && R <= 4 && left >= 4 * LANES {
                    self.add_value_columns::<S, T, R, 4, false>(some, head_blocks, at, prefetch);
                    at += 4 * LANES;
                } else if S::QUERIES == 8 && left > 2 * LANES && left < 3 * LANES {
                    self.add_value_columns::<S, T, R, 3, true>(some, head_blocks, at, prefetch);
                    at += 3 * LANES;
                } else if left >= 2 * LANES {
                    self.add_value_columns::<S, T, R, 2, false>(some, head_blocks, at, prefetch);
                    at += 2 * LANES;
                } else if left >= LANES {
                    self.add_value_columns::<S, T, R, 1, false>(some, head_blocks, at, prefetch);
                    at += LANES;
                } else {
                    self.add_value_columns::<S, T, R, 1, true>(some, head_blocks, at, prefetch);
                    at += LANES;
                }
            }
        }
    }

    /// The same for the columns `at .. at + 16 C`; if `SHORT`, the last few do not exist.
    ///
    /// # Safety
    /// As for [`Self::add_values`].
    #[inline(always)]
    unsafe fn add_value_columns<S: Simd, T: KvNumber, const R: usize, const C: usize, const SHORT: bool>(
        &self,
        some: &Queries<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        at: usize,
        prefetch: bool,
    ) {
        let (size, width) = (state_size(self.shape), self.shape.width);
        // Positions in a row of values; elements of a row, and between columns; rows of a block.
        let each = if T::PAIRS { 2 } else { 1 };
        let (row, step, rows) = (each * width, each * LANES, BLOCK_POSITIONS / each);
        // After the last rows there is not enough data to load whole vectors.
        let beyond = (at + C * LANES).saturating_sub(width) * each;
        let whole = rows.saturating_sub(beyond.div_ceil(row));
        // SAFETY: columns of states and values, and positions that the blocks hold.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            for block in 0..some.visible.div_ceil(LANES) {
                let values = head_blocks[block].values.add(at * each);
                let seen = (some.visible - block * LANES).min(LANES).div_ceil(each);
                for index in 0..seen {
                    let from = values.add(index * row);
                    if prefetch && (block * rows + index) * LINE < self.next.bytes {
                        let place = (block * rows + index) * LINE;
                        for keys in self.next.keys {
                            S::prefetch(std::ptr::without_provenance(keys.wrapping_add(place)));
                        }
                    }
                    let weights = (block * rows + index, some.scores.cast_const());
                    let mut copy = [[T::default(); 2 * LANES]; C];
                    let from = if SHORT && index >= whole {
                        let copy = copy.as_mut_ptr().cast::<T>();
                        std::ptr::copy_nonoverlapping(from, copy, (width - at) * each);
                        copy.cast_const()
                    } else {
                        from
                    };
                    accumulate::<S, T, R, C>(&mut sums, weights, from, step);
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

/// Adds one row of values, times each query's weight, to the sums.
///
/// # Safety
/// As [`Simd`] says; the columns are there, `step` numbers apart, and `R` queries' weights.
#[inline(always)]
unsafe fn accumulate<S: Simd, T: KvNumber, const R: usize, const C: usize>(
    sums: &mut [[S::F; C]; R],
    (place, weights): (usize, *const f32),
    from: *const T,
    step: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        if T::PAIRS {
            for index in 0..R {
                let weight = weights.add(index * SCORE_STRIDE).cast::<u32>().add(place).read();
                for column in 0..C {
                    sums[index][column] = S::dot_pairs(sums[index][column], from.add(column * step).cast(), weight);
                }
            }
            return;
        }
        let mut values = [S::splat(0.0); C];
        for column in 0..C {
            values[column] = T::load::<S>(from.add(column * step));
        }
        for index in 0..R {
            let weight = S::splat(*weights.add(index * SCORE_STRIDE + place));
            for column in 0..C {
                sums[index][column] = S::fma(weight, values[column], sums[index][column]);
            }
        }
    }
}

/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn soft_cap_scores<S: Simd>(x: S::F, cap: f32) -> S::F {
    // SAFETY: as the caller says.
    unsafe { S::mul(S::tanh(S::mul(x, S::splat(1.0 / cap))), S::splat(cap)) }
}
