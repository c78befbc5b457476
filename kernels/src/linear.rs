//! A packed weight matrix and its products.

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
/// Minimum work of a task in nanoseconds, estimated with [`BYTES_PER_NS`] and [`MACS_PER_NS`].
const MIN_TASK_NS: usize = 2_000;
/// Bytes from memory, and
const BYTES_PER_NS: usize = 12;
/// multiply-adds, in a nanosecond.
const MACS_PER_NS: usize = 200;
/// Groups of float weights larger than [`SPLIT_ABOVE`] bytes are processed in parts of this size, each for several
/// tiles: two groups' parts fit into the L1 cache.
const SPLIT_BYTES: usize = 16 * 1024;
const SPLIT_ABOVE: usize = 64 * 1024;
/// Bytes of partial outputs that wait in the cache.
const PENDING_BYTES: usize = 192 * 1024;

/// Bytes of a file that a thread reads and packs at once, unless sixteen rows are more.
const PACK_BYTES: usize = 256 * 1024;

/// Weights `[n, k]`: `n` outputs for `k` inputs.
pub struct Linear {
    dtype: DType,
    n: usize,
    k: usize,
    group_bytes: usize,
    groups: Aligned,
    /// Padded to whole groups.
    bias: Option<Vec<f32>>,
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear({:?} [{}, {}])", self.dtype, self.n, self.k)
    }
}

impl Linear {
    /// Packs `n` rows of `k` weights. `read` is called on the pool's threads with the index of a row and a buffer for
    /// that and following rows in GGUF's format, so a matrix is never in memory twice.
    ///
    /// # Errors
    /// If a dimension is zero, `k` is not a whole number of blocks, or `read` fails.
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

    /// Packs a tensor of a GGUF file: `n` rows of `k` weights in the file's format.
    ///
    /// # Errors
    /// If a dimension is zero, `k` is not a whole number of blocks, or `bytes` has another length.
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

    /// Adds `bias` (`[n]`) to each row's outputs.
    ///
    /// # Errors
    /// If it has another length.
    pub fn with_bias(mut self, bias: &[f32]) -> Result<Self, Error> {
        if bias.len() != self.n {
            return Err(Error::Bias { expected: self.n, found: bias.len() });
        }
        let mut whole = bias.to_vec();
        whole.resize(self.n.next_multiple_of(LANES), 0.0);
        self.bias = Some(whole);
        Ok(self)
    }

    /// Bytes that [`Linear::pack`] needs temporarily.
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

    /// Bytes of `n` packed rows of `k` weights; `k` is a whole number of blocks.
    pub fn packed_bytes(dtype: DType, n: usize, k: usize) -> usize {
        Layout::of(dtype).group_bytes(k) * n.div_ceil(LANES)
    }

    /// Memory of the weights.
    pub fn bytes(&self) -> usize {
        self.groups.len()
    }

    /// The weights of output `index`, dequantised exactly as GGML does.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `k` long.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert!(index < self.n && out.len() == self.k, "row {index} of {self:?} into {} numbers", out.len());
        let group = &self.groups.bytes()[index / LANES * self.group_bytes..][..self.group_bytes];
        unpack_row(self.dtype, group, index % LANES, out);
    }

    /// `out = x · weightsᵀ + bias` for `x` `[m, k]` and `out` `[m, n]`.
    ///
    /// # Panics
    /// If a length does not match.
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
        // The packed form is at most half as long again.
        (Some(bytes), Some(all)) if whole && all <= isize::MAX as usize / 2 => Ok(bytes),
        _ => Err(Error::Shape { dtype, n, k }),
    }
}

/// Rows that are packed at once: whole groups.
fn pack_rows(row_bytes: usize) -> usize {
    (PACK_BYTES / (row_bytes * LANES).max(1)).max(1) * LANES
}

/// Products of the same activations with several matrices in one parallel section. Each output is `[m, n]` of its
/// matrix.
///
/// # Panics
/// If a length does not match.
pub fn matmul_all(x: &Activations<'_>, products: &mut [(&Linear, &mut [f32])]) {
    let section = Section::new(x, products);
    x.pool.run(section.ends.len(), |task| section.run(task));
}

/// The work of a section: all groups of all matrices for a run of tiles, then for the next run, and so on. A task is a
/// range of it. Tasks start long and end short, so that most weights are read in long runs and all threads finish
/// together.
struct Section<'a> {
    x: &'a Activations<'a>,
    parts: SmallVec<[MatrixPart<'a>; 4]>,
    groups: usize,
    /// Tiles of a run.
    tiles: usize,
    /// Groups that a run processes together.
    together: usize,
    ends: Ends,
}

/// The ends of tasks, on the stack: a decode step has no time to allocate.
type Ends = SmallVec<[usize; 32]>;

/// One matrix of a section.
struct MatrixPart<'a> {
    linear: &'a Linear,
    /// Index of its first group.
    first: usize,
    x: *const u8,
    block_stats: *const f32,
    /// The layout of floats, in bytes.
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

/// Spans that are processed for all tiles of a run before the next ones.
fn split_depth(linear: &Linear) -> usize {
    let long = !linear.dtype.is_quantised() && linear.group_bytes > SPLIT_ABOVE;
    if long { SPLIT_BYTES / Layout::of(linear.dtype).low } else { usize::MAX }
}

/// Bytes of a row of activations that every group reads again.
fn cached_row_bytes(linear: &Linear, x: &Activations<'_>) -> usize {
    if linear.dtype.is_quantised() {
        return linear.k * 3 / 2;
    }
    let size = if uses_bf16_pairs(linear.dtype, x.tiles.isa) { size_of::<u16>() } else { size_of::<f32>() };
    x.row_numbers().min(split_depth(linear).saturating_mul(FLOATS)) * size
}

/// Splits `items` into tasks: each takes its share of half of the rest, but at least `least` items.
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

    /// Consecutive groups times a run of tiles.
    fn run(&self, group: usize, groups: usize, tiles: Tiles, Range { start: first, end: last }: Range<usize>) {
        let Linear { dtype, n, k, group_bytes, .. } = *self.linear;
        let weights = &self.linear.groups.bytes()[group * group_bytes..][..groups * group_bytes];
        let width = if dtype.is_quantised() { BLOCK } else { FLOATS };
        let (columns, steps) = ((n - group * LANES).min(groups * LANES), k / width);
        // Other tasks have other groups or tiles, so these outputs belong to this task alone.
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
