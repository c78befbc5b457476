//! The inner loops of matrix products: one group of 16 output columns times one tile of rows.
//!
//! The order of operations of an output depends on k alone: blocks in order, one float accumulator, and integers (exact
//! in any order) within a block. So a row gives the same bits in any batch.

use std::marker::PhantomData;

use crate::activations::{RowLayout, Tiles};
use crate::buffer::LINE;
use crate::dtype::{DType, NONLINEAR};
use crate::pack::{FLOATS, Layout};
use crate::simd::{Isa, Kernel, LANES, Simd, load_part, run, run_bf16, store_part};

/// Prefetch distance in bytes, in a single pass over weights.
const PREFETCH_BYTES: usize = 8192;

/// How a quantised type's tile is read.
pub(crate) trait QuantFormat {
    const DTYPE: DType;
    const LAYOUT: Layout = Layout::of(Self::DTYPE);
    /// log2 of the offset that is subtracted from each code; 0 for none.
    const OFFSET: u32 = 0;
    /// Whether there is a minimum term.
    const MINIMUM: bool = false;
    /// Whether a tile has two scales.
    const HALVES: bool = false;
    /// Whether codes are signed bytes.
    const SIGNED: bool = false;
    /// A table that nibbles index.
    const TABLE: Option<&'static [i8; 16]> = None;

    /// The scales and minima of a tile's halves; the second are used with `HALVES` only.
    ///
    /// # Safety
    /// As [`Simd`] says; `head` and `tile` point into a group.
    #[inline(always)]
    unsafe fn scales<S: Simd>(head: (S::F, S::F), _tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
        ([head.0; 2], [head.1; 2])
    }
}

macro_rules! format {
    ($name:ident $(, $constant:ident: $type:ty = $value:expr)*) => {
        pub(crate) struct $name;
        impl QuantFormat for $name {
            const DTYPE: DType = DType::$name;
            $(const $constant: $type = $value;)*
        }
    };
}

format!(Q8_0, SIGNED: bool = true);
format!(Q4_0, OFFSET: u32 = 3);
format!(Q4_1, MINIMUM: bool = true);
format!(Q5_0, OFFSET: u32 = 4);
format!(Q5_1, MINIMUM: bool = true);
format!(IQ4NL, SIGNED: bool = true, TABLE: Option<&'static [i8; 16]> = Some(&NONLINEAR));

/// Types with scales of scales in each tile.
macro_rules! k_format {
    ($name:ident, $scales:ident $(, $constant:ident: $type:ty = $value:expr)*) => {
        pub(crate) struct $name;
        impl QuantFormat for $name {
            const DTYPE: DType = DType::$name;
            $(const $constant: $type = $value;)*

            #[inline(always)]
            unsafe fn scales<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
                // SAFETY: a tile begins with its scales; features as `Simd` says.
                unsafe { $scales::<S>(head, tile) }
            }
        }
    };
}

k_format!(Q2K, nibble_scales, MINIMUM: bool = true, HALVES: bool = true);
k_format!(Q3K, two_scales, OFFSET: u32 = 2, HALVES: bool = true);
k_format!(Q4K, scale_and_minimum, MINIMUM: bool = true);
k_format!(Q5K, scale_and_minimum, MINIMUM: bool = true);
k_format!(Q6K, two_scales, OFFSET: u32 = 5, HALVES: bool = true);
k_format!(IQ4XS, one_scale, SIGNED: bool = true, TABLE: Option<&'static [i8; 16]> = Some(&NONLINEAR));

/// One byte: the scale of the scale.
///
/// # Safety
/// As [`QuantFormat::scales`] says; the same holds for the functions below.
#[inline(always)]
unsafe fn one_scale<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 16 bytes of scales.
    unsafe { ([S::mul(head.0, S::load_i8(tile.cast())); 2], [head.1; 2]) }
}

/// One byte for each half.
#[inline(always)]
unsafe fn two_scales<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 32 bytes of scales.
    unsafe {
        let (first, second) = (S::load_i8(tile.cast()), S::load_i8(tile.add(LANES).cast()));
        ([S::mul(head.0, first), S::mul(head.0, second)], [head.1; 2])
    }
}

/// One byte for the scale's scale and one for the minimum's, which is subtracted.
#[inline(always)]
unsafe fn scale_and_minimum<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 32 bytes of scales and minima.
    unsafe {
        let minimum = S::mul(head.1, S::load_u8(tile.add(LANES)));
        ([S::mul(head.0, S::load_u8(tile)); 2], [S::sub(S::splat(0.0), minimum); 2])
    }
}

/// One byte for each half: four bits for the scale's scale, and four above for the minimum's.
#[inline(always)]
unsafe fn nibble_scales<S: Simd>(head: (S::F, S::F), tile: *const u8) -> ([S::F; 2], [S::F; 2]) {
    // SAFETY: the tile begins with 32 such bytes.
    unsafe {
        let both = [S::load_u8(tile), S::load_u8(tile.add(LANES))];
        let [mut scales, mut minima] = [both; 2];
        for half in 0..2 {
            // Uses the upper bits, since (byte - 7.5) / 16 is never half-way between two integers.
            let above = S::nearest(S::mul(S::sub(both[half], S::splat(7.5)), S::splat(0.0625)));
            scales[half] = S::mul(head.0, S::fma(above, S::splat(-16.0), both[half]));
            minima[half] = S::mul(head.1, S::sub(S::splat(0.0), above));
        }
        (scales, minima)
    }
}

/// Units `j` and `j + 4` of a tile as bytes: the weights `4j ..` and `16 + 4j ..` of each row.
///
/// # Safety
/// As [`Simd`] says; `tile` points to a tile of the format.
#[inline(always)]
unsafe fn units<S: Simd, F: QuantFormat>(tile: *const u8, j: usize) -> (S::B, S::B) {
    let layout = const { F::LAYOUT };
    // SAFETY: all within the tile, by its layout.
    unsafe {
        let high = tile.add(layout.scales);
        let low = high.add(layout.high);
        let (a, b, next) = match layout.low {
            512 => (S::load_bytes(low.add(j * 64)), S::load_bytes(low.add((j + 4) * 64)), 0),
            256 => {
                let both = S::load_bytes(low.add(j * 64));
                (S::low_nibbles(both), S::high_nibbles(both), 16)
            }
            _ => {
                let four = S::load_bytes(low.add(j % 2 * 64));
                (S::pair(four, j / 2), S::pair(four, 2 + j / 2), 4)
            }
        };
        if let Some(table) = F::TABLE {
            return (S::look_up(a, table), S::look_up(b, table));
        }
        match layout.high {
            64 => (S::add_bit(a, high.add(j * 8), next), S::add_bit(b, high.add((j + 4) * 8), next)),
            128 => {
                let pairs = S::load_bytes(high.add(j % 2 * 64));
                (S::add_pair(a, pairs, j / 2), S::add_pair(b, pairs, 2 + j / 2))
            }
            _ => (a, b),
        }
    }
}

/// Adds units `j` and `j + 4` of a tile, for all rows. A closure would not work here: it is not compiled with the
/// features of its surroundings.
///
/// # Safety
/// As [`units`] says; `x` points to 32 codes for each of `R` rows.
#[inline(always)]
unsafe fn unit<S: Simd, F: QuantFormat, const R: usize>(
    sums: &mut [[S::I; R]; 2],
    tile: *const u8,
    x: *const i8,
    j: usize,
) {
    // SAFETY: all within the tile and the codes.
    unsafe {
        let (a, b) = units::<S, F>(tile, j);
        let [first, second] = sums;
        for row in 0..R {
            let xa = x.add(row * 32 + j * 4);
            let xb = xa.add(16);
            if F::HALVES {
                first[row] = S::dot(first[row], a, xa);
                second[row] = S::dot(second[row], b, xb);
            } else if F::SIGNED {
                first[row] = S::dot_signed(S::dot_signed(first[row], a, xa), b, xb);
            } else {
                first[row] = S::dot_two(first[row], a, xa, b, xb);
            }
        }
    }
}

/// Consecutive groups, each times a run of tiles: one call for all, because a group may take less than a tenth of a
/// microsecond.
pub(crate) struct Block {
    /// The packed groups, over all k.
    pub weights: *const u8,
    pub group_bytes: usize,
    /// Blocks of 32 (quantised) or spans of four (floats) in a row.
    pub steps: usize,
    /// Floats after the last whole span.
    pub rest: usize,
    /// Approximate spans of floats that are processed for all rows before the next ones; that part of a group stays in
    /// the cache.
    pub depth: usize,
    /// Codes of all rows, floats, or bf16 pairs,
    pub x: *const u8,
    /// and their layout in bytes.
    pub layout: RowLayout,
    /// Block statistics of all rows; unused for floats.
    pub block_stats: *const f32,
    pub tiles: Tiles,
    /// The range of tiles.
    pub first: usize,
    pub last: usize,
    /// The output of the first row and the first group; `stride` floats between rows.
    pub out: *mut f32,
    pub stride: usize,
    /// Existing columns, up to 16 for each group.
    pub columns: usize,
    /// The bias of each group, `[16]`, or null.
    pub bias: *const f32,
}

/// Prefetching of weights, spread evenly over the work on a group, because a step takes longer than the CPU's own
/// look-ahead.
#[derive(Clone, Copy)]
struct Prefetch {
    /// Distance from a group's start; `None`: after the groups that are processed together.
    ahead: Option<usize>,
    /// Lines for each step.
    lines: usize,
    /// Tiles over which they are spread.
    tiles: usize,
}

impl Prefetch {
    /// What to prefetch while `steps` steps of a group are processed for `tiles` tiles. With one tile, the weights are
    /// read once, so a fixed distance ahead; with several, the group stays in the cache, so the next group.
    #[inline(always)]
    fn new(bytes: usize, steps: usize, tiles: usize) -> Self {
        let lines = bytes.div_ceil(LINE);
        let each = lines.div_ceil(steps * tiles);
        let ahead = if tiles == 1 { Some(PREFETCH_BYTES) } else { None };
        // A row shorter than a span has no steps, so nothing is prefetched.
        Self { ahead, lines: each, tiles: lines.div_ceil((steps * each).max(1)) }
    }
}

/// Some spans of all rows: whole segments, or a part of one.
#[derive(Clone, Copy)]
struct Spans {
    /// The range of segments.
    segments: (usize, usize),
    /// The first span in each segment, and the count.
    first: usize,
    count: usize,
    /// Spans in a whole segment.
    whole: usize,
}

impl Spans {
    /// The part of about `depth` spans that starts here, in rows of `segments` segments.
    #[inline(always)]
    fn new(segments: usize, whole: usize, depth: usize, (segment, first): (usize, usize)) -> Self {
        if whole <= depth {
            let together = depth / whole.max(1);
            return Self { segments: (segment, segments.min(segment + together)), first: 0, count: whole, whole };
        }
        let each = whole.div_ceil(whole.div_ceil(depth));
        Self { segments: (segment, segment + 1), first, count: each.min(whole - first), whole }
    }

    /// Where the next part starts.
    #[inline(always)]
    fn end(&self) -> (usize, usize) {
        let end = self.first + self.count;
        if end == self.whole { (self.segments.1, 0) } else { (self.segments.0, end) }
    }

    /// Whether this part ends the rows.
    #[inline(always)]
    fn is_last(&self, segments: usize) -> bool {
        self.end().0 == segments
    }

    #[inline(always)]
    fn total(&self) -> usize {
        (self.segments.1 - self.segments.0) * self.count
    }

    /// Spans before this part.
    #[inline(always)]
    fn before(&self) -> usize {
        self.segments.0 * self.whole + self.first
    }
}

/// One group times one tile.
#[derive(Clone, Copy)]
struct Work {
    group: usize,
    /// The group's weights.
    weights: *const u8,
    spans: Spans,
    /// The tile's first row.
    start: usize,
    /// Where to prefetch, and how many lines for each step.
    ask: *const u8,
    lines: usize,
}

impl Block {
    #[inline(always)]
    unsafe fn work(
        &self,
        group: usize,
        together: usize,
        tile: usize,
        start: usize,
        spans: Spans,
        prefetch: Prefetch,
    ) -> Work {
        let Prefetch { ahead, lines, tiles } = prefetch;
        let tile = tile - self.first;
        // SAFETY: there is such a group.
        let weights = unsafe { self.weights.add(group * self.group_bytes) };
        let ahead = ahead.unwrap_or(together * self.group_bytes);
        let ask = weights.wrapping_add(ahead + tile * spans.total() * lines * LINE);
        Work { group, weights, spans, start, ask, lines: if tile < tiles { lines } else { 0 } }
    }

    /// The partial sums of earlier spans.
    #[inline(always)]
    unsafe fn begin<S: Simd, const R: usize>(&self, group: usize, start: usize) -> [S::F; R] {
        let columns = (self.columns - group * LANES).min(LANES);
        // SAFETY: the output has `columns` places in each row, which were written then.
        unsafe {
            let mut sums = [S::splat(0.0); R];
            for row in 0..R {
                let out = self.out.add((start + row) * self.stride + group * LANES);
                sums[row] = if columns == LANES { S::load(out) } else { load_part::<S>(out, columns) };
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn finish<S: Simd, const R: usize>(&self, work: &Work, sums: [S::F; R]) {
        let first = work.group * LANES;
        let columns = (self.columns - first).min(LANES);
        for (row, sum) in sums.into_iter().enumerate() {
            // SAFETY: the output has `columns` places in each row, the bias 16 for each group.
            unsafe {
                let biased = !self.bias.is_null() && work.spans.is_last(self.layout.segments);
                let sum = if biased { S::add(sum, S::load(self.bias.add(first))) } else { sum };
                let out = self.out.add((work.start + row) * self.stride + first);
                if columns == LANES { S::store(out, sum) } else { store_part::<S>(out, sum, columns) }
            }
        }
    }

    /// # Safety
    /// The pointers are good for what the fields say, and the tile has `R` rows.
    #[inline(always)]
    unsafe fn quantised<S: Simd, F: QuantFormat, const R: usize>(&self, work: Work) {
        let layout = const { F::LAYOUT };
        let biased = F::SIGNED && S::BIASED;
        // SAFETY: pointers advance over the group, the codes and the facts in step, to their ends.
        unsafe {
            let mut sums = [S::splat(0.0); R];
            let (mut weights, mut x) = (work.weights, self.x.add(work.start * self.steps * 32).cast::<i8>());
            let mut block_stats = self.block_stats.add(work.start * self.steps * 4);
            let mut ask = work.ask;
            for _ in 0..self.steps / layout.span {
                let d = S::load_f16(weights.cast());
                let head = (d, if layout.head == 64 { S::load_f16(weights.add(32).cast()) } else { d });
                weights = weights.add(layout.head);
                for _ in 0..layout.span {
                    for _ in 0..work.lines {
                        S::prefetch(ask);
                        ask = ask.wrapping_add(LINE);
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
                    let mut both = [first, second];
                    unit::<S, F, R>(&mut both, weights, x, 0);
                    unit::<S, F, R>(&mut both, weights, x, 1);
                    unit::<S, F, R>(&mut both, weights, x, 2);
                    unit::<S, F, R>(&mut both, weights, x, 3);
                    let [first, second] = both;
                    for row in 0..R {
                        let scale = S::splat(*block_stats.add(row));
                        sums[row] = S::fma(S::float(first[row]), S::mul(scales[0], scale), sums[row]);
                        if F::HALVES {
                            sums[row] = S::fma(S::float(second[row]), S::mul(scales[1], scale), sums[row]);
                        }
                        if F::MINIMUM && F::HALVES {
                            for half in 0..2 {
                                let less = block_stats.add((2 + half) * R + row).cast::<i32>().read();
                                let sum = *block_stats.add(row) * less.wrapping_neg() as f32;
                                sums[row] = S::fma(minima[half], S::splat(sum), sums[row]);
                            }
                        } else if F::MINIMUM {
                            sums[row] = S::fma(minima[0], S::splat(*block_stats.add(R + row)), sums[row]);
                        }
                    }
                    weights = weights.add(layout.tile());
                    x = x.add(R * 32);
                    block_stats = block_stats.add(R * 4);
                }
            }
            self.finish::<S, R>(&work, sums);
        }
    }

    /// `G` groups at once: each activation is then loaded once for `G` products.
    ///
    /// # Safety
    /// The pointers are good for what the fields say, and the tile has `R` rows, of one line.
    #[inline(always)]
    unsafe fn floats<S: Simd, F: FloatFormat, const R: usize, const G: usize>(&self, work: Work) {
        let (RowLayout { row, segment, segments, .. }, spans) = (self.layout, work.spans);
        let (at, within) = (work.start / self.tiles.line, work.start % self.tiles.line);
        let span = const { Layout::of(F::DTYPE).low };
        // SAFETY: pointers advance over the groups and the rows' segments in step, to their ends.
        unsafe {
            let mut sums = [[S::splat(0.0); R]; G];
            if spans.before() > 0 {
                for group in 0..G {
                    sums[group] = self.begin::<S, R>(work.group + group, work.start);
                }
            }
            let skipped = spans.before() * span;
            let (mut weights, mut ask) = (work.weights.add(skipped), work.ask.wrapping_add(skipped));
            let first = self.x.add(self.layout.place(at, within) + spans.first * FLOATS * F::X);
            for index in spans.segments.0..spans.segments.1 {
                let mut x = first.add(index * segment);
                for _ in 0..spans.count {
                    for _ in 0..work.lines {
                        for group in 0..G {
                            S::prefetch(ask.wrapping_add(group * self.group_bytes));
                        }
                        ask = ask.wrapping_add(LINE);
                    }
                    F::multiply::<S, R, G>(&mut sums, (weights, self.group_bytes), x, row);
                    weights = weights.add(span);
                    x = x.add(FLOATS * F::X);
                }
                if self.rest > 0 && spans.is_last(segments) {
                    F::multiply_rest::<S, R, G>(&mut sums, (weights, self.group_bytes), x, row, self.rest);
                }
            }
            for (group, sums) in sums.into_iter().enumerate() {
                self.finish::<S, R>(&Work { group: work.group + group, ..work }, sums);
            }
        }
    }
}

/// How spans of floats are multiplied: k in order, one accumulator for each output.
trait FloatFormat {
    const DTYPE: DType;
    /// Bytes of an activation.
    const X: usize = size_of::<f32>();

    /// The weights of two k.
    ///
    /// # Safety
    /// As [`Simd`] says; `weights` points to the place of an even k in a group.
    unsafe fn two<S: Simd>(weights: *const u8) -> (S::F, S::F);

    /// Adds the products of a span of `G` groups with four activations of each of `R` rows. The distances between
    /// groups and between rows are in bytes.
    ///
    /// # Safety
    /// As [`Simd`] says; `weights` is a span, and `x` has the numbers.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        (weights, apart): (*const u8, usize),
        x: *const u8,
        row: usize,
    ) {
        // SAFETY: within the spans and the numbers.
        unsafe {
            for pair in 0..FLOATS / 2 {
                let mut both = [(S::splat(0.0), S::splat(0.0)); G];
                for group in 0..G {
                    let weights = weights.add(group * apart);
                    both[group] = Self::two::<S>(weights.add(const { Layout::of(Self::DTYPE).low / 2 } * pair));
                }
                for at in 0..R {
                    let x = x.add(at * row).cast::<f32>().add(2 * pair);
                    let (first, second) = (S::splat(*x), S::splat(*x.add(1)));
                    for group in 0..G {
                        sums[group][at] = S::fma(both[group].0, first, sums[group][at]);
                    }
                    for group in 0..G {
                        sums[group][at] = S::fma(both[group].1, second, sums[group][at]);
                    }
                }
            }
        }
    }

    /// The same for the last elements, fewer than four.
    ///
    /// # Safety
    /// As [`FloatFormat::multiply`] says.
    #[inline(always)]
    unsafe fn multiply_rest<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        (weights, apart): (*const u8, usize),
        x: *const u8,
        row: usize,
        count: usize,
    ) {
        // SAFETY: within the spans and the numbers.
        unsafe {
            for group in 0..G {
                for k in 0..count {
                    let place = weights.add(group * apart + const { Layout::of(Self::DTYPE).low / 2 } * (k / 2));
                    let two = Self::two::<S>(place);
                    let weights = if k % 2 == 0 { two.0 } else { two.1 };
                    for at in 0..R {
                        let x = x.add(at * row).cast::<f32>().add(k);
                        sums[group][at] = S::fma(weights, S::splat(*x), sums[group][at]);
                    }
                }
            }
        }
    }
}

struct F32;
struct F16;
struct BF16;
/// BF16 weights times activations rounded to bf16, two k at a time.
struct Pairs;

impl FloatFormat for F32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: two times 16 numbers.
        unsafe { (S::load(weights.cast()), S::load(weights.cast::<f32>().add(LANES))) }
    }
}

impl FloatFormat for F16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    unsafe fn two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: two times 16 numbers.
        unsafe { (S::load_f16(weights.cast()), S::load_f16(weights.cast::<u16>().add(LANES))) }
    }
}

impl FloatFormat for BF16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    unsafe fn two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: 16 pairs.
        unsafe { S::load_pairs(weights) }
    }
}

impl FloatFormat for Pairs {
    const DTYPE: DType = DType::BF16;
    const X: usize = size_of::<u16>();

    #[inline(always)]
    unsafe fn two<S: Simd>(weights: *const u8) -> (S::F, S::F) {
        // SAFETY: as the caller says.
        unsafe { BF16::two::<S>(weights) }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        weights: (*const u8, usize),
        x: *const u8,
        row: usize,
    ) {
        // SAFETY: within the span and the pairs.
        unsafe { pairs::<S, R, G>(sums, weights, x, row, FLOATS / 2) }
    }

    #[inline(always)]
    unsafe fn multiply_rest<S: Simd, const R: usize, const G: usize>(
        sums: &mut [[S::F; R]; G],
        weights: (*const u8, usize),
        x: *const u8,
        row: usize,
        count: usize,
    ) {
        // SAFETY: within the span and the pairs, which are filled up with a zero.
        unsafe { pairs::<S, R, G>(sums, weights, x, row, count.div_ceil(2)) }
    }
}

/// Adds the products of `count` pairs.
///
/// # Safety
/// As [`FloatFormat::multiply`] says.
#[inline(always)]
unsafe fn pairs<S: Simd, const R: usize, const G: usize>(
    sums: &mut [[S::F; R]; G],
    (weights, apart): (*const u8, usize),
    x: *const u8,
    row: usize,
    count: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        for pair in 0..count {
            for at in 0..R {
                let x = x.add(at * row).cast::<u32>().add(pair).read_unaligned();
                for group in 0..G {
                    let weights = weights.add(group * apart + pair * 4 * LANES);
                    sums[group][at] = S::dot_pairs(sums[group][at], weights, x);
                }
            }
        }
    }
}

/// How a tile of `R` rows is computed.
trait WeightFormat {
    /// Whether two groups at a time are faster, if registers allow.
    const TWO: bool;

    /// # Safety
    /// The pointers are good for what the block's fields say, and the tile has `R` rows; there are `G` groups from
    /// the work's on.
    unsafe fn tile<S: Simd, const R: usize, const G: usize>(block: &Block, work: Work);
}

/// Products with quantised weights, and with float weights.
struct Quantised<F>(PhantomData<F>);
struct Plain<F>(PhantomData<F>);

impl<F: QuantFormat> WeightFormat for Quantised<F> {
    const TWO: bool = false;

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const G: usize>(block: &Block, work: Work) {
        // SAFETY: as the caller says.
        unsafe { block.quantised::<S, F, R>(work) }
    }
}

impl<F: FloatFormat> WeightFormat for Plain<F> {
    const TWO: bool = true;

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const G: usize>(block: &Block, work: Work) {
        // SAFETY: as the caller says.
        unsafe { block.floats::<S, F, R, G>(work) }
    }
}

struct Product<'a, F> {
    block: &'a Block,
    form: PhantomData<F>,
}

impl<F: WeightFormat> Kernel for Product<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Block { steps, layout: RowLayout { segments, .. }, columns, .. } = *self.block;
        let (groups, mut begin) = (columns.div_ceil(LANES), (0, 0));
        // With few rows, memory is the limit, and one stream is fastest.
        let two = F::TWO && S::ROWS > 4 && self.block.tiles.most() > 4;
        while begin.0 < segments {
            let spans = Spans::new(segments, steps / segments, self.block.depth, begin);
            let mut group = 0;
            // SAFETY: whoever made the block vouches for its pointers.
            unsafe {
                while two && group + 2 <= groups {
                    self.groups::<S, 2>(group, spans);
                    group += 2;
                }
                while group < groups {
                    self.groups::<S, 1>(group, spans);
                    group += 1;
                }
            }
            begin = spans.end();
        }
    }
}

impl<F: WeightFormat> Product<'_, F> {
    /// `G` groups from this one on, times all tiles.
    ///
    /// # Safety
    /// As [`WeightFormat::tile`] says.
    #[inline(always)]
    unsafe fn groups<S: Simd, const G: usize>(&self, group: usize, spans: Spans) {
        let Block { steps, group_bytes, tiles, first, last, .. } = *self.block;
        let prefetch = Prefetch::new(group_bytes * spans.total() / steps.max(1), spans.total().max(1), last - first);
        for tile in first..last {
            let (start, count) = tiles.rows(tile);
            // SAFETY: as the caller says.
            unsafe {
                let work = self.block.work(group, G, tile, start, spans, prefetch);
                self.tile::<S, G>(work, count);
            }
        }
    }

    /// # Safety
    /// As [`WeightFormat::tile`] says.
    #[inline(always)]
    unsafe fn tile<S: Simd, const G: usize>(&self, work: Work, rows: usize) {
        // SAFETY: as the caller says.
        unsafe {
            match rows {
                1 => F::tile::<S, 1, G>(self.block, work),
                2 => F::tile::<S, 2, G>(self.block, work),
                3 => F::tile::<S, 3, G>(self.block, work),
                4 => F::tile::<S, 4, G>(self.block, work),
                5 if S::ROWS > 4 => F::tile::<S, 5, G>(self.block, work),
                6 if S::ROWS > 4 => F::tile::<S, 6, G>(self.block, work),
                7 if S::ROWS > 4 => F::tile::<S, 7, G>(self.block, work),
                8 if S::ROWS > 4 => F::tile::<S, 8, G>(self.block, work),
                9 if S::ROWS > 8 => F::tile::<S, 9, G>(self.block, work),
                10 if S::ROWS > 8 => F::tile::<S, 10, G>(self.block, work),
                11 if S::ROWS > 8 => F::tile::<S, 11, G>(self.block, work),
                12 if S::ROWS > 8 => F::tile::<S, 12, G>(self.block, work),
                rows => debug_assert_eq!(rows, 0, "more rows than the path takes"),
            }
        }
    }
}

/// Whether products with this type take activations as bf16 pairs.
pub(crate) fn uses_bf16_pairs(dtype: DType, isa: Isa) -> bool {
    dtype == DType::BF16 && isa.has_bf16_dot()
}

/// Runs a block of weights of this type.
pub(crate) fn multiply(dtype: DType, block: &Block) {
    fn with<F: WeightFormat>(block: &Block) {
        run(block.tiles.isa, Product::<F> { block, form: PhantomData });
    }
    match dtype {
        DType::F32 => with::<Plain<F32>>(block),
        DType::F16 => with::<Plain<F16>>(block),
        DType::BF16 if uses_bf16_pairs(dtype, block.tiles.isa) => {
            run_bf16(block.tiles.isa, Product::<Plain<Pairs>> { block, form: PhantomData });
        }
        DType::BF16 => with::<Plain<BF16>>(block),
        DType::Q8_0 => with::<Quantised<Q8_0>>(block),
        DType::Q4_0 => with::<Quantised<Q4_0>>(block),
        DType::Q4_1 => with::<Quantised<Q4_1>>(block),
        DType::Q5_0 => with::<Quantised<Q5_0>>(block),
        DType::Q5_1 => with::<Quantised<Q5_1>>(block),
        DType::IQ4NL => with::<Quantised<IQ4NL>>(block),
        DType::Q2K => with::<Quantised<Q2K>>(block),
        DType::Q3K => with::<Quantised<Q3K>>(block),
        DType::Q4K => with::<Quantised<Q4K>>(block),
        DType::Q5K => with::<Quantised<Q5K>>(block),
        DType::Q6K => with::<Quantised<Q6K>>(block),
        DType::IQ4XS => with::<Quantised<IQ4XS>>(block),
    }
}
