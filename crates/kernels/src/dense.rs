//! Products with a row-major matrix in f32 precision, in both directions, for training.
//!
//! The matrix is not packed beforehand. A task packs a panel of it, dequantises it if it is quantised, multiplies all
//! rows by the panel while that is in the cache, and continues with the next. Each output is a sum in the order of the
//! inner dimension.

use std::cell::RefCell;
use std::ops::Range;

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::dtype::{DType, dequantise};
use crate::gemm::activations::{RowLayout, Tiles};
use crate::gemm::{GemmTask, multiply};
use crate::pack::FLOATS;
use crate::simd::{Isa, LANES};

/// Inner elements of a panel: two groups of 16 outputs fit in the L1 cache. A multiple of every block of weights.
const PANEL_INNER: usize = 256;
/// Maximum outputs of a panel; it takes a quarter of a megabyte.
const PANEL_OUTPUTS: usize = 256;
/// Rows that are multiplied by a panel together, so that they stay in the cache.
const RUN_ROWS: usize = 192;

/// A row-major matrix `[rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct DenseMatrix<'a> {
    rows: usize,
    columns: usize,
    elements: Elements<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Elements<'a> {
    Floats(&'a [f32]),
    /// Blocks of a GGUF file.
    Blocks(DType, &'a [u8]),
}

/// A part of a product. Both ranges start at multiples of [`DenseMatrix::ALIGNMENT`].
#[derive(Clone, Debug)]
pub struct ProductPart {
    /// Elements of a row of `x`.
    pub inner: Range<usize>,
    /// Elements of a row of the result.
    pub outputs: Range<usize>,
}

/// Which product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `x Mᵀ`: from columns to rows.
    Forward,
    /// `x M`: from rows to columns, as gradients take it.
    Backward,
}

impl<'a> DenseMatrix<'a> {
    /// # Panics
    /// If there are not `rows · columns` elements.
    pub fn floats(elements: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(elements.len()), rows.checked_mul(columns), "elements are [rows, columns]");
        Self { rows, columns, elements: Elements::Floats(elements) }
    }

    /// Weights in the format of a GGUF file.
    ///
    /// # Panics
    /// If `bytes` has another length, or rows are not whole blocks.
    pub fn blocks(dtype: DType, bytes: &'a [u8], rows: usize, columns: usize) -> Self {
        let len = (columns / dtype.block() * dtype.block_bytes()).checked_mul(rows);
        assert!(columns.is_multiple_of(dtype.block()) && Some(bytes.len()) == len, "blocks are [rows, columns]");
        Self { rows, columns, elements: Elements::Blocks(dtype, bytes) }
    }

    /// Elements of a row of `x`, and of a row of the result.
    pub fn sizes(&self, direction: Direction) -> [usize; 2] {
        match direction {
            Direction::Forward => [self.columns, self.rows],
            Direction::Backward => [self.rows, self.columns],
        }
    }

    /// The alignment of parts.
    pub const ALIGNMENT: usize = PANEL_OUTPUTS;

    /// Computes a part of the product with `x`, `[m, inner]`, and writes it to `out`, `[m, outputs]`, or adds it if
    /// `accumulate` is set.
    ///
    /// # Panics
    /// If lengths do not match, or the part is not aligned or too large.
    pub fn multiply(
        &self,
        pool: &Pool,
        direction: Direction,
        x: &[f32],
        part: ProductPart,
        accumulate: bool,
        out: &mut [f32],
    ) {
        let [inner, width] = self.sizes(direction);
        let ProductPart { inner: terms, outputs } = part;
        let aligned = [&terms, &outputs].iter().all(|range| range.start.is_multiple_of(Self::ALIGNMENT));
        assert!(aligned && terms.end <= inner && outputs.end <= width, "no part of [{inner}, {width}]");
        let m = x.len() / inner.max(1);
        assert!(inner > 0 && x.len() == m * inner && out.len() == m * width, "x is [m, {inner}], out [m, {width}]");
        if m == 0 || outputs.is_empty() || terms.is_empty() {
            return;
        }
        let alignment = match (direction, self.elements) {
            (Direction::Backward, Elements::Blocks(dtype, _)) => dtype.block().max(2 * LANES),
            _ => 2 * LANES,
        };
        let chunk = chunk_outputs(outputs.len(), alignment, pool.threads());
        let shared = SharedSlice::new(out);
        pool.run(outputs.len().div_ceil(chunk), |task| {
            let start = outputs.start + task * chunk;
            let count = chunk.min(outputs.end - start);
            let rows = Strided { start: x.as_ptr(), stride: inner };
            let out = Strided { start: shared.at(start, (m - 1) * width + count), stride: width };
            with_panel(|panel| {
                for first in terms.clone().step_by(PANEL_INNER) {
                    let ks = first..terms.end.min(first + PANEL_INNER);
                    self.pack(direction, ks.clone(), start..start + count, panel);
                    let rows = Strided { start: rows.start.wrapping_add(first), ..rows };
                    let size = PanelSize { inner: ks.len(), outputs: count };
                    // SAFETY: the rows have these inner elements, and no other task writes these outputs.
                    unsafe { panel.multiply(pool.isa(), size, (rows, m), out, accumulate || first > terms.start) };
                }
            });
        });
    }

    /// Packs the panel of these inner elements and outputs.
    fn pack(&self, direction: Direction, inner: Range<usize>, outputs: Range<usize>, panel: &mut Panel) {
        match (direction, self.elements) {
            (Direction::Forward, Elements::Floats(elements)) => {
                let row = |row: usize| &elements[row * self.columns..][inner.clone()];
                panel.pack_rows(inner.len(), outputs.map(row));
            }
            (Direction::Forward, Elements::Blocks(dtype, bytes)) => {
                let mut buffer = [[0f32; PANEL_INNER]; LANES];
                for (group, first) in outputs.clone().step_by(LANES).enumerate() {
                    let rows = first..outputs.end.min(first + LANES);
                    for (row, buffer) in rows.clone().zip(&mut buffer) {
                        dequantise_part(dtype, bytes, row * self.columns + inner.start, &mut buffer[..inner.len()]);
                    }
                    let rows = buffer[..rows.len()].iter().map(|row| &row[..inner.len()]);
                    panel.pack_group(group, inner.len(), rows);
                }
            }
            (Direction::Backward, Elements::Floats(elements)) => {
                for (k, row) in inner.clone().enumerate() {
                    panel.put(k, inner.len(), &elements[row * self.columns..][outputs.clone()]);
                }
            }
            (Direction::Backward, Elements::Blocks(dtype, bytes)) => {
                let mut buffer = [0f32; PANEL_OUTPUTS];
                let buffer = &mut buffer[..outputs.len()];
                for (k, row) in inner.clone().enumerate() {
                    dequantise_part(dtype, bytes, row * self.columns + outputs.start, buffer);
                    panel.put(k, inner.len(), buffer);
                }
            }
        }
    }
}

/// Dequantises elements from `first` on; `out` is whole blocks.
fn dequantise_part(dtype: DType, bytes: &[u8], first: usize, out: &mut [f32]) {
    let part = |elements: usize| elements / dtype.block() * dtype.block_bytes();
    dequantise(dtype, &bytes[part(first)..][..part(out.len())], out);
}

/// Outputs of a task: a multiple of `alignment` of at most [`PANEL_OUTPUTS`] for which all threads finish together.
fn chunk_outputs(outputs: usize, alignment: usize, threads: usize) -> usize {
    let time = |chunk: &usize| outputs.div_ceil(*chunk).div_ceil(threads) * chunk;
    let chunks = (1..PANEL_OUTPUTS / alignment + 1).rev().map(|count| count * alignment);
    chunks.min_by_key(time).unwrap_or(PANEL_OUTPUTS)
}

/// Rows of floats; the distance between them is in floats.
#[derive(Clone, Copy)]
pub(crate) struct Strided<P> {
    pub start: P,
    pub stride: usize,
}

/// A packed panel: groups of 16 outputs, as in [`crate::pack`] for f32.
#[derive(Default)]
pub(crate) struct Panel(Vec<f32>);

#[derive(Clone, Copy)]
pub(crate) struct PanelSize {
    pub inner: usize,
    pub outputs: usize,
}

thread_local! {
    static PANEL: RefCell<Panel> = RefCell::default();
}

/// Runs `work` with the panel of this thread, which keeps its memory.
pub(crate) fn with_panel<R>(work: impl FnOnce(&mut Panel) -> R) -> R {
    PANEL.with(|panel| match panel.try_borrow_mut() {
        Ok(mut panel) => work(&mut panel),
        Err(_) => work(&mut Panel::default()),
    })
}

/// Floats of a group of a panel.
fn group_floats(inner: usize) -> usize {
    inner.next_multiple_of(FLOATS) * LANES
}

impl Panel {
    fn group(&mut self, group: usize, inner: usize) -> &mut [f32] {
        let len = group_floats(inner);
        if self.0.len() < (group + 1) * len {
            self.0.resize((group + 1) * len, 0.);
        }
        &mut self.0[group * len..][..len]
    }

    /// Packs a matrix whose rows are outputs.
    pub fn pack_rows<'r>(&mut self, inner: usize, rows: impl ExactSizeIterator<Item = &'r [f32]>) {
        let mut rows = rows.peekable();
        let mut group = 0;
        while rows.peek().is_some() {
            self.pack_group(group, inner, rows.by_ref().take(LANES));
            group += 1;
        }
    }

    /// Packs up to 16 rows of `inner` elements, which are outputs.
    fn pack_group<'r>(&mut self, group: usize, inner: usize, rows: impl Iterator<Item = &'r [f32]>) {
        let mut sources: [&[f32]; LANES] = [&[]; LANES];
        let mut count = 0;
        for (source, row) in sources.iter_mut().zip(rows) {
            *source = &row[..inner];
            count += 1;
        }
        // Missing outputs are computed and not stored.
        let first = sources[0];
        sources[count..].fill(first);
        for (k, lanes) in self.group(group, inner).chunks_exact_mut(LANES).take(inner).enumerate() {
            for (lane, source) in lanes.iter_mut().zip(&sources) {
                *lane = source[k];
            }
        }
    }

    /// Writes the inner element `k` of all outputs.
    pub fn put(&mut self, k: usize, inner: usize, outputs: &[f32]) {
        for (group, outputs) in outputs.chunks(LANES).enumerate() {
            let lanes = &mut self.group(group, inner)[k * LANES..][..LANES];
            match outputs.first_chunk::<LANES>() {
                Some(outputs) => lanes.copy_from_slice(outputs.as_slice()),
                None => {
                    lanes.fill(0.);
                    lanes[..outputs.len()].copy_from_slice(outputs);
                }
            }
        }
    }

    /// Multiplies `m` rows by the panel.
    ///
    /// # Safety
    /// Each of the `m` rows has the inner elements, and each row of `out` the outputs, which nothing else accesses. The
    /// panel was packed with this size.
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        PanelSize { inner, outputs }: PanelSize,
        (rows, m): (Strided<*const f32>, usize),
        out: Strided<*mut f32>,
        accumulate: bool,
    ) {
        assert!(outputs.div_ceil(LANES) * group_floats(inner) <= self.0.len(), "the panel is smaller");
        let layout = RowLayout { row_stride: rows.stride, ..RowLayout::ONE_SEGMENT };
        let tiles = Tiles::new(1, m, isa);
        let run_tiles = (RUN_ROWS / tiles.max_rows().max(1)).max(1);
        for first_tile in (0..tiles.count).step_by(run_tiles) {
            let task = GemmTask {
                weights: self.0.as_ptr().cast(),
                group_bytes: group_floats(inner) * size_of::<f32>(),
                steps: inner / FLOATS,
                remainder: inner % FLOATS,
                k_block_spans: usize::MAX,
                x: rows.start.cast(),
                block_stats: std::ptr::null(),
                layout: layout.in_bytes(size_of::<f32>()),
                tiles,
                first_tile,
                end_tile: tiles.count.min(first_tile + run_tiles),
                out: out.start,
                out_stride: out.stride,
                columns: outputs,
                bias: std::ptr::null(),
                accumulate,
            };
            multiply(DType::F32, &task);
        }
    }
}
