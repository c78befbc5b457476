//! The left-hand side of a product: rows of floats, and their quantised or rounded forms.
//!
//! Rows are split into tiles, one for each kernel call. For quantised weights, a tile stores each block of 32 elements
//! for all its rows together, so that a kernel reads sequentially; for float weights, rows are read in place. A row's
//! values depend on that row alone.

use std::sync::OnceLock;

use crate::Pool;
use crate::buffer::Shards;
use crate::simd::{Isa, Kernel, LANES, Simd, bf16_bits, run, run_bf16};

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Fewer blocks than this run on one thread: about two microseconds.
const FEW: usize = 500;

/// Activations `[m, k]` for several matrices whose products run on the same pool.
///
/// They are quantised once, when the first matrix needs it: each block of 32 becomes 8-bit integers with an f32 scale,
/// `max |x| / 127`. A value that is not finite makes all outputs of its row not finite.
#[derive(Debug)]
pub struct Activations<'a> {
    pub(crate) x: &'a [f32],
    /// How rows are laid out in `x`.
    pub(crate) layout: RowLayout,
    pub(crate) tiles: Tiles,
    k: usize,
    pub(crate) pool: &'a Pool,
    quantised: OnceLock<Quantised>,
    pairs: OnceLock<(Vec<u16>, RowLayout)>,
}

/// The layout of rows in a buffer, in elements. A row of length k consists of equal contiguous segments: one for a
/// matrix, as many as the kernel's height for a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLayout {
    /// Stride between rows of a line,
    pub row: usize,
    /// between lines,
    pub line: usize,
    /// lines of an image,
    pub lines: usize,
    /// and stride between images.
    pub image: usize,
    /// Stride between segments.
    pub segment: usize,
    pub segments: usize,
}

impl RowLayout {
    /// One segment, with stride 0.
    pub const ONE: Self = Self { row: 0, line: 0, lines: 1, image: 0, segment: 0, segments: 1 };

    /// The same in bytes.
    pub fn bytes(&self, size: usize) -> Self {
        let Self { row, line, lines, image, segment, segments } = *self;
        Self { row: row * size, line: line * size, lines, image: image * size, segment: segment * size, segments }
    }

    /// The offset of a row of a line.
    #[inline(always)]
    pub fn place(&self, line: usize, row: usize) -> usize {
        line / self.lines * self.image + line % self.lines * self.line + row * self.row
    }
}

/// The split of rows into tiles: each line evenly, into as few tiles as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub m: usize,
    pub count: usize,
    pub isa: Isa,
    /// Rows and tiles of a line.
    pub line: usize,
    of_line: usize,
    /// Rows of a tile; the first `longer` tiles of a line have one more.
    each: usize,
    longer: usize,
}

impl Tiles {
    pub fn new(lines: usize, line: usize, isa: Isa) -> Self {
        let of_line = line.div_ceil(isa.rows()).max(1);
        let (each, longer) = (line / of_line, line % of_line);
        let count = if line == 0 { 0 } else { lines * of_line };
        Self { m: lines * line, count, isa, line, of_line, each, longer }
    }

    /// The first row of a tile; for one past the last tile, the number of rows.
    #[inline(always)]
    pub fn start(&self, tile: usize) -> usize {
        let within = tile % self.of_line;
        tile / self.of_line * self.line + within * self.each + within.min(self.longer)
    }

    /// The first row and the number of rows.
    #[inline(always)]
    pub fn rows(&self, tile: usize) -> (usize, usize) {
        (self.start(tile), self.each + usize::from(tile % self.of_line < self.longer))
    }

    /// Rows of the largest tile.
    pub fn most(&self) -> usize {
        self.each + usize::from(self.longer > 0)
    }
}

/// For a tile of r rows that starts at row s: codes at `s * k`, `[k / 32, r, 32]`; block statistics at `s * k / 32 *
/// 4`, `[k / 32, 4, r]`: scale; scale · sum; and, as integers, minus the sums of the first and the second sixteen
/// codes.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub codes: Vec<i8>,
    pub block_stats: Vec<f32>,
}

impl<'a> Activations<'a> {
    /// `x`: `[m, k]`
    ///
    /// # Panics
    /// If `x` has another length.
    pub fn new(pool: &'a Pool, x: &'a [f32], m: usize, k: usize) -> Self {
        assert_eq!(Some(x.len()), m.checked_mul(k), "activations are [m, k]");
        let layout = RowLayout { row: k, ..RowLayout::ONE };
        let (quantised, pairs) = Default::default();
        Self { x, layout, tiles: Tiles::new(1, m, pool.isa()), k, pool, quantised, pairs }
    }

    /// Windows of a strip of floats, or of bf16 where the weights use it: `lines` times `line` rows of `k` elements.
    /// For float weights only.
    ///
    /// # Panics
    /// If a window lies outside the strip.
    pub(crate) fn windows(
        pool: &'a Pool,
        strip: Strip<'a>,
        [lines, line]: [usize; 2],
        k: usize,
        layout: RowLayout,
    ) -> Self {
        let RowLayout { segment, segments, .. } = layout;
        let last = layout.place(lines.max(1) - 1, line.max(1) - 1) + (segments - 1) * segment;
        let (x, pairs, len) = match strip {
            Strip::Floats(x) => (x, OnceLock::new(), x.len()),
            Strip::Pairs(pairs) => {
                let len = pairs.len();
                (&[][..], OnceLock::from((pairs, layout)), len)
            }
        };
        assert!(k.is_multiple_of(segments) && last + k / segments <= len, "windows lie in the strip");
        let tiles = Tiles::new(lines, line, pool.isa());
        Self { x, layout, tiles, k, pool, quantised: OnceLock::new(), pairs }
    }

    /// Rows.
    pub fn m(&self) -> usize {
        self.tiles.m
    }

    /// Numbers in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Approximate elements of a row; windows overlap.
    pub(crate) fn row_numbers(&self) -> usize {
        self.pairs.get().map_or(0, |(pairs, _)| pairs.len()).max(self.x.len()) / self.tiles.m.max(1)
    }

    pub(crate) fn quantised(&self) -> &Quantised {
        self.quantised.get_or_init(|| {
            let blocks = self.tiles.m * self.k / BLOCK;
            let Quantised { mut codes, mut block_stats } = self.pool.buffers().take_quantised();
            codes.resize(blocks * BLOCK, 0);
            block_stats.resize(blocks * 4, 0.0);
            let (to, about) = (Shards::new(&mut codes), Shards::new(&mut block_stats));
            let quantise = |tile: usize| {
                let (start, rows) = self.tiles.rows(tile);
                let x = &self.x[start * self.k..(start + rows) * self.k];
                // SAFETY: a tile's places are its own.
                let (codes, block_stats) = unsafe {
                    (to.get(start * self.k, x.len()), about.get(start * self.k / BLOCK * 4, x.len() / BLOCK * 4))
                };
                run(self.tiles.isa, Quantise { x, rows, codes, block_stats });
            };
            if blocks < FEW {
                (0..self.tiles.count).for_each(quantise);
            } else {
                self.pool.run(self.tiles.count, quantise);
            }
            Quantised { codes, block_stats }
        })
    }

    /// The same values rounded to bf16, each row padded to an even length.
    pub(crate) fn pairs(&self) -> &(Vec<u16>, RowLayout) {
        self.pairs.get_or_init(|| {
            let layout = RowLayout { row: self.k.next_multiple_of(2), ..self.layout };
            let mut pairs = self.pool.buffers().take_pairs();
            pairs.resize(self.tiles.m * layout.row, 0);
            let to = Shards::new(&mut pairs);
            let round = |tile: usize| {
                let (start, rows) = self.tiles.rows(tile);
                for row in start..start + rows {
                    // SAFETY: a row's places are its own.
                    let to = unsafe { to.get(row * layout.row, layout.row) };
                    to[self.k..].fill(0);
                    to_bf16(self.tiles.isa, &self.x[row * self.k..][..self.k], to);
                }
            };
            if self.x.len() < FEW * BLOCK {
                (0..self.tiles.count).for_each(round);
            } else {
                self.pool.run(self.tiles.count, round);
            }
            (pairs, layout)
        })
    }
}

/// A strip of windows.
pub(crate) enum Strip<'a> {
    Floats(&'a [f32]),
    Pairs(Vec<u16>),
}

/// Rounds to the nearest bf16; both slices have the same length.
pub(crate) fn to_bf16(isa: Isa, x: &[f32], out: &mut [u16]) {
    run_bf16(isa, RoundBf16 { x, out });
}

/// The same as part of a kernel.
pub(crate) struct RoundBf16<'a> {
    pub x: &'a [f32],
    pub out: &'a mut [u16],
}

impl Kernel for RoundBf16<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (out, x) in self.out.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            if x.len() == LANES && out.len() == LANES {
                // SAFETY: sixteen of both; features as `Kernel` says.
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
            self.pool.buffers().give_quantised(quantised);
        }
        if let Some((pairs, _)) = self.pairs.take() {
            self.pool.buffers().give_pairs(pairs);
        }
    }
}

/// Buffers of dropped activations, for reuse: fresh pages would cost more than the work on them. The largest of each
/// kind is kept.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    quantised: Quantised,
    pairs: Vec<u16>,
    floats: Vec<f32>,
}

impl BufferPool {
    pub fn take_quantised(&mut self) -> Quantised {
        std::mem::take(&mut self.quantised)
    }

    pub fn take_pairs(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.pairs)
    }

    pub fn take_floats(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.floats)
    }

    fn give_quantised(&mut self, quantised: Quantised) {
        if quantised.codes.capacity() > self.quantised.codes.capacity() {
            self.quantised = quantised;
        }
    }

    fn give_pairs(&mut self, pairs: Vec<u16>) {
        if pairs.capacity() > self.pairs.capacity() {
            self.pairs = pairs;
        }
    }

    pub fn give_floats(&mut self, floats: Vec<f32>) {
        if floats.capacity() > self.floats.capacity() {
            self.floats = floats;
        }
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    rows: usize,
    codes: &'a mut [i8],
    block_stats: &'a mut [f32],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, rows, codes, block_stats } = self;
        let blocks = x.len() / rows / BLOCK;
        for row in 0..rows {
            for first in (0..blocks).step_by(LANES) {
                let count = LANES.min(blocks - first);
                let x = &x[(row * blocks + first) * BLOCK..][..count * BLOCK];
                let codes = &mut codes[first * rows * BLOCK..][..count * rows * BLOCK];
                let block_stats = &mut block_stats[first * rows * 4..][..count * rows * 4];
                let (mut scales, mut inverses) = ([0f32; LANES], [0f32; LANES]);
                for (scale, x) in scales.iter_mut().zip(x.chunks_exact(BLOCK)) {
                    // SAFETY: the block holds the 32 numbers that are read; features as `Kernel` says.
                    unsafe {
                        let (low, high) = (S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES)));
                        let bits = S::maximum_int(S::max_int(S::magnitude(low), S::magnitude(high)));
                        *scale = f32::from_bits(bits as u32);
                    }
                }
                // SAFETY: both have sixteen numbers.
                unsafe {
                    let scale = S::div(S::load(scales.as_ptr()), S::splat(127.0));
                    S::store(scales.as_mut_ptr(), scale);
                    // If the scale is so small that its inverse is infinite, the codes are zero.
                    let inverse = S::keep_above(S::div(S::splat(1.0), scale), scale, 1e-37);
                    S::store(inverses.as_mut_ptr(), inverse);
                }
                for block in 0..count {
                    let x = &x[block * BLOCK..][..BLOCK];
                    let to = &mut codes[(block * rows + row) * BLOCK..][..BLOCK];
                    let block_stats = &mut block_stats[block * rows * 4..][..rows * 4];
                    // SAFETY: both slices hold the 32 numbers that are touched.
                    let (first, second) = unsafe {
                        let inverse = S::splat(inverses[block]);
                        let low = S::int(S::mul(S::load(x.as_ptr()), inverse));
                        let high = S::int(S::mul(S::load(x.as_ptr().add(LANES)), inverse));
                        S::store_codes(to.as_mut_ptr(), low, high)
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
