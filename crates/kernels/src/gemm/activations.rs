//! The activations of a matrix product: rows of floats, and their quantised or rounded forms.
//!
//! Rows are split into tiles. For quantised weights, a tile stores each block of 32 elements for all its rows together,
//! so that a kernel reads sequentially. For float weights, rows are read in place. A row's values depend on that row
//! alone.
//!
//! BF16 weights are multiplied by activations rounded to bf16 if the CPU has bf16 dot products, as in llama.cpp and
//! PyTorch: prefill is 1.7 times as fast, and the error is of the same order as that of rounding activations to 8 bits
//! for quantized weights. On other CPUs, activations stay f32.

use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::buffer_pool::Quantised;
use crate::dtype::DType;
use crate::rows::by_rows;
use crate::simd::{Isa, Kernel, LANES, Simd, bf16_bits, run, run_bf16};

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Fewer blocks than this are quantised by one thread, in about two microseconds.
const MIN_PARALLEL_BLOCKS: usize = 500;

/// Activations `[m, k]` for several matrices whose products run on the same pool.
///
/// They are quantised once, when a matrix first needs it. Each block of 32 becomes 8-bit integers with an f32 scale, `max
/// |x| / 127`. A value that is not finite makes all outputs of its row not finite.
#[derive(Debug)]
pub struct Activations<'a> {
    x: &'a [f32],
    /// The row of `x` that each row is; `None`: the same.
    indices: Option<&'a [usize]>,
    /// Layout of the rows in `x`, or in the copies of gathered rows.
    layout: RowLayout,
    pub(crate) parts: SmallVec<[RowPart; 1]>,
    k: usize,
    pub(crate) pool: &'a Pool,
    quantised: OnceLock<Quantised>,
    pairs: OnceLock<(Vec<u16>, RowLayout)>,
    /// Copies of the rows of `indices`.
    gathered: OnceLock<Vec<f32>>,
}

/// Consecutive rows that are multiplied by the same matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPart {
    pub first_row: usize,
    /// Tiles before this part.
    first_tile: usize,
    /// Rows count from the part's first row.
    pub tiles: Tiles,
}

/// The rows of a part in the form that kernels multiply.
#[derive(Clone, Copy)]
pub(crate) struct PartRows {
    /// 8-bit codes, floats, or bf16 pairs.
    pub x: *const u8,
    /// Block statistics; null for floats.
    pub block_stats: *const f32,
    /// Layout of `x` in bytes; for float weights.
    pub layout: RowLayout,
}

/// The layout of rows in a buffer, in elements. A row of length k consists of contiguous segments of equal length: one
/// for a matrix, one per kernel row for a convolution. Rows form lines, and lines form images.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLayout {
    /// Stride between rows of a line.
    pub row_stride: usize,
    pub line_stride: usize,
    pub lines_per_image: usize,
    pub image_stride: usize,
    pub segment_stride: usize,
    /// Segments of a row.
    pub segments: usize,
}

impl RowLayout {
    /// Rows of one segment; all strides are zero.
    pub const ONE_SEGMENT: Self =
        Self { row_stride: 0, line_stride: 0, lines_per_image: 1, image_stride: 0, segment_stride: 0, segments: 1 };

    /// The layout in bytes, for elements of `size` bytes.
    pub fn in_bytes(&self, size: usize) -> Self {
        Self {
            row_stride: self.row_stride * size,
            line_stride: self.line_stride * size,
            image_stride: self.image_stride * size,
            segment_stride: self.segment_stride * size,
            ..*self
        }
    }

    /// The offset of a row of a line.
    #[inline(always)]
    pub fn offset(&self, line: usize, row: usize) -> usize {
        let (image, line) = (line / self.lines_per_image, line % self.lines_per_image);
        image * self.image_stride + line * self.line_stride + row * self.row_stride
    }
}

/// The split of rows into tiles. Each line is split evenly into as few tiles as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// Total rows.
    pub m: usize,
    /// Total tiles.
    pub count: usize,
    pub isa: Isa,
    pub rows_per_line: usize,
    tiles_per_line: usize,
    /// Rows of a tile. The first `longer_tiles` tiles of a line have one more.
    rows_per_tile: usize,
    longer_tiles: usize,
}

impl Tiles {
    pub fn new(lines: usize, rows_per_line: usize, isa: Isa) -> Self {
        let tiles_per_line = rows_per_line.div_ceil(isa.tile_rows()).max(1);
        let (rows_per_tile, longer_tiles) = (rows_per_line / tiles_per_line, rows_per_line % tiles_per_line);
        let count = if rows_per_line == 0 { 0 } else { lines * tiles_per_line };
        Self { m: lines * rows_per_line, count, isa, rows_per_line, tiles_per_line, rows_per_tile, longer_tiles }
    }

    /// The first row of a tile. One past the last tile, it is the number of rows.
    #[inline(always)]
    pub fn start(&self, tile: usize) -> usize {
        let (line, tile) = (tile / self.tiles_per_line, tile % self.tiles_per_line);
        line * self.rows_per_line + tile * self.rows_per_tile + tile.min(self.longer_tiles)
    }

    /// The first row of a tile, and the number of its rows.
    #[inline(always)]
    pub fn rows(&self, tile: usize) -> (usize, usize) {
        (self.start(tile), self.rows_per_tile + usize::from(tile % self.tiles_per_line < self.longer_tiles))
    }

    /// Rows of the largest tile.
    pub fn max_rows(&self) -> usize {
        self.rows_per_tile + usize::from(self.longer_tiles > 0)
    }
}

impl<'a> Activations<'a> {
    /// `x`: `[m, k]`
    ///
    /// # Panics
    /// If `x` has another length.
    pub fn new(pool: &'a Pool, x: &'a [f32], m: usize, k: usize) -> Self {
        assert_eq!(Some(x.len()), m.checked_mul(k), "activations are [m, k]");
        Self::in_parts(pool, x, k, &[m])
    }

    /// `x`: `[m, k]`. Its rows are in parts of these sizes, one after another, for [`matmul_parts`](crate::matmul_parts).
    ///
    /// # Panics
    /// If `x` has another length.
    pub fn in_parts(pool: &'a Pool, x: &'a [f32], k: usize, sizes: &[usize]) -> Self {
        let m: usize = sizes.iter().sum();
        assert_eq!(Some(x.len()), m.checked_mul(k), "activations are [m, k]");
        Self::new_in_parts(pool, x, None, k, sizes)
    }

    /// The rows of `x`, `[rows, k]`, with these indices, in parts. They are copied only for float weights.
    ///
    /// # Panics
    /// If `x` has no such row, or there are not as many indices as rows of all parts.
    pub fn gathered(pool: &'a Pool, x: &'a [f32], k: usize, indices: &'a [usize], sizes: &[usize]) -> Self {
        let rows = x.len() / k.max(1);
        assert_eq!(sizes.iter().sum::<usize>(), indices.len(), "each row of a part has an index");
        assert!(indices.iter().all(|index| *index < rows), "an index is not below {rows}");
        Self::new_in_parts(pool, x, Some(indices), k, sizes)
    }

    fn new_in_parts(pool: &'a Pool, x: &'a [f32], indices: Option<&'a [usize]>, k: usize, sizes: &[usize]) -> Self {
        let layout = RowLayout { row_stride: k, ..RowLayout::ONE_SEGMENT };
        let (mut first_row, mut first_tile) = (0, 0);
        let part = |size: &usize| {
            let part = RowPart { first_row, first_tile, tiles: Tiles::new(1, *size, pool.isa()) };
            (first_row, first_tile) = (first_row + size, first_tile + part.tiles.count);
            part
        };
        let parts = sizes.iter().map(part).collect();
        let (quantised, pairs, gathered) = Default::default();
        Self { x, indices, layout, parts, k, pool, quantised, pairs, gathered }
    }

    /// The windows of a convolution as rows of `k` elements: `lines` lines of `rows_per_line` rows in a strip. For float
    /// weights only.
    ///
    /// # Panics
    /// If a window exceeds the strip.
    pub(crate) fn windows(
        pool: &'a Pool,
        strip: Strip<'a>,
        [lines, rows_per_line]: [usize; 2],
        k: usize,
        layout: RowLayout,
    ) -> Self {
        let RowLayout { segment_stride, segments, .. } = layout;
        let last_row = layout.offset(lines.max(1) - 1, rows_per_line.max(1) - 1);
        let last_segment = last_row + (segments - 1) * segment_stride;
        let (x, pairs, len) = match strip {
            Strip::Floats(x) => (x, OnceLock::new(), x.len()),
            Strip::Pairs(pairs) => {
                let len = pairs.len();
                (&[][..], OnceLock::from((pairs, layout)), len)
            }
        };
        assert!(k.is_multiple_of(segments) && last_segment + k / segments <= len, "a window exceeds the strip");
        let part = RowPart { first_row: 0, first_tile: 0, tiles: Tiles::new(lines, rows_per_line, pool.isa()) };
        let (quantised, gathered) = Default::default();
        Self { x, indices: None, layout, parts: SmallVec::from_buf([part]), k, pool, quantised, pairs, gathered }
    }

    /// Rows.
    pub fn m(&self) -> usize {
        self.parts.last().map_or(0, |last| last.first_row + last.tiles.m)
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Approximate number of elements that a row occupies; overlapping windows share elements.
    pub(crate) fn row_elements(&self) -> usize {
        match self.indices {
            Some(_) => self.k,
            None => self.pairs.get().map_or(0, |(pairs, _)| pairs.len()).max(self.x.len()) / self.m().max(1),
        }
    }

    /// Tiles of all parts.
    fn tile_count(&self) -> usize {
        self.parts.last().map_or(0, |last| last.first_tile + last.tiles.count)
    }

    /// The first row of a tile of all parts, and the number of its rows.
    fn tile_rows(&self, tile: usize) -> (usize, usize) {
        let part = self.parts[self.parts.partition_point(|part| part.first_tile <= tile) - 1];
        let (start, rows) = part.tiles.rows(tile - part.first_tile);
        (part.first_row + start, rows)
    }

    /// The elements of a row of a matrix.
    fn row(&self, row: usize) -> &[f32] {
        &self.x[self.indices.map_or(row, |indices| indices[row]) * self.k..][..self.k]
    }

    /// Prepares the rows for weights of this type, unless they are, and returns those of a part. To be called for each type before
    /// a parallel section, because preparing is one itself.
    pub(crate) fn part_rows(&self, dtype: DType, part: usize) -> PartRows {
        let RowPart { first_row, .. } = self.parts[part];
        let block_stats = std::ptr::null();
        if dtype.is_quantised() {
            let Quantised { codes, block_stats } = self.quantised();
            return PartRows {
                x: codes[first_row * self.k..].as_ptr().cast(),
                block_stats: block_stats[first_row * self.k / BLOCK * 4..].as_ptr(),
                layout: RowLayout::ONE_SEGMENT,
            };
        }
        if uses_bf16_pairs(dtype, self.pool.isa()) {
            let (pairs, layout) = self.pairs();
            let x = pairs[first_row * layout.row_stride..].as_ptr().cast();
            return PartRows { x, block_stats, layout: layout.in_bytes(size_of::<u16>()) };
        }
        let x = self.floats()[first_row * self.layout.row_stride..].as_ptr().cast();
        PartRows { x, block_stats, layout: self.layout.in_bytes(size_of::<f32>()) }
    }

    /// The elements of all rows, which `layout` describes.
    fn floats(&self) -> &[f32] {
        let Some(indices) = self.indices else { return self.x };
        self.gathered.get_or_init(|| {
            let mut floats = self.pool.buffers().take_floats();
            floats.resize(indices.len() * self.k, 0.0);
            let shared = SharedSlice::new(&mut floats);
            by_rows(self.pool, indices.len(), self.k, |first, rows| {
                for row in first..first + rows {
                    // SAFETY: no other task accesses this row.
                    unsafe { shared.get(row * self.k, self.k) }.copy_from_slice(self.row(row));
                }
            });
            floats
        })
    }

    pub(crate) fn quantised(&self) -> &Quantised {
        self.quantised.get_or_init(|| {
            let (tiles, blocks) = (self.tile_count(), self.m() * self.k / BLOCK);
            let Quantised { mut codes, mut block_stats } = self.pool.buffers().take_quantised();
            codes.resize(blocks * BLOCK, 0);
            block_stats.resize(blocks * 4, 0.0);
            let (shared_codes, shared_stats) = (SharedSlice::new(&mut codes), SharedSlice::new(&mut block_stats));
            let quantise = |tile: usize| {
                let (start, rows) = self.tile_rows(tile);
                let elements = rows * self.k;
                // SAFETY: no other task accesses this tile.
                let (codes, block_stats) = unsafe {
                    let stats_start = start * self.k / BLOCK * 4;
                    (shared_codes.get(start * self.k, elements), shared_stats.get(stats_start, elements / BLOCK * 4))
                };
                run(self.pool.isa(), QuantiseKernel { x: self, start, rows, codes, block_stats });
            };
            if blocks < MIN_PARALLEL_BLOCKS {
                (0..tiles).for_each(quantise);
            } else {
                self.pool.run(tiles, quantise);
            }
            Quantised { codes, block_stats }
        })
    }

    /// The activations rounded to bf16. Each row is padded to an even length.
    pub(crate) fn pairs(&self) -> &(Vec<u16>, RowLayout) {
        self.pairs.get_or_init(|| {
            let layout = RowLayout { row_stride: self.k.next_multiple_of(2), ..self.layout };
            let mut pairs = self.pool.buffers().take_pairs();
            pairs.resize(self.m() * layout.row_stride, 0);
            let shared = SharedSlice::new(&mut pairs);
            let round = |tile: usize| {
                let (start, rows) = self.tile_rows(tile);
                for row in start..start + rows {
                    // SAFETY: no other task accesses this row.
                    let out = unsafe { shared.get(row * layout.row_stride, layout.row_stride) };
                    out[self.k..].fill(0);
                    round_to_bf16(self.pool.isa(), self.row(row), out);
                }
            };
            if self.m() * self.k < MIN_PARALLEL_BLOCKS * BLOCK {
                (0..self.tile_count()).for_each(round);
            } else {
                self.pool.run(self.tile_count(), round);
            }
            (pairs, layout)
        })
    }
}

/// True if weights of this type are multiplied by activations rounded to bf16.
pub(crate) fn uses_bf16_pairs(dtype: DType, isa: Isa) -> bool {
    dtype == DType::BF16 && isa.has_bf16_dot()
}

/// A strip of padded images, as floats or as bf16.
pub(crate) enum Strip<'a> {
    Floats(&'a [f32]),
    Pairs(Vec<u16>),
}

/// Rounds each element to the nearest bf16; both slices have the same length.
pub(crate) fn round_to_bf16(isa: Isa, x: &[f32], out: &mut [u16]) {
    run_bf16(isa, RoundBf16Kernel { x, out });
}

struct RoundBf16Kernel<'a> {
    x: &'a [f32],
    out: &'a mut [u16],
}

impl Kernel for RoundBf16Kernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (out, x) in self.out.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            if x.len() == LANES && out.len() == LANES {
                // SAFETY: both slices have sixteen elements; features as `Kernel` says.
                unsafe { S::store_bf16(out.as_mut_ptr(), S::load(x.as_ptr())) };
            } else {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16_bits(*x));
            }
        }
    }
}

impl Drop for Activations<'_> {
    fn drop(&mut self) {
        if let Some(quantised) = self.quantised.take() {
            self.pool.buffers().recycle_quantised(quantised);
        }
        if let Some((pairs, _)) = self.pairs.take() {
            self.pool.buffers().recycle_pairs(pairs);
        }
        if let Some(floats) = self.gathered.take() {
            self.pool.buffers().recycle_floats(floats);
        }
    }
}

/// Quantises `rows` rows from `start` on, which are a tile.
struct QuantiseKernel<'a> {
    x: &'a Activations<'a>,
    start: usize,
    rows: usize,
    codes: &'a mut [i8],
    block_stats: &'a mut [f32],
}

impl Kernel for QuantiseKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, start, rows, codes, block_stats } = self;
        let blocks = x.k / BLOCK;
        for row in 0..rows {
            let x = x.row(start + row);
            for first in (0..blocks).step_by(LANES) {
                let count = LANES.min(blocks - first);
                let x = &x[first * BLOCK..][..count * BLOCK];
                let codes = &mut codes[first * rows * BLOCK..][..count * rows * BLOCK];
                let block_stats = &mut block_stats[first * rows * 4..][..count * rows * 4];
                let (mut scales, mut inverses) = ([0f32; LANES], [0f32; LANES]);
                for (scale, x) in scales.iter_mut().zip(x.chunks_exact(BLOCK)) {
                    // SAFETY: the block has 32 elements; features as `Kernel` says.
                    unsafe {
                        let (low, high) = (S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES)));
                        let bits = S::reduce_max_int(S::max_int(S::abs_bits(low), S::abs_bits(high)));
                        *scale = f32::from_bits(bits as u32);
                    }
                }
                // SAFETY: both arrays have sixteen elements.
                unsafe {
                    let scale = S::div(S::load(scales.as_ptr()), S::splat(127.0));
                    S::store(scales.as_mut_ptr(), scale);
                    // If the scale is so small that its inverse is infinite, the codes are zero.
                    let inverse = S::zero_where_le(S::div(S::splat(1.0), scale), scale, 1e-37);
                    S::store(inverses.as_mut_ptr(), inverse);
                }
                for block in 0..count {
                    let x = &x[block * BLOCK..][..BLOCK];
                    let codes = &mut codes[(block * rows + row) * BLOCK..][..BLOCK];
                    let block_stats = &mut block_stats[block * rows * 4..][..rows * 4];
                    // SAFETY: both slices have 32 elements.
                    let (first, second) = unsafe {
                        let inverse = S::splat(inverses[block]);
                        let low = S::to_int(S::mul(S::load(x.as_ptr()), inverse));
                        let high = S::to_int(S::mul(S::load(x.as_ptr().add(LANES)), inverse));
                        S::store_codes(codes.as_mut_ptr(), low, high)
                    };
                    block_stats[row] = scales[block];
                    block_stats[rows + row] = scales[block] * first.wrapping_add(second) as f32;
                    block_stats[2 * rows + row] = f32::from_bits(first.wrapping_neg() as u32);
                    block_stats[3 * rows + row] = f32::from_bits(second.wrapping_neg() as u32);
                }
            }
        }
    }
}
