//! Attention of some queries over a chunk of positions: scores, softmax weights, weighted sums of values.

use std::f32::consts::LOG2_E;

use half::{bf16, f16};

use super::inputs::{AttentionSequence, AttentionShape, BLOCK_POSITIONS, CHUNK, KvBlocks, SCORE_STRIDE};
use super::plan::Task;
use super::scratch::Query;
use crate::buffer::CACHE_LINE;
use crate::simd::{LANES, Simd};

/// Blocks that are prefetched.
const PREFETCH_BLOCKS: usize = 4;
/// Blocks of a chunk.
const BLOCKS: usize = CHUNK / BLOCK_POSITIONS;
/// Used instead of minus infinity where the difference of two scores must not be NaN.
const MIN_SCORE: f32 = -1e30;

/// The element type of keys and values.
trait KvElement: Copy + Default {
    /// Whether positions have scales.
    const SCALED: bool = false;
    /// Elements are stored in pairs, along the width of keys and the positions of values.
    const PAIRS: bool = false;

    /// Loads 16 elements as floats.
    ///
    /// # Safety
    /// As [`Simd`] says.
    unsafe fn load<S: Simd>(src: *const Self) -> S::F;
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(src: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load(src) }
    }
}

impl KvElement for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(src: *const Self) -> S::F {
        // SAFETY: as the trait says; an f16 has the layout of its bits.
        unsafe { S::load_f16(src.cast()) }
    }
}

impl KvElement for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(src: *const Self) -> S::F {
        // SAFETY: as the trait says.
        unsafe { S::load_i8(src) }
    }
}

impl KvElement for bf16 {
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(src: *const Self) -> S::F {
        let mut wide = [0f32; LANES];
        // SAFETY: as the trait says.
        unsafe {
            wide.iter_mut().enumerate().for_each(|(lane, wide)| *wide = (*src.add(lane)).to_f32());
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
    /// `[16]`, or null if elements have no scales.
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

    /// Selects a head of a block. [`super::attend`] has checked the sizes.
    #[inline(always)]
    fn new(
        (keys, values): (&[T], &[T]),
        (key_scales, value_scales): (&[f32], &[f32]),
        shape: &AttentionShape,
        head: usize,
    ) -> Self {
        let elements = head * shape.width * BLOCK_POSITIONS..(head + 1) * shape.width * BLOCK_POSITIONS;
        let positions = head * BLOCK_POSITIONS..(head + 1) * BLOCK_POSITIONS;
        let scales = |scales: &[f32]| scales.get(positions.clone()).map_or(std::ptr::null(), <[f32]>::as_ptr);
        Self {
            keys: keys[elements.clone()].as_ptr(),
            values: values[elements].as_ptr(),
            key_scales: scales(key_scales),
            value_scales: scales(value_scales),
        }
    }
}

/// The next blocks whose keys are prefetched. They are prefetched gradually, because many requests at once would stall
/// the CPU.
#[derive(Clone, Copy, Default)]
pub(super) struct Prefetch {
    /// Addresses of a head's keys in each block.
    pub keys: [usize; PREFETCH_BLOCKS],
    /// Bytes of a head's keys in a block.
    pub bytes: usize,
}

/// The blocks from `position` on, as a prefetch for `task`.
pub(super) fn prefetch_keys(
    task: &Task,
    sequence: &AttentionSequence<'_>,
    shape: &AttentionShape,
    position: usize,
) -> Prefetch {
    let elements = shape.width * BLOCK_POSITIONS;
    let start = task.kv_head * elements;
    macro_rules! prefetch {
        ($slices:expr, |$block:ident| $keys:expr, $size:expr) => {{
            let mut keys = [0; PREFETCH_BLOCKS];
            let blocks = $slices.keys.get(position / BLOCK_POSITIONS..).unwrap_or(&[]);
            for (address, $block) in keys.iter_mut().zip(blocks) {
                *address = $keys.as_ptr().addr() + start * $size;
            }
            Prefetch { keys, bytes: elements * $size }
        }};
    }
    match &sequence.blocks {
        KvBlocks::F32(slices) => prefetch!(slices, |block| block, 4),
        KvBlocks::F16(slices) => prefetch!(slices, |block| block, 2),
        KvBlocks::Q8(slices) => prefetch!(slices, |block| block.0, 1),
        KvBlocks::Bf16(slices) => prefetch!(slices, |block| block, 2),
    }
}

/// A task's queries over its positions in a chunk.
pub(super) struct ChunkPass<'a> {
    pub queries: &'a [Query],
    pub head: usize,
    pub blocks: &'a KvBlocks<'a>,
    pub shape: &'a AttentionShape,
    /// The first position, which starts a block.
    pub first: usize,
    /// One past the last position.
    pub end: usize,
    /// Keys that follow this chunk.
    pub prefetch: Prefetch,
}

/// Queries of a task that are processed together.
#[derive(Clone, Copy)]
struct QueryTile<'a, const R: usize> {
    queries: &'a [Query; R],
    /// Positions of the chunk up to the last one that any of the queries sees.
    visible: usize,
    /// Scores, then weights: `[R, 256]` with a stride of [`SCORE_STRIDE`].
    scores: *mut f32,
    /// States: `[R, state_size]`.
    states: *mut f32,
}

/// Runs `$work` with `$R` queries at a time, as many as registers allow.
macro_rules! for_query_tiles {
    ($S:ty, $queries:expr, |$R:ident, $query:ident| $work:expr) => {{
        let queries = $queries;
        let mut $query = 0;
        while $query < queries {
            match queries - $query {
                remaining if remaining >= 8 && <$S>::QUERY_TILE == 8 => {
                    const $R: usize = 8;
                    $work;
                    $query += 8;
                }
                remaining if remaining >= 4 && <$S>::QUERY_TILE == 8 => {
                    const $R: usize = 4;
                    $work;
                    $query += 4;
                }
                3 if <$S>::QUERY_TILE == 8 => {
                    const $R: usize = 3;
                    $work;
                    $query += 3;
                }
                remaining if remaining >= 2 => {
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
    /// Computes the states of all queries over these positions.
    ///
    /// # Safety
    /// As [`Simd`] says; the blocks hold the positions, `scores` has space for [`super::inputs::MAX_QUERY_TILE`] queries, and
    /// `states` for all queries.
    #[inline(always)]
    pub unsafe fn run<S: Simd, const PAIRS: bool>(&self, scores: &mut [f32], states: &mut [f32]) {
        let (shape, head, block) = (self.shape, self.head, self.first / BLOCK_POSITIONS);
        let no_scales = (&[][..], &[][..]);
        macro_rules! run_blocks {
            ($element:ty, |$index:ident| $head_block:expr) => {{
                let mut head_blocks = [HeadBlock::<$element>::NONE; BLOCKS];
                for ($index, head_block) in (block..self.end.div_ceil(BLOCK_POSITIONS)).zip(&mut head_blocks) {
                    *head_block = $head_block;
                }
                // SAFETY: as the caller says.
                unsafe { self.run_tiles::<S, $element>(&head_blocks, scores, states) }
            }};
        }
        match self.blocks {
            KvBlocks::F32(slices) if !PAIRS => {
                run_blocks!(f32, |block| HeadBlock::new(
                    (slices.keys[block], slices.values[block]),
                    no_scales,
                    shape,
                    head
                ))
            }
            KvBlocks::Bf16(slices) if PAIRS => {
                run_blocks!(bf16, |block| HeadBlock::new(
                    (slices.keys[block], slices.values[block]),
                    no_scales,
                    shape,
                    head
                ))
            }
            KvBlocks::F16(slices) if !PAIRS => {
                run_blocks!(f16, |block| HeadBlock::new(
                    (slices.keys[block], slices.values[block]),
                    no_scales,
                    shape,
                    head
                ))
            }
            KvBlocks::Q8(slices) if !PAIRS => run_blocks!(i8, |block| {
                let ((keys, key_scales), (values, value_scales)) = (slices.keys[block], slices.values[block]);
                HeadBlock::new((keys, values), (key_scales, value_scales), shape, head)
            }),
            blocks => debug_assert!(false, "PAIRS is {PAIRS} for {blocks:?}"),
        }
    }

    /// Processes the queries tile by tile.
    ///
    /// # Safety
    /// As for [`Self::run`]; `head_blocks` cover the positions.
    #[inline(always)]
    unsafe fn run_tiles<S: Simd, T: KvElement>(
        &self,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        scores: &mut [f32],
        states: &mut [f32],
    ) {
        let queries = self.queries.len();
        let (scores, states) = (scores.as_mut_ptr(), states.as_mut_ptr());
        // SAFETY: as the caller says.
        unsafe {
            for_query_tiles!(S, queries, |R, query| {
                if let Some(tile) = self.query_tile::<R>(query, scores, states) {
                    self.score::<S, T, R>(&tile, head_blocks, query == 0);
                    self.softmax::<S, T, R>(&tile, head_blocks);
                    self.add_values::<S, T, R>(&tile, head_blocks, query + R >= queries);
                }
            });
        }
    }

    /// Queries `query .. query + R`, with their states.
    #[inline(always)]
    fn query_tile<const R: usize>(&self, query: usize, scores: *mut f32, states: *mut f32) -> Option<QueryTile<'_, R>> {
        let queries = self.queries.get(query..)?.first_chunk()?;
        let end = queries.iter().map(|query| query.visible.1.min(self.end)).max().unwrap_or(0);
        Some(QueryTile {
            queries,
            visible: end.saturating_sub(self.first),
            scores,
            states: states.wrapping_add(query * self.shape.state_size()),
        })
    }

    /// Computes scores: products of queries with keys. With `prefetch`, later keys and the values are prefetched.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn score<S: Simd, T: KvElement, const R: usize>(
        &self,
        tile: &QueryTile<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        prefetch: bool,
    ) {
        let (mut block, end) = (0, tile.visible.div_ceil(LANES));
        // SAFETY: as the caller says.
        unsafe {
            while block < end {
                if S::QUERY_TILE == 8 && R <= 4 && end - block >= 4 {
                    self.score_blocks::<S, T, R, 4>(tile, head_blocks, block, prefetch);
                    block += 4;
                } else if end - block >= 2 {
                    self.score_blocks::<S, T, R, 2>(tile, head_blocks, block, prefetch);
                    block += 2;
                } else {
                    self.score_blocks::<S, T, R, 1>(tile, head_blocks, block, prefetch);
                    block += 1;
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::score`].
    #[inline(always)]
    unsafe fn score_blocks<S: Simd, T: KvElement, const R: usize, const C: usize>(
        &self,
        tile: &QueryTile<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        block: usize,
        prefetch: bool,
    ) {
        // Elements of a head whose keys, over all lanes, fill a cache line.
        let line_elements = CACHE_LINE / (LANES * size_of::<T>());
        // SAFETY: `C` blocks from `block` on exist, and each has `width` times 16 keys.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            if T::PAIRS {
                for pair in 0..self.shape.width / 2 {
                    for index in 0..R {
                        let x = tile.queries[index].data.cast::<u32>().add(pair).read_unaligned();
                        for column in 0..C {
                            let keys = head_blocks[block + column].keys.add(pair * 2 * LANES);
                            sums[index][column] = S::dot_bf16_pairs(sums[index][column], keys.cast(), x);
                        }
                    }
                }
            }
            for element in 0..if T::PAIRS { 0 } else { self.shape.width } {
                let mut keys = [S::splat(0.0); C];
                for column in 0..C {
                    keys[column] = T::load::<S>(head_blocks[block + column].keys.add(element * LANES));
                }
                if prefetch && element % line_elements == 0 {
                    for column in 0..C {
                        let offset = element * LANES;
                        // If there is no such block, the address is invalid; it is only prefetched.
                        let later = head_blocks[(block + column + C) % BLOCKS].keys;
                        S::prefetch(later.wrapping_add(offset).cast());
                        S::prefetch(head_blocks[block + column].values.wrapping_add(offset).cast());
                    }
                }
                for index in 0..R {
                    let x = S::splat(*tile.queries[index].data.add(element));
                    for column in 0..C {
                        sums[index][column] = S::fma(x, keys[column], sums[index][column]);
                    }
                }
            }
            for index in 0..R {
                for column in 0..C {
                    S::store(tile.scores.add(index * SCORE_STRIDE + (block + column) * LANES), sums[index][column]);
                }
            }
        }
    }

    /// Turns scores into weights, and stores the sum of weights and the maximum score in the states.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn softmax<S: Simd, T: KvElement, const R: usize>(
        &self,
        tile: &QueryTile<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
    ) {
        let (AttentionShape { scale, soft_cap, .. }, padded_width) = (*self.shape, self.shape.padded_width());
        let blocks = tile.visible.div_ceil(LANES);
        // Converts scores to exponents of two.
        let factor = if soft_cap.is_some() { LOG2_E } else { scale * LOG2_E };
        // SAFETY: scores and states as the caller says; a block has 16 scales.
        unsafe {
            for index in 0..R {
                let scores = tile.scores.add(index * SCORE_STRIDE);
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
                self.mask::<S>(scores, blocks, tile.queries[index].visible);
                let mut max = S::splat(MIN_SCORE);
                for block in 0..blocks {
                    max = S::max(max, S::load(scores.add(block * LANES)));
                }
                let (factor, max) = (S::splat(factor), S::splat(S::reduce_max(max) * factor));
                let (negative_max, mut sum) = (S::sub(S::splat(0.0), max), S::splat(0.0));
                for block in 0..blocks {
                    let block_scores = scores.add(block * LANES);
                    let exponent = S::fma(S::load(block_scores), factor, negative_max);
                    let weight = if T::PAIRS { S::exp2_approx(exponent) } else { S::exp2(exponent) };
                    sum = S::add(sum, weight);
                    if T::PAIRS {
                        // Weights are half as long, so they never overwrite scores that are still needed.
                        S::store_bf16(scores.cast::<u16>().add(block * LANES), weight);
                        continue;
                    }
                    let weight =
                        if T::SCALED { S::mul(weight, S::load(head_blocks[block].value_scales)) } else { weight };
                    S::store(block_scores, weight);
                }
                let state = tile.states.add(index * (padded_width + 2 * LANES));
                S::store(state.add(padded_width), sum);
                S::store(state.add(padded_width + LANES), max);
            }
        }
    }

    /// Sets the scores of invisible positions to minus infinity, even if they are NaN.
    ///
    /// # Safety
    /// As [`Simd`] says; `scores` are the scores of `blocks` blocks.
    #[inline(always)]
    unsafe fn mask<S: Simd>(&self, scores: *mut f32, blocks: usize, (start, end): (usize, usize)) {
        // Blocks that are fully visible need no mask.
        let first = start.saturating_sub(self.first).div_ceil(LANES).min(blocks);
        let last = (end.saturating_sub(self.first) / LANES).clamp(first, blocks);
        for block in (0..first).chain(last..blocks) {
            let (scores, position) = (scores.wrapping_add(block * LANES), self.first + block * LANES);
            let mut visible = [0f32; LANES];
            let mut mask = [f32::NEG_INFINITY; LANES];
            for index in start.max(position)..end.min(position + LANES) {
                (visible[index - position], mask[index - position]) = (1.0, 0.0);
            }
            // SAFETY: all three have 16 floats.
            unsafe {
                let score = S::zero_where_le(S::load(scores), S::load(visible.as_ptr()), 0.0);
                S::store(scores, S::add(score, S::load(mask.as_ptr())));
            }
        }
    }

    /// Stores the weighted sums of values in the states. With `prefetch`, the keys after this chunk are prefetched.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn add_values<S: Simd, T: KvElement, const R: usize>(
        &self,
        tile: &QueryTile<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        prefetch: bool,
    ) {
        let (width, mut column) = (self.shape.width, 0);
        // SAFETY: as the caller says.
        unsafe {
            while column < width {
                let (prefetch, remaining) = (prefetch && column == 0, width - column);
                if S::QUERY_TILE == 8 && R <= 4 && remaining >= 4 * LANES {
                    self.add_value_columns::<S, T, R, 4, false>(tile, head_blocks, column, prefetch);
                    column += 4 * LANES;
                } else if S::QUERY_TILE == 8 && remaining > 2 * LANES && remaining < 3 * LANES {
                    self.add_value_columns::<S, T, R, 3, true>(tile, head_blocks, column, prefetch);
                    column += 3 * LANES;
                } else if remaining >= 2 * LANES {
                    self.add_value_columns::<S, T, R, 2, false>(tile, head_blocks, column, prefetch);
                    column += 2 * LANES;
                } else if remaining >= LANES {
                    self.add_value_columns::<S, T, R, 1, false>(tile, head_blocks, column, prefetch);
                    column += LANES;
                } else {
                    self.add_value_columns::<S, T, R, 1, true>(tile, head_blocks, column, prefetch);
                    column += LANES;
                }
            }
        }
    }

    /// Does the same for the columns `first .. first + 16 C`. If `SHORT`, the last few columns do not exist.
    ///
    /// # Safety
    /// As for [`Self::add_values`].
    #[inline(always)]
    unsafe fn add_value_columns<S: Simd, T: KvElement, const R: usize, const C: usize, const SHORT: bool>(
        &self,
        tile: &QueryTile<'_, R>,
        head_blocks: &[HeadBlock<T>; BLOCKS],
        first: usize,
        prefetch: bool,
    ) {
        let (size, width) = (self.shape.state_size(), self.shape.width);
        let row_positions = if T::PAIRS { 2 } else { 1 };
        let (row_stride, column_stride) = (row_positions * width, row_positions * LANES);
        let rows = BLOCK_POSITIONS / row_positions;
        // After the last rows there is not enough data to load whole vectors.
        let excess = (first + C * LANES).saturating_sub(width) * row_positions;
        let safe_rows = rows.saturating_sub(excess.div_ceil(row_stride));
        // SAFETY: the columns are within states and values, and the blocks hold the positions.
        unsafe {
            let mut sums = [[S::splat(0.0); C]; R];
            for block in 0..tile.visible.div_ceil(LANES) {
                let values = head_blocks[block].values.add(first * row_positions);
                let visible_rows = (tile.visible - block * LANES).min(LANES).div_ceil(row_positions);
                for row in 0..visible_rows {
                    let values = values.add(row * row_stride);
                    let offset = (block * rows + row) * CACHE_LINE;
                    if prefetch && offset < self.prefetch.bytes {
                        for keys in self.prefetch.keys {
                            S::prefetch(std::ptr::without_provenance(keys.wrapping_add(offset)));
                        }
                    }
                    let weights = (block * rows + row, tile.scores.cast_const());
                    let mut copy = [[T::default(); 2 * LANES]; C];
                    let values = if SHORT && row >= safe_rows {
                        let copy = copy.as_mut_ptr().cast::<T>();
                        std::ptr::copy_nonoverlapping(values, copy, (width - first) * row_positions);
                        copy.cast_const()
                    } else {
                        values
                    };
                    accumulate::<S, T, R, C>(&mut sums, weights, values, column_stride);
                }
            }
            for index in 0..R {
                for column in 0..C {
                    S::store(tile.states.add(index * size + first + column * LANES), sums[index][column]);
                }
            }
        }
    }
}

/// Adds a row of values, times each query's weight of the row, to the sums.
///
/// # Safety
/// As [`Simd`] says; `values` has `C` columns with a stride of `column_stride` elements, and there are weights of `R`
/// queries.
#[inline(always)]
unsafe fn accumulate<S: Simd, T: KvElement, const R: usize, const C: usize>(
    sums: &mut [[S::F; C]; R],
    (weight_index, weights): (usize, *const f32),
    values: *const T,
    column_stride: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        if T::PAIRS {
            for index in 0..R {
                let weight = weights.add(index * SCORE_STRIDE).cast::<u32>().add(weight_index).read();
                for column in 0..C {
                    sums[index][column] =
                        S::dot_bf16_pairs(sums[index][column], values.add(column * column_stride).cast(), weight);
                }
            }
            return;
        }
        let mut columns = [S::splat(0.0); C];
        for column in 0..C {
            columns[column] = T::load::<S>(values.add(column * column_stride));
        }
        for index in 0..R {
            let weight = S::splat(*weights.add(index * SCORE_STRIDE + weight_index));
            for column in 0..C {
                sums[index][column] = S::fma(weight, columns[column], sums[index][column]);
            }
        }
    }
}

/// `cap · tanh(x / cap)`
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn soft_cap_scores<S: Simd>(x: S::F, cap: f32) -> S::F {
    // SAFETY: as the caller says.
    unsafe { S::mul(S::tanh(S::mul(x, S::splat(1.0 / cap))), S::splat(cap)) }
}
