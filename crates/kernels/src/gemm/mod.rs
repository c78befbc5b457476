//! Matrix products: the loops over groups of 16 output columns and tiles of activation rows.
//!
//! [`quant_format`] and [`float_format`] read the weights. The order of operations of an output depends on k alone:
//! blocks in order, with one float accumulator. Integer sums within a block are exact in any order. A row therefore
//! gives the same bits in any batch.

pub(crate) mod activations;
pub(crate) mod float_format;
mod quant_format;

use std::marker::PhantomData;

use crate::buffer::CACHE_LINE;
use crate::dtype::DType;
use crate::pack::{FLOATS, Layout};
use crate::simd::{Kernel, LANES, Simd, load_partial, run, run_bf16, store_partial};
use activations::{RowLayout, Tiles, uses_bf16_pairs};
use float_format::{BF16, Bf16Pairs, F16, F32, FloatFormat};
use quant_format::{
    IQ4NL, IQ4XS, MXFP4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, QuantFormat, add_units,
};

/// Prefetch distance in bytes, in a single pass over weights.
const PREFETCH_BYTES: usize = 8192;

/// The product of consecutive groups of weights with a run of tiles of activations. One call computes all of them,
/// because a group may take less than a tenth of a microsecond.
pub(crate) struct GemmTask {
    /// The packed groups, over all k.
    pub weights: *const u8,
    pub group_bytes: usize,
    /// Blocks of 32 (quantised) or spans of four (floats) in a row.
    pub steps: usize,
    /// Floats after the last whole span.
    pub remainder: usize,
    /// The approximate size of a k block, in spans of floats. All rows are multiplied by one k block before the next,
    /// so that it stays in the cache.
    pub k_block_spans: usize,
    /// Activations of all rows: 8-bit codes, floats, or bf16 pairs.
    pub x: *const u8,
    /// Layout of `x` in bytes.
    pub layout: RowLayout,
    /// Block statistics of all rows; unused for floats.
    pub block_stats: *const f32,
    pub tiles: Tiles,
    pub first_tile: usize,
    /// One past the last tile.
    pub end_tile: usize,
    /// The output of the first row and the first group.
    pub out: *mut f32,
    /// Floats between two rows of `out`.
    pub out_stride: usize,
    /// Existing columns, up to 16 for each group.
    pub columns: usize,
    /// The bias of each group, `[groups, 16]`, or null.
    pub bias: *const f32,
    /// Adds the products to the output instead of replacing it, for floats.
    pub accumulate: bool,
}

/// How weights are prefetched: evenly over the steps of a group. A step takes longer than the CPU's own prefetcher
/// looks ahead.
#[derive(Clone, Copy)]
struct Prefetch {
    /// Bytes from a group's start; `None`: the end of the groups that are processed together.
    distance: Option<usize>,
    /// Cache lines per step.
    lines_per_step: usize,
    /// Number of tiles during which lines are prefetched.
    tiles: usize,
}

impl Prefetch {
    /// Prefetching during `steps` steps of a group for each of `tiles` tiles. With one tile, weights are read once and
    /// prefetched at a fixed distance. With several tiles, the group stays in the cache, and the next group is
    /// prefetched.
    #[inline(always)]
    fn new(bytes: usize, steps: usize, tiles: usize) -> Self {
        let lines = bytes.div_ceil(CACHE_LINE);
        let lines_per_step = lines.div_ceil(steps * tiles);
        let distance = if tiles == 1 { Some(PREFETCH_BYTES) } else { None };
        // A row shorter than a span has no steps, so nothing is prefetched.
        Self { distance, lines_per_step, tiles: lines.div_ceil((steps * lines_per_step).max(1)) }
    }
}

/// A range of k, in spans: several whole segments of a row, or a range within one segment.
#[derive(Clone, Copy)]
struct KBlock {
    /// Range of segments.
    segments: (usize, usize),
    /// First span in each segment.
    first: usize,
    /// Spans in each segment.
    count: usize,
    /// Spans in a whole segment.
    segment_spans: usize,
}

impl KBlock {
    /// The block of about `max_spans` spans that starts at a segment and a span in it; a row has `segments` segments.
    #[inline(always)]
    fn new(segments: usize, segment_spans: usize, max_spans: usize, (segment, first): (usize, usize)) -> Self {
        if segment_spans <= max_spans {
            let end = segments.min(segment + max_spans / segment_spans.max(1));
            return Self { segments: (segment, end), first: 0, count: segment_spans, segment_spans };
        }
        let count = segment_spans.div_ceil(segment_spans.div_ceil(max_spans));
        Self { segments: (segment, segment + 1), first, count: count.min(segment_spans - first), segment_spans }
    }

    /// The segment and span at which the next block starts.
    #[inline(always)]
    fn end(&self) -> (usize, usize) {
        let end = self.first + self.count;
        if end == self.segment_spans { (self.segments.1, 0) } else { (self.segments.0, end) }
    }

    /// Whether this is the last block of rows of `segments` segments.
    #[inline(always)]
    fn is_last(&self, segments: usize) -> bool {
        self.end().0 == segments
    }

    /// Spans in the block.
    #[inline(always)]
    fn spans(&self) -> usize {
        (self.segments.1 - self.segments.0) * self.count
    }

    /// Spans of a row before the block.
    #[inline(always)]
    fn offset(&self) -> usize {
        self.segments.0 * self.segment_spans + self.first
    }
}

/// One group times one tile, over a k block.
#[derive(Clone, Copy)]
struct GroupTile {
    group: usize,
    /// The group's weights.
    weights: *const u8,
    k_block: KBlock,
    /// The tile's first row.
    first_row: usize,
    /// The first address to prefetch.
    prefetch: *const u8,
    /// Cache lines to prefetch per step.
    prefetch_lines: usize,
}

impl GemmTask {
    /// `groups`: the number of groups that are processed together.
    #[inline(always)]
    unsafe fn group_tile(
        &self,
        group: usize,
        groups: usize,
        tile: usize,
        first_row: usize,
        k_block: KBlock,
        prefetch: Prefetch,
    ) -> GroupTile {
        let Prefetch { distance, lines_per_step, tiles } = prefetch;
        let tile = tile - self.first_tile;
        // SAFETY: there is such a group.
        let weights = unsafe { self.weights.add(group * self.group_bytes) };
        let distance = distance.unwrap_or(groups * self.group_bytes);
        let prefetch = weights.wrapping_add(distance + tile * k_block.spans() * lines_per_step * CACHE_LINE);
        let prefetch_lines = if tile < tiles { lines_per_step } else { 0 };
        GroupTile { group, weights, k_block, first_row, prefetch, prefetch_lines }
    }

    /// Loads the partial sums of earlier k blocks.
    #[inline(always)]
    unsafe fn load_partial_sums<S: Simd, const R: usize>(&self, group: usize, first_row: usize) -> [S::F; R] {
        let columns = (self.columns - group * LANES).min(LANES);
        // SAFETY: each row of the output has `columns` sums, which earlier k blocks have written.
        unsafe {
            let mut sums = [S::splat(0.0); R];
            for row in 0..R {
                let out = self.out.add((first_row + row) * self.out_stride + group * LANES);
                sums[row] = if columns == LANES { S::load(out) } else { load_partial::<S>(out, columns) };
            }
            sums
        }
    }

    /// Stores the sums; the last k block adds the bias.
    #[inline(always)]
    unsafe fn store_sums<S: Simd, const R: usize>(&self, tile: &GroupTile, sums: [S::F; R]) {
        let first_column = tile.group * LANES;
        let columns = (self.columns - first_column).min(LANES);
        for (row, sum) in sums.into_iter().enumerate() {
            // SAFETY: each row of the output has `columns` elements, the bias 16 for each group.
            unsafe {
                let biased = !self.bias.is_null() && tile.k_block.is_last(self.layout.segments);
                let sum = if biased { S::add(sum, S::load(self.bias.add(first_column))) } else { sum };
                let out = self.out.add((tile.first_row + row) * self.out_stride + first_column);
                if columns == LANES { S::store(out, sum) } else { store_partial::<S>(out, sum, columns) }
            }
        }
    }

    /// Multiplies one group of quantised weights by one tile.
    ///
    /// # Safety
    /// The pointers are valid for the extents that the fields describe, and the tile has `R` rows.
    #[inline(always)]
    unsafe fn multiply_quantised<S: Simd, F: QuantFormat, const R: usize>(&self, tile: GroupTile) {
        let layout = const { F::LAYOUT };
        let biased = F::SIGNED && S::DOT_SIGNED_BIASED;
        // SAFETY: pointers advance over the group, the codes and the block statistics together, up to their ends.
        unsafe {
            let mut sums = [S::splat(0.0); R];
            let (mut weights, mut x) = (tile.weights, self.x.add(tile.first_row * self.steps * 32).cast::<i8>());
            let mut block_stats = self.block_stats.add(tile.first_row * self.steps * 4);
            let mut prefetch = tile.prefetch;
            for _ in 0..self.steps / layout.tiles {
                let head = F::head::<S>(weights);
                weights = weights.add(layout.head);
                for _ in 0..layout.tiles {
                    for _ in 0..tile.prefetch_lines {
                        S::prefetch(prefetch);
                        prefetch = prefetch.wrapping_add(CACHE_LINE);
                    }
                    let (scales, minima) = F::scales::<S>(head, weights);
                    let mut first = [S::splat_int(0); R];
                    let mut second = [S::splat_int(0); R];
                    if F::OFFSET > 0 || biased {
                        let shift = if biased { 7 } else { F::OFFSET };
                        for row in 0..R {
                            let a = block_stats.add(2 * R + row).cast::<i32>().read();
                            let b = block_stats.add(3 * R + row).cast::<i32>().read();
                            if F::HALVES {
                                first[row] = S::splat_int(a << shift);
                                second[row] = S::splat_int(b << shift);
                            } else {
                                first[row] = S::splat_int((a + b) << shift);
                            }
                        }
                    }
                    let mut integer_sums = [first, second];
                    add_units::<S, F, R>(&mut integer_sums, weights, x, 0);
                    add_units::<S, F, R>(&mut integer_sums, weights, x, 1);
                    add_units::<S, F, R>(&mut integer_sums, weights, x, 2);
                    add_units::<S, F, R>(&mut integer_sums, weights, x, 3);
                    let [first, second] = integer_sums;
                    for row in 0..R {
                        let scale = S::splat(*block_stats.add(row));
                        sums[row] = S::fma(S::to_float(first[row]), S::mul(scales[0], scale), sums[row]);
                        if F::HALVES {
                            sums[row] = S::fma(S::to_float(second[row]), S::mul(scales[1], scale), sums[row]);
                        }
                        if F::MINIMUM && F::HALVES {
                            for half in 0..2 {
                                let negative_sum = block_stats.add((2 + half) * R + row).cast::<i32>().read();
                                let sum = *block_stats.add(row) * negative_sum.wrapping_neg() as f32;
                                sums[row] = S::fma(minima[half], S::splat(sum), sums[row]);
                            }
                        } else if F::MINIMUM {
                            sums[row] = S::fma(minima[0], S::splat(*block_stats.add(R + row)), sums[row]);
                        }
                    }
                    weights = weights.add(layout.tile_bytes());
                    x = x.add(R * 32);
                    block_stats = block_stats.add(R * 4);
                }
            }
            self.store_sums::<S, R>(&tile, sums);
        }
    }

    /// Multiplies `G` groups of float weights by one tile. Each activation is loaded once for `G` products.
    ///
    /// # Safety
    /// The pointers are valid for the extents that the fields describe, and the tile has `R` rows of one line.
    #[inline(always)]
    unsafe fn multiply_float<S: Simd, F: FloatFormat, const R: usize, const G: usize>(&self, tile: GroupTile) {
        let (RowLayout { row_stride, segment_stride, segments, .. }, k_block) = (self.layout, tile.k_block);
        let (line, row) = (tile.first_row / self.tiles.rows_per_line, tile.first_row % self.tiles.rows_per_line);
        let span_bytes = const { Layout::of(F::DTYPE).low };
        // SAFETY: pointers advance over the groups and the rows' segments together, up to their ends.
        unsafe {
            let mut sums = [[S::splat(0.0); R]; G];
            if k_block.offset() > 0 || self.accumulate {
                for group in 0..G {
                    sums[group] = self.load_partial_sums::<S, R>(tile.group + group, tile.first_row);
                }
            }
            let skipped = k_block.offset() * span_bytes;
            let (mut weights, mut prefetch) = (tile.weights.add(skipped), tile.prefetch.wrapping_add(skipped));
            let first = self.x.add(self.layout.offset(line, row) + k_block.first * FLOATS * F::ACTIVATION_BYTES);
            for segment in k_block.segments.0..k_block.segments.1 {
                let mut x = first.add(segment * segment_stride);
                for _ in 0..k_block.count {
                    for _ in 0..tile.prefetch_lines {
                        for group in 0..G {
                            S::prefetch(prefetch.wrapping_add(group * self.group_bytes));
                        }
                        prefetch = prefetch.wrapping_add(CACHE_LINE);
                    }
                    F::multiply::<S, R, G>(&mut sums, (weights, self.group_bytes), x, row_stride);
                    weights = weights.add(span_bytes);
                    x = x.add(FLOATS * F::ACTIVATION_BYTES);
                }
                if self.remainder > 0 && k_block.is_last(segments) {
                    let weights = (weights, self.group_bytes);
                    F::multiply_remainder::<S, R, G>(&mut sums, weights, x, row_stride, self.remainder);
                }
            }
            for (group, sums) in sums.into_iter().enumerate() {
                self.store_sums::<S, R>(&GroupTile { group: tile.group + group, ..tile }, sums);
            }
        }
    }
}

/// A weight type, quantised or float.
trait WeightFormat {
    /// Computes two groups at a time, if registers allow.
    const TWO_GROUPS: bool;

    /// Multiplies `G` groups, from the tile's own on, by a tile of `R` rows.
    ///
    /// # Safety
    /// The pointers are valid for the extents that the task's fields describe, the tile has `R` rows, and there are `G`
    /// groups.
    unsafe fn multiply_tile<S: Simd, const R: usize, const G: usize>(task: &GemmTask, tile: GroupTile);
}

struct Quantised<F>(PhantomData<F>);
struct Float<F>(PhantomData<F>);

impl<F: QuantFormat> WeightFormat for Quantised<F> {
    const TWO_GROUPS: bool = false;

    #[inline(always)]
    unsafe fn multiply_tile<S: Simd, const R: usize, const G: usize>(task: &GemmTask, tile: GroupTile) {
        // SAFETY: as the caller says.
        unsafe { task.multiply_quantised::<S, F, R>(tile) }
    }
}

impl<F: FloatFormat> WeightFormat for Float<F> {
    const TWO_GROUPS: bool = true;

    #[inline(always)]
    unsafe fn multiply_tile<S: Simd, const R: usize, const G: usize>(task: &GemmTask, tile: GroupTile) {
        // SAFETY: as the caller says.
        unsafe { task.multiply_float::<S, F, R, G>(tile) }
    }
}

struct GemmKernel<'a, F> {
    task: &'a GemmTask,
    format: PhantomData<F>,
}

impl<F: WeightFormat> Kernel for GemmKernel<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let GemmTask { steps, layout: RowLayout { segments, .. }, columns, .. } = *self.task;
        let (groups, mut start) = (columns.div_ceil(LANES), (0, 0));
        // With few rows, memory is the limit, and one stream is fastest.
        let two_groups = F::TWO_GROUPS && S::TILE_ROWS > 4 && self.task.tiles.max_rows() > 4;
        while start.0 < segments {
            let k_block = KBlock::new(segments, steps / segments, self.task.k_block_spans, start);
            let mut group = 0;
            // SAFETY: the creator of the task guarantees that its pointers are valid.
            unsafe {
                while two_groups && group + 2 <= groups {
                    self.multiply_groups::<S, 2>(group, k_block);
                    group += 2;
                }
                while group < groups {
                    self.multiply_groups::<S, 1>(group, k_block);
                    group += 1;
                }
            }
            start = k_block.end();
        }
    }
}

impl<F: WeightFormat> GemmKernel<'_, F> {
    /// Multiplies `G` groups from this one on by all tiles.
    ///
    /// # Safety
    /// As [`WeightFormat::multiply_tile`] says.
    #[inline(always)]
    unsafe fn multiply_groups<S: Simd, const G: usize>(&self, group: usize, k_block: KBlock) {
        let GemmTask { steps, group_bytes, tiles, first_tile, end_tile, .. } = *self.task;
        let (spans, tile_count) = (k_block.spans(), end_tile - first_tile);
        let prefetch = Prefetch::new(group_bytes * spans / steps.max(1), spans.max(1), tile_count);
        for tile in first_tile..end_tile {
            let (first_row, rows) = tiles.rows(tile);
            // SAFETY: as the caller says.
            unsafe {
                let tile = self.task.group_tile(group, G, tile, first_row, k_block, prefetch);
                self.multiply_tile::<S, G>(tile, rows);
            }
        }
    }

    /// # Safety
    /// As [`WeightFormat::multiply_tile`] says.
    #[inline(always)]
    unsafe fn multiply_tile<S: Simd, const G: usize>(&self, tile: GroupTile, rows: usize) {
        // SAFETY: as the caller says.
        unsafe {
            match rows {
                1 => F::multiply_tile::<S, 1, G>(self.task, tile),
                2 => F::multiply_tile::<S, 2, G>(self.task, tile),
                3 => F::multiply_tile::<S, 3, G>(self.task, tile),
                4 => F::multiply_tile::<S, 4, G>(self.task, tile),
                5 if S::TILE_ROWS > 4 => F::multiply_tile::<S, 5, G>(self.task, tile),
                6 if S::TILE_ROWS > 4 => F::multiply_tile::<S, 6, G>(self.task, tile),
                7 if S::TILE_ROWS > 4 => F::multiply_tile::<S, 7, G>(self.task, tile),
                8 if S::TILE_ROWS > 4 => F::multiply_tile::<S, 8, G>(self.task, tile),
                9 if S::TILE_ROWS > 8 => F::multiply_tile::<S, 9, G>(self.task, tile),
                10 if S::TILE_ROWS > 8 => F::multiply_tile::<S, 10, G>(self.task, tile),
                11 if S::TILE_ROWS > 8 => F::multiply_tile::<S, 11, G>(self.task, tile),
                12 if S::TILE_ROWS > 8 => F::multiply_tile::<S, 12, G>(self.task, tile),
                rows => debug_assert_eq!(rows, 0, "a tile has too many rows for the instruction set"),
            }
        }
    }
}

/// Runs a task with weights of this type.
pub(crate) fn multiply(dtype: DType, task: &GemmTask) {
    fn with<F: WeightFormat>(task: &GemmTask) {
        run(task.tiles.isa, GemmKernel::<F> { task, format: PhantomData });
    }
    match dtype {
        DType::F32 => with::<Float<F32>>(task),
        DType::F16 => with::<Float<F16>>(task),
        DType::BF16 if uses_bf16_pairs(dtype, task.tiles.isa) => {
            run_bf16(task.tiles.isa, GemmKernel::<Float<Bf16Pairs>> { task, format: PhantomData });
        }
        DType::BF16 => with::<Float<BF16>>(task),
        DType::Q8_0 => with::<Quantised<Q8_0>>(task),
        DType::Q4_0 => with::<Quantised<Q4_0>>(task),
        DType::Q4_1 => with::<Quantised<Q4_1>>(task),
        DType::Q5_0 => with::<Quantised<Q5_0>>(task),
        DType::Q5_1 => with::<Quantised<Q5_1>>(task),
        DType::IQ4NL => with::<Quantised<IQ4NL>>(task),
        DType::MXFP4 => with::<Quantised<MXFP4>>(task),
        DType::Q2K => with::<Quantised<Q2K>>(task),
        DType::Q3K => with::<Quantised<Q3K>>(task),
        DType::Q4K => with::<Quantised<Q4K>>(task),
        DType::Q5K => with::<Quantised<Q5K>>(task),
        DType::Q6K => with::<Quantised<Q6K>>(task),
        DType::IQ4XS => with::<Quantised<IQ4XS>>(task),
    }
}
