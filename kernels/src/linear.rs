//! A weight matrix, packed, and its products.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::activations::{BLOCK, RowLayout, Tiles};
use crate::buffer::{Aligned, Shards};
use crate::dtype::DType;
use crate::gemm::{Block, multiply, uses_bf16_pairs};
use crate::pack::{FLOATS, Layout, pack_group, unpack_row};
use crate::simd::LANES;
use crate::{Activations, Error, Pool};

/// Bytes of activations that one pass keeps in a core's own cache.
const CACHE_BYTES: usize = 384 * 1024;
/// The least work of a task, in billionths of a second by the rough guess of [`BYTES_PER_NS`] and [`MACS_PER_NS`].
const MIN_TASK_NS: usize = 2_000;
/// Bytes that come from memory, and
const BYTES_PER_NS: usize = 12;
/// multiplications that are done, in a billionth of a second.
const MACS_PER_NS: usize = 200;
/// Bytes of a group of float weights that meet several tiles before the next ones do, where the group as a whole takes
/// more than [`SPLIT_ABOVE`]: with two groups at a time, what the nearest cache holds.
const SPLIT_BYTES: usize = 16 * 1024;
const SPLIT_ABOVE: usize = 64 * 1024;
/// Bytes of outputs that wait for what else is added to them.
const PENDING_BYTES: usize = 192 * 1024;

/// Bytes of a file that a thread reads and packs at a time, unless sixteen rows are more.
const PACK_BYTES: usize = 256 * 1024;

/// Weights `[n, k]`: `n` outputs for `k` inputs.
pub struct Linear {
    dtype: DType,
    n: usize,
    k: usize,
    group_bytes: usize,
    groups: Aligned,
    /// Filled up to whole groups.
    bias: Option<Vec<f32>>,
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear({:?} [{}, {}])", self.dtype, self.n, self.k)
    }
}

impl Linear {
    /// Packs `n` rows of `k` weights. `read` is called from the pool's threads with the number of a row and
    /// the place for the bytes of that and some following rows as a GGUF file has them; so a matrix is never
    /// in memory twice.
    ///
    /// # Errors
    /// Where a dimension is zero or `k` is no whole number of blocks, and what `read` fails with.
    pub fn pack<E: From<Error> + Send>(
        pool: &Pool,
        dtype: DType,
        n: usize,
        k: usize,
        read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let row_bytes = row_bytes(dtype, n, k)?;
        let group_bytes = Layout::of(dtype).group_bytes(k);
        let mut groups = Aligned::zeroed(Self::packed_bytes(dtype, n, k));
        let rows_each = pack_rows(row_bytes);
        let (to, failure) = (Shards::new(groups.bytes_mut()), Mutex::new(None));
        pool.run(n.div_ceil(rows_each), |piece| {
            let first = piece * rows_each;
            let mut bytes = vec![0; rows_each.min(n - first) * row_bytes];
            if let Err(error) = read(first, &mut bytes) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            for (group, rows) in (first / LANES..).zip(bytes.chunks(row_bytes * LANES)) {
                // SAFETY: each group is in one piece.
                let group = unsafe { to.get(group * group_bytes, group_bytes) };
                pack_group(dtype, rows, row_bytes, group);
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(Self { dtype, n, k, group_bytes, groups, bias: None }),
        }
    }

    /// Packs a tensor of a GGUF file: `n` rows of `k` weights, `bytes` as they lie in the file.
    ///
    /// # Errors
    /// Where a dimension is zero, `k` is no whole number of blocks, or `bytes` has another length.
    pub fn from_gguf(dtype: DType, n: usize, k: usize, bytes: &[u8]) -> Result<Self, Error> {
        let row_bytes = row_bytes(dtype, n, k)?;
        if bytes.len() != row_bytes * n {
            return Err(Error::Length { expected: row_bytes * n, found: bytes.len() });
        }
        Self::pack(&Pool::new(1), dtype, n, k, |first, to| {
            to.copy_from_slice(&bytes[first * row_bytes..][..to.len()]);
            Ok(())
        })
    }

    /// Adds `bias` (`[n]`) to the outputs of every row.
    ///
    /// # Errors
    /// Where it has another length.
    pub fn with_bias(mut self, bias: &[f32]) -> Result<Self, Error> {
        if bias.len() != self.n {
            return Err(Error::Bias { expected: self.n, found: bias.len() });
        }
        let mut whole = bias.to_vec();
        whole.resize(self.n.next_multiple_of(LANES), 0.0);
        self.bias = Some(whole);
        Ok(self)
    }

    /// Bytes that [`Linear::pack`] takes while it works, beside the weights it gives.
    pub fn packing_bytes(threads: usize, dtype: DType, n: usize, k: usize) -> usize {
        let row_bytes = k / dtype.block() * dtype.block_bytes();
        (threads * pack_rows(row_bytes)).min(n) * row_bytes
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes that `n` rows of `k` weights take when they are packed; `k` is a whole number of blocks.
    pub fn packed_bytes(dtype: DType, n: usize, k: usize) -> usize {
        Layout::of(dtype).group_bytes(k) * n.div_ceil(LANES)
    }

    /// Memory that the weights take.
    pub fn bytes(&self) -> usize {
        self.groups.len()
    }

    /// The weights of output `index`, exactly as GGML dequantises them.
    ///
    /// # Panics
    /// Where there is no such row or `out` is not `k` long.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert!(index < self.n && out.len() == self.k, "row {index} of {self:?} into {} numbers", out.len());
        let group = &self.groups.bytes()[index / LANES * self.group_bytes..][..self.group_bytes];
        unpack_row(self.dtype, group, index % LANES, out);
    }

    /// `out = x · weightsᵀ + bias` for `x` `[m, k]` and `out` `[m, n]`.
    ///
    /// # Panics
    /// Where a length is another.
    pub fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) {
        matmul_all(&Activations::new(pool, x, m, self.k), &mut [(self, out)]);
    }
}

/// Bytes of a row in the file.
fn row_bytes(dtype: DType, n: usize, k: usize) -> Result<usize, Error> {
    let bytes = (k / dtype.block()).checked_mul(dtype.block_bytes());
    let whole = n > 0 && k > 0 && k.is_multiple_of(dtype.block());
    let all = bytes.and_then(|bytes| bytes.checked_mul(n.checked_next_multiple_of(LANES)?));
    match (bytes, all) {
        // The packed form is at most a half longer.
        (Some(bytes), Some(all)) if whole && all <= isize::MAX as usize / 2 => Ok(bytes),
        _ => Err(Error::Shape { dtype, n, k }),
    }
}

/// Rows of a piece: whole groups.
fn pack_rows(row_bytes: usize) -> usize {
    (PACK_BYTES / (row_bytes * LANES).max(1)).max(1) * LANES
}

/// Several matrices over the same activations in one parallel section: each output is `[m, n]` of its
/// matrix.
///
/// # Panics
/// Where a length is another.
pub fn matmul_all(x: &Activations<'_>, products: &mut [(&Linear, &mut [f32])]) {
    let section = Section::new(x, products);
    x.pool.run(section.ends.len(), |task| section.run(task));
}

/// All groups of all matrices, times runs of tiles: the groups for the first run, then for the second,
/// and so on. A task is some that follow each other, first many and in the end few, so that most weights
/// are read in long runs, and yet all threads end together.
struct Section<'a> {
    x: &'a Activations<'a>,
    parts: SmallVec<[MatrixPart<'a>; 4]>,
    groups: usize,
    /// Tiles of a run.
    tiles: usize,
    /// Groups that a run meets together.
    together: usize,
    ends: Ends,
}

/// Where tasks end: on the stack, for a decode step has no time to ask for memory.
type Ends = SmallVec<[usize; 32]>;

/// One matrix's share of a section.
struct MatrixPart<'a> {
    linear: &'a Linear,
    /// Place of its first group.
    first: usize,
    x: *const u8,
    block_stats: *const f32,
    /// How floats lie; bytes.
    layout: RowLayout,
    out: Shards<f32>,
}

// SAFETY: the pointers are to activations borrowed for 'a and only read.
unsafe impl Sync for MatrixPart<'_> {}

impl<'a> Section<'a> {
    fn new(x: &'a Activations<'a>, products: &'a mut [(&Linear, &mut [f32])]) -> Self {
        let mut parts = SmallVec::with_capacity(products.len());
        let (mut groups, mut cost, mut row_bytes) = (0, 0, 1);
        for (linear, out) in products.iter_mut() {
            assert_eq!(linear.k, x.k(), "{linear:?} takes other activations");
            assert_eq!(Some(out.len()), x.m().checked_mul(linear.n), "the outputs of {linear:?} are [m, n]");
            let part = MatrixPart::new(linear, groups, x, out);
            groups += linear.n.div_ceil(LANES);
            row_bytes = row_bytes.max(cached_row_bytes(linear, x));
            cost = cost.max(linear.group_bytes / BYTES_PER_NS);
            parts.push(part);
        }
        let most = (CACHE_BYTES / (row_bytes * x.tiles.most().max(1))).max(1);
        let runs = x.tiles.count.div_ceil(most);
        let tiles = x.tiles.count.div_ceil(runs.max(1));
        let long = parts.iter().any(|part: &MatrixPart<'_>| split_depth(part.linear) < usize::MAX);
        let waiting = PENDING_BYTES / (LANES * size_of::<f32>() * tiles * x.tiles.most()).max(1);
        let together = if long { waiting.next_multiple_of(2).max(2) } else { usize::MAX };
        let least = MIN_TASK_NS / cost.max(x.k() * LANES * tiles * x.tiles.most() / MACS_PER_NS).max(1);
        let ends = split_tasks(groups * runs, x.pool.threads(), least.max(1));
        Self { x, parts, groups, tiles, together, ends }
    }

    fn run(&self, task: usize) {
        let (mut at, end) = (if task == 0 { 0 } else { self.ends[task - 1] }, self.ends[task]);
        while at < end {
            let (run, place) = (at / self.groups, at % self.groups);
            let tiles = run * self.tiles..self.x.tiles.count.min((run + 1) * self.tiles);
            let index = self.parts.partition_point(|part| part.first <= place) - 1;
            let (part, next) = (&self.parts[index], self.parts.get(index + 1).map_or(self.groups, |next| next.first));
            let groups = (next - place).min(end - at).min(self.together);
            part.run(place - part.first, groups, self.x.tiles, tiles);
            at += groups;
        }
    }
}

/// Spans that meet all tiles of a run before the next ones do.
fn split_depth(linear: &Linear) -> usize {
    let long = !linear.dtype.is_quantised() && linear.group_bytes > SPLIT_ABOVE;
    if long { SPLIT_BYTES / Layout::of(linear.dtype).low } else { usize::MAX }
}

/// Bytes of a row of activations that are looked at again with each group.
fn cached_row_bytes(linear: &Linear, x: &Activations<'_>) -> usize {
    if linear.dtype.is_quantised() {
        return linear.k * 3 / 2;
    }
    let size = if uses_bf16_pairs(linear.dtype, x.tiles.isa) { size_of::<u16>() } else { size_of::<f32>() };
    x.row_numbers().min(split_depth(linear).saturating_mul(FLOATS)) * size
}

/// The ends of tasks over so many items: each takes its share of half of what is left, but no fewer than
/// `least` items.
fn split_tasks(items: usize, threads: usize, least: usize) -> Ends {
    let mut ends = Ends::new();
    let mut at = 0;
    while at < items {
        let share = if threads == 1 { items } else { (items - at) / (2 * threads) };
        at = items.min(at + share.max(least));
        ends.push(at);
    }
    ends
}

impl<'a> MatrixPart<'a> {
    fn new(linear: &'a Linear, first: usize, x: &'a Activations<'a>, out: &mut [f32]) -> Self {
        let out = Shards::new(out);
        if linear.dtype.is_quantised() {
            let x = x.quantised();
            let (x, block_stats) = (x.codes.as_ptr().cast(), x.block_stats.as_ptr());
            return Self { linear, first, x, block_stats, layout: RowLayout::ONE, out };
        }
        let block_stats = std::ptr::null();
        if uses_bf16_pairs(linear.dtype, x.tiles.isa) {
            let (pairs, layout) = x.pairs();
            return Self {
                linear,
                first,
                x: pairs.as_ptr().cast(),
                block_stats,
                layout: layout.bytes(size_of::<u16>()),
                out,
            };
        }
        Self { linear, first, x: x.x.as_ptr().cast(), block_stats, layout: x.layout.bytes(size_of::<f32>()), out }
    }

    /// Some groups that follow each other, each times the tiles of a run.
    fn run(&self, group: usize, groups: usize, tiles: Tiles, Range { start: first, end: last }: Range<usize>) {
        let Linear { dtype, n, k, group_bytes, .. } = *self.linear;
        let weights = &self.linear.groups.bytes()[group * group_bytes..][..groups * group_bytes];
        let width = if dtype.is_quantised() { BLOCK } else { FLOATS };
        let (columns, steps) = ((n - group * LANES).min(groups * LANES), k / width);
        // Other tasks have other groups or tiles: what this one writes is its own.
        let rows = tiles.start(last);
        let out = self.out.at(group * LANES, (rows - 1) * n + columns);
        let bias = self.linear.bias.as_ref().map_or(std::ptr::null(), |bias| bias[group * LANES..].as_ptr());
        let block = Block {
            weights: weights.as_ptr(),
            group_bytes,
            steps,
            rest: k % width,
            depth: if last - first > 1 { split_depth(self.linear) } else { usize::MAX },
            x: self.x,
            block_stats: self.block_stats,
            layout: self.layout,
            tiles,
            first,
            last,
            out,
            stride: n,
            columns,
            bias,
        };
        multiply(dtype, &block);
    }
}

#[cfg(test)]
mod tests {
    use super::split_tasks;

    #[test]
    fn tasks_cover_all_items_and_shrink() {
        for (items, threads, least) in
            [(0, 2, 1), (1, 2, 1), (36, 2, 1), (3072, 2, 4), (3072, 16, 1), (60, 1, 1), (7, 4, 9)]
        {
            let ends = split_tasks(items, threads, least);
            assert_eq!(ends.last().copied().unwrap_or(0), items);
            let sizes: Vec<usize> =
                ends.iter().scan(0, |from, end| Some(end - std::mem::replace(from, *end))).collect();
            assert!(sizes.iter().rev().skip(1).is_sorted(), "{sizes:?} but for the last, which may be short");
            assert!(sizes.iter().all(|size| *size > 0), "{sizes:?}");
            assert!(threads == 1 || sizes.first().is_none_or(|size| *size <= (items / (2 * threads)).max(least)));
        }
    }
}
